"""Storage drivers that let nvidia-fs in, or do not, and say nothing about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.kmod.driver import Expected
from gdsdeploy.host.kmod.kernel import Kernel
from tests.unit.host.kmod.kmod_root import RELEASE, Root

NVME = "updates/dkms/nvme.ko"


def pair(prefix: str, gpl: bool = True) -> dict[str, tuple[int, bool]]:
    return {f"{prefix}_{kind}_nvfs_dma_ops": (7, gpl) for kind in ("register", "unregister")}


#: What nvidia-fs 2.19.7 has in its file, of two drivers; and 2.28.4 on a kernel of 6.17.
OLD = [*pair("nvme_v1"), *pair("rpcrdma")]
NEW = [*pair("nvme_v2"), *pair("rpcrdma")]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path)
    root.nvidia()
    root.nvidia_fs(texts=OLD)
    return root


def findings_by_id(root: Root, *storage: str) -> dict[str, dict[str, str]]:
    """By id, what is said about storage drivers; ``verdict`` has the module's."""
    kernel = Kernel(root.release, str(root.path))
    result: dict[str, Any] = audit(kernel, ["nvidia-fs"], Expected(storage=storage))[0]
    value = {entry["id"]: entry for entry in result["findings"] if entry["id"].startswith(("hook", "input"))}
    assert all(entry["hint"] for entry in value.values() if entry["severity"] != "note")
    return {**value, "verdict": {"ok": str(result["ok"])}}


def test_a_stock_kernel_has_none_of_the_symbols(root: Root) -> None:
    root.module("kernel/drivers/nvme/host/nvme.ko", "nvme", info=[("intree", "Y")])
    value = findings_by_id(root)
    assert set(value) == {"hooks", "verdict"}
    expected = f"storage drivers of kernel {RELEASE} with symbols for nvidia-fs: none; it looks for nvme (v1), "
    assert value["hooks"]["message"] == expected + "rpcrdma (no version)"
    assert value["verdict"]["ok"] == "True"


def test_a_driver_that_has_to_let_it_in_and_has_no_symbols(root: Root) -> None:
    root.module("kernel/drivers/nvme/host/nvme.ko", "nvme", info=[("intree", "Y")])
    value = findings_by_id(root, "nvme")
    assert value["hook-missing"]["severity"] == "error"
    assert f"nvme of kernel {RELEASE} has no symbols" in value["hook-missing"]["message"]
    assert value["verdict"]["ok"] == "False"


def test_drivers_that_fit(root: Root) -> None:
    root.module(NVME, "nvme", exports=pair("nvme_v1"))
    root.module("updates/dkms/rpcrdma.ko", "rpcrdma", exports=pair("rpcrdma"))
    value = findings_by_id(root, "nvme", "rpcrdma")
    assert set(value) == {"hooks", "verdict"}
    assert ": nvme (v1), rpcrdma (no version); it looks for" in value["hooks"]["message"]


@pytest.mark.parametrize(("texts", "offers", "asks"), [(OLD, "v2", "v1"), (NEW, "v1", "v2")])
def test_another_version_of_the_interface_means_compat_without_a_word(
    root: Root, texts: list[str], offers: str, asks: str
) -> None:
    root.nvidia_fs(texts=texts)
    root.module(NVME, "nvme", exports=pair(f"nvme_{offers}"))
    value = findings_by_id(root)
    assert value["hook-abi"]["severity"] == "warning"
    assert f"speaks {offers} with nvidia-fs, which looks for {asks}" in value["hook-abi"]["message"]
    assert findings_by_id(root, "nvme")["hook-abi"]["severity"] == "error"
    assert findings_by_id(root, "rpcrdma")["hook-abi"]["severity"] == "warning"


def test_a_driver_that_speaks_both(root: Root) -> None:
    root.module(NVME, "nvme", exports={**pair("nvme_v1"), **pair("nvme_v2")})
    assert set(findings_by_id(root, "nvme")) == {"hooks", "verdict"}


def test_half_a_pair_does_not_count(root: Root) -> None:
    root.module(NVME, "nvme", exports={"nvme_v1_register_nvfs_dma_ops": (7, True)})
    value = findings_by_id(root, "nvme")
    assert "only one of the two symbols for nvidia-fs (v1)" in value["hook-half"]["message"]
    assert "with symbols for nvidia-fs: none" in value["hooks"]["message"]


def test_symbols_that_are_not_gpl_only_are_not_found_from_6_6_on(root: Root, tmp_path: Path) -> None:
    root.module(NVME, "nvme", exports=pair("nvme_v1", gpl=False))
    assert "EXPORT_SYMBOL_GPL" in findings_by_id(root, "nvme")["hook-gpl"]["hint"]
    older = Root(tmp_path / "older", "6.1.0-50-amd64", "6.1.0-50-amd64 SMP preempt mod_unload modversions ")
    older.nvidia()
    older.nvidia_fs(texts=OLD)
    older.module(NVME, "nvme", exports=pair("nvme_v1", gpl=False))
    assert "hook-gpl" not in findings_by_id(older, "nvme")


def test_the_driver_that_would_be_loaded_counts_not_what_the_kernel_came_with(root: Root) -> None:
    root.module("kernel/drivers/nvme/host/nvme.ko", "nvme", info=[("intree", "Y")], exports=pair("nvme_v1"))
    assert "hook-missing" not in findings_by_id(root, "nvme")
    root.module(NVME, "nvme")
    assert "hook-missing" in findings_by_id(root, "nvme")


def test_a_driver_built_into_the_kernel(root: Root) -> None:
    symvers = root.path / f"usr/src/linux-headers-{RELEASE}/Module.symvers"
    lines = "".join(f"0x00000007\t{name}\tvmlinux\tEXPORT_SYMBOL_GPL\t\n" for name in pair("nvme_v1"))
    symvers.write_text(symvers.read_text() + lines)
    assert "hook-missing" not in findings_by_id(root, "nvme")


def test_nothing_is_known_of_an_unreadable_driver(root: Root) -> None:
    root.module(NVME, "nvme", exports=pair("nvme_v1")).write_bytes(b"\x7fELF")
    results = findings_by_id(root, "nvme")
    assert results["verdict"] == {"ok": "None"}
    assert "hook-missing" not in results
    assert "nvme (cannot be read)" in results["hooks"]["message"]
    assert "nvme.ko: is truncated" in results["input-unknown"]["message"]


@pytest.mark.parametrize("release", ["6.17.0-1026-nvidia", "6.17.0-1026-nvidia-64k"])
def test_canonicals_nvidia_kernel_lets_nvidia_fs_in_by_its_own_nvme(tmp_path: Path, release: str) -> None:
    """On either page size; where another nvme takes its place, that one goes."""
    root = Root(tmp_path, release, f"{release} SMP preempt mod_unload modversions aarch64", machine=183)
    root.nvidia()
    root.nvidia_fs(texts=OLD)
    root.module("kernel/drivers/nvme/host/nvme.ko", "nvme", info=[("intree", "Y")], exports=pair("nvme_v1"))
    value = findings_by_id(root, "nvme")
    assert (set(value), value["verdict"]["ok"]) == ({"hooks", "verdict"}, "True")
    root.module(NVME, "nvme")
    assert "remove the one that takes its place" in findings_by_id(root, "nvme")["hook-missing"]["hint"]
