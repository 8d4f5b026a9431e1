"""Which release of libcufile a report comes from, when it does not say so.

Up to 1.11 the header names the release only while nvidia-fs is loaded, and in no release while the configuration forces
compat mode.  What is printed otherwise grew from release to
release, so that its presence and absence bound it.  Seen in the output of 1.4.0, 1.9.1, 1.11.1, 1.13.1, 1.14.1, 1.15.1,
1.16.1, 1.17.1, 1.18.1, 1.19.1 and 1.20.0; a change between two of these is taken to have come in any release between.
"""

from __future__ import annotations

from typing import Dict, Optional, Tuple

from .grammar import OLD_VALUES, RDMA_ROW
from .report import Report

Version = Tuple[int, int]

OLDEST, NEWEST = (1, 4), (1, 20)
#: What the header tells, and where it is found.
HEADER, ROWS = "header", "rows"

#: Section → name → (first release that can print it, last that need not), of what came.
_CAME: Dict[str, Dict[str, Tuple[Version, Version]]] = {
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
#: The same of what went: name → (last release that can print it, first that need not).
_WENT: Dict[str, Dict[str, Tuple[Version, Version]]] = {
    "storage": {"NVMe P2PDMA": ((1, 15), (1, 4))},
    "rdma": {"rdma_device_status": ((1, 17), (1, 18))},
    "config": {"profile.nvtx": ((1, 15), (1, 16))},
    "platform": {},
}


def release_of(report: Report) -> Tuple[Optional[str], Optional[str]]:
    """(release, where from): ``("1.9.1.3", "header")``, or bounds as ``("1.5-1.12", "rows")``; None: unknown."""
    if report.release:
        return report.release, HEADER
    low, high = _by_errors(report, *_bounds(report))
    if (low, high) == (OLDEST, NEWEST) or low > high:
        return None, None
    return (_words(low) if low == high else f"{_words(low)}-{_words(high)}"), ROWS


def _words(version: Version) -> str:
    return "{}.{}".format(*version)


def _bounds(report: Report) -> Tuple[Version, Version]:
    low, high = OLDEST, NEWEST
    tables = {
        "storage": set(report.storage),
        "rdma": set(report.rdma),
        "config": set(report.config),
        "platform": set(report.platform),
    }
    for table, names in tables.items():
        ended = ("storage" if table == "rdma" else table) in report.sections
        for name, (first, before) in _CAME[table].items():
            if name in names:
                low = max(low, first)
            elif ended:
                high = min(high, before)
        for name, (last, after) in _WENT[table].items():
            if name in names:
                high = min(high, last)
            elif ended:
                low = max(low, after)
    if "storage" in report.sections:
        low, high = _by_words(report, low, high)
    if not report.nvidia_fs_minimum and report.config.get("properties.force_compat_mode") == "false":
        # From 1.13 the header comes without nvidia-fs as well, but for forced compat mode.
        high = min(high, (1, 12))
    return low, high


def _by_words(report: Report, low: Version, high: Version) -> Tuple[Version, Version]:
    values = {row.value for label, row in report.storage.items() if label != RDMA_ROW}
    if any(value not in OLD_VALUES for value in values):
        return max(low, (1, 16)), high
    # With compat mode disallowed, newer releases say Unsupported as well.
    return low, min(high, (1, 15)) if "Supported" in values else high


def _by_errors(report: Report, low: Version, high: Version) -> Tuple[Version, Version]:
    """Words of a refusal that changed: a bad configuration is an invalid property since 1.19."""
    if not report.log:
        if "Invalid argument" in report.errors:
            high = min(high, (1, 18))
        if "invalid property" in report.errors:
            low = max(low, (1, 19))
    if any("driver is not loaded. Set allow_compat_mode" in line for line in report.errors):
        low = max(low, (1, 5))
    return low, high
