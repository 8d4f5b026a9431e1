"""The firmware of a lab's VM hosts: BIOS, UEFI, or UEFI with Secure Boot and more Machine Owner Keys."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdslab.errors import LabUnavailable

KINDS = ("bios", "uefi")
#: A certificate has one or two kilobytes.
_CERTIFICATE_LIMIT = 1 << 16


@dataclass(frozen=True)
class Firmware:
    """What VM hosts of a lab boot by.

    uefi: UEFI instead of BIOS.  secure_boot: with Microsoft's keys enrolled and signatures enforced; needs ``uefi``.
    moks: certificates (DER) of more Machine Owner Keys, beside the lab's own; they need ``secure_boot``.
    tpm: a TPM 2.0, which the firmware measures the boot into; needs ``uefi``.
    Raises LabUnavailable for a combination that doesn't exist.
    """

    uefi: bool = False
    secure_boot: bool = False
    moks: tuple[bytes, ...] = ()
    tpm: bool = False

    def __post_init__(self) -> None:
        if self.secure_boot and not self.uefi:
            raise LabUnavailable("a BIOS has no Secure Boot", hint="Use --secure-boot without --firmware bios")
        if self.tpm and not self.uefi:
            raise LabUnavailable("only hosts with UEFI have a TPM", hint="Add --firmware uefi or --secure-boot")
        if self.moks and not self.secure_boot:
            raise LabUnavailable("only hosts with Secure Boot have Machine Owner Keys", hint="Add --secure-boot")

    @property
    def title(self) -> str:
        """Its name for people, such as ``UEFI with Secure Boot``."""
        if not self.uefi:
            return "BIOS"
        return "UEFI with Secure Boot" if self.secure_boot else "UEFI"

    def record(self) -> dict[str, Any]:
        """Its form in the lab's record."""
        moks = [base64.b64encode(mok).decode() for mok in self.moks]
        return {"uefi": self.uefi, "secure_boot": self.secure_boot, "moks": moks, "tpm": self.tpm}


BIOS = Firmware()


def of(record: dict[str, Any] | None) -> Firmware:
    """The firmware in a lab's record; labs of earlier versions have none there, and BIOS."""
    if record is None:
        return BIOS
    moks = tuple(base64.b64decode(mok) for mok in record["moks"])
    return Firmware(bool(record["uefi"]), bool(record["secure_boot"]), moks, bool(record.get("tpm")))


def choose(kind: str | None, secure_boot: bool, files: Sequence[Path], *, tpm: bool = False) -> Firmware | None:
    """The firmware that the options name; None without any of them.

    kind: "bios" or "uefi".  files: certificates of Machine Owner Keys, PEM or DER.
    Raises LabUnavailable for options that exclude each other, and for a file that is no certificate.
    """
    if kind is None and not secure_boot and not files and not tpm:
        return None
    uefi = secure_boot if kind is None else kind == "uefi"
    return Firmware(uefi, secure_boot, tuple(dict.fromkeys(map(read_certificate, files))), tpm)


def read_certificate(file: Path) -> bytes:
    """The certificate in ``file`` (PEM or DER), as DER; raises LabUnavailable for a file that isn't a readable one."""
    # As in signing.py: every verb of a lab imports this module, and only --mok reads a certificate.
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        with file.open("rb") as stream:
            content = stream.read(_CERTIFICATE_LIMIT)
    except OSError as error:
        raise LabUnavailable(
            f"cannot read the certificate {file}: {error.strerror}", hint="Name a certificate file, PEM or DER"
        ) from None
    pem = b"-----BEGIN CERTIFICATE-----" in content
    try:
        certificate = x509.load_pem_x509_certificate(content) if pem else x509.load_der_x509_certificate(content)
    except ValueError:
        hint = "`gdsdeploy kmod keygen` makes a key and its certificate"
        if b"PRIVATE KEY-----" in content:
            hint = "It is a private key; name the certificate that belongs to it"
        raise LabUnavailable(f"{file} is not a certificate, neither PEM nor DER", hint=hint) from None
    return certificate.public_bytes(Encoding.DER)
