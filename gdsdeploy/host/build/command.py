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
from ..kmod import tree
from ..kmod.kernel import Kernel
from . import dkms, dkms_backup
from .context import Job
from .kbuild import cores
from .run import MODULES, Outcome, Report, build

EXAMPLES = """\
MODULE is nvidia-fs, nvidia-peermem or driver (the driver's own modules, with nvidia-peermem where there is an OFED tree
of this kernel).  Without --driver-tree there has to be exactly one source tree of that driver below /usr/src.  What was
in FILE before stays there unless the new module passes its audit.  docs/modules.md describes it all.

examples:
  %(prog)s nvidia-fs --kernel 6.12.94+deb13-amd64 --source /usr/src/nvidia-fs-2.19.7 \\
      --driver-version 550.163.01 --output nvidia-fs.ko
  %(prog)s nvidia-peermem nvidia-fs --kernel 6.12.94+deb13-amd64 --source /usr/src/nvidia-fs-2.19.7 \\
      --driver-tree /usr/src/nvidia-current-open-550.163.01 --ahead --output /tmp/modules/ --json
  %(prog)s driver --kernel 6.12.94+deb13-amd64 --driver-version 550.163.01 --output /tmp/modules/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` what ``kmod build`` takes."""
    # DKMS appends LLVM=1 to its command for kernels that clang compiled, so variables may follow anywhere.
    parser.add_argument("words", nargs="+", metavar="MODULE|NAME=VALUE", help="what to build; variables for make")
    parser.add_argument("--kernel", required=True, metavar="REL", help="kernel release")
    parser.add_argument("--source", default="", metavar="DIR", help="the source of nvidia-fs")
    parser.add_argument("--driver-tree", default="", metavar="DIR", help="the driver's source (default: the only one)")
    parser.add_argument("--driver-version", default="", metavar="V", help="the version that the tree has to have")
    parser.add_argument(
        "--driver-flavour", choices=("open", "proprietary"), help="default: open; with --driver-tree, the tree's own"
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE|DIR", help="the file of one module, or a folder; logs go beside"
    )
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="parallel jobs (default: the number of cores)")
    parser.add_argument("--ahead", action="store_true", help="for a driver that is not installed for this kernel yet")
    parser.add_argument(
        "--peermem",
        choices=("required", "optional", "stub"),
        default="optional",
        help="with driver: nvidia-peermem has to work, is left out where it would be a stub, or may be one",
    )
    parser.add_argument("--log", default="", metavar="FILE", help="one log for everything, in a folder that is made")
    parser.add_argument("--kept", default="", metavar="NAME", help="if it fails, put back what DKMS had as NAME")
    parser.add_argument("--verbose", action="store_true", help="print the build log, whatever the outcome")


def run(arguments: argparse.Namespace) -> int:
    """Build, print one line a module or the JSON document; raises HostError, after that, for what failed."""
    modules, variables = _words(arguments.words)
    if "nvidia-fs" in modules and not arguments.source:
        raise HostError(
            "nvidia-fs needs --source", "name the folder that has its Makefile, e.g. /usr/src/nvidia-fs-2.19.7"
        )
    try:
        report = _report(arguments, modules, variables)
    except HostError as error:
        raise type(error)(error.message, _with(error.hint, _restored(arguments))) from None
    if arguments.json:
        print(json.dumps(report.as_dict(), indent=2, sort_keys=True))
    else:
        for outcome in report.outcomes:
            _print(report, outcome)
        for note in report.notes:
            print(f"note: {note}")
    sys.stdout.flush()
    if not report.failures:
        if arguments.kept:
            # DKMS installs next, and refuses to beside a file of the same version.
            dkms_backup.release(Kernel(arguments.kernel), arguments.kept)
        return 0
    errors = [item.error for item in report.failures if item.error is not None]
    hint = _with(errors[0].hint, _restored(arguments))
    more = "; ".join(f"{item.module}: {item.error}" for item in report.failures[1:])
    raise type(errors[0])(_with(errors[0].message, more), hint)


def _words(words: List[str]) -> Tuple[List[str], List[str]]:
    modules = [word for word in words if "=" not in word]
    variables = [word for word in words if "=" in word]
    for word in modules:
        if word not in MODULES:
            raise HostError(
                f"{word!r} is no NAME=VALUE for make and no module that can be built",
                "build one of: {}".format(", ".join(MODULES)),
            )
    for variable in variables:
        if not variable.split("=", 1)[0].isidentifier():
            raise HostError(f"{variable!r} is no NAME=VALUE for make")
    if not modules:
        raise HostError("no module is named", "build one or more of: {}".format(", ".join(MODULES)))
    return modules, variables


def _report(arguments: argparse.Namespace, modules: List[str], variables: List[str]) -> Report:
    version, flavour = arguments.driver_version, arguments.driver_flavour or ""
    if arguments.driver_tree:
        chosen = tree.expect(os.path.abspath(arguments.driver_tree), version, flavour)
    else:
        chosen = tree.select(tree.find_trees(), version, flavour or "open")
    kernel = Kernel(arguments.kernel)
    jobs = arguments.jobs or cores()
    job = Job(kernel, chosen, jobs, variables, arguments.ahead, arguments.peermem)
    if arguments.log:
        try:
            atomic.make_folder(os.path.dirname(os.path.abspath(arguments.log)))
        except OSError as error:
            raise BuildError(f"cannot make the folder of {arguments.log}: {error.strerror}") from None
    report = build(job, modules, arguments.source, arguments.output, arguments.log)
    if arguments.verbose:
        for path in dict.fromkeys(item.log for item in report.outcomes):
            with open(path, encoding="utf-8", errors="replace") as file:
                shutil.copyfileobj(file, sys.stdout)
        sys.stdout.flush()
    return report


def _restored(arguments: argparse.Namespace) -> str:
    """Put back what DKMS had removed before it called us; said as part of the hint."""
    if not arguments.kept:
        return ""
    files = dkms_backup.restore(Kernel(arguments.kernel), arguments.kept)
    return "what worked before is back in place: {}".format(", ".join(files)) if files else ""


def _with(text: str, more: str) -> str:
    return "; ".join(item for item in (text, more) if item)


def _print(report: Report, outcome: Outcome) -> None:
    chosen = report.job.tree
    for item in outcome.built:
        text = "built {} {} for kernel {} against {} ({} {})"
        print(
            text.format(
                item.file,
                item.module.version,
                report.job.kernel.release,
                chosen.path,
                chosen.version,
                chosen.flavour,
            )
        )


def add_kept(commands: Any, add: Any) -> None:
    """``kmod kept``, which DKMS calls by the hooks of our recipes."""
    parser = add(
        commands, "kept", _kept, "keep the modules that DKMS installed, so that a failed rebuild cannot lose them"
    )
    parser.add_argument(
        "action", choices=("save", "release", "restore"), help="after an install; before one; after a failed build"
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of packages in DKMS")
    parser.add_argument("--kernel", required=True, metavar="REL")


def add_dkms(commands: Any, add: Any) -> None:
    """``kmod dkms``, which the role runs."""
    text = "have DKMS build and install what is missing or stale, for every kernel with headers"
    parser = add(commands, "dkms", _dkms, text)
    parser.add_argument("--kernel", required=True, metavar="REL", help="the kernel for which a failure is an error")
    parser.add_argument("--driver", required=True, metavar="NAME/VERSION", help="the driver in DKMS")
    parser.add_argument("--nvidia-fs", default="", metavar="NAME/VERSION", help="nvidia-fs in DKMS, if it is wanted")
    parser.add_argument("--driver-tree", required=True, metavar="DIR", help="the driver's source")
    parser.add_argument("--driver-version", default="", metavar="V")
    parser.add_argument("--driver-flavour", choices=("open", "proprietary"), default="")
    parser.add_argument("--peermem", action="store_true", help="nvidia-peermem has to work on this kernel")
    parser.add_argument("--check", action="store_true", help="say what would be done and do nothing")


def add_why(commands: Any, add: Any) -> None:
    """``kmod why``, for package managers that only say that a build failed."""
    add(commands, "why", _why, "say why the latest build that DKMS made failed; nothing when it did not")


def _why(_arguments: argparse.Namespace) -> int:
    dkms.why()
    return 0


def _dkms(arguments: argparse.Namespace) -> int:
    packages = []
    for kind, text in (("driver", arguments.driver), ("nvidia-fs", arguments.nvidia_fs)):
        name, _, version = text.partition("/")
        if text and not (name and version):
            raise HostError(f"{text!r} is no NAME/VERSION of DKMS", "give it as dkms status shows it")
        if text:
            packages.append(dkms.Package(name, version, kind))
    chosen = tree.expect(arguments.driver_tree, arguments.driver_version, arguments.driver_flavour)
    done = dkms.provide(dkms.Wanted(arguments.kernel, packages, chosen, arguments.peermem), arguments.check)
    if arguments.json:
        print(json.dumps(done, indent=2, sort_keys=True))
        return 0
    verb = "would be done" if arguments.check else "done"
    for item in done["done"]:
        print("{}: {action} {package} for kernel {kernel_release}: {why}".format(verb, **item))
    for note in done["notes"]:
        print(f"note: {note}")
    if not done["done"]:
        print("nothing to build")
    return 0


def _kept(arguments: argparse.Namespace) -> int:
    kernel = Kernel(arguments.kernel)
    action = {"save": dkms_backup.save, "release": dkms_backup.release, "restore": dkms_backup.restore}[
        arguments.action
    ]
    done = {name: action(kernel, name) for name in arguments.names}
    if arguments.json:
        print(json.dumps(done, indent=2, sort_keys=True))
    else:
        for name, files in done.items():
            print("{}: {}: {}".format(arguments.action, name, ", ".join(files) or "nothing"))
    return 0
