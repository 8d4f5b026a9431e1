"""Processes whose bytes bounce, recorded as their files in /proc and replayed: the path, the bytes and the reason.

The properties of each series are those that were measured on an H200 with KvikIO 26.10, libcufile 1.15 and 1.20, and
PyTorch 2.11.  Their numbers are made; those of tests/evidence/watch/clients-h200.json are what was seen.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks, explain
from gdsdeploy.host.evidence import NOTHING
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.io.mounts import mounts_in
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.model.finding import FAIL
from gdsdeploy.host.subjects import clients, processes, programs, syscalls
from gdsdeploy.host.watch.document import document, lines
from gdsdeploy.host.watch.look import Look, Watcher
from gdsdeploy.host.watch.service import Totals, from_record, render
from gdsdeploy.validate.watch import Watched
from tests.unit.host.checks.changes import EXPECTATION

MOUNTS = """\
1 0 259:1 / / rw - ext4 /dev/nvme0n1p1 rw
7 1 259:5 / /scratch rw - ext4 /dev/nvme1n1 rw
8 1 0:5 / /dev rw - devtmpfs udev rw
9 1 0:20 / /dev/shm rw - tmpfs tmpfs rw
"""
MIB, GIB = 1 << 20, 1 << 30
TASK = 4 * MIB
RANGE = "7f{:04x}000000-7f{:04x}{:06x} {} 00000000 103:05 77                 {}\n"
GPU, CUFILE, KVIKIO = "/dev/nvidia0", "/opt/lib/libcufile.so.1.20.0", "/opt/lib/libkvikio.so"
TORCH = "/opt/lib/libtorch_cuda.so"


@dataclass
class Process:
    """A process as /proc shows it at one moment."""

    rchar: int = 0
    wchar: int = 0
    calls: int = 0
    read_bytes: int = 0
    #: descriptor → (path, mount id, flags, position)
    files: dict[int, tuple[str, int, int, int]] = field(default_factory=dict)
    #: what it has mapped, and how: path → rights
    maps: dict[str, str] = field(default_factory=lambda: {GPU: "rw-s"})
    environment: dict[str, str] = field(default_factory=dict)
    start: int = 5
    group: str = "0::/system.slice/train.service\n"
    #: disks that udev's database knows
    udev: tuple[str, ...] = ("259:5",)

    def write(self, folder: Path) -> None:
        for name in ("fd", "fdinfo", "ns"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        udev = folder.parent / "root/run/udev/data"
        udev.mkdir(parents=True, exist_ok=True)
        for old in [*(folder / "fd").iterdir(), *udev.iterdir(), *(folder / "ns").iterdir(), folder / "root"]:
            old.unlink(missing_ok=True)
        (folder / "root").symlink_to(folder.parent / "root")
        (folder / "ns/mnt").symlink_to("mnt:[1]")
        (folder / "stat").write_text(f"{folder.name} (python) S " + "0 " * 18 + f"{self.start} 0\n")
        ranges = [RANGE.format(at, at, 0xF00000, how, path) for at, (path, how) in enumerate(self.maps.items())]
        (folder / "maps").write_text("".join(ranges))
        (folder / "io").write_text(
            f"rchar: {self.rchar}\nwchar: {self.wchar}\nsyscr: {self.calls}\nsyscw: {self.calls}\n"
            f"read_bytes: {self.read_bytes}\nwrite_bytes: 0\ncancelled_write_bytes: 0\n"
        )
        (folder / "mountinfo").write_text(MOUNTS)
        (folder / "comm").write_text("python\n")
        (folder / "cgroup").write_text(self.group)
        (folder / "environ").write_text("\0".join(f"{name}={value}" for name, value in self.environment.items()))
        for number, (path, mount, flags, position) in self.files.items():
            (folder / "fd" / str(number)).symlink_to(path)
            (folder / "fdinfo" / str(number)).write_text(f"pos:\t{position}\nflags:\t{flags:o}\nmnt_id:\t{mount}\n")
        for number in self.udev:
            (udev / f"b{number}").write_text("E:ID_FS_USAGE=filesystem\n")


class Replay:
    """Looks at a folder like /proc, 2 seconds apart."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.statistics = folder, 100.0, {"reason": counters.STATISTICS_OFF}
        monkeypatch.setattr(processes, "PROC", str(folder))
        monkeypatch.setattr(processes, "statistics", lambda *_: self.statistics)
        monkeypatch.setattr(processes, "is_hidden", lambda: False)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        (folder / "self/ns").mkdir(parents=True)
        (folder / "self/root").symlink_to(folder / "root")
        (folder / "self/ns/mnt").symlink_to("mnt:[1]")
        self.watcher = Watcher()

    def look(self, *running: Process, pid: int = 4711) -> Look:
        for at, process in enumerate(running):
            process.write(self.folder / str(pid + at))
        self.now += 2.0
        return self.watcher.look()

    def row(self, *running: Process) -> dict[str, Any]:
        """The process after these looks, as a controller takes it."""
        for process in running:
            look = self.look(process)
        answer = json.loads(json.dumps(document(look)))
        Watched.model_validate(answer)
        (row,) = answer["processes"]
        return dict(row)


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    return Replay(tmp_path, monkeypatch)


BUFFERED, DIRECT = os.O_RDONLY, os.O_RDONLY | os.O_DIRECT
DATA = "/scratch/weights.bin"
LIBRARIES = {GPU: "rw-s", CUFILE: "r-xp", KVIKIO: "r-xp"}


def kvikio(count: int, mode: str = "", udev: tuple[str, ...] = ("259:5",)) -> Process:
    """Its threads read 4 MiB each by pread from a buffered descriptor: no position moves, and the cache serves all."""
    return Process(
        rchar=10 * MIB + count * TASK, calls=900 + count, files={9: (DATA, 7, BUFFERED, 0)}, maps=LIBRARIES,
        environment={"KVIKIO_COMPAT_MODE": mode} if mode else {}, udev=udev,
    )  # fmt: skip


def compat(count: int, mode: str = "OFF") -> Process:
    """cuFile's compat mode: preads of a descriptor for direct I/O, which the disk serves."""
    return Process(
        rchar=10 * MIB + count * TASK, calls=900 + count, read_bytes=2 * MIB + count * TASK, maps=LIBRARIES,
        files={9: (DATA, 7, BUFFERED, 0), 10: (DATA, 7, DIRECT, 0)}, environment={"KVIKIO_COMPAT_MODE": mode},
    )  # fmt: skip


def torch(position: int, rounds: int) -> Process:
    """A file of 512 MiB that is read from its begin again and again."""
    moved = rounds * 512 * MIB + position
    maps = {GPU: "rw-s", CUFILE: "r-xp", TORCH: "r-xp"}
    return Process(rchar=10 * MIB + moved, calls=900 + rounds, files={5: (DATA, 7, BUFFERED, position)}, maps=maps)


@pytest.mark.parametrize(
    ("before", "after", "path", "size", "words"),
    [
        (kvikio(0), kvikio(2500), "posix", 2500 * TASK, "KvikIO has a compat mode of its own"),
        (kvikio(0, udev=()), kvikio(2500, udev=()), "posix", 2500 * TASK,
         "KvikIO (KVIKIO_COMPAT_MODE=AUTO) has fallen back, since cuFile can't register a file there (5027)"),
        (kvikio(0, "ON"), kvikio(2500, "ON"), "posix", 2500 * TASK, "told so by KVIKIO_COMPAT_MODE=ON"),
        (compat(0), compat(850), "bounced", 850 * TASK, "leaves all to cuFile (KVIKIO_COMPAT_MODE=OFF)"),
        (compat(0, ""), compat(850, ""), "bounced", 850 * TASK, "its statistics would tell"),
        # The disk serves it, as it serves cuFile, and the variable says that it isn't cuFile.
        (compat(0, "ON"), compat(850, "ON"), "posix", 850 * TASK, "told so by KVIKIO_COMPAT_MODE=ON"),
        (torch(256 * MIB, 1), torch(128 * MIB, 4), "posix", 1408 * MIB, "only for torch.cuda.gds.GdsFile"),
        (Process(files={5: (DATA, 7, BUFFERED, 0)}), Process(rchar=GIB, calls=20, files={5: (DATA, 7, BUFFERED, GIB)}),
         "posix", GIB, "which it hasn't loaded"),
        (Process(files={5: (DATA, 7, os.O_WRONLY, 0)}), Process(wchar=GIB, files={5: (DATA, 7, os.O_WRONLY, GIB)}),
         "posix", GIB, "system calls"),
    ],
    ids=["AUTO", "AUTO without udev", "ON", "OFF", "AUTO from the disk", "ON from the disk", "PyTorch",
         "without cuFile", "writes"],
)  # fmt: skip
def test_bytes_by_system_calls(
    replay: Replay, before: Process, after: Process, path: str, size: int, words: str
) -> None:
    row = replay.row(before, after)
    assert (row["path"], row["beside"], row["since"]) == (path, path, "look")
    assert row["bounced_bytes"] == pytest.approx(size, rel=0.05)
    assert row["bounce_rate"] == pytest.approx(size / 2, rel=0.05)
    assert row["read_bytes"] + row["written_bytes"] == row["bounced_bytes"]
    assert row["files"][0]["mount"] == "/scratch"
    assert words in row["why"]
    assert row["fix"]
    assert row["why"] in "\n".join(lines([("", row)]))


SEEN = json.loads((Path(__file__).parents[2] / "evidence/watch/clients-h200.json").read_text())
#: In the order of /proc/PID/io.
SEEN_COUNTS = ("rchar:", "wchar:", "syscr:", "syscw:", "read_bytes:")


def seen(case: dict[str, Any], look: dict[str, Any]) -> Process:
    """A process that was recorded, with the libraries that it must have had mapped."""
    counts = dict(map(str.split, look["io"].splitlines()))
    maps = {GPU: "rw-s", CUFILE: "r-xp", **({KVIKIO: "r-xp"} if "kvikio" in case["client"] else {TORCH: "r-xp"})}
    if case["path"] == "mapped":
        maps[WEIGHTS] = "r--p"
    rchar, wchar, reads, writes, read_bytes = (int(counts[name]) for name in counts if name in SEEN_COUNTS)
    return Process(
        rchar=rchar, wchar=wchar, read_bytes=read_bytes, calls=reads + writes,
        files={number: (DATA, 7, flags, position) for number, _, flags, position in look["files"]}, maps=maps,
        environment={"KVIKIO_COMPAT_MODE": case["mode"]}, udev=("259:5",) if case["udev"] else (),
    )  # fmt: skip


@pytest.mark.parametrize("case", SEEN, ids=[case["client"] for case in SEEN])
def test_real_clients(replay: Replay, case: dict[str, Any]) -> None:
    """Within 5 % of what each program counted itself; of mapped files no byte can be counted."""
    row = replay.row(*(seen(case, look) for look in case["looks"]))
    assert row["path"] == case["path"]
    assert row["bounced_bytes"] == pytest.approx(0 if case["path"] == "mapped" else case["own_bytes"], rel=0.05)


def test_statistics_take_their_own_bytes_off(replay: Replay) -> None:
    def counted(count: int) -> dict[str, Any]:
        read = counters.Direction(count, 0, 0, count, 0, 0, count * TASK)
        gpu = counters.Gpu("GPU-" + "1" * 36, read, counters.Direction(0, 0, 0, 0, 0, 0, 0))
        return {"counters": counters.as_record(counters.Counters(10, 32256, 0, 0, (gpu,))), "at": replay.now}

    replay.statistics = counted(0)
    replay.look(compat(0))
    replay.statistics = {**counted(850), "at": replay.now + 2}
    row = replay.row(compat(850))
    assert (row["path"], row["beside"], row["bounced_bytes"]) == ("compat", "", 850 * TASK)
    # As much again by calls that aren't cuFile's.
    replay.statistics = {**counted(1000), "at": replay.now + 2}
    row = replay.row(compat(1150))
    assert (row["path"], row["beside"], row["beside_bytes"]) == ("mixed", "posix", 150 * TASK)
    assert row["bounced_bytes"] == 300 * TASK
    assert row["words"] == "mixed: 100 % compat; and posix"


WEIGHTS = "/scratch/model.safetensors"


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        # It computes, and hears of its work by a pipe or a socket.
        (Process(maps=LIBRARIES), Process(rchar=4 * GIB, calls=90000, maps=LIBRARIES), "idle"),
        (Process(), Process(rchar=4 * GIB, calls=90000), "idle"),
        # It waits with an open file, and reads a pipe.
        (Process(files={5: (DATA, 7, BUFFERED, 0)}),
         Process(rchar=4 * GIB, calls=90000, files={5: (DATA, 7, BUFFERED, 0)}), "idle"),
        (Process(maps={GPU: "rw-s", WEIGHTS: "r--p"}), Process(maps={GPU: "rw-s", WEIGHTS: "r--p"}), "mapped"),
        # Neither shared memory, nor a log, nor a library is data.
        (Process(files={5: ("/dev/shm/x", 9, 2, 0)}),
         Process(rchar=GIB, calls=90000, files={5: ("/dev/shm/x", 9, 2, 9)}), "idle"),
        (Process(files={1: ("/scratch/log", 7, 1, 0)}),
         Process(wchar=GIB, calls=90000, files={1: ("/scratch/log", 7, 1, 9)}), "idle"),
        (Process(files={5: ("/scratch/env/a.py", 7, 0, 0)}),
         Process(rchar=GIB, calls=90000, files={5: ("/scratch/env/a.py", 7, 0, 9)}), "idle"),
        # Another process has its id now.
        (kvikio(0), Process(**{**vars(kvikio(2500)), "start": 6}), "not-counted"),
    ],
)  # fmt: skip
def test_what_is_no_bounce(replay: Replay, before: Process, after: Process, path: str) -> None:
    row = replay.row(before, after)
    assert (row["path"], row["bounced_bytes"], row["beside"]) == (path, 0, "")


def test_what_may_be_p2pdma_is_not_taken_for_a_bounce(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the kernel counts its reads isn't known."""
    monkeypatch.setattr(processes.Program, "may_use_p2pdma", True)
    assert replay.row(compat(0), compat(850))["path"] == "not-counted"
    # A buffered read is none of cuFile's.
    assert replay.row(kvikio(900), kvikio(2500))["path"] == "posix"


def test_nothing_else_of_an_environment_is_kept(replay: Replay) -> None:
    process = kvikio(2500, "ON")
    process.environment.update(PASSWORD="hunter2", LIBCUDF_CUFILE_POLICY="x" * 4000)
    look = replay.look(process)
    (entry,) = look.programs
    assert entry.program.modes == {"KVIKIO_COMPAT_MODE": "ON", "LIBCUDF_CUFILE_POLICY": "x" * clients.LONG}
    assert "hunter2" not in str(vars(entry.program))


def test_sums_by_owner_stay_when_a_process_ends_and_over_a_restart(replay: Replay) -> None:
    group = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"
    sums = Totals()
    for count in (0, 100, 250):
        process = kvikio(count)
        process.group = group
        sums.add_calls(replay.look(process).programs, replay.now, {})
    sums = from_record(json.loads(json.dumps(sums.as_record())))
    shutil.rmtree(replay.folder / "4711")
    look = replay.watcher.look()
    sums.add_calls(look.programs, replay.now, {})
    for count in (0, 50):
        process = kvikio(count)
        process.group, process.start = group, 7
        look = replay.look(process)
        sums.add_calls(look.programs, replay.now, {})
    text = render(look, sums, direct=None)
    assert f'gdsdeploy_bounced_bytes_total{{kind="job",name="4711",path="posix"}} {300 * TASK}\n' in text
    old = {key: value for key, value in sums.as_record().items() if key != "calls"}
    assert from_record(old).calls == {}


def test_evidence_has_two_looks_and_explains_the_process(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        replay.now += seconds
        kvikio(1250, udev=()).write(replay.folder / "4711")

    kvikio(0, udev=()).write(replay.folder / "4711")
    monkeypatch.setattr(time, "sleep", sleep)
    recorder = Recorder()
    processes.collect_processes(recorder, NOTHING)
    facts = facts_from(json.loads(json.dumps(recorder.document)))
    (row,) = programs.bouncing(facts)
    assert (row.route.path, row.route.rate(row.route.bounced)) == ("posix", 1250 * TASK)
    explained = programs.explain_process(facts, 4711)
    assert explained.causes[0].id == "process.bounces"
    assert explained.causes[0].what.startswith("about 5000 MiB/s go through CPU memory: it reads or writes by")
    assert "has fallen back, since cuFile can't register" in explained.causes[0].what
    assert [path for path, _ in explained.files] == [DATA]
    assert "go through CPU memory" in " ".join(explain.render_process(explained).split())
    assert programs.process_document(explained)["beside_bytes"] == 1250 * TASK
    recorder.document["files"]["/etc/cufile.json"] = "{}"
    recorder.document["excerpts"] = {}
    known = facts_from(recorder.document)
    (finding,) = (one for one in checks.run(known, replace(EXPECTATION, storage=[])) if one.check == "cufile.processes")
    assert finding.verdict != FAIL
    assert "about 5000 MiB/s go through CPU memory" in finding.found


def test_a_process_that_ends_between_both_looks_of_evidence(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    kvikio(0).write(replay.folder / "4711")
    monkeypatch.setattr(time, "sleep", lambda _: shutil.rmtree(replay.folder / "4711"))
    recorder = Recorder()
    processes.collect_processes(recorder, NOTHING)
    facts = facts_from(recorder.document)
    assert [each.pid for each in facts.processes.every] == [4711]
    assert programs.bouncing(facts) == ()


def test_a_process_without_a_gpu_is_not_shown(replay: Replay) -> None:
    nothing = Process(maps={"/usr/lib/libc.so.6": "r-xp"}, files={5: (DATA, 7, BUFFERED, 0)})
    assert replay.look(nothing).programs == ()


@pytest.mark.parametrize("lost", ["io", "fd", "fdinfo", "mountinfo", "maps", "stat"])
def test_a_process_that_ends_while_it_is_looked_at(replay: Replay, lost: str) -> None:
    replay.look(kvikio(0))
    folder = replay.folder / "4711"
    (folder / lost).rename(replay.folder / "gone")
    replay.now += 2
    look = replay.watcher.look()
    assert all(entry.route.bounced == 0 for entry in look.programs)
    Watched.model_validate(json.loads(json.dumps(document(look))))


@pytest.mark.parametrize(
    "record",
    [None, [], {}, {"at": "x"}, {"at": 1, "counts": [1], "files": []}, {"at": 1, "counts": [-1] * 6, "files": []},
     {"at": 1, "counts": [1] * 6, "files": [[1]]}, {"at": 1, "counts": [True] * 6, "files": []},
     {"at": 1, "counts": [1] * 6, "files": [["a", "b", "c", "d", -1, 0, 0]]},
     {"at": 1, "counts": ["1"] * 6, "files": 3}],
)  # fmt: skip
def test_a_record_that_is_none(record: Any) -> None:
    assert syscalls.from_record(record) is None


@pytest.mark.parametrize(
    ("options", "is_there", "hidden"),
    [("rw,hidepid=invisible", False, True), ("rw,hidepid=2", False, True), ("rw,hidepid=2", True, False),
     ("rw", False, False)],
)  # fmt: skip
def test_hidden_processes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, is_there: bool, hidden: bool
) -> None:
    text = f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:4 / /proc rw - proc proc {options}\n"
    monkeypatch.setattr(processes, "mounts_of", lambda _: mounts_in(text))
    monkeypatch.setattr(processes, "PROC", str(tmp_path))
    if is_there:
        (tmp_path / "1").mkdir()
    assert processes.is_hidden() is hidden
