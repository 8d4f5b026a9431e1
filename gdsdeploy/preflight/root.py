"""A throwaway root: what locked packages and a compiler's packages unpack to, stacked, and gone after use.

Nothing in it is installed: every package is fetched and verified as the lock's are, and unpacked.  No script of a
package runs, no second package manager with settings of its own takes part, and no privilege is needed where the
kernel lets users have namespaces.  Each set of packages is one read-only layer, kept in the cache under the digest of
its contents, so that another kernel or driver costs only what is different about it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from gdsdeploy import paths, run
from gdsdeploy.errors import GdsError
from gdsdeploy.lab import files

#: Goes into every layer's name: change it whenever unpack.sh or ``_finish`` does.
_RECIPE: Final = "1"
#: Layers that no preflight has used for this long are removed.
KEEP_DAYS: Final = 14
#: Work folders of runs that were killed are older than any run.
_STALE_SECONDS: Final = 86400.0
_PROGRAMS: Final = (
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("mount", "mount"),
)
_NAMESPACES: Final = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
_USER: Final = ("--user", "--map-root-user")


@dataclass(frozen=True)
class Layer:
    """A folder of the cache that holds unpacked packages."""

    name: str


@dataclass(frozen=True)
class Root:
    """A root while it exists.

    build: is ``/build`` inside, and writable from both sides.
    """

    build: Path
    _lower: str
    _unprivileged: bool

    def run(self, argv: Sequence[str], *, doing: str, ok: Sequence[int] = (0,)) -> run.Completed:
        """Run a program of the root to its end; raises as run.run does."""
        options = ",userxattr" if self._unprivileged else ""
        script = str(resources.files("gdsdeploy") / "preflight" / "enter.sh")
        work = self.build.parent.relative_to(_place())
        inner = ["sh", script, str(_place()), self._lower, str(work), options, *argv]
        # Whatever this process dies of, nothing goes on building.
        words = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            *(_USER if self._unprivileged else ()),
            *_NAMESPACES,
            *inner,
        ]
        return run.run(words if self._unprivileged else run.as_root(words), doing=doing, ok=ok)


def require() -> None:
    """Raise MissingProgram, with the line that installs it, for the first program of this machine that is lacking."""
    for program, package in _PROGRAMS:
        run.which(program, hint=f"apt-get install {package}")


def layer(packages: Sequence[Path], *, what: str, step: Callable[[str], AbstractContextManager[None]]) -> Layer:
    """The layer of these package files, named by content; unpacked when it is not in the cache.

    packages: each is named by the sha256 of its content, as Fetcher keeps them.  what: for the user.
    """
    names = sorted(path.name for path in packages)
    name = hashlib.sha256("\n".join([_RECIPE, *names]).encode()).hexdigest()[:20]
    _layers().mkdir(parents=True, exist_ok=True)

    def make(work: Path) -> None:
        script = str(resources.files("gdsdeploy") / "preflight" / "unpack.sh")
        argv = ["sh", script, work / "root", work / "archive", *packages]
        (work / "root").mkdir()
        with step(f"Unpacking {what}"):
            run.run([str(word) for word in argv], doing=f"unpack {what}")
        _finish(work / "root")

    entry = files.cached(_layers(), name, make, what=what)
    os.utime(entry)
    return Layer(f"{name}/root")


@contextmanager
def root(layers: Sequence[Layer]) -> Iterator[Root]:
    """A root of these layers, the first on top; it and everything that was written in it is removed at the end."""
    place = _place() / "work"
    place.mkdir(parents=True, exist_ok=True)
    _prune(place)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=place))
    try:
        build = work / "build"
        build.mkdir()
        yield Root(build, ":".join(f"layers/{item.name}" for item in layers), _unprivileged())
    finally:
        _remove(work, place)


def _unprivileged() -> bool:
    """Whether a user namespace is to make us root; not if we are already, and not where the kernel forbids it."""
    if os.geteuid() == 0:
        return False
    trial = ["unshare", *_USER, *_NAMESPACES, "true"]
    if run.run(trial, doing="try a user namespace", ok=range(-64, 256)).status == 0:
        return True
    if shutil.which("sudo") is None:
        raise GdsError(
            "this machine does not let users have namespaces, and there is no sudo",
            hint="Run as root, or allow unprivileged user namespaces (sysctl user.max_user_namespaces)",
        )
    return False


def _place() -> Path:
    return paths.cache() / "preflight"


def _layers() -> Path:
    return _place() / "layers"


def _finish(tree: Path) -> None:
    """What the scripts of packages would have made, as far as a build needs it."""
    programs = tree / "usr" / "bin"
    for name, others in (("sh", ("dash", "bash")), ("awk", ("mawk", "gawk")), ("python3", ())):
        there = next((other for other in others if (programs / other).exists()), None)
        if there and not (programs / name).is_symlink() and not (programs / name).exists():
            (programs / name).symlink_to(there)
    if (programs / "sh").is_symlink():
        (tree / "etc").mkdir(exist_ok=True)
        (tree / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (tree / "etc" / "group").write_text("root:x:0:\n")


def _prune(place: Path) -> None:
    """Remove layers out of use and work folders of runs that were killed."""
    now = time.time()
    old = [entry for entry in place.iterdir() if now - entry.stat().st_mtime > _STALE_SECONDS]
    for entry in old:
        _remove(entry, place)
    for entry in _layers().iterdir() if _layers().is_dir() else ():
        if entry.is_dir() and ".tmp-" not in entry.name and now - entry.stat().st_mtime > KEEP_DAYS * 86400:
            with files.locked(_layers() / f"{entry.name}.lock", what="an old layer"):
                files.remove_tree(entry, within=_layers())


def _remove(work: Path, place: Path) -> None:
    # overlayfs leaves a folder that not even its owner may read.
    locked = work / "work" / "work"
    if locked.is_dir() and locked.stat().st_uid == os.geteuid():
        locked.chmod(0o700)
    files.remove_tree(work, within=place)
