"""Lists of packages are unpacked within bounds, and versions and relations mean what dpkg means by them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.repo import unpack
from gdsdeploy.repo.packages import DEB, deb, upstream

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
        [sys.executable, "-c", CHILD, str(path), str(declared)], capture_output=True, text=True, timeout=300, check=True
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


# -- Version order equals dpkg's own: differential, against the real program.

#: Relation → how a version compares to its bound; ``<`` and ``>`` are the old spellings of "or equal".
_SIGNS = {"<<": {-1}, "<=": {-1, 0}, "=": {0}, ">=": {0, 1}, ">>": {1}, "<": {-1, 0}, ">": {0, 1}}

#: Versions as archives have them, pasted together from what makes the order hard: epochs, tildes, zeros, letters.
_PIECES = ["0", "1", "10", "09", "2", "550", "~", ".", "+", "a", "b", "rc", "deb", "bpo"]


def _near(random: Random, version: str) -> str:
    """The same version with one piece put in, taken out or doubled: pairs that differ where it is hard to see."""
    at = random.randrange(len(version) + 1)
    change = random.choice(["", *_PIECES, "-", "-1", "0", version[max(0, at - 1) : at]])
    return version[:at] + change + version[at + random.randrange(2) :]


def _valid(version: str) -> bool:
    """What dpkg takes without a word, which is less than what it compares."""
    return re.fullmatch(r"(?:[0-9]:)?[0-9][0-9a-z.+~]*(?:-[0-9a-z.+~]+)*", version) is not None


def test_thousands_of_pairs_sort_as_the_real_dpkg_sorts_them() -> None:
    """In one shell, so that what takes time is dpkg itself."""
    random = Random(20261121)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < 2000:
        upstream_part = str(random.randrange(999)) + "".join(random.choices(_PIECES, k=random.randrange(6)))
        revision = random.choice(["", "-1", "-0ubuntu1", "-2+deb13u1", "-1~bpo12+1"])
        one = random.choice(["", "0:", "1:", "3:"]) + upstream_part + revision
        other = _near(random, one)
        if _valid(one) and _valid(other):
            pairs.append((one, other))
    script = (
        'while read -r a b; do if dpkg --compare-versions "$a" lt "$b"; then echo -1; '
        'elif dpkg --compare-versions "$a" eq "$b"; then echo 0; else echo 1; fi; done'
    )
    text = "".join(f"{a} {b}\n" for a, b in pairs)
    done = subprocess.run(["sh", "-c", script], input=text, capture_output=True, text=True, check=True)
    assert not done.stderr, done.stderr
    theirs = [int(line) for line in done.stdout.split()]
    ours = [(deb(a) > deb(b)) - (deb(a) < deb(b)) for a, b in pairs]
    assert [pair for pair, x, y in zip(pairs, ours, theirs, strict=True) if x != y] == []
    assert {-1, 0, 1} == set(theirs)
    for pair, sign in zip(pairs, theirs, strict=True):
        assert {name for name in _SIGNS if DEB.holds(pair[0], name, pair[1])} == {
            n for n in _SIGNS if sign in _SIGNS[n]
        }


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("6.12.94-1", "6.12.107-1"),
        ("6.12.107-1~deb12u1", "6.12.107-1"),
        ("535.261.03-1", "535.309.01-0+deb12u1"),
        ("2.19.7~12.4.1-2", "2.19.7-1"),
        ("1.9.1.3~12.4.1-8.2", "1.9.1.3~12.4.1-8.2+b1"),
        ("570.133.20-1", "3:550.54.15-1"),
        ("6.12~rc7-1~exp1", "6.12-1"),
    ],
)
def test_order_of_versions_of_this_stack(older: str, newer: str) -> None:
    assert deb(older) < deb(newer)
    subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


@pytest.mark.parametrize("text", ["", "a b", "1:2:3 4"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        deb(text)


def test_upstream_keeps_what_is_neither_epoch_nor_revision() -> None:
    assert upstream("1:2.10-3-4") == "2.10-3"
    assert upstream("20240109+1") == "20240109+1"
