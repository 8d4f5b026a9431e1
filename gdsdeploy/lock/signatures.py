"""Signatures of locks by OpenSSH: ``ssh-keygen -Y``, with the allowed_signers file that the fleet file names.

A signature covers the bytes that were read; those bytes are then parsed, and no others.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path
from typing import Final

from gdsdeploy import paths, run
from gdsdeploy.errors import FleetInvalid, LockInvalid, MissingProgram, SignatureRefused, SigningKeyUnusable
from gdsdeploy.files import output, yamlfile
from gdsdeploy.host.io import reading
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock

NAMESPACE: Final = "gdsdeploy.lock"
#: The first OpenSSH whose ssh-keygen judges a signer's dates when it looks for the signer.
_OLDEST: Final = (8, 9)
#: Bytes of a signature's file.
_LIMIT: Final = 64 * 1024
_AGAIN: Final = "Review the lock and sign it: gdsdeploy lock --sign KEY {}"
_KEY: Final = (
    "Name a private key of OpenSSH, or the public one of a key in ssh-agent; docs/lock.md shows how to make one"
)
_INSTALL: Final = "Install OpenSSH's client 8.9 or newer (package openssh-client, or openssh-clients)"


def beside(lock: Path) -> Path:
    """The file with the signature of ``lock``."""
    return lock.with_name(lock.name + ".sig")


def require_key(key: Path) -> None:
    """Raise SigningKeyUnusable, MissingProgram unless ``key`` is an OpenSSH key, before anything is resolved."""
    done = run.run([_program(), "-l", "-f", str(key)], doing=f"read {key}", ok=range(256))
    if done.status:
        raise SigningKeyUnusable(f"{key}: no key of OpenSSH: {_first(done)}", hint=_KEY)


def sign(data: bytes, key: Path) -> bytes:
    """The signature of ``data``, the content of a lock, with an OpenSSH key.

    key: a private key, or a public one whose private key the agent has.  Raises SigningKeyUnusable, MissingProgram.
    """
    words = [_program(), "-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key)]
    done = run.run(words, doing="sign a lock", ok=range(256), input=data)
    if done.status:
        raise SigningKeyUnusable(f"{key}: cannot sign with it: {_first(done)}", hint=_KEY)
    return done.stdout.encode()


def write(lock: Path, signature: bytes) -> Path:
    """Write the signature beside ``lock`` in one step, and return its file; raises LockInvalid if it cannot."""
    place = beside(lock)
    yamlfile.require_no_way_out(place, LockInvalid)
    output.write(place, signature, error=LockInvalid)
    return place


def read(lock: Path, fleet_path: Path) -> bytes:
    """The content of the signature beside ``lock``; raises SignatureRefused without one."""
    place, again = beside(lock), _AGAIN.format(fleet_path)
    try:
        return reading.whole(str(place), _LIMIT)
    except FileNotFoundError:
        raise SignatureRefused(f"{lock}: is not signed, but {fleet_path} names signers", hint=again) from None
    except OSError as error:
        raise SignatureRefused(f"{place}: cannot be read: {error.strerror}", hint=again) from None


def require(fleet: Fleet, fleet_path: Path, lock: Path, data: bytes, signature: bytes) -> None:
    """Check that a signer whom the fleet file lists has signed ``data``, the content of the file ``lock``.

    Raises SignatureRefused, FleetInvalid where a file that it names is missing, MissingProgram.
    """
    assert fleet.signers is not None
    again = _AGAIN.format(fleet_path)
    signers = _listed(fleet_path, "signers", fleet.signers)
    revoked = _listed(fleet_path, "revoked_signers", fleet.revoked_signers) if fleet.revoked_signers else None
    program, place = _program(), beside(lock)
    with tempfile.NamedTemporaryFile(prefix="gdsdeploy-signature-") as copy:
        # ssh-keygen reads the signature from a file more than once: it gets the bytes that were read here.
        copy.write(signature)
        copy.flush()

        def ask(verb: str, *words: str | Path) -> run.Completed:
            argv = [program, "-Y", verb, "-s", copy.name, "-n", NAMESPACE, *words]
            return run.run(argv, doing=f"verify {place}", ok=range(256), input=data)

        fits = ask("check-novalidate")
        if fits.status:
            message = f"{place}: is no signature of what {lock} has now: {_first(fits)}"
            raise SignatureRefused(message, hint=again)
        key = next(iter(re.findall(r"\S+ key SHA256:\S+", fits.stdout)), "an unknown key")
        listed = ask("find-principals", "-f", signers)
        if listed.status:
            message = f"{place}: signed with {key}, which is of no signer in {signers} now: {_first(listed)}"
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


def require_own(fleet: Fleet, fleet_path: Path, lock: Lock, lock_path: Path) -> None:
    """Raise SignatureRefused unless ``lock`` is of this fleet: a signer may sign the locks of several."""
    if not lock.fleet_id or not lock.serial:
        message = f"{lock_path}: names no fleet or has no serial, because an older gdsdeploy wrote it"
        raise SignatureRefused(message, hint=f"Write it again: gdsdeploy lock --sign KEY {fleet_path}")
    if not fleet.fleet_id:
        message = f"{fleet_path}: names signers, but not the fleet whose locks they sign"
        hint = f"If this lock is of this fleet, write beside signers: `fleet_id: {lock.fleet_id}`"
        raise SignatureRefused(message, hint=hint)
    if lock.fleet_id != fleet.fleet_id:
        message = f"{lock_path}: is a lock of the fleet {lock.fleet_id}, but {fleet_path} has fleet_id {fleet.fleet_id}"
        hint = f"Put the fleet's own lock there, or write it again: gdsdeploy lock --sign KEY {fleet_path}"
        raise SignatureRefused(message, hint=hint)


def lock_order(fleet: Fleet, lock: Lock) -> tuple[str, int]:
    """The fleet and the serial to which a host compares those of its own lock; empty and 0: it doesn't."""
    # Without signers, everyone who can write the lock chooses it: its order would protect nothing.
    if fleet.signers is None or lock.fleet_id is None:
        return "", 0
    return lock.fleet_id, 0 if fleet.any_serial else lock.serial


def _listed(fleet_path: Path, key: str, name: str) -> Path:
    place = paths.locate(paths.folder_of(fleet_path), name)
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


def _first(done: run.Completed) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[0] if lines else f"{shlex.join(done.argv)} ended with {done.status}"
