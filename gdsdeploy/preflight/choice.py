"""Kernels, drivers and nvidia-fs to try: the lock's, or others of its repositories.  Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from gdsdeploy.errors import GdsError, NoSolution
from gdsdeploy.host.model import compat
from gdsdeploy.lock.compat import Verdict, judge
from gdsdeploy.lock.resolve import options, resolve
from gdsdeploy.lock.resolve.options import Option, Options
from gdsdeploy.lock.resolve.target import base
from gdsdeploy.lock.sources import Sources
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.platform import StackPlatform
from gdsdeploy.repo.packages import Universe

#: Number of versions in an error.
_LISTED = 12
#: Index of a subject in ``Options.levels``.
_LEVEL = {"driver": 0, "kernel": 1, "nvidia-fs": 2}


@dataclass(frozen=True)
class StackChoices:
    """Version expressions for each subject; empty: the lock's version."""

    kernels: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    nvidia_fs: tuple[str, ...] = ()


@dataclass(frozen=True)
class StackCandidate:
    """One stack to try."""

    profile: str
    #: as ``uname -r`` prints it
    kernel: str
    kernel_package: str
    driver: str
    driver_package: str
    flavour: str
    #: empty in a mode without nvidia-fs
    nvidia_fs: str
    nvidia_fs_package: str
    #: None where its packages cannot be installed together
    target: Target | None
    #: the reason for that
    problem: str = ""
    #: rules of compat.yml that forbid this combination
    against: tuple[Verdict, ...] = ()

    @property
    def label(self) -> str:
        """For progress and file names."""
        nvidia_fs = f", nvidia-fs {self.nvidia_fs}" if self.nvidia_fs else ""
        return f"kernel {self.kernel}, driver {self.driver}{nvidia_fs}"


def candidates(
    name: str,
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    indices: Sequence[Index],
    sources: Sources,
    locked: Target | None,
    choices: StackChoices,
) -> list[StackCandidate]:
    """Every combination in ``choices``, in the order of its words; kernels outermost.

    Raises NoSolution, with the available versions, for one that the repositories don't have.
    """
    where = f"profile {name}"
    offered = options.find(_with_pins(profile), platform, universe)
    defaults = _defaults(profile, locked)
    combinations = itertools.product(
        _pick(where, offered, "kernel", choices.kernels or defaults.kernels),
        _pick(where, offered, "driver", choices.drivers or defaults.drivers),
        _pick(where, offered, "nvidia-fs", choices.nvidia_fs or defaults.nvidia_fs),
    )
    stacks = []
    for kernel, driver, source in combinations:
        facts = {**base(profile, platform), **driver.facts, **kernel.facts, **source.facts}
        against = tuple(verdict for verdict in judge(facts) if not verdict.allowed)
        target, problem = _target(name, profile, platform, universe, indices, sources, locked, (kernel, driver, source))
        stacks.append(
            StackCandidate(
                profile=name,
                kernel=kernel.release,
                kernel_package=str(kernel.facts["kernel_package"]),
                driver=str(driver.facts["driver"]),
                driver_package=str(driver.facts["driver_package"]),
                flavour=profile.driver.flavour,
                nvidia_fs=source.facts["nvidia_fs"] or "",
                nvidia_fs_package=source.facts["nvidia_fs_package"] or "",
                target=target,
                problem=problem,
                against=against,
            )
        )
    return stacks


def _with_pins(profile: Profile, kernel: str = "newest", driver: str = "newest", nvidia_fs: str = "newest") -> Profile:
    kernel_pin = profile.kernel.model_copy(update={"version": kernel})
    driver_pin = profile.driver.model_copy(update={"version": driver})
    return profile.model_copy(update={"kernel": kernel_pin, "driver": driver_pin, "nvidia_fs": nvidia_fs})


def _defaults(profile: Profile, locked: Target | None) -> StackChoices:
    if locked is None:
        return StackChoices((profile.kernel.version,), (profile.driver.version,), (profile.nvidia_fs,))
    own = {package.part: package.version for package in locked.packages}
    return StackChoices(
        (f"=={locked.kernel.release}",),
        (f"=={own.get('driver-source', locked.driver.version)}",),
        (f"=={own.get('nvidia-fs-source', '0')}",),
    )


def _pick(where: str, offered: Options, subject: str, texts: Sequence[str]) -> list[Option]:
    """The newest option that each of ``texts`` admits, each once."""
    level = offered.levels[_LEVEL[subject]]
    if subject == "nvidia-fs" and level and not level[0].packages:
        return level[:1]
    picked: list[Option] = []
    for text in texts:
        try:
            pin = compat.parse_versions(text)
        except ValueError as error:
            raise GdsError(
                f"{where}: {subject} {text!r}: {error}", hint='Give a release, a version, a branch, or "newest"'
            ) from None
        newest = next((option for option in level if pin.admits(*option.names)), None)
        if newest is None:
            raise _unavailable(where, offered, subject, text)
        if newest not in picked:
            picked.append(newest)
    return picked


def _unavailable(where: str, offered: Options, subject: str, text: str) -> NoSolution:
    level = offered.levels[_LEVEL[subject]]
    names = [option.release or option.version for option in level]
    more = ", …" if len(names) > _LISTED else ""
    version = text.lstrip("=")
    refusals = [option.refused for option in offered.incomplete if option.subject == subject]
    lines = [f"{where}: the repositories have no {subject} {version}"]
    lines += [f"  - {refusal.what}: {refusal.words}" for refusal in refusals if version in refusal.choice]
    return NoSolution("\n".join(lines), hint=f"They have {', '.join(names[:_LISTED]) or 'none'}{more}")


def _target(
    name: str,
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    indices: Sequence[Index],
    sources: Sources,
    locked: Target | None,
    choice: tuple[Option, Option, Option],
) -> tuple[Target | None, str]:
    """The packages of a choice; the resolver ignores compat.yml, because the preflight tries also forbidden stacks."""
    kernel, driver, source = choice
    if locked is not None and _is_locked(locked, choice):
        return locked, ""
    nvidia_fs = f"=={source.version}" if source.packages else "newest"
    pinned = _with_pins(profile, f"=={kernel.release}", f"=={driver.version}", nvidia_fs)
    if locked:
        pinned = pinned.model_copy(update={"libcufile": f"=={locked.libcufile.version}"})
    try:
        return resolve(name, pinned, platform, universe, indices, sources, rules=()).target, ""
    except NoSolution as error:
        return None, error.message


def _is_locked(locked: Target, choice: tuple[Option, Option, Option]) -> bool:
    digests = {(package.package, package.version, package.sha256) for package in locked.packages}
    packages = (package for option in choice for package in option.packages.values())
    return all((package.package, package.version, package.sha256) in digests for package in packages)
