"""What a host answers about its modules → the facts that decide which machine builds for which."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gdsdeploy.builds.assign import BuildFacts
from gdsdeploy.converge.diff import Variants
from gdsdeploy.host.apply.model import INSTALLS
from gdsdeploy.host.io.wording import line
from gdsdeploy.host.secure_boot.certificate import read_certificate
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Target
from gdsdeploy.model.text import Name

_NAME = TypeAdapter[str](Name)


def build_facts_from(variants: Variants, profile: Profile, target: Target, document: Mapping[str, Any]) -> BuildFacts:
    """The facts in a machine's answers that decide which builds fit it; document: what it was asked."""
    reports = [result.report for results in variants.values() for result in results if result.name == "modules"]
    key = next((value for report in reports if isinstance(value := report.get("key"), Mapping)), None)
    if key is None:
        return BuildFacts()
    dkms_modules = next((value for report in reports if isinstance(value := report.get("dkms"), list)), [])
    archive = next((value for report in reports if isinstance(value := report.get("received"), Mapping)), None)
    build = key.get("kernel_build")
    kernel_build = ("", "")
    if isinstance(build, Mapping) and _has_kernel(variants, target):
        kernel_build = line(build.get("file", "")), line(build.get("sha256", ""))
    return BuildFacts(
        arch=line(key.get("arch") or ""),
        ofed=line(key.get("ofed") or BuildFacts.ofed),
        signatures=line(key.get("signatures") or BuildFacts.signatures),
        kernel_build=kernel_build,
        built=all(module in dkms_modules for module in built_by_dkms(profile, target)),
        received=_is_received(archive, profile, target) and _is_signed(archive, _certificate(document)),
        builder=_name((archive or {}).get("builder")),
    )


def built_by_dkms(profile: Profile, target: Target) -> list[str]:
    """NAME/VERSION of what a machine that builds has DKMS build."""
    names = [f"{target.driver.dkms_name}/{target.driver.version}"]
    if profile.mode == "nvidia-fs" and target.nvidia_fs is not None:
        # The name of the source tree ends in the version that DKMS knows.
        names.append(f"{target.nvidia_fs.dkms_name}/{target.nvidia_fs.source_tree.rpartition('-')[2]}")
    return names


def _has_kernel(variants: Variants, target: Target) -> bool:
    """Whether the locked kernel is there already; provision replaces another build of the same release."""
    images = {package.package for package in target.packages if package.part == "kernel-image"}
    kernels = [result for results in variants.values() for result in results if result.name == "packages.kernel"]
    coming = {change.subject for result in kernels for change in result.changes if change.kind in INSTALLS}
    return bool(images) and bool(kernels) and not any(result.unknown for result in kernels) and not images & coming


def _is_received(value: Any, profile: Profile, target: Target) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("driver"), Mapping):
        return False
    driver, nvidia_fs = value["driver"], value.get("nvidia_fs")
    if (driver.get("version"), driver.get("flavour")) != (target.driver.version, target.driver.flavour):
        return False
    if profile.mode != "nvidia-fs" or target.nvidia_fs is None:
        return True
    return isinstance(nvidia_fs, Mapping) and nvidia_fs.get("version") == target.nvidia_fs.version


def _certificate(document: Mapping[str, Any]) -> bytes:
    """The certificate whose signature the machine's modules need (DER); empty: none, or not known yet."""
    resources = [entry for listed in document["variants"].values() for entry in listed]
    contents = [entry["desired"].get("certificate_content") for entry in resources if entry["resource"] == "signing"]
    return base64.b64decode(next(filter(None, contents), ""))


def _is_signed(value: Any, certificate: bytes) -> bool:
    """Whether all received modules have the signature of ``certificate``."""
    signers = value.get("signers") if isinstance(value, Mapping) else None
    if not certificate or not isinstance(signers, list):
        return True
    owner = read_certificate(certificate)
    return bool(signers) and {str(signer) for signer in signers} <= owner.identities


def _name(value: Any) -> str:
    """A machine's name, which may be part of a path; empty for anything else."""
    try:
        return _NAME.validate_python(value, strict=True)
    except ValidationError:
        return ""
