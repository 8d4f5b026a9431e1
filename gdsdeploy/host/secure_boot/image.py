"""Certificates inside a kernel image: those that its build put into the keyring of trusted keys.

An image is a self-extracting bzImage (Documentation/arch/x86/boot.rst), an EFI zboot image (drivers/firmware/efi/
libstub/zboot-header.S), or the kernel itself, compressed or not.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from typing import IO, Dict, Iterator, List

from ..errors import HostError
from ..kmod.files import CHUNK, open_plain
from .certificate import Certificate, read_certificate

#: Kernels have up to 100 MB unpacked.
_LIMIT = 512 << 20
_IMAGE_LIMIT = 256 << 20
#: Bytes that two searched pieces share; larger than any certificate.
_OVERLAP = 16 << 10
_CERTIFICATES_LIMIT = 64
#: A SEQUENCE, its first part a SEQUENCE that begins with version 3 and a serial number: X.509, as DER.
_START = re.compile(rb"\x30\x82..\x30\x82..\xa0\x03\x02\x01\x02\x02", re.DOTALL)
_PACKED = ((b"\xfd7zXZ\x00", ".xz"), (b"\x1f\x8b", ".gz"), (b"\x28\xb5\x2f\xfd", ".zst"))


class ImageError(HostError):
    """A kernel image has an unsupported compression."""


def certificates(path: str) -> List[Certificate]:
    """Every certificate in the kernel image ``path``, once; raises ImageError and OSError."""
    with open(path, "rb") as file:
        packed = file.read(_IMAGE_LIMIT)
    payload = _payload(packed)
    suffix = next((suffix for magic, suffix in _PACKED if payload.startswith(magic)), None)
    if suffix is None:
        if payload is not packed:
            raise ImageError(f"{path}: is packed in an unknown way")
        return _search(iter([packed]))
    with tempfile.NamedTemporaryFile(suffix=suffix) as part:
        part.write(payload)
        part.flush()
        with open_plain(part.name, ImageError, _LIMIT) as plain:
            return _search(_pieces(plain))


def _payload(image: bytes) -> bytes:
    """The compressed kernel inside, or ``image`` itself if it doesn't unpack itself."""
    if image[0x202:0x206] == b"HdrS":
        start = (image[0x1F1] or 4) * 512 + 512 + int.from_bytes(image[0x248:0x24C], "little")
        size = int.from_bytes(image[0x24C:0x250], "little")
        # The unpacked size is appended to it.
        return image[start : start + size - 4]
    if image[:2] == b"MZ" and image[4:8] == b"zimg":
        start, size = (int.from_bytes(image[place : place + 4], "little") for place in (8, 12))
        return image[start : start + size]
    return image


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    before = b""
    for chunk in iter(lambda: file.read(CHUNK << 4), b""):
        yield before + chunk
        before = chunk[-_OVERLAP:]


def _search(pieces: Iterator[bytes]) -> List[Certificate]:
    """The certificates in ``pieces``, each once."""
    certificates: Dict[bytes, Certificate] = {}
    for piece in pieces:
        for match in _START.finditer(piece):
            # Other bytes may look like a certificate's beginning, or it continues in the next piece.
            with contextlib.suppress(ValueError):
                certificate = read_certificate(piece[match.start() : match.start() + _OVERLAP])
                if len(certificates) < _CERTIFICATES_LIMIT:
                    certificates.setdefault(certificate.raw, certificate)
    return list(certificates.values())


def path_of(folder: str, boot: str, release: str) -> str:
    """The image of ``release``: beside its modules (``folder``) or in ``boot``; empty without a readable one."""
    places = [os.path.join(folder, "vmlinuz")]
    places += [os.path.join(boot, name + release) for name in ("vmlinuz-", "Image-", "vmlinux-")]
    return next((place for place in places if os.access(place, os.R_OK)), "")
