"""Hostile files: a reader may refuse them with its own error, and nothing else may happen.

Examples are the same in every run, and each has its time; what is unpacked has its bound in bytes.
"""

from __future__ import annotations

import gzip
import itertools
import lzma
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.errors import ElfError, SymversError
from gdsdeploy.host.kmod import driver, kernel
from gdsdeploy.host.kmod.files import open_plain
from gdsdeploy.host.kmod.kernel import Inputs, Kernel, read_symvers
from gdsdeploy.host.kmod.module import read_module
from gdsdeploy.host.secure_boot.signature import findings as signature_findings
from tests.unit.host.kmod.kmod_elf import SIGNATURE, Writer, module_bytes
from tests.unit.host.kmod.kmod_root import RELEASE, Root

GOOD = module_bytes(
    info=[("parm", "a:b"), ("gdsdeploy_tree", "x")],
    imports={"kfree": 5, "memcpy": None},
    exports={"a": (1, True), "b": (2, False)},
    extended={"c": 3},
    texts=["nvme_v1_register_nvfs_dma_ops"],
    build_id=b"12345678901234567890",
    signature=SIGNATURE,
)
SYMVERS = "".join(f"0x0000000{n}\tsymbol_{n}\tvmlinux\tEXPORT_SYMBOL_GPL\tNS\n" for n in range(8)).encode()
#: deadline: the most milliseconds that one file may take on a busy machine
bounded = settings(
    max_examples=150,
    deadline=5000,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
damage = st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8)), min_size=1, max_size=20)
_number = itertools.count()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "module.ko"


def damaged(good: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    data = bytearray(good)
    for place, piece in changes:
        start = place % len(data)
        data[start : start + len(piece)] = piece
    return bytes(data)


def only_own_error(path: Path, data: bytes) -> None:
    """Every reader of a module file either answers or says which file is damaged."""
    # Each has a name of its own: what was unpacked once is kept by name, size and time.
    path = path.with_name(f"{next(_number)}-{path.name}")
    path.write_bytes(data)
    message = str(path)
    try:
        driver.requests_of(read_module(str(path)))
    except ElfError as error:
        message = error.message
    path.unlink()
    assert str(path) in message


@bounded
@given(st.binary(max_size=4096))
def test_random_bytes_behind_an_elf_header(path: Path, data: bytes) -> None:
    only_own_error(path, GOOD[:64] + data)


@bounded
@given(damage)
def test_a_real_layout_with_damage(path: Path, changes: list[tuple[int, bytes]]) -> None:
    only_own_error(path, damaged(GOOD, changes))


@bounded
@given(st.integers(0, 63), st.integers(0, 255), st.integers(0, 63), st.integers(0, 255))
def test_damaged_headers(path: Path, place: int, value: int, other: int, second: int) -> None:
    data = bytearray(GOOD)
    data[place], data[other] = value, second
    only_own_error(path, bytes(data))


@bounded
@given(st.integers(0, len(GOOD)))
def test_a_file_that_ends_anywhere(path: Path, size: int) -> None:
    only_own_error(path, GOOD[:size])


@bounded
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=8), st.binary(max_size=200))
def test_modinfo(path: Path, texts: list[str], rest: bytes) -> None:
    info = [("key", text.replace("\0", "")) for text in texts]
    only_own_error(path, module_bytes(info=info, texts=["x"]).replace(b"vermagic=", rest[:9].ljust(9, b"=")))


@bounded
@given(st.binary(max_size=300), st.binary(min_size=12, max_size=12))
def test_the_signature_that_is_appended(tmp_path: Path, message: bytes, tail: bytes) -> None:
    root = Root(tmp_path / str(next(_number)))
    path = root.module("updates/a.ko", "a", signature=message + tail + b"~Module signature appended~\n")
    for entry in signature_findings(Kernel(RELEASE, str(root.path)), str(path)):
        assert entry["id"]
        assert entry["message"]


def test_more_constants_than_memory(path: Path) -> None:
    """Section headers are cheap: thousands of them may name the same large piece of the file."""
    elf = Writer()
    elf.section(".modinfo", b"license=GPL\0name=nvidia_fs\0")
    for _ in range(40):
        elf.section(".rodata", bytes(1 << 20))
    path.write_bytes(elf.bytes())
    with pytest.raises(ElfError, match="has more constants than any nvidia-fs"):
        driver.requests_of(read_module(str(path)))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".xz": lzma.compress,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": lambda data: subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout,
}


@pytest.fixture(params=list(PACKERS))
def packed(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    suffix: str = request.param
    return suffix, PACKERS[suffix](GOOD)


#: zstd is a program of its own where Python has none.
few = settings(bounded, max_examples=40)


@few
@given(changes=damage)
def test_damaged_compression(path: Path, packed: tuple[str, bytes], changes: list[tuple[int, bytes]]) -> None:
    suffix, data = packed
    only_own_error(path.with_name("module.ko" + suffix), damaged(data, changes))


@few
@given(size=st.integers(0, 1 << 16))
def test_compression_that_ends_early(path: Path, packed: tuple[str, bytes], size: int) -> None:
    suffix, data = packed
    only_own_error(path.with_name("module.ko" + suffix), data[: size % len(data)])


def bomb(suffix: str, size: int) -> bytes:
    """``size`` zeros, packed; each algorithm makes a thousandth of them or less."""
    chunk = bytes(1 << 20)
    if suffix == ".xz":
        packer = lzma.LZMACompressor()
        return b"".join(packer.compress(chunk) for _ in range(size >> 20)) + packer.flush()
    return PACKERS[suffix](bytes(size))


@pytest.mark.parametrize("suffix", list(PACKERS))
def test_a_decompression_bomb_is_stopped_at_its_bound(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / ("module.ko" + suffix)
    path.write_bytes(bomb(suffix, 48 << 20))
    assert path.stat().st_size < 1 << 18
    tracemalloc.start()
    try:
        with pytest.raises(ElfError, match="unpacks to more than 33554432 bytes"):
            open_plain(str(path), limit=32 << 20)
        # Beyond MEMORY_LIMIT it is in a temporary file.
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@bounded
@given(
    st.one_of(
        st.binary(max_size=2000),
        damage.map(lambda changes: damaged(SYMVERS, changes)),
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


#: The words of depmod.d, modprobe.d, modules.dep and modules.builtin, and of nobody.
line = st.lists(
    st.sampled_from(
        ["search", "override", "nvidia", "*", "updates", "built-in", "install", "modprobe", "-i", "alias", "(", "[",
         "\\", "kernel/fs/own.ko:", "../../..", "/etc", "#", "\x00", "é", "updates/dkms/nvidia.ko:", "-",
         "softdep", "^+*{"]
    ),
    max_size=6,
).map(" ".join)  # fmt: skip
text = st.lists(line, max_size=12).map("\n".join)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Root:
    root = Root(tmp_path_factory.mktemp("stack"))
    root.nvidia()
    root.nvidia_fs()
    return root


@settings(bounded, max_examples=60)
@given(depmod_d=text, modprobe_d=text, dep=text, builtin=text)
def test_the_audit_of_a_root_with_any_configuration(
    stack: Root, depmod_d: str, modprobe_d: str, dep: str, builtin: str
) -> None:
    stack.etc("etc/depmod.d/a.conf", depmod_d)
    stack.etc("etc/modprobe.d/a.conf", modprobe_d)
    stack.etc(f"lib/modules/{RELEASE}/modules.dep", dep)
    stack.etc(f"lib/modules/{RELEASE}/modules.builtin", builtin)
    results = audit(Kernel(RELEASE, str(stack.path)))
    assert {result["module"] for result in results} == {"nvidia", "nvidia_fs"}


@bounded
@given(text, st.text(max_size=40))
def test_a_line_of_depmods_configuration(tmp_path: Path, config: str, release: str) -> None:
    (tmp_path / "etc/depmod.d").mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc/depmod.d/a.conf").write_text(config)
    files = ["updates/dkms/x.ko", "kernel/x.ko", "extra/x.ko"]
    choice = kernel.read_order(Inputs(str(tmp_path)), release or "r").choose(files)
    assert sorted((choice.file, *choice.others)) == sorted(files)
