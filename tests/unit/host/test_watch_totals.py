"""Sums by owner: they outlive processes, and count nothing twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gdsdeploy.host.facts.processes import Program
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.libcufile.counters import Counters, Direction, Gpu
from gdsdeploy.host.watch import service
from gdsdeploy.host.watch.look import UNIT, Entry, Look, Owner
from gdsdeploy.host.watch.service import READ, Totals

GPU, OTHER_GPU = "GPU-" + "1" * 36, "GPU-" + "2" * 36
NOTHING = Direction(0, 0, 0, 0, 0, 0, 0)
TRAIN = Owner(UNIT, "train.service")


def reads(posix: int, direct: int = 0, size: int = 1000, errors: int = 0) -> Direction:
    number = posix + direct
    return Direction(number, direct, 0, posix, 0, errors, number * size)


def program(*gpus: tuple[str, Direction], pid: int = 1, unit: str = "/system.slice/train.service") -> Program:
    result: Any = counters.STATISTICS_OFF
    if gpus:
        result = Counters(10, 32256, 0, 0, tuple(Gpu(uuid, read, NOTHING) for uuid, read in gpus))
    return Program(
        pid=pid, name="python", unit=unit, container=False, libraries={"/x/libcufile.so.1.20.0": "1.20.0"},
        variables={}, base_path="/etc/cufile.json", base={}, overlay=None, start=5, counters=result,
    )  # fmt: skip


def counted(*rounds: tuple[Program, ...]) -> Totals:
    """After an empty first look, and one each 15 seconds."""
    sums = Totals()
    sums.add([], 0.0)
    for at, programs in enumerate(rounds, start=1):
        sums.add(programs, 15.0 * at)
    return sums


def operations(sums: Totals, owner: Owner = TRAIN, gpu: str = GPU) -> dict[str, int]:
    one = sums.sums[owner][(gpu, READ)]
    return {way: number for way, number in zip(counters.WAYS, one.operations, strict=True) if number}


def test_the_sums_of_a_process_stay_when_it_ends_and_the_next_one_adds_to_them() -> None:
    successor = program((GPU, reads(1)), pid=2)
    sums = counted((program((GPU, reads(10))),), (program((GPU, reads(12, 3))),), (), (successor,))
    assert operations(sums) == {"compat": 13, "nvidia-fs": 3}
    assert sums.sums[TRAIN][(GPU, READ)].bytes == 16_000


def test_what_was_counted_before_the_first_look_is_not_of_now() -> None:
    sums = Totals()
    sums.add([program((GPU, reads(100)))], 0.0)
    assert sums.sums == {}
    sums.add([program((GPU, reads(107)))], 15.0)
    assert operations(sums) == {"compat": 7}


def test_a_second_gpu_and_a_reset_count_what_is_new() -> None:
    both = program((GPU, reads(10)), (OTHER_GPU, reads(4)))
    sums = counted((program((GPU, reads(10))),), (both,), (program((GPU, reads(2)), (OTHER_GPU, reads(4))),))
    assert operations(sums) == {"compat": 12}, "it fell from 10 to 2: cuFileStatsReset"
    assert operations(sums, gpu=OTHER_GPU) == {"compat": 4}


def test_a_process_that_one_look_does_not_read_is_not_counted_twice() -> None:
    sums = counted((program((GPU, reads(10))),), (program(),), (), (program((GPU, reads(11))),))
    assert operations(sums) == {"compat": 11}


def test_bounced_bytes_are_exact_where_one_way_has_all_operations() -> None:
    sums = counted((program((GPU, reads(10))),), (program((GPU, reads(10, 10))),), (program((GPU, reads(11, 13))),))
    assert sums.sums[TRAIN][(GPU, READ)].bounced == 10_000 + 0 + 1000


def test_old_owners_go_and_there_are_never_too_many() -> None:
    crowd = tuple(program((GPU, reads(1)), pid=at, unit=f"/system.slice/u{at}.service") for at in range(600))
    sums = counted(crowd)
    assert len(sums.sums) == service.OWNERS + 1
    assert operations(sums, service.OTHER) == {"compat": 100}
    sums.add([], service.LONG + 16)
    assert sums.sums == {}


def test_a_process_that_invents_gpus_fills_a_bounded_number_of_series() -> None:
    many = [(f"GPU-{at:036d}", reads(1)) for at in range(100)]
    sums = counted((program(*many),))
    assert len(sums.sums[TRAIN]) == 2 * service.GPUS + 2
    assert operations(sums, gpu=service.OTHER_GPU) == {"compat": 100 - service.GPUS}


def test_they_go_on_where_they_stopped() -> None:
    sums = counted((program((GPU, reads(10))),))
    again = service.from_record(json.loads(json.dumps(sums.as_record())))
    assert again.as_record() == sums.as_record()
    again.add([program((GPU, reads(11)))], 30.0)
    assert operations(again) == {"compat": 11}


@pytest.mark.parametrize(
    "record",
    [
        None, [], {}, {"version": 2, "owners": [], "processes": []}, {"version": 1, "owners": 3, "processes": []},
        {"version": 1, "owners": [[["unit"], 0, []]], "processes": []},
        {"version": 1, "owners": [[["unit", "x"], 0, [["g", "read", [1], 2, 3, 4]]]], "processes": []},
        {"version": 1, "owners": [], "processes": [[1, 2, 3, "gpus"]]},
    ],
)  # fmt: skip
def test_another_record_is_refused(record: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        service.from_record(record)


def test_the_series() -> None:
    pod = "/kubepods.slice/kubepods-pod1d6ba31f_0000_0000_0000_000000000001.slice/x"
    programs = (
        program((GPU, reads(3, errors=2))), program((GPU, reads(0, 5)), pid=2, unit=pod), program(pid=3),
    )  # fmt: skip
    sums = counted(programs)
    entries = tuple(Entry(each, counters.route(counters.Observed(each.counters))) for each in programs)
    names = {"1d6ba31f-0000-0000-0000-000000000001": "ml/trainer-0"}
    text = service.render(Look(1.8e9, entries, None, 7), sums, names, direct=True)
    assert sum(f"# TYPE {name} " in text for name in service.NAMES) == len(service.NAMES)
    labels = f'gpu="{GPU}",direction="read"'
    for line in (
        f'gdsdeploy_cufile_operations_total{{kind="unit",name="train.service",{labels},path="compat"}} 3',
        f'gdsdeploy_cufile_operations_total{{kind="pod",name="ml/trainer-0",{labels},path="nvidia-fs"}} 5',
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
    text = service.render(Look(1.8e9, (), None, None), Totals(), {}, direct=None)
    assert "\ngdsdeploy_cufile_direct_expected" not in text
