"""This system with a layer on top that a test throws away: the host program runs as root, at its real paths."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdsdeploy.host.paths import TRAIL
from gdsdeploy.zipapp import hostapp

#: Mounts and becomes the program that is named; the namespace of mounts ends with it.
_ENTER = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir="$0/upper",workdir="$0/work" "$0/merged"
mount --rbind /dev "$0/merged/dev"
mount -t proc proc "$0/merged/proc"
mount -t tmpfs tmpfs "$0/merged/run"
if [ -d "$0/run" ]; then mount --bind "$0/run" "$0/merged/run"; fi
{before}
exec chroot "$0/merged" "$@"
"""
SENT = "/tmp/sent.pyz"
#: Folders of gdsdeploy's own files; a layer hides what it has a device 0/0 for, as overlayfs says.
LEFT = ("/var/lib/gdsdeploy", "/var/log/gdsdeploy", "/var/lib/prometheus")
PROGRAM = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"


@dataclass
class System:
    """``folder``: on a file system that may be an upper layer.  ``before``: shell commands after the mounts."""

    folder: Path
    before: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    #: a program that runs in the system; others start beside it
    beside: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        for name in ("upper", "work", "merged", "run"):
            (self.folder / name).mkdir()
        # Other tests validate this machine meanwhile: what they leave in its folders isn't this system's.
        for left in filter(os.path.exists, LEFT):
            os.mknod(self.path(left), stat.S_IFCHR, os.makedev(0, 0))
        hostapp.build(self.path(SENT))

    def path(self, path: str) -> Path:
        """Where a file of the layer is; its folder is made."""
        place = self.folder / ("run" if path.startswith("/run/") else "upper") / path.removeprefix("/run").lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def start(self, *argv: str, before: str = "", **named: Any) -> subprocess.Popen[str]:
        """Start a program in the system; its pid is the program's own."""
        script = _ENTER.replace("{before}", before or self.before)
        command = ["unshare", "--mount", "sh", "-c", script, str(self.folder), *argv]
        if self.beside is not None:
            # A layer can be mounted only once at a time.
            command = ["nsenter", f"--target={self.beside.pid}", "--mount", "--root", "--wdns=/", *argv]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **named}
        return subprocess.Popen(command, text=True, env={**os.environ, **self.environment}, **pipes)

    def apply(self, document: Any, *words: str, program: str = SENT, before: str = "") -> tuple[int, dict[str, Any]]:
        """Exit status and answer of ``apply``."""
        argv = ["python3", "-I", "-S", program, "apply", "--json", "--desired", "-", *words]
        return ended(self.start(*argv, before=before), json.dumps(document))

    def remove(self, *words: str, program: str = SENT) -> tuple[int, dict[str, Any]]:
        """Exit status and answer of ``remove``."""
        return ended(self.start("python3", "-I", "-S", program, "remove", "--json", *words))

    def install(self, path: str, text: str) -> None:
        """Have a program in the layer."""
        place = self.path(path)
        place.write_text(text)
        place.chmod(0o755)

    def changed(self) -> set[str]:
        """Every file of the layer but the audit trail, and every one that is gone below."""
        paths = {
            "/" + (Path(folder) / name).relative_to(self.folder / "upper").as_posix()
            for folder, _, names in os.walk(self.folder / "upper")
            for name in names
        }
        return {path for path in paths if path not in (SENT, TRAIL, *LEFT) and not path.startswith("/usr/local/sbin/")}


def ended(process: subprocess.Popen[str], text: str = "") -> tuple[int, dict[str, Any]]:
    """Exit status and answer of a program."""
    out, err = process.communicate(text, timeout=300)
    try:
        return process.returncode, json.loads(out)
    except ValueError:
        raise AssertionError(f"{shlex.join(map(str, process.args))}\n{out}{err}") from None  # type: ignore[arg-type]


def subjects(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """Kind and subject of every change."""
    return [(change["kind"], change["subject"]) for one in answer["resources"] for change in one["changes"]]
