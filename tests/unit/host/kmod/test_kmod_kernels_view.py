"""What kernel, depmod and modprobe compare or look at, and what can't be decided from the files at hand."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.kmod.driver import Expected
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.kmod.packaged import identity, is_same_build
from tests.unit.host.kmod.kmod_root import KERNEL_EXPORTS, PROVENANCE, RELEASE, Root

HOOKS = ("nvme_v1_register_nvfs_dma_ops", "nvme_v1_unregister_nvfs_dma_ops")
CONFIG = f"usr/src/linux-headers-{RELEASE}/.config"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def found(root: Root, *modules: str, expected: Expected | None = None) -> tuple[bool | None, list[str]]:
    """``ok`` of the last module, and ``outcome id`` of its findings other than notes."""
    result: dict[str, Any] = audit(Kernel(root.release, str(root.path)), modules, expected)[-1]
    return result["ok"], [
        f"{entry['outcome']} {entry['id']}" for entry in result["findings"] if entry["outcome"] != "ok"
    ]


def symvers(root: Root, *lines: str) -> None:
    path = root.path / f"usr/src/linux-headers-{RELEASE}/Module.symvers"
    path.write_text(path.read_text() + "".join(f"{line}\n" for line in lines))


def test_without_headers_a_proprietary_module_is_undecided(root: Root) -> None:
    """The same file is refused where the headers say that a symbol is GPL-only."""
    imports = {name: KERNEL_EXPORTS[name] for name in ("kfree", "gpl_thing")}
    root.module("updates/a.ko", "a", license="NVIDIA", imports=imports)
    assert found(root, "a") == (False, ["error gpl-proprietary"])
    root.remove_headers()
    assert found(root, "a") == (None, ["unknown symbol-unknown"])
    root.module("updates/a.ko", "a", license="GPL", imports=imports)
    assert found(root, "a") == (True, [])
    # What a proprietary driver exports makes the module proprietary.
    root.nvidia(license="NVIDIA", imports={}, depends="", exports={"nv": (9, False)})
    root.module("updates/a.ko", "a", license="GPL", imports={**imports, "nv": 9}, depends="nvidia")
    assert found(root, "a") == (None, ["unknown symbol-unknown"])


def test_without_headers_a_namespace_may_be_what_all_users_import(root: Root) -> None:
    symvers(root, "0x00000007\tdma_get\tvmlinux\tEXPORT_SYMBOL_GPL\tDMA_BUF")
    user = {"intree": "Y", "import_ns": "DMA_BUF"}
    root.module("kernel/fs/user.ko", "user", info=list(user.items()), imports={"dma_get": 7})
    root.module("updates/a.ko", "a", imports={"dma_get": 7})
    assert found(root, "a") == (False, ["error symbol-namespace"])
    root.remove_headers()
    assert found(root, "a") == (None, ["unknown symbol-unknown"])
    root.module("updates/a.ko", "a", info=[("import_ns", "DMA_BUF")], imports={"dma_get": 7})
    assert found(root, "a") == (True, [])
    root.module("updates/a.ko", "a", imports={"dma_get": 7})
    root.module("kernel/fs/user.ko", "user", info=[("intree", "Y")], imports={"dma_get": 7})
    assert found(root, "a") == (True, [])


def test_newer_kernels_have_namespaces_that_users_do_not_tell(tmp_path: Path) -> None:
    release = "6.17.0-5-generic"
    root = Root(tmp_path, release, f"{release} SMP preempt mod_unload modversions ")
    root.remove_headers()
    root.module("updates/a.ko", "a", imports={"kfree": KERNEL_EXPORTS["kfree"]})
    assert found(root, "a") == (None, ["unknown symbol-unknown"])


@pytest.mark.parametrize("headers", [True, False])
def test_the_namespace_of_a_module_that_is_read(root: Root, headers: bool) -> None:
    exports = {"mana_send": (5, True), "mana_free": (6, True)}
    intree = [("intree", "Y")]
    root.module("kernel/net/mana.ko", "mana", info=intree, exports=exports, spaces={"mana_send": "NET_MANA"})
    symvers(root, "0x00000005\tmana_send\tnet/mana\tEXPORT_SYMBOL_GPL\tNET_MANA")
    if not headers:
        root.remove_headers()
    root.module("updates/a.ko", "a", depends="mana", imports={"mana_send": 5, "mana_free": 6})
    assert found(root, "a") == (False, ["error symbol-namespace"])
    root.module("updates/a.ko", "a", depends="mana", imports={"mana_free": 6})
    assert found(root, "a") == (True, [])


def test_a_symbol_whose_version_genksyms_could_not_make(root: Root) -> None:
    symvers(root, "0x00000000\todd_thing\tvmlinux\tEXPORT_SYMBOL\t")
    root.module("updates/a.ko", "a", imports={"odd_thing": None})
    assert found(root, "a") == (True, [])


def test_extended_versions_count_and_need_their_names(root: Root) -> None:
    path = root.module("updates/a.ko", "a", extended={"kfree": KERNEL_EXPORTS["kfree"]})
    assert found(root, "a") == (True, [])
    root.module("updates/a.ko", "a", extended={"kfree": 1})
    assert found(root, "a") == (False, ["error symbol-crc"])
    path.write_bytes(path.read_bytes().replace(b"__version_ext_names", b"__version_ext_other"))
    assert found(root, "a") == (False, ["error unreadable"])


def test_struct_module_of_another_configuration(root: Root) -> None:
    root.module("kernel/fs/own.ko", "own", info=[("intree", "Y")], struct_size=1280)
    root.module("kernel/drivers/gpu/drm/drm.ko", "drm", info=[("intree", "Y")], struct_size=1280)
    root.module("updates/a.ko", "a", struct_size=1280)
    assert found(root, "a") == (True, [])
    root.module("updates/a.ko", "a", struct_size=1344)
    assert found(root, "a") == (False, ["error module-size"])


def btf(*types: bytes, size: int | None = None) -> bytes:
    body = b"".join(types)
    return (
        struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(body) if size is None else size, len(body), 1) + body + b"\0"
    )


INT = struct.pack("<IIII", 0, 1 << 24, 4, 32)
STRUCT = struct.pack("<III", 0, 4 << 24 | 2, 8) + bytes(24)


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (btf(INT, STRUCT), ""),
        (btf(INT, STRUCT[:-4]), "error type-data"),
        (btf(INT, STRUCT, b"rest"), "error type-data"),
        (btf(INT, size=1000), "error type-data"),
        (b"\xff" * 100, "unknown type-data-unknown"),
        (b"\x9f\xeb\x01", "error type-data"),
        (btf(struct.pack("<III", 0, 0, 0)), "error type-data"),
        (btf(struct.pack("<III", 0, 30 << 24, 0)), "unknown type-data-unknown"),
    ],
)
def test_type_data(root: Root, data: bytes, outcome: str) -> None:
    root.module("updates/a.ko", "a", btf=data)
    assert found(root, "a") == (True, [])
    root.etc(CONFIG, "CONFIG_DEBUG_INFO_BTF_MODULES=y\n")
    verdicts = {"": True, "e": False, "u": None}
    assert found(root, "a") == (verdicts[outcome[:1]], [outcome] if outcome else [])
    root.etc(CONFIG, "CONFIG_DEBUG_INFO_BTF_MODULES=y\nCONFIG_MODULE_ALLOW_BTF_MISMATCH=y\n")
    assert found(root, "a") == (True, [])


def test_a_driver_that_is_built_in_is_not_the_one_on_disk(root: Root) -> None:
    root.nvidia()
    root.nvidia_fs(info=[("version", "2.28.4"), *PROVENANCE], texts=HOOKS)
    root.module("updates/nvme.ko", "nvme", exports=dict.fromkeys(HOOKS, (9, True)))
    expected = Expected(storage=("nvme",))
    assert found(root, "nvidia_fs", expected=expected) == (True, [])
    root.etc(f"lib/modules/{RELEASE}/modules.builtin", "kernel/drivers/nvme/host/nvme.ko\n")
    assert found(root, "nvidia_fs", expected=expected) == (False, ["error hook-missing"])
    # Nor does anything use its symbols.
    root.module("updates/a.ko", "a", imports={HOOKS[0]: 9}, depends="nvme")
    assert found(root, "a") == (False, ["error symbol-missing"])
    # The kernel that has them itself is right.
    symvers(root, *(f"0x00000009\t{name}\tvmlinux\tEXPORT_SYMBOL_GPL\t" for name in HOOKS))
    assert found(root, "nvidia_fs", expected=expected) == (True, [])
    root.remove_headers()
    assert found(root, "nvidia_fs", expected=expected) == (None, ["unknown hook-unknown"])


def test_a_symbol_that_is_exported_twice(root: Root) -> None:
    root.module("updates/a.ko", "a", exports={"kfree": (1, False)})
    assert found(root, "a") == (False, ["error symbol-duplicate"])
    root.nvidia()
    root.module("updates/a.ko", "a", exports={"nvidia_p2p_get_pages": (1, False)})
    assert found(root, "a") == (False, ["error symbol-duplicate"])
    # A module in the place of one of the kernel's own exports the same.
    root.module("updates/drm.ko", "drm", exports={"drm_open": (0xD0, False)})
    assert found(root, "drm")[0] is True


@pytest.mark.parametrize("recorded", [True, False])
def test_a_kernel_is_known_by_a_file_that_every_host_with_it_has(tmp_path: Path, recorded: bool) -> None:
    builder, host = Root(tmp_path / "builder"), Root(tmp_path / "host")
    extra = [f"kernel/fs/{name}/{name}.ko" for name in ("adfs", "zonefs")] if recorded else []
    extra.append("kernel/drivers/gpu/drm/drm.ko")
    for root in (builder, host):
        root.module("kernel/fs/own.ko", "own", info=[("intree", "Y")])
        for file in extra:
            root.module(file, Path(file).stem, info=[("intree", "Y")])
    if recorded:
        lines = "".join(f"/lib/modules/{RELEASE}/{file}\n" for file in extra)
        builder.etc(f"var/lib/dpkg/info/linux-modules-extra-{RELEASE}.list", lines)
    for file in extra:
        (host.modules / file).unlink()
    build = identity(Kernel(RELEASE, str(builder.path)))
    kernel = Kernel(RELEASE, str(host.path))
    assert is_same_build(kernel, build) is True
    assert identity(kernel) == build


def test_loops_of_links_end(root: Root) -> None:
    root.nvidia()
    (root.modules / "updates/again").symlink_to("..")
    (root.modules / "updates/self").symlink_to("self")
    files = Kernel(RELEASE, str(root.path)).by_name["nvidia"]
    assert "updates/dkms/nvidia.ko" in files
    assert len(files) < 10
