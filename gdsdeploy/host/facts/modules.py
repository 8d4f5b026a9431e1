"""Kernel modules: what is loaded, which file modprobe would load, and whether the two are the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

from ..kmod.module import build_id_of, files_to_load, substitute_of
from ..paths import BUILD_ID, MODPROBE
from .document import Document
from .unknown import Maybe, Unknown, when_known, with_default


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


def _file(document: Document, name: str) -> Maybe[Optional[ModuleFile]]:
    run = document.ran(MODPROBE + name)
    if isinstance(run, Unknown):
        return run
    replacement = substitute_of(run.stdout)
    if replacement:
        run = document.ran(MODPROBE + replacement)
        if isinstance(run, Unknown):
            return run
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
