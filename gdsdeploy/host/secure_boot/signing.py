"""Sign modules with the kernel's own scripts/sign-file: after stripping, before compression; the result is verified.

The private key is a file that only its owner may read, or a signer holds it: a program that gets the module on standard
input and prints the detached PKCS#7 signature (DER), like ``openssl cms -sign -binary -noattr -nocerts -outform DER``.

Make a key for modules with openssl, and request its enrolment with mokutil.

A person at the machine's or its BMC's console confirms the enrolment to shim with a one-time password.  It is generated
here and stored in a file that only root can read; no output and no command line has it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import lzma
import os
import re
import secrets
import shutil
import stat
import tempfile
from typing import IO, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import process
from ..errors import HostError, failing
from ..io import atomic
from ..io.atomic import exposure
from ..io.wording import first_few
from ..kmod.files import CHUNK, Elf, open_plain
from ..kmod.kernel import Kernel
from ..kmod.packaged import FOLDER, MANIFEST
from ..rootdir import inside
from .certificate import Certificate, read_certificate
from .firmware import OFF, WORDS, Firmware, firmware
from .signature import MalformedError, UnsupportedError, read_signature, verifies

#: What the role writes; see :func:`read_settings`.
SETTINGS = "/etc/gdsdeploy/signing.json"
_CERTIFICATE_LIMIT = 1 << 16
_SIGNATURE_LIMIT = 1 << 16
#: A signer may have to ask a person for a touch.
_TIMEOUT = 300.0
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([^-]+)-----END CERTIFICATE-----")
#: The kernel's own unpacker supports only this check; 2 MiB is the maximum of its builds.
_XZ_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 2 << 20}]


class SigningError(HostError):
    """A module can't be signed, or the result doesn't verify: it is unchanged.  Or a key or a request can't be made."""

    exit_code = 1


class Signer(NamedTuple):
    """The signer of modules: the file ``key`` or the program ``command``."""

    certificate: Certificate
    #: the certificate's file, PEM or DER
    path: str
    key: str = ""
    command: Tuple[str, ...] = ()


def read_settings(path: str = SETTINGS) -> Dict[str, Any]:
    """``{"certificate": FILE, "key": FILE, "signer": [ARG, …]}``; empty without the file.  Raises SigningError."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SigningError(f"{path}: cannot be read: {error}", "run gdsdeploy provision again") from None
    if not isinstance(value, dict) or not all(isinstance(value.get(key, ""), str) for key in ("certificate", "key")):
        raise SigningError(f"{path}: has no certificate", "run gdsdeploy provision again")
    command = value.get("signer", [])
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise SigningError(f"{path}: signer isn't a list of words", "run gdsdeploy provision again")
    return value


def signer(certificate: str, key: str = "", command: Sequence[str] = ()) -> Signer:
    """The signer with that certificate; raises SigningError unless its key can be used, and only by its owner."""
    if bool(key) == bool(command):
        raise SigningError("either a key or a signer is needed", "pass --key FILE, or set signer in the fleet file")
    parsed = read_certificate_file(certificate)
    if key and not key.startswith("pkcs11:"):
        _check_key(key)
    return Signer(parsed, certificate, key, tuple(command))


def read_certificate_file(path: str) -> Certificate:
    """The certificate in a file, PEM or DER; raises SigningError."""
    hint = "gdsdeploy kmod keygen makes a key and its certificate"
    with failing(SigningError, f"{path}: cannot be read", hint), open(path, "rb") as file:
        return parse_certificate(file.read(_CERTIFICATE_LIMIT), path)


def parse_certificate(data: bytes, path: str) -> Certificate:
    """The certificate in ``data``, PEM or DER, of the file ``path``; raises SigningError."""
    pem = _PEM.search(data)
    try:
        return read_certificate(base64.b64decode(pem.group(1)) if pem else data)
    except ValueError as error:
        raise SigningError(f"{path}: isn't a certificate: {error}", "give one as PEM or DER") from None


def sign(kernel: Kernel, files: Sequence[str], by: Signer, check: bool = False) -> List[Dict[str, Any]]:
    """Have every one of ``files`` signed by ``by``; signed ones stay unchanged.

    check: change nothing.  Returns ``[{"file", "changed"}]``.  Raises SigningError; then every file is either unchanged
    or completely signed.
    """
    tool = "" if check else sign_file(kernel)
    done = []
    for path in files:
        if os.path.isfile(os.path.join(os.path.dirname(path), MANIFEST)) and FOLDER in path:
            raise SigningError(f"{path}: was received; its builder signs it", "sign it on the builder")
        changed = not is_signed(path, by.certificate)
        if changed and not check:
            _sign(tool, kernel, path, by)
        done.append({"file": path, "changed": changed})
    return done


def is_signed(path: str, certificate: Certificate) -> bool:
    """Whether the module in ``path`` is signed with the key of ``certificate``, as it is; raises OpensslError, too."""
    with open_plain(path, SigningError) as file:
        try:
            signature = read_signature(file)
        except (MalformedError, UnsupportedError):
            return False
        return signature is not None and signature.is_by(certificate) and verifies(signature, file, certificate)


def sign_file(kernel: Kernel) -> str:
    """The kernel's own tool for signing, on this machine; raises SigningError when it is not installed."""
    release = kernel.release
    # Debian has it in a separate package, to which the headers link; Ubuntu also as kmodsign.
    folders = (f"/lib/modules/{release}/build", f"/usr/lib/linux-kbuild-{release.rsplit('-', 1)[0]}")
    places = [inside(kernel.root, folder + "/scripts/sign-file") for folder in folders]
    places.append(shutil.which("kmodsign", path=process.search_path()) or "")
    tool = next((place for place in places if os.access(place, os.X_OK)), "")
    if not tool:
        message = f"kernel {release} has no scripts/sign-file: its headers are not installed"
        raise SigningError(message, f"install linux-headers-{release} (kernel-devel-{release} on RHEL)")
    return tool


def _check_key(path: str) -> None:
    hint = "gdsdeploy kmod keygen makes one; it has to be on the machine that builds"
    with failing(SigningError, f"the key {path} cannot be used", hint):
        state = os.stat(path)
    exposed = exposure(path, state)
    if exposed:
        raise SigningError(f"the key {path} {exposed[0]}", f"{exposed[1]}; if others had it, make and enrol a new one")


def _sign(tool: str, kernel: Kernel, path: str, by: Signer) -> None:
    suffix = os.path.splitext(path)[1]
    folder = tempfile.mkdtemp(prefix="gdsdeploy-sign-")
    try:
        plain = os.path.join(folder, "module.ko")
        with open_plain(path, SigningError) as source, open(plain, "wb") as copy:
            shutil.copyfileobj(source, copy, CHUNK)
        _unsign(plain)
        _strip(plain)
        size = os.path.getsize(plain)
        # As the kernel's own modules.
        hashed = kernel.config.get("CONFIG_MODULE_SIG_HASH", "").strip('"') or "sha512"
        _append(tool, hashed, plain, by)
        _verify(plain, path, size, by)
        state = os.stat(path)
        with atomic.replacing(path, stat.S_IMODE(state.st_mode), (state.st_uid, state.st_gid)) as target:
            _pack(plain, target, suffix)
    except OSError as error:
        raise SigningError(f"{path}: cannot be signed: {error.strerror or error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unsign(path: str) -> None:
    """Cut off every signature."""
    with open(path, "rb+") as file:
        try:
            for signature in iter(lambda: read_signature(file), None):
                file.truncate(signature.size)
        except (MalformedError, UnsupportedError) as error:
            raise SigningError(f"{error}", "build or install the module again") from None


def _strip(path: str) -> None:
    """Strip debug data before signing, because a signature is of all bytes and hosts don't need it."""
    with open(path, "rb") as file:
        if Elf(file, path).section(".debug_info") is None:
            return
    done = process.run(["strip", "--strip-debug", path], _TIMEOUT)
    if done.status != 0:
        raise SigningError(f"cannot strip it: {done.failure()}", "install binutils")


def _append(tool: str, hashed: str, plain: str, by: Signer) -> None:
    if by.key:
        done = process.run([tool, hashed, by.key, by.path, plain], _TIMEOUT)
    else:
        detached = plain + ".p7s"
        with open(plain, "rb") as source, open(detached, "wb") as sink:
            answer = process.pipe(by.command, source, sink, _TIMEOUT, _SIGNATURE_LIMIT)
        if answer.status != 0 or answer.truncated or os.path.getsize(detached) == 0:
            message = f"the signer {by.command[0]} did not sign: {answer.failure()}"
            raise SigningError(message, "it gets the module on standard input and has to answer with PKCS#7 as DER")
        done = process.run([tool, "-s", detached, hashed, by.path, plain], _TIMEOUT)
    if done.status != 0:
        raise SigningError(f"{tool} failed: {done.failure()}", f"does the key belong to {by.path}?")


def _verify(plain: str, path: str, size: int, by: Signer) -> None:
    with open(plain, "rb") as file:
        try:
            signature = read_signature(file)
        except (MalformedError, UnsupportedError) as error:
            raise SigningError(f"{path}: the signer's answer is unusable: {error}") from None
        if signature is None or signature.size != size:
            raise SigningError(f"{path}: no signature was appended")
        if not signature.is_by(by.certificate) or not verifies(signature, file, by.certificate):
            message = f"{path}: was signed, but not with the key of {by.path}"
            raise SigningError(message, "give the certificate that belongs to the key")


def _pack(plain: str, out: IO[bytes], suffix: str) -> None:
    with open(plain, "rb") as source:
        if suffix == ".xz":
            with lzma.open(out, "wb", check=lzma.CHECK_CRC32, filters=_XZ_FILTERS) as packed:
                shutil.copyfileobj(source, packed, CHUNK)
        elif suffix in (".gz", ".zst"):
            argv = ["gzip", "-nc9"] if suffix == ".gz" else ["zstd", "-qc", "-19"]
            done = process.pipe(argv, source, out, _TIMEOUT, os.path.getsize(plain) + CHUNK)
            if done.status != 0:
                raise SigningError(f"cannot compress it: {done.failure()}", f"install {argv[0]}")
        else:
            shutil.copyfileobj(source, out, CHUNK)


def from_settings(certificate: str = "", key: str = "", settings: str = SETTINGS) -> Optional[Signer]:
    """The signer of the command line, or else of the settings; None where neither names one."""
    if certificate:
        return signer(certificate, key)
    value = read_settings(settings)
    return signer(value.get("certificate", ""), value.get("key", ""), value.get("signer", [])) if value else None


#: For root only, until the enrolment is confirmed.
ONE_TIME = "/var/lib/gdsdeploy-mok-password"
_MOK_TIMEOUT = 120.0
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


def make_key(key: str, certificate: str, name: str, days: int) -> Certificate:
    """Make an RSA key and its certificate (DER), valid for ``days``; raises SigningError where either file exists."""
    for path in (key, certificate):
        if os.path.lexists(path):
            raise SigningError(f"{path} already exists", "move it; a new key has to be enrolled again")
    if not name or any(char in name for char in "\n$\\#[]") or days < 1:
        raise SigningError(f"{name!r} for {days} days makes no certificate", "give a name and some days")
    with failing(SigningError, f"cannot write {key} and {certificate}"):
        for path, mode in ((key, 0o700), (certificate, None)):
            folder = os.path.dirname(os.path.abspath(path))
            atomic.make_folder(folder, None if os.path.isdir(folder) else mode)
    with contextlib.ExitStack() as stack:
        # Each on the file system of what becomes a link to it.
        beside = [os.path.dirname(os.path.abspath(path)) for path in (key, certificate)]
        folders = [stack.enter_context(tempfile.TemporaryDirectory(prefix=".new-", dir=place)) for place in beside]
        request, new = os.path.join(folders[0], "request.conf"), os.path.join(folders[0], "key")
        public = os.path.join(folders[1], "certificate")
        with open(request, "w", encoding="utf-8") as file:
            file.write(_REQUEST.format(name=name))
        argv = ["openssl", "req", "-new", "-x509", "-nodes", "-newkey", "rsa:2048", "-sha256", "-days", str(days)]
        argv += ["-config", request, "-keyout", new, "-outform", "DER", "-out", public]
        done = process.run(argv, _MOK_TIMEOUT)
        if done.status != 0:
            hint = "install openssl" if done.status == process.NOT_FOUND else ""
            raise SigningError(f"openssl made no key: {done.failure()}", hint)
        os.chmod(new, 0o600)
        os.chmod(public, 0o644)
        with failing(SigningError, f"cannot write {key} and {certificate}"):
            # Links, not renames: they never overwrite a file that was created meanwhile.
            os.link(public, certificate)
            os.link(new, key)
    return read_certificate_file(certificate)


def enrol(owners: Certificate, root: str = "/", check: bool = False, where_needed: bool = False) -> Dict[str, Any]:
    """Ask the firmware to enrol a key, by its certificate, at the next boot, unless it has it; idempotent.

    check: change nothing.  where_needed: nor if Secure Boot is off.  Returns ``{"state", "changed", "secure_boot",
    "fingerprint", "steps": [text]}``; state: one of ENROLMENTS.  Raises SigningError.
    """
    host = firmware(root)
    state = enrolment(owners, host, where_needed=where_needed)
    changed = state == "absent"
    if changed and not check:
        _request("--import", owners)
        state = "pending"
    elif state == "revoked" and not check:
        message = f"this host's firmware or shim has revoked the key {owners.subject!r} ({owners.fingerprint})"
        raise SigningError(message, "sign the modules with another key: gdsdeploy kmod keygen makes one")
    elif state == "enrolled" and not check and not host.leaving:
        _forget(root)
    return _answer(state, owners, host, changed, _steps("Enroll MOK", owners, _RESUME) if state == "pending" else [])


def unenrol(owners: Certificate, root: str = "/", check: bool = False, in_use: Sequence[str] = ()) -> Dict[str, Any]:
    """Ask the firmware to delete a key, by its certificate, from the machine owner's keys at the next boot; idempotent.

    in_use: files of modules that are signed with it; any of them is a refusal.  Returns as :func:`enrol`.
    Raises SigningError.
    """
    host = firmware(root)
    state = enrolment(owners, host)
    if state == "pending":
        raise SigningError("the key isn't enrolled yet: its enrolment is pending", "gdsdeploy kmod enrol --withdraw")
    changed = state == "enrolled"
    if changed and in_use:
        message = f"modules are signed with the key, and would no longer load without it: {first_few(in_use, 3)}"
        raise SigningError(message, "sign them with another enrolled key first, and remove kernels that aren't in use")
    if changed and host.requested:
        raise SigningError(
            "a request to enrol another key is pending", "confirm it at the next boot first, or withdraw it"
        )
    if changed and not check:
        _request("--delete", owners)
        state = "leaving"
    elif state == "absent" and not check and not host.requested:
        _forget(root)
    return _answer(state, owners, host, changed, _steps("Delete MOK", owners, _REPEAT) if state == "leaving" else [])


def withdraw(root: str = "/", check: bool = False) -> Dict[str, Any]:
    """Withdraw pending requests to enrol or delete keys; idempotent.

    Returns ``{"changed", "withdrawn": [subject]}``.  Raises SigningError.
    """
    host = firmware(root)
    options = {"--revoke-import": host.requested, "--revoke-delete": host.leaving}
    for option, keys in options.items():
        if keys and not check:
            done = process.run(["mokutil", option], _MOK_TIMEOUT)
            if done.status != 0:
                hint = "install mokutil" if done.status == process.NOT_FOUND else f"run it by hand: mokutil {option}"
                raise SigningError(f"mokutil didn't withdraw the request: {done.failure()}", hint)
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
    absent = "not-needed" if where_needed and state.secure_boot is False else "absent"
    return next((name for name, keys in lists.items() if certificate.raw in [key.raw for key in keys]), absent)


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


def _forget(root: str) -> None:
    """Delete the one-time password of a request that is no longer pending."""
    if root == "/":
        with contextlib.suppress(FileNotFoundError):
            os.unlink(ONE_TIME)


def _request(option: str, owners: Certificate) -> None:
    """Have mokutil make a request; option: --import or --delete."""
    password = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-mok-") as folder:
        hashed = process.run(["openssl", "passwd", "-6", "-stdin"], _MOK_TIMEOUT, input=password + "\n")
        if hashed.status != 0:
            raise SigningError(f"openssl made no hash: {hashed.failure()}", "install openssl")
        path = os.path.join(folder, "hash")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(hashed.stdout.strip())
        # mokutil takes DER only.
        binary = os.path.join(folder, "certificate.der")
        with open(binary, "wb") as out:
            out.write(owners.raw)
        # Stored first: a request with a lost password could only be withdrawn.
        with failing(SigningError, f"cannot write {ONE_TIME}", "run it as root"):
            atomic.write(ONE_TIME, password + "\n", 0o600)
        done = process.run(["mokutil", option, binary, "--hash-file", path], _MOK_TIMEOUT)
    if done.status != 0:
        os.unlink(ONE_TIME)
        hint = "install mokutil" if done.status == process.NOT_FOUND else f"run mokutil {option} CERTIFICATE by hand"
        raise SigningError(f"mokutil refused the request for {owners.subject!r}: {done.failure()}", hint)
