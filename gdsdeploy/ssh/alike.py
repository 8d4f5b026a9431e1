"""Whether OpenSSH's configuration treats all hosts alike, so that one answer of ``ssh -G`` holds for each of them.

In doubt it doesn't: ssh is then asked about that host.  ssh_config(5) has the format.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

#: The only program whose system-wide files are known here, and these files: those of /usr/etc are SUSE's.
_SSH = "/usr/bin/ssh"
_SYSTEM = (Path("/etc/ssh/ssh_config"), Path("/usr/etc/ssh/ssh_config"))
#: Names that ssh prints as they are given; of others, such as ``ops@gpu1`` and ``GPU1``, it changes parts.
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._:-]*")
_LINE = re.compile(r'\s*"?([A-Za-z0-9]+)"?(?:\s*=\s*|\s+|$)(.*)', re.DOTALL)
#: Options that make one host another: ssh looks their results up, or replaces the name.
_OF_ONE_HOST = ("hostname", "canonicalizehostname", "canonicaldomains", "canonicalizepermittedcnames")
#: Options whose tokens (``%h``) are of no concern to a login, or stay as they are in the answer.
_WITH_TOKENS = ("proxycommand", "controlpath")
#: As ssh has it, and bytes of one file.
_DEPTH, _SIZE = 16, 1 << 20


class _DiffersError(Exception):
    """Something in the files may be for some hosts only."""


def common_text(config: Path | None) -> str | None:
    """The lines of the configuration, in lower case, if each of them counts for every host; None: some may not.

    config: the file that replaces the user's and the system's.  Raises nothing: ssh says what is wrong with a file.
    """
    try:
        if os.path.realpath(shutil.which("ssh") or "") != _SSH:
            return None
        user = Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh")
        files = [(config, user)] if config else [(user / "config", user), *((file, file.parent) for file in _SYSTEM)]
        return "\n".join(line for file, folder in files for line in _lines(file, folder)).lower()
    except (_DiffersError, OSError, KeyError):
        return None


def is_common(text: str, name: str) -> bool:
    """Whether the host ``name`` is as every other to a configuration with this text (of :func:`common_text`).

    A name that occurs anywhere isn't: a jump host, for example, is reached without itself.
    """
    return _PLAIN.fullmatch(name) is not None and name not in text


def _lines(file: Path, folder: Path, depth: int = 0) -> Iterator[str]:
    """folder: where the names in Include start."""
    if depth > _DEPTH:
        raise _DiffersError
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(_SIZE + 1)
    except FileNotFoundError:
        return
    if len(text) > _SIZE:
        raise _DiffersError
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise _DiffersError
        option, value = match[1].lower(), match[2].strip()
        _require_common(option, value)
        yield line
        if option == "include":
            for name in (name for pattern in value.split() for name in _matches(pattern, folder)):
                yield from _lines(Path(name), folder, depth + 1)


def _matches(pattern: str, folder: Path) -> list[str]:
    """The files that a word of Include names."""
    if pattern.startswith("~/"):
        # In a user's file only, whose folder is below the home directory.
        pattern = f"{folder.parent}/{pattern[2:]}"
    return sorted(glob.glob(os.path.join(folder, pattern)))  # noqa: PTH118, PTH207 - pathlib takes no absolute pattern


def _require_common(option: str, value: str) -> None:
    if option in _OF_ONE_HOST or (option == "host" and value != "*") or (option == "match" and value.lower() != "all"):
        raise _DiffersError
    if option not in _WITH_TOKENS and ("%" in value or "${" in value):
        raise _DiffersError
    if option == "include" and re.search(r"""["'\\]|~[^/]""", value):
        raise _DiffersError
