"""Bombs: an index of some kilobytes that unpacks to gigabytes is refused, whatever packs it, in little memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.repo import unpack

MEGABYTE = 1 << 20


def zst(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=data, check=True, capture_output=True).stdout


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zst,
}  # fmt: skip


def write(folder: Path, ending: str, data: bytes) -> Path:
    path = folder / f"Packages.{ending}"
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that unpack to 6 GiB each: streams, members and frames follow one another."""
    folder = tmp_path_factory.mktemp("bombs")
    for ending, pack in PACKERS.items():
        write(folder, ending, pack(bytes(64 * MEGABYTE)) * 96)
    return folder


#: What one child may have in all: Python, its libraries, and nothing like what the bomb holds.  The kernel counts it
#: from the child's own start; ru_maxrss would begin with that of the process that starts it.
CHILD = """
import re, resource, sys
from pathlib import Path
from gdsdeploy.errors import RepositoryUntrusted
from gdsdeploy.repo import unpack
def most():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
before = most()
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
declared = int(sys.argv[2]) or None
try:
    unpack.index(Path(sys.argv[1]), sys.argv[1], declared)
except RepositoryUntrusted as error:
    print(error)
print((most() - before) // 1024)
"""


@pytest.mark.parametrize("declared", [0, 6 << 30])
@pytest.mark.parametrize("ending", PACKERS)
def test_a_bomb_of_six_gibibytes_is_refused_in_little_memory(ending: str, declared: int, bombs: Path) -> None:
    path = bombs / f"Packages.{ending}"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(declared)], capture_output=True, text=True, timeout=120, check=True
    )
    words, megabytes = done.stdout.splitlines()
    allowed = max(16 * MEGABYTE, 64 * path.stat().st_size)
    assert allowed < (6 << 30) // 10, "it is a bomb"
    assert f"it decompresses to more than the {allowed} bytes" in words
    assert int(megabytes) < 3 * allowed // MEGABYTE


def test_nothing_is_larger_than_the_limit_whatever_is_declared(tmp_path: Path) -> None:
    for sizes in [(unpack.LARGEST_INDEX + 1, None), (1, unpack.LARGEST_INDEX + 1)]:
        with pytest.raises(RepositoryUntrusted, match=r"^u: 1073741825 bytes are not what a list can have"):
            unpack.require_size("u", *sizes)
    path = tmp_path / "Packages"
    path.write_bytes(bytes(100))
    with pytest.raises(RepositoryUntrusted, match="more than the 99 bytes"):
        unpack.index(path, "u", None, most=99)


def test_xz_and_zstd_that_ask_for_much_memory_are_refused(tmp_path: Path) -> None:
    huge = lzma.compress(b"x", format=lzma.FORMAT_XZ, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}])
    # A frame with a window of 2**28 bytes, and one block of one byte (RFC 8878, 3.1.1).
    wide = bytes.fromhex("28b52ffd 00 90 090000") + b"x"
    for ending, data in (("xz", huge), ("zst", wide)):
        with pytest.raises(RepositoryUnusable, match=rf"Packages\.{ending}: cannot be decompressed"):
            unpack.index(write(tmp_path, ending, data), f"Packages.{ending}", None)


@pytest.mark.parametrize("ending", PACKERS)
def test_a_size_that_is_declared_is_the_size(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path, ending, PACKERS[ending](b"x" * 100))
    assert unpack.index(path, path.name, 100) == unpack.index(path, path.name, None) == b"x" * 100
    with pytest.raises(RepositoryUntrusted, match="it does not decompress to the 101 bytes"):
        unpack.index(path, path.name, 101)
    with pytest.raises(RepositoryUntrusted, match="it decompresses to more than the 99 bytes"):
        unpack.index(path, path.name, 99)


@settings(max_examples=200, deadline=None)
@given(
    ending=st.sampled_from(sorted(PACKERS)),
    parts=st.lists(st.binary(max_size=200), min_size=1, max_size=4),
    cut=st.integers(0, 60),
)
def test_what_programs_pack_is_unpacked_and_damage_is_one_error(ending: str, parts: list[bytes], cut: int) -> None:
    """In parts, as parallel packers write it, and cut off anywhere."""
    packed = b"".join(map(PACKERS[ending], parts))
    whole = b"".join(parts)
    assert b"".join(unpack.pieces(io.BytesIO(packed), ending)) == whole
    try:
        less = b"".join(unpack.pieces(io.BytesIO(packed[: max(len(packed) - cut, 0)]), ending))
    except (*unpack.DAMAGED, zlib.error):
        return
    assert whole.startswith(less)
