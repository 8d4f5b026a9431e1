"""``carried FOLDER``: whether a folder of ``gdsdeploy rollout render`` is whole and made from the expected lock.

The folder's manifest lists every file with its sha256.  A file that is missing, changed or not listed is a reason to
run nothing of it: a checkout may mix two commits, and Ansible loads plugins and variables that it finds there.  A
commit's signature shows who wrote the manifest; this check doesn't.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import stat
from typing import Any, Dict, Iterator, List, Optional

from .parsers import command

MANIFEST = "gdsdeploy-carrier.json"
VERSION = 1
LOCK = "gdsdeploy.lock"
#: Folder of archives that hosts fetch from elsewhere; a checkout has none of it.
SERVED = "serve"
#: What is beside the rendered files without having a part in a run: git's own, and what Python compiled.
_OURS_NOT = (".git", "__pycache__", SERVED)
_PIECE = 1024 * 1024


def add_parser(commands: Any) -> None:
    """Add ``carried`` to the host program's commands."""
    parser = command(commands, "carried", _run, "say whether a rendered folder is whole and of the expected lock")
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--lock-digest", default="", metavar="DIGEST", help="as the lock names itself: sha256:…")
    parser.add_argument("--lock-sha256", default="", metavar="SUM", help="of the whole expected lock file")


def _run(arguments: argparse.Namespace) -> int:
    verdict = judge(arguments.folder, arguments.lock_digest, arguments.lock_sha256)
    text = f"{verdict['files']} files, made from the lock {verdict['lock_digest']}"
    print(json.dumps(verdict, sort_keys=True) if arguments.json else "\n".join(verdict["wrong"] or [text]))
    return 30 if verdict["wrong"] else 0


def judge(folder: str, lock_digest: str = "", lock_sha256: str = "") -> Dict[str, Any]:
    """{"wrong": sentences, empty when all is well; "files": how many were read; "lock_digest": which lock made it}.

    lock_digest: the digest in the expected lock.  lock_sha256: the sum of its file.  Never raises OSError.
    """
    try:
        manifest = read(os.path.join(folder, MANIFEST))
    except ValueError as error:
        return {"wrong": [str(error)], "files": 0, "lock_digest": ""}
    files = manifest["files"]
    wrong = [reason for path in sorted(files) for reason in _file(folder, path, files[path])]
    wrong += [f"{path}: it is in the folder, but was not rendered" for path in unlisted_paths(folder, files)]
    made_from = str(manifest.get("lock_digest", ""))
    if lock_digest and lock_digest != made_from:
        wrong.append(f"it was rendered from the lock {made_from}, but {lock_digest} is expected")
    own = next((value for path, value in sorted(files.items()) if os.path.basename(path) == LOCK), "")
    if lock_sha256 and lock_sha256 != own:
        wrong.append(f"it was rendered from another lock than the expected one (sha256 {lock_sha256})")
    return {"wrong": wrong, "files": len(files), "lock_digest": made_from}


def read(path: str) -> Dict[str, Any]:
    """The manifest of a rendered folder; raises ValueError, a sentence, unless it is usable."""
    try:
        manifest = parse(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    if manifest is None:
        raise ValueError(f"{path}: it isn't a manifest of gdsdeploy")
    if manifest.get("version") != VERSION:
        raise ValueError(f"{path}: version {manifest.get('version')!r}; this program reads {VERSION}")
    if not manifest["files"]:
        raise ValueError(f"{path}: it lists no files: the rendering was interrupted")
    return manifest


def parse(path: str) -> Optional[Dict[str, Any]]:
    """A manifest, also an unfinished one; None for any other text.  Raises OSError if it cannot be read."""
    with open(path, encoding="utf-8", errors="replace") as stream:
        text = stream.read()
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        return None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
        return None
    return dict(manifest)


def unlisted_paths(folder: str, files: Dict[str, str]) -> Iterator[str]:
    """Paths below ``folder``, sorted, that are not listed; links to folders count as files."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _OURS_NOT)
        linked = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in sorted([*names, *linked]):
            path = os.path.relpath(os.path.join(place, name), folder)
            if path not in files and path != MANIFEST:
                yield path


def sha256(path: str) -> str:
    """The digest of a regular file; raises OSError, also for any other kind of file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it isn't a regular file")
        digest = hashlib.sha256()
        for piece in iter(lambda: stream.read(_PIECE), b""):
            digest.update(piece)
    return digest.hexdigest()


def _file(folder: str, path: str, digest: str) -> List[str]:
    if os.path.isabs(path) or ".." in path.split("/"):
        return [f"{path}: the manifest points out of the folder"]
    try:
        same = sha256(os.path.join(folder, path)) == digest
    except FileNotFoundError:
        return [f"{path}: it is missing"]
    except OSError as error:
        return [f"{path}: cannot be read: {error.strerror}"]
    return [] if same else [f"{path}: it is not as it was rendered"]
