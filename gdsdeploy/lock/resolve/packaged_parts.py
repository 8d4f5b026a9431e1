"""What the chosen packages with modules have in them: judged by pins and rules, and as parts of a target.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdsdeploy.host.kmod.driver import OPEN
from gdsdeploy.host.model import version_rules
from gdsdeploy.lock.compat import Verdict
from gdsdeploy.lock.packaged_modules import ModuleInPackage, unusable
from gdsdeploy.lock.resolve.offer import Option
from gdsdeploy.lock.resolve.search import Choice
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Package, PackagedModule, Source
from gdsdeploy.platform.base import Flavour

_DRIVER, _NVIDIA_FS = "nvidia", "nvidia_fs"


def facts(choice: Choice, modules: Sequence[ModuleInPackage]) -> dict[str, str | None]:
    """What rules may ask about the nvidia-fs of a choice's packages; nothing where no package brings it."""
    kernel = next((option for option in choice if option.subject == "kernel"), None)
    package = kernel.packages.get("nvidia-fs-modules") if kernel is not None else None
    version = next((module.version for module in modules if module.module == _NVIDIA_FS), "")
    if package is None or not version:
        return {}
    return {"nvidia_fs": version, "nvidia_fs_package": package.version, "nvidia_fs_origin": package.origin}


def unpinned(profile: Profile, choice: Choice, facts: dict[str, str | None]) -> tuple[Option, Verdict] | None:
    """The kernel whose packaged nvidia-fs its pin doesn't admit, and that as a verdict; None: the pin admits it."""
    kernel = next((option for option in choice if option.modules is not None), None)
    version = facts.get("nvidia_fs")
    if kernel is None or not version or version_rules.parse(profile.nvidia_fs).admits(version):
        return None
    package = kernel.packages["nvidia-fs-modules"]
    words = f"The pin nvidia_fs: {profile.nvidia_fs!r} doesn't admit {version}, which {package} has."
    return kernel, Verdict("pin", False, words)


def require(
    release: str,
    driver: str,
    flavour: Flavour,
    mode: str,
    packages: Sequence[Package],
    modules: Sequence[ModuleInPackage],
) -> tuple[PackagedModule, ...]:
    """The modules of a target; raises RepositoryUnusable for a package that has something else than its relations say.

    release: of the kernel.  driver, flavour: of the driver that its relations name.
    """
    by_name = {package.package: package for package in packages}
    for module in modules:
        reason = next(_objections(release, driver, flavour, module), "")
        if reason:
            raise unusable(by_name[module.package], f"/lib/modules/{module.release}/{module.file} {reason}")
    present = {module.module for module in modules}
    for name, part in ((_DRIVER, "driver-modules"), (_NVIDIA_FS, "nvidia-fs-modules")):
        if name not in present and (name == _DRIVER or mode == "nvidia-fs"):
            raise unusable(next(p for p in packages if p.part == part), f"it has no module {name}")
    keys = ("module", "package", "file", "sha256", "version", "signer")
    return tuple(
        PackagedModule(**{key: getattr(module, key) for key in keys})
        for module in sorted(modules, key=lambda module: (module.module, module.file))
    )


def _objections(release: str, driver: str, flavour: Flavour, module: ModuleInPackage) -> Iterator[str]:
    built_for = (module.vermagic.split() or [""])[0]
    if module.release != release or built_for != release:
        yield f"is for kernel {built_for or module.release}, and the package is for {release}"
    if module.module == _NVIDIA_FS:
        if not module.version:
            yield "doesn't say its version"
        if module.driver not in ("", driver):
            yield f"was built against driver {module.driver}, and the modules on offer are of {driver}"
        return
    if module.version and module.version != driver:
        yield f"is of driver {module.version}, and the package's relations say {driver}"
    if module.module == _DRIVER and (module.license in OPEN) != (flavour == "open"):
        yield f"has the license {module.license!r}, which the {flavour} flavour doesn't have"


def nvidia_fs(modules: Sequence[PackagedModule]) -> Source | None:
    """The nvidia-fs that a package brings; None: none does."""
    version = next((module.version for module in modules if module.module == _NVIDIA_FS), "")
    return Source(version=version, source_tree="", dkms_name="") if version else None


def warnings(modules: Sequence[ModuleInPackage]) -> list[Verdict]:
    """What can't be known of a packaged nvidia-fs before it runs."""
    nvidia_fs = next((module for module in modules if module.module == _NVIDIA_FS), None)
    if nvidia_fs is None or nvidia_fs.driver:
        return []
    words = (
        f"The packaged nvidia-fs {nvidia_fs.version} doesn't record the driver that it was built against, and symbol"
        " versions don't tell it: only a real transfer proves that they fit (`gdsdeploy validate` makes one)."
    )
    return [Verdict("packaged-nvidia-fs", True, words, warning=True)]
