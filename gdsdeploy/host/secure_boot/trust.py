"""Which keys a kernel takes modules from, and whether it takes unsigned ones: from files of a root, running or not."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Tuple

from ..errors import HostError
from ..kmod.kernel import Kernel
from ..rootdir import inside, list_folder, read_text
from . import der
from .certificate import Certificate, read_certificate
from .image import certificates, path_of

if TYPE_CHECKING:
    from .signature import Signature

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
    """What a host's firmware and shim know of keys."""

    efi: bool
    #: None: cannot be told; False: off, or no EFI
    secure_boot: Optional[bool]
    #: the machine owner's keys, those the owner was asked to enrol, and the firmware's own (db); without the revoked
    mok: List[Certificate]
    wanted: List[Certificate]
    db: List[Certificate]


class Trust(NamedTuple):
    """What of a host decides about signatures of modules."""

    kernel: Kernel
    #: whether this kernel looks at signatures at all
    checked: bool
    #: whether it refuses what is not signed with a key it has; None: cannot be told
    enforced: Optional[bool]
    #: the reason, as the second half of a sentence
    why: str
    #: None: not told; False: off, or no EFI
    secure_boot: Optional[bool]
    #: the machine owner's keys and the firmware's own (db)
    mok: List[Certificate]
    db: List[Certificate]

    @property
    def complete(self) -> bool:
        """Whether the keys inside the kernel could be read."""
        return built_in(self.kernel) is not None

    def is_own(self, signature: Signature) -> bool:
        """Whether the kernel's own modules have the same signer."""
        return bool(signature.identity) and own_signer(self.kernel) == signature.identity

    def find(self, signature: Signature, own: bool) -> Tuple[Optional[Certificate], str]:
        """The certificate of the key that made ``signature``, and where it is: MOK, kernel, firmware, or empty.

        The kernel's image is unpacked only where that can change what is said.
        """
        for item in self.mok:
            if signature.is_by(item):
                return item, "MOK"
        if own or self.enforced:
            for item in built_in(self.kernel) or []:
                if signature.is_by(item):
                    return item, "the kernel"
        for item in self.db:
            if signature.is_by(item):
                return item, "firmware"
        return None, ""


@lru_cache(maxsize=4)
def trust_of(kernel: Kernel) -> Trust:
    """What ``kernel`` trusts on the host that its root is of."""
    found = firmware(kernel.root)
    secure_boot = found.secure_boot
    own = kernel.own_module()
    checked = "CONFIG_MODULE_SIG" in kernel.config or (not kernel.config and own is not None and bool(own.signature))
    why = _enforced_because(kernel, secure_boot)
    enforced: Optional[bool] = bool(why)
    if not why and secure_boot is None:
        enforced = None
    return Trust(kernel, checked, enforced, why, secure_boot, found.mok, found.db)


@lru_cache(maxsize=4)
def built_in(kernel: Kernel) -> Optional[List[Certificate]]:
    """The keys that the kernel was built with; None where neither its image nor its build folder can be read."""
    found: List[Certificate] = []
    try:
        with open(inside(kernel.root, f"/lib/modules/{kernel.release}/build/certs/signing_key.x509"), "rb") as key:
            found.append(read_certificate(key.read(_VARIABLE_LIMIT)))
    except (OSError, ValueError):
        pass
    image = path_of(kernel.folder, inside(kernel.root, "/boot"), kernel.release)
    if not image:
        return found or None
    try:
        return found + certificates(image)
    except (OSError, HostError):
        return found or None


@lru_cache(maxsize=4)
def own_signer(kernel: Kernel) -> str:
    """Who signed the kernel's own modules; empty where they are unsigned."""
    from .signature import signer_of

    own = kernel.own_module()
    signature = signer_of(own.path) if own is not None else None
    return "" if signature is None else signature.identity


def firmware(root: str) -> Firmware:
    """What can be read of the EFI variables in ``root``."""
    revoked = [item.raw for item in _certificates(root, ("MokListXRT", _SHIM), ("dbx", _SECURITY))]
    mok = [item for item in _certificates(root, ("MokListRT", _SHIM)) if item.raw not in revoked]
    wanted = _certificates(root, ("MokNew", _SHIM))
    db = [item for item in _certificates(root, ("db", _SECURITY)) if item.raw not in revoked]
    return Firmware(bool(list_folder(root, _EFI)), _secure_boot(root), mok, wanted, db)


def _enforced_because(kernel: Kernel, secure_boot: Optional[bool]) -> str:
    config = kernel.config
    if "CONFIG_MODULE_SIG_FORCE" in config:
        return "this kernel loads signed modules only"
    options = _command_line(kernel)
    if options.get("module.sig_enforce", "0") in _ON:
        return "module.sig_enforce is on the kernel's command line"
    if options.get("lockdown", "") in ("integrity", "confidentiality"):
        return "lockdown={} is on the kernel's command line".format(options["lockdown"])
    if _runs(kernel):
        if read_text(kernel.root, "/sys/module/module/parameters/sig_enforce").strip() == "Y":
            return "module.sig_enforce is on"
        locked = _SHOWN_LOCKED.search(read_text(kernel.root, "/sys/kernel/security/lockdown"))
        if locked is not None:
            return f"the kernel is locked down ({locked.group(1)})"
    # The distributions' kernels lock down under Secure Boot; upstream's enforce with IMA's architecture policy.
    means = ("CONFIG_LOCK_DOWN_IN_EFI_SECURE_BOOT", "CONFIG_IMA_ARCH_POLICY")
    if secure_boot and (not config or any(item in config for item in means)):
        return "Secure Boot is on"
    return ""


def _runs(kernel: Kernel) -> bool:
    return read_text(kernel.root, "/proc/sys/kernel/osrelease").strip() == kernel.release


def _command_line(kernel: Kernel) -> Dict[str, str]:
    """Options this kernel runs with, and those it is going to be started with."""
    texts = [read_text(kernel.root, "/proc/cmdline")] if _runs(kernel) else []
    mark = re.compile(rf"^\s*linux\w*\s.*-{re.escape(kernel.release)}(\s.*|)$", re.MULTILINE)
    menus = [read_text(kernel.root, f"/boot/{item}/grub.cfg") for item in ("grub", "grub2")]
    found = [match for text in menus for match in mark.findall(text)]
    for name in list_folder(kernel.root, "/boot/loader/entries"):
        text = read_text(kernel.root, "/boot/loader/entries/" + name)
        if kernel.release in text:
            found += re.findall(r"^options\s(.*)$", text, re.MULTILINE)
    if any("$kernelopts" in item for item in found):
        texts += re.findall(r"^kernelopts=(.*)$", read_text(kernel.root, "/boot/grub2/grubenv"), re.MULTILINE)
    if not found:
        # Not in the menu yet: it will get what the menu's maker adds.
        files = ["/etc/default/grub"] + [
            "/etc/default/grub.d/" + item for item in list_folder(kernel.root, "/etc/default/grub.d")
        ]
        for file in files:
            texts += re.findall(
                r'^GRUB_CMDLINE_LINUX(?:_DEFAULT)?="?(.*?)"?$', read_text(kernel.root, file), re.MULTILINE
            )
    options: Dict[str, str] = {}
    for word in " ".join(texts + found).split():
        key, _, value = word.partition("=")
        options[key.replace("-", "_")] = value
    return options


def _secure_boot(root: str) -> Optional[bool]:
    if not list_folder(root, _EFI):
        # No EFI, or a root that does not run: nothing turns it on there.
        return False
    state = _variable(root, "SecureBoot", _GLOBAL)
    if not state:
        return None
    # With it set, shim verifies nothing, and the kernel takes Secure Boot for off.
    return state[-1:] == b"\x01" and _variable(root, "MokSBStateRT", _SHIM)[-1:] != b"\x01"


def _variable(root: str, name: str, owner: str) -> bytes:
    """The content of an EFI variable; empty when it cannot be read."""
    try:
        with open(inside(root, f"{_EFI}/efivars/{name}-{owner}"), "rb") as file:
            # The first four bytes are its attributes.
            return file.read(_VARIABLE_LIMIT)[4:]
    except OSError:
        return b""


def _certificates(root: str, *variables: Tuple[str, str]) -> List[Certificate]:
    found: List[Certificate] = []
    for name, owner in variables:
        data = _variable(root, name, owner)
        if owner == _SHIM:
            # Whole there, also where the variable was too long for the firmware.
            data = _read(root, f"{_EFI}/mok-variables/{name}") or data
        found += read_lists(data)
    return found


def _read(root: str, path: str) -> bytes:
    try:
        with open(inside(root, path), "rb") as file:
            return file.read(_VARIABLE_LIMIT)
    except OSError:
        return b""


def read_lists(data: bytes) -> List[Certificate]:
    """The certificates in EFI_SIGNATURE_LISTs; what cannot be read ends the reading."""
    found: List[Certificate] = []
    while len(data) >= _LIST_HEADER:
        size, header, entry = (int.from_bytes(data[place : place + 4], "little") for place in (16, 20, 24))
        if not _LIST_HEADER + header <= size <= len(data) or entry <= _OWNER:
            break
        if data[:16] == _X509:
            for place in range(_LIST_HEADER + header, size - entry + 1, entry):
                try:
                    found.append(read_certificate(data[place + _OWNER : place + entry]))
                except der.DerError:
                    continue
        data = data[size:]
    return found
