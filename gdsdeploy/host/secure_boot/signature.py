"""The signature that is appended to a module, and whether the kernel accepts it.

The format (Documentation/admin-guide/module-signing.rst): the module, a PKCS#7 message without content, a struct with
its length, a marker.  By kernel/module/signing.c, an unsigned module or an unknown key is refused where signatures are
enforced; a damaged or wrong signature always.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import IO, Callable, List, NamedTuple, Optional, Tuple

from ..errors import ElfError
from ..io import cache
from ..io.wording import first_few
from ..kmod.files import CHUNK, open_plain
from ..kmod.kernel import Kernel
from ..kmod.module import SIGNATURE_MARK, Finding, finding, unknown_finding
from . import certificate
from .certificate import HASHES, Certificate, DerError, Node, name
from .firmware import SETUP_MODE, SHIM_OFF, WORDS
from .openssl import OpensslError, verify_digest
from .trust import Trust, trust_of

#: struct module_signature (linux/module_signature.h): algo, hash, id_type, two lengths, padding, big-endian length.
_TAIL = struct.Struct(">BBBBB3sI")
_PKCS7 = 2
#: A message with one signer and no certificate has less than 1 KB.
_LIMIT = 1 << 16
_SIGNED_DATA = "1.2.840.113549.1.7.2"
_DATA = "1.2.840.113549.1.7.1"
#: Methods of signatures that the kernel knows: RSA without PSS, ECDSA.
_METHODS = frozenset(
    (
        "1.2.840.113549.1.1.1",
        "1.2.840.10045.4.1",
        *(f"1.2.840.10045.4.3.{number}" for number in (1, 2, 3, 4)),
        *(f"2.16.840.1.101.3.4.3.{number}" for number in (10, 11, 12)),
    )
)
#: ML-DSA, which Linux 7 knows and nothing here verifies.
_ML_DSA = frozenset(f"2.16.840.1.101.3.4.3.{number}" for number in (17, 18, 19))
#: Places of keys, as :meth:`Trust.find` names them → in words.
KEYRINGS = {
    "the kernel": "a key built into the kernel",
    "MOK": "an enrolled machine owner's key",
    "firmware": "a key of the firmware (db)",
    "unknown": "and it's unknown whether this kernel has that key",
    "": "which is no key of this kernel",
}
#: What becomes of a request to enrol a key.
PENDING = (
    "confirm it at the console of the next boot within 10 s of shim's screen; without that shim drops the request, "
    "and the kernel refuses the module"
)
_BUILD_HINT = "sign it with a key that the kernel has: gdsdeploy kmod sign"


class MalformedError(Exception):
    """The kernel can't read the signature: it refuses the module, whether or not signatures are enforced."""


class UnsupportedError(Exception):
    """Kernels ignore this kind of signature: the module counts as unsigned."""


class Signature(NamedTuple):
    """The signer, the method, and the signed part of the file."""

    #: the number of signed bytes
    size: int
    #: hashlib's name; empty for a method that nothing here verifies
    hash: str
    #: of the signer's certificate, as DER, with its serial number; empty if ``key_id`` names the key
    issuer: bytes
    serial: int
    key_id: bytes
    #: the issuer's common name or the key's id, for messages
    signer: str
    value: bytes
    #: of the same message: one of the signers has to be trusted, and none may be wrong
    others: Tuple[Signature, ...] = ()

    @property
    def identity(self) -> str:
        """An id of the key: equal for equal keys."""
        return f"key id {self.key_id.hex()}" if self.key_id else f"{self.issuer.hex()}/{self.serial}"

    def is_by(self, certificate: Certificate) -> bool:
        """Whether it names the key of ``certificate``."""
        if self.key_id:
            return self.key_id == certificate.key_id
        return (self.issuer, self.serial) == (certificate.issuer, certificate.serial)


def read_signature(file: IO[bytes]) -> Optional[Signature]:
    """The signature at the end of ``file``, an uncompressed module; None when there is none.

    Raises MalformedError and UnsupportedError.
    """
    return _signature(*_end_of(file))


def _end_of(file: IO[bytes]) -> Tuple[int, bytes]:
    """The bytes of an uncompressed module, and the last ones of a signed one: at least its whole signature."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - len(SIGNATURE_MARK)))
    if file.read() != SIGNATURE_MARK:
        return size, b""
    file.seek(max(0, size - _LIMIT - len(SIGNATURE_MARK) - _TAIL.size))
    return size, file.read()


def _signature(size: int, data: bytes) -> Optional[Signature]:
    """The signature in the last bytes of a module of ``size`` bytes."""
    if not data:
        return None
    end = len(SIGNATURE_MARK) + _TAIL.size
    tail = data[-end:]
    if len(tail) < end:
        raise MalformedError("the file has nothing but a signature's marker")
    algorithm, hashed, kind, signer, key, padding, length = _TAIL.unpack(tail[: _TAIL.size])
    if length == 0 or length >= size - end:
        raise MalformedError(f"its signature should have {length} bytes, and the file ends before")
    if kind != _PKCS7:
        raise UnsupportedError(f"its signature is of type {kind}, not PKCS#7")
    if any((algorithm, hashed, signer, key, *padding)):
        raise MalformedError("the struct after its signature has values where zeros belong")
    if length > _LIMIT:
        raise MalformedError(f"its signature has {length} bytes")
    try:
        return _message(data[-end - length : -end], size - end - length)
    except (DerError, IndexError, ValueError) as error:
        raise MalformedError(f"its signature isn't a PKCS#7 message: {error}") from None


def verifies(signature: Signature, file: IO[bytes], certificate: Certificate) -> bool:
    """Whether the certificate's key signed the content of ``file``; raises OpensslError where that can't be told."""
    return _verifies(signature, lambda: _digest(file, signature), certificate)


def _verifies(signature: Signature, digest_of: Callable[[], bytes], certificate: Certificate) -> bool:
    if not signature.hash:
        raise OpensslError("its kind of key is unsupported here", "sign it with RSA or ECDSA")
    return verify_digest(certificate.raw, signature.hash, digest_of(), signature.value)


def findings(kernel: Kernel, path: str) -> List[Finding]:
    """Findings about the signature of the module in ``path`` on ``kernel``; none if the kernel accepts it."""
    trust = trust_of(kernel)
    if not trust.checks_signatures:
        return []
    try:
        signature = _of_module(path)
        if signature is None:
            return _unsigned(trust, "is unsigned")
        # A wrong one is fatal; else one that the kernel trusts is enough.
        return min((_signed(trust, each, path) for each in (signature, *signature.others)), key=_rank)
    except UnsupportedError as error:
        return _unsigned(trust, f"counts as unsigned: {error}")
    except MalformedError as error:
        message = f"is refused by every kernel: {error}"
        return [finding("signature-malformed", "error", message, "build or copy it again, then sign it")]
    except ElfError as error:
        kernel.inputs.skip(error)
    except OSError as error:
        kernel.inputs.skip_path(path, error)
    return []


def _rank(findings: List[Finding]) -> int:
    first = findings[0]["id"] if findings else ""
    return {"signature-wrong": 0, "signature-unknown": 1, "": 2}.get(first, 3)


def signer_of(path: str) -> Optional[Signature]:
    """The signature of the module in ``path``; None without a readable one."""
    try:
        return _of_module(path)
    except (MalformedError, UnsupportedError, ElfError, OSError):
        return None


def signed_by(kernel: Kernel, path: str) -> Tuple[str, str]:
    """(who signed the module in ``path``, where ``kernel`` has the key: one of KEYRINGS); both empty: unsigned."""
    signature = signer_of(path)
    if signature is None:
        return "", ""
    # Whether or not that decides about loading, the kernel's own keys are looked up.
    trust = trust_of(kernel)
    source = "the kernel" if trust.is_own(signature) else trust.find(signature, own=True)[1]
    return signature.signer, source or ("" if trust.complete else "unknown")


def _of_module(path: str) -> Optional[Signature]:
    """As :func:`read_signature`, of an installed module.  Raises ElfError, too."""

    def read() -> Tuple[int, str]:
        with open_plain(path) as file:
            size, data = _end_of(file)
            return size, data.hex()

    size, data = cache.of_file("signature", path, read)
    return _signature(size, bytes.fromhex(data))


def _digest_of_module(path: str, signature: Signature) -> bytes:
    def read() -> str:
        with open_plain(path) as file:
            return _digest(file, signature).hex()

    return bytes.fromhex(cache.of_file(f"{signature.hash} of {signature.size} bytes", path, read))


def _signed(trust: Trust, signature: Signature, path: str) -> List[Finding]:
    own = trust.is_own(signature)
    certificate, source = trust.find(signature, own)
    if certificate is None:
        if own:
            # The kernel's own modules carry the same signer: the kernel has the key, but its public half wasn't found.
            message = "the kernel's image, which has the key, cannot be read"
            return [_unverified(message, "read the image as root, with zstd installed")] if trust.enforced else []
        return _foreign(trust, signature)
    has_key = trust.has_key(source)
    unknown: Optional[OpensslError] = None
    try:
        if not _verifies(signature, lambda: _digest_of_module(path, signature), certificate):
            return [_changed(trust, certificate, source)]
    except OpensslError as error:
        unknown = error
    if has_key is None and (source == "firmware" or trust.firmware.secure_boot is not None):
        return _of_firmware(trust, signature, source)
    if has_key is None and trust.enforced:
        return [_undecided(trust, f"is signed by {signature.signer}, a machine owner's key")]
    if any(map(signature.is_by, trust.revoked)):
        return _foreign(trust, signature)
    if has_key is False:
        return _mok_unused(trust)
    if unknown is not None:
        return [_unverified(unknown.message, unknown.hint)]
    if source == "MOK" and any(key.raw == certificate.raw for key in trust.firmware.leaving):
        message = (
            f"is signed with {certificate.subject}'s key, which a person may delete at the console of the next boot"
        )
        hint = "sign the module with another enrolled key, or withdraw the request: sudo mokutil --revoke-delete"
        return [finding("signature-key-leaving", "warning", message, hint)]
    return []


def _changed(trust: Trust, certificate: Certificate, source: str) -> Finding:
    """A kernel with the key refuses the module; one without the key can't tell it from any unknown signature."""
    what = "was changed after it was signed, or its signature is of another file"
    message, hint = f"{what} ({certificate.subject}'s key, from {source})", "build or install it again"
    if trust.has_key(source) is False and trust.enforced is None:
        return _undecided(trust, message)
    if trust.has_key(source) is None and not trust.enforced:
        return unknown_finding("signature-unknown", f"{message}; a kernel that has this key refuses the module", hint)
    if trust.has_key(source) is False and not trust.enforced:
        message += f"; the kernel doesn't notice while it lacks the key: {_state(trust)}"
        return finding("signature-wrong", "note", message, hint + " before Secure Boot is turned on")
    return finding("signature-wrong", "error", message, hint + "; every kernel with this key refuses it")


def _foreign(trust: Trust, signature: Signature) -> List[Finding]:
    """Findings about a signature by none of the kernel's keys."""
    who = f"is signed by {signature.signer}"
    hint = "enrol that key (gdsdeploy kmod enrol), or sign the module with an enrolled one"
    if not trust.enforced:
        if trust.enforced is None:
            return [_undecided(trust, f"{who}, which is not an enrolled key")]
        message = f"{who}, which isn't a key of this kernel: it loads the module and marks itself tainted{_off(trust)}"
        return [finding("signature-key", "note", message, hint + ", before Secure Boot is turned on")]
    if any(map(signature.is_by, trust.revoked)):
        message = f"{who}, a key that this host's firmware or shim has revoked; {trust.why}"
        return [finding("signature-key-revoked", "error", message, "sign the module with another key, and enrol that")]
    if any(map(signature.is_by, trust.firmware.requested)):
        message = f"{who}, whose enrolment is pending; {trust.why}"
        return [finding("signature-key-pending", "error", message, PENDING)]
    if not trust.complete:
        message = f"{who}, and it's unknown whether the kernel has that key: its image can't be read; {trust.why}"
        hint = "read it as root; install zstd if the image is packed with it"
        return [unknown_finding("signature-key-unknown", message, hint)]
    message = f"{who}, which isn't a key of this kernel and isn't enrolled; {trust.why}"
    return [finding("signature-key", "error", message, hint)]


def _of_firmware(trust: Trust, signature: Signature, source: str) -> List[Finding]:
    """Findings about a key of the firmware or of shim, on a kernel that isn't known to take those for modules."""
    if trust.enforced is False:
        return []
    kind = "a machine owner's key" if source == "MOK" else "a key of the firmware (db)"
    what = f"is signed by {signature.signer}, {kind}"
    if trust.enforced is None:
        return [_undecided(trust, what)]
    message = f"{what}, which only kernels with the distributions' patch accept for modules; {trust.why}"
    hint = "enrol a machine owner's key: gdsdeploy kmod enrol"
    if source == "MOK":
        hint = "have the kernel trust these keys (mokutil --trust-mok; CONFIG_INTEGRITY_MACHINE_KEYRING), then reboot"
    return [unknown_finding("signature-key-unknown", message, hint)]


def _mok_unused(trust: Trust) -> List[Finding]:
    """Findings about a machine owner's key where Secure Boot is off, so that the kernel doesn't load it."""
    if trust.enforced is False:
        return []
    what = f"is signed by a machine owner's key, which kernels load under Secure Boot only; {_state(trust)}"
    if trust.enforced is None:
        return [_undecided(trust, what)]
    message = f"{what}, and {trust.why}"
    return [finding("signature-key", "error", message, "turn Secure Boot on, or don't enforce signatures")]


def _state(trust: Trust) -> str:
    return WORDS[trust.firmware.state]


def _off(trust: Trust) -> str:
    """Why Secure Boot doesn't count, where that may surprise."""
    return f"; {_state(trust)}" if trust.firmware.state in (SETUP_MODE, SHIM_OFF) else ""


def _unsigned(trust: Trust, what: str) -> List[Finding]:
    if trust.enforced:
        return [finding("unsigned", "error", f"{what}, and {trust.why}", _BUILD_HINT)]
    if trust.enforced is None:
        return [_undecided(trust, what)]
    hint = "sign it before Secure Boot or module.sig_enforce is turned on"
    return [finding("unsigned", "note", f"{what}: the kernel loads it and marks itself tainted{_off(trust)}", hint)]


def _undecided(trust: Trust, what: str) -> Finding:
    if trust.unread:
        files = first_few(trust.unread, 3)
        message = f"{what}, and it's unknown whether the kernel enforces signatures: {files}"
        return unknown_finding("enforcement-unknown", message, "read the boot loader's files as root")
    message = f"{what}, and {_state(trust)}"
    return unknown_finding("secure-boot-unknown", message, "mount efivarfs at /sys/firmware/efi/efivars")


def _unverified(why: str, hint: str) -> Finding:
    message = f"is signed with a key that the kernel has, but its content wasn't verified: {why}"
    return unknown_finding("signature-unknown", message, hint)


def _message(data: bytes, size: int) -> Signature:
    """The signers of a PKCS#7 SignedData (RFC 2315, RFC 5652), as the kernel takes it of a module.

    crypto/asymmetric_keys/pkcs7_parser.c and pkcs7_verify.c, certs/system_keyring.c.
    """
    kind, content = certificate.only(data).expect(certificate.SEQUENCE).children()
    if kind.oid() != _SIGNED_DATA:
        raise DerError(f"has content of type {kind.oid()}")
    parts = certificate.first(content.expect(certificate.context(0)).body).expect(certificate.SEQUENCE).children()
    signers = parts[-1].expect(certificate.SET).children()
    if len(parts) < 4 or not signers:
        raise DerError("has no signer")
    version = parts[0].number()
    found, *others = (_of_signer(node, size, version) for node in signers)
    inner = parts[2].expect(certificate.SEQUENCE).children()
    if inner[0].oid() != _DATA:
        raise MalformedError(f"its signature is of content of type {inner[0].oid()}, not of plain data")
    if len(inner) > 1:
        raise MalformedError("its signature has the content inside; a signer has to make a detached one")
    return found._replace(others=tuple(others))


def _of_signer(node: Node, size: int, message_version: int) -> Signature:
    version, who, hashed, *rest = node.expect(certificate.SEQUENCE).children()
    # Version 3 names a key by its id, version 1 by a certificate's issuer and serial number.
    if version.number() != message_version or message_version not in (1, 3):
        raise DerError(f"of version {message_version} has a signer of version {version.number()}")
    attributes = rest.pop(0) if rest[0].tag == certificate.context(0) else None
    oid, method = (part.children()[0].oid() for part in (hashed, rest[0]))
    is_lattice = method in _ML_DSA
    if not is_lattice and (oid not in HASHES or method not in _METHODS):
        raise UnsupportedError(f"its signature uses methods that the kernel doesn't know ({oid}, {method})")
    # Some kernels let ML-DSA sign attributes.
    if attributes is not None and not is_lattice:
        raise MalformedError("its signature has signed attributes; a signer has to leave them out (openssl: -noattr)")
    issuer, serial, key_id, signer = _signer(who)
    value = rest[1].expect(certificate.OCTET_STRING).body
    return Signature(size, "" if is_lattice else HASHES[oid], issuer, serial, key_id, signer, value)


def _signer(node: Node) -> Tuple[bytes, int, bytes, str]:
    if node.tag == certificate.context(0, constructed=False):
        return b"", 0, node.body, f"the key {node.body.hex()}"
    issuer, serial = node.expect(certificate.SEQUENCE).children()
    unsigned = serial.number() & ((1 << 8 * len(serial.body)) - 1)
    return issuer.raw, serial.number(), b"", f"{name(issuer) or 'a nameless key'!r} (serial {unsigned:x})"


def _digest(file: IO[bytes], signature: Signature) -> bytes:
    digest = hashlib.new(signature.hash)
    file.seek(0)
    for chunk in iter(lambda: file.read(min(signature.size - file.tell(), CHUNK)), b""):
        digest.update(chunk)
    return digest.digest()
