"""The support matrix: explain's rules on an ideal host, without a host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.gen import filesystems as page
from gdsdeploy.cli.explain import command
from gdsdeploy.host.explain.filesystem import NATIVE
from gdsdeploy.host.facts import Unknown
from gdsdeploy.validate import support
from gdsdeploy.validate.ideal_host import DEVICES, GPUS, PARTS, Query, ideal, mount_of
from gdsdeploy.validate.support import Support, matrix

DOCS = Path(__file__).parents[3] / "docs"


def row(filesystem: str, mode: str, **query: str) -> Support:
    (only,) = matrix(filesystem, mode, **query)
    return only


def test_the_page_is_todays() -> None:
    assert (DOCS / "filesystems.md").read_text() == page.page(), page.__doc__


def test_every_filesystem_has_a_row_and_every_part_is_needed_by_one() -> None:
    rows = matrix()
    assert {entry.filesystem for entry in rows} == set(support.filesystems())
    assert {*NATIVE, *DEVICES, "overlay"} <= set(support.filesystems())
    assert {part for entry in rows for part in entry.needs} == set(PARTS)


@pytest.mark.parametrize(
    ("filesystem", "mode", "libcufile", "needs"),
    [
        ("ext4", "nvidia-fs", "1.4", ("nvidia-fs", "hooks in the storage driver", "data=ordered")),
        ("ext4", "p2pdma", "1.13", ("open kernel modules", "CONFIG_PCI_P2PDMA", "registry keys")),
        ("nfs", "nvidia-fs", "1.4", ("hooks in the storage driver", "proto=rdma")),
        ("virtiofs", "p2pdma", "1.16", ("CONFIG_PCI_P2PDMA",)),
        ("scatefs", "nvidia-fs", "1.14", ("nvidia-fs",)),
        ("wekafs", "peermem", "1.4", ("RDMA adapter", "active link", "nvidia-peermem")),
        ("gpfs", "dmabuf", "1.4", ("open kernel modules", "DMA-BUF in the RDMA core", "its address in cufile.json")),
    ],
)
def test_a_direct_path(filesystem: str, mode: str, libcufile: str, needs: tuple[str, ...]) -> None:
    entry = row(filesystem, mode)
    assert (entry.path, entry.why, entry.libcufile) == (mode, "", libcufile)
    assert set(needs) <= set(entry.needs)


def test_what_a_path_does_not_need() -> None:
    assert not {"nvidia-fs", "hooks in the storage driver"} & set(row("gpfs", "peermem").needs)
    assert "nvidia-peermem" not in row("wekafs", "dmabuf").needs
    assert "nvidia-fs" not in row("xfs", "p2pdma").needs
    assert row("wekafs", "nvidia-fs").libcufile == "", "no hooks help it"


@pytest.mark.parametrize(
    ("filesystem", "mode", "query", "path", "why"),
    [
        ("xfs", "p2pdma", {"libcufile": "1.12"}, "compat", "older than 1.13"),
        ("virtiofs", "p2pdma", {"libcufile": "1.15"}, "compat", "1.16 is the first"),
        ("wekafs", "dmabuf", {"kernel": "5.10.0-23-amd64"}, "compat", "older than 5.12"),
        ("xfs", "nvidia-fs", {"gpu": "geforce"}, "compat", "class of GPU"),
        ("xfs", "p2pdma", {"gpu": "turing"}, "not known", "doesn't list Tesla T4"),
        ("overlay", "compat", {"libcufile": "1.15"}, "broken", "takes no files on overlay"),
        ("panfs", "nvidia-fs", {}, "not known", "isn't documented"),
    ],
)
def test_other_versions(filesystem: str, mode: str, query: dict[str, str], path: str, why: str) -> None:
    entry = row(filesystem, mode, **query)
    assert entry.path == path
    assert why in entry.why


def test_since_comes_from_the_table_or_is_not_known() -> None:
    assert [row(name, "compat").libcufile for name in ("tmpfs", "zfs", "ext4", "fuse", "panfs")] == [
        "1.16", "1.17", "1.4", "not known", "not known",
    ]  # fmt: skip
    assert row("wekafs", "dmabuf").kernel == "5.12"
    assert "geforce" not in row("xfs", "nvidia-fs").gpus


@pytest.mark.parametrize("gpu", GPUS)
def test_the_ideal_host_leaves_nothing_open(gpu: str) -> None:
    for filesystem, mode in (("ext4", "nvidia-fs"), ("raid0", "nvidia-fs"), ("wekafs", "dmabuf")):
        facts = ideal(Query(filesystem, mode, "1.20", "6.12", gpu))
        result = support.path_of(facts, mount_of(facts))
        assert not isinstance(result.path, Unknown), result
        silent = ["cufile.silent-compat"] if result.path == "compat" else []
        assert [note.id for note in result.notes] == silent


def run(*argv: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, list(argv))
    return result.exit_code, result.output if result.exception is None else f"{result.output}{result.exception}"


def test_the_verb_prints_rows() -> None:
    status, text = run("--support", "overlay", "--libcufile", "1.15")
    assert status == 0
    assert text.startswith("overlay         compat    libcufile 1.16, any kernel, GPUs: all\n")
    assert "with these versions: broken: libcufile 1.15 takes no files on overlay" in text
    assert max(map(len, text.splitlines())) <= support.WIDTH


def test_the_verb_prints_data() -> None:
    status, text = run("--support", "xfs", "--mode", "p2pdma", "--json")
    assert status == 0
    (entry,) = json.loads(text)["support"]
    assert (entry["filesystem"], entry["path"], entry["libcufile"]) == ("xfs", "p2pdma", "1.13")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--support", "wekfs"], "there is no filesystem 'wekfs'; did you mean 'wekafs'?"),
        (["--support", "--mode", "p2pmda"], "there is no mode 'p2pmda'; did you mean 'p2pdma'?"),
        (["--support", "--gpu", "hoper"], "did you mean 'hopper'?"),
        (["--support", "--libcufile", "new"], "'new' isn't a release of libcufile"),
        (["--support", "--libcufile", "1.3"], "'1.3' isn't a release of libcufile"),
        (["--support", "--kernel", "²"], "isn't a kernel"),
        (["--support", "ext4", "/mnt"], "--support takes a FILESYSTEM only"),
        (["--support", "--error", "5027"], "--support takes a FILESYSTEM only"),
        (["--gpu", "hopper"], "--gpu needs --support"),
    ],
)
def test_what_makes_no_sense_is_refused(argv: list[str], words: str) -> None:
    status, text = run(*argv)
    assert status != 0
    assert words in text
