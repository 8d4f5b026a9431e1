"""``kmod sign|keygen|enrol|unenrol``: sign modules, make a key for that, ask the firmware to enrol or delete it."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Dict, List

from ..audit.audit import STACK
from ..errors import HostError
from ..kmod import driver as drivers
from ..kmod.kernel import Kernel
from ..kmod.module import read_module
from ..rootdir import list_folder
from ..secure_boot import mok, signature, signing
from ..secure_boot.certificate import Certificate
from .parsers import Add

KEY, CERTIFICATE = "/etc/gdsdeploy-keys/modules.key", "/etc/gdsdeploy-keys/modules.der"

_SIGN_EXAMPLES = """\
Modules that have the right signature stay as they are; others are unpacked, stripped, signed by the kernel's own
scripts/sign-file, verified with the certificate, packed as they were and put in their place.

examples:
  %(prog)s --check                                  what would be signed, by /etc/gdsdeploy/signing.json
  %(prog)s --kernel 6.12.94+deb13-amd64             NVIDIA's modules of a kernel that is installed
  %(prog)s --key modules.key --certificate modules.der ./nvidia-fs.ko
"""
_KEYGEN_EXAMPLES = """\
The private key is readable by its owner only and stays on this machine; nothing that exists is overwritten.

examples:
  %(prog)s --name "GPU fleet 7 modules"
  %(prog)s --name "GPU fleet 7 modules" --key /root/modules.key --certificate /root/modules.der
"""
_ENROL_EXAMPLES = """\
A person has to confirm the request at the console during the next boot; the steps are printed.

examples:
  %(prog)s --check                                  is the key enrolled?
  %(prog)s --certificate modules.der
  %(prog)s --withdraw                               withdraw requests that no one has confirmed yet
"""
_UNENROL_EXAMPLES = """\
Refused while a module of any kernel on this host is signed with the key.  A person has to confirm the request at the
console during the next boot; the steps are printed.

examples:
  %(prog)s --certificate old.der --check            is the key enrolled, and does a module need it?
  %(prog)s --certificate old.der
"""


def add_parsers(commands: Any, add: Add) -> None:
    """Add the commands; ``add`` makes one, with ``--json``."""
    sign = add(commands, "sign", _sign, "sign modules with the kernel's own tool", _SIGN_EXAMPLES)
    sign.add_argument("modules", nargs="*", metavar="MODULE", help="names or files (default: NVIDIA's that are there)")
    sign.add_argument("--kernel", default="", metavar="REL", help="kernel release (default: that of the files)")
    sign.add_argument("--root", default="/", metavar="DIR")
    sign.add_argument("--key", default="", metavar="FILE", help="the private key, or pkcs11:…")
    sign.add_argument("--certificate", default="", metavar="FILE", help="its certificate, PEM or DER")
    sign.add_argument("--settings", default=signing.SETTINGS, metavar="FILE", help=argparse.SUPPRESS)
    sign.add_argument("--check", action="store_true", help="say what would be signed and change nothing")
    key = add(commands, "keygen", _keygen, "make a key that signs modules, and its certificate", _KEYGEN_EXAMPLES)
    key.add_argument("--key", default=KEY, metavar="FILE", help="default: %(default)s")
    key.add_argument("--certificate", default=CERTIFICATE, metavar="FILE", help="default: %(default)s")
    key.add_argument("--name", required=True, help="what the firmware's screen and modinfo show")
    key.add_argument("--days", type=int, default=3650, metavar="N", help="default: %(default)s")
    words = "have the firmware take a key, with its owner at the console"
    enrol = add(commands, "enrol", _enrol, words, _ENROL_EXAMPLES)
    enrol.add_argument("--certificate", default=CERTIFICATE, metavar="FILE", help="default: %(default)s")
    enrol.add_argument("--root", default="/", metavar="DIR", help=argparse.SUPPRESS)
    enrol.add_argument("--where-needed", action="store_true", help="do nothing where Secure Boot is off")
    enrol.add_argument("--withdraw", action="store_true", help="withdraw pending requests, of any key")
    enrol.add_argument("--check", action="store_true", help="say what would change and change nothing")
    words = "have the firmware delete a key that was enrolled, with its owner at the console"
    unenrol = add(commands, "unenrol", _unenrol, words, _UNENROL_EXAMPLES)
    unenrol.add_argument("--certificate", required=True, metavar="FILE", help="of the key, PEM or DER")
    unenrol.add_argument("--root", default="/", metavar="DIR", help=argparse.SUPPRESS)
    unenrol.add_argument("--check", action="store_true", help="say what would change and change nothing")


def _sign(arguments: argparse.Namespace) -> int:
    by = signing.from_settings(arguments.certificate, arguments.key, arguments.settings)
    if by is None:
        hint = "give --key and --certificate, or signing in the fleet file"
        raise HostError("nothing says whose signature modules should get", hint)
    kernel = Kernel(arguments.kernel or _release(arguments.modules), arguments.root)
    results = signing.sign(kernel, _files(kernel, arguments.modules), by, check=arguments.check)
    word = "would be signed" if arguments.check else "signed"
    changed = any(module["changed"] for module in results)
    lines = [f"{module['file']}: {word if module['changed'] else 'is signed already'}" for module in results]
    _print(arguments, {"changed": changed, "modules": results}, lines)
    return 0


def _release(modules: List[str]) -> str:
    """DKMS has files signed, and does not say for which kernel; the files do."""
    for module in modules:
        if "/" in module or ".ko" in module:
            return (read_module(module).vermagic.split() or [""])[0]
    return os.uname().release


def _files(kernel: Kernel, modules: List[str]) -> List[str]:
    paths = []
    for module in modules or [name for name in STACK if drivers.find(kernel, name) is not None]:
        if "/" in module or ".ko" in module:
            paths.append(os.path.abspath(module))
            continue
        place = drivers.find(kernel, module.replace("-", "_"))
        if place is None:
            raise HostError(f"kernel {kernel.release} has no module {module}", "build or install it first")
        paths.append(kernel.path(place.file))
    if not paths:
        raise HostError(f"kernel {kernel.release} has none of NVIDIA's modules", "build them first")
    return paths


def _keygen(arguments: argparse.Namespace) -> int:
    pair = mok.make_key(arguments.key, arguments.certificate, arguments.name, arguments.days)
    value = {"key": arguments.key, "certificate": arguments.certificate, "fingerprint": pair.fingerprint}
    lines = [f"key: {arguments.key} (keep it: it is nowhere else)"]
    lines += [f"certificate: {arguments.certificate}", f"SHA1 fingerprint: {pair.fingerprint}"]
    _print(arguments, value, lines)
    return 0


def _enrol(arguments: argparse.Namespace) -> int:
    if arguments.withdraw:
        answer = mok.withdraw(arguments.root, arguments.check)
        word = "would be withdrawn" if arguments.check else "withdrawn"
        lines = [f"the request for {subject!r}: {word}" for subject in answer["withdrawn"]]
        _print(arguments, answer, lines or ["no request is pending"])
        return 0
    owners = signing.read_certificate_file(arguments.certificate)
    answer = mok.enrol(owners, arguments.root, arguments.check, arguments.where_needed)
    _print_state(arguments, answer)
    return 0


def _unenrol(arguments: argparse.Namespace) -> int:
    owners = signing.read_certificate_file(arguments.certificate)
    answer = mok.unenrol(owners, arguments.root, arguments.check, _signed_with(owners, arguments.root))
    _print_state(arguments, answer)
    return 0


def _signed_with(owners: Certificate, root: str) -> List[str]:
    """Files of the stack's modules, of any kernel, that are signed with a key."""
    kernels = [Kernel(release, root) for release in list_folder(root, "/lib/modules")]
    places = [(kernel, drivers.find(kernel, name)) for kernel in kernels for name in STACK]
    files = [kernel.path(place.file) for kernel, place in places if place is not None]
    signatures = [(path, signature.signer_of(path)) for path in files]
    return [path for path, each in signatures if each is not None and each.is_by(owners)]


def _print_state(arguments: argparse.Namespace, answer: Dict[str, Any]) -> None:
    steps = [f"  {number}. {text}" for number, text in enumerate(answer["steps"], 1)]
    _print(arguments, answer, [mok.ENROLMENTS[answer["state"]], *steps])


def _print(arguments: argparse.Namespace, value: Any, lines: List[str]) -> None:
    print(json.dumps(value, indent=2, sort_keys=True) if arguments.json else "\n".join(lines))
