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
