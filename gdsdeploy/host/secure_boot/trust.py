"""Which keys a kernel accepts modules from, and whether it accepts unsigned ones: from files of a root."""

from __future__ import annotations

import contextlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Optional, Tuple, TypeVar

from ..errors import HostError
from ..kmod.kernel import Kernel
from ..rootdir import LoopError, inside, list_folder, list_names, read_file, read_text
from . import der
from .certificate import Certificate, read_certificate
from .image import certificates, path_of

if TYPE_CHECKING:
    from .signature import Signature

T = TypeVar("T")
_EFI = "/sys/firmware/efi"
#: Owners of EFI variables: the UEFI specification's own, its image security database, and shim.
_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SECURITY = "d719b2cb-3d3a-4596-a3bc-dad00e67656f"
_SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
#: EFI_CERT_X509_GUID, as it is stored.
_X509 = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
#: Of a signature list (UEFI specification, 32.4.1): type, size of the list, of its header, of each entry; then owners.
_LIST_HEADER, _OWNER = 28, 16
_VARIABLE_LIMIT = 1 << 20
_ON = ("1", "y", "Y", "on", "")
_SHOWN_LOCKED = re.compile(r"\[(integrity|confidentiality)\]")


class Firmware(NamedTuple):
    """The keys of a host's firmware and shim."""

    efi: bool
    #: None: unknown; False: off, or no EFI
    secure_boot: Optional[bool]
    #: the machine owner's keys, those with a pending request, and the firmware's own (db); without revoked ones
    mok: List[Certificate]
    requested: List[Certificate]
    db: List[Certificate]


class Trust(NamedTuple):
    """What decides about signatures of modules on a host."""

    kernel: Kernel
    #: whether this kernel checks signatures at all
    checks_signatures: bool
    #: whether it refuses what isn't signed with a key it has; None: unknown
    enforced: Optional[bool]
    #: the reason, as the second half of a sentence
    why: str
    #: None: unknown; False: off, or no EFI
    secure_boot: Optional[bool]
    #: the machine owner's keys and the firmware's own (db)
    mok: List[Certificate]
    db: List[Certificate]
    #: files that may enforce signatures and can't be read, each with the reason; empty where that doesn't matter
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
        certificate = next(filter(signature.is_by, self.mok), None)
        if certificate is not None:
            return certificate, "MOK"
        # The kernel's image is unpacked only if that can change the findings.
        decides = own or self.enforced is not False
        certificate = next(filter(signature.is_by, built_in(self.kernel) or []), None) if decides else None
        if certificate is not None:
            return certificate, "the kernel"
        certificate = next(filter(signature.is_by, self.db), None)
        return certificate, "firmware" if certificate is not None else ""


@lru_cache(maxsize=4)
def trust_of(kernel: Kernel) -> Trust:
    """What ``kernel`` trusts on the host of its root."""
    host = firmware(kernel.root)
    own = kernel.own_module()
    checks = "CONFIG_MODULE_SIG" in kernel.config or (not kernel.config and own is not None and bool(own.signature))
    unread: List[str] = []
    why = _enforced_because(kernel, host.secure_boot, unread)
    enforced = None if not why and (unread or host.secure_boot is None) else bool(why)
    return Trust(kernel, checks, enforced, why, host.secure_boot, host.mok, host.db, () if why else tuple(unread))


@lru_cache(maxsize=4)
def built_in(kernel: Kernel) -> Optional[List[Certificate]]:
    """The keys that the kernel was built with; None if neither its image nor its build folder can be read."""
    keys: List[Certificate] = []
    with contextlib.suppress(ValueError):
        keys.append(read_certificate(_read(kernel.root, f"/lib/modules/{kernel.release}/build/certs/signing_key.x509")))
    image = path_of(kernel.folder, inside(kernel.root, "/boot"), kernel.release)
    try:
        return keys + certificates(image) if image else keys or None
    except (OSError, HostError):
        return keys or None


@lru_cache(maxsize=4)
def own_signer(kernel: Kernel) -> str:
    """The signer of the kernel's own modules; empty if they are unsigned."""
    from .signature import signer_of

    own = kernel.own_module()
    signature = signer_of(own.path) if own is not None else None
    return "" if signature is None else signature.identity


def firmware(root: str) -> Firmware:
    """What can be read of the EFI variables in ``root``."""
    revoked = [key.raw for key in _certificates(root, ("MokListXRT", _SHIM), ("dbx", _SECURITY))]
    mok = [key for key in _certificates(root, ("MokListRT", _SHIM)) if key.raw not in revoked]
    db = [key for key in _certificates(root, ("db", _SECURITY)) if key.raw not in revoked]
    requested = _certificates(root, ("MokNew", _SHIM))
    return Firmware(bool(list_folder(root, _EFI)), _secure_boot(root), mok, requested, db)


def _enforced_because(kernel: Kernel, secure_boot: Optional[bool], unread: List[str]) -> str:
    """Why the kernel enforces signatures; empty: nothing says so.  unread: gets the files that can't be read."""
    config = kernel.config
    if "CONFIG_MODULE_SIG_FORCE" in config:
        return "this kernel loads signed modules only"
    options = _command_line(kernel, unread)
    if options.get("module.sig_enforce", "0") in _ON:
        return "module.sig_enforce is on the kernel's command line"
    if options.get("lockdown", "") in ("integrity", "confidentiality"):
        return f"lockdown={options['lockdown']} is on the kernel's command line"
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


def _command_line(kernel: Kernel, unread: List[str]) -> Dict[str, str]:
    """Options that this kernel runs with, and those of its next start."""
    root, release = kernel.root, kernel.release

    def text_of(path: str) -> str:
        return _present(path, lambda: read_file(inside(root, path)), "", unread)

    def names_in(path: str) -> List[str]:
        return _present(path, lambda: list_names(inside(root, path)), [], unread)

    texts = [text_of("/proc/cmdline")] if _runs(kernel) else []
    pattern = re.compile(rf"^\s*linux\w*\s.*-{re.escape(release)}(\s.*|)$", re.MULTILINE)
    menu = [match for name in ("grub", "grub2") for match in pattern.findall(text_of(f"/boot/{name}/grub.cfg"))]
    for name in names_in("/boot/loader/entries"):
        text = text_of("/boot/loader/entries/" + name)
        if release in text:
            menu += re.findall(r"^options\s(.*)$", text, re.MULTILINE)
    if any("$kernelopts" in line for line in menu):
        texts += re.findall(r"^kernelopts=(.*)$", text_of("/boot/grub2/grubenv"), re.MULTILINE)
    if not menu:
        # Not in the menu yet: the next update of the menu adds these.
        names = ("grub", *(f"grub.d/{name}" for name in names_in("/etc/default/grub.d")))
        pattern = re.compile(r'^GRUB_CMDLINE_LINUX(?:_DEFAULT)?="?(.*?)"?$', re.MULTILINE)
        texts += [match for name in names for match in pattern.findall(text_of(f"/etc/default/{name}"))]
    words = (word.partition("=") for word in " ".join(texts + menu).split())
    return {key.replace("-", "_"): value for key, _, value in words}


def _present(path: str, read: Callable[[], T], nothing: T, unread: List[str]) -> T:
    """What ``read`` finds at ``path``, or ``nothing``; unread: gets the path if something is there."""
    try:
        return read()
    except (FileNotFoundError, NotADirectoryError):
        return nothing
    except OSError as error:
        unread.append(f"{path} ({error.strerror})")
    except LoopError:
        unread.append(f"{path} (too many symbolic links)")
    return nothing


def _secure_boot(root: str) -> Optional[bool]:
    if not list_folder(root, _EFI):
        # No EFI, or the root of a host that doesn't run.
        return False
    state = _variable(root, "SecureBoot", _GLOBAL)
    # With MokSBStateRT set, shim verifies nothing, and the kernel treats Secure Boot as off.
    return state[-1:] == b"\x01" and _variable(root, "MokSBStateRT", _SHIM)[-1:] != b"\x01" if state else None


def _variable(root: str, name: str, owner: str) -> bytes:
    """The content of an EFI variable, after four bytes of attributes; empty if it can't be read."""
    return _read(root, f"{_EFI}/efivars/{name}-{owner}")[4:]


def _certificates(root: str, *variables: Tuple[str, str]) -> List[Certificate]:
    keys: List[Certificate] = []
    for name, owner in variables:
        # mok-variables has the complete value, even if the variable was too long for the firmware.
        data = _read(root, f"{_EFI}/mok-variables/{name}") if owner == _SHIM else b""
        keys += read_lists(data or _variable(root, name, owner))
    return keys


def _read(root: str, path: str) -> bytes:
    try:
        with open(inside(root, path), "rb") as file:
            return file.read(_VARIABLE_LIMIT)
    except OSError:
        return b""


def read_lists(data: bytes) -> List[Certificate]:
    """The certificates in EFI_SIGNATURE_LISTs, up to the first malformed list."""
    keys: List[Certificate] = []
    while len(data) >= _LIST_HEADER:
        size, header, entry = (int.from_bytes(data[place : place + 4], "little") for place in (16, 20, 24))
        if not _LIST_HEADER + header <= size <= len(data) or entry <= _OWNER:
            break
        if data[:16] == _X509:
            for place in range(_LIST_HEADER + header, size - entry + 1, entry):
                with contextlib.suppress(der.DerError):
                    keys.append(read_certificate(data[place + _OWNER : place + entry]))
        data = data[size:]
    return keys
