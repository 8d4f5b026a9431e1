"""What a build of modules depends on, as one key: builds of equal keys may stand for one another.

The key of finished modules is read out of them and of their kernel; that of modules to come is computed from what they
would be built from, so that both can be compared.  A host without headers and compiler can tell only some of it
(:func:`told`); the rest is the lock's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import process
from ..errors import ElfError
from ..kmod import ofed
from ..kmod.driver import flavour as driver_flavour
from ..kmod.kernel import Kernel
from ..kmod.module import Module
from ..kmod.tree import Tree, digest
from ..kmod.vouch import identity, same_kernel_build
from ..rootdir import inside
from ..secure_boot.certificate import Certificate, read_certificate
from ..secure_boot.der import DerError
from ..secure_boot.signature import signer_of
from ..secure_boot.trust import trust_of

#: In this order; every value is a text, empty where it cannot be told.
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
    #: who signs the modules; ``none``: nobody
    "signer",
)
NONE = "none"
_PROGRAM_TIMEOUT = 20.0
_DKMS_CERTIFICATE = "/var/lib/dkms/mok.pub"
_CERTIFICATE_LIMIT = 1 << 16


def key_of(ingredients: Mapping[str, str]) -> str:
    """``sha256:…`` of ``ingredients``; what is not known of a build counts as a value of its own."""
    text = json.dumps([[name, ingredients.get(name, "")] for name in INGREDIENTS], separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def unknown(ingredients: Mapping[str, str]) -> List[str]:
    """Names of the ingredients that are missing."""
    return [name for name in INGREDIENTS if not ingredients.get(name)]


def of_modules(kernel: Kernel, modules: Sequence[Module]) -> Dict[str, str]:
    """The ingredients of finished ``modules`` of one build."""
    by_name = {module.name: module for module in modules}
    nvidia, nvidia_fs = by_name.get("nvidia"), by_name.get("nvidia_fs")
    one = nvidia_fs or nvidia or modules[0]
    recorded = next((item.provenance for item in (nvidia_fs, nvidia) if item is not None and item.provenance), {})
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
        "signer": _signers([module.path for module in modules]),
    }


def of_sources(kernel: Kernel, tree: Tree, source: str) -> Dict[str, str]:
    """The ingredients of a build to come, from ``tree`` and the folder ``source`` of nvidia-fs; empty: without it.

    Who signs is taken from what DKMS signs with on this host; raises TreeError where ``source`` is none.
    """
    from ..build.nvidia_fs import source_digest

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


def told(kernel: Optional[Kernel], machine: str) -> Dict[str, Any]:
    """What a host can tell without headers and compiler, on which the builds that fit it depend.

    ``{"arch", "ofed", "signatures", "kernel_build": {"file", "sha256"}}``; ``kernel``: None while it is not installed,
    and then what belongs to it is empty.  ``signatures``: ``enforced`` where unsigned modules are refused, or ``free``.
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
    """Why modules of ``manifest`` were not built for this host, as far as it can tell; each a sentence."""
    said = []
    known = manifest.get("key")
    if isinstance(known, dict):
        machine = kernel_machine(kernel)
        if machine and known.get("arch") not in (machine, "", None):
            said.append("they are for {}, and this kernel is for {}".format(known.get("arch"), machine))
        here = ofed_digest(kernel)
        if known.get("ofed") not in (here, "", None):
            words = "they were built {}, and this kernel {}"
            said.append(words.format(_with(str(known.get("ofed")), "with"), _with(here, "has")))
    if same_kernel_build(kernel, manifest.get("kernel_build")) is False:
        said.append(f"they were built for another build of kernel {kernel.release}")
    return said


def kernel_machine(kernel: Kernel) -> str:
    """The architecture of the kernel's own modules, as ``uname -m``; empty when there is none."""
    module = kernel.own_module()
    return module.machine if module is not None else ""


def ofed_digest(kernel: Kernel) -> str:
    """``sha256:…`` of the names and versions that an RDMA core with peer memory exports; ``none`` without one.

    The installed module and the tree that it was built from give the same, so that hosts without the tree can be
    compared with those that have it.
    """
    exports = _installed_core(kernel)
    if exports is None:
        tree = ofed.find(kernel)
        if tree is None:
            return NONE
        found = tree.exports()
        core = found[ofed.SYMBOLS[0]].module
        exports = {name: item.crc for name, item in found.items() if item.module == core}
    if ofed.SYMBOLS[0] not in exports:
        return NONE
    text = "".join(f"{name} {crc:08x}\n" for name, crc in sorted(exports.items()))
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def compiler(kernel: Kernel) -> str:
    """The compiler that kbuild would take for ``kernel``, as it signs its work; empty when there is none."""
    if "CONFIG_CC_IS_CLANG" in kernel.config:
        return _version_of("clang")
    # Distributions name the compiler that a kernel was built with by its major version.
    major = kernel.config.get("CONFIG_GCC_VERSION", "")[:-4]
    said = (_version_of("gcc-" + major) if major else "") or _version_of("gcc")
    match = re.match(r"^\S+ (.*)$", said)
    return "GCC: " + match.group(1) if match else ""


def _installed_core(kernel: Kernel) -> Optional[Dict[str, int]]:
    choice = kernel.choose("ib_core")
    if choice is None:
        return None
    try:
        exports = kernel.read(choice.file).exports
    except ElfError:
        return None
    return {name: crc or 0 for name, (crc, _gpl) in exports.items()}


def _version_of(program: str) -> str:
    done = process.run([program, "--version"], _PROGRAM_TIMEOUT)
    return done.stdout.splitlines()[0].strip() if done.status == 0 and done.stdout else ""


def _signers(files: Sequence[str]) -> str:
    """Who signed ``files``; several are all named."""
    found = set()
    for path in files:
        signature = signer_of(path)
        found.add(NONE if signature is None else _short(signature.identity))
    return "+".join(sorted(found))


def _dkms_signer(kernel: Kernel) -> str:
    """Whose key DKMS signs with on this host; empty while it has made none."""
    if "CONFIG_MODULE_SIG" not in kernel.config:
        return NONE
    try:
        with open(inside(kernel.root, _DKMS_CERTIFICATE), "rb") as file:
            return _short(_identity(read_certificate(file.read(_CERTIFICATE_LIMIT))))
    except (OSError, DerError):
        return ""


def _identity(certificate: Certificate) -> str:
    """As :attr:`Signature.identity` names the key of ``certificate``, which sign-file names by issuer and serial."""
    return f"{certificate.issuer.hex()}/{certificate.serial}"


def _short(identity_of_key: str) -> str:
    return "sha256:" + hashlib.sha256(identity_of_key.encode("utf-8")).hexdigest()


def _with(digest_or_none: str, verb: str) -> str:
    return f"{verb} no OFED" if digest_or_none == NONE else f"{verb} OFED {digest_or_none[:19]}"
