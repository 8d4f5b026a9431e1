"""``kmod key``: of what a build for a kernel would be made here, and what of it this host cannot tell."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Dict

from ..archive.key import INGREDIENTS, key_of, of_sources, ofed_digest, told, unknown
from ..errors import guarded
from ..kmod import tree
from ..kmod.kernel import Kernel
from ..kmod.vouch import installed_manifest

_EXAMPLES = """\
examples:
  %(prog)s --kernel 6.12.94+deb13-amd64 --driver-version 550.163.01 --source /usr/src/nvidia-fs-2.19.7
  %(prog)s --json | jq -r '.unknown[]'          what this host cannot tell, so that it has to receive its modules
"""


def add_parser(commands: Any) -> None:
    """Add ``key`` to the parsers of ``kmod``; it sets ``run``, a function of the parsed arguments."""
    text = "the key of a build, with each ingredient: hosts of equal keys may share one build"
    parser = commands.add_parser(
        "key", help=text, description=text, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--kernel", default="", metavar="REL", help="kernel release (default: the running one)")
    parser.add_argument("--root", default="/", metavar="DIR", help="a root folder that need not be running")
    parser.add_argument("--driver-tree", default="", metavar="DIR", help="the driver's source (default: the only one)")
    parser.add_argument("--driver-version", default="", metavar="V")
    parser.add_argument("--driver-flavour", choices=("open", "proprietary"), default="open")
    parser.add_argument("--source", default="", metavar="DIR", help="the source of nvidia-fs")
    parser.set_defaults(run=guarded(_key), unguarded=_key)


def _key(arguments: argparse.Namespace) -> int:
    kernel = Kernel(arguments.kernel or os.uname().release, arguments.root)
    chosen = _tree(arguments)
    if chosen is not None:
        found = of_sources(kernel, chosen, arguments.source)
    else:
        found = dict.fromkeys(INGREDIENTS, "")
        found.update(kernel_release=kernel.release, symvers=kernel.symvers_digest(), ofed=ofed_digest(kernel))
        found["arch"] = told(kernel, os.uname().machine)["arch"]
    missing = unknown(found)
    installed = installed_manifest(kernel).get("key")
    value: Dict[str, Any] = {
        "key": None if missing else key_of(found),
        "ingredients": found,
        "unknown": missing,
        "told": told(kernel, os.uname().machine),
        "installed": key_of(installed) if isinstance(installed, dict) else None,
    }
    if arguments.json:
        print(json.dumps(value, indent=2, sort_keys=True))
        return 0
    print(value["key"] or "no key: {} cannot be told here".format(", ".join(missing)))
    for name in INGREDIENTS:
        print("  {:<17} {}".format(name, found[name] or "(unknown)"))
    if value["installed"]:
        print("received modules have key {}".format(value["installed"]))
    return 0


def _tree(arguments: argparse.Namespace) -> Any:
    """The driver's tree, None where there is none at all; raises TreeError for one that is not as asked."""
    if arguments.driver_tree:
        return tree.expect(os.path.abspath(arguments.driver_tree), arguments.driver_version, arguments.driver_flavour)
    trees = tree.find_trees()
    if not trees:
        return None
    if arguments.driver_version:
        return tree.select(trees, arguments.driver_version, arguments.driver_flavour)
    return trees[0] if len(trees) == 1 else None
