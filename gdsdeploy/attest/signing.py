"""Sign a lock or a validation and write the statement."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from securesystemslib.signer import Signer

from gdsdeploy import atomic, console
from gdsdeploy.attest import dsse, keys, statement
from gdsdeploy.attest.verify import SUFFIX
from gdsdeploy.errors import GdsError
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.report import json as json_object
from gdsdeploy.report.model import Report
from gdsdeploy.validate.fleet_validation import utc_now

VALIDATION = f"validation{SUFFIX}"


def open_signer(path: Path | None) -> Signer:
    """The signer of the key in ``path``, or of the operator's own, made at first use; raises SigningKeyUnusable."""
    own = keys.default()
    is_new = path is None and not own.exists()
    signer = keys.signer(path)
    others = f"; others verify with {own.with_suffix('.pub')}" if path is None else ""
    verb = "Made a key to sign with" if is_new else "Signing with"
    console.say(f"{verb}: {path or own} (key {signer.public_key.keyid[:16]}){others}")
    return signer


def of_lock(fleet: Path, signer: Signer) -> None:
    """Sign the lock beside ``fleet``; raises GdsError where a file cannot be read or written."""
    path = lockfile.beside(fleet)
    digest = lockfile.read(path).digest
    payload = statement.of_lock(_read(path), _read(fleet), digest=digest, who=_user_at_host(), when=utc_now())
    _write({path.with_name(path.name + SUFFIX): dsse.seal(payload, signer)})


def require_target(target: Path) -> None:
    """Raise GdsError if ``target`` is neither a file of statements nor a folder; call it before hosts are asked."""
    if target.exists() and not target.is_dir() and not _is_file(target):
        raise GdsError(f"{target}: is a file", hint="Name a folder, or a .json file for the statement alone")


def _is_file(target: Path) -> bool:
    return target.suffix == ".json" and not target.is_dir()


def of_validation(report: Report, fleet: Path, target: Path, signer: Signer, only: Sequence[str] = ()) -> None:
    """Sign ``report``; write the statement to the file ``target``, or with its files to a folder.  Raises GdsError.

    only: the selected checks; empty: all.
    """
    text, lock = json_object.render(report).encode(), _read(lockfile.beside(fleet))
    hosts = {host.host for host in report.hosts}
    left_out = [name for name in load_fleet(fleet).hosts if name not in hosts]
    payload = statement.of_validation(
        report, text, lock, _read(fleet), only=only, left_out=left_out, who=_user_at_host(), when=utc_now()
    )
    sealed = dsse.seal(payload, signer)
    if _is_file(target):
        _write({target: sealed})
        return
    try:
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise GdsError(f"{target}: cannot be created: {error.strerror}") from None
    _write({target / "report.json": text, target / "gdsdeploy.lock": lock, target / VALIDATION: sealed})


def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GdsError(f"{path}: cannot be read: {error.strerror}") from None


def _write(files: Mapping[Path, bytes]) -> None:
    for path, data in files.items():
        try:
            atomic.write(path, data)
        except OSError as error:
            raise GdsError(f"{path}: cannot be written: {error.strerror}") from None
        console.say(f"Wrote {path}")
