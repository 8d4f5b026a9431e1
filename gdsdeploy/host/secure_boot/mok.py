"""Make a key for modules with openssl, and request its enrolment with mokutil.

A person at the machine's or its BMC's console confirms the enrolment to shim with a one-time password.  It is generated
here and stored in a file that only root can read; no output and no command line has it.
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
from .signing import last_line, read_certificate_file
from .trust import Firmware, firmware

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


def enrol(certificate: str, root: str = "/", check: bool = False, where_needed: bool = False) -> Dict[str, Any]:
    """Ask the firmware to enrol ``certificate`` at the next boot, unless it has it; idempotent.

    check: change nothing.  where_needed: nor if Secure Boot is off.  Returns ``{"state", "changed", "secure_boot",
    "fingerprint", "steps": [text]}``; state: ``no-efi``, ``enrolled``, ``pending`` (a person has to confirm at the
    console), ``not-needed``, or ``absent`` (with check).  Raises MokError.
    """
    owners = read_certificate_file(certificate)
    host = firmware(root)
    state = enrolment(owners, host, where_needed=where_needed)
    changed = state == "absent"
    if changed and not check:
        _request(certificate, owners)
        state = "pending"
    elif state == "enrolled" and root == "/" and not check and os.path.exists(ONE_TIME):
        os.unlink(ONE_TIME)
    answer = {"changed": changed, "secure_boot": host.secure_boot, "fingerprint": owners.fingerprint}
    return {**answer, "state": state, "steps": steps(owners) if state == "pending" else []}


def enrolment(certificate: Certificate, state: Firmware, *, where_needed: bool = False) -> str:
    """The state of :func:`enrol` before anything is asked of the firmware."""
    if not state.efi:
        return "no-efi"
    if certificate.raw in [key.raw for key in state.mok]:
        return "enrolled"
    if certificate.raw in [key.raw for key in state.requested]:
        return "pending"
    return "not-needed" if where_needed and state.secure_boot is False else "absent"


def steps(certificate: Certificate) -> List[str]:
    """What the operator does, in order."""
    return [
        f"read the one-time password on the host before it reboots: sudo cat {ONE_TIME}",
        "open the host's console (screen, or the BMC's remote console) and reboot it",
        'within 10 s of the blue screen "Shim UEFI key management", press any key',
        f"choose Enroll MOK, View key 0: the SHA1 fingerprint has to be {certificate.fingerprint}",
        "choose Continue, Yes, type the password (nothing is shown), then Reboot",
        "run gdsdeploy provision again: it resumes once the key is enrolled",
    ]


def _request(certificate: str, owners: Certificate) -> None:
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
        done = process.run(["mokutil", "--import", binary, "--hash-file", path], _TIMEOUT)
    if done.status != 0:
        os.unlink(ONE_TIME)
        hint = "install mokutil" if done.status == process.NOT_FOUND else f"run mokutil --import {certificate} by hand"
        raise MokError(f"mokutil refused the request to enrol {certificate}: {last_line(done)}", hint)
