"""Sign modules with the kernel's own scripts/sign-file: after stripping, before compression; the result is verified.

The private key is a file that only its owner may read, or a signer holds it: a program that gets the module on standard
input and prints the detached PKCS#7 signature (DER), like ``openssl cms -sign -binary -noattr -nocerts -outform DER``.
"""

from __future__ import annotations

import base64
import json
import lzma
import os
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass
from typing import IO, Any, Dict, List, Optional, Sequence, Tuple

from .. import process
from ..errors import HostError
from ..io import atomic
from ..io.atomic import exposure
from ..kmod.files import CHUNK, Elf, open_plain
from ..kmod.kernel import Kernel
from ..kmod.vouch import FOLDER, MANIFEST
from ..rootdir import inside
from .certificate import Certificate, read_certificate
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
    """A module can't be signed, or the result doesn't verify; the module is unchanged."""

    exit_code = 1


@dataclass(frozen=True)
class Signer:
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
    if parsed.verify is None:
        raise SigningError(f"{certificate}: signatures by this kind of key cannot be verified here", "use RSA or ECDSA")
    if key and not key.startswith("pkcs11:"):
        _check_key(key)
    return Signer(parsed, certificate, key, tuple(command))


def read_certificate_file(path: str) -> Certificate:
    """The certificate in a file, PEM or DER; raises SigningError."""
    try:
        with open(path, "rb") as file:
            return parse_certificate(file.read(_CERTIFICATE_LIMIT), path)
    except OSError as error:
        hint = "gdsdeploy kmod keygen makes a key and its certificate"
        raise SigningError(f"{path}: cannot be read: {error.strerror}", hint) from None


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
    """Whether the module in ``path`` is signed with the key of ``certificate``, as it is."""
    with open_plain(path, SigningError) as file:
        try:
            signature = read_signature(file)
        except (MalformedError, UnsupportedError):
            return False
        return signature is not None and signature.is_by(certificate) and bool(verifies(signature, file, certificate))


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


def hash_of(kernel: Kernel) -> str:
    """The hash that the kernel's own modules are signed over."""
    return kernel.config.get("CONFIG_MODULE_SIG_HASH", "").strip('"') or "sha512"


def _check_key(path: str) -> None:
    try:
        state = os.stat(path)
    except OSError as error:
        hint = "gdsdeploy kmod keygen makes one; it has to be on the machine that builds"
        raise SigningError(f"the key {path} cannot be used: {error.strerror}", hint) from None
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
        _append(tool, hash_of(kernel), plain, by)
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
        raise SigningError(f"cannot strip it: {last_line(done)}", "install binutils")


def _append(tool: str, hashed: str, plain: str, by: Signer) -> None:
    if by.key:
        done = process.run([tool, hashed, by.key, by.path, plain], _TIMEOUT)
    else:
        detached = plain + ".p7s"
        with open(plain, "rb") as source, open(detached, "wb") as sink:
            answer = process.pipe(by.command, source, sink, _TIMEOUT, _SIGNATURE_LIMIT)
        if answer.status != 0 or answer.truncated or os.path.getsize(detached) == 0:
            message = f"the signer {by.command[0]} did not sign: {last_line(answer)}"
            raise SigningError(message, "it gets the module on standard input and has to answer with PKCS#7 as DER")
        done = process.run([tool, "-s", detached, hashed, by.path, plain], _TIMEOUT)
    if done.status != 0:
        raise SigningError(f"{tool} failed: {last_line(done)}", f"does the key belong to {by.path}?")


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
                raise SigningError(f"cannot compress it: {last_line(done)}", f"install {argv[0]}")
        else:
            shutil.copyfileobj(source, out, CHUNK)


def last_line(done: process.Output) -> str:
    """The last line of a program's errors or output, or its exit status."""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit status {done.status}"


def from_settings(certificate: str = "", key: str = "", settings: str = SETTINGS) -> Optional[Signer]:
    """The signer of the command line, or else of the settings; None where neither names one."""
    if certificate:
        return signer(certificate, key)
    value = read_settings(settings)
    return signer(value.get("certificate", ""), value.get("key", ""), value.get("signer", [])) if value else None
