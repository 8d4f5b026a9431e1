"""The real collection, on whatever machine the tests run on; and what is collected for boot.arguments."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host import evidence
from gdsdeploy.host.boot.loader import loader
from gdsdeploy.host.evidence import EvidenceRequest, request_for
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts import UndecidedError, facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.subjects.boot import Recorded, collect_boot, shown_parameters
from gdsdeploy.host.subjects.kernel import collect_kernel
from gdsdeploy.zipapp import hostapp
from tests.unit.host.apply.boot_hosts import OLDER, RELEASE, grub, rhel, systemd_boot
from tests.unit.host.kmod.kmod_root import EXPECTED


@pytest.fixture(scope="module")
def document() -> dict[str, object]:
    return evidence.collect(EvidenceRequest(packages=("bash",), mounts=("/",)))


def test_it_is_json_of_bounded_size(document: dict[str, object]) -> None:
    assert len(json.dumps(document)) < 3_000_000
    assert document["version"] == evidence.VERSION
    assert document["gaps"] == []


def test_it_says_what_this_machine_is(document: dict[str, object]) -> None:
    facts = facts_from(document)
    uname = os.uname()
    assert (facts.kernel.release, facts.os.machine) == (uname.release, uname.machine)
    assert facts.kernel.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    release = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if line.startswith(("ID=", "VERSION_ID="))
    )
    assert facts.os.name == f"{release['ID']}-{release['VERSION_ID']}".replace('"', "")
    assert facts.storage.mounts["/"].filesystem == mounted("/")


def mounted(point: str) -> str:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next(words[2] for words in reversed(lines) if words[1] == point)


def test_a_wanted_package_is_in_the_list(document: dict[str, object]) -> None:
    installed = facts_from(document).packages.installed
    version = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "bash"], capture_output=True, check=True, text=True
    ).stdout
    assert [package.version for package in installed["bash"]] == [version]


#: Programs that a collection may start, and what has to stand in their arguments because they could do more.
READERS = {
    "dmesg": None,
    "journalctl": "--dmesg",
    "apt-cache": "policy",
    "dpkg-query": "-W",
    "rpm": "-qa",
    "modprobe": "--show-depends",
    "modinfo": "-n",
    "systemctl": r"is-system-running|show|list-units",
    "ldconfig": "-p",
    "ip": "show",
    "env": r"-p|cuFileDriverOpen",
}


def test_it_starts_only_programs_that_read(document: dict[str, object]) -> None:
    commands = document["commands"]
    assert isinstance(commands, dict)
    assert commands
    for run in commands.values():
        argv = run["argv"]
        needed = READERS[argv[0]]
        assert needed is None or any(re.search(needed, word) for word in argv[1:]), argv


def test_it_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    evidence.collect()
    assert list(tmp_path.iterdir()) == []


def test_without_root_it_says_what_it_could_not_read() -> None:
    expectation = Expectation(
        *("x",) * 6, driver_flavour="open", driver_tree="/x", mode="compat", rdma="none", nvidia_fs_version="",
        libcufile_version="1.9.1.3", cufile_path="", cufile_sha256="x",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        secret = folder / "cufile.json"
        secret.touch(mode=0o000)
        hostapp.build(folder / "host.pyz")
        (folder / "expectation.json").write_text(replace(expectation, cufile_path=str(secret)).to_json())
        nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        argv = [
            "/usr/bin/python3",
            "-I",
            "-S",
            folder / "host.pyz",
            "evidence",
            "--expectation",
            folder / "expectation.json",
        ]
        done = subprocess.run(argv, capture_output=True, check=True, **nobody)  # type: ignore[call-overload]
    document = json.loads(done.stdout)
    assert document["host"]["uid"] != 0
    assert document["gaps"] == []
    assert facts_from(document).kernel.release == os.uname().release
    assert document["files"][str(secret)] == {"error": "EACCES"}


PATH = "sys/module/nvme_core/parameters/multipath"


def collected(root: Path, parameters: dict[str, str]) -> Document:
    recorder = Recorder(root=str(root))
    request = request_for(replace(EXPECTED, module_parameters=parameters))
    collect_kernel(recorder, request)
    collect_boot(recorder, request)
    return Document(recorder.finish())


@pytest.mark.parametrize("host", [rhel, systemd_boot], ids=["entries of RHEL", "entries of systemd-boot"])
def test_entries(tmp_path: Path, host: object) -> None:
    document = collected(host(tmp_path), {})  # type: ignore[operator]
    words = loader(files=Recorded(document)).words(RELEASE)
    assert [entry[0] for entry in words] == ["root=UUID=0f3c"], "of the locked kernel only"
    everything = loader(files=Recorded(document)).words("9.9")
    assert len(everything) == 2, "neither the rescue image nor another system"


def test_grub_cfg(tmp_path: Path) -> None:
    words = loader(files=Recorded(collected(grub(tmp_path), {}))).words(OLDER)
    assert words == [["root=UUID=0f3c", "ro", "quiet", "splash"]]


def test_parameters_of_the_expectation_and_no_other_files(tmp_path: Path) -> None:
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_text("N\n")
    (tmp_path / "sys/secret").write_text("hidden\n")
    names = {"nvme-core.multipath": "N", "nvme_core.other": "1", "../../secret.x": "1", "a/../../secret": "1"}
    document = collected(tmp_path, names)
    shown = shown_parameters(document, list(names)[:2])
    assert (shown["nvme-core.multipath"], shown["nvme_core.other"]) == ("N", None)
    for name in list(names)[2:]:
        with pytest.raises(UndecidedError, match="is no parameter"):
            shown_parameters(document, [name])
    assert [path for path in document.paths("files") if "secret" in path] == []


def test_a_host_without_a_boot_loader(tmp_path: Path) -> None:
    assert loader(files=Recorded(collected(tmp_path, {}))).words(RELEASE) == []
