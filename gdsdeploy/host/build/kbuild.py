"""Run kbuild for one kernel, keep its log, and say in one line what went wrong."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping, Optional, Sequence, TextIO, Tuple

from .. import process
from ..errors import BuildError, KernelError
from ..io import atomic
from ..kmod.kernel import Kernel

#: A driver takes 150 s on 2 cores; a machine under load many times that.
TIMEOUT = 3600.0
#: First of these is what the user has to know; what follows in a log is mostly consequence.
_ERRORS = (
    re.compile(r"^(?:.*: )?(?:fatal )?error: .*", re.IGNORECASE),
    re.compile(r"^ERROR: modpost: .*"),
    re.compile(r"^.*: (?:Command )?not found$|^.*: No such file or directory$"),
    re.compile(r"^make(?:\[\d+\])?: \*\*\* .*"),
)
_MISSING = re.compile(r"(?:^|[\s:/])([\w.+-]+): (?:Command )?not found$", re.MULTILINE)
#: Variables of a caller, above all of DKMS and of an outer make, that would change the build without being seen.
_CLEARED = (
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "KBUILD_MODPOST_WARN",
    "KBUILD_EXTRA_SYMBOLS",
    "NVIDIA_SRC_DIR",
    "KCPPFLAGS",
    "KVER",
)
_FAILED, _HINT = "error: ", "hint: "
_TAIL = 1 << 16
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
        """Append a line of our own."""
        with self._opened() as log:
            log.write(text + "\n")

    def _opened(self) -> TextIO:
        return os.fdopen(self._descriptor(os.O_APPEND), "a", encoding="utf-8")

    def _descriptor(self, flags: int = 0) -> int:
        return atomic.opened(self.path, os.O_WRONLY | flags, 0o644)

    def failed(self, message: str, hint: str) -> None:
        """End the log with why the build failed; :func:`failure_in` reads it."""
        self.note(f"{_FAILED}{message}\n{_HINT}{hint}")

    def run(self, argv: Sequence[str], cwd: str, env: Optional[Mapping[str, str]] = None) -> process.Output:
        """Run a step of the build in ``cwd`` with the inherited build variables cleared."""
        settings: Dict[str, Optional[str]] = dict.fromkeys(_CLEARED)
        settings.update(env or {})
        done = process.run(argv, TIMEOUT, settings, cwd)
        with self._opened() as log:
            log.write("$ cd {} && {}\n{}{}".format(cwd, " ".join(argv), done.stdout, done.stderr))
            log.write(f"[exit status {done.status}]\n")
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


def check_headers(log: Log, kernel: Kernel, folder: str, variables: Sequence[str] = ()) -> None:
    """Build an empty module: only then do a configure script's "no" answers mean what they say.

    Raises KernelError with what is missing (a compiler, pahole, generated files).
    """
    os.makedirs(folder)
    for name, text in (("probe.c", _PROBE), ("Makefile", "obj-m += probe.o\n")):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    done = make_modules(log, kernel, folder, variables, 1)
    if done.status == 0 and os.path.isfile(os.path.join(folder, "probe.ko")):
        return
    message = f"the headers of kernel {kernel.release} cannot build even an empty module: {first_error(done)}"
    raise KernelError(message, _missing_hint(kernel, done) + f"; the log is {log.path}")


def first_error(done: process.Output) -> str:
    """The line of a build's output that tells why it failed."""
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines()]
    for pattern in _ERRORS:
        for line in lines:
            if pattern.match(line):
                return line
    return lines[-1] if any(lines) and lines[-1] else f"exit status {done.status}"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _missing_hint(kernel: Kernel, done: process.Output) -> str:
    missing: List[str] = _MISSING.findall(done.stderr + done.stdout)
    if missing:
        package = {"pahole": "dwarves (pahole)"}.get(missing[0], missing[0])
        return f"install {package}"
    if done.status == process.NOT_FOUND:
        return "install make"
    return f"reinstall linux-headers-{kernel.release}"
