"""From one mode to another: what a change of ``mode`` or ``rdma`` takes, step by step; pure.

cufile.json is rendered for both modes, and the modules are those that provision would load for both.  Steps that no
role does are left to the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gdsdeploy.converge import boot, p2pdma
from gdsdeploy.converge.inventory import load_order
from gdsdeploy.cufile.render import render_profile
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.facts.effective import given_keys
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Target

Mode = Literal["nvidia-fs", "p2pdma", "compat"]
Rdma = Literal["none", "peermem", "dmabuf"]
#: Parts of a lock that bring nvidia-fs.
_NVIDIA_FS = ("nvidia-fs-source", "nvidia-fs-modules")
#: Who does a step.
Doer = Literal["you", "lock", "provision"]


@dataclass(frozen=True)
class Step:
    """One thing that changes; ``before`` and ``after`` are empty where there is nothing."""

    where: str
    before: str
    after: str
    by: Doer

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Migration:
    """The steps in their order, and what stands against the change altogether."""

    steps: tuple[Step, ...]
    obstacles: tuple[str, ...]
    reboot: bool


def migration(name: str, profile: Profile, target: Target, mode: Mode, rdma: Rdma) -> Migration:
    """The steps that bring the profile ``name``, locked as ``target``, to another mode or RDMA mechanism."""
    after = profile.model_copy(update={"mode": mode, "rdma": rdma})
    steps = [
        Step(f"profiles.{name}.{key} in the fleet file", old, new, "you")
        for key, old, new in (("mode", profile.mode, mode), ("rdma", profile.rdma, rdma))
        if old != new
    ]
    if not steps:
        return Migration((), (), reboot=False)
    steps += [*_packages(name, profile, after, target), *_options(name, profile, after)]
    steps += _modules(profile, after, target)
    keys, obstacles = _cufile(name, profile, after, target)
    steps += keys
    obstacles += _obstacles(after, target)
    # nvidia-fs is not taken away from under its users, and the driver reads its options when it is loaded.
    reboot = profile.mode != mode
    if reboot:
        steps.append(Step("reboot", "", "into the same kernel", "provision" if profile.reboot else "you"))
    return Migration(tuple(steps), tuple(obstacles), reboot)


def _packages(name: str, before: Profile, after: Profile, target: Target) -> Iterator[Step]:
    doca = f"profiles.{name}.doca in the fleet file"
    if before.mode == "nvidia-fs" != after.mode:
        for package in (package for package in target.packages if package.part in _NVIDIA_FS):
            yield Step("package in the lock", f"{package.package} {package.version}", "", "lock")
    if after.mode == "nvidia-fs" != before.mode:
        yield Step("package in the lock", "", "nvidia-fs for this driver and kernel", "lock")
        if not after.doca:
            what = "MLNX_OFED or DOCA with hooks for nvidia-fs, where local NVMe, NVMe-oF or NFS over RDMA are used"
            yield Step(doca, "", what, "you")
    if after.rdma == "peermem" != before.rdma and not after.doca:
        yield Step(doca, "", "MLNX_OFED or DOCA: nvidia-peermem is a stub unless it is built against it", "you")


def _options(name: str, before: Profile, after: Profile) -> Iterator[Step]:
    old, new = (p2pdma.driver_options(profile).get(p2pdma.REGISTRY, "") for profile in (before, after))
    if old != new:
        yield Step(f"{p2pdma.REGISTRY} of nvidia in modprobe.d", old, new, "provision")
    old, new = (p2pdma.MULTIPATH if p2pdma.applies(profile) else "" for profile in (before, after))
    if old != new:
        yield Step("nvme_core in modprobe.d", old, new, "provision")
    old, new = (" ".join(boot.arguments(profile)) for profile in (before, after))
    if old != new:
        yield Step("kernel arguments", old, new, "provision")
    if p2pdma.applies(after) and not p2pdma.applies(before) and not boot.decides_iommu(after):
        yield Step("kernel command line", "", f"{' or '.join(boot.NO_IOMMU)}", "you")
        yield Step(f"profiles.{name}.boot in the fleet file", "", "auto, for provision to set that", "you")
    own = before.driver.options.get(p2pdma.REGISTRY)
    if before.mode == "p2pdma" != after.mode and own:
        where = f"profiles.{name}.driver.options in the fleet file"
        yield Step(where, f'{p2pdma.REGISTRY}: "{own}"', "", "you")


def _modules(before: Profile, after: Profile, target: Target) -> Iterator[Step]:
    old, new = (
        [*load_order(profile, target), *(["nvidia-peermem"] if profile.rdma == "peermem" else [])]
        for profile in (before, after)
    )
    # A lock that was made for another mode has no nvidia-fs yet.
    new += ["nvidia-fs"] if after.mode == "nvidia-fs" and "nvidia-fs" not in new else []
    yield from (Step("module loaded at boot", module, "", "provision") for module in old if module not in new)
    yield from (Step("module loaded at boot", "", module, "provision") for module in new if module not in old)


def _cufile(name: str, before: Profile, after: Profile, target: Target) -> tuple[list[Step], list[str]]:
    """The keys of cufile.json that differ; what is fitted to each host stays what it is."""
    library = target.libcufile.version
    try:
        old, new = (
            dict(given_keys(render_profile(name, profile.model_copy(update={"fit": None}), library).document))
            for profile in (before, after)
        )
    except FleetInvalid as refused:
        return [], [refused.message]
    return [
        Step(f"{key} in cufile.json", _as_json_text(old.get(key)), _as_json_text(new.get(key)), "provision")
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ], []


def _as_json_text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _obstacles(after: Profile, target: Target) -> list[str]:
    flavour = target.driver.flavour
    needs = {
        "exports GPU memory as DMA-BUF": after.rdma == "dmabuf",
        "has static BAR1 as P2PDMA memory": after.mode == "p2pdma",
    }
    return [
        f"the locked driver is {flavour}: only the open flavour {what}"
        for what, needed in needs.items()
        if needed and flavour != "open"
    ]
