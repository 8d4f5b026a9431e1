"""Signatures of locks by OpenSSH: ``ssh-keygen -Y``, with the allowed_signers file that the fleet file names.

A signature covers the bytes that were read; those bytes are then parsed, and no others.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path
from typing import Any, Final

from gdsdeploy import atomic, paths, run
from gdsdeploy.errors import FleetInvalid, LockInvalid, MissingProgram, SignatureRefused, SigningKeyUnusable
from gdsdeploy.host.io import reading
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock

NAMESPACE: Final = "gdsdeploy.lock"
#: The first OpenSSH whose ssh-keygen judges a signer's dates when it looks for the signer.
_OLDEST: Final = (8, 9)
#: Bytes of a signature's file.
_LIMIT: Final = 64 * 1024
_INSTALL: Final = "Install OpenSSH's client 8.9 or newer (package openssh-client, or openssh-clients)"


def beside(lock: Path) -> Path:
    """The file with the signature of ``lock``."""
    return lock.with_name(lock.name + ".sig")


def sign(lock: Path, key: Path) -> Path:
    """Sign the file ``lock`` with an OpenSSH key, and return the file with the signature.

    key: a private key, or a public one whose private key the agent has.  Raises SigningKeyUnusable, MissingProgram.
    """
    program, place = _program(), beside(lock)
    words = [program, "-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key)]
    done = run.run(words, doing=f"sign {lock}", ok=range(256), input=_bytes(lock))
    if done.status:
        hint = (
            "Name a private key of OpenSSH, or the public one of a key in ssh-agent; docs/lock.md shows how to make one"
        )
        raise SigningKeyUnusable(f"{key}: cannot sign with it: {_last(done)}", hint=hint)
    try:
        atomic.write(place, done.stdout, mode=0o644)
    except OSError as error:
        raise LockInvalid(f"{place}: cannot be written: {error.strerror}") from None
    return place


def require(fleet: Fleet, fleet_path: Path, lock: Path, data: bytes) -> bytes:
    """The signature of ``data``, the content of the file ``lock``, by a signer that the fleet file lists.

    Raises SignatureRefused, FleetInvalid where a file that it names is missing, MissingProgram.
    """
    assert fleet.signers is not None
    again = f"Review the lock and sign it: gdsdeploy lock --sign KEY {fleet_path}"
    signers = _listed(fleet_path, "signers", fleet.signers)
    revoked = _listed(fleet_path, "revoked_signers", fleet.revoked_signers) if fleet.revoked_signers else None
    program, place = _program(), beside(lock)
    try:
        signature = reading.whole(str(place), _LIMIT)
    except FileNotFoundError:
        raise SignatureRefused(f"{lock}: is not signed, but {fleet_path} names signers", hint=again) from None
    except OSError as error:
        raise SignatureRefused(f"{place}: cannot be read: {error.strerror}", hint=again) from None
    with tempfile.NamedTemporaryFile(prefix="gdsdeploy-signature-") as copy:
        # ssh-keygen reads the signature from a file more than once: it gets the bytes that were read here.
        copy.write(signature)
        copy.flush()

        def ask(verb: str, *words: str | Path) -> run.Completed:
            argv = [program, "-Y", verb, "-s", copy.name, "-n", NAMESPACE, *words]
            return run.run(argv, doing=f"verify {place}", ok=range(256), input=data)

        fits = ask("check-novalidate")
        if fits.status:
            message = f"{place}: is no signature of what {lock} has now: {_last(fits)}"
            raise SignatureRefused(message, hint=again)
        key = next(iter(re.findall(r"\S+ key SHA256:\S+", fits.stdout)), "an unknown key")
        listed = ask("find-principals", "-f", signers)
        if listed.status:
            message = f"{place}: signed with {key}, which is of no signer in {signers} now: {_last(listed)}"
            raise SignatureRefused(message, hint=f"Let a listed signer sign it: gdsdeploy lock --sign KEY {fleet_path}")
        names = [name.split(",")[0] for name in listed.stdout.splitlines()]
        accepted = [name for name in names if not ask("verify", "-f", signers, "-I", name).status]
        valid = revoked is None or any(
            not ask("verify", "-f", signers, "-I", n, "-r", revoked).status for n in accepted
        )
    another = f"Let another signer sign it: gdsdeploy lock --sign KEY {fleet_path}"
    if not accepted:
        message = f"{place}: {signers} lets the signer of {key} sign other things only, not {NAMESPACE}"
        raise SignatureRefused(message, hint=another)
    if not valid:
        raise SignatureRefused(f"{place}: signed with {key}, which {revoked} revokes", hint=another)
    return signature


def require_own(fleet: Fleet, fleet_path: Path, lock: Lock, lock_path: Path) -> None:
    """Raise SignatureRefused unless ``lock`` is of this fleet: a signer may sign the locks of several."""
    if not lock.fleet_id:
        message = f"{lock_path}: names no fleet, because an older gdsdeploy wrote it"
        raise SignatureRefused(message, hint=f"Write it again: gdsdeploy lock --sign KEY {fleet_path}")
    if not fleet.fleet_id:
        message = f"{fleet_path}: names signers, but not the fleet whose locks they sign"
        hint = f"If this lock is of this fleet, write beside signers: `fleet_id: {lock.fleet_id}`"
        raise SignatureRefused(message, hint=hint)
    if lock.fleet_id != fleet.fleet_id:
        message = f"{lock_path}: is a lock of the fleet {lock.fleet_id}, but {fleet_path} has fleet_id {fleet.fleet_id}"
        hint = f"Put the fleet's own lock there, or write it again: gdsdeploy lock --sign KEY {fleet_path}"
        raise SignatureRefused(message, hint=hint)


def lock_order(fleet: Fleet, lock: Lock) -> dict[str, Any]:
    """The variables with which a host compares this lock to its own; empty values: it doesn't."""
    # Without signers, everyone who can write the lock chooses it: its order would protect nothing.
    values = (lock.fleet_id or "", lock.serial) if fleet.signers else ("", 0)
    return dict(zip(("gds_preflight_fleet_id", "gds_preflight_lock_serial"), values, strict=True))


def _listed(fleet_path: Path, key: str, name: str) -> Path:
    place = paths.locate(fleet_path.parent, name)
    if not place.is_file():
        words = "is not a file" if place.exists() else "there is no such file"
        raise FleetInvalid(f"{fleet_path}: {key}: {place}: {words}", hint=f"Correct {key}; docs/lock.md shows its form")
    return place


def _program() -> str:
    """ssh-keygen, of an OpenSSH that is new enough; raises MissingProgram."""
    program = run.which("ssh-keygen", hint=_INSTALL)
    shown = run.run([run.which("ssh", hint=_INSTALL), "-V"], doing="ask ssh for its version", hint=_INSTALL)
    version = re.search(r"OpenSSH_([0-9]+)\.([0-9]+)", shown.stderr + shown.stdout)
    if version is None or tuple(map(int, version.groups())) < _OLDEST:
        words = f"OpenSSH {'.'.join(version.groups())}" if version else "an ssh that isn't OpenSSH"
        raise MissingProgram(f"{program}: this machine has {words}; signatures of locks need 8.9", hint=_INSTALL)
    return program


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LockInvalid(f"{path}: cannot be read: {error.strerror}") from None


def _last(done: run.Completed) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[0] if lines else f"{shlex.join(done.argv)} ended with {done.status}"
