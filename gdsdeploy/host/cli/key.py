"""``kmod key``: the ingredients of a build for a kernel on this host, and those that the host cannot tell."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Dict

from ..archive.key import INGREDIENTS, host_ingredients, key_of, missing_ingredients, of_sources, ofed_digest
from ..io.wording import aligned
from ..kmod import tree
from ..kmod.kernel import Kernel
from ..kmod.vouch import installed_manifest
from .parsers import Add, add_driver, add_target

_EXAMPLES = """\
examples:
  %(prog)s --kernel 6.12.94+deb13-amd64 --driver-version 550.163.01 --source /usr/src/nvidia-fs-2.19.7
  %(prog)s --json | jq -r '.unknown[]'          what this host cannot tell, so that it has to receive its modules
"""


def add_parser(commands: Any, add: Add) -> None:
    """Add ``key`` to the parsers of ``kmod``; ``add`` makes one, with ``--json``."""
    text = "the key of a build, with each ingredient: hosts of equal keys may share one build"
    parser = add(commands, "key", _key, text, _EXAMPLES)
    add_target(parser)
    parser.add_argument("--driver-tree", default="", metavar="DIR", help="the driver's source (default: the only one)")
    add_driver(parser)
    parser.add_argument("--source", default="", metavar="DIR", help="the source of nvidia-fs")


def _key(arguments: argparse.Namespace) -> int:
    kernel = Kernel(arguments.kernel or os.uname().release, arguments.root)
    local = host_ingredients(kernel, os.uname().machine)
    driver = _tree(arguments)
    if driver is not None:
        ingredients = of_sources(kernel, driver, arguments.source)
    else:
        ingredients = dict.fromkeys(INGREDIENTS, "")
        ingredients.update(kernel_release=kernel.release, symvers=kernel.symvers_digest(), ofed=ofed_digest(kernel))
        ingredients["arch"] = local["arch"]
    missing = missing_ingredients(ingredients)
    installed = installed_manifest(kernel).get("key")
    value: Dict[str, Any] = {
        "key": None if missing else key_of(ingredients),
        "ingredients": ingredients,
        "unknown": missing,
        "told": local,
        "installed": key_of(installed) if isinstance(installed, dict) else None,
    }
    if arguments.json:
        print(json.dumps(value, indent=2, sort_keys=True))
        return 0
    print(value["key"] or f"no key: {', '.join(missing)} cannot be told here")
    print("\n".join(aligned([(name, ingredients[name] or "(unknown)") for name in INGREDIENTS], "  ")))
    if value["installed"]:
        print(f"received modules have key {value['installed']}")
    return 0


def _tree(arguments: argparse.Namespace) -> Any:
    """The driver's tree, or None without any; raises TreeError where the arguments don't match one."""
    if arguments.driver_tree:
        return tree.expect(os.path.abspath(arguments.driver_tree), arguments.driver_version, arguments.driver_flavour)
    trees = tree.find_trees()
    if not trees:
        return None
    if arguments.driver_version:
        return tree.select(trees, arguments.driver_version, arguments.driver_flavour)
    return trees[0] if len(trees) == 1 else None
