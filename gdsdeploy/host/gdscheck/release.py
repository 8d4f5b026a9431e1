"""Which release of libcufile a report comes from, when its header doesn't name the release.

Up to 1.11 the header names it only while nvidia-fs is loaded, and in no release while the configuration forces compat
mode.  The rows of each release differ, so present and absent rows are bounds.  Seen in the output of 1.4.0, 1.9.1,
1.11.1, 1.13.1, 1.14.1, 1.15.1, 1.16.1, 1.17.1, 1.18.1, 1.19.1 and 1.20.0; a change between two of these may have come
in any release between.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

from .grammar import OLD_VALUES, RDMA_ROW
from .report import Report

Version = Tuple[int, int]

OLDEST, NEWEST = (1, 4), (1, 20)
#: Where the release comes from.
HEADER, ROWS = "header", "rows"

#: Section → name → (first release that can print it, last that may omit it), of rows that were added.
_ADDED: Dict[str, Dict[str, Tuple[Version, Version]]] = {
    "storage": {
        "ScaTeFS": ((1, 14), (1, 13)),
        "VIRTIOFS": ((1, 16), (1, 15)),
        "PanFS": ((1, 19), (1, 18)),
    },
    "rdma": {
        "rdma_multipath": ((1, 18), (1, 17)),
        "rdma_dev_addr_list_status": ((1, 18), (1, 17)),
    },
    "config": {
        "execution.max_io_threads": ((1, 5), (1, 8)),
        "properties.use_pci_p2pdma": ((1, 12), (1, 12)),
        "properties.per_buffer_cache_size_kb": ((1, 14), (1, 13)),
        "block.nvme.use_pci_p2pdma": ((1, 16), (1, 15)),
        "miscellaneous.enable_static_routing": ((1, 17), (1, 16)),
        "properties.rdma_multipath_enabled": ((1, 18), (1, 17)),
        "sparse.p2p_compat_enable": ((1, 19), (1, 18)),
        "miscellaneous.enable_static_config": ((1, 20), (1, 19)),
    },
    "platform": {"Nvidia Driver Info Status": ((1, 5), (1, 8))},
}
#: The same for rows that were removed: (last release that can print it, first that may omit it).
_REMOVED: Dict[str, Dict[str, Tuple[Version, Version]]] = {
    "storage": {"NVMe P2PDMA": ((1, 15), (1, 4))},
    "rdma": {"rdma_device_status": ((1, 17), (1, 18))},
    "config": {"profile.nvtx": ((1, 15), (1, 16))},
    "platform": {},
}


def release_of(report: Report) -> Tuple[Optional[str], Optional[str]]:
    """(release, where from): ``("1.9.1.3", "header")``, or bounds as ``("1.5-1.12", "rows")``; None: unknown."""
    if report.release:
        return report.release, HEADER
    low, high = _bounds(report)
    if (low, high) == (OLDEST, NEWEST) or low > high:
        return None, None
    first, last = ("{}.{}".format(*version) for version in (low, high))
    return (first if first == last else f"{first}-{last}"), ROWS


def _bounds(report: Report) -> Tuple[Version, Version]:
    lows, highs = [OLDEST], [NEWEST]
    tables: Dict[str, Mapping[str, object]] = {
        "storage": report.storage,
        "rdma": report.rdma,
        "config": report.config,
        "platform": report.platform,
    }
    for table, rows in tables.items():
        ended = ("storage" if table == "rdma" else table) in report.sections
        for name, (first, before) in _ADDED[table].items():
            if name in rows:
                lows.append(first)
            elif ended:
                highs.append(before)
        for name, (last, after) in _REMOVED[table].items():
            if name in rows:
                highs.append(last)
            elif ended:
                lows.append(after)
    values = {row.value for label, row in report.storage.items() if label != RDMA_ROW}
    if "storage" in report.sections and any(value not in OLD_VALUES for value in values):
        lows.append((1, 16))
    elif "storage" in report.sections and "Supported" in values:
        # With compat mode disallowed, newer releases say Unsupported as well.
        highs.append((1, 15))
    if not report.nvidia_fs_minimum and report.config.get("properties.force_compat_mode") == "false":
        # From 1.13 the header also comes without nvidia-fs, except with forced compat mode.
        highs.append((1, 12))
    # Words of a refusal that changed: a bad configuration is an invalid property since 1.19.
    if not report.log and "Invalid argument" in report.errors:
        highs.append((1, 18))
    if not report.log and "invalid property" in report.errors:
        lows.append((1, 19))
    if any("driver is not loaded. Set allow_compat_mode" in line for line in report.errors):
        lows.append((1, 5))
    return max(lows), min(highs)
