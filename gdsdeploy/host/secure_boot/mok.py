"""Make a key for modules with openssl, and request its enrolment with mokutil.

A person at the machine's or its BMC's console confirms the enrolment to shim with a one-time password.  It is generated
here and stored in a file that only root can read; no output and no command line has it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from typing import Any, Dict, List, Sequence

from .. import process
from ..errors import HostError
from ..io import atomic
from ..io.wording import first_few
from .certificate import Certificate
from .firmware import OFF, WORDS, Firmware, firmware
from .signing import last_line, read_certificate_file

#: For root only, until the enrolment is confirmed.
ONE_TIME = "/var/lib/gdsdeploy-mok-password"
_TIMEOUT = 120.0
#: Easy to type blindly on a BMC's console with any keyboard layout.
_LETTERS, _LENGTH = "abcdefghkmnprstuvwx23456789", 10
#: From the kernel's documentation (module-signing.rst), with the usage that keeps shim from booting what the key signs.
_REQUEST = """\
[req]
distinguished_name = name
x509_extensions = extensions
string_mask = utf8only
prompt = no

[name]
CN = {name}

[extensions]
basicConstraints = critical,CA:FALSE
keyUsage = digitalSignature
extendedKeyUsage = codeSigning,1.3.6.1.4.1.2312.16.1.2
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


_RESUME = "run gdsdeploy provision again: it resumes once the key is enrolled"
_REPEAT = "run gdsdeploy kmod unenrol again: it says whether the key is gone"


class MokError(HostError):
    """A key, or the request to enrol it, can't be made."""

    exit_code = 1


def make_key(key: str, certificate: str, name: str, days: int) -> Certificate:
    """Make an RSA key and its certificate (DER), valid for ``days``; raises MokError where either file exists."""
    for path in (key, certificate):
        if os.path.lexists(path):
            raise MokError(f"{path} already exists", "move it; a new key has to be enrolled again")
    if not name or any(char in name for char in "\n$\\#[]") or days < 1:
        raise MokError(f"{name!r} for {days} days makes no certificate", "give a name and some days")
    _make_folders(key, certificate)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=os.path.dirname(os.path.abspath(key))) as folder:
        request, new = os.path.join(folder, "request.conf"), os.path.join(folder, "key")
        with open(request, "w", encoding="utf-8") as file:
            file.write(_REQUEST.format(name=name))
        argv = ["openssl", "req", "-new", "-x509", "-nodes", "-newkey", "rsa:2048", "-sha256", "-days", str(days)]
        argv += ["-config", request, "-keyout", new, "-outform", "DER", "-out", new + ".der"]
        done = process.run(argv, _TIMEOUT)
        if done.status != 0:
            hint = "install openssl" if done.status == process.NOT_FOUND else ""
            raise MokError(f"openssl made no key: {last_line(done)}", hint)
        os.chmod(new, 0o600)
        os.chmod(new + ".der", 0o644)
        try:
            # Links, not renames: they never overwrite a file that was created meanwhile.
            os.link(new + ".der", certificate)
            os.link(new, key)
        except OSError as error:
            raise MokError(f"cannot write {key} and {certificate}: {error.strerror}") from None
    return read_certificate_file(certificate)


def _make_folders(key: str, certificate: str) -> None:
    try:
        for path, mode in ((key, 0o700), (certificate, None)):
            folder = os.path.dirname(os.path.abspath(path))
            atomic.make_folder(folder, None if os.path.isdir(folder) else mode)
    except OSError as error:
        raise MokError(f"cannot write {key} and {certificate}: {error.strerror}") from None


def enrol(owners: Certificate, root: str = "/", check: bool = False, where_needed: bool = False) -> Dict[str, Any]:
    """Ask the firmware to enrol a key, by its certificate, at the next boot, unless it has it; idempotent.

    check: change nothing.  where_needed: nor if Secure Boot is off.  Returns ``{"state", "changed", "secure_boot",
    "fingerprint", "steps": [text]}``; state: one of ENROLMENTS.  Raises MokError.
    """
    host = firmware(root)
    state = enrolment(owners, host, where_needed=where_needed)
    changed = state == "absent"
    if changed and not check:
        _request("--import", owners)
        state = "pending"
    elif state == "revoked" and not check:
        message = f"this host's firmware or shim has revoked the key {owners.subject!r} ({owners.fingerprint})"
        raise MokError(message, "sign the modules with another key: gdsdeploy kmod keygen makes one")
    elif state == "enrolled" and not check and not host.leaving:
        _forget(root)
    return _answer(state, owners, host, changed, _steps("Enroll MOK", owners, _RESUME) if state == "pending" else [])


def unenrol(owners: Certificate, root: str = "/", check: bool = False, in_use: Sequence[str] = ()) -> Dict[str, Any]:
    """Ask the firmware to delete a key, by its certificate, from the machine owner's keys at the next boot; idempotent.

    in_use: files of modules that are signed with it; any of them is a refusal.  Returns as :func:`enrol`.
    Raises MokError.
    """
    host = firmware(root)
    state = enrolment(owners, host)
    if state == "pending":
        raise MokError("the key isn't enrolled yet: its enrolment is pending", "gdsdeploy kmod enrol --withdraw")
    changed = state == "enrolled"
    if changed and in_use:
        message = f"modules are signed with the key, and would no longer load without it: {first_few(in_use, 3)}"
        raise MokError(message, "sign them with another enrolled key first, and remove kernels that aren't in use")
    if changed and host.requested:
        raise MokError("a request to enrol another key is pending", "confirm it at the next boot first, or withdraw it")
    if changed and not check:
        _request("--delete", owners)
        state = "leaving"
    elif state == "absent" and not check and not host.requested:
        _forget(root)
    return _answer(state, owners, host, changed, _steps("Delete MOK", owners, _REPEAT) if state == "leaving" else [])


def withdraw(root: str = "/", check: bool = False) -> Dict[str, Any]:
    """Withdraw pending requests to enrol or delete keys; idempotent.

    Returns ``{"changed", "withdrawn": [subject]}``.  Raises MokError.
    """
    host = firmware(root)
    options = {"--revoke-import": host.requested, "--revoke-delete": host.leaving}
    for option, keys in options.items():
        if keys and not check:
            done = process.run(["mokutil", option], _TIMEOUT)
            if done.status != 0:
                hint = "install mokutil" if done.status == process.NOT_FOUND else f"run it by hand: mokutil {option}"
                raise MokError(f"mokutil didn't withdraw the request: {last_line(done)}", hint)
    withdrawn = [key.subject for keys in options.values() for key in keys]
    if not check:
        _forget(root)
    return {"changed": bool(withdrawn), "withdrawn": withdrawn}


#: States of a key in the firmware → what a person reads.
ENROLMENTS = {
    "no-efi": "this host was not started by EFI: there is nothing to enrol a key in",
    "enrolled": "the key is enrolled",
    "firmware": "the firmware itself has the key (db)",
    "pending": "the key is to be enrolled at the next boot, by a person at the console:",
    "leaving": "the key is to be deleted at the next boot, by a person at the console:",
    "absent": "the key is not enrolled",
    "not-needed": f"the key is not enrolled; {WORDS[OFF]}",
    "revoked": "this host's firmware or shim has revoked the key",
}


def enrolment(certificate: Certificate, state: Firmware, *, where_needed: bool = False) -> str:
    """The state of a key before anything is asked of the firmware: one of ENROLMENTS."""
    if not state.efi:
        return "no-efi"
    lists = {
        "revoked": state.revoked,
        "leaving": state.leaving,
        "enrolled": state.mok,
        "firmware": state.db,
        "pending": state.requested,
    }
    for name, keys in lists.items():
        if certificate.raw in [key.raw for key in keys]:
            return name
    return "not-needed" if where_needed and state.secure_boot is False else "absent"


def _answer(state: str, owners: Certificate, host: Firmware, changed: bool, steps: List[str]) -> Dict[str, Any]:
    answer = {"changed": changed, "secure_boot": host.secure_boot, "fingerprint": owners.fingerprint}
    return {**answer, "state": state, "steps": steps}


def _steps(entry: str, certificate: Certificate, last: str) -> List[str]:
    """What the operator does, in order.  entry: of MokManager's menu.  last: after the boot."""
    return [
        f"read the one-time password on the host before it reboots: sudo cat {ONE_TIME}",
        "open the host's console (screen, or the BMC's remote console) and reboot it",
        'within 10 s of the blue screen "Shim UEFI key management", press any key',
        f"choose {entry}, View key 0: the SHA1 fingerprint has to be {certificate.fingerprint}",
        "choose Continue, Yes, type the password (nothing is shown), then Reboot",
        last,
    ]


def one_time_password() -> str:
    """The password of the pending request; empty: this host has none, or may not read it."""
    try:
        with open(ONE_TIME, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _forget(root: str) -> None:
    """Delete the one-time password of a request that is no longer pending."""
    if root == "/":
        with contextlib.suppress(FileNotFoundError):
            os.unlink(ONE_TIME)


def _request(option: str, owners: Certificate) -> None:
    """Have mokutil make a request; option: --import or --delete."""
    password = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-mok-") as folder:
        hashed = process.run(["openssl", "passwd", "-6", "-stdin"], _TIMEOUT, input=password + "\n")
        if hashed.status != 0:
            raise MokError(f"openssl made no hash: {last_line(hashed)}", "install openssl")
        path = os.path.join(folder, "hash")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(hashed.stdout.strip())
        # mokutil takes DER only.
        binary = os.path.join(folder, "certificate.der")
        with open(binary, "wb") as out:
            out.write(owners.raw)
        # Stored first: a request with a lost password could only be withdrawn.
        try:
            atomic.write(ONE_TIME, password + "\n", 0o600)
        except OSError as error:
            raise MokError(f"cannot write {ONE_TIME}: {error.strerror}", "run it as root") from None
        done = process.run(["mokutil", option, binary, "--hash-file", path], _TIMEOUT)
    if done.status != 0:
        os.unlink(ONE_TIME)
        hint = "install mokutil" if done.status == process.NOT_FOUND else f"run mokutil {option} CERTIFICATE by hand"
        raise MokError(f"mokutil refused the request for {owners.subject!r}: {last_line(done)}", hint)
