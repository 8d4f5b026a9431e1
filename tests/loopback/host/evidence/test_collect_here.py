"""The real collection, on whatever machine the tests run on."""

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
from gdsdeploy.host.evidence import EvidenceRequest
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.zipapp import hostapp


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
    assert not isinstance(facts.storage.mounts, Unknown)
    assert facts.storage.mounts["/"].filesystem == mounted("/")


def mounted(point: str) -> str:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next(words[2] for words in reversed(lines) if words[1] == point)


def test_a_wanted_package_is_in_the_list(document: dict[str, object]) -> None:
    installed = facts_from(document).packages.installed
    version = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "bash"], capture_output=True, check=True, text=True
    ).stdout
    assert not isinstance(installed, Unknown)
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
