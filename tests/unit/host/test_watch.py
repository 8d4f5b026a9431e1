"""The rows of ``watch``: whatever a process is called and has counted, a controller takes them, and terminals too.

Sums by owner outlive processes, and count nothing twice.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.unknown import Unknown, known
from gdsdeploy.host.io.wording import HIDDEN
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.libcufile.counters import Counters, Direction, Gpu, Observed
from gdsdeploy.host.subjects import processes
from gdsdeploy.host.subjects.cufile_json import CufileFacts
from gdsdeploy.host.subjects.processes import OpenFile, ProcessFacts, Program
from gdsdeploy.host.watch import document as table, service
from gdsdeploy.host.watch.document import document
from gdsdeploy.host.watch.look import UNIT, Entry, Look, Owner, owner
from gdsdeploy.host.watch.service import READ, Totals
from gdsdeploy.validate.watch import Watched
from tests.unit.host.programs import running
from tests.unit.hostile_words import WORDS

HEX = "0123456789abcdef" * 4
POD = "1d6ba31f_26ba_44c1_8bb3_a9e84e7d45a2"
MOST = (1 << 64) - 1


@pytest.mark.parametrize(
    ("cgroup", "kind", "name"),
    [
        ("/system.slice/train.service", "unit", "train.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/run-u7.scope", "unit", "run-u7.scope"),
        ("/user.slice/user-0.slice/session-3.scope", "unit", "session-3.scope"),
        (f"/system.slice/docker-{HEX}.scope", "container", HEX[:12]),
        (f"/docker/{HEX}", "container", HEX[:12]),
        (f"/machine.slice/libpod-{HEX}.scope/container", "container", HEX[:12]),
        ("/lxc.payload.web-1/system.slice/x.service", "container", "web-1"),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice/cri-containerd-{HEX}.scope",
         "pod", POD.replace("_", "-")),
        (f"/kubepods/besteffort/pod{POD.replace('_', '-')}/{HEX}", "pod", POD.replace("_", "-")),
        ("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "job", "4711"),
        ("/slurm/uid_1000/job_12/step_batch", "job", "12"),
        # Versions 1 and hybrid, with Slurm's proctrack/cgroup: /proc/PID/cgroup as cgroups(7) has it.
        ("12:freezer:/slurm/uid_1000/job_77/step_0\n1:name=systemd:/system.slice/slurmd.service\n", "job", "77"),
        ("9:devices:/slurm/uid_0/job_78/step_0\n0::/system.slice/slurmd.service\n", "job", "78"),
        ("2:cpu,cpuacct:/\n1:name=systemd:/system.slice/x.service\n0::/system.slice/x.service\n", "unit", "x.service"),
        (f"/system.slice/slurmstepd.scope/job_4711/docker-{HEX}.scope", "job", "4711"),
        ("/", "", ""),
        ("", "", ""),
        ("/job_x/pod-1/docker-12.scope/../..", "", ""),
    ],
)  # fmt: skip
def test_whose_a_process_is(cgroup: str, kind: str, name: str) -> None:
    expected = Owner(kind, name)
    if cgroup.startswith("/job_x"):
        expected = Owner("unit", "docker-12.scope")
    assert owner(processes.control_group(cgroup)) == expected


#: sbatch(1), and heterogeneous_jobs.html: SLURM_JOB_ID is that of the first part in each part.
ARRAY = {"SLURM_JOB_ID": "101", "SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "3"}
PARTS = {"SLURM_JOB_ID": "200", "SLURM_JOB_ID_HET_GROUP_0": "200", "SLURM_JOB_ID_HET_GROUP_1": "201"}


@pytest.mark.parametrize(
    ("number", "environment", "names"),
    [
        ("101", ARRAY, ["100", "100_3"]),
        ("201", PARTS, ["200", "200+1"]),
        ("12", {"SLURM_JOB_ID": "12"}, []),
        ("12", {"SLURM_ARRAY_JOB_ID": "$(id)", "SLURM_ARRAY_TASK_ID": "x"}, []),
    ],
)
def test_a_job_is_found_by_each_of_its_names(number: str, environment: dict[str, str], names: list[str]) -> None:
    unit = f"/system.slice/slurmstepd.scope/job_{number}/step_0/user/task_0"
    assert processes.job_names(unit, environment) == names
    assert processes.job_names("/system.slice/x.service", environment) == []
    entries = (Entry(program(unit=unit, jobs=tuple(names)), counters.route(Observed(counters.STATISTICS_OFF))),)
    for job in (number, *names):
        assert len(document(Look(1.8e9, entries, None, 0), job)["processes"]) == 1
    assert document(Look(1.8e9, entries, None, 0), "1")["processes"] == []


def program(**fields: Any) -> Program:
    whole = {
        "pid": 4711, "name": "python", "unit": "/system.slice/train.service", "container": False,
        "libraries": {"/usr/lib/libcufile.so.1.15.1": "1.15.1"}, "variables": {}, "base_path": "/etc/cufile.json",
        "base": {"profile": {"cufile_stats": 3}}, "overlay": None, "start": 5, "counters": counters.STATISTICS_OFF,
    }  # fmt: skip
    return running(**{**whole, **fields})


def shown(*programs: Program, before: Counters | None = None, seconds: float = 0.0) -> dict[str, Any]:
    entry = [Entry(each, counters.route(Observed(each.counters, before, seconds))) for each in programs]
    return document(Look(1.8e9, tuple(entry), None, 0))


NOTHING = Direction(0, 0, 0, 0, 0, 0, 0)


def moved(read: Direction) -> Counters:
    return Counters(10, 32256, read.bytes, 0, (Gpu("GPU-" + "1" * 36, read, NOTHING),))


def test_the_largest_counters_of_a_process_leave_its_host_fit() -> None:
    all_of_it = Direction(*[MOST] * 7)
    gpus = tuple(Gpu(f"GPU-{'1' * 36}", all_of_it, all_of_it) for _ in range(105))
    nothing = Counters(10, 32256, 0, 0, tuple(Gpu(g.uuid, NOTHING, NOTHING) for g in gpus))
    result = shown(program(counters=Counters(10, 32256, MOST, MOST, gpus)), before=nothing, seconds=0.2)
    parsed = Watched.model_validate(json.loads(json.dumps(result)))
    assert parsed.processes[0].path == "mixed"
    assert table.lines([("", result["processes"][0])])


@pytest.mark.parametrize("word", [*WORDS, "x" * 100_000, "\x1b[2J", "a\nb", "\ud800", "{{ lookup('pipe', 'id') }}"])
def test_no_name_of_a_local_user_makes_a_host_unfit_or_drives_a_terminal(word: str) -> None:
    files = (("/" + word, "/" + word, word, True),)
    rows = {"programs": [{
        "pid": 1, "start": 2, "program": word, "unit": "/" + word + ".service",
        "libraries": ["/libcufile.so.1.2" + word], "container": False, "base": "/etc/cufile.json",
        "variables": {"CUFILE_ENV_PATH_JSON": word, "CUFILE_X": word},
        "statistics": {"reason": word}, "files": [list(file) for file in files], "nvidia_fs": word,
    }], "unread": 0, "more": False}  # fmt: skip
    evidence = Document({"processes": {"libcufile": rows}, "files": {}})
    facts = ProcessFacts(evidence, CufileFacts(evidence))
    result = shown(*facts.programs)
    (row,) = result["processes"]
    assert (row["path"], row["reason"]) == (counters.NOT_COUNTED, counters.NO_RECORD)
    Watched.model_validate(json.loads(json.dumps(result)))
    text = "\n".join(table.lines([("gpu1", row)]))
    assert not re.search(HIDDEN, text)
    assert len(text) < 8000


def test_the_longest_names_leave_an_answer_that_is_taken() -> None:
    long = "é" * 4000
    libraries = {f"/{number}{long}/libcufile.so.0": long for number in range(20)}
    files = tuple(OpenFile(f"/{number}{long}", long, long, True, "259:0") for number in range(16))
    processes = [program(pid=pid, name=long, libraries=libraries, files=files, unit=long) for pid in range(500)]
    result = shown(*processes)
    assert len(json.dumps(result)) < 5 << 20
    assert 50 < len(result["processes"]) < 500
    assert result["incomplete"] == f"{500 - len(result['processes'])} more would be too long an answer"
    Watched.model_validate(result)


@pytest.mark.parametrize(
    "change",
    [
        {"path": "fast"}, {"reason": "because"}, {"reason": ""}, {"pid": -1}, {"pid": "1"},
        {"operations": {"magic": 1}}, {"bounce_rate": -1}, {"read_rate": 1.5},
        {"gpus": ["x"]}, {"since": "ever"}, {"statistics_level": 9},
        {"files": [{}]}, {"owner": {"kind": "king", "name": "x"}}, {"seconds": float("inf")}, {"libcufile": [{}] * 17},
        {"path": "compat"},
    ],
)  # fmt: skip
def test_an_answer_that_no_host_program_gives(change: dict[str, Any]) -> None:
    result = shown(program())
    Watched.model_validate(result)
    row = result["processes"][0]
    with pytest.raises(ValueError):
        Watched.model_validate({**result, "processes": [{**row, **change}]})
    for name in set(row) - {"words", "why", "fix"}:
        with pytest.raises(ValueError):
            Watched.model_validate({**result, "processes": [{key: row[key] for key in row if key != name}]})


def test_the_table_says_what_moves_what_moved_and_why_something_is_not_counted() -> None:
    half = Direction(8, 4, 0, 4, 0, 0, 8 << 20)
    mixed = program(pid=1, counters=moved(half))
    result = [*shown(mixed, before=moved(NOTHING), seconds=2.0)["processes"]]
    result += shown(program(pid=2, counters=moved(half)), before=moved(half), seconds=2.0)["processes"]
    result += shown(program(pid=3))["processes"]
    lines = table.lines([("", row) for row in sorted(result, key=table.order)])
    cells = [" ".join(text.split()) for text in lines]
    assert cells[1].startswith(
        "~2.0 MiB 4.0 MiB - mixed: 50 % nvidia-fs, 50 % compat 1 python train.service 1.15.1 GPU-"
    )
    assert cells[2].startswith("- - - mixed: 50 % nvidia-fs, 50 % compat, before 2 python")
    assert cells[3].startswith("? ? ? not counted (statistics-off) 3 python")
    assert cells[4] == "not counted (statistics-off): " + counters.REASONS[counters.STATISTICS_OFF][0]
    assert cells[5].startswith("what to do: set profile.cufile_stats to 3")
    assert table.total(result) == "3 with a GPU or libcufile, 2 counted; 2.0 MiB/s through the memory of the host"
    assert table.lines([]) == ["no process has a GPU open or libcufile loaded"]
    assert table.lines([("", row) for row in result], most=1)[2] == "and 2 more"


def test_the_level_is_that_of_the_configuration_that_it_reads() -> None:
    assert program().level == 3
    assert program(base=None).level is None
    assert isinstance(known(lambda: program(base=Unknown("no right")).level), Unknown)
    assert program(base={"profile": {"cufile_stats": 1 << 70}}).level is None
    assert program(base={"profile": []}).level is None


def test_the_layout_of_counters_narrows_a_release_that_nothing_else_names() -> None:
    unknown, path = Unknown("no version"), "/opt/libcufile.so.0"

    def version(size: int, number: int, **libraries: Any) -> Any:
        each = program(libraries=libraries or {path: unknown}, counters=Counters(number, size, 0, 0, ()))
        result = shown(each)
        Watched.model_validate(json.loads(json.dumps(result)))
        (row,) = result["processes"]
        release = row["libcufile"][0]["version"]
        assert f" {release or '?'}  " in table.lines([("", row)])[1]
        return release

    assert version(31280, 8) == "1.9.1 to 1.13.1"
    assert version(32256, 10) == "1.19.1 to 1.20.0"
    assert version(31280, 8, a="1.11.1.6") == "1.11.1.6"
    # One release may stand for others that have its layout; and counters may be those of either library.
    assert version(31632, 9) is None
    assert version(31280, 8, a=unknown, b=unknown) is None
    assert version(31280, 10) is None
    (row,) = shown(program(libraries={path: unknown}))["processes"]
    assert row["libcufile"] == [{"file": path, "version": None}]


def descriptors(folder: Path, **targets: str) -> None:
    """A folder of /proc whose process has these files open: descriptor → path."""
    for name in ("fd", "fdinfo"):
        (folder / name).mkdir()
    (folder / "mountinfo").write_text("7 1 8:1 / /data rw - ext4 /dev/sda1 rw\n")
    for name, target in targets.items():
        number = name.lstrip("d")
        (folder / "fd" / number).symlink_to(target)
        (folder / "fdinfo" / number).write_text("pos:\t0\nflags:\t02140002\nmnt_id:\t7\n")


def test_the_output_of_a_program_is_not_listed_as_a_file_of_cufile(tmp_path: Path) -> None:
    log = {"d0": "/data/log", "d1": "/data/log", "d2": "/data/log"}
    others = {"d6": "/data/b", "d10": "/data/b", "d11": "/data/b"}
    descriptors(tmp_path, d3="/data/a", d4="/data/a", d5="/data/once", **log, **others)
    files = processes.open_files(str(tmp_path))["files"]
    assert files == [["/data/a", "/data", "ext4", True, "8:1"], ["/data/b", "/data", "ext4", True, "8:1"]]


def test_a_file_that_is_both_output_and_registered_is_listed(tmp_path: Path) -> None:
    descriptors(tmp_path, d1="/data/a", d2="/data/a", d12="/data/a")
    assert [path for path, *_ in processes.open_files(str(tmp_path))["files"]] == ["/data/a"]


GPU, OTHER_GPU = "GPU-" + "1" * 36, "GPU-" + "2" * 36
TRAIN = Owner(UNIT, "train.service")


def reads(posix: int, direct: int = 0, size: int = 1000, errors: int = 0) -> Direction:
    number = posix + direct
    return Direction(number, direct, 0, posix, 0, errors, number * size)


def counting(*gpus: tuple[str, Direction], pid: int = 1, unit: str = "/system.slice/train.service") -> Program:
    """A program with the reads of these GPUs, or without statistics."""
    counted = Counters(10, 32256, 0, 0, tuple(Gpu(uuid, read, NOTHING) for uuid, read in gpus))
    libraries = {"/x/libcufile.so.1.20.0": "1.20.0"}
    return program(pid=pid, unit=unit, libraries=libraries, counters=counted if gpus else counters.STATISTICS_OFF)


def counted(*rounds: tuple[Program, ...], names: dict[str, str] | None = None) -> Totals:
    """After an empty first look, and one each 15 seconds."""
    sums = Totals()
    sums.add([], 0.0, {})
    for at, programs in enumerate(rounds, start=1):
        sums.add(programs, 15.0 * at, names or {})
    return sums


def operations(sums: Totals, owner: Owner = TRAIN, gpu: str = GPU) -> dict[str, int]:
    one = sums.sums[owner][(gpu, READ)]
    return {way: number for way, number in zip(counters.WAYS, one.operations, strict=True) if number}


def test_the_sums_of_a_process_stay_when_it_ends_and_the_next_one_adds_to_them() -> None:
    successor = counting((GPU, reads(1)), pid=2)
    sums = counted((counting((GPU, reads(10))),), (counting((GPU, reads(12, 3))),), (), (successor,))
    assert operations(sums) == {"compat": 13, "nvidia-fs": 3}
    assert sums.sums[TRAIN][(GPU, READ)].bytes == 16_000


def test_what_was_counted_before_the_first_look_is_not_of_now() -> None:
    sums = Totals()
    sums.add([counting((GPU, reads(100)))], 0.0, {})
    assert sums.sums == {}
    sums.add([counting((GPU, reads(107)))], 15.0, {})
    assert operations(sums) == {"compat": 7}


def test_a_second_gpu_and_a_reset_count_what_is_new() -> None:
    both = counting((GPU, reads(10)), (OTHER_GPU, reads(4)))
    sums = counted((counting((GPU, reads(10))),), (both,), (counting((GPU, reads(2)), (OTHER_GPU, reads(4))),))
    assert operations(sums) == {"compat": 12}, "it fell from 10 to 2: cuFileStatsReset"
    assert operations(sums, gpu=OTHER_GPU) == {"compat": 4}


def test_a_process_that_one_look_does_not_read_is_not_counted_twice() -> None:
    sums = counted((counting((GPU, reads(10))),), (counting(),), (), (counting((GPU, reads(11))),))
    assert operations(sums) == {"compat": 11}


def test_bounced_bytes_are_exact_where_one_way_has_all_operations() -> None:
    sums = counted((counting((GPU, reads(10))),), (counting((GPU, reads(10, 10))),), (counting((GPU, reads(11, 13))),))
    assert sums.sums[TRAIN][(GPU, READ)].bounced == 10_000 + 0 + 1000


def test_old_owners_go_and_there_are_never_too_many() -> None:
    crowd = tuple(counting((GPU, reads(1)), pid=at, unit=f"/system.slice/u{at}.service") for at in range(600))
    sums = counted(crowd)
    assert len(sums.sums) == service.OWNERS + 1
    assert operations(sums, service.OTHER) == {"compat": 100}
    sums.add([], service.LONG + 16, {})
    assert sums.sums == {}


def test_a_process_that_invents_gpus_fills_a_bounded_number_of_series() -> None:
    many = [(f"GPU-{at:036d}", reads(1)) for at in range(100)]
    sums = counted((counting(*many),))
    assert len(sums.sums[TRAIN]) == 2 * service.GPUS + 2
    assert operations(sums, gpu=service.OTHER_GPU) == {"compat": 100 - service.GPUS}


def test_they_go_on_where_they_stopped() -> None:
    sums = counted((counting((GPU, reads(10))),))
    again = service.from_record(json.loads(json.dumps(sums.as_record())))
    assert again.as_record() == sums.as_record()
    again.add([counting((GPU, reads(11)))], 30.0, {})
    assert operations(again) == {"compat": 11}


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "\0" * 100, "null", "[]", "{}", '{"version": 2, "owners": [], "processes": []}',
        '{"version": 1, "owners": 3, "processes": []}', '{"version": 1, "owners": [[]], "processes": []}',
        '{"version": 1, "owners": [[["unit"], 0, []]], "processes": []}',
        '{"version": 1, "owners": [[["unit", "x"], 0, [["g", "read", [1], 2, 3, 4]]]], "processes": []}',
        '{"version": 1, "owners": [], "processes": [[1, 2, 3, "gpus"]]}',
    ],
)  # fmt: skip
def test_a_damaged_file_of_sums_begins_anew(content: str, tmp_path: Path) -> None:
    path = tmp_path / "watch.json"
    path.write_text(content)
    assert service.restored(str(path)).sums == {}


def test_the_series() -> None:
    pod = "/kubepods.slice/kubepods-pod1d6ba31f_0000_0000_0000_000000000001.slice/x"
    programs = (
        counting((GPU, reads(3, errors=2))), counting((GPU, reads(0, 5)), pid=2, unit=pod), counting(pid=3),
    )  # fmt: skip
    # A pod of a StatefulSet that was made again has the name of the one before.
    before = counting((GPU, reads(0, 2)), pid=4, unit=pod.replace("01/x", "02/x"))
    names = {f"1d6ba31f-0000-0000-0000-00000000000{number}": "ml/trainer-0" for number in (1, 2)}
    sums = counted((before,), programs, names=names)
    entries = tuple(Entry(each, counters.route(counters.Observed(each.counters))) for each in programs)
    text = service.render(Look(1.8e9, entries, None, 7), sums, direct=True)
    series = [line.partition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert sum(f"# TYPE {name} " in text for name in service.HELP) == len(service.HELP)
    labels = f'gpu="{GPU}",direction="read"'
    for line in (
        f'gdsdeploy_cufile_operations_total{{kind="unit",name="train.service",{labels},path="compat"}} 3',
        f'gdsdeploy_cufile_operations_total{{kind="pod",name="ml/trainer-0",{labels},path="nvidia-fs"}} 7',
        f'gdsdeploy_cufile_bytes_total{{kind="unit",name="train.service",{labels}}} 3000',
        f'gdsdeploy_cufile_bounced_bytes_total{{kind="pod",name="ml/trainer-0",{labels}}} 0',
        f'gdsdeploy_cufile_errors_total{{kind="unit",name="train.service",{labels}}} 2',
        'gdsdeploy_cufile_processes{libcufile="1.20.0",statistics="counted"} 2',
        'gdsdeploy_cufile_processes{libcufile="1.20.0",statistics="statistics-off"} 1',
        "gdsdeploy_cufile_stale_segments 7",
        "gdsdeploy_cufile_direct_expected 1",
        "gdsdeploy_cufile_incomplete 0",
    ):
        assert f"\n{line}\n" in text
    text = service.render(Look(1.8e9, (), None, None), Totals(), direct=None)
    assert "\ngdsdeploy_cufile_direct_expected" not in text
