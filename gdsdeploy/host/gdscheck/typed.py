"""Rows as typed values."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import grammar
from .report import Gpu, Report, Row

#: States of a storage row.
DIRECT, COMPAT, UNSUPPORTED, DISABLED, UNKNOWN = "direct", "compat", "unsupported", "disabled", "unknown"
_LISTS = ("slab_size_kb", "slab_count", "rdma_dynamic_routing_order", "rdma_dev_addr_list")
#: Booleans that are printed as 0 and 1.
_NUMBERED = ("properties.rdma_dynamic_routing",)
_ARCH = re.compile(r"(?:(?P<product>.*), Arch: )?(?P<arch>\w+)\((?P<kernel>[^)]*)\)$")
_COUNTS = re.compile(r"Up: (\d{1,18}) Down: (\d{1,18})$")


def setting(name: str, value: str) -> Any:
    """A value of the effective configuration: bool, int, list of either, None for ``none``, else str.

    A mount table is a map of mount point (and source) to addresses.
    """
    if name.endswith(".mount_table"):
        rows = (row.partition(": ") for row in value.split("; ") if row)
        return {mount: addresses.split() for mount, _, addresses in rows}
    if name.endswith(_LISTS):
        return [_scalar(word) for word in value.split()]
    if name in _NUMBERED and value in ("0", "1"):
        return value == "1"
    return _scalar(value)


def _scalar(value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    if re.match(r"-?\d{1,20}$", value):
        return int(value)
    return None if value in ("none", "") else value


def storage(report: Report) -> Dict[str, Dict[str, Any]]:
    """Label → ``{"supported", "paths", "state", "value"}``, the same for all releases.

    ``supported``: whether a direct path is offered (None: not shown).  ``paths``: those that I/O can take.
    Releases up to 1.15 print no paths: they follow from the row (nvidia-fs, unless its label says otherwise) and from
    whether the effective configuration allows compat mode.
    """
    return {label: _storage_row(label, row, report) for label, row in report.storage.items()}


def _storage_row(label: str, row: Row, report: Report) -> Dict[str, Any]:
    paths = list(row.paths) or _old_paths(label, row, report)
    if row.supported is None:
        state = UNKNOWN
    elif row.supported:
        state = DIRECT
    elif row.value == grammar.DISABLED:
        state = DISABLED
    else:
        state = COMPAT if "compat" in paths else UNSUPPORTED
    return {"supported": row.supported, "paths": paths, "state": state, "value": row.value}


def _old_paths(label: str, row: Row, report: Report) -> List[str]:
    direct: List[str] = []
    if row.value == grammar.SUPPORTED:
        if label == grammar.P2PDMA_ROW:
            direct = ["p2pdma"]
        elif label in (grammar.RDMA_ROW, "WekaFS"):
            direct = _rdma_paths(report.rdma)
        else:
            direct = ["nvfs"]
    is_file = label not in (grammar.P2PDMA_ROW, grammar.RDMA_ROW)
    allowed = is_file and report.config.get("properties.use_compat_mode") == "true"
    return direct + (["compat"] if allowed else [])


def _rdma_paths(rows: Mapping[str, str]) -> List[str]:
    if rows.get("DmaBuf support") == "Enabled":
        return ["dmabuf"]
    return ["nvidia_peermem"] if rows.get("Mellanox PeerDirect") == "Enabled" else []


def rdma(report: Report) -> Dict[str, Any]:
    """The block below "Userspace RDMA"; None: not printed."""
    rows = report.rdma
    userspace = report.storage.get(grammar.RDMA_ROW)
    old, new = _counts(rows.get("rdma_device_status", "")), _counts(rows.get("rdma_dev_addr_list_status", ""))
    up, down = new or old or (None, None)
    return {
        "supported": userspace.supported if userspace else None,
        "peerdirect": _word(rows, "Mellanox PeerDirect", "Enabled"),
        "dmabuf": _word(rows, "DmaBuf support", "Enabled"),
        "library": _word(rows, "rdma library", "Loaded"),
        "devices": _word(rows, "rdma devices", "Configured"),
        "up": up,
        "down": down,
        "multipath": _word(rows, "rdma_multipath", "Enabled"),
        "health_monitor": rows.get("rdma_health_monitor"),
        "dev_addr_list_status": {"up": new[0], "down": new[1]} if new else None,
        "rows": dict(rows),
    }


def _word(rows: Mapping[str, str], name: str, good: str) -> Optional[bool]:
    value = rows.get(name)
    return None if value is None else value.split(" (")[0] == good


def _counts(value: str) -> Optional[Tuple[int, int]]:
    counts = _COUNTS.match(value)
    return (int(counts[1]), int(counts[2])) if counts else None


def gpu(row: Gpu, report: Report) -> Dict[str, Any]:
    """One GPU; ``supports_gds`` is None if an incomplete report claims it."""
    return {
        "index": row.index,
        "name": row.name,
        "supports_gds": None if row.gds and not report.complete else row.gds,
        "bar": row.bar,
        "bar_mib": row.bar_mib,
        "iommu": row.iommu.lower() or None,
        "reason": row.reason or None,
    }


def platform(report: Report) -> Dict[str, Any]:
    """The last block; None: not printed.  ``driver``: ``open``, ``proprietary`` or ``unknown``."""
    rows = report.platform
    iommu, status = rows.get("IOMMU"), rows.get("Nvidia Driver Info Status")
    cuda = rows.get("Cuda Driver Version Installed", "")
    # Where the firmware names the product, the name and a comma come before the architecture.
    whole = rows.get("Platform", "")
    arch = _ARCH.match(whole if ", Arch: " in whole else rows.get("Arch", ""))
    return {
        "iommu": iommu.lower() if iommu else None,
        "iommu_enabled": None if iommu is None else iommu != "disabled",
        "driver_status": status,
        "driver": _flavour(status),
        "cuda_driver_version": int(cuda) if re.match(r"\d{1,9}$", cuda) else None,
        **{name: arch[name] if arch else None for name in ("arch", "kernel", "product")},
    }


def _flavour(status: Optional[str]) -> Optional[str]:
    if status is None:
        return None
    if status.startswith("Supported("):
        return "open"
    return "proprietary" if status.startswith("Supported only on") else "unknown"
