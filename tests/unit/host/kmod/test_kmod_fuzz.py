"""Hostile files: a reader may refuse them with its own error, and nothing else may happen."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kmod_elf import SIGNATURE, module_bytes

from gdsdeploy.host.kmod.errors import ElfError, SymversError
from gdsdeploy.host.kmod.module import read_module
from gdsdeploy.host.kmod.symvers import read_symvers

GOOD = module_bytes(
    info=[("parm", "a:b"), ("gdsdeploy_tree", "x")],
    imports={"kfree": 5, "memcpy": None},
    exports={"a": (1, True), "b": (2, False)},
    extended={"c": 3},
    signature=SIGNATURE,
)
#: deadline: the most milliseconds that one file may take on a busy machine
bounded = settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "module.ko"


def only_own_error(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    message = str(path)
    try:
        read_module(str(path))
    except ElfError as error:
        message = error.message
    assert str(path) in message


@bounded
@given(st.binary(max_size=4096))
def test_random_bytes_behind_an_elf_header(path: Path, data: bytes) -> None:
    only_own_error(path, GOOD[:64] + data)


@bounded
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=20))
def test_a_real_layout_with_damage(path: Path, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(GOOD)
    for place, piece in changes:
        data[place : place + len(piece)] = piece
    only_own_error(path, bytes(data))


@bounded
@given(st.integers(0, 63), st.integers(0, 255), st.integers(0, 63), st.integers(0, 255))
def test_damaged_headers(path: Path, place: int, value: int, other: int, second: int) -> None:
    data = bytearray(GOOD)
    data[place], data[other] = value, second
    only_own_error(path, bytes(data))


@bounded
@given(st.integers(0, 4000), st.integers(0, 255))
def test_damaged_compression(tmp_path: Path, place: int, value: int) -> None:
    data = bytearray(lzma.compress(GOOD))
    data[place % len(data)] = value
    only_own_error(tmp_path / "module.ko.xz", bytes(data))


@bounded
@given(
    st.one_of(
        st.binary(max_size=2000),
        st.lists(st.text("0x19af\tEXPORT_SYMBOLGPLvmlinux", max_size=60), max_size=20).map(
            lambda lines: "\n".join(lines).encode()
        ),
    )
)
def test_symvers(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "Module.symvers"
    path.write_bytes(data)
    message = str(path)
    try:
        read_symvers(str(path))
    except SymversError as error:
        message = error.message
    assert str(path) in message
