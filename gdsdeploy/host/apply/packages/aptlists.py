"""apt's package lists as they will be, in a folder of a look.

The host stays as it is, and its own lists are read again only where a repository has changed.
"""

from __future__ import annotations

import os
import shutil
from typing import List

from ...errors import CannotTellError
from ...rootdir import inside
from ..host import ManagedHost
from .future import looking, scratch_sources

_LISTS, _PARTS = "/var/lib/apt/lists", "/etc/apt/sources.list.d"
#: Seconds for all repositories, and without any data from one, after which it is out of reach of a look.
_SECONDS, _SILENCE = 120.0, 10
#: With which apt begins what is wrong; its last error only says that there was one.
_ERROR = "E: "
#: Hooks of an update change the host.  A look doesn't try again.
_CONFIGURATION = """\
#clear APT::Update;
#clear Acquire::Languages;
Acquire::Languages "none";
Dir::Etc::sourceparts "{parts}";
Dir::State::lists "{lists}";
Dir::Cache "{cache}";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Acquire::Retries "0";
Acquire::http::Timeout "{seconds}";
Acquire::https::Timeout "{seconds}";
"""


def options(host: ManagedHost, sources: str) -> List[str]:
    """Options with which apt knows what a check predicts for the file ``sources``; none where nothing is predicted.

    Raises CannotTellError where a repository can't be read.
    """
    if not host.prediction.offers:
        return []
    with looking():
        configuration = str(host.once(("apt-lists", sources), lambda: _prepare(host, sources)))
    argv = ["apt-get", f"--config-file={configuration}", "--quiet", "--error-on=any", "update"]
    output = host.look(argv, _SECONDS)
    if output.status != 0:
        errors = [line[len(_ERROR) :] for line in output.stderr.splitlines() if line.startswith(_ERROR)]
        words = errors[0] if errors else output.failure()
        raise CannotTellError(f"this host can't read the repositories that it will have: {words}")
    return [f"--config-file={configuration}"]


def _prepare(host: ManagedHost, sources: str) -> str:
    """The path of a configuration; apt's folders beside it have the host's sources and lists."""
    parts, lists, cache = (host.scratch(name) for name in ("sources", "lists", "cache"))
    scratch_sources(host, sources)
    _link_all(inside(host.root, _PARTS), parts)
    _link_all(inside(host.root, _LISTS), lists)
    os.makedirs(os.path.join(lists, "partial"), exist_ok=True)
    path = os.path.join(host.scratch("configuration"), "apt.conf")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_CONFIGURATION.format(parts=parts, lists=lists, cache=cache, seconds=_SILENCE))
    return path


def _link_all(folder: str, place: str) -> None:
    """Links to the files of a folder, but for those whose names are taken.

    What apt may touch, the descriptions of repositories, is copied; it never writes into a list.
    """
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        source, target = os.path.join(folder, name), os.path.join(place, name)
        if name == "lock" or os.path.lexists(target) or not os.path.isfile(source):
            continue
        if name.endswith(("Release", "Release.gpg")):
            shutil.copyfile(source, target)
            shutil.copystat(source, target)
        else:
            os.symlink(source, target)
