"""The Secure Boot state and the keys of a host, from the EFI variables of its firmware and of shim.

What the kernel makes of them: security/integrity/platform_certs/load_uefi.c and machine_keyring.c.

A TPM and shim have on record about this boot: PCR 7, the state of Secure Boot, and digests of shim's lists.  PCR 7 is
extended with the Secure Boot variables and with every certificate that allowed an image of this boot (TCG PC Client
Platform Firmware Profile, 3.3.4.8).  A value that is read here is evidence for readers who trust this host's kernel; a
quote that the TPM signs would be evidence for others.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..rootdir import list_folder, read_bytes, read_text
from . import certificate
from .certificate import Certificate, read_certificate

_EFI = "/sys/firmware/efi"
#: Owners of EFI variables: the UEFI specification's own, its image security database, and shim.
_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SECURITY = "d719b2cb-3d3a-4596-a3bc-dad00e67656f"
_SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
#: EFI_CERT_X509_GUID, as it is stored.
_X509 = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
#: Of a signature list (UEFI specification, 32.4.1): type, size of the list, of its header, of each entry; then owners.
_LIST_HEADER, _OWNER = 28, 16
#: States of Secure Boot as the kernel takes it: on; or off, with the reason; or not to be read.
ON, OFF, NO_EFI, SETUP_MODE, SHIM_OFF, UNKNOWN = "on", "off", "no-efi", "setup-mode", "shim-off", "unknown"
#: States → what a person reads.
WORDS = {
    ON: "Secure Boot is on",
    OFF: "Secure Boot is off",
    NO_EFI: "this host was not started by EFI, so it has no Secure Boot",
    SETUP_MODE: "Secure Boot is off: the firmware is in Setup Mode, without a platform key",
    SHIM_OFF: "Secure Boot is on in the firmware, but shim's validation is off, and the kernel takes that for off",
    UNKNOWN: "it's unknown whether Secure Boot is on: the EFI variable SecureBoot can't be read",
}


class Firmware(NamedTuple):
    """The keys of a host's firmware and shim."""

    #: one of WORDS
    state: str
    #: the machine owner's keys, those with a pending request, and the firmware's own (db); revoked ones, too
    mok: List[Certificate]
    requested: List[Certificate]
    db: List[Certificate]
    #: owner's keys with a pending request to delete them
    leaving: List[Certificate]
    #: keys that shim or the firmware refuses (MokListXRT, dbx); not every kernel does
    revoked: List[Certificate]
    #: whether a person told shim that kernels shall trust the owner's keys for modules (mokutil --trust-mok)
    trusts_mok: bool = False

    @property
    def efi(self) -> bool:
        """Whether the host was started by EFI."""
        return self.state != NO_EFI

    @property
    def secure_boot(self) -> Optional[bool]:
        """Whether the kernel takes Secure Boot as on; None: unknown."""
        return None if self.state == UNKNOWN else self.state == ON


def firmware(root: str) -> Firmware:
    """What can be read of the EFI variables in ``root``."""
    mok = _certificates(root, ("MokListRT", _SHIM))
    # Shim's owner can leave the firmware's keys out (mokutil --ignore-db).
    ignored = read_shims(root, "MokIgnoreDB")[-1:] == b"\x01"
    db = [] if ignored else _certificates(root, ("db", _SECURITY))
    requested = _certificates(root, ("MokNew", _SHIM))
    leaving = _certificates(root, ("MokDel", _SHIM))
    revoked = _certificates(root, ("MokListXRT", _SHIM), ("dbx", _SECURITY))
    trusts_mok = bool(read_shims(root, "MokListTrustedRT"))
    return Firmware(state_of_root(root), mok, requested, db, leaving, revoked, trusts_mok)


def state_of_root(root: str) -> str:
    """The state of Secure Boot of the host with this root: one of WORDS."""
    if not list_folder(root, _EFI):
        # No EFI, or the root of a host that doesn't run.
        return NO_EFI
    secure_boot = _variable(root, "SecureBoot", _GLOBAL)
    if not secure_boot:
        return UNKNOWN
    setup_mode, shim_off = _variable(root, "SetupMode", _GLOBAL), read_shims(root, "MokSBStateRT")
    return state_of(
        secure_boot[-1:] == b"\x01", setup_mode=setup_mode[-1:] == b"\x01", shim_off=shim_off[-1:] == b"\x01"
    )


def state_of(secure_boot: bool, *, setup_mode: bool, shim_off: bool) -> str:
    """The state of a host that EFI started, by the variables SecureBoot, SetupMode and MokSBStateRT."""
    if not secure_boot:
        return SETUP_MODE if setup_mode else OFF
    return SHIM_OFF if shim_off else ON


def _variable(root: str, name: str, owner: str) -> bytes:
    """The content of an EFI variable, after four bytes of attributes; empty if it can't be read."""
    return read_bytes(root, f"{_EFI}/efivars/{name}-{owner}")[4:]


def read_shims(root: str, name: str) -> bytes:
    """The content of a variable of shim; mok-variables has it complete, also where it was too long for the firmware."""
    return read_bytes(root, f"{_EFI}/mok-variables/{name}") or _variable(root, name, _SHIM)


def _certificates(root: str, *variables: Tuple[str, str]) -> List[Certificate]:
    lists = (read_shims(root, name) if owner == _SHIM else _variable(root, name, owner) for name, owner in variables)
    return [key for data in lists for key in read_lists(data)]


def read_lists(data: bytes) -> List[Certificate]:
    """The certificates in EFI_SIGNATURE_LISTs, up to the first malformed list."""
    keys: List[Certificate] = []
    while len(data) >= _LIST_HEADER:
        size, header, entry = (int.from_bytes(data[place : place + 4], "little") for place in (16, 20, 24))
        if not _LIST_HEADER + header <= size <= len(data) or entry <= _OWNER:
            break
        if data[:16] == _X509:
            for place in range(_LIST_HEADER + header, size - entry + 1, entry):
                with contextlib.suppress(certificate.DerError):
                    keys.append(read_certificate(data[place + _OWNER : place + entry]))
        data = data[size:]
    return keys


_TPMS = "/sys/class/tpm"
#: Banks from the strongest that firmware usually has.
_BANKS = ("pcr-sha256", "pcr-sha384", "pcr-sha512", "pcr-sha1")
_PCR = re.compile(r"[0-9A-Fa-f]{40,128}\Z")


def measured_boot(root: str = "/") -> Dict[str, str]:
    """``secure_boot`` (a state), ``pcr7`` (hexadecimal) and its ``bank``, ``mok`` and ``mokx`` (sha256 of the lists).

    ``problem``: why there is no PCR 7; then ``pcr7`` is missing.
    """
    answer = {"secure_boot": state_of_root(root)}
    lists = {"mok": read_shims(root, "MokListRT"), "mokx": read_shims(root, "MokListXRT")}
    answer.update((name, hashlib.sha256(data).hexdigest()) for name, data in lists.items() if data)
    tpms = list_folder(root, _TPMS)
    for tpm in tpms:
        for bank in _BANKS:
            value = read_text(root, f"{_TPMS}/{tpm}/{bank}/7").strip()
            # A PCR of zeros or ones was never extended.
            if _PCR.match(value) and len(set(value.lower())) > 1:
                return {**answer, "pcr7": value.lower(), "bank": bank[len("pcr-") :]}
    problem = f"none of {', '.join(tpms)} has a value for PCR 7 that this kernel shows" if tpms else "there is no TPM"
    return {**answer, "problem": problem}
