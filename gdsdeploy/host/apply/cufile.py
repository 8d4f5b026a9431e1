"""``cufile.json``, and the folder of libcufile's log files, without which every release of it refuses to work."""

from __future__ import annotations

import glob
import json
from dataclasses import dataclass, field
from typing import Any, List

from ..model import expectation
from ..model.schema import LINES
from . import written
from .file_resource import FileResource, restore
from .files import FOLDER, File
from .host import ManagedHost
from .model import Change, Refusal

TMPFILES = "/etc/tmpfiles.d/gdsdeploy.conf"
#: The folder that is made here; it is the one unless the fleet file names another.
LOG_DIR = "/var/log/cufile"
_TMPFILES_TEXT = f"""\
# Rendered by gdsdeploy; changes here are overwritten. libcufile refuses to work when this folder is missing.
d {LOG_DIR} 1777 root root 30d
"""


@dataclass(frozen=True)
class Desired:
    """``content``: the text of cufile.json.  ``log_dir``: the folder of log files that the text names."""

    content: str = field(metadata=LINES)
    path: str = written.CUFILE
    log_dir: str = LOG_DIR


class Cufile(FileResource[Desired]):
    """The log folder, what keeps it over reboots, and cufile.json.

    Where cufile.json is a link of the alternatives system, a file replaces the link, and :meth:`revert` brings it back.
    """

    name = "cufile"
    desired_type = Desired
    removal_rank = 100

    def desired_files(self, desired: Desired) -> List[File]:
        """Every user's processes write log files, so the folder is open to all."""
        return [
            File.of(TMPFILES, _TMPFILES_TEXT),
            File(LOG_DIR, FOLDER, mode=0o1777),
            File.of(desired.path, desired.content),
        ]

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        observed = super().observe(host, desired)
        observed["log_dir"] = host.entry(desired.log_dir)
        return observed

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
        """Restore the files; without a record cufile.json is removed only if gdsdeploy rendered it."""
        return restore(host, (TMPFILES, LOG_DIR, glob.escape(_path(host))))


def _path(host: ManagedHost) -> str:
    """Where cufile.json is here, as the expectation says."""
    try:
        path = json.loads(host.text(expectation.PATH)).get("cufile_path")
    except (ValueError, AttributeError, RecursionError):
        path = None
    return path if isinstance(path, str) and path.startswith("/") else written.CUFILE
