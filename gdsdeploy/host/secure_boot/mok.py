"""Make a key for modules, and have the machine's owner enrol it: with openssl and mokutil, step by step.

Enrolling takes a person at the machine's console (or its BMC's): shim asks before it takes a key, and for a password
that was chosen when the request was made.  It is made here, good for this request only, and left in a file that only
root can read; it is in no output and no command line.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from typing import Any, Dict, List

from .. import process
from ..errors import HostError
from ..io import atomic
from .certificate import Certificate
from .signing import read_certificate_file
from .trust import Firmware, firmware

#: Root only, until the request was answered.
ONE_TIME = "/var/lib/gdsdeploy-mok-password"
_TIMEOUT = 120.0
#: Easy to type on the console of a BMC with any layout of keys, in a screen that shows nothing.
_LETTERS, _LENGTH = "abcdefghkmnprstuvwx23456789", 10
#: As the kernel's documentation has it (module-signing.rst), with the use that keeps shim from starting what it signs.
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


class MokError(HostError):
    """A key cannot be made, or a request to enrol it cannot."""

    exit_code = 1


def make_key(key: str, certificate: str, name: str, days: int) -> Certificate:
    """Make an RSA key and its certificate (DER), valid for ``days``; raises MokError where either file exists."""
    for path in (key, certificate):
        if os.path.lexists(path):
            raise MokError(f"{path} is there already", "a new key has to be enrolled again; move the old one")
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
            raise MokError(f"openssl made no key: {_said(done)}", hint)
        os.chmod(new, 0o600)
        os.chmod(new + ".der", 0o644)
        try:
            # Links and not renames: a file that came between is not overwritten.
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


def enrol(certificate: str, root: str = "/", check: bool = False, where_needed: bool = False) -> Dict[str, Any]:
    """Ask the firmware to enrol ``certificate`` at the next boot, unless it has it; idempotent.

    check: change nothing.  where_needed: nor where Secure Boot is off.  Returns ``{"state", "changed", "secure_boot",
    "fingerprint", "steps": [text]}``; state is ``no-efi`` (nothing to enrol in), ``enrolled``, ``pending`` (asked; a
    person has to confirm at the console), ``not-needed``, or ``absent`` (with check).  Raises MokError.
    """
    found = read_certificate_file(certificate)
    state = firmware(root)
    answer: Dict[str, Any] = {"changed": False, "secure_boot": state.secure_boot, "fingerprint": found.fingerprint}
    answer.update(state=enrolment(found, state, where_needed=where_needed), steps=[])
    if answer["state"] == "absent":
        answer["changed"] = True
        if not check:
            _request(certificate, found)
            answer["state"] = "pending"
    if answer["state"] == "pending":
        answer["steps"] = steps(found)
    elif answer["state"] == "enrolled" and root == "/" and not check and os.path.exists(ONE_TIME):
        os.unlink(ONE_TIME)
    return answer


def enrolment(certificate: Certificate, state: Firmware, *, where_needed: bool = False) -> str:
    """The state of :func:`enrol` before anything is asked of the firmware."""
    found = _state(state, certificate)
    return "not-needed" if found == "absent" and where_needed and state.secure_boot is False else found


def steps(certificate: Certificate) -> List[str]:
    """What the operator does, in order."""
    return [
        f"read the one-time password on the host before it reboots: sudo cat {ONE_TIME}",
        "open the host's console (screen, or the BMC's remote console) and reboot it",
        'within 10 s of the blue screen "Shim UEFI key management", press any key',
        f"choose Enroll MOK, View key 0: the SHA1 fingerprint has to be {certificate.fingerprint}",
        "choose Continue, Yes, type the password (nothing is shown), then Reboot",
        "run gdsdeploy provision again: it goes on once the key is enrolled",
    ]


def _state(state: Firmware, certificate: Certificate) -> str:
    if not state.efi:
        return "no-efi"
    if certificate.raw in [item.raw for item in state.mok]:
        return "enrolled"
    return "pending" if certificate.raw in [item.raw for item in state.wanted] else "absent"


def _request(certificate: str, found: Certificate) -> None:
    password = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-mok-") as folder:
        hashed = process.run(["openssl", "passwd", "-6", "-stdin"], _TIMEOUT, input=password + "\n")
        if hashed.status != 0:
            raise MokError(f"openssl made no hash: {_said(hashed)}", "install openssl")
        path = os.path.join(folder, "hash")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(hashed.stdout.strip())
        # As mokutil wants it, whatever the file has.
        binary = os.path.join(folder, "certificate.der")
        with open(binary, "wb") as out:
            out.write(found.raw)
        # Kept first: a request whose password nobody knows could only be withdrawn.
        _keep(password)
        done = process.run(["mokutil", "--import", binary, "--hash-file", path], _TIMEOUT)
    if done.status != 0:
        os.unlink(ONE_TIME)
        hint = "install mokutil" if done.status == process.NOT_FOUND else f"mokutil --import {certificate} says more"
        raise MokError(f"the request to enrol {certificate} was not taken: {_said(done)}", hint)


def _keep(password: str) -> None:
    try:
        atomic.write(ONE_TIME, password + "\n", 0o600)
    except OSError as error:
        raise MokError(f"cannot write {ONE_TIME}: {error.strerror}", "run it as root") from None


def _said(done: process.Output) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit status {done.status}"
