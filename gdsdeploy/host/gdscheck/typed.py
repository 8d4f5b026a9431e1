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
    """Label → ``{"supported", "paths", "state", "value"}``, alike for all releases.

    ``supported``: whether a direct path is offered (None: the report does not show it).  ``paths``: what I/O can take.
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
    """The block below "Userspace RDMA"; what is not printed is None."""
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
    found = _COUNTS.match(value)
    return (int(found.group(1)), int(found.group(2))) if found else None


def gpu(item: Gpu, report: Report) -> Dict[str, Any]:
    """One GPU; ``supports_gds`` is None where it is claimed by a report that is not whole."""
    supports: Optional[bool] = item.gds
    if item.gds and not report.complete:
        supports = None
    return {
        "index": item.index,
        "name": item.name,
        "supports_gds": supports,
        "bar": item.bar,
        "bar_mib": item.bar_mib,
        "iommu": item.iommu.lower() or None,
        "reason": item.reason or None,
    }


def platform(report: Report) -> Dict[str, Any]:
    """The last block; what is not printed is None.  ``driver``: ``open``, ``proprietary`` or ``unknown``."""
    rows = report.platform
    iommu = rows.get("IOMMU")
    status = rows.get("Nvidia Driver Info Status")
    cuda = rows.get("Cuda Driver Version Installed", "")
    # Before it come the product's name and a comma, where firmware tells it.
    arch = _ARCH.match(
        "{}, Arch: {}".format(*rows["Platform"].split(", Arch: ", 1)) if _joined(rows) else rows.get("Arch", "")
    )
    return {
        "iommu": iommu.lower() if iommu else None,
        "iommu_enabled": None if iommu is None else iommu != "disabled",
        "driver_status": status,
        "driver": _flavour(status),
        "cuda_driver_version": int(cuda) if re.match(r"\d{1,9}$", cuda) else None,
        "arch": arch.group("arch") if arch else None,
        "kernel": arch.group("kernel") if arch else None,
        "product": arch.group("product") if arch else None,
    }


def _joined(rows: Mapping[str, str]) -> bool:
    return ", Arch: " in rows.get("Platform", "")


def _flavour(status: Optional[str]) -> Optional[str]:
    if status is None:
        return None
    if status.startswith("Supported("):
        return "open"
    return "proprietary" if status.startswith("Supported only on") else "unknown"
