"""The NVIDIA driver, nvidia-fs and nvidia-peermem as they run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

from ..paths import NVFS, NVFS_DEVICE, NVIDIA, PEERS, SOURCES
from .document import Document
from .modules import ModuleFacts, module_facts
from .unknown import Maybe, Unknown, if_present, when_known, why_not, with_default

OPEN, PROPRIETARY = "open", "proprietary"


@dataclass(frozen=True)
class DriverFacts:
    """The NVIDIA driver.  ``version`` and ``flavour`` are the running one's, None while none runs."""

    version: Maybe[Optional[str]]
    flavour: Maybe[Optional[str]]
    module: ModuleFacts
    #: the module's parameters as they are in effect
    params: Maybe[Optional[Mapping[str, str]]]
    #: PCI addresses of the GPUs that the driver runs
    gpus: Maybe[Tuple[str, ...]]
    #: GPU → its model, e.g. ``NVIDIA H100 80GB HBM3``; of those in ``gpus``
    models: Mapping[str, Maybe[str]]
    #: folders of driver sources on this host → ``sha256:…`` of the files that modules are compiled against
    trees: Mapping[str, Maybe[str]]
    #: names in /usr/src that begin with nvidia
    sources: Maybe[Tuple[str, ...]]
    #: the driver's registry, from ``RegistryDwords`` of ``params``: key in lower case → value; None: no driver runs
    registry: Maybe[Optional[Mapping[str, int]]]

    def tree_digest(self, path: str) -> Maybe[Optional[str]]:
        """The digest of the source tree at ``path``, None if it is not on this host."""
        if path in self.trees:
            return self.trees[path]
        folder, _, name = path.rpartition("/")
        if folder != SOURCES:
            return Unknown(f"{path} was not looked at")
        if isinstance(self.sources, Unknown):
            return self.sources
        return Unknown(f"{path} was not recognized as a driver's source") if name in self.sources else None


@dataclass(frozen=True)
class NvidiaFsFacts:
    """nvidia-fs; the facts that it shows are None while it isn't loaded."""

    module: ModuleFacts
    #: numbers of the /dev/nvidia-fs* that exist
    devices: Maybe[Tuple[int, ...]]
    #: how many of them there should be
    device_count: Maybe[Optional[int]]
    #: storage stacks that registered with it, by name
    registered: Maybe[Optional[Tuple[str, ...]]]
    #: PCI bridges with ACS enabled, which it names because they send peer traffic through the root complex
    bridges: Maybe[Optional[Tuple[str, ...]]]
    #: ``ok``, or why the first device cannot be opened; None: there is none
    opens: Maybe[Optional[str]]
    #: how often GPU memory was mapped through BAR1 and how often that failed
    mapped: Maybe[Optional[Tuple[int, int]]]


@dataclass(frozen=True)
class PeermemFacts:
    """nvidia-peermem and the kernel's other end of PeerDirect."""

    module: ModuleFacts
    #: built without OFED's peer memory symbols: it can never be loaded; None: there is no file
    stub: Maybe[Optional[bool]]
    #: clients that registered with the RDMA core
    peers: Maybe[Tuple[str, ...]]
    rdma_devices: Maybe[Tuple[str, ...]]


def driver_facts(document: Document) -> DriverFacts:
    text = document.text(NVIDIA + "/version")
    version = if_present(text, _version)
    gpus = with_default(document.names(NVIDIA + "/gpus"), ())
    params = if_present(document.text(NVIDIA + "/params"), _params)
    return DriverFacts(
        version=version,
        # libcufile decides by the same words.
        flavour=if_present(version, lambda _: OPEN if "Open Kernel Module" in str(text) else PROPRIETARY),
        module=module_facts(document, "nvidia"),
        params=params,
        gpus=gpus,
        models={name: _model(document, name) for name in gpus} if isinstance(gpus, tuple) else {},
        trees={path: document.tree(path) for path in document.paths("trees")},
        sources=with_default(document.names(SOURCES + "/nvidia*"), ()),
        registry=if_present(params, _registry),
    )


def _version(text: str) -> Maybe[str]:
    match = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return match.group(1) if match else Unknown(f"{NVIDIA}/version is not understood: {text[:200]!r}")


def _model(document: Document, name: str) -> Maybe[str]:
    path = NVIDIA + "/gpus/" + name + "/information"
    text = document.text(path)
    match = re.search(r"^Model:\s*(\S.*?)\s*$", text, re.MULTILINE) if isinstance(text, str) else None
    return match.group(1) if match else why_not(text, f"{path} names no model")


def _params(text: str) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip().strip('"') for key, separator, value in pairs if separator}


def _registry(params: Mapping[str, str]) -> Maybe[Mapping[str, int]]:
    words = params.get("RegistryDwords")
    return Unknown(f"{NVIDIA}/params has no RegistryDwords") if words is None else registry(words)


def registry(text: str) -> Mapping[str, int]:
    """``NVreg_RegistryDwords`` as the driver reads it: ``KEY=VALUE;…``, keys in any case, the last of each counts.

    The driver removes spaces, ignores what isn't one pair, and reads a value like C's strtoul with base 0.
    """
    pairs = [part.split("=") for part in text.replace(" ", "").split(";")]
    return {pair[0].lower(): _strtoul(pair[1]) for pair in pairs if len(pair) == 2 and all(pair)}


def _strtoul(text: str) -> int:
    """The number at the start of ``text``, 0 without one: hexadecimal after 0x, octal after 0, else decimal."""
    match = re.match(r"0[xX]([0-9a-fA-F]{1,16})|(0[0-7]{0,20})|([1-9][0-9]{0,18})", text)
    if not match:
        return 0
    hexadecimal, octal, decimal = match.groups()
    return int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)


def nvidia_fs_facts(document: Document) -> NvidiaFsFacts:
    return NvidiaFsFacts(
        module=module_facts(document, "nvidia-fs"),
        devices=when_known(with_default(document.names("/dev/nvidia*"), ()), _numbers),
        device_count=if_present(document.line(NVFS + "/devcount"), _number),
        registered=if_present(document.text(NVFS + "/modules"), _first_words),
        bridges=if_present(document.text(NVFS + "/bridges"), _first_words),
        opens=document.opens(NVFS_DEVICE),
        mapped=if_present(document.text(NVFS + "/stats"), _mapped),
    )


def _mapped(text: str) -> Tuple[int, int]:
    match = re.search(r"^Bar1-map\s*: n=\d+ ok=(\d{1,18}) err=(\d{1,18})", text, re.MULTILINE)
    # Releases that count nothing have no such line.
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def _numbers(names: Tuple[str, ...]) -> Tuple[int, ...]:
    matches = (re.match(r"nvidia-fs(\d{1,18})$", name) for name in names)
    return tuple(sorted(int(match.group(1)) for match in matches if match))


def _number(text: str) -> Maybe[Optional[int]]:
    return int(text) if re.match(r"\d{1,9}$", text) else Unknown(f"{NVFS}/devcount says {text!r}")


def _first_words(text: str) -> Tuple[str, ...]:
    return tuple(line.split(": ")[0].strip() for line in text.splitlines() if line.strip())


def peermem_facts(document: Document) -> PeermemFacts:
    module = module_facts(document, "nvidia-peermem")
    stub = if_present(module.file, lambda file: "ib_register_peer_memory_client" not in file.imports)
    peers, devices = (with_default(document.names(path), ()) for path in (PEERS, "/sys/class/infiniband"))
    return PeermemFacts(module, stub, peers, devices)
