"""What a build of modules depends on, as one key: builds of equal keys are interchangeable.

The key of finished modules is read from them and their kernel.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..kmod import ofed
from ..kmod.driver import flavour as driver_flavour
from ..kmod.kernel import Kernel
from ..kmod.module import Module
from ..kmod.packaged import identity, is_same_build
from ..secure_boot.signature import signer_of
from ..secure_boot.trust import trust_of

#: In this order; every value is a text, empty where it is unknown.
INGREDIENTS: Tuple[str, ...] = (
    "kernel_release",
    #: ``sha256:…`` of its Module.symvers
    "symvers",
    #: as ``uname -m``
    "arch",
    "driver_version",
    "driver_flavour",
    #: ``sha256:…`` of the driver's source tree
    "driver_tree",
    #: ``sha256:…`` of nvidia-fs's source; ``none`` where none is built
    "nvidia_fs_source",
    #: as it signs its work
    "compiler",
    #: ``sha256:…`` of what the RDMA core of OFED or DOCA exports; ``none`` without one
    "ofed",
    #: the signer of the modules; ``none``: unsigned
    "signer",
)
NONE = "none"


def key_of(ingredients: Mapping[str, str]) -> str:
    """``sha256:…`` of ``ingredients``; an unknown one counts as a value."""
    return _digest(json.dumps([[name, ingredients.get(name, "")] for name in INGREDIENTS], separators=(",", ":")))


def of_modules(kernel: Kernel, modules: Sequence[Module]) -> Dict[str, str]:
    """The ingredients of finished ``modules`` of one build."""
    by_name = {module.name: module for module in modules}
    nvidia, nvidia_fs = by_name.get("nvidia"), by_name.get("nvidia_fs")
    one = nvidia_fs or nvidia or modules[0]
    candidates = (module.provenance for module in (nvidia_fs, nvidia) if module is not None)
    recorded = next(filter(None, candidates), {})
    return {
        "kernel_release": kernel.release,
        "symvers": kernel.symvers_digest(),
        "arch": one.machine,
        "driver_version": nvidia.version if nvidia is not None else recorded.get("driver", ""),
        "driver_flavour": driver_flavour(nvidia) if nvidia is not None else recorded.get("flavour", ""),
        "driver_tree": recorded.get("tree", "") or ("" if nvidia_fs is not None else NONE),
        "nvidia_fs_source": recorded.get("source", "") if nvidia_fs is not None else NONE,
        "compiler": one.compiler,
        "ofed": ofed_digest(kernel),
        "signer": "+".join(sorted({_signer(module.path) for module in modules})),
    }


def host_ingredients(kernel: Optional[Kernel], machine: str) -> Dict[str, Any]:
    """What a host without headers and compiler knows of the builds that fit it.

    ``{"arch", "ofed", "signatures", "kernel_build": {"file", "sha256"}}``, all but arch empty while ``kernel`` isn't
    installed (None).  ``signatures``: ``enforced`` where unsigned modules are refused, or ``free``.
    """
    if kernel is None:
        return {"arch": machine, "ofed": "", "signatures": "", "kernel_build": {"file": "", "sha256": ""}}
    return {
        "arch": machine,
        "ofed": ofed_digest(kernel),
        "signatures": "enforced" if trust_of(kernel).enforced else "free",
        "kernel_build": identity(kernel),
    }


def objections(kernel: Kernel, manifest: Mapping[str, Any]) -> List[str]:
    """Why modules of ``manifest`` weren't built for this host, as far as it knows; each a sentence."""
    reasons = []
    key, own, digest_here = manifest["key"], kernel.own_module, ofed_digest(kernel)
    if own is not None and key.get("arch") not in (own.machine, "", None):
        reasons.append(f"they are for {key.get('arch')}, and this kernel is for {own.machine}")
    if key.get("ofed") not in (digest_here, "", None):
        with_ofed, has_ofed = _ofed_words(str(key.get("ofed"))), _ofed_words(digest_here)
        reasons.append(f"they were built with {with_ofed}, and this kernel has {has_ofed}")
    if is_same_build(kernel, manifest.get("kernel_build")) is False:
        reasons.append(f"they were built for another build of kernel {kernel.release}")
    return reasons


def ofed_digest(kernel: Kernel) -> str:
    """``sha256:…`` of the names and versions that an RDMA core with peer memory exports; ``none`` without one.

    The installed module and the tree that it was built from have the same digest.
    """
    exports = ofed.installed_exports(kernel, "ib_core")
    if not exports:
        tree = ofed.search(kernel).tree
        if tree is None:
            return NONE
        symbols = tree.exports()
        core = symbols[ofed.SYMBOLS[0]].module
        exports = {name: export.crc for name, export in symbols.items() if export.module == core}
    if ofed.SYMBOLS[0] not in exports:
        return NONE
    return _digest("".join(f"{name} {crc:08x}\n" for name, crc in sorted(exports.items())))


def _signer(path: str) -> str:
    signature = signer_of(path)
    return NONE if signature is None else _digest(signature.identity)


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def _ofed_words(digest_or_none: str) -> str:
    return "no OFED" if digest_or_none == NONE else f"OFED {digest_or_none[:19]}"
