"""What signs modules on machines that build, the certificate on those that receive, and its enrolment."""

from __future__ import annotations

import base64
import os
import stat
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence

from ..errors import ApplyError, CannotTellError, HostError
from ..io import reading
from ..model.schema import LINES
from ..rootdir import inside
from ..secure_boot import signing
from ..secure_boot.firmware import firmware
from ..secure_boot.signing import SETTINGS, parse_certificate, read_certificate_file
from .file_resource import FileResource
from .files import FOLDER, File, PathState, decode_base64
from .host import ManagedHost
from .model import REBOOT, Change, Refusal, Words, with_kind
from .program import COMMAND

#: The certificate on machines that receive their modules.
RECEIVED = "/etc/gdsdeploy/modules.der"
SIGN_FILE = "/usr/lib/gdsdeploy/sign-file"
FRAMEWORK = "/etc/dkms/framework.conf.d/gdsdeploy.conf"
_CERTIFICATE_LIMIT = 1 << 16
#: States of :func:`mok.enrol` in which a person has to act.
_OPEN = ("absent", "pending")
_SIGN_FILE_TEXT = f"""\
#!/bin/sh
# Rendered by gdsdeploy; changes here are overwritten. DKMS calls it as it calls the kernel's sign-file:
# HASH KEY CERTIFICATE MODULE. Who signs is in /etc/gdsdeploy/signing.json; sign-file of the module's kernel does it.
exec {COMMAND} kmod sign "$4"
"""
_FRAMEWORK_TEXT = """\
# Rendered by gdsdeploy; changes here are overwritten.
# Any key that begins with pkcs11: keeps DKMS from making one of its own, which nobody has enrolled.
sign_file="/usr/lib/gdsdeploy/sign-file"
mok_signing_key="pkcs11:gdsdeploy"
mok_certificate="{}"
# DKMS 3.4 and newer otherwise signs nothing in a service with a mount namespace of its own, and reports success.
try_sign_modules="true"
"""


@dataclass(frozen=True)
class Desired:
    """Whose signature the modules get, and which key the firmware has to know."""

    #: The key's certificate on the builder.
    certificate: str = ""
    #: Private key on the builder, never copied.  Empty where a program signs.
    key: str = ""
    #: Settings of ``kmod sign``, as JSON text with certificate, key and signer.
    settings: str = field(default="", metadata=LINES)
    #: Whether this machine builds and signs modules.
    signs: bool = False
    #: Whether this machine loads modules and needs the key in its firmware.
    enrols: bool = False
    #: Release of the kernel whose modules are signed.
    kernel_release: str = ""
    #: The certificate in base64, on machines that receive their modules.  Empty while the builder hasn't delivered it.
    certificate_content: str = ""


class Signing(FileResource[Desired]):
    """Settings and hooks for signing, or the certificate; and a request to the firmware to enrol it."""

    name = "signing"
    desired_type = Desired
    removal_rank = 110
    kinds: ClassVar[Words] = {"sign": "sign {}", "enrol": "have the key {} enrolled, by a person at the console"}
    reverts = (SETTINGS, RECEIVED, SIGN_FILE, FRAMEWORK, signing.ONE_TIME)

    def desired_files(self, desired: Desired) -> List[File]:
        """The files of a machine that signs, or the certificate of one that receives; none without a certificate."""
        if not desired.certificate:
            return []
        if not desired.signs:
            content = _content(desired)
            return [File(RECEIVED, content=content)] if content else []
        return [
            File.of(SETTINGS, desired.settings, 0o600),
            File.of(SIGN_FILE, _SIGN_FILE_TEXT, 0o755),
            *(File(path, FOLDER, mode=0o755) for path in ("/etc/dkms", os.path.dirname(FRAMEWORK))),
            File.of(FRAMEWORK, _FRAMEWORK_TEXT.format(desired.certificate)),
        ]

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        """``files``, ``signer`` (path → mode and uid, None without it), ``certificate`` (base64), ``enrolment``."""
        entries = super().observe(host, desired)
        paths = [path for path in (desired.certificate, desired.key) if path] if desired.signs else []
        data = _read(host, desired.certificate) if desired.signs else _content(desired)
        return {
            "files": {path: entry and entry._asdict() for path, entry in entries.items()},
            "signer": {path: _mode(host, path) for path in paths},
            "certificate": base64.b64encode(data).decode("ascii"),
            "enrolment": _enrolment(host, desired, data),
        }

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        """The key and its certificate aren't there or not safe, or the builder hasn't delivered its certificate."""
        if not desired.certificate:
            return []
        if not desired.signs:
            message = "the certificate that the modules are signed with is not on the controller"
            hint = "provision the builder of this profile first, or together with this host"
            return [] if desired.certificate_content else [Refusal("not-delivered", message, hint)]
        refusals = []
        for path, state in observed["signer"].items():
            if state is None:
                refusals.append(_missing(desired, path))
            elif path == desired.key and (state["mode"] & 0o077 or state["uid"] != 0):
                message = f"{path} can be read by others than root (mode {state['mode']:04o})"
                refusals.append(Refusal("key-readable", message, f"chmod 0600 {path} and chown root {path}"))
        return refusals

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """Files that differ, and the enrolment if the firmware doesn't know the key."""
        entries = {path: None if entry is None else PathState(**entry) for path, entry in observed["files"].items()}
        changes = super().changes(desired, entries, pending)
        state = observed["enrolment"]
        if state["error"]:
            raise CannotTellError(state["error"], state["hint"], "failed")
        if state["state"] in _OPEN:
            changes.append(
                Change("enrol", certificate_path(desired), state["state"], "enrolled", "secure-boot", REBOOT)
            )
        return changes

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        """Write a file; the firmware is asked in the end."""
        if change.kind != "enrol":
            super().apply(host, desired, change)

    def settle(self, host: ManagedHost, desired: Desired, changes: Sequence[Change]) -> None:
        """Ask the firmware to enrol the key.  Raises ApplyError with what a person has to do at the console."""
        if not desired.certificate or not desired.enrols:
            return
        with with_kind("failed"):
            owners = read_certificate_file(inside(host.root, certificate_path(desired)))
            answer = signing.enrol(owners, host.root, where_needed=True)
        if answer["state"] == "pending":
            # The request stands, so the files that belong to it stay.
            host.keep()
            steps = " ".join(f"({number}) {text};" for number, text in enumerate(answer["steps"], 1))
            message = "Secure Boot is on and the key of the modules has to be enrolled by a person at the console"
            raise ApplyError(f"{message} of this host: {steps}", "apply it again after that", "refused")

    def report(self, desired: Desired, observed: Any) -> Mapping[str, Any]:
        """``certificate``: base64 of the file, which the controller gives to machines that receive."""
        return {"certificate": observed["certificate"], "enrolment": observed["enrolment"], "observed": observed}


def certificate_path(desired: Desired) -> str:
    """Where the certificate is on this machine; empty: modules aren't signed."""
    return desired.certificate if desired.signs or not desired.certificate else RECEIVED


def _content(desired: Desired) -> bytes:
    return decode_base64(desired.certificate_content, "signing.certificate_content")


def _read(host: ManagedHost, path: str) -> bytes:
    try:
        return reading.whole(inside(host.root, path), _CERTIFICATE_LIMIT)
    except OSError:
        # Refused by its absence or its mode, with a hint.
        return b""


def _mode(host: ManagedHost, path: str) -> Optional[Dict[str, int]]:
    try:
        status = os.stat(inside(host.root, path))
    except OSError:
        return None
    return {"mode": stat.S_IMODE(status.st_mode), "uid": status.st_uid}


def _enrolment(host: ManagedHost, desired: Desired, data: bytes) -> Dict[str, str]:
    """``state`` as :func:`mok.enrol` has it; empty where nothing is enrolled here."""
    answer = {"state": "", "error": "", "hint": ""}
    if not desired.certificate or not desired.enrols or not data:
        return answer
    try:
        certificate = parse_certificate(data, certificate_path(desired))
        answer["state"] = signing.enrolment(certificate, firmware(host.root), where_needed=True)
    except HostError as error:
        answer.update(error=error.message, hint=error.hint)
    return answer


def _missing(desired: Desired, path: str) -> Refusal:
    key = f" --key {desired.key}" if desired.key else ""
    hint = (
        f"make the key on the machine that builds, once: sudo {COMMAND} kmod keygen"
        f' --name "NAME OF YOUR FLEET" --certificate {desired.certificate}{key}'
    )
    name = "no-key" if path == desired.key else "no-certificate"
    return Refusal(name, f"{path}, with which modules are signed, is not there", hint)
