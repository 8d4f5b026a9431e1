"""Which keys a kernel accepts modules from, and whether it accepts unsigned ones: from files of a root.

Certificates inside a kernel image: those that its build put into the keyring of trusted keys.

An image is a self-extracting bzImage (Documentation/arch/x86/boot.rst), an EFI zboot image (drivers/firmware/efi/
libstub/zboot-header.S), or the kernel itself, compressed or not.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ..errors import HostError
from ..io.reading import kernel_switch
from ..kmod.files import CHUNK, open_plain
from ..kmod.kernel import Inputs, Kernel
from ..paths import ENTRY_FOLDERS, GRUB2_FILES, GRUB_ENVIRONMENTS, GRUB_FILES, UNIFIED_FOLDERS
from ..rootdir import inside, open_file, read_text
from .certificate import Certificate, read_certificate
from .firmware import Firmware, firmware

if TYPE_CHECKING:
    from .signature import Signature

#: Kernels have up to 100 MB unpacked.
_LIMIT = 512 << 20
_IMAGE_LIMIT = 256 << 20
#: Bytes that two searched pieces share; larger than any certificate.
_OVERLAP = 16 << 10
_CERTIFICATES_LIMIT = 64
#: A SEQUENCE, its first part a SEQUENCE that begins with version 3 and a serial number: X.509, as DER.
_START = re.compile(rb"\x30\x82..\x30\x82..\xa0\x03\x02\x01\x02\x02", re.DOTALL)
_PACKED = ((b"\xfd7zXZ\x00", ".xz"), (b"\x1f\x8b", ".gz"), (b"\x28\xb5\x2f\xfd", ".zst"), (b"\x02\x21\x4c\x18", ".lz4"))


class ImageError(HostError):
    """A kernel image has an unsupported compression, or is damaged."""


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


_LOCKS = ("integrity", "confidentiality")
#: Bytes for the headers of such an image, and for its arguments.
_HEAD = 16 << 10
#: Files of a menu, besides the boot loader's entries.
_MENUS = dict.fromkeys((*GRUB_FILES, *GRUB2_FILES))
_SHOWN_LOCKED = re.compile(r"\[(integrity|confidentiality)\]")


class Trust(NamedTuple):
    """What decides about signatures of modules on a host."""

    kernel: Kernel
    #: whether this kernel checks signatures at all
    checks_signatures: bool
    #: whether it refuses what isn't signed with a key it has; None: unknown
    enforced: Optional[bool]
    #: the reason, as the second half of a sentence
    why: str
    #: of the host: its state of Secure Boot, and its keys
    firmware: Firmware
    #: whether the kernel takes the firmware's own keys (db) for modules, too
    takes_db: bool
    #: keys that the kernel refuses although it has them
    revoked: List[Certificate]
    #: why files that may enforce signatures can't be read; empty where that doesn't matter
    unread: Tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the keys inside the kernel could be read."""
        return built_in(self.kernel) is not None

    def is_own(self, signature: Signature) -> bool:
        """Whether the kernel's own modules have the same signer."""
        return bool(signature.identity) and own_signer(self.kernel) == signature.identity

    def find(self, signature: Signature, own: bool) -> Tuple[Optional[Certificate], str]:
        """The certificate of the key that made ``signature``, and its place: MOK, the kernel, firmware, or empty."""
        certificate = next(filter(signature.is_by, self.firmware.mok), None)
        if certificate is not None:
            return certificate, "MOK"
        # The kernel's image is unpacked only if that can change the findings.
        decides = own or self.enforced is not False
        certificate = next(filter(signature.is_by, built_in(self.kernel) or []), None) if decides else None
        if certificate is not None:
            return certificate, "the kernel"
        certificate = next(filter(signature.is_by, self.firmware.db), None)
        return certificate, "firmware" if certificate is not None else ""

    def has_key(self, source: str) -> Optional[bool]:
        """Whether the kernel has the keys of ``source``, as :meth:`find` names it; None: unknown.

        Kernels load the machine owner's keys under Secure Boot only (security/integrity/platform_certs/load_uefi.c).
        """
        if source == "MOK":
            loaded = self.firmware.secure_boot
            return loaded if not loaded or self.takes_db or self.takes_mok else None
        if source == "firmware":
            return True if self.takes_db else None
        return source == "the kernel"

    @property
    def takes_mok(self) -> bool:
        """Whether the kernel takes the owner's keys without the distributions' patch (machine_keyring.c)."""
        config = self.kernel.config
        has_keyring = {"CONFIG_INTEGRITY_MACHINE_KEYRING", "CONFIG_SECONDARY_TRUSTED_KEYRING"} <= config.keys()
        # With this option, only owners' keys that may sign other keys count.
        is_open = "CONFIG_INTEGRITY_CA_MACHINE_KEYRING" not in config
        return has_keyring and is_open and self.firmware.trusts_mok


@lru_cache(maxsize=4)
def trust_of(kernel: Kernel) -> Trust:
    """What ``kernel`` trusts on the host of its root."""
    host = firmware(kernel.root)
    own = kernel.own_module
    checks = "CONFIG_MODULE_SIG" in kernel.config or (not kernel.config and own is not None and bool(own.signature))
    inputs = Inputs(kernel.root)
    why = _enforced_because(kernel, host.secure_boot, inputs)
    unread = () if why else tuple(inputs.unread)
    enforced = None if not why and (unread or host.secure_boot is None) else bool(why)
    # Without this option, as in Debian's kernels, a revoked certificate counts: it was seen to.
    revoked = host.revoked if not kernel.config or "CONFIG_SYSTEM_REVOCATION_LIST" in kernel.config else []
    # The distributions' patch for that ("KEYS: Make use of platform keyring for module signature verify", in the
    # kernels of Debian, Ubuntu, Fedora and the RHEL family) has no option of its own.  It comes with their patch for
    # the lockdown under Secure Boot, which has one.  Debian's kernel was seen to do it.
    takes_db = {"CONFIG_LOCK_DOWN_IN_EFI_SECURE_BOOT", "CONFIG_INTEGRITY_PLATFORM_KEYRING"} <= kernel.config.keys()
    return Trust(kernel, checks, enforced, why, host, takes_db, revoked, unread)


@lru_cache(maxsize=4)
def built_in(kernel: Kernel) -> Optional[List[Certificate]]:
    """The keys that the kernel was built with; None if neither its image nor its build folder can be read."""
    keys: List[Certificate] = []
    own = inside(kernel.root, f"/lib/modules/{kernel.release}/build/certs/signing_key.x509")
    with contextlib.suppress(ValueError, OSError), open(own, "rb") as file:
        keys.append(read_certificate(file.read()))
    boot, names = inside(kernel.root, "/boot"), ("vmlinuz-", "Image-", "vmlinux-")
    places = [f"{kernel.folder}/vmlinuz", *(f"{boot}/{name}{kernel.release}" for name in names)]
    image = next((place for place in places if os.access(place, os.R_OK)), "")
    try:
        return keys + certificates(image) if image else keys or None
    except (OSError, HostError):
        return keys or None


@lru_cache(maxsize=4)
def own_signer(kernel: Kernel) -> str:
    """The signer of the kernel's own modules; empty if they are unsigned."""
    from .signature import signer_of

    own = kernel.own_module
    signature = signer_of(own.path) if own is not None else None
    return "" if signature is None else signature.identity


def _enforced_because(kernel: Kernel, secure_boot: Optional[bool], inputs: Inputs) -> str:
    """Why the kernel enforces signatures; empty: nothing says so.  inputs: records the files that can't be read."""
    config = kernel.config
    if "CONFIG_MODULE_SIG_FORCE" in config:
        return "this kernel loads signed modules only"
    for lock in _LOCKS:
        if f"CONFIG_LOCK_DOWN_KERNEL_FORCE_{lock.upper()}" in config:
            return f"this kernel is always locked down ({lock})"
    # Neither can be taken back: a later and weaker value changes nothing.
    for key, sign, value in _command_line(kernel, inputs):
        if key == "module.sig_enforce" and (not sign or kernel_switch(value)):
            return "module.sig_enforce is on the kernel's command line"
        if key == "lockdown" and value in _LOCKS:
            return f"lockdown={value} is on the kernel's command line"
    if _runs(kernel):
        if read_text(kernel.root, "/sys/module/module/parameters/sig_enforce").strip() == "Y":
            return "module.sig_enforce is on"
        locked = _SHOWN_LOCKED.search(read_text(kernel.root, "/sys/kernel/security/lockdown"))
        if locked is not None:
            return f"the kernel is locked down ({locked.group(1)})"
    # The distributions' kernels lock down under Secure Boot; upstream's enforce with IMA's architecture policy.
    enforces = "CONFIG_LOCK_DOWN_IN_EFI_SECURE_BOOT" in config or "CONFIG_IMA_ARCH_POLICY" in config
    return "Secure Boot is on" if secure_boot and (not config or enforces) else ""


def _runs(kernel: Kernel) -> bool:
    return read_text(kernel.root, "/proc/sys/kernel/osrelease").strip() == kernel.release


def _command_line(kernel: Kernel, inputs: Inputs) -> List[Tuple[str, str, str]]:
    """(name, ``=`` or nothing, value) of each argument that this kernel runs with, and of those of its next start."""
    release = kernel.release

    def texts_in(folder: str, ending: str = "") -> List[str]:
        return [inputs.text(path) for path in paths_in(folder, ending)]

    def paths_in(folder: str, ending: str = "") -> List[str]:
        return [f"{folder}/{name}" for name in inputs.names(folder) if name.lower().endswith(ending)]

    def matches(pattern: str, texts: Iterable[str]) -> List[str]:
        return [match for text in texts for match in re.findall(pattern, text, re.MULTILINE)]

    # The kernel has its own ones compiled in.
    texts = [kernel.config.get("CONFIG_CMDLINE", "").strip('"')]
    texts += [inputs.text("/proc/cmdline")] if _runs(kernel) else []
    # Links lead to files that were read before.
    menus = [inputs.text(path) for path in _MENUS]
    this = rf"(?:\S*[/-])?{re.escape(release)}(?:[/.]\S*)?(?=\s|$)"
    menu = matches(rf"^\s*linux\w*\s+{this}(.*)$", menus)
    entries = [text for folder in ENTRY_FOLDERS for text in texts_in(folder, ".conf")]
    own = [text for text in entries if matches(rf"^(?:version|linux)[ \t]+{this}", [text])]
    menu += matches(r"^options\s(.*)$", own)
    none: Dict[str, str] = {}
    images = [inputs.read(path, _unified, none) for folder in UNIFIED_FOLDERS for path in paths_in(folder, ".efi")]
    menu += [parts.get(".cmdline", "") for parts in images if parts.get(".uname", release) == release]
    for name in set(matches(r"\$\{?(\w+)", menu)):
        texts += matches(rf"^\s*(?:set )?{name}=(.*)$", [*menus, *map(inputs.text, GRUB_ENVIRONMENTS)])
    if not menu:
        # Not in the menu yet: the next update of the menu adds these.
        files = [inputs.text("/etc/default/grub"), *texts_in("/etc/default/grub.d")]
        texts += matches(r"^\s*(?:export )?GRUB_CMDLINE_LINUX(?:_DEFAULT)?\+?=(.*)$", files)
        texts += [inputs.text("/etc/kernel/cmdline")]
    words = (word.strip("\"'").partition("=") for word in " ".join(texts + menu).split())
    return [(key.replace("-", "_"), sign, value.strip("\"'")) for key, sign, value in words]


def _unified(path: str) -> Dict[str, str]:
    """The sections ``.cmdline`` and ``.uname`` of a unified kernel image, which is a PE file; raises OSError."""

    def number(place: int, size: int = 4) -> int:
        return int.from_bytes(head[place : place + size], "little")

    texts: Dict[str, str] = {}
    with open_file(path) as file:
        head = file.read(_HEAD)
        coff = number(0x3C) + 4
        table = coff + 20 + number(coff + 16, 2)
        for entry in range(table, min(table + 40 * number(coff + 2, 2), len(head)), 40):
            name = head[entry : entry + 8].rstrip(b"\0").decode("ascii", "replace")
            if name in (".cmdline", ".uname"):
                file.seek(number(entry + 20))
                texts[name] = file.read(min(number(entry + 8), _HEAD)).decode("utf-8", "replace").strip("\0\n ")
    return texts
