"""``cufile.json``, and the folder of libcufile's log files, without which every release of it refuses to work."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from typing import Any, ClassVar, List, Sequence

from ..boot.present import expectation
from ..model.schema import LINES
from . import alternatives, written
from .file_resource import FileResource, restore
from .files import FOLDER, File
from .host import ManagedHost
from .model import INSTALLS, Change, Refusal, Words

TMPFILES = "/etc/tmpfiles.d/gdsdeploy.conf"
#: The folder that is made here; it is the one unless the fleet file names another.
LOG_DIR = "/var/log/cufile"
_TMPFILES_TEXT = f"""\
# Rendered by gdsdeploy; changes here are overwritten. libcufile refuses to work when this folder is missing.
d {LOG_DIR} 1777 root root 30d
"""


@dataclass(frozen=True)
class Desired:
    """The configuration of libcufile."""

    #: Text of the configuration.
    content: str = field(metadata=LINES)
    #: Path of libcufile's configuration.
    path: str = written.CUFILE
    #: The configuration's folder of log files.  Only the default folder is created.
    log_dir: str = LOG_DIR


class Cufile(FileResource[Desired]):
    """The log folder, what keeps it over reboots, and cufile.json.

    Where NVIDIA's packages make ``/etc/cufile.json`` a link of the alternatives system, the text is in
    :data:`alternatives.OWN`, and the link leads there.
    """

    name = "cufile"
    desired_type = Desired
    removal_rank = 100
    reverts = (alternatives.OWN,)
    kinds: ClassVar[Words] = {"choose": "choose what {} leads to, with update-alternatives"}
    reasons: ClassVar[Words] = {"alternative": "it leads elsewhere"}

    def __init__(self) -> None:
        self._by_link = False

    def desired_files(self, desired: Desired) -> List[File]:
        """Every user's processes write log files, so the folder is open to all."""
        return [
            File.of(TMPFILES, _TMPFILES_TEXT),
            File(LOG_DIR, FOLDER, mode=0o1777),
            File.of(alternatives.OWN if self._by_link else desired.path, desired.content),
        ]

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        group = alternatives.observe(host) if desired.path == alternatives.LINK else None
        self._by_link = group is not None
        observed = super().observe(host, desired)
        observed["log_dir"] = host.entry(desired.log_dir)
        observed["alternatives"] = group
        observed["tool"] = desired.path == alternatives.LINK and host.has_program("update-alternatives")
        observed[alternatives.OWN] = host.entry(alternatives.OWN)
        return observed

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """A libcufile that is to come makes the link, if the host has the tool for it."""
        coming = any(change.kind in INSTALLS and alternatives.PACKAGE.fullmatch(change.subject) for change in pending)
        self._by_link = observed["alternatives"] is not None or (observed["tool"] and coming)
        choice = alternatives.choose_change(observed["alternatives"]) if self._by_link else []
        return [*super().changes(desired, observed, pending), *choice]

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        if change.kind == "choose":
            alternatives.choose(host)
        else:
            super().apply(host, desired, change)

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        """Another log folder has to exist; it isn't made here."""
        refusals = super().refusals(desired, observed)
        if not desired.content:
            hint = "run provision, which renders it"
            refusals.append(Refusal("content", f"the text of {desired.path} is empty", hint))
        if not desired.path.startswith("/"):
            refusals.append(Refusal("path", f"{desired.path}: is not an absolute path", "correct the fleet file"))
        folder = observed["log_dir"]
        if desired.log_dir != LOG_DIR and (folder is None or folder.kind != FOLDER):
            words = f"{desired.log_dir} does not exist, and libcufile would refuse to work without it"
            hint = "Make it, writable for all users of cuFile programs (mode 1777), or leave logging.dir out of the"
            refusals.append(Refusal("log-dir", words, f"{hint} fleet file"))
        return refusals

    def revert(self, host: ManagedHost) -> List[Change]:
        """Leave the alternatives, then restore the files; an unrecorded cufile.json goes only if gdsdeploy wrote it."""
        left = alternatives.leave_changes(host)
        if left and not host.check:
            alternatives.leave(host)
        paths = (TMPFILES, LOG_DIR, *self.reverts, glob.escape(_path(host)))
        subjects = {change.subject for change in left}
        return left + [change for change in restore(host, paths) if change.subject not in subjects]


def _path(host: ManagedHost) -> str:
    """Where cufile.json is here, as the expectation says."""
    path = expectation(host.root).get("cufile_path")
    return path if isinstance(path, str) and path.startswith("/") else written.CUFILE
