from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.cufile.model import check, get, release_of
from gdsdeploy.cufile.render import log_dir, render, render_profile
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.fleet import Profile
from tests.cufile import libraries
from tests.cufile.effective import effective

TESTS = Path(__file__).parents[2]
GOLDEN = sorted((TESTS / "golden" / "cufile").glob("*.yml"))
#: Folders that the goldens name; the hosts that they are for have them.
FOLDERS = ("/var/log/cufile", "/mnt/lustre")
LARGEST = "properties.max_direct_io_size_kb"


def profile(**keys: Any) -> Profile:
    return Profile.model_validate({"os": "debian-13", **keys})


def document(name: str, intent: Profile, version: str) -> dict[str, Any]:
    return dict(render_profile(name, intent, version).document)


def parsed(text: str) -> Any:
    """The file as the library sees it: its comments stand on lines of their own."""
    return json.loads("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//")))


def errors(version: str = "1.9.1.3", **keys: Any) -> str:
    with pytest.raises(FleetInvalid) as caught:
        render("gds", profile(**keys), version)
    return caught.value.message


def test_statistics_are_off_or_have_paths() -> None:
    for version in ("1.4.0.31", "1.20.0.107"):
        rendering = render_profile("gds", profile(mode="compat", cufile_stats=3), version)
        assert get(rendering.document, "profile.cufile_stats") == 3
        assert rendering.sources["profile.cufile_stats"] == "cufile_stats: 3"
        assert get(document("gds", profile(cufile_stats=0), version), "profile.cufile_stats") is None
    assert get(document("gds", profile(cufile={"profile": {"cufile_stats": 3}}), "1.20"), "profile.cufile_stats") == 3
    for stats, level in ((0, 1), (0, 2), (3, 0), (3, 2)):
        message = errors(cufile_stats=stats, cufile={"profile": {"cufile_stats": level}})
        assert message.startswith("profiles.gds.cufile.profile.cufile_stats: must be 0 or 3"), message
    for value in (1, 2, 4, "3", True):
        with pytest.raises(ValueError, match="cufile_stats"):
            profile(cufile_stats=value)


@pytest.mark.parametrize("source", GOLDEN, ids=lambda p: p.stem)
def test_golden(source: Path) -> None:
    version = source.name.split("-")[0]
    intent = Profile.model_validate(yaml.safe_load(source.read_text()))
    text = render("gds", intent, version)
    assert text == source.with_suffix(".json").read_text()
    assert parsed(text) == document("gds", intent, version)
    assert check(parsed(text), release_of(version)) == []
    assert re.match(r"// Rendered by gdsdeploy; edit fleet\.yml instead\.\n", text)


@pytest.mark.parametrize("source", GOLDEN, ids=lambda p: p.stem)
def test_the_real_library_works_with_each_golden_as_intended(source: Path) -> None:
    library = libraries.library(source.name.split("-")[0])
    content = source.with_suffix(".json").read_bytes()
    (result,) = effective(library, {source.stem: content}, folders=FOLDERS)
    assert result.problem is None
    assert result.answer.accepted is True
    assert {value.key for value in result.values if value.state == "set"} >= {
        "properties.allow_compat_mode",
        LARGEST,
    }
    # It is known to be judged.
    wrong = content.replace(b'_direct_io_size_kb": ', b'_direct_io_size_kb": 9')
    assert library.ask(wrong, folders=FOLDERS).key == LARGEST


@pytest.mark.parametrize(
    ("storage", "allowed"),
    [
        ([], True),
        ([{"mount": "/a"}], False),
        ([{"mount": "/a"}, {"mount": "/b", "path": "p2pdma"}], False),
        ([{"mount": "/a"}, {"mount": "/b", "path": "compat"}], True),
    ],
)
def test_compat_is_allowed_unless_every_mount_wants_a_direct_path(storage: list[dict[str, str]], allowed: bool) -> None:
    rendering = document("gds", profile(storage=storage), "1.9.1.3")
    assert get(rendering, "properties.allow_compat_mode") is allowed


def test_the_fleet_decides_over_the_default() -> None:
    cufile = {"properties": {"allow_compat_mode": True}, "logging": {"level": "TRACE"}}
    rendering = document("gds", profile(storage=[{"mount": "/a"}], cufile=cufile), "1.9.1.3")
    assert get(rendering, "properties.allow_compat_mode") is True
    assert rendering["logging"] == {"dir": "/var/log/cufile", "level": "TRACE"}


@pytest.mark.parametrize(
    ("version", "properties", "largest", "buffer"),
    [
        ("1.9.1.3", {}, 1024, 1024),
        ("1.20.0.107", {}, 16384, 1024),
        ("1.13.0.11", {"max_direct_io_size_kb": 512}, 512, 512),
        ("1.13.0.11", {"max_direct_io_size_kb": 4096, "per_buffer_cache_size_kb": 2048}, 4096, 2048),
    ],
)
def test_both_sizes_are_always_written_and_agree(
    version: str, properties: dict[str, int], largest: int, buffer: int
) -> None:
    rendering = document("gds", profile(cufile={"properties": properties}), version)
    assert get(rendering, "properties.max_direct_io_size_kb") == largest
    assert get(rendering, "properties.per_buffer_cache_size_kb") == buffer


@pytest.mark.parametrize(
    ("mode", "version", "switches"),
    [
        ("nvidia-fs", "1.9.1.3", {"force_compat_mode": False}),
        ("nvidia-fs", "1.13.0.11", {"force_compat_mode": False, "use_pci_p2pdma": False}),
        ("p2pdma", "1.13.0.11", {"force_compat_mode": False, "use_pci_p2pdma": True}),
        ("compat", "1.20.0.107", {"force_compat_mode": True, "use_pci_p2pdma": False, "allow_compat_mode": True}),
    ],
)
def test_switches_of_the_mode(mode: str, version: str, switches: dict[str, bool]) -> None:
    properties = document("gds", profile(mode=mode), version)["properties"]
    assert switches.items() <= properties.items()
    assert ("use_pci_p2pdma" in properties) is ("use_pci_p2pdma" in switches)


NVME = "block.nvme.use_pci_p2pdma"


@pytest.mark.parametrize(
    ("mode", "version", "value"),
    [
        ("p2pdma", "1.13.0.11", None),
        ("p2pdma", "1.15.1.6", None),
        ("p2pdma", "1.16.0.49", True),
        ("p2pdma", "1.20.0.107", True),
        # A newer library is treated as the newest known one.
        ("p2pdma", "1.25.0.1", True),
        ("nvidia-fs", "1.20.0.107", None),
        ("compat", "1.20.0.107", None),
    ],
)
def test_disks_have_a_key_of_their_own_for_p2pdma_from_1_16_on(mode: str, version: str, value: bool | None) -> None:
    rendering = render_profile("gds", profile(mode=mode), version)
    assert get(rendering.document, NVME) is value
    assert rendering.sources.get(NVME) == (f"the mode {mode}" if value else None)


def test_the_fleet_file_adds_other_storage_to_p2pdma_and_may_leave_disks_out() -> None:
    cufile = {"block": {"nvme": {"use_pci_p2pdma": False}, "nvmeof": {"use_pci_p2pdma": True}}}
    block = document("gds", profile(mode="p2pdma", cufile=cufile), "1.20.0.107")["block"]
    assert block == cufile["block"]
    cufile["block"]["nvmeof"]["use_pci_p2pdma"] = False
    words = errors("1.20.0.107", mode="p2pdma", cufile=cufile)
    assert words == (
        "profiles.gds.cufile.properties.use_pci_p2pdma: "
        f"does nothing from 1.16 on without the key of some storage, such as {NVME}: true"
    )


@pytest.mark.parametrize("mode", ["nvidia-fs", "compat"])
def test_a_storage_key_of_p2pdma_contradicts_other_modes(mode: str) -> None:
    cufile = {"fs": {"virtiofs": {"use_pci_p2pdma": True}}}
    assert errors("1.20.0.107", mode=mode, cufile=cufile) == (
        "profiles.gds.cufile.fs.virtiofs.use_pci_p2pdma: "
        f"contradicts mode: {mode}, which rules this path out; change the mode instead"
    )


def test_empty_sections_are_left_out() -> None:
    text = render("gds", profile(cufile={"denylist": {}, "fs": {"nfs": {}}}), "1.9.1.3")
    assert set(parsed(text)) == {"logging", "properties"}


def test_a_value_cannot_break_out_of_the_file() -> None:
    evil = '"],\n// x\n"allow_compat_mode": true, "{{ 7 * 7 }}</script>'
    text = render("gds", profile(cufile={"denylist": {"filesystems": [evil]}}), "1.9.1.3")
    assert get(parsed(text), "denylist.filesystems") == [evil]


def test_every_problem_names_the_profile_and_the_key() -> None:
    message = errors(cufile={"properties": {"io_batchsize": 999, "allow_compat_mod": True}, "logging": {"level": 3}})
    level, batch, compat = message.splitlines()
    assert level == "profiles.gds.cufile.logging.level: expected text (found 3)"
    assert batch == "profiles.gds.cufile.properties.io_batchsize: must be 1 to 256 (found 999)"
    assert compat.startswith("profiles.gds.cufile.properties.allow_compat_mod: unknown key")
    assert compat.endswith("(did you mean properties.allow_compat_mode?)")


@pytest.mark.parametrize(
    ("version", "keys", "expected"),
    [
        ("1.9.1.3", {"mode": "p2pdma"}, ".gds.mode: p2pdma needs libcufile 1.13 or newer; the lock has 1.9.1.3"),
        ("1.13.0", {"cufile": {"properties": {"use_pci_p2pdma": True}}}, "contradicts mode: nvidia-fs"),
        (
            "1.9.1",
            {"mode": "compat", "storage": [{"mount": "/a"}]},
            ".gds.storage: /a: mode: compat has no direct path",
        ),
        ("1.9.1", {"mode": "compat", "cufile": {"properties": {"allow_compat_mode": False}}}, "contradicts allow"),
        ("1.9.1", {"cufile": {"properties": {"per_buffer_cache_size_kb": 2048}}}, "may not exceed"),
        ("1.9.1", {"cufile": {"properties": {"max_direct_io_size_kb": "big"}}}, "expected a whole number (found 'big'"),
        (
            "1.20.0",
            {"cufile": {"fs": {"lustre": {"mount_table": {"/tmp": ["192.0.2.1"]}}}}},
            ".gds.cufile.fs.lustre.mount_table./tmp: expected an object (found ['192.0.2.1'])",
        ),
        (
            "1.20.0",
            {"cufile": {"fs": {"nfs": {"mount_table": {"/tmp": {"rdma_dev_addr_list": "192.0.2.1"}}}}}},
            ".fs.nfs.mount_table./tmp.rdma_dev_addr_list: expected a list of texts (found '192.0.2.1')",
        ),
        ("1.20.0", {"cufile": {"fs": {"lustre.posix_gds_min_kb": 64}}}, '.fs."lustre.posix_gds_min_kb": unknown key'),
        ("1.3.0", {}, "profiles.gds.libcufile: 1.3.0 is older than 1.4"),
    ],
)
def test_contradictions_are_refused(version: str, keys: dict[str, Any], expected: str) -> None:
    assert expected in errors(version, **keys)


@pytest.mark.parametrize(("logging", "folder"), [({}, "/var/log/cufile"), ({"dir": "/scratch/logs"}, "/scratch/logs")])
def test_the_folder_of_log_files_is_known_to_whoever_has_to_make_it(logging: dict[str, str], folder: str) -> None:
    intent = profile(cufile={"logging": logging})
    assert log_dir(intent) == folder
    assert get(document("gds", intent, "1.9.1.3"), "logging.dir") == folder
