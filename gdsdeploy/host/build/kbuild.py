"""Run kbuild for one kernel, keep its log, and say in one line what went wrong."""

from __future__ import annotations

import os
import re
from typing import Dict, Mapping, Optional, Sequence, Tuple

from .. import process
from ..errors import BuildError, KernelError
from ..io import atomic
from ..kmod.kernel import Kernel

#: A driver takes 150 s on 2 cores; a machine under load many times that.
TIMEOUT = 3600.0
#: The first match is the cause; later errors are mostly consequences.
_ERRORS = (
    re.compile(r"^(?:.*: )?(?:fatal )?error: .*", re.IGNORECASE),
    re.compile(r"^ERROR: modpost: .*"),
    re.compile(r"^.*: (?:Command )?not found$|^.*: No such file or directory$"),
    re.compile(r"^make(?:\[\d+\])?: \*\*\* .*"),
)
_MISSING = re.compile(r"(?:^|[\s:/])([\w.+-]+): (?:Command )?not found$", re.MULTILINE)
#: Variables of a caller, such as DKMS or an outer make, that would change the build unnoticed.
_CLEARED = (
    *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "KBUILD_MODPOST_WARN", "KBUILD_EXTRA_SYMBOLS"),
    *("NVIDIA_SRC_DIR", "KCPPFLAGS", "KCFLAGS", "KVER"),
)
_FAILED, _HINT = "error: ", "hint: "
_TAIL = 1 << 16
#: The name of the empty module.
EMPTY = "probe"
_PROBE = '#include <linux/module.h>\nMODULE_LICENSE("GPL");\nMODULE_DESCRIPTION("probe");\n'


class Log:
    """A build's log file; every program's command line and output is appended."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with os.fdopen(self._descriptor(), "w") as log:
                log.truncate()
        except OSError as error:
            raise BuildError(f"cannot write the build log {path}: {error.strerror}") from None

    def note(self, text: str) -> None:
        """Append a line."""
        with os.fdopen(self._descriptor(os.O_APPEND), "a", encoding="utf-8") as log:
            log.write(text + "\n")

    def _descriptor(self, flags: int = 0) -> int:
        return atomic.open_descriptor(self.path, os.O_WRONLY | flags, 0o644)

    def end_with_failure(self, message: str, hint: str) -> None:
        """End the log with why the build failed; :func:`failure_in` reads it."""
        self.note(f"{_FAILED}{message}\n{_HINT}{hint}")

    def run(self, argv: Sequence[str], cwd: str, env: Optional[Mapping[str, str]] = None) -> process.Output:
        """Run a step of the build in ``cwd`` with the inherited build variables cleared."""
        settings: Dict[str, Optional[str]] = dict.fromkeys(_CLEARED)
        settings.update(env or {})
        done = process.run(argv, TIMEOUT, settings, cwd)
        self.note(f"$ cd {cwd} && {' '.join(argv)}\n{done.stdout}{done.stderr}[exit status {done.status}]")
        return done


def failure_in(path: str) -> Tuple[str, str]:
    """(message, hint) of the failed build that the log ``path`` ends with; both empty for any other log."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.path.getsize(path) - _TAIL, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "", ""
    if len(lines) < 2 or not (lines[-2].startswith(_FAILED) and lines[-1].startswith(_HINT)):
        return "", ""
    return lines[-2][len(_FAILED) :], lines[-1][len(_HINT) :]


def make_modules(
    log: Log, kernel: Kernel, folder: str, variables: Sequence[str], jobs: int, env: Optional[Mapping[str, str]] = None
) -> process.Output:
    """Build the external module in ``folder`` by the target kernel's own kbuild."""
    argv = ["make", f"-j{max(jobs, 1)}", "-C", kernel.headers(), "M=" + folder, *variables, "modules"]
    return log.run(argv, folder, env)


def without_debug_information(kernel: Kernel) -> Dict[str, str]:
    """Variables of the environment that leave debug information out, where only DKMS would read it, to strip it.

    It takes a fifth of the compiler's time.  pahole makes BTF of it where the headers have a ``vmlinux``, as Debian
    13's have; kernels with CONFIG_GENDWARFKSYMS compute symbol versions from it.
    """
    if os.path.isfile(os.path.join(kernel.headers(), "vmlinux")) or "CONFIG_GENDWARFKSYMS" in kernel.config:
        return {}
    return {"KCFLAGS": "-g0"}


def check_headers(log: Log, kernel: Kernel, folder: str, variables: Sequence[str] = ()) -> None:
    """Build an empty module, because a configure script's "no" answers may only mean that nothing compiles.

    Raises KernelError with what is missing (a compiler, pahole, generated files).
    """
    os.makedirs(folder)
    for name, text in ((f"{EMPTY}.c", _PROBE), ("Makefile", f"obj-m += {EMPTY}.o\n")):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    done = make_modules(log, kernel, folder, variables, 1)
    if done.status == 0 and os.path.isfile(os.path.join(folder, f"{EMPTY}.ko")):
        return
    message = f"the headers of kernel {kernel.release} cannot build even an empty module: {first_error(done)}"
    raise KernelError(message, _missing_hint(kernel, done) + f"; the log is {log.path}")


def first_error(done: process.Output) -> str:
    """The line of a build's output that says why it failed."""
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines()]
    last = lines[-1] if lines and lines[-1] else f"exit status {done.status}"
    return next((line for pattern in _ERRORS for line in lines if pattern.match(line)), last)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _missing_hint(kernel: Kernel, done: process.Output) -> str:
    missing = _MISSING.search(done.stderr + done.stdout)
    if missing:
        return "install " + {"pahole": "dwarves (pahole)"}.get(missing[1], missing[1])
    return "install make" if done.status == process.NOT_FOUND else f"reinstall linux-headers-{kernel.release}"
