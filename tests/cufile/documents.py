"""Seeded documents for the differential tests: valid ones, mutated ones, and hostile texts."""

from __future__ import annotations

import json
import random
from typing import Any

from gdsdeploy.cufile.model import (
    GPU_COUNTS,
    GPU_SIZES,
    SLAB_COUNTS,
    SLAB_SIZES,
    Key,
    Release,
    keys,
    known_keys,
)

#: JSON texts that are wrong for most keys and right for some.
ODD = (
    "true", "false", "null", "0", "1", "3", "4", "5", "8", "63", "64", "65", "100", "129", "256", "257", "1000",
    "1001", "1024", "1025", "4096", "4097", "16384", "16448", "60001", "4294967292", "4294967295", "4294967296",
    "18014398509481980", "18014398509481984", "9223372036854775808", "18446744073709551615", "18446744073709551616",
    "-", "-0", "-1", "-2", "-64", "-2147483648", "-2147483649", "-9223372036854775809", "007", "1.", "1.5", "64.5",
    "-0.5", "1e2", "4294967295.5", "4294967296.0", "1e300", "1e999", '""', '"x"', '"true"', '"4"', '"0x1F"', '" +1f"',
    '"0x"', '"0xfffffffff"', '"/tmp"', '"/nonexistent"', '"INFO"', '"dmabuf"', '"nvidia_peermem"', '"RoundRobin"',
    "[]", "{}", '[""]', '["x"]', "[1]", "[4]", "[64]", "[4,8]", "[8,4]", "[4,4]", "[0]", "[-1]", "[true]", "[null]",
    "[1.0]", "[2147483648]", '["192.0.2.1"]', '["2001:db8::1","x y"]', '["/tmp"]', '["/nonexistent"]', '["P2P"]',
    '["GPU_MEM","SYS_MEM"]', "[[]]", "[{}]", '{"a":1}', '{"/tmp":{}}', '{"/tmp":3}',
    '{"/tmp":{"rdma_dev_addr_list":3}}', '{"/tmp":null}', '{"/tmp":["192.0.2.1"]}',
    '{"/tmp":{"rdma_dev_addr_list":null}}',
    '{"/tmp":{"rdma_dev_addr_list":["192.0.2.1"]}}', '{"/nonexistent":{"rdma_dev_addr_list":["192.0.2.1"]}}',
)  # fmt: skip
#: What texts are broken with.
PIECES = (
    "{", "}", "[", "]", ",", ":", '"', '""', "'", "/", "//", "/*", "*/", "/*c*/", "//c\n", "\0", "\n", "\r", "\t",
    " ", "#", "-", "1", ".5", "1e", "+1", "true", "tru", "null", "NaN", "\\", '"\\q"', '"\\u12"', "x", "é",
    b"\xff".decode("utf-8", "surrogateescape"), b"\xc3".decode("utf-8", "surrogateescape"), "\ufeff",
)  # fmt: skip
#: GPU and CPU bounce buffers of any size cost the library time and memory, so valid ones stay small.
_SMALL = {SLAB_SIZES: [[4], [4, 8], [16, 8, 4]], GPU_SIZES: [[4], [64, 128]]}


#: Asked of every library besides the generated ones: the dialect's corners, and what ends the process.
FIXED = tuple(
    text if isinstance(text, bytes) else text.encode()
    for text in (
        "", "{}", "[]", "null", "3", '"x"', "[1]", "{}x", b"\xff{}", b"\xef\xbb\xbf{}", b'{"a":1}\xff', "{\0}",
        '{"a":1,}', '{"":1,}', '{"a":[1,]}', '{"a":[/*c*/]}', '{"a"/*c*/:1}', '{"a":1 /*x*/ true "b":2}',
        '{"a":1 "b":2}',
        "//x\r{}", '{"a":1 /* un }', '{"a":"\\ud800"}', '{"a":"\\ud800\\u0041"}', '{"a":-}', '{"a":1e}', '{"a":007}',
        '{"a":' + "[" * 999 + "]" * 999 + "}", '{"a":' + "[" * 1000 + "]" * 1000 + "}", "[" * 5000,
        '{"properties":3}', '{"properties":[]}', '{"properties":null}', '{"fs":{"nfs":"x"}}',
        '{"profile":{"cufile_stats":4294967296}}', '{"properties":{"rdma_topN_ranks":-2147483649}}',
        '{"properties":{"posix_pool_slab_size_kb":[4]}}',
        '{"properties":{"posix_pool_slab_size_kb":[4],"posix_pool_slab_count":[-1]}}',
        '{"properties":{"per_buffer_cache_size_kb":0}}', '{"properties":{"max_direct_io_size_kb":512}}',
        '{"properties":{"gpu_bounce_buffer_slab_config":3}}', '{"denylist":{"mounts":["/nonexistent","/tmp"]}}',
        '{"properties":{"io_batchsize":2.9,"poll_mode_max_size_kb":8.9},"profile":{"cufile_stats":true}}',
        '{"properties":{"io_batchsize":4294967295.5}}', '{"properties":{"rdma_service_level":256}}',
        '{"properties":{"rdma_service_level":-1}}', '{"profile":{"cufile_stats":4294967295}}',
        '{"properties":{"io_batchsize":300},"properties":{}}', '{"properties":{"io_batchsize":5,"io_batchsize":300}}',
    )
)  # fmt: skip


class Raw(str):
    """A JSON text to be written as it is."""

    __slots__ = ()


def edges(release: Release) -> list[bytes]:
    """Each key of the release with a wrong type, and each number just inside and outside of its limits."""
    documents: list[bytes] = []
    for name, key in keys(release).items():
        limits = key.enforced_for(release)
        wrong = [Raw("[[]]")]
        if key.type in {"uint", "int"}:
            step = limits.multiple or 1
            wrong += [limits.min - step] if limits.min else []
            wrong += [limits.max + step] if limits.max is not None else []
            wrong += [(limits.min or 0) + 1] if step > 1 else []
            wrong += [2**key.bits] if key.bits == 32 else []
        documents += [_one(name, value) for value in wrong]
        if key.type in {"uint", "int"} and name != "properties.max_device_cache_size_kb":
            inside = {limits.min, limits.max, *limits.also, key.limits_for(release).max} - {None}
            documents += [_one(name, value) for value in inside]
    return documents


def _one(name: str, value: Any) -> bytes:
    values = {name: value}
    if name == "properties.max_direct_io_size_kb" and isinstance(value, int):
        values["properties.per_buffer_cache_size_kb"] = 64
    return _write(random.Random(0), nest(values)).encode()


def document(random_: random.Random, release: Release) -> bytes:
    """One document; half of them are taken by the release."""
    kind = random_.choices(("valid", "odd", "section", "hostile"), (45, 30, 5, 20))[0]
    values: dict[str, Any] = {}
    for key in random_.sample(sorted(keys(release)), random_.randint(0, 12)):
        values.update(_valid(random_, known_keys()[key], release))
    if kind == "odd":
        for key in random_.sample(sorted(known_keys()), random_.choice((1, 1, 1, 2, 4))):
            values[key] = Raw(random_.choice(ODD))
    if random_.random() < 0.2:
        values[f"fs.{random_.choice(('lustre', 'nfs'))}.mount_table"] = _table(random_)
    if kind == "section":
        values[random_.choice(("properties", "fs", "fs.lustre", "logging", "denylist", "sparse", "x"))] = Raw(
            random_.choice(("3", "[]", "null", '"x"', "true"))
        )
    nested = nest(values)
    if random_.random() < 0.1:
        # A dotted name at the top is no key.
        nested |= {name: value for name, value in values.items() if random_.random() < 0.5}
    text = _write(random_, nested)
    if kind == "hostile":
        letters = list(text)
        for _ in range(random_.randint(1, 4)):
            place = random_.randrange(len(letters) + 1)
            if random_.random() < 0.4:
                del letters[place : place + random_.choice((1, 1, 2, 30))]
            else:
                letters.insert(place, random_.choice(PIECES))
        text = "".join(letters)
    return text.encode("utf-8", "surrogateescape")


def _table(random_: random.Random) -> dict[str, Any]:
    """A mount table whose rows have and lack addresses."""
    rows: tuple[Any, ...] = (["192.0.2.1"], ["192.0.2.2", "192.0.2.1"], [], None)
    names = random_.sample(("/tmp", "/usr", "/proc", "/nonexistent", "tmp"), random_.randint(1, 3))
    table: dict[str, Any] = {name: {"rdma_dev_addr_list": random_.choice(rows)} for name in names}
    if random_.random() < 0.3:
        table[names[0]] = random_.choice(({}, {"rdma_dev_addr_lst": ["192.0.2.1"]}, ["192.0.2.1"], None))
    return table


def _valid(random_: random.Random, key: Key, release: Release) -> dict[str, Any]:
    """Values for a key and for those that go with it."""
    for sizes, counts in ((SLAB_SIZES, SLAB_COUNTS), (GPU_SIZES, GPU_COUNTS)):
        if key.key in {sizes, counts}:
            chosen = random_.choice(_SMALL[sizes])
            return {sizes: chosen, counts: [random_.randint(1, 3) for _ in chosen]}
    if key.key.endswith(("max_direct_io_size_kb", "per_buffer_cache_size_kb")):
        largest = 64 * random_.randint(1, 256)
        buffer = 64 * random_.randint(1, min(16, largest // 64))
        both = {"properties.max_direct_io_size_kb": largest, "properties.per_buffer_cache_size_kb": buffer}
        return both if random_.random() < 0.7 else {key.key: both[key.key]}
    return {key.key: _value(random_, key, release)}


def _value(random_: random.Random, key: Key, release: Release) -> Any:
    limits = key.limits_for(release)
    if key.type == "bool":
        return random_.random() < 0.5
    if key.type in {"uint", "int"}:
        step = limits.multiple or 1
        low = limits.min or 0
        # Buffers as large as the limits allow could not be had.
        high = min(limits.max if limits.max is not None else 131072, 131072)
        edges = [low, high - high % step, *limits.also, low + step * random_.randint(0, (high - low) // step)]
        return random_.choice(edges)
    words = list(limits.words)
    if key.type == "text":
        if key.key == "logging.dir":
            return "/tmp"
        return random_.choice(words or ["x", "/nonexistent", "0x1f"] if not limits.pattern else ["0x1F", "abcd"])
    if key.key == "denylist.mounts":
        return random_.choice([[], ["/tmp"], ["/tmp", "/usr"]])
    if key.type == "texts" and key.key != "denylist.devices":
        return random_.sample(words or ["192.0.2.1", "2001:db8::1", "nvme"], random_.randint(0, 3))
    return {"/tmp": {"rdma_dev_addr_list": ["192.0.2.1"]}} if key.type == "object" and random_.random() < 0.5 else None


def nest(values: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        table = result
        for part in path:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            table = inner
        else:
            table[last] = value
    return result


def _write(random_: random.Random, value: Any) -> str:
    """JSON with blanks, comments and repeated keys strewn in."""
    if isinstance(value, Raw):
        return value
    if not isinstance(value, dict):
        return json.dumps(value)

    def gap() -> str:
        return random_.choices(("", " ", "\n", "\r\n\t", "/* c */", "// c\n"), (70, 10, 10, 4, 3, 3))[0]

    members = [f"{gap()}{json.dumps(name)}:{gap()}{_write(random_, inner)}{gap()}" for name, inner in value.items()]
    if members and random_.random() < 0.05:
        name = random_.choice(list(value))
        members.insert(0, f"{json.dumps(name)}:{random_.choice(ODD)}")
    return "{" + ",".join(members) + "}"
