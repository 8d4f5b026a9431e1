"""Reads saved evidence, for the controller's verbs and for the program on hosts.

It accepts the output of ``evidence --json``, the JSON of ``validate --with-evidence``, and a support bundle: the
archive, or the folder that it was unpacked to.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from typing import Any, Dict, Tuple

from ..io import jsontext, reading
from ..rootdir import open_file

#: The folder in a support bundle's archive, and the version of its manifest.
FOLDER = "gdsdeploy-support"
VERSION = 1
#: Characters of all files of a bundle that are read.
TOTAL = 64 * 1024 * 1024
#: The name of the host of a file that isn't a bundle.
UNNAMED = ""
_HINT = "Save it on the host: python3 -I -S /usr/lib/gdsdeploy/gdsdeploy-host.pyz evidence --json >FILE"
#: The files of a bundle that are read, and those with evidence, by host.
_MEMBER = re.compile(r"manifest\.json|hosts/[A-Za-z0-9][A-Za-z0-9._-]{0,62}/(evidence|expectation)\.json")
_EVIDENCE = re.compile(r"hosts/([^/]+)/evidence\.json")
#: The first bytes of gzip, and the mark that a tar header has from byte 257 on.
_GZIP, _TAR, _HEADER = b"\x1f\x8b", b"ustar", 512


class EvidenceFileError(Exception):
    """A file can't be used as evidence; ``message`` has the file and the reason, ``hint`` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def read(path: str) -> Dict[str, Dict[str, Any]]:
    """Host → its evidence; one entry with the name UNNAMED for a file that is not a bundle.

    path: ``-`` reads standard input.  Raises EvidenceFileError, also for a bundle without evidence.
    """
    if path != "-" and is_bundle(path):
        _, files = bundle(path)
        names = {match.group(1): name for name in sorted(files) for match in [_EVIDENCE.fullmatch(name)] if match}
        if not names:
            raise EvidenceFileError(f"{path}: this support bundle has no host's evidence", _HINT)
        return {host: document(f"{path}: {name}", files[name]) for host, name in names.items()}
    try:
        text = sys.stdin.read(jsontext.LIMIT + 1) if path == "-" else _text(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError:
        raise EvidenceFileError(f"{path}: not evidence: neither text nor a support bundle", _HINT) from None
    return {UNNAMED: document(path, text)}


def one(path: str, host: str = "") -> Dict[str, Any]:
    """The evidence of one host.  host: selects one in a bundle with several; any other file has one only.

    Raises EvidenceFileError, also where a bundle doesn't have ``host``, or has several hosts and ``host`` is empty.
    """
    by_host = read(path)
    if UNNAMED in by_host:
        return by_host[UNNAMED]
    if host in by_host:
        return by_host[host]
    names = ", ".join(by_host)
    if host:
        raise EvidenceFileError(f"{path}: it has no evidence of {host}; it has that of {names}")
    if len(by_host) > 1:
        hint = "Name one as HOST where the command takes it, or hosts/HOST/evidence.json of the unpacked bundle"
        raise EvidenceFileError(f"{path}: evidence of several hosts: {names}", hint)
    return next(iter(by_host.values()))


def is_bundle(path: str) -> bool:
    """Whether ``path`` is a folder or an archive, damaged or not; raises EvidenceFileError where it cannot be read."""
    if os.path.isdir(path):
        return True
    try:
        header = reading.beginning(path, _HEADER)
    except OSError as error:
        raise _unreadable(path, error) from None
    return header.startswith(_GZIP) or header[257:262] == _TAR


def bundle(path: str) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """(manifest, name → text of each file) of a support bundle, without unpacking it; raises EvidenceFileError."""
    import zlib

    if not is_bundle(path):
        hint = "Validate the evidence of one host with: gdsdeploy-host.pyz validate --evidence FILE --expectation FILE"
        raise EvidenceFileError(f"{path}: isn't a support bundle", hint)
    try:
        files = _folder(path) if os.path.isdir(path) else _archive(path)
        manifest = jsontext.loads(files["manifest.json"])
        version = manifest["version"]
    except OSError as error:
        # Among these are errors of gzip, which have no number.
        raise (_unreadable(path, error) if error.errno else damaged(path, error)) from None
    except (zlib.error, EOFError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from None
    if version != VERSION:
        raise EvidenceFileError(f"{path}: a bundle of version {str(version)[:20]}; this program reads {VERSION}")
    return manifest, files


def damaged(path: str, error: Exception) -> EvidenceFileError:
    """The error for a file that isn't a support bundle, or has lost a part."""
    words = f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
    hint = f"Make it again: gdsdeploy support-bundle FLEET -o {shlex.quote(path)}"
    return EvidenceFileError(f"{path}: isn't a support bundle, or is a damaged one ({words})", hint)


def document(where: str, text: str) -> Dict[str, Any]:
    """The evidence in the JSON ``text``, at its top or as ``evidence``.  Raises EvidenceFileError naming ``where``."""
    try:
        value = jsontext.loads(text)
    except ValueError as error:
        raise EvidenceFileError(f"{where}: not evidence: {error}", _HINT) from None
    inside = value.get("evidence") if isinstance(value, dict) else None
    evidence = inside if isinstance(inside, dict) else value
    if not isinstance(evidence, dict) or not isinstance(evidence.get("files"), dict):
        raise EvidenceFileError(f"{where}: not evidence: JSON of another kind, without the files of a host", _HINT)
    return evidence


def _text(path: str) -> str:
    """The beginning of a file: one character more than the limit of JSON."""
    with io.TextIOWrapper(open_file(path), encoding="utf-8") as file:
        return file.read(jsontext.LIMIT + 1)


def _unreadable(path: str, error: OSError) -> EvidenceFileError:
    return EvidenceFileError(f"{path}: cannot be read: {error.strerror or error}", reading.look(path))


def _archive(path: str) -> Dict[str, str]:
    from ..io import tarball

    files = tarball.files(path, lambda name: bool(_MEMBER.fullmatch(_inside(name))), jsontext.LIMIT)
    return {_inside(name): content.decode() for name, content in files.items()}


def _folder(path: str) -> Dict[str, str]:
    """Links are not followed: a bundle has none."""
    top = os.path.join(path, FOLDER) if os.path.isdir(os.path.join(path, FOLDER)) else path
    files: Dict[str, str] = {}
    folder = os.path.join(top, "hosts")
    hosts = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    names = [f"hosts/{host}/{name}.json" for host in hosts for name in ("evidence", "expectation")]
    for name in ("manifest.json", *filter(_MEMBER.fullmatch, names)):
        file = os.path.join(top, name)
        if os.path.isfile(file) and not os.path.islink(file):
            files[name] = _text(file)
        if sum(map(len, files.values())) > TOTAL:
            raise ValueError(f"its files have more than {TOTAL} characters")
    return files


def _inside(name: str) -> str:
    return re.sub(f"^{FOLDER}/", "", name)
