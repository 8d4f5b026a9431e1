"""``kmod`` on a host; some of its commands are ``gdsdeploy kmod``, too.

Exit status: 0 done, or nothing to object to; 1 an audit found errors, or a build failed; 2 unusable arguments or files;
3 an audit found no error but could not tell everything.

``kmod sign|keygen|enrol|unenrol``: sign modules, make a key for that, ask the firmware to enrol or delete it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import Any, Dict, List, Optional, Tuple

from ..archive import pack
from ..archive.provenance import Builder, Origin, own_key
from ..audit.audit import Result, audit, file_of, has_errors, is_file, is_undecided, stack_files
from ..build import dkms
from ..build.kbuild import PROGRESS, BuildRequest
from ..build.run import MODULES, Report, build
from ..errors import BuildError, HostError, failing, guarded
from ..io import atomic
from ..kmod import driver as drivers, files
from ..kmod.driver import Expected
from ..kmod.kernel import Kernel
from ..kmod.module import read_module
from ..rootdir import inside, list_folder
from ..secure_boot import signature, signing
from ..secure_boot.certificate import Certificate
from ..secure_boot.signing import ENROLMENTS, enrol, make_key, unenrol, withdraw
from .parsers import PROGRAM, driver, option, show_indented, target

OK, FAILED, UNUSABLE, UNDECIDED = 0, 1, 2, 3

KMOD = PROGRAM.group(
    "kmod",
    "kernel modules: audit, build, pack, install",
    guarded,
    # An epilog is printed as it is.
    formatter_class=argparse.RawDescriptionHelpFormatter,
)

_MODULES = option("modules", nargs="*", metavar="MODULE", help="names or files (default: NVIDIA's that are there)")
_CHECK = "say what would change and change nothing"
_HIDDEN_ROOT = option("--root", default="/", metavar="DIR", help=argparse.SUPPRESS)

KEY, CERTIFICATE = "/etc/gdsdeploy-keys/modules.key", "/etc/gdsdeploy-keys/modules.der"
_CERTIFICATE = option("--certificate", default=CERTIFICATE, metavar="FILE", help="default: %(default)s")

_AUDIT_EXAMPLES = """\
A module is ok, FAILED (it would not load, or is not the expected one), or could not be told.  Each finding
says what to do about it; exit statuses are in docs/exit-codes.md.

examples:
  %(prog)s                                           NVIDIA's modules of the running kernel
  %(prog)s --kernel 6.12.94+deb13-amd64              of another that is installed
  %(prog)s --root /mnt/image --kernel REL            in a root folder that is not running
  %(prog)s --kernel REL ./nvidia-fs.ko               a file, as if it were installed there
  %(prog)s --peermem --storage nvme                  with what this host has to have
  %(prog)s --json | jq -r '.[].findings[].id'
"""


@KMOD.command(
    "audit",
    "Would these modules load on that kernel, and are they the right ones?  Nothing is loaded, no root is needed.",
    _MODULES,
    *target(),
    *driver("", "the version the driver has to have"),
    option("--driver-tree", default="", metavar="DIR", help="the tree nvidia-fs has to be built against"),
    option("--peermem", action="store_true", help="nvidia-peermem has to work: a stub is an error"),
    option(
        "--storage",
        action="append",
        default=[],
        choices=sorted(drivers.DRIVERS),
        metavar="DRIVER",
        help="a storage driver that has to let nvidia-fs in, such as nvme, rpcrdma, lnet (more than once)",
    ),
    epilog=_AUDIT_EXAMPLES,
)
def _audit(arguments: argparse.Namespace) -> int:
    kernel = _kernel(arguments)
    digest = files.digest(files.expect(arguments.driver_tree)) if arguments.driver_tree else ""
    expected = Expected(
        arguments.driver_version, arguments.driver_flavour, digest, arguments.peermem, tuple(arguments.storage)
    )
    results = audit(kernel, arguments.modules, expected)
    if not results:
        raise HostError(
            f"kernel {kernel.release} has none of NVIDIA's modules", "name the modules to audit, or build them"
        )
    show_indented(arguments, results, _text(results, kernel))
    return FAILED if has_errors(results) else UNDECIDED if is_undecided(results) else OK


def _kernel(arguments: argparse.Namespace) -> Kernel:
    return Kernel(arguments.kernel or os.uname().release, arguments.root)


def _text(results: List[Result], kernel: Kernel) -> List[str]:
    lines = []
    for result in results:
        ok: Optional[bool] = result["ok"]
        word = "could not tell" if ok is None else "ok" if ok else "FAILED"
        lines.append(f"{result['module'] or result['file']}: {word} ({result['file'] or kernel.release})")
        for finding in result["findings"]:
            lines.append(f"  {finding['severity']} [{finding['id']}] {finding['message']}")
            lines += [f"    hint: {finding['hint']}"] if finding["hint"] else []
    return lines


_BUILD_EXAMPLES = """\
MODULE is nvidia-fs, nvidia-peermem or driver (the driver's own modules, with nvidia-peermem where there is an OFED tree
of this kernel).  Without --driver-tree, /usr/src has to have exactly one source tree of that driver.  FILE is replaced
only if the new module passes its audit.  See docs/modules.md.

examples:
  %(prog)s nvidia-fs --kernel 6.12.94+deb13-amd64 --source /usr/src/nvidia-fs-2.19.7 \\
      --driver-version 550.163.01 --output nvidia-fs.ko
  %(prog)s nvidia-peermem nvidia-fs --kernel 6.12.94+deb13-amd64 --source /usr/src/nvidia-fs-2.19.7 \\
      --driver-tree /usr/src/nvidia-current-open-550.163.01 --ahead --output /tmp/modules/ --json
  %(prog)s driver --kernel 6.12.94+deb13-amd64 --driver-version 550.163.01 --output /tmp/modules/
"""


@KMOD.command(
    "build",
    "build modules for a kernel, running or not, and audit them",
    # DKMS appends LLVM=1 to its command for kernels that clang compiled, so variables may follow anywhere.
    option("words", nargs="+", metavar="MODULE|NAME=VALUE", help="what to build; variables for make"),
    option("--kernel", required=True, metavar="REL", help="kernel release"),
    option("--source", default="", metavar="DIR", help="the source of nvidia-fs"),
    option("--driver-tree", default="", metavar="DIR", help="the driver's source (default: the only one)"),
    option("--driver-version", default="", metavar="V", help="the version that the tree has to have"),
    option(
        "--driver-flavour",
        choices=("open", "proprietary"),
        help="default: open; with --driver-tree, the tree's own",
    ),
    option("--output", required=True, metavar="FILE|DIR", help="the file of one module, or a folder; logs go beside"),
    option("--jobs", type=int, default=0, metavar="N", help="parallel jobs (default: the number of cores)"),
    option("--ahead", action="store_true", help="for a driver that isn't installed for this kernel yet"),
    option(
        "--peermem",
        choices=("required", "optional", "stub"),
        default="optional",
        help="with driver: nvidia-peermem has to work, is left out where it would be a stub, or may be one",
    ),
    option("--log", default="", metavar="FILE", help="one log for everything; its folder is created"),
    option("--kept", default="", metavar="NAME", help="if it fails, put back what DKMS had as NAME"),
    option("--verbose", action="store_true", help="print the build log, whatever the outcome"),
    option("--progress", default=PROGRESS, metavar="FILE", help=argparse.SUPPRESS),
    epilog=_BUILD_EXAMPLES,
)
def _build(arguments: argparse.Namespace) -> int:
    """Build, print one line a module or the JSON document; raises HostError, after that, for what failed."""
    modules, variables = _words(arguments.words)
    if "nvidia-fs" in modules and not arguments.source:
        hint = "name the folder that has its Makefile, e.g. /usr/src/nvidia-fs-2.19.7"
        raise HostError("nvidia-fs needs --source", hint)
    try:
        report = _report(arguments, modules, variables)
    except HostError as error:
        raise type(error)(error.message, _join(error.hint, _restore(arguments))) from None
    request = report.request
    against = f"{request.tree.path} ({request.tree.version} {request.tree.flavour})"
    lines = [
        f"built {built.file} {built.module.version} for kernel {request.kernel.release} against {against}"
        for outcome in report.outcomes
        for built in outcome.built
    ]
    show_indented(arguments, report.as_dict(), [*lines, *(f"note: {note}" for note in report.notes)])
    sys.stdout.flush()
    if not report.failures:
        if arguments.kept:
            # DKMS installs next, and refuses to do so beside a file of the same version.
            dkms.release(Kernel(arguments.kernel), arguments.kept)
        return OK
    errors = [outcome.error for outcome in report.failures if outcome.error is not None]
    hint = _join(errors[0].hint, _restore(arguments))
    more = "; ".join(f"{outcome.module}: {outcome.error}" for outcome in report.failures[1:])
    raise type(errors[0])(_join(errors[0].message, more), hint)


def _words(words: List[str]) -> Tuple[List[str], List[str]]:
    modules = [word for word in words if "=" not in word]
    variables = [word for word in words if "=" in word]
    for word in modules:
        if word not in MODULES:
            message = f"{word!r} is neither NAME=VALUE for make nor a module"
            raise HostError(message, f"build one of: {', '.join(MODULES)}")
    for variable in variables:
        if not variable.split("=", 1)[0].isidentifier():
            raise HostError(f"{variable!r} isn't NAME=VALUE for make")
    if not modules:
        raise HostError("no module is named", f"build one or more of: {', '.join(MODULES)}")
    return modules, variables


def _report(arguments: argparse.Namespace, modules: List[str], variables: List[str]) -> Report:
    version, flavour = arguments.driver_version, arguments.driver_flavour or ""
    if arguments.driver_tree:
        chosen = files.expect(os.path.abspath(arguments.driver_tree), version, flavour)
    else:
        chosen = files.select(files.find_trees(), version, flavour or "open")
    # The cores that this process may use.
    jobs = arguments.jobs or len(os.sched_getaffinity(0))
    request = BuildRequest(
        Kernel(arguments.kernel), chosen, jobs, variables, arguments.ahead, arguments.peermem, arguments.progress
    )
    if arguments.log:
        with failing(BuildError, f"cannot make the folder of {arguments.log}"):
            atomic.make_folder(os.path.dirname(os.path.abspath(arguments.log)))
    report = build(request, modules, arguments.source, arguments.output, arguments.log)
    if arguments.verbose:
        for path in dict.fromkeys(outcome.log for outcome in report.outcomes):
            with open(path, encoding="utf-8", errors="replace") as file:
                shutil.copyfileobj(file, sys.stdout)
        sys.stdout.flush()
    return report


def _restore(arguments: argparse.Namespace) -> str:
    """Put back what DKMS removed before it started the build; returns words for the hint."""
    files = dkms.restore(Kernel(arguments.kernel), arguments.kept) if arguments.kept else []
    return f"the previous modules are back in place: {', '.join(files)}" if files else ""


def _join(text: str, more: str) -> str:
    return "; ".join(filter(None, (text, more)))


def _save(kernel: Kernel, name: str) -> List[str]:
    """Sign what DKMS has installed, where this host signs and DKMS hasn't, and copy it.

    Before 3.0.6 (Ubuntu 22.04) DKMS has no setting for the key; from 3.4.0 on it signs nothing in a mount namespace.
    """
    try:
        by = signing.from_settings(settings=inside(kernel.root, signing.SETTINGS))
        files = dkms.installed_files(kernel, name) if by is not None else []
        if by is not None and files:
            signing.sign(kernel, [kernel.path(file) for file in files], by)
    finally:
        copied = dkms.save(kernel, name)
    return copied


_BACKUP_ACTIONS = {"save": _save, "release": dkms.release, "restore": dkms.restore}


# DKMS calls it through the hooks of gdsdeploy's recipes.
@KMOD.command(
    "kept",
    "sign the modules that DKMS installed, and copy them, so that a failed rebuild can't lose them",
    option("action", choices=tuple(_BACKUP_ACTIONS), help="after an install; before one; after a failed build"),
    option("names", nargs="+", metavar="NAME", help="names of packages in DKMS"),
    option("--kernel", required=True, metavar="REL"),
)
def _backup(arguments: argparse.Namespace) -> int:
    kernel, action = Kernel(arguments.kernel), _BACKUP_ACTIONS[arguments.action]
    done = {name: action(kernel, name) for name in arguments.names}
    return show_indented(
        arguments, done, [f"{arguments.action}: {name}: {', '.join(done[name]) or 'nothing'}" for name in done]
    )


# For package managers that only report that a build failed.
@KMOD.command("why", "print why DKMS's latest build failed; nothing if it succeeded")
def _why(_arguments: argparse.Namespace) -> int:
    dkms.why()
    return OK


@KMOD.command(
    "pack",
    "put audited modules and their manifest into an archive",
    _MODULES,
    *target(),
    option("--output", required=True, metavar="FILE"),
    option(
        "--builder",
        default="",
        metavar="NAME",
        help="sign it with this machine's own key, as the fleet's machine NAME",
    ),
)
def _pack(arguments: argparse.Namespace) -> int:
    builder = Builder(arguments.builder, own_key(arguments.root)) if arguments.builder else None
    manifest = pack.pack(_kernel(arguments), arguments.modules, arguments.output, builder)
    names = ", ".join(module["name"] for module in manifest["modules"])
    return show_indented(arguments, manifest, [f"packed {names} for kernel {manifest['kernel_release']}"])


@KMOD.command(
    "install",
    "verify and audit an archive, then place its modules",
    option("archive", metavar="FILE"),
    *target(_CHECK),
    option(
        "--builder",
        default="",
        metavar="NAME",
        help="the machine that has to have signed FILE, with --builder-key; without both, its builder isn't verified",
    ),
    option("--builder-key", default="", metavar="FILE", help="that machine's public key"),
)
def _install(arguments: argparse.Namespace) -> int:
    result = pack.install(arguments.archive, _kernel(arguments), check=arguments.check, origin=_origin(arguments))
    return _show_changes(arguments, result, "install")


def _origin(arguments: argparse.Namespace) -> Optional[Origin]:
    if bool(arguments.builder) != bool(arguments.builder_key):
        raise HostError("--builder and --builder-key are given together", "or leave both out")
    if not arguments.builder:
        return None
    path = arguments.builder_key
    hint = "name the builder's builder.pub"
    with failing(HostError, path, hint), open(path, encoding="ascii", errors="replace") as file:
        return Origin(arguments.builder, file.read(4096))


@KMOD.command("remove", "remove the modules that install placed", *target(_CHECK))
def _remove(arguments: argparse.Namespace) -> int:
    release = arguments.kernel or os.uname().release
    result = pack.remove_from(release, arguments.root, check=arguments.check)
    return _show_changes(arguments, result, "remove")


def _show_changes(arguments: argparse.Namespace, result: Any, verb: str) -> int:
    lines = [f"{'would ' if arguments.check else ''}{verb}: {change}" for change in result["changes"]]
    lines += [f"note: {note}" for note in result["notes"]]
    return show_indented(arguments, result, lines or ["nothing to change"])


_SIGN_EXAMPLES = """\
Modules that have the right signature stay as they are; others are unpacked, stripped, signed by the kernel's own
scripts/sign-file, verified with the certificate, packed as they were and put in their place.

examples:
  %(prog)s --check                                  what would be signed, by /etc/gdsdeploy/signing.json
  %(prog)s --kernel 6.12.94+deb13-amd64             NVIDIA's modules of a kernel that is installed
  %(prog)s --key modules.key --certificate modules.der ./nvidia-fs.ko
"""


@KMOD.command(
    "sign",
    "sign modules with the kernel's own tool",
    _MODULES,
    option("--kernel", default="", metavar="REL", help="kernel release (default: that of the files)"),
    option("--root", default="/", metavar="DIR"),
    option("--key", default="", metavar="FILE", help="the private key, or pkcs11:…"),
    option("--certificate", default="", metavar="FILE", help="its certificate, PEM or DER"),
    option("--settings", default=signing.SETTINGS, metavar="FILE", help=argparse.SUPPRESS),
    option("--check", action="store_true", help="say what would be signed and change nothing"),
    epilog=_SIGN_EXAMPLES,
)
def _sign(arguments: argparse.Namespace) -> int:
    by = signing.from_settings(arguments.certificate, arguments.key, arguments.settings)
    if by is None:
        hint = "give --key and --certificate, or signing in the fleet file"
        raise HostError("nothing says whose signature modules should get", hint)
    kernel = Kernel(arguments.kernel or _release(arguments.modules), arguments.root)
    paths = [file_of(kernel, module) for module in arguments.modules] or stack_files(kernel)
    if not paths:
        raise HostError(f"kernel {kernel.release} has none of NVIDIA's modules", "build them first")
    results = signing.sign(kernel, paths, by, check=arguments.check)
    word = "would be signed" if arguments.check else "signed"
    changed = any(module["changed"] for module in results)
    lines = [f"{module['file']}: {word if module['changed'] else 'is signed already'}" for module in results]
    return show_indented(arguments, {"changed": changed, "modules": results}, lines)


def _release(modules: List[str]) -> str:
    """DKMS has files signed, and does not say for which kernel; the files do."""
    file = next(filter(is_file, modules), "")
    return (read_module(file).vermagic.split() or [""])[0] if file else os.uname().release


_KEYGEN_EXAMPLES = """\
The private key is readable by its owner only and stays on this machine; nothing that exists is overwritten.

examples:
  %(prog)s --name "GPU fleet 7 modules"
  %(prog)s --name "GPU fleet 7 modules" --key /root/modules.key --certificate /root/modules.der
"""


@KMOD.command(
    "keygen",
    "make a key that signs modules, and its certificate",
    option("--key", default=KEY, metavar="FILE", help="default: %(default)s"),
    _CERTIFICATE,
    option("--name", required=True, help="what the firmware's screen and modinfo show"),
    option("--days", type=int, default=3650, metavar="N", help="default: %(default)s"),
    epilog=_KEYGEN_EXAMPLES,
)
def _keygen(arguments: argparse.Namespace) -> int:
    pair = make_key(arguments.key, arguments.certificate, arguments.name, arguments.days)
    value = {"key": arguments.key, "certificate": arguments.certificate, "fingerprint": pair.fingerprint}
    lines = [f"key: {arguments.key} (keep it: it is nowhere else)"]
    lines += [f"certificate: {arguments.certificate}", f"SHA1 fingerprint: {pair.fingerprint}"]
    return show_indented(arguments, value, lines)


_ENROL_EXAMPLES = """\
A person has to confirm the request at the console during the next boot; the steps are printed.

examples:
  %(prog)s --check                                  is the key enrolled?
  %(prog)s --certificate modules.der
  %(prog)s --withdraw                               withdraw requests that no one has confirmed yet
"""


@KMOD.command(
    "enrol",
    "have the firmware take a key, with its owner at the console",
    _CERTIFICATE,
    _HIDDEN_ROOT,
    option("--where-needed", action="store_true", help="do nothing where Secure Boot is off"),
    option("--withdraw", action="store_true", help="withdraw pending requests, of any key"),
    option("--check", action="store_true", help=_CHECK),
    epilog=_ENROL_EXAMPLES,
)
def _enrol(arguments: argparse.Namespace) -> int:
    if arguments.withdraw:
        answer = withdraw(arguments.root, arguments.check)
        word = "would be withdrawn" if arguments.check else "withdrawn"
        lines = [f"the request for {subject!r}: {word}" for subject in answer["withdrawn"]]
        return show_indented(arguments, answer, lines or ["no request is pending"])
    owners = signing.read_certificate_file(arguments.certificate)
    answer = enrol(owners, arguments.root, arguments.check, arguments.where_needed)
    return _show_state(arguments, answer)


_UNENROL_EXAMPLES = """\
Refused while a module of any kernel on this host is signed with the key.  A person has to confirm the request at the
console during the next boot; the steps are printed.

examples:
  %(prog)s --certificate old.der --check            is the key enrolled, and does a module need it?
  %(prog)s --certificate old.der
"""


@KMOD.command(
    "unenrol",
    "have the firmware delete a key that was enrolled, with its owner at the console",
    option("--certificate", required=True, metavar="FILE", help="of the key, PEM or DER"),
    _HIDDEN_ROOT,
    option("--check", action="store_true", help=_CHECK),
    epilog=_UNENROL_EXAMPLES,
)
def _unenrol(arguments: argparse.Namespace) -> int:
    owners = signing.read_certificate_file(arguments.certificate)
    answer = unenrol(owners, arguments.root, arguments.check, _signed_with(owners, arguments.root))
    return _show_state(arguments, answer)


def _signed_with(owners: Certificate, root: str) -> List[str]:
    """Files of the stack's modules, of any kernel, that are signed with a key."""
    releases = list_folder(root, "/lib/modules")
    files = [path for release in releases for path in stack_files(Kernel(release, root))]
    signatures = [(path, signature.signer_of(path)) for path in files]
    return [path for path, each in signatures if each is not None and each.is_by(owners)]


def _show_state(arguments: argparse.Namespace, answer: Dict[str, Any]) -> int:
    steps = [f"  {number}. {text}" for number, text in enumerate(answer["steps"], 1)]
    return show_indented(arguments, answer, [ENROLMENTS[answer["state"]], *steps])


_TREES_EXAMPLES = """\
examples:
  %(prog)s
  %(prog)s --driver-version 550.163.01 --driver-flavour open   is there exactly one?
"""


@KMOD.command(
    "trees",
    "list the driver source trees",
    option("--sources", default=files.SOURCES, metavar="DIR", help="where to look (default: %(default)s)"),
    *driver(version="require exactly one of this version"),
    epilog=_TREES_EXAMPLES,
)
def _trees(arguments: argparse.Namespace) -> int:
    trees = files.find_trees(arguments.sources)
    if arguments.driver_version:
        trees = [files.select(trees, arguments.driver_version, arguments.driver_flavour)]
    lines = [f"{one.path}: driver {one.version} ({one.flavour})" for one in trees]
    return show_indented(arguments, [one.as_dict() for one in trees], lines or ["no driver source tree"])
