"""The machine itself: its system, hardware, container, and what others or gdsdeploy have installed.

Of packages: the locked ones, what moves them away from the lock, and DKMS.
"""

from __future__ import annotations

import re
from typing import Dict, Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, UndecidedError, Unknown
from ..facts.packages import Choice, Move, Package
from ..facts.unknown import if_known, known
from ..foreign import Locked, evidence, findings, kind, sentence, way_out
from ..io.wording import first_few
from ..model.expectation import Expectation
from ..subjects.register import Answer, check, failed, not_applicable, passed

#: Findings named in one answer; the evidence has all.
TRACES_NAMED = 2


@check(
    "host.foreign",
    "nothing that others installed takes the place of the locked stack",
    expects="no driver of a run file or of a container; no module, DKMS package or library that nothing explains and"
    " that wins; no pin, lock or exclude that keeps the locked versions out",
    prevents="a driver that no package manager knows: modules and libraries of another version win after the next boot",
)
def foreign(facts: HostFacts, expectation: Expectation) -> Answer:
    manager = facts.environment.container
    if manager is not None:
        return not_applicable(f"{manager}: the packages of its host are not visible")
    if not facts.foreign.modules:
        raise facts.document.not_collected("what others have installed was", "foreign")
    locked = Locked(expectation.kernel_release, expectation.packages, tuple(expectation.repositories))
    installs, unknown = findings(facts.foreign, locked)
    breaking = [one for one in installs if one.breaks]
    lines = [
        f"{one.kind}: {line}"
        for one in (*breaking, *(one for one in installs if not one.breaks))
        for line in evidence(one)
    ]
    if breaking:
        hints = [way_out(one, expectation.kernel_release) for one in breaking]
        sentences = [sentence(one) for one in breaking]
        return failed(first_few(sentences, TRACES_NAMED, "; "), ". ".join(hints[:TRACES_NAMED]), lines)
    if unknown:
        raise UndecidedError("; ".join(unknown[:TRACES_NAMED]))
    if not installs:
        return passed("nothing was found")
    return passed("; ".join(f"{kind(one.kind).title} ({len(one.traces)})" for one in installs), lines)


#: dpkg's states of a completely installed package: selected for installation, or held.
COMPLETE = ("ii", "hi")
#: Packages named in a finding; the rest is counted.
WRONG_NAMED = 5


@check(
    "packages.locked-versions",
    "every package of the lock is installed in exactly the locked version",
    expects="the packages of the lock, completely installed",
    prevents="drift: an upgrade by hand or by unattended-upgrades; a package that dpkg left half-configured",
    of_provision=True,
)
def locked_versions(facts: HostFacts, expectation: Expectation) -> Answer:
    installed, locked = facts.packages.installed, locked_packages(expectation)
    wrong = list(filter(None, (_problem(name, locked[name], installed.get(name, ())) for name in locked)))
    if not wrong:
        return passed(f"{len(locked)} packages")
    hint = "Provision the host again; if apt refuses, read why: dpkg --audit; apt-get check"
    return failed(first_few(wrong, WRONG_NAMED, "; "), hint, wrong)


def locked_packages(expectation: Expectation) -> Dict[str, str]:
    """Package → version of the lock, sorted; raises UndecidedError for an expectation without packages."""
    if not expectation.packages:
        raise UndecidedError("the expectation names no packages")
    return dict(sorted(expectation.packages.items()))


def _problem(name: str, version: str, packages: Sequence[Package]) -> str:
    if any(package.version == version and package.status in COMPLETE for package in packages):
        return ""
    if all(package.status.startswith(("un", "rc", "pn")) for package in packages):
        return f"{name} is not installed (locked: {version})"
    shown = ", ".join(f"{package.version} [{package.status}]" for package in packages)
    return f"{name} is {shown} (locked: {version})"


#: Packages named in a finding; the rest is counted.
MOVES_NAMED = 3


@check(
    "packages.drift",
    "only provision changes the stack: its packages have the locked versions, pinned and held",
    expects="every package of the lock pinned to its version and held",
    prevents="a driver that 'install cuda', an upgrade or unattended-upgrades installs, with no trace of the command",
    of_provision=True,
)
def drift(facts: HostFacts, expectation: Expectation) -> Answer:
    installed, locked = facts.packages.installed, locked_packages(expectation)
    versions = {name: _version(installed.get(name, ()), version) for name, version in locked.items()}
    moves = known(lambda: facts.drift.moves)
    moved = [
        _describe_move(name, version, versions[name], moves)
        for name, version in locked.items()
        if versions[name] != version
    ]
    if moved:
        hint = "Provision the host again: it restores the locked versions, and their pins and holds"
        return failed(first_few(moved, MOVES_NAMED, "; "), hint, moved)
    versionlocks = if_known(lambda: facts.drift.locked, None)
    choices = if_known(lambda: facts.drift.choices, None) if versionlocks is not None else facts.drift.choices
    if choices is not None:
        lines = [_apt(name, version, choices.get(name), installed.get(name, ())) for name, version in locked.items()]
        loose = list(filter(None, lines))
    else:
        loose = [f"{name} is not locked" for name in locked if name not in (versionlocks or ())]
    if loose:
        hint = "Provision the host again: it writes the pins and sets the holds"
        return failed(first_few(loose, MOVES_NAMED, "; "), hint, loose)
    return passed(f"nothing would move {len(locked)} packages")


def _apt(name: str, version: str, choice: Optional[Choice], packages: Sequence[Package]) -> str:
    """What is wrong with apt's choice; empty: nothing."""
    if choice is None or not choice.candidate:
        return f"{name}: apt has no candidate"
    if choice.candidate != version:
        origin = f" from {choice.source}" if choice.source else ""
        return f"{name} would become {choice.candidate}{origin}"
    if not any(package.version == version and package.status.startswith("h") for package in packages):
        return f"{name} is not held"
    return ""


def _version(packages: Sequence[Package], locked: str) -> str:
    """The unpacked version, or the locked one of several: rpm keeps older kernels.

    packages.locked-versions checks whether it is configured.
    """
    versions = [package.version for package in packages if package.status[1:2] not in ("n", "c", "")]
    return locked if locked in versions else next(iter(versions), "")


def _describe_move(name: str, locked: str, installed: str, moves: Maybe[Tuple[Move, ...]]) -> str:
    text = "{} moved from {} to {}".format(name, locked, installed or "nothing")
    if isinstance(moves, Unknown):
        return f"{text}; {moves.reason}"
    # The change that installed this version, or that removed the package.
    fitting = [move for move in moves if move.package == name and (move.after == installed or not installed)]
    if not fitting:
        return text + "; no log has the change"
    last = fitting[-1]
    user = f" ({last.user})" if last.user else ""
    command = f"by '{last.command}'{user}" if last.command else "by dpkg alone, or by a command that no log has"
    return f"{text} on {last.at} {command}"


#: Of ``dkms status``: ``nvidia-fs/2.19.7, 6.12.94+deb13-amd64, x86_64: installed (…)``.
DKMS = re.compile(r"^(?P<name>nvidia[\w.+-]*)/(?P<version>[^,]+)(?:, (?P<kernel>[^,]+), [^:]+)?: (?P<state>.*)$")


@check(
    "packages.dkms",
    "DKMS has installed the stack's modules for the locked kernel, as it built them",
    expects="every nvidia module of DKMS installed for {kernel_release}",
    prevents="a kernel that boots without its modules because a build failed, was interrupted, or was replaced by hand",
)
def dkms(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.packaged:
        return not_applicable("packages bring the modules: modules.next-boot names what has precedence over theirs")
    if "dkms" not in facts.packages.installed:
        return not_applicable("DKMS is not installed: the modules are received")
    lines, release = facts.packages.dkms, expectation.kernel_release
    rows = [match.group(0, "name", "kernel", "state") for match in map(DKMS.match, lines) if match]
    if not rows:
        return not_applicable("DKMS has no modules of this stack")
    bad = [line for line, _, _, state in rows if "Diff between" in state or "broken" in state]
    names = sorted({name for _, name, _, _ in rows})
    installed = {name for _, name, kernel, state in rows if kernel == release and "installed" in state}
    missing = [name for name in names if name not in installed]
    idle = if_known(lambda: facts.packages.dkms_idle, ())
    bad += [f"{name} is not installed for {release}" for name in missing if name not in idle]
    if not bad and missing == names:
        return not_applicable("DKMS has a recipe that builds nothing: the modules are received")
    if bad:
        hint = f"Provision the host again; by hand: dkms install NAME/VERSION -k {release}"
        return failed("; ".join(bad), hint, lines)
    others = len({kernel for _, _, kernel, _ in rows if kernel} - {release})
    also = f", and for {others} other kernel{'s' if others > 1 else ''}" if others else ""
    return passed("{} for {}{}".format(", ".join(name for name in names if name in installed), release, also), lines)
