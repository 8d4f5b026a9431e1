"""The NVIDIA driver, nvidia-fs and nvidia-peermem as they run, and the host's peer-to-peer mechanisms.

Of a module: whether it is loaded, which file modprobe would load, and whether the two are the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

from ..kmod.module import build_id_of, files_to_load, substitute_of
from ..paths import (
    BUILD_ID,
    HOLDERS,
    LEGACY_SERVICE,
    MODPROBE,
    NVFS,
    NVFS_DEVICE,
    NVIDIA,
    PEERS,
    SERVICE_FOLDERS,
    SOURCES,
)
from .document import Document
from .kernel import loaded_modules
from .unknown import Maybe, Unknown, decided, if_present, require, when_known, why_not, with_default


@dataclass(frozen=True)
class ModuleFile:
    """A module file on disk.  Texts are empty where it says nothing."""

    path: str
    #: in-kernel name
    name: str
    version: str
    srcversion: str
    #: in hex, without the header of its note; earlier recordings have the header
    build_id: str
    license: str
    #: kernel release that it was built for: first word of its vermagic
    kernel: str
    depends: Tuple[str, ...]
    #: what gdsdeploy's build recorded: ``driver``, ``flavour``, ``tree``, ``source``
    provenance: Mapping[str, str] = field(default_factory=dict)
    #: symbol → CRC or None; those of interest
    imports: Mapping[str, Optional[int]] = field(default_factory=dict)
    exports: Mapping[str, Optional[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ModuleFacts:
    """A module by its in-kernel name."""

    name: str
    loaded: Maybe[bool]
    #: of the loaded one; empty where it has none
    version: Maybe[str]
    srcversion: Maybe[str]
    build_id: Maybe[str]
    #: the file that modprobe would load now, and so at the next boot of this kernel; None: it finds none
    file: Maybe[Optional[ModuleFile]]

    def is_its_file(self) -> Maybe[bool]:
        """Whether the loaded module is the file that modprobe would load: the build id decides, else srcversion.

        srcversion says less: it does not change with the driver that a module was built against.
        """
        if isinstance(self.file, Unknown):
            return self.file
        if self.file is None:
            return False
        for loaded, on_disk in ((self.build_id, self.file.build_id), (self.srcversion, self.file.srcversion)):
            if isinstance(loaded, Unknown):
                return loaded
            if loaded and on_disk:
                return loaded == on_disk
        return Unknown(f"neither a build id nor a srcversion of the loaded {self.name} can be compared")


def module_facts(document: Document, name: str) -> ModuleFacts:
    """``name`` as modprobe is asked for it, e.g. ``nvidia-fs``."""
    kernel_name = name.replace("-", "_")
    folder = "/sys/module/" + kernel_name
    return ModuleFacts(
        name=kernel_name,
        loaded=_loaded(document, kernel_name),
        version=with_default(document.line(folder + "/version"), ""),
        srcversion=with_default(document.line(folder + "/srcversion"), ""),
        build_id=when_known(with_default(document.binary(folder + BUILD_ID), ""), build_id_of),
        file=_file(document, name),
    )


def _loaded(document: Document, name: str) -> Maybe[bool]:
    text = document.text("/proc/modules")
    if isinstance(text, str) and any(line.split()[:1] == [name] for line in text.splitlines()):
        return True
    # A module that is built into the kernel is in no list, but has its folder in /sys/module.
    version = document.text("/sys/module/" + name + "/version")
    if isinstance(version, str):
        return True
    if isinstance(text, Unknown):
        return text
    return False if version is None else version


@decided
def _file(document: Document, name: str) -> Maybe[Optional[ModuleFile]]:
    run = require(document.ran(MODPROBE + name))
    replacement = substitute_of(run.stdout)
    if replacement:
        run = require(document.ran(MODPROBE + replacement))
    if "not found in directory" in run.stderr:
        return None
    files = files_to_load(run.stdout)
    if run.status != 0 or not files:
        output = run.stderr.strip() or run.stdout.strip() or "nothing"
        return Unknown(f"modprobe --show-depends {name} says: {output}")
    return when_known(document.module(files[-1]), lambda record: _module_file(files[-1], record))


#: Texts in a module's record that are fields of ModuleFile, and the other keys with their types.
_TEXTS = ("name", "version", "srcversion", "build_id", "license")
_SHAPE = {
    **dict.fromkeys((*_TEXTS, "vermagic"), str),
    **dict.fromkeys(("provenance", "imports", "exports"), dict),
    "depends": list,
}


def _module_file(path: str, record: Mapping[str, Any]) -> Maybe[Optional[ModuleFile]]:
    """The record as a module file; Unknown if a key is missing."""
    for key, kind in _SHAPE.items():
        if not isinstance(record.get(key), kind):
            return Unknown(f"the record of {path} has no {key}")
    return ModuleFile(
        path=path,
        **{**{key: record[key] for key in _TEXTS}, "build_id": build_id_of(record["build_id"])},
        kernel=(record["vermagic"].split() or [""])[0],
        depends=tuple(str(value) for value in record["depends"]),
        provenance={key: str(value) for key, value in record["provenance"].items()},
        imports={key: _crc(value) for key, value in record["imports"].items()},
        exports={
            key: _crc(row[0] if isinstance(row, list) and row else None) for key, row in record["exports"].items()
        },
    )


def _crc(value: Any) -> Optional[int]:
    return value if isinstance(value, int) else None


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


KALLSYMS = "/proc/kallsyms"
#: The RDMA core's end of PeerDirect, and of DMA-BUF (the latter since Linux 5.12).
PEER_MEMORY, DMABUF = "ib_register_peer_memory_client", "ib_umem_dmabuf_get"
#: End of the name of the function by which an adapter's driver takes DMA-BUF memory.
ADAPTER_DMABUF = "reg_user_mr_dmabuf"


@dataclass(frozen=True)
class P2pFacts:
    """``clients``: those that registered with PeerDirect; None: the kernel shows no list of them."""

    clients: Maybe[Optional[Tuple[str, ...]]]
    #: modules that use the RDMA core, by in-kernel name
    rdma_users: Maybe[Tuple[str, ...]]
    #: nv_peer_mem, the module before nvidia-peermem, is loaded
    legacy_loaded: Maybe[bool]
    #: files of its service
    legacy_services: Maybe[Tuple[str, ...]]
    #: PeerDirect in the RDMA core: the module that has it; None: none
    peer_memory: Maybe[Optional[str]]
    #: DMA-BUF in the RDMA core, likewise
    rdma_dmabuf: Maybe[Optional[str]]
    #: adapters' drivers that take DMA-BUF memory
    adapters_dmabuf: Maybe[Tuple[str, ...]]


def p2p_facts(document: Document) -> P2pFacts:
    modules = loaded_modules(document)
    holders = _paths(document, HOLDERS)
    services = _paths(document, SERVICE_FOLDERS, "/" + LEGACY_SERVICE)
    return P2pFacts(
        clients=document.names(PEERS),
        rdma_users=when_known(holders, lambda paths: tuple(sorted({path.rpartition("/")[2] for path in paths}))),
        legacy_loaded=when_known(modules, lambda names: "nv_peer_mem" in names),
        # gdsdeploy keeps the service from starting with a folder of its name.
        legacy_services=when_known(services, lambda paths: tuple(path for path in paths if not path.endswith(".d"))),
        peer_memory=_exporter(document, PEER_MEMORY),
        rdma_dmabuf=_exporter(document, DMABUF),
        adapters_dmabuf=when_known(
            _symbols(document, ADAPTER_DMABUF),
            lambda rows: tuple(sorted({module for _, module in rows if module and not module.startswith("ib_")})),
        ),
    )


@decided
def _paths(document: Document, folders: Tuple[str, ...], pattern: str = "") -> Maybe[Tuple[str, ...]]:
    """The entries of all folders; Unknown if one of them is."""
    listings = [(folder, require(with_default(document.names(folder + pattern), ()))) for folder in folders]
    return tuple(f"{folder}/{name}" for folder, names in listings for name in names)


def _symbols(document: Document, word: str) -> Maybe[Tuple[Tuple[str, str], ...]]:
    """(name, module) of the symbols that end in ``word``."""
    lines = document.lines(KALLSYMS)
    if not isinstance(lines, tuple):
        return why_not(lines, "there is no " + KALLSYMS)
    key = word.replace("ib_register_", "register_") if word == PEER_MEMORY else word
    if not document.looked_for(KALLSYMS, key):
        return Unknown(f"{word} was not looked for in {KALLSYMS}")
    rows = [line.split() for line in lines]
    return tuple(
        (row[2], row[3].strip("[]") if len(row) > 3 else "") for row in rows if len(row) > 2 and row[2].endswith(word)
    )


@decided
def _exporter(document: Document, name: str) -> Maybe[Optional[str]]:
    symbols = require(_symbols(document, name))
    return next((module or "the kernel itself" for symbol, module in symbols if symbol == name), None)
