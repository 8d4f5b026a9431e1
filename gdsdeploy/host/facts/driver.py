"""The NVIDIA driver, nvidia-fs and nvidia-peermem as they run.

Of a module: whether it is loaded, which file modprobe would load, and whether the two are the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Mapping, Optional, Tuple

from ..kmod.module import build_id_of, files_to_load, substitute_of
from ..paths import (
    BUILD_ID,
    MODPROBE,
    NVFS,
    NVFS_DEVICE,
    NVIDIA,
    PEERS,
    SOURCES,
)
from .document import Document, collected, group_of
from .unknown import Facts, Maybe, UndecidedError, fact, given, if_known, known, require


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


class ModuleFacts(Facts):
    """A module by its in-kernel name.  ``version`` and the like are the loaded one's; empty where it has none."""

    def __init__(self, document: Document, name: str) -> None:
        """``name`` as modprobe is asked for it, e.g. ``nvidia-fs``."""
        super().__init__(document)
        self._asked, self.name = name, name.replace("-", "_")
        self._folder = "/sys/module/" + self.name

    @fact
    def loaded(self) -> bool:
        modules = known(lambda: self.document.text("/proc/modules"))
        if isinstance(modules, str) and any(line.split()[:1] == [self.name] for line in modules.splitlines()):
            return True
        # A module that is built into the kernel is in no list, but has its folder in /sys/module.
        version = known(lambda: self.document.text(self._folder + "/version"))
        if isinstance(version, str):
            return True
        require(modules)
        return require(version) is not None

    @fact
    def version(self) -> str:
        return self.document.line(self._folder + "/version") or ""

    @fact
    def srcversion(self) -> str:
        return self.document.line(self._folder + "/srcversion") or ""

    @fact
    def build_id(self) -> str:
        return build_id_of(self.document.binary(self._folder + BUILD_ID) or "")

    @fact
    def file(self) -> Optional[ModuleFile]:
        """The file that modprobe would load now, and so at the next boot of this kernel; None: it finds none."""
        run = self.document.ran(MODPROBE + self._asked)
        replacement = substitute_of(run.stdout)
        if replacement:
            run = self.document.ran(MODPROBE + replacement)
        if "not found in directory" in run.stderr:
            return None
        files = files_to_load(run.stdout)
        if run.status != 0 or not files:
            output = run.stderr.strip() or run.stdout.strip() or "nothing"
            raise UndecidedError(f"modprobe --show-depends {self._asked} says: {output}")
        return _module_file(files[-1], self.document.module(files[-1]))

    def is_its_file(self) -> bool:
        """Whether the loaded module is the file that modprobe would load: the build id decides, else srcversion.

        srcversion says less: it does not change with the driver that a module was built against.
        """
        if self.file is None:
            return False
        for name in ("build_id", "srcversion"):
            loaded, on_disk = getattr(self, name), getattr(self.file, name)
            if loaded and on_disk:
                return bool(loaded == on_disk)
        raise UndecidedError(f"neither a build id nor a srcversion of the loaded {self.name} can be compared")


#: Texts in a module's record that are fields of ModuleFile, and the other keys with their types.
_TEXTS = ("name", "version", "srcversion", "build_id", "license")
_SHAPE = {
    **dict.fromkeys((*_TEXTS, "vermagic"), str),
    **dict.fromkeys(("provenance", "imports", "exports"), dict),
    "depends": list,
}


def _module_file(path: str, record: Mapping[str, Any]) -> ModuleFile:
    """The record as a module file; raises UndecidedError if a key is missing."""
    for key, kind in _SHAPE.items():
        if not isinstance(record.get(key), kind):
            raise UndecidedError(f"the record of {path} has no {key}")
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


class DriverFacts(Facts):
    """The NVIDIA driver.  What is the running one's is None while none runs."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.module = ModuleFacts(document, "nvidia")

    @fact
    def version(self) -> Optional[str]:
        text = self.document.text(NVIDIA + "/version")
        match = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text or "", re.MULTILINE)
        if text is not None and match is None:
            raise UndecidedError(f"{NVIDIA}/version is not understood: {text[:200]!r}")
        return match and match.group(1)

    @fact
    def flavour(self) -> Optional[str]:
        """By the words by which libcufile decides."""
        if self.version is None:
            return None
        return OPEN if "Open Kernel Module" in (self.document.text(NVIDIA + "/version") or "") else PROPRIETARY

    @fact
    def params(self) -> Optional[Mapping[str, str]]:
        """The module's parameters as they are in effect."""
        text = self.document.text(NVIDIA + "/params")
        return None if text is None else _params(text)

    #: PCI addresses of the GPUs that the driver runs
    gpus = given(lambda document: document.names(NVIDIA + "/gpus") or ())

    @fact
    def models(self) -> Mapping[str, Maybe[str]]:
        """GPU → its model, e.g. ``NVIDIA H100 80GB HBM3``; of those in ``gpus``."""
        return {name: known(partial(_model, self.document, name)) for name in if_known(lambda: self.gpus, ())}

    #: folders of driver sources on this host → ``sha256:…`` of the files that modules are compiled against
    trees = given(lambda document: {path: known(partial(document.tree, path)) for path in document.paths("trees")})
    #: names in /usr/src that begin with nvidia
    sources = given(lambda document: document.names(SOURCES + "/nvidia*") or ())

    @fact
    def registry(self) -> Optional[Mapping[str, int]]:
        """The driver's registry, from ``RegistryDwords`` of ``params``: key in lower case → value."""
        if self.params is None:
            return None
        return registry(collected(self.params.get("RegistryDwords"), f"{NVIDIA}/params has no RegistryDwords"))

    def tree_digest(self, path: str) -> Optional[str]:
        """The digest of the source tree at ``path``, None if it is not on this host."""
        if path in self.trees:
            return require(self.trees[path])
        folder, _, name = path.rpartition("/")
        if folder != SOURCES:
            raise UndecidedError(f"{path} was not looked at")
        if name in self.sources:
            raise UndecidedError(f"{path} was not recognized as a driver's source")
        return None


class NvidiaFsFacts(Facts):
    """nvidia-fs; the facts that it shows are None while it isn't loaded."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.module = ModuleFacts(document, "nvidia-fs")

    @fact
    def devices(self) -> Tuple[int, ...]:
        """Numbers of the /dev/nvidia-fs* that exist."""
        matches = (re.match(r"nvidia-fs(\d{1,18})$", name) for name in self.document.names("/dev/nvidia*") or ())
        return tuple(sorted(int(match.group(1)) for match in matches if match))

    @fact
    def device_count(self) -> Optional[int]:
        """How many of them there should be."""
        text = self.document.line(NVFS + "/devcount")
        if text is not None and not re.match(r"\d{1,9}$", text):
            raise UndecidedError(f"{NVFS}/devcount says {text!r}")
        return None if text is None else int(text)

    #: storage stacks that registered with it, by name
    registered = given(lambda document: _first_words(document.text(NVFS + "/modules")))
    #: PCI bridges with ACS enabled, which it names because they send peer traffic through the root complex
    bridges = given(lambda document: _first_words(document.text(NVFS + "/bridges")))
    #: ``ok``, or why the first device cannot be opened; None: there is none
    opens = given(lambda document: document.opens(NVFS_DEVICE))

    @fact
    def mapped(self) -> Optional[Tuple[int, int]]:
        """How often GPU memory was mapped through BAR1 and how often that failed."""
        text = self.document.text(NVFS + "/stats")
        match = re.search(r"^Bar1-map\s*: n=\d+ ok=(\d{1,18}) err=(\d{1,18})", text or "", re.MULTILINE)
        # Releases that count nothing have no such line.
        counts = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
        return None if text is None else counts


#: The RDMA core's end of PeerDirect.
PEER_MEMORY = "ib_register_peer_memory_client"


class PeermemFacts(Facts):
    """nvidia-peermem and the kernel's other end of PeerDirect."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.module = ModuleFacts(document, "nvidia-peermem")

    @fact
    def stub(self) -> Optional[bool]:
        """Built without OFED's peer memory symbols: it can never be loaded; None: there is no file."""
        file = self.module.file
        return None if file is None else PEER_MEMORY not in file.imports

    #: clients that registered with the RDMA core
    peers = given(lambda document: document.names(PEERS) or ())
    rdma_devices = given(lambda document: document.names("/sys/class/infiniband") or ())


def _model(document: Document, name: str) -> str:
    path = NVIDIA + "/gpus/" + name + "/information"
    match = re.search(r"^Model:\s*(\S.*?)\s*$", document.text(path) or "", re.MULTILINE)
    return group_of(match, f"{path} names no model")


def _params(text: str) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip().strip('"') for key, separator, value in pairs if separator}


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


def _first_words(text: Optional[str]) -> Optional[Tuple[str, ...]]:
    return None if text is None else tuple(line.split(": ")[0].strip() for line in text.splitlines() if line.strip())
