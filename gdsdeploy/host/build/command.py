"""``kmod build``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import Any, List, Tuple

from ..errors import BuildError, HostError
from ..io import atomic
from ..io.wording import line
from ..kmod import files
from ..kmod.kernel import Kernel
from ..rootdir import inside
from ..secure_boot import signing
from . import dkms
from .kbuild import BuildRequest, cores
from .run import MODULES, Report, build

EXAMPLES = """\
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kmod build`` to ``parser``."""
    # DKMS appends LLVM=1 to its command for kernels that clang compiled, so variables may follow anywhere.
    parser.add_argument("words", nargs="+", metavar="MODULE|NAME=VALUE", help="what to build; variables for make")
    parser.add_argument("--kernel", required=True, metavar="REL", help="kernel release")
    parser.add_argument("--source", default="", metavar="DIR", help="the source of nvidia-fs")
    parser.add_argument("--driver-tree", default="", metavar="DIR", help="the driver's source (default: the only one)")
    parser.add_argument("--driver-version", default="", metavar="V", help="the version that the tree has to have")
    text = "default: open; with --driver-tree, the tree's own"
    parser.add_argument("--driver-flavour", choices=("open", "proprietary"), help=text)
    text = "the file of one module, or a folder; logs go beside"
    parser.add_argument("--output", required=True, metavar="FILE|DIR", help=text)
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="parallel jobs (default: the number of cores)")
    parser.add_argument("--ahead", action="store_true", help="for a driver that isn't installed for this kernel yet")
    text = "with driver: nvidia-peermem has to work, is left out where it would be a stub, or may be one"
    parser.add_argument("--peermem", choices=("required", "optional", "stub"), default="optional", help=text)
    parser.add_argument("--log", default="", metavar="FILE", help="one log for everything; its folder is created")
    parser.add_argument("--kept", default="", metavar="NAME", help="if it fails, put back what DKMS had as NAME")
    parser.add_argument("--verbose", action="store_true", help="print the build log, whatever the outcome")


def run(arguments: argparse.Namespace) -> int:
    """Build, print one line a module or the JSON document; raises HostError, after that, for what failed."""
    modules, variables = _words(arguments.words)
    if "nvidia-fs" in modules and not arguments.source:
        hint = "name the folder that has its Makefile, e.g. /usr/src/nvidia-fs-2.19.7"
        raise HostError("nvidia-fs needs --source", hint)
    try:
        report = _report(arguments, modules, variables)
    except HostError as error:
        raise type(error)(error.message, _join(error.hint, _restore(arguments))) from None
    if arguments.json:
        print(json.dumps(report.as_dict(), indent=2, sort_keys=True))
    else:
        request = report.request
        for built in (built for outcome in report.outcomes for built in outcome.built):
            against = f"{request.tree.path} ({request.tree.version} {request.tree.flavour})"
            print(f"built {built.file} {built.module.version} for kernel {request.kernel.release} against {against}")
        for note in report.notes:
            print(line(f"note: {note}"))
    sys.stdout.flush()
    if not report.failures:
        if arguments.kept:
            # DKMS installs next, and refuses to do so beside a file of the same version.
            dkms.release(Kernel(arguments.kernel), arguments.kept)
        return 0
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
    kernel = Kernel(arguments.kernel)
    request = BuildRequest(
        kernel,
        chosen,
        arguments.jobs or cores(),
        variables,
        arguments.ahead,
        arguments.peermem,
    )
    if arguments.log:
        try:
            atomic.make_folder(os.path.dirname(os.path.abspath(arguments.log)))
        except OSError as error:
            raise BuildError(f"cannot make the folder of {arguments.log}: {error.strerror}") from None
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


def add_backup(commands: Any, add: Any) -> None:
    """``kmod kept``, which DKMS calls through the hooks of gdsdeploy's recipes."""
    text = "sign the modules that DKMS installed, and copy them, so that a failed rebuild can't lose them"
    parser = add(commands, "kept", _backup, text)
    text = "after an install; before one; after a failed build"
    parser.add_argument("action", choices=tuple(_BACKUP_ACTIONS), help=text)
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of packages in DKMS")
    parser.add_argument("--kernel", required=True, metavar="REL")


def add_dkms(commands: Any, add: Any) -> None:
    """``kmod dkms``, which the role runs."""
    text = "have DKMS build and install what is missing or stale, for every kernel with headers"
    parser = add(commands, "dkms", _dkms, text)
    parser.add_argument("--kernel", required=True, metavar="REL", help="the kernel for which a failure is an error")
    parser.add_argument("--driver", required=True, metavar="NAME/VERSION", help="the driver in DKMS")
    parser.add_argument("--nvidia-fs", default="", metavar="NAME/VERSION", help="nvidia-fs in DKMS; default: none")
    parser.add_argument("--driver-tree", required=True, metavar="DIR", help="the driver's source")
    parser.add_argument("--driver-version", default="", metavar="V")
    parser.add_argument("--driver-flavour", choices=("open", "proprietary"), default="")
    parser.add_argument("--peermem", action="store_true", help="nvidia-peermem has to work on this kernel")
    parser.add_argument("--target-only", action="store_true", help="build for this kernel alone")
    parser.add_argument("--check", action="store_true", help="print what would be done and do nothing")


def add_why(commands: Any, add: Any) -> None:
    """``kmod why``, for package managers that only report that a build failed."""
    add(commands, "why", _why, "print why DKMS's latest build failed; nothing if it succeeded")


def _why(_arguments: argparse.Namespace) -> int:
    dkms.why()
    return 0


def _dkms(arguments: argparse.Namespace) -> int:
    packages = []
    for kind, text in (("driver", arguments.driver), ("nvidia-fs", arguments.nvidia_fs)):
        name, _, version = text.partition("/")
        if text and not (name and version):
            raise HostError(f"{text!r} isn't NAME/VERSION of DKMS", "give it as dkms status shows it")
        if text:
            packages.append(dkms.Package(name, version, kind))
    chosen = files.expect(arguments.driver_tree, arguments.driver_version, arguments.driver_flavour)
    request = dkms.DkmsRequest(arguments.kernel, packages, chosen, arguments.peermem, target_only=arguments.target_only)
    result = dkms.provide(request, arguments.check)
    if arguments.json:
        print(json.dumps(result, indent=2, sort_keys=True))
        return 0
    verb = "would be done" if arguments.check else "done"
    for step in result["done"]:
        print(line("{}: {action} {package} for kernel {kernel_release}: {why}".format(verb, **step)))
    for note in result["notes"]:
        print(line(f"note: {note}"))
    if not result["done"]:
        print("nothing to build")
    return 0


def _backup(arguments: argparse.Namespace) -> int:
    kernel, action = Kernel(arguments.kernel), _BACKUP_ACTIONS[arguments.action]
    files = {name: action(kernel, name) for name in arguments.names}
    if arguments.json:
        print(json.dumps(files, indent=2, sort_keys=True))
    else:
        for name in files:
            print(line(f"{arguments.action}: {name}: {', '.join(files[name]) or 'nothing'}"))
    return 0
