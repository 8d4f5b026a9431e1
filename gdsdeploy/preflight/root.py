"""A throwaway root of unpacked packages; no package's script runs, and user namespaces replace root.

Each set of packages is one read-only layer in the cache, named by its digest, so another kernel costs one more layer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from gdsdeploy import console, paths, run
from gdsdeploy.errors import GdsError
from gdsdeploy.files import folders
from gdsdeploy.repo.packages import Kind

#: Part of every layer's name: change it with unpack.sh or ``_finish``.
_RECIPE: Final = "2"
#: Layers that were unused for this long are removed.
KEEP_DAYS: Final = 14
#: Older work folders belong to runs that were killed.
_STALE_SECONDS: Final = 86400.0
#: Program → its package.
_PROGRAMS: Final = {"tar": "tar", "unshare": "util-linux", "setpriv": "util-linux", "mount": "mount"}
_UNPACKERS: Final[dict[Kind, dict[str, str]]] = {"apt": {"dpkg-deb": "dpkg"}, "rpm": {"rpm2archive": "rpm"}}
#: Links that scripts of packages make, and the programs that they may lead to.
_ALTERNATIVES: Final = (("sh", ("dash", "bash")), ("awk", ("mawk", "gawk")), ("ld", ("ld.bfd",)))
_NAMESPACES: Final = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
_USER: Final = ("--user", "--map-root-user")


@dataclass(frozen=True)
class Root:
    """An open root; ``build``: the folder that is ``/build`` inside."""

    build: Path
    _lower: str
    _unprivileged: bool

    def run(self, argv: Sequence[str], *, doing: str, ok: Sequence[int] = (0,)) -> run.Completed:
        """Run a program of the root to its end; raises as run.run does."""
        options = ",userxattr" if self._unprivileged else ""
        script = str(resources.files("gdsdeploy") / "preflight" / "enter.sh")
        work = self.build.parent.relative_to(_place())
        inner = ["sh", script, str(_place()), self._lower, str(work), options, *argv]
        # If this process dies, the build dies, too.
        outer = ["setpriv", "--pdeathsig", "KILL", "unshare", *(_USER if self._unprivileged else ()), *_NAMESPACES]
        words = [*outer, *inner] if self._unprivileged else run.as_root([*outer, *inner])
        return run.run(words, doing=doing, ok=ok)


def require(kind: Kind) -> None:
    """Raise MissingProgram, with the command that installs it, for the first program that packages of a kind need."""
    for program, package in {**_UNPACKERS[kind], **_PROGRAMS}.items():
        run.which(program, hint=f"apt-get install {package}")


def layer(packages: Sequence[Path], *, what: str) -> str:
    """The layer of these package files, unpacked unless cached: a folder below ``preflight/layers``.

    packages: Fetcher's files, named by sha256.  what: for the user.
    """
    names = sorted(path.name for path in packages)
    name = hashlib.sha256("\n".join([_RECIPE, *names]).encode()).hexdigest()[:20]

    def make(work: Path) -> None:
        script = str(resources.files("gdsdeploy") / "preflight" / "unpack.sh")
        argv = ["sh", script, work / "root", work / "archive", *packages]
        (work / "root").mkdir()
        with console.step(f"Unpacking {what}"):
            run.run([str(word) for word in argv], doing=f"unpack {what}")
        _finish(work / "root")

    entry = folders.cached_folder(_layers(), name, make, what=what)
    os.utime(entry)
    return f"{name}/root"


@contextmanager
def root(layers: Sequence[str]) -> Iterator[Root]:
    """A root of these layers, the first on top; removed at the end with all that was written in it."""
    place = _place() / "work"
    place.mkdir(parents=True, exist_ok=True)
    _prune(place)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=place))
    try:
        build = work / "build"
        build.mkdir()
        yield Root(build, ":".join(f"layers/{layer}" for layer in layers), _needs_user_namespace())
    finally:
        _remove(work, place)


def _needs_user_namespace() -> bool:
    """Whether to use a user namespace: this process isn't root, and the kernel permits it."""
    if os.geteuid() == 0:
        return False
    trial = ["unshare", *_USER, *_NAMESPACES, "true"]
    if run.run(trial, doing="try a user namespace", ok=range(-64, 256)).status == 0:
        return True
    if shutil.which("sudo") is None:
        raise GdsError(
            "this machine forbids user namespaces, and there is no sudo",
            hint="Run as root, or allow unprivileged user namespaces (sysctl user.max_user_namespaces)",
        )
    return False


def _place() -> Path:
    return paths.cache() / "preflight"


def _layers() -> Path:
    return _place() / "layers"


def _finish(tree: Path) -> None:
    """Make the links and files that a build needs and that package scripts would have made."""
    programs = tree / "usr" / "bin"
    for name, others in _ALTERNATIVES:
        program = next((other for other in others if (programs / other).exists()), None)
        if program and not (programs / name).is_symlink() and not (programs / name).exists():
            (programs / name).symlink_to(program)
    if (programs / "sh").is_symlink():
        (tree / "etc").mkdir(exist_ok=True)
        (tree / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (tree / "etc" / "group").write_text("root:x:0:\n")


def _prune(place: Path) -> None:
    """Remove unused layers and the work folders of killed runs."""
    now = time.time()
    for entry in [entry for entry in place.iterdir() if now - entry.stat().st_mtime > _STALE_SECONDS]:
        _remove(entry, place)
    for entry in _layers().iterdir() if _layers().is_dir() else ():
        if entry.is_dir() and ".tmp-" not in entry.name and now - entry.stat().st_mtime > KEEP_DAYS * 86400:
            with folders.hold_lock(_layers() / f"{entry.name}.lock", what="an old layer"):
                folders.remove_tree(entry, within=_layers())


def _remove(work: Path, place: Path) -> None:
    # overlayfs leaves a folder that its owner can't read.
    locked = work / "work" / "work"
    if locked.is_dir() and locked.stat().st_uid == os.geteuid():
        locked.chmod(0o700)
    folders.remove_tree(work, within=place)
