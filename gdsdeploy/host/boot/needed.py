"""What a reboot would change: the running kernel, its arguments and the loaded modules, against what is installed."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from .. import process
from ..kmod.module import BUILD_ID, build_id_of, files_to_load, in_kernel, read_module, substitute_of
from ..paths import parameter_path
from ..rootdir import read_text
from . import arguments as words_of_kernel
from .arguments import read
from .present import boot_id

#: Ids of causes: another kernel runs; a module isn't loaded, has no file, or is loaded from another file.
KERNEL, UNLOADED, NO_FILE, MODULE = "kernel", "not-loaded", "no-file", "module"
#: The running kernel was booted with other arguments; a parameter of a module has another value.
ARGUMENT, PARAMETER = "argument", "parameter"


@dataclass(frozen=True)
class Cause:
    """Why a reboot is needed; ``subject`` is the running kernel, the module, the argument or MODULE.PARAMETER."""

    id: str
    subject: str
    text: str


@dataclass(frozen=True)
class Pending:
    """Whether a reboot is needed to reach the installed state, why, and the id of this boot."""

    needed: bool
    #: the texts of ``causes``
    reasons: List[str]
    causes: List[Cause]
    boot_id: str
    running: str
    #: modules that aren't loaded although the expected kernel runs
    unloaded: List[str]
    #: whether nothing but modules differs, which can be exchanged without a reboot
    by_reload: bool = True


def pending(
    kernel: str, modules: List[str], arguments: Sequence[str] = (), parameters: Mapping[str, str] = {}, root: str = "/"
) -> Pending:
    """Compare this running host with kernel release ``kernel`` and the files modprobe would load for ``modules``.

    arguments: of the kernel.  parameters: MODULE.PARAMETER → value, as in :func:`booted_otherwise`.  Raises ApplyError
    where the record of arguments is damaged.
    """
    running = os.uname().release
    if running != kernel:
        causes = [Cause(KERNEL, running, f"the running kernel is {running}, not {kernel}")]
    else:
        causes = [*booted_otherwise(arguments, parameters, root), *filter(None, map(_module, modules))]
    by_reload = not {cause.id for cause in causes} & {KERNEL, ARGUMENT, PARAMETER}
    unloaded = [cause.subject for cause in causes if cause.id == UNLOADED]
    return Pending(bool(causes), [cause.text for cause in causes], causes, boot_id(), running, unloaded, by_reload)


def booted_otherwise(arguments: Sequence[str], parameters: Mapping[str, str], root: str = "/") -> List[Cause]:
    """Arguments that the running kernel doesn't have or has no longer to have, and other values of parameters.

    A parameter that isn't there is no cause: its module isn't loaded, or the kernel has it under no name.  Nor is one
    of a module that is built into the kernel: it doesn't read modprobe.d, so another boot changes nothing.
    """
    running = read_text(root, "/proc/cmdline").split()
    record = read(root)
    left = record.left.arguments if record.left.boot_id == boot_id(root) else []
    causes = [
        Cause(ARGUMENT, word, f"the running kernel was booted without the argument {word}")
        for word in words_of_kernel.unmet(running, arguments)
    ]
    causes += [
        Cause(ARGUMENT, word, f"the running kernel was booted with the argument {word}, which is no longer set")
        for word in left
        if word in running and word not in arguments
    ]
    loaded = {line.partition(" ")[0] for line in read_text(root, "/proc/modules").splitlines()}
    options = {key: value for key, value in parameters.items() if key.rpartition(".")[0] in loaded}
    expected = {**options, **words_of_kernel.parameters(arguments)}
    shown: Dict[str, Optional[str]] = {key: _parameter(key, root) for key in expected}
    return causes + [
        Cause(PARAMETER, key, f"the parameter {key} is {shown[key]}, not {expected[key]}")
        for key in words_of_kernel.differing(shown, expected)
        # An argument that the kernel wasn't booted with is the reason already.
        if not any(words_of_kernel.name(cause.subject) == key for cause in causes)
    ]


def _parameter(key: str, root: str) -> Optional[str]:
    """The value of MODULE.PARAMETER; None where sysfs doesn't have it."""
    path = parameter_path(key)
    return (read_text(root, path).strip() or None) if path else None


def _module(name: str) -> Optional[Cause]:
    """Why the loaded module isn't the installed one; None if it is."""
    loaded = _folder_of(name)
    if not loaded.is_dir():
        return Cause(UNLOADED, name, f"the module {name} is not loaded")
    file = file_of(name)
    if not file:
        return Cause(NO_FILE, name, f"modprobe finds no file for the module {name}")
    # srcversion doesn't change with the driver that a module was built against.
    note = loaded / "notes" / BUILD_ID
    if note.exists() and build_id_of(note.read_bytes().hex()) != read_module(file).build_id:
        return Cause(MODULE, name, f"the loaded module {name} is not the one in {file}")
    return None


def _folder_of(name: str) -> Path:
    return Path("/sys/module", in_kernel(name))


def file_of(name: str) -> str:
    """The file that modprobe would load for ``name``, as the load at boot would; empty when there is none."""
    shown = process.run(["modprobe", "--show-depends", name], timeout=30).stdout
    other = substitute_of(shown)
    if other:
        shown = process.run(["modprobe", "--show-depends", "--ignore-install", other], timeout=30).stdout
    files = files_to_load(shown)
    return files[-1] if files else ""
