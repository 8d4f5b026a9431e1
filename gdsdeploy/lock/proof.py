"""What the modules of a target are made from, as one digest: the key of a preflight's record, and a lock's proof."""

from __future__ import annotations

import hashlib
from typing import Final

from gdsdeploy.model.lock import Target

#: The packages that modules are built from.
_PARTS: Final = (
    *("kernel-image", "kernel-headers", "driver-source", "driver-modules", "nvidia-fs-source", "nvidia-fs-modules"),
    "doca",
)


def ingredients(target: Target, *, nvidia_fs: bool = True) -> str:
    """``sha256:…`` over the packages and pins that the modules of ``target`` depend on.

    nvidia_fs: whether with those of nvidia-fs, on which the driver's own modules don't depend.
    """
    lines = sorted(
        f"{package.package} {package.version} {package.architecture} {package.sha256}"
        for package in target.packages
        if package.part in _PARTS and (nvidia_fs or package.part != "nvidia-fs-source")
    )
    lines += [f"{key}={target.pins.get(key, '')}" for key in ("flavour", "mode", "rdma")]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_proven(target: Target) -> bool:
    """Whether `gdsdeploy lock --prove` saw every module of exactly these packages build, and audited it."""
    return bool(target.proof) and target.proof == ingredients(target)


def keep(target: Target, before: Target | None) -> Target:
    """``target`` with the proof of ``before``, if its modules are made from the same."""
    same = before is not None and is_proven(before) and before.proof == ingredients(target)
    return target.model_copy(update={"proof": before.proof}) if before is not None and same else target
