"""What a build of modules depends on, as one key: builds of equal keys are interchangeable.

The key of finished modules is read from them and their kernel; the key of a future build is computed from its sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import process
from ..kmod import ofed
from ..kmod.driver import flavour as driver_flavour
from ..kmod.files import Tree, digest
from ..kmod.kernel import Kernel
from ..kmod.module import Module
from ..kmod.packaged import identity, is_same_build
from ..rootdir import inside
from ..secure_boot.certificate import DerError, read_certificate
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
_PROGRAM_TIMEOUT = 20.0
_DKMS_CERTIFICATE = "/var/lib/dkms/mok.pub"
_CERTIFICATE_LIMIT = 1 << 16


def key_of(ingredients: Mapping[str, str]) -> str:
    """``sha256:…`` of ``ingredients``; an unknown one counts as a value."""
    return _digest(json.dumps([[name, ingredients.get(name, "")] for name in INGREDIENTS], separators=(",", ":")))


def missing_ingredients(ingredients: Mapping[str, str]) -> List[str]:
    """Names of the ingredients that are missing."""
    return [name for name in INGREDIENTS if not ingredients.get(name)]


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


def of_sources(kernel: Kernel, tree: Tree, source: str) -> Dict[str, str]:
    """The ingredients of a future build, from ``tree`` and the folder ``source`` of nvidia-fs; empty: without it.

    The signer is DKMS's on this host.  Raises TreeError where ``source`` isn't a source of nvidia-fs.
    """
    from ..build.run import source_digest

    return {
        "kernel_release": kernel.release,
        "symvers": kernel.symvers_digest(),
        "arch": os.uname().machine,
        "driver_version": tree.version,
        "driver_flavour": tree.flavour,
        "driver_tree": digest(tree),
        "nvidia_fs_source": source_digest(source) if source else NONE,
        "compiler": compiler(kernel),
        "ofed": ofed_digest(kernel),
        "signer": _dkms_signer(kernel),
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
    key, own = manifest.get("key"), kernel.own_module()
    if isinstance(key, dict):
        if own is not None and key.get("arch") not in (own.machine, "", None):
            reasons.append(f"they are for {key.get('arch')}, and this kernel is for {own.machine}")
        digest_here = ofed_digest(kernel)
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
        tree = ofed.find(kernel)
        if tree is None:
            return NONE
        symbols = tree.exports()
        core = symbols[ofed.SYMBOLS[0]].module
        exports = {name: export.crc for name, export in symbols.items() if export.module == core}
    if ofed.SYMBOLS[0] not in exports:
        return NONE
    return _digest("".join(f"{name} {crc:08x}\n" for name, crc in sorted(exports.items())))


def compiler(kernel: Kernel) -> str:
    """The compiler that kbuild would take for ``kernel``, as its ``--version`` says; empty when there is none."""
    if "CONFIG_CC_IS_CLANG" in kernel.config:
        return _version_of("clang")
    # Distributions name the compiler that a kernel was built with by its major version.
    major = kernel.config.get("CONFIG_GCC_VERSION", "")[:-4]
    version = (_version_of("gcc-" + major) if major else "") or _version_of("gcc")
    match = re.match(r"^\S+ (.*)$", version)
    return "GCC: " + match.group(1) if match else ""


def _version_of(program: str) -> str:
    done = process.run([program, "--version"], _PROGRAM_TIMEOUT)
    return done.stdout.splitlines()[0].strip() if done.status == 0 and done.stdout else ""


def _signer(path: str) -> str:
    signature = signer_of(path)
    return NONE if signature is None else _digest(signature.identity)


def _dkms_signer(kernel: Kernel) -> str:
    """The signer whose key DKMS uses on this host; empty while DKMS has no key."""
    if "CONFIG_MODULE_SIG" not in kernel.config:
        return NONE
    try:
        with open(inside(kernel.root, _DKMS_CERTIFICATE), "rb") as file:
            certificate = read_certificate(file.read(_CERTIFICATE_LIMIT))
    except (OSError, DerError):
        return ""
    # As Signature.identity: sign-file names a key by issuer and serial.
    return _digest(f"{certificate.issuer.hex()}/{certificate.serial}")


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def _ofed_words(digest_or_none: str) -> str:
    return "no OFED" if digest_or_none == NONE else f"OFED {digest_or_none[:19]}"
