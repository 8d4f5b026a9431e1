"""libcufile's answer is kept, and asked for again as soon as anything changes that it depends on.

The library and the host's files are stand-ins, in the places in which the collector looks.  What real libraries
answer is in tests/evidence/cufile-open.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import evidence
from gdsdeploy.host.evidence.recorder import EvidenceRequest, Recorder
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.gate import gate
from gdsdeploy.host.io import cache
from gdsdeploy.host.libcufile import probe
from gdsdeploy.host.model.expectation import NoExpectation
from gdsdeploy.host.paths import FABRIC_STATES, MOUNTINFO
from gdsdeploy.host.subjects import gdscheck
from gdsdeploy.host.subjects.libcufile import accepted, opened
from gdsdeploy.host.subjects.register import answer
from tests.unit.host.kmod.kmod_root import EXPECTED

MOUNTS = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 / /run rw - tmpfs tmpfs rw\n"
LOG = " 21-11-2026 01:01:30:410 [pid=4 tid=4] INFO   0:1511 properties.use_compat_mode : true\n"


class Host:
    """A host's files below a folder, and what its programs print."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.asked = 0
        self.returned = "err=0 cu_err=0"
        self.log = LOG
        self.mounts = MOUNTS
        self.commands: dict[str, Any] = {
            "ldconfig": self.printed(f"\tlibcufile.so.0 (libc6) => {root}/lib/libcufile.so.0\n")
        }
        for path in (
            "proc/sys/kernel/random/boot_id", "proc/driver/nvidia/version", "proc/driver/nvidia/params",
            "proc/driver/nvidia/gpus/0000:06:00.0/information", "proc/driver/nvidia-fs/version",
            "proc/driver/nvidia-fs/devcount", "sys/class/infiniband/mlx5_0/ports/1/state",
            "sys/bus/pci/devices/0000:06:00.0/vendor", "sys/module/nvidia/version", "sys/block/sda/size",
            "dev/nvidia0", "dev/nvidia-caps/nvidia-cap1", "dev/infiniband/uverbs0", "run/udev/data/b8:1",
            "etc/cufile.json", "etc/ld.so.cache", "lib/libcufile.so.0", "overlay.json",
        ):  # fmt: skip
            self.write(path, "1\n")
        for name in ("_KERNEL_FILES", "_KERNEL_FOLDERS", "_NODES"):
            monkeypatch.setattr(gdscheck, name, tuple(f"{root}{path}" for path in getattr(gdscheck, name)))
        for name in ("_UDEV", "_LOADER_CACHE", "CUFILE"):
            monkeypatch.setattr(gdscheck, name, f"{root}{getattr(gdscheck, name)}")
        monkeypatch.setattr(gdscheck, "GDSCHECKS", ())
        monkeypatch.setattr(probe, "probe", self.probe)

    @staticmethod
    def printed(text: str) -> dict[str, Any]:
        return {"argv": [], "status": 0, "stdout": text, "stderr": "", "seconds": 0.0}

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def probe(self, _command: object, commands: dict[str, Any], _config: str) -> None:
        self.asked += 1
        output = f"gdsdeploy: loaded /lib/libcufile.so.1.20.0\ngdsdeploy: cuFileDriverOpen returned {self.returned}\n"
        commands["cufile-open"] = {**self.printed(output), "log": self.log}

    def look(self, *, fresh: bool = False, at: str = "2026-11-30T12:00:00Z") -> dict[str, Any]:
        recorder = Recorder()
        recorder.document["commands"].update(json.loads(json.dumps(self.commands)))
        recorder.document["files"][MOUNTINFO] = self.mounts
        recorder.document["collected_at"] = at
        request = EvidenceRequest(cufile_path=f"{self.root}/overlay.json", fresh=fresh)
        gdscheck.collect_programs(recorder, request)
        return recorder.document


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    entries = tmp_path / "entries"
    entries.mkdir(mode=0o700)
    monkeypatch.setattr(cache, "folder", lambda: str(entries))
    return Host(tmp_path / "root", monkeypatch)


def written(path: str) -> Callable[[Host, pytest.MonkeyPatch], None]:
    return lambda host, _: host.write(path, "2\n")


def renewed(host: Host, path: str) -> None:
    """Another file or folder of the same name and content, as when a module is loaded again."""
    new = host.root / (path + ".new")
    if (host.root / path).is_dir():
        new.mkdir()
        (host.root / path).rename(host.root / "old")
    else:
        new.write_text("1\n")
    new.rename(host.root / path)


def printed(name: str, text: str) -> Callable[[Host, pytest.MonkeyPatch], None]:
    return lambda host, _: host.commands.update({name: host.printed(text)})


def mounted(host: Host, line: str) -> None:
    host.mounts += line + "\n"


CHANGES: dict[str, Callable[[Host, pytest.MonkeyPatch], object]] = {
    "boot": written("proc/sys/kernel/random/boot_id"),
    "driver": written("proc/driver/nvidia/version"),
    "the driver's parameters": written("proc/driver/nvidia/params"),
    "a GPU": written("proc/driver/nvidia/gpus/0000:06:00.0/information"),
    "another GPU": written("proc/driver/nvidia/gpus/0000:07:00.0/information"),
    "nvidia-fs": written("proc/driver/nvidia-fs/version"),
    "nvidia-fs unloaded": lambda host, _: (host.root / "proc/driver/nvidia-fs/version").unlink(),
    "devices of nvidia-fs": written("proc/driver/nvidia-fs/devcount"),
    "a link of an adapter": written("sys/class/infiniband/mlx5_0/ports/1/state"),
    "another adapter": written("sys/class/infiniband/mlx5_1/node_guid"),
    "a PCI device": written("sys/bus/pci/devices/0000:07:00.0/vendor"),
    "a module": written("sys/module/nvidia_peermem/version"),
    "a module loaded again": lambda host, _: renewed(host, "sys/module/nvidia"),
    "a disk": written("sys/block/nvme0n1/size"),
    "a device node": written("dev/nvidia-fs0"),
    "a device node made again": lambda host, _: renewed(host, "dev/nvidia0"),
    "a device node's rights": lambda host, _: (host.root / "dev/nvidia0").chmod(0o600),
    "a capability of MIG": written("dev/nvidia-caps/nvidia-cap2"),
    "a node of an adapter": lambda host, _: (host.root / "dev/infiniband/uverbs0").unlink(),
    "udev's record": written("run/udev/data/b8:1"),
    "another record of udev": written("run/udev/data/b8:2"),
    "cufile.json": written("etc/cufile.json"),
    "its overlay": written("overlay.json"),
    "the library": lambda host, _: renewed(host, "lib/libcufile.so.0"),
    "the loader's cache": written("etc/ld.so.cache"),
    "another library": printed("ldconfig", "\tlibcufile.so.0 (libc6) => /opt/libcufile.so.0\n"),
    "a mount": lambda host, _: mounted(host, "40 22 8:2 / /data rw - ext4 /dev/sda2 rw"),
    "a network mount": lambda host, _: mounted(host, "41 22 0:50 / /home rw - nfs4 server:/home rw"),
    "a variable of the loader": lambda _, monkeypatch: monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib"),
    "a variable of CUDA": lambda _, monkeypatch: monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    "the limit of locked memory": lambda _, monkeypatch: monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1)),
    "a message of the driver": printed("dmesg", "[1.0] NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.\n"),
    "the fabric's state": printed(FABRIC_STATES, "00000000:06:00.0, Completed, Success\n"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_each_input_that_changes_brings_a_new_answer(host: Host, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    host.look()
    host.look()
    assert host.asked == 1
    host.returned = "err=0 cu_err=7"
    CHANGES[change](host, monkeypatch)
    document = host.look()
    assert host.asked == 2
    assert opened(Document(document)).cuda_error == 7
    host.look()
    assert host.asked == 2, "the new answer is kept, too"


UNRELATED: dict[str, Callable[[Host, pytest.MonkeyPatch], object]] = {
    "a container's mount": lambda host, _: mounted(host, "50 22 0:60 / /run/netns/a rw - nsfs nsfs rw"),
    "a count of nvidia-fs": written("proc/driver/nvidia-fs/stats"),
    "a record of a network device": written("run/udev/data/n2"),
    "a variable of the login": lambda _, monkeypatch: monkeypatch.setenv("SSH_CLIENT", "192.0.2.1 1 22"),
    "a message of the kernel": printed("dmesg", "[2.0] eth0: link up\n"),
}


@pytest.mark.parametrize("change", UNRELATED)
def test_what_it_does_not_depend_on_brings_none(host: Host, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    host.look()
    UNRELATED[change](host, monkeypatch)
    host.look()
    assert host.asked == 1


def test_a_fresh_look_asks_and_is_kept(host: Host) -> None:
    host.look()
    host.returned = "err=0 cu_err=7"
    assert opened(Document(host.look(fresh=True))).cuda_error == 7
    assert opened(Document(host.look())).cuda_error == 7
    assert host.asked == 2


@pytest.mark.parametrize(
    ("returned", "log"),
    [
        pytest.param("err=5011 cu_err=802", LOG, id="the fabric isn't ready"),
        pytest.param("err=5001 cu_err=0", LOG, id="no nvidia-fs"),
        pytest.param("err=0 cu_err=0", LOG + " 21 [pid=4 tid=4] ERROR  0:1 no route\n", id="an error in the log"),
    ],
)
def test_an_error_is_not_kept(host: Host, returned: str, log: str) -> None:
    host.returned, host.log = returned, log
    host.look()
    host.look()
    assert host.asked == 2


def test_without_a_gpu_its_absence_is_kept(host: Host) -> None:
    host.returned = "err=5011 cu_err=100"
    host.look()
    host.look()
    assert host.asked == 1


def test_the_report_says_how_old_the_answer_is(host: Host) -> None:
    def words(at: str) -> str:
        facts = facts_from(host.look(at=at))
        return answer(accepted(facts, NoExpectation())).observation

    assert words("2026-11-30T12:00:00Z") == "accepted"
    assert words("2026-11-30T12:20:00Z").startswith("accepted 20 min ago; ")
    assert host.asked == 1


def test_the_gate_always_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[EvidenceRequest] = []

    def collect(request: EvidenceRequest, **_: object) -> dict[str, Any]:
        requests.append(request)
        return {}

    monkeypatch.setattr(evidence, "collect", collect)
    gate.judge(EXPECTED.to_json(), gate.Settings().to_json())
    assert [request.fresh for request in requests] == [True]
