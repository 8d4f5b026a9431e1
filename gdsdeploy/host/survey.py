"""What a plan has to ask of a machine: rendered on the controller, answered in one pass by ``survey``.

The answers of ``boot default``, ``kmod install`` and ``boot needed`` come from the very functions that the roles call,
in their check mode, so that a plan and the roles cannot come to differ.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Dict, List

VERSION = 1


@dataclass(frozen=True)
class Survey:
    """Questions about one machine; an empty text or list asks nothing."""

    #: of the lock, as ``uname -r``
    kernel_release: str
    #: files and folders whose digest, mode and owner are wanted
    paths: List[str]
    #: name → a command that only looks, as a role has it, whose output decides what a file has to say
    commands: Dict[str, List[str]]
    #: names of packages
    packages: List[str]
    #: whether that kernel has to be the boot default
    boot: bool
    #: modules that have to be loaded, in this order
    modules: List[str]
    #: archive on the machine whose modules have to be in place
    archive: str
    #: NAME/VERSION of what DKMS has to have built and installed for that kernel
    dkms: List[str]
    #: whether modules are built here, and so audited here: the driver that they have to be of
    audit: bool = False
    driver_version: str = ""
    driver_flavour: str = ""
    driver_tree: str = ""
    #: whether what decides which builds fit the machine is wanted; what DKMS has not built is then not audited
    key: bool = False
    #: certificate of whose signature modules have to have, and whether they get it here and it has to be enrolled here
    certificate: str = ""
    signs: bool = False
    enrols: bool = False
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def either(one: Survey, other: Survey) -> Survey:
    """The questions of both, which are about the same machine and the same kernel."""
    return replace(
        one,
        paths=list(dict.fromkeys([*one.paths, *other.paths])),
        commands={**one.commands, **other.commands},
        packages=sorted({*one.packages, *other.packages}),
        archive=one.archive or other.archive,
        dkms=one.dkms or other.dkms,
        audit=one.audit or other.audit,
        key=True,
    )


def from_json(text: str) -> Survey:
    """Read a survey; raises ValueError that says what is wrong with it."""
    value: Any = json.loads(text)
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise ValueError("a survey is a JSON object of version {}".format(VERSION))
    if set(value) - {item.name for item in fields(Survey)}:
        raise ValueError("unknown keys")
    try:
        return Survey(**value)
    except TypeError as error:
        raise ValueError(str(error)) from None
