"""How the hosts of a profile boot: arguments of the kernel, and options of its modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from gdsdeploy.model.text import Model, matching

#: As in ``gdsdeploy/host/boot/arguments.py``, which hosts judge by; a test compares both.
FORBIDDEN = frozenset(
    {
        *("BOOT_IMAGE", "root", "rootflags", "rootfstype", "rootdelay", "rootwait", "ro", "rw", "resume"),
        *("resume_offset", "init", "rdinit", "initrd", "noinitrd", "single", "emergency", "rescue", "S", "s", "boot"),
    }
)
FORBIDDEN_PREFIXES = ("rd.", "systemd.", "luks.")


def _text(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError('YAML reads on, off, yes, no, true and false as booleans: write the value in quotes, "off"')
    return str(value) if isinstance(value, int) else value


Argument = Annotated[
    str, matching(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "write the name of a kernel argument, such as nvme_core.multipath")
]
ArgumentValue = Annotated[
    str,
    matching(r"^[A-Za-z0-9_.,:=@/+%~-]*$", "write the value of a kernel argument: one word without blanks and quotes"),
    BeforeValidator(_text),
]
Module = Annotated[
    str, matching(r"^[A-Za-z0-9][A-Za-z0-9_-]*$", "write the name of a kernel module, such as nvme_core")
]
ModuleParameter = Annotated[str, matching(r"^[A-Za-z0-9_]+$", "write the name of a parameter, such as multipath")]
ModuleValue = Annotated[
    str,
    matching(r"^[^\s\"'\\#\x00-\x1f\x7f]*$", "write the value of a parameter: one word without quotes"),
    BeforeValidator(_text),
]


class Boot(Model):
    """The next boot of a profile's hosts, beside the kernel; nothing is set that isn't written here."""

    #: ``auto``: what NVIDIA's guide has for the profile's mode; see ``converge/boot.py``.
    preset: Literal["none", "auto"] = "none"
    #: Name → value; without a value, the name alone.
    arguments: dict[Argument, ArgumentValue | None] = Field(default_factory=dict)
    #: Module → parameter → value, in modprobe.d and in the initramfs.
    module_options: dict[Module, dict[ModuleParameter, ModuleValue]] = Field(default_factory=dict)

    @field_validator("arguments")
    @classmethod
    def _allowed(cls, value: dict[str, str | None]) -> dict[str, str | None]:
        names: list[str] = []
        for name in value:
            if name in FORBIDDEN or name.startswith(FORBIDDEN_PREFIXES):
                raise ValueError(f"{name} decides which system boots: leave it to the boot loader")
            names.append(name.replace("-", "_"))
            if names.count(names[-1]) > 1:
                raise ValueError(f"{name} is listed twice: the kernel reads - and _ as one")
        return value

    @field_validator("module_options")
    @classmethod
    def _not_the_driver(cls, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        if "nvidia" in value:
            raise ValueError("parameters of nvidia belong into driver.options")
        return value
