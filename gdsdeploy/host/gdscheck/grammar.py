"""The lines of a report, as libcufile 1.4.0 to 1.20.0 write them, whether gdscheck prints or a log holds them."""

from __future__ import annotations

import re
from typing import Dict, Optional, Tuple

#: Headings in their order, and the table that each begins; what comes before the first is the header.
SECTIONS = {
    "ENVIRONMENT:": "environment",
    "DRIVER CONFIGURATION:": "storage",
    "CUFILE CONFIGURATION:": "config",
    "GPU INFO:": "gpus",
    "PLATFORM INFO:": "platform",
}
HEADINGS = tuple(SECTIONS)
END = "Platform verification succeeded"
FAILED = "Platform verification error"
#: Storage rows that every recorded release prints; where one is missing, another may hold its value.
ALWAYS = ("NVMe", "NVMeOF", "SCSI", "ScaleFlux CSD", "NVMesh", "IBM Spectrum Scale", "NFS", "BeeGFS", "WekaFS")
RDMA_ROW = "Userspace RDMA"
P2PDMA_ROW = "NVMe P2PDMA"
#: Rows of some releases: label → first and last release (major.minor) that prints it.  Where the header names the
#: release, a row that it should print and that is not there is a hole.
SINCE: Dict[str, Tuple[Tuple[int, int], Tuple[int, int]]] = {
    P2PDMA_ROW: ((1, 13), (1, 15)),
    "ScaTeFS": ((1, 14), (1, 99)),
    "VIRTIOFS": ((1, 16), (1, 99)),
    "PanFS": ((1, 19), (1, 99)),
}
#: Rows that a release leaves out of which no output was recorded: label → such releases (1.7.1 has no row for BeeGFS).
UNSURE: Dict[str, Tuple[Tuple[int, int], Tuple[int, int]]] = {"BeeGFS": ((1, 5), (1, 8))}
#: One of these names Lustre; which one is printed depends on its flavour.
LUSTRE = ("DDN EXAScaler", "FSx Lustre", "Lustre")
LABELS = frozenset((*ALWAYS, *SINCE, *LUSTRE, RDMA_ROW))
#: The first release whose storage rows are lists of paths.
LISTS = (1, 16)

#: The library gave up, or the program did not even start; the line before or after says why.
ERRORS = re.compile(
    r"Platform verification (error|failed)|cuFile initialization failed|cuFile configuration load error|failed to load"
    r"|error reading config|parsing error|json type mismatch|cuda devices probe failed|No cuda devices|Init Failed"
    r"|not supported on current platform|platform is not supported|driver (?:is )?not loaded|version mismatch"
    r"|missing cuda symbols|found invalid|^Invalid argument$|^invalid |^(posix|should be) .*(error|multiple)"
    r"|error while loading shared libraries|dlopen error|CUDA Driver API error|version read error|Cuda version not Supp"
    r"|^terminate called|what\(\): |Segmentation fault|^Aborted|core dumped|out of UInt range"
    r"|gdscheck\S*: (command )?not found|gdscheck\S*: (No such file or directory|Permission denied)"
    r"|driver or file access error"
)
#: Without CUDA or a GPU releases from 1.16 on serve host memory only: their reports end with the configuration.
SYSMEM = re.compile(r"use this library only for sysmem")
#: The same in a log, where it is a warning; up to 1.15 it is an error.
SYSMEM_LOGGED = re.compile(r"use this library only for sysmem|missing cuda symbols while dynamic loading")
#: The last row of the configuration since 1.16, and what a log says when the library is open.
LAST_SETTING = "block.nvmeof.use_pci_p2pdma"
OPENED = "CUFile initialization complete"
#: Lines that come between rows and mean nothing for them.
STRAYS = re.compile(
    r"Using legacy GPU bounce buffer configuration|Error Loading numa symbols|warn: error opening log file"
    r"|Total GPUS supported|Total GPUs: \d|WARN: GDS is not guaranteed|Found ACS enabled for switch"
    r"|No GPU found in the system|IOMMU enabled on the system for DGX platform"
    r"|version check ok|driver open invoked|Inconsistent configured array sizes"
    # One for each key, where cufile.json lacks the section that it belongs to.
    r"|^cannot find json field: "
)
#: What betrays a line as a damaged row.
SUSPECT = re.compile(
    r"upport|compat|nvfs|p2pdma|dmabuf|peermem| : |==|^--|INFO:|CONFIGURATION|ENVIRONMENT|erification|GPU ind"
)
#: Words of a storage row since 1.16; all but ``compat`` are direct.
PATHS = ("p2pdma", "nvfs", "dmabuf", "nvidia_peermem", "c2c", "compat")
SUPPORTED, UNSUPPORTED, DISABLED = "Supported", "Unsupported", "Unsupported (Disabled)"
OLD_VALUES = {SUPPORTED: True, UNSUPPORTED: False, DISABLED: False}

HEADER = re.compile(
    r"(?:GDS release version\s*:\s*(?P<release>[0-9.]+)"
    r"|(?:nvidia_fs version\s*:\s*(?P<nvfs>[0-9.]+)\s*)?"
    r"(?:libcufile version\s*:\s*(?P<libcufile>[0-9.]+)|nvidia_fs minimum version\s*:\s*(?P<minimum>[0-9.]+))"
    r"|Platform\s*:\s*(?P<platform>\S+))$"
)
VARIABLE = re.compile(r"([A-Z][A-Z0-9_]+)\s*:\s?(.*)$")
ROW = re.compile(r"([A-Za-z][A-Za-z0-9 ]*?)\s*:\s+(.+)$")
RDMA = re.compile(r"--(\S.*?)\s*:\s+(.+)$")
SETTING = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+)\s*:\s?(.*)$")
#: A row of ``fs.….mount_table``: mount point and source, then addresses.
MOUNT = re.compile(r"(/\S*(?: \S+)*?)\s+dev_id \d+\s*:\s*([0-9A-Fa-f.: ]*)$")
GPU = re.compile(
    r"GPU index (?P<index>\d+) (?P<name>.+?) bar:(?P<bar>\d+) bar size \(MiB\):(?P<mib>\d+)"
    r"(?: (?P<mode>supports GDS|compat mode))?, IOMMU State: (?P<iommu>Disabled|Pass-through or Enabled)$"
)
NO_GPU = re.compile(
    r"GPU (?:index )?(?P<index>\d+) (?P<name>.+?)"
    r"(?:: (?P<why>Model Not Supported)| NO GDS SUPPORT - Reason: (?P<reason>.+)"
    r"|:? (?P<old>does not have supported .*))$"
)
FACT = re.compile(r"([A-Z][A-Za-z ]+?)\s*:\s*(.+)$")
LOGGED_FACT = re.compile(r"(IOMMU|Nvidia Driver Info Status|Cuda Driver Version Installed|Arch|Platform)\s*:\s*(.+)$")
LOG = re.compile(r"\s*\d\d-\d\d-\d{4} [0-9:]+ \[pid=(?P<pid>\d+) tid=\d+\] (?P<level>[A-Z]+)\s+\S+:\d+ (?P<text>.*)$")
#: How a recording ends that keeps the exit status.
STATUS = re.compile(r"(?:rc|exit|exit[ _-]?(?:status|code))\s*[=:]?\s*(-?\d{1,5})$", re.IGNORECASE)
RULER = re.compile(r"=+$")


def offers(value: str) -> Optional[Tuple[bool, Tuple[str, ...]]]:
    """(is a direct path claimed, paths) of a storage row's value; None if it is none."""
    if value in OLD_VALUES:
        return OLD_VALUES[value], ()
    paths = tuple(name.strip() for name in value.split(","))
    return (any(name != "compat" for name in paths), paths) if all(name in PATHS for name in paths) else None


def version(words: str) -> Tuple[int, ...]:
    """``1.20.0.107`` as numbers; empty for anything else."""
    return tuple(int(part) for part in words.split(".")) if re.match(r"\d{1,6}(\.\d{1,6})*$", words) else ()


def rows_of(release: Tuple[int, ...], labels: Tuple[str, ...]) -> bool:
    """Whether these are all the rows that this release prints; an unknown release (empty) has at least ALWAYS."""
    series = release[:2]
    missing = [label for label in (*ALWAYS, RDMA_ROW) if label not in labels]
    if not all(label in UNSURE and UNSURE[label][0] <= series <= UNSURE[label][1] for label in missing):
        return False
    if not any(label in labels for label in LUSTRE):
        return False
    return all(label in labels for label, (first, last) in SINCE.items() if first <= series <= last)
