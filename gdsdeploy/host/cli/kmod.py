"""``kmod audit|build|key|pack|install|remove|sign|keygen|enrol|trees`` on a host; some are ``gdsdeploy kmod``, too.

Exit status: 0 done, or nothing to object to; 1 an audit found errors, or a build failed; 2 unusable arguments or files;
3 an audit found no error but could not tell everything.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Callable, List, Optional

from ..archive import pack
from ..archive.provenance import Builder, Origin, own_key
from ..audit.audit import Result, audit, has_errors, is_undecided
from ..build import command
from ..errors import HostError, guarded
from ..kmod import driver, tree
from ..kmod.driver import Expected
from ..kmod.kernel import Kernel
from . import key, parsers, signing
from .parsers import Run, add_driver, add_target

OK, FAILED, UNUSABLE, UNDECIDED = 0, 1, 2, 3

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
_MODULES = "names or files (default: NVIDIA's that are there)"
_TREES_EXAMPLES = """\
examples:
  %(prog)s
  %(prog)s --driver-version 550.163.01 --driver-flavour open   is there exactly one?
"""


def add_parsers(subparsers: Any) -> None:
    """Add ``kmod`` to an argparse subparsers object; each command sets ``run``, a function of the parsed arguments."""
    kmod = subparsers.add_parser("kmod", help="kernel modules: audit, build, pack, install")
    commands = kmod.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True
    _add_audit(commands)
    text = "build modules for a kernel, running or not, and audit them"
    command.add_arguments(_add(commands, "build", command.run, text, command.EXAMPLES))
    command.add_dkms(commands, _add)
    command.add_backup(commands, _add)
    command.add_why(commands, _add)
    _add_archive(commands)
    key.add_parser(commands, _add)
    signing.add_parsers(commands, _add)
    trees = _add(commands, "trees", _trees, "list the driver source trees", _TREES_EXAMPLES)
    trees.add_argument("--sources", default=tree.SOURCES, metavar="DIR", help="where to look (default: %(default)s)")
    add_driver(trees, version="require exactly one of this version")


def _add(commands: Any, name: str, run: Run, text: str, epilog: str = "") -> argparse.ArgumentParser:
    """epilog: what --help ends with, as it is to be printed; %(prog)s stands for the words up to the command."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = parsers.command(
        commands, name, guarded(run), text, epilog=epilog, formatter_class=formatter
    )
    parser.set_defaults(unguarded=run)
    return parser


def _add_audit(commands: Any) -> None:
    text = (
        "Would these modules load on that kernel, and are they the right ones?  Nothing is loaded, no root is needed."
    )
    parser = _add(commands, "audit", _audit, text, _AUDIT_EXAMPLES)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=_MODULES)
    add_target(parser)
    add_driver(parser, "", "the version the driver has to have")
    parser.add_argument("--driver-tree", default="", metavar="DIR", help="the tree nvidia-fs has to be built against")
    parser.add_argument("--peermem", action="store_true", help="nvidia-peermem has to work: a stub is an error")
    text = "a storage driver that has to let nvidia-fs in, such as nvme, rpcrdma, lnet (more than once)"
    drivers = sorted(driver.DRIVERS)
    parser.add_argument("--storage", action="append", default=[], choices=drivers, metavar="DRIVER", help=text)


def _add_archive(commands: Any) -> None:
    check = "say what would change and change nothing"
    parser = _add(commands, "pack", _pack, "put audited modules and their manifest into an archive")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=_MODULES)
    add_target(parser)
    parser.add_argument("--output", required=True, metavar="FILE")
    text = "sign it with this machine's own key, as the fleet's machine NAME"
    parser.add_argument("--builder", default="", metavar="NAME", help=text)
    parser = _add(commands, "install", _install, "verify and audit an archive, then place its modules")
    parser.add_argument("archive", metavar="FILE")
    add_target(parser, check=check)
    text = "the machine that has to have signed FILE, with --builder-key; without both, its builder isn't verified"
    parser.add_argument("--builder", default="", metavar="NAME", help=text)
    parser.add_argument("--builder-key", default="", metavar="FILE", help="that machine's public key")
    add_target(_add(commands, "remove", _remove, "remove the modules that install placed"), check=check)


def _audit(arguments: argparse.Namespace) -> int:
    kernel = _kernel(arguments)
    digest = tree.digest(tree.expect(arguments.driver_tree)) if arguments.driver_tree else ""
    expected = Expected(
        arguments.driver_version, arguments.driver_flavour, digest, arguments.peermem, tuple(arguments.storage)
    )
    results = audit(kernel, arguments.modules, expected)
    if not results:
        raise HostError(
            f"kernel {kernel.release} has none of NVIDIA's modules", "name the modules to audit, or build them"
        )
    _show(arguments.json, results, lambda: _text(results, kernel))
    return FAILED if has_errors(results) else UNDECIDED if is_undecided(results) else OK


def _pack(arguments: argparse.Namespace) -> int:
    builder = Builder(arguments.builder, own_key(arguments.root)) if arguments.builder else None
    manifest = pack.pack(_kernel(arguments), arguments.modules, arguments.output, builder)
    names = ", ".join(module["name"] for module in manifest["modules"])
    _show(arguments.json, manifest, lambda: f"packed {names} for kernel {manifest['kernel_release']}")
    return OK


def _install(arguments: argparse.Namespace) -> int:
    result = pack.install(arguments.archive, _kernel(arguments), check=arguments.check, origin=_origin(arguments))
    return _show_changes(arguments, result, "install")


def _origin(arguments: argparse.Namespace) -> Optional[Origin]:
    if bool(arguments.builder) != bool(arguments.builder_key):
        raise HostError("--builder and --builder-key are given together", "or leave both out")
    if not arguments.builder:
        return None
    try:
        with open(arguments.builder_key, encoding="ascii", errors="replace") as file:
            return Origin(arguments.builder, file.read(4096))
    except OSError as error:
        raise HostError(f"{arguments.builder_key}: {error.strerror}", "name the builder's builder.pub") from None


def _remove(arguments: argparse.Namespace) -> int:
    release = arguments.kernel or os.uname().release
    result = pack.remove_from(release, arguments.root, check=arguments.check)
    return _show_changes(arguments, result, "remove")


def _trees(arguments: argparse.Namespace) -> int:
    trees = tree.find_trees(arguments.sources)
    if arguments.driver_version:
        trees = [tree.select(trees, arguments.driver_version, arguments.driver_flavour)]
    lines = [f"{one.path}: driver {one.version} ({one.flavour})" for one in trees]
    _show(arguments.json, [one.as_dict() for one in trees], lambda: "\n".join(lines) or "no driver source tree")
    return OK


def _show_changes(arguments: argparse.Namespace, result: Any, verb: str) -> int:
    lines = [f"{'would ' if arguments.check else ''}{verb}: {change}" for change in result["changes"]]
    lines += [f"note: {note}" for note in result["notes"]]
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
        lines.append(f"{result['module'] or result['file']}: {word} ({result['file'] or kernel.release})")
        for finding in result["findings"]:
            lines.append(f"  {finding['severity']} [{finding['id']}] {finding['message']}")
            lines += [f"    hint: {finding['hint']}"] if finding["hint"] else []
    return "\n".join(lines)
