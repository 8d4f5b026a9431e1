"""libcufile's counters in shared memory: every layout, forged ones, and the way that they show."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.libcufile.counters import Counters, Direction, Gpu, Layout

LAYOUTS = sorted(counters.layouts().values())
NAMES = [f"{layout.version}-{layout.size}" for layout in LAYOUTS]
NOTHING = Direction(0, 0, 0, 0, 0, 0, 0)


def segment(layout: Layout, gpus: int = 2) -> bytearray:
    """One in which every counter has its own number: 1000 for each GPU, 100 for writes, then its place."""
    content = bytearray(layout.size)
    struct.pack_into("<I", content, 0, layout.version)
    struct.pack_into("<I", content, layout.gpus, gpus)
    struct.pack_into("<Q", content, layout.read_bytes, 1 << 40)
    struct.pack_into("<Q", content, layout.write_bytes, 1 << 41)
    for gpu in range(gpus):
        at = layout.gpus + 8 + gpu * layout.stride
        content[at : at + 16] = bytes([gpu + 1] * 16)
        for add, offsets in ((0, layout.read), (100, layout.write)):
            for place, name in enumerate(Direction._fields):
                if name in offsets:
                    struct.pack_into("<Q", content, at + offsets[name], 1000 * (gpu + 1) + add + place)
    return content


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_every_counter_of_a_layout_is_read(layout: Layout) -> None:
    result = counters.decode(bytes(segment(layout)))
    assert isinstance(result, Counters)
    assert (result.read_bytes, result.write_bytes) == (1 << 40, 1 << 41)
    assert [gpu.uuid[-12:] for gpu in result.gpus] == ["010101010101", "020202020202"]
    for number, gpu in enumerate(result.gpus, 1):
        for add, direction, offsets in ((0, gpu.read, layout.read), (100, gpu.write, layout.write)):
            expected = {name: 1000 * number + add + at for at, name in enumerate(Direction._fields) if name in offsets}
            assert direction._asdict() == {"nvfs": None, "p2pdma": None, **expected}
    assert counters.from_record(counters.as_record(result)) == result


def test_version_and_size_together_name_a_layout() -> None:
    (small, *_, large) = [layout for layout in LAYOUTS if layout.version == 10]
    content = segment(large)
    assert counters.decode(bytes(content[: small.size])) != counters.decode(bytes(content))
    assert counters.decode(bytes(content[:-8])) == counters.UNKNOWN_LAYOUT
    struct.pack_into("<I", content, 0, 11)
    assert counters.decode(bytes(content)) == counters.UNKNOWN_LAYOUT
    assert counters.decode(b"") == counters.decode(b"\x0a") == counters.UNKNOWN_LAYOUT


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_no_number_of_gpus_reaches_beyond_the_segment(layout: Layout) -> None:
    room = (layout.size - layout.gpus - 8) // layout.stride
    for number in (room + 1, 1 << 31, (1 << 32) - 1):
        content = segment(layout)
        struct.pack_into("<I", content, layout.gpus, number)
        assert counters.decode(bytes(content)) == counters.MALFORMED
    assert room <= counters.GPUS
    assert isinstance(counters.decode(bytes(segment(layout, room))), Counters)


def test_levels_that_no_other_process_can_read_have_an_empty_segment() -> None:
    assert counters.decode(bytes(32256)) == counters.LEVEL_LOW
    assert counters.decode(bytes(4096)) == counters.UNKNOWN_LAYOUT
    assert counters.decode(bytes(32255) + b"\1") == counters.UNKNOWN_LAYOUT


def test_noise_is_never_an_error_and_its_record_is_one() -> None:
    chance = random.Random(22)
    for layout in LAYOUTS * 20:
        content = bytearray(chance.randbytes(layout.size))
        struct.pack_into("<I", content, 0, layout.version)
        struct.pack_into("<I", content, layout.gpus, chance.randrange(8))
        result = counters.decode(bytes(content))
        assert isinstance(result, Counters)
        assert counters.from_record(counters.as_record(result)) == result
        shown = counters.route(counters.Observed(result))
        assert shown.path in counters.PATHS
        assert 0 <= shown.bounced <= shown.read + shown.written
        assert counters.route_words(shown.path, shown.reason, shown.operations)


GOOD: dict[str, Any] = {
    "version": 10, "size": 32256, "read_bytes": 1, "write_bytes": 0,
    "gpus": [["GPU-1", [1, 1, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0]]],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"version": None}, {"size": True}, {"read_bytes": -1}, {"write_bytes": 1 << 64}, {"gpus": {}},
        {"gpus": [["GPU-1", [1], [1]]]}, {"gpus": [[1, [0] * 7, [0] * 7]]}, {"gpus": [["GPU-1", [None] * 7, [0] * 7]]},
        {"gpus": [["GPU-1", [0, 0, 0, "1", 0, 0, 0], [0] * 7]]}, {"gpus": [["GPU-1", [0] * 7, [0] * 7]] * 129},
    ],
)  # fmt: skip
def test_a_record_that_is_none(change: dict[str, Any]) -> None:
    assert counters.from_record(GOOD) is not None
    assert counters.from_record({**GOOD, **change}) is None
    assert counters.from_record(list(GOOD)) is None


def counted(*gpus: tuple[Direction, Direction], read_bytes: int = 0) -> Counters:
    rows = tuple(Gpu(f"GPU-{number}", *directions) for number, directions in enumerate(gpus))
    total = read_bytes or sum(gpu.read.bytes for gpu in rows)
    return Counters(10, 32256, total, sum(gpu.write.bytes for gpu in rows), rows)


def ways(n: int, nvfs: int | None, p2pdma: int | None, posix: int, size: int = 100) -> Direction:
    return Direction(n, nvfs, p2pdma, posix, 0, 0, n * size)


@pytest.mark.parametrize(
    ("direction", "path", "text", "bounced"),
    [
        (ways(10, 10, 0, 0), "nvidia-fs", "nvidia-fs", 0),
        (ways(10, 0, 10, 0), "p2pdma", "p2pdma", 0),
        (ways(10, 0, 0, 10), "compat", "compat", 1000),
        (ways(10, None, 10, 0), "p2pdma", "p2pdma", 0),
        # Before 1.15 nvidia-fs has no counter of its own, before 1.14 P2PDMA neither.
        (ways(10, None, 0, 0), "direct", "direct (nvidia-fs or p2pdma)", 0),
        (ways(10, None, None, 0), "direct", "direct (nvidia-fs or p2pdma)", 0),
        (ways(10, None, None, 10), "compat", "compat", 1000),
        (ways(1000, 970, 0, 30), "mixed", "mixed: 97 % nvidia-fs, 3 % compat", 3000),
        (ways(1000, 999, 0, 1), "mixed", "mixed: >99 % nvidia-fs, <1 % compat", 100),
        (ways(4, None, 1, 1), "mixed", "mixed: 50 % direct (nvidia-fs or p2pdma), 25 % p2pdma, 25 % compat", 100),
        # What no counter has is never said to be direct.
        (ways(10, 0, 0, 0), "other", "not accounted for", 0),
        (ways(10, 5, 0, 0), "mixed", "mixed: 50 % nvidia-fs, 50 % not accounted for", 0),
        (ways(5, 0, 0, 10), "compat", "compat", 500),
        (NOTHING, "idle", "idle", 0),
    ],
)
def test_the_way_is_what_the_process_has_counted(direction: Direction, path: str, text: str, bounced: int) -> None:
    for pair in ((direction, NOTHING), (NOTHING, direction)):
        result = counters.route(counters.Observed(counted(pair)))
        assert (result.path, counters.route_words(result.path, result.reason, result.operations)) == (path, text)
        assert result.bounced == bounced
        assert result.exact == (path != "mixed" or not bounced)
        assert result.rate(result.bounced) is None


def test_the_last_interval_counts_where_something_moved_in_it() -> None:
    before = counted((ways(100, 0, 0, 100), NOTHING))
    now = counted((ways(300, 200, 0, 100), NOTHING))
    result = counters.route(counters.Observed(now, before, 2.0))
    assert (result.path, result.recent, result.read, result.bounced) == ("nvidia-fs", True, 20000, 0)
    assert (result.rate(result.read), result.rate(result.bounced)) == (10000, 0)
    still = counters.route(counters.Observed(now, now, 2.0))
    assert (still.path, still.recent, still.operations) == ("mixed", False, {"nvidia-fs": 200, "compat": 100})
    assert still.rate(still.bounced) == 0


def test_a_counter_that_falls_is_a_new_start() -> None:
    before = counted((ways(100, 0, 0, 100), NOTHING))
    now = counted((ways(7, 7, 0, 0), NOTHING))
    result = counters.route(counters.Observed(now, before, 2.0))
    assert (result.path, result.recent, result.rate(result.read)) == ("nvidia-fs", False, None)
    other = now._replace(gpus=(now.gpus[0]._replace(uuid="GPU-9"),))
    assert counters.difference(now, other) is None
    assert counters.difference(now, now._replace(size=31888)) is None


def test_ways_of_several_gpus_add_up_and_bytes_are_exact_by_direction() -> None:
    result = counters.route(
        counters.Observed(counted((ways(10, 10, 0, 0, 7), NOTHING), (NOTHING, ways(30, 0, 0, 30, 5))))
    )
    assert result.operations == {"nvidia-fs": 10, "compat": 30}
    assert (result.read, result.written, result.bounced, result.exact) == (70, 150, 150, True)


def test_bytes_without_a_gpu_are_not_counted() -> None:
    result = counters.route(counters.Observed(counted((NOTHING, NOTHING), read_bytes=5)))
    assert (result.path, result.reason) == (counters.NOT_COUNTED, counters.GPUS_NOT_COUNTED)


def test_a_process_without_libcufile_does_nothing_by_it() -> None:
    result = counters.route(counters.Observed(counters.NO_LIBRARY))
    assert (result.path, result.reason) == (counters.IDLE, "")


@pytest.mark.parametrize("reason", [*sorted(counters.REASONS.keys() - {counters.NO_LIBRARY}), "anything else"])
def test_every_reason_says_what_to_do(reason: str) -> None:
    result = counters.route(counters.Observed(reason))
    assert result.path == counters.NOT_COUNTED
    assert result.reason == (reason if reason in counters.REASONS else counters.NO_RECORD)
    assert all(counters.REASONS[result.reason])
    assert counters.route_words(result.path, result.reason, {}) == f"not counted ({result.reason})"
