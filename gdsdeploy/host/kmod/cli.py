"""``kmod audit|build|pack|install|remove|trees`` of the program on the host.

Exit status: 0 done, or nothing to object to; 1 an audit found errors, or a build failed; 2 unusable arguments or files;
3 an audit found no error but could not tell everything.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import Any, Callable, List, Optional

from . import pack, tree
from .audit import Result, audit, failed, undecided
from .build import Job, build_nvidia_fs
from .driver import Expected
from .errors import KmodError, guarded
from .kbuild import cores
from .kernel import Kernel

OK, FAILED, UNUSABLE, UNDECIDED = 0, 1, 2, 3


def add_parsers(subparsers: Any) -> None:
    """Add ``kmod`` to an argparse subparsers object; each command sets ``run``, a function of the parsed arguments."""
    kmod = subparsers.add_parser("kmod", help="kernel modules: audit, build, pack, install")
    commands = kmod.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True
    _add_audit(commands)
    _add_build(commands)
    _add_archive(commands)
    trees = _add(commands, "trees", _trees, "list the driver source trees")
    trees.add_argument("--sources", default=tree.SOURCES, metavar="DIR", help="where to look (default: %(default)s)")
    trees.add_argument("--driver-version", default="", metavar="V", help="require exactly one of this version")
    trees.add_argument("--driver-flavour", choices=("open", "proprietary"), default="open")


def _add(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=guarded(run))
    return parser


def _add_audit(commands: Any) -> None:
    parser = _add(commands, "audit", _audit, "would these modules load on that kernel, and are they the right ones")
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="names or files (default: NVIDIA's that are there)"
    )
    parser.add_argument("--kernel", default="", metavar="REL", help="kernel release (default: the running one)")
    parser.add_argument("--root", default="/", metavar="DIR", help="a root folder that need not be running")
    parser.add_argument("--driver-version", default="", metavar="V", help="the version the driver has to have")
    parser.add_argument("--driver-flavour", choices=("open", "proprietary"), default="")
    parser.add_argument("--driver-tree", default="", metavar="DIR", help="the tree nvidia-fs has to be built against")
    parser.add_argument("--peermem", action="store_true", help="nvidia-peermem has to work: a stub is an error")


def _add_build(commands: Any) -> None:
    parser = _add(commands, "build", _build, "build a module for a kernel, running or not, and audit it")
    parser.add_argument("module", choices=("nvidia-fs",), metavar="MODULE", help="nvidia-fs")
    parser.add_argument("--kernel", required=True, metavar="REL", help="kernel release")
    parser.add_argument("--source", required=True, metavar="DIR", help="the source of nvidia-fs")
    parser.add_argument("--driver-tree", default="", metavar="DIR", help="the driver's source (default: the only one)")
    parser.add_argument("--driver-version", required=True, metavar="V")
    parser.add_argument("--driver-flavour", choices=("open", "proprietary"), default="open")
    parser.add_argument("--output", required=True, metavar="FILE", help="where the module goes; the log beside it")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="parallel jobs (default: the number of cores)")
    parser.add_argument("--ahead", action="store_true", help="for a driver that is not installed for this kernel yet")
    parser.add_argument("--verbose", action="store_true", help="print the build log, whatever the outcome")
    # DKMS appends LLVM=1 to its command for kernels that clang compiled, so MODULE is the last word of that command.
    parser.add_argument("variables", nargs="*", metavar="NAME=VALUE", help="further variables for make, after MODULE")


def _add_archive(commands: Any) -> None:
    parser = _add(commands, "pack", _pack, "put audited modules and their manifest into an archive")
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="names or files (default: NVIDIA's that are there)"
    )
    parser.add_argument("--kernel", default="", metavar="REL")
    parser.add_argument("--root", default="/", metavar="DIR")
    parser.add_argument("--output", required=True, metavar="FILE")
    parser = _add(commands, "install", _install, "verify and audit an archive, then place its modules")
    parser.add_argument("archive", metavar="FILE")
    parser.add_argument("--kernel", default="", metavar="REL")
    parser.add_argument("--root", default="/", metavar="DIR")
    parser.add_argument("--check", action="store_true", help="say what would change and change nothing")
    parser = _add(commands, "remove", _remove, "remove the modules that install placed")
    parser.add_argument("--kernel", default="", metavar="REL")
    parser.add_argument("--root", default="/", metavar="DIR")
    parser.add_argument("--check", action="store_true", help="say what would change and change nothing")


def _audit(arguments: argparse.Namespace) -> int:
    kernel = _kernel(arguments)
    digest = tree.digest(tree.expect(arguments.driver_tree)) if arguments.driver_tree else ""
    expected = Expected(arguments.driver_version, arguments.driver_flavour, digest, arguments.peermem)
    results = audit(kernel, arguments.modules, expected)
    if not results:
        raise KmodError(
            "kernel {} has none of NVIDIA's modules".format(kernel.release), "name the modules to audit, or build them"
        )
    _show(arguments.json, results, lambda: _text(results, kernel))
    return FAILED if failed(results) else UNDECIDED if undecided(results) else OK


def _build(arguments: argparse.Namespace) -> int:
    for variable in arguments.variables:
        if not variable.split("=", 1)[0].isidentifier() or "=" not in variable:
            raise KmodError("{!r} is no NAME=VALUE for make".format(variable))
    if arguments.driver_tree:
        chosen = tree.expect(os.path.abspath(arguments.driver_tree), arguments.driver_version, arguments.driver_flavour)
    else:
        chosen = tree.select(tree.find_trees(), arguments.driver_version, arguments.driver_flavour)
    kernel = Kernel(arguments.kernel)
    job = Job(kernel, chosen, arguments.jobs or cores(), arguments.variables, arguments.ahead)
    try:
        built = build_nvidia_fs(job, arguments.source, arguments.output)
    finally:
        if arguments.verbose:
            _print_file(arguments.output + ".log")
    value = {
        "file": built.file,
        "log": built.log,
        "kernel_release": kernel.release,
        "version": built.module.version,
        "versions_from": built.versions_from,
        "provenance": built.module.provenance,
        "audit": built.audit,
    }
    text = "built {} {} for kernel {} against {} ({} {})"
    _show(
        arguments.json,
        value,
        lambda: text.format(
            built.file, built.module.version, kernel.release, chosen.path, chosen.version, chosen.flavour
        ),
    )
    return OK


def _print_file(path: str) -> None:
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            shutil.copyfileobj(file, sys.stdout)
        sys.stdout.flush()


def _pack(arguments: argparse.Namespace) -> int:
    manifest = pack.pack(_kernel(arguments), arguments.modules, arguments.output)
    names = ", ".join(item["name"] for item in manifest["modules"])
    _show(arguments.json, manifest, lambda: "packed {} for kernel {}".format(names, manifest["kernel_release"]))
    return OK


def _install(arguments: argparse.Namespace) -> int:
    result = pack.install(arguments.archive, _kernel(arguments), check=arguments.check)
    return _changed(arguments, result, "install")


def _remove(arguments: argparse.Namespace) -> int:
    result = pack.remove(_kernel(arguments), check=arguments.check)
    return _changed(arguments, result, "remove")


def _trees(arguments: argparse.Namespace) -> int:
    found = tree.find_trees(arguments.sources)
    if arguments.driver_version:
        found = [tree.select(found, arguments.driver_version, arguments.driver_flavour)]
    lines = ["{}: driver {} ({})".format(item.path, item.version, item.flavour) for item in found]
    _show(arguments.json, [item.as_dict() for item in found], lambda: "\n".join(lines) or "no driver source tree")
    return OK


def _changed(arguments: argparse.Namespace, result: Any, verb: str) -> int:
    lines = ["{}{}: {}".format("would " if arguments.check else "", verb, item) for item in result["changes"]]
    lines += ["note: {}".format(item) for item in result["notes"]]
    _show(arguments.json, result, lambda: "\n".join(lines or ["nothing to change"]))
    return OK


def _kernel(arguments: argparse.Namespace) -> Kernel:
    return Kernel(arguments.kernel or os.uname().release, arguments.root)


def _show(as_json: bool, value: Any, text: Callable[[], str]) -> None:
    print(json.dumps(value, indent=2, sort_keys=True) if as_json else text())


def _text(results: List[Result], kernel: Kernel) -> str:
    lines = []
    for result in results:
        ok: Optional[bool] = result["ok"]
        word = "could not tell" if ok is None else "ok" if ok else "FAILED"
        lines.append("{}: {} ({})".format(result["module"] or result["file"], word, result["file"] or kernel.release))
        for item in result["findings"]:
            lines.append("  {} [{}] {}".format(item["severity"], item["id"], item["message"]))
            if item["hint"]:
                lines.append("    hint: {}".format(item["hint"]))
    return "\n".join(lines)
