"""What a host answers to ``apply --check`` → what provision would change there, and in which words.  Pure.

Every part of an answer is read as the host program's own types have it.  A machine of which something is unknown never
has nothing to do.  Nothing decides by the words, which the changes' resources bring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, Literal

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge.desired import ROLES
from gdsdeploy.errors import translated
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.model import Change, Refusal
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.host.subjects.foreign import ForeignInstall, kinds
from gdsdeploy.model.text import read
from gdsdeploy.ssh.reply_schema import lines

Disruption = Literal["none", "module reload", "reboot"]
#: From the least to the most.
DISRUPTIONS: Final[tuple[Disruption, ...]] = ("none", "module reload", "reboot")

#: Ways in which a machine may come to its modules, each a variant of its desired state: it builds them; it keeps what
#: it has received; it receives an archive that it doesn't have yet; or locked packages bring them.
BUILD, KEEP, RECEIVE, PACKAGED = "build", "keep", "receive", "packaged"
#: Ids of refusals that only matter where there is something to install, and of one that ends when a builder is done.
_FOR_CHANGES = frozenset({"space", "half-installed"})
_NOT_DELIVERED = "not-delivered"


@dataclass(frozen=True)
class Result:
    """A host's answer about one resource."""

    name: str
    changes: tuple[Change, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    unknown: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Foreign:
    """What others have installed, and why kinds of that aren't known."""

    installs: tuple[ForeignInstall, ...]
    unknown: tuple[str, ...]


#: Variant → results in the order of the desired state.
Variants = Mapping[str, Sequence[Result]]


@dataclass(frozen=True)
class HostPlan:
    """What provision would do on one machine."""

    host: str
    #: in the order in which they would be made
    changes: tuple[Change, ...] = ()
    #: what could not be told, each as a sentence
    unknown: tuple[str, ...] = ()
    #: why the machine would be refused
    refusals: tuple[Refusal, ...] = ()
    #: where its modules come from; None where that was not asked
    supply: Supply | None = None
    #: whether its profile lets provision reboot it
    may_reboot: bool = True
    #: why it isn't known which packages would leave that the lock doesn't replace, each as a sentence; empty: it is
    removals_unknown: tuple[str, ...] = ()
    #: what others have installed of the stack; some of it refuses the machine
    foreign: tuple[ForeignInstall, ...] = ()
    #: why kinds of that aren't known, each as a sentence
    foreign_unknown: tuple[str, ...] = ()

    @property
    def refusal(self) -> str:
        """All refusals in a sentence; empty: there is none."""
        return "; ".join(entry.message for entry in self.refusals)

    @property
    def satisfied(self) -> bool:
        """Whether it is proven that there is nothing to do."""
        return not self.changes and not self.unknown and not self.refusal

    @property
    def lacks_key(self) -> bool:
        """Whether a person has to enrol the key of the modules at the host's console."""
        return any(change.kind == "enrol" for change in self.changes)

    @property
    def disruption(self) -> Disruption:
        """The worst of all changes."""
        worst = max((DISRUPTIONS.index(change.disruption) for change in self.changes), default=0)
        return DISRUPTIONS[worst]


def plan(host: str, variants: Variants, supply: Supply, archive: str | None) -> HostPlan:
    """What the roles would change on ``host``, given where its modules come from.

    archive: sha256 of the archive of modules for it that the controller has; None: it has none.
    """
    results = [_waiting(result) for result in _results_for(variants, supply, archive)]
    # Each once: several resources may want the same folder.
    distinct: dict[tuple[str, str, str], Change] = {}
    for change in (change for result in results for change in result.changes):
        distinct.setdefault((change.kind, change.subject, change.after), change)
    changes = tuple(distinct.values())
    refused = [entry for result in results for entry in result.refusals if changes or entry.id not in _FOR_CHANGES]
    unknown = dict.fromkeys(text for result in results for text in result.unknown)
    may_reboot = all(result.report.get("allowed", True) is not False for result in results if result.name == "reboot")
    reasons = dict.fromkeys(reason for result in results for reason in _removals_unknown(result.report))
    foreign = foreign_of(next((one.report for one in results if one.name == "preflight"), {}))
    return HostPlan(
        host,
        changes,
        tuple(unknown),
        tuple(dict.fromkeys(refused)),
        supply,
        may_reboot,
        tuple(reasons),
        foreign.installs,
        foreign.unknown,
    )


def _removals_unknown(report: Mapping[str, Any]) -> list[str]:
    removals = report.get("removals")
    if not isinstance(removals, Mapping) or removals.get("known") is True:
        return []
    return [str(removals.get("why") or "the host gives no reason")]


def missing(variants: Variants, supply: Supply, archive: str | None) -> list[str]:
    """The variants that :func:`plan` needs and that the machine hasn't answered."""
    if supply.mode == "receive" and KEEP not in variants:
        return [KEEP, RECEIVE]
    return [needed] if (needed := _variant_for(variants, supply, archive)) not in variants else []


def _variant_for(variants: Variants, supply: Supply, archive: str | None) -> str:
    if supply.mode != "receive":
        return BUILD if supply.mode == "build" else PACKAGED
    return KEEP if supply.source == "kept" or (archive is not None and archive == _archive_in(variants)) else RECEIVE


def _archive_in(variants: Variants) -> Any:
    """The sha256 of the archive that a machine has received; None: it has none."""
    return next((result.report.get("archive") for result in variants[KEEP] if result.name == "modules"), None)


def _results_for(variants: Variants, supply: Supply, archive: str | None) -> list[Result]:
    """The results of the variant that ``supply`` asks for, as the controller's archive makes them."""
    variant = _variant_for(variants, supply, archive)
    results = list(variants[variant])
    if variant == BUILD:
        return [_handing_over(result, supply, archive) if result.name == "modules" else result for result in results]
    if variant != RECEIVE or archive is None:
        return results
    after, reason = f"sha256:{archive}", "content" if _archive_in(variants) else "missing"

    def receiving(change: Change) -> Change:
        return replace(change, after=after, reason=reason) if change.kind == "receive" else change

    return [replace(result, changes=tuple(map(receiving, result.changes))) for result in results]


def _handing_over(result: Result, supply: Supply, archive: str | None) -> Result:
    """A builder packs its modules for the controller where it has none, or others, of their key."""
    changes = [change for change in result.changes if change.kind != "pack"]
    packed = [change for change in result.changes if change.kind == "pack"]
    if supply.delivers and not result.unknown and (archive is None or changes):
        changes += packed or [Change("pack", "modules", "", "", _NOT_DELIVERED, resource=result.name)]
    return replace(result, changes=tuple(changes))


def _waiting(result: Result) -> Result:
    """What a builder delivers while provision runs is a change that is to come, not a reason to refuse the machine."""
    waits = [entry for entry in result.refusals if entry.id == _NOT_DELIVERED]
    if not waits:
        return result
    coming = Change("receive", result.name, "", "", _NOT_DELIVERED, resource=result.name)
    others = tuple(entry for entry in result.refusals if entry.id != _NOT_DELIVERED)
    return replace(result, changes=(*result.changes, coming), refusals=others)


def variants(value: Any) -> dict[str, tuple[Result, ...]]:
    """The variants of a host's answer; raises ValueError that says what of it is malformed."""
    answer: dict[str, tuple[Result, ...]] = read(dict[str, tuple[Result, ...]], lines(value))
    for result in (result for results in answer.values() for result in results):
        for change in result.changes:
            _require_known(change)
        foreign_of(result.report)
    return answer


def change(value: Any) -> Change:
    """A change from JSON; raises ValueError."""
    change = read(Change, lines(value))
    _require_known(change)
    return change


def foreign_of(report: Mapping[str, Any]) -> Foreign:
    """What the preflight's report has about others; raises ValueError."""
    with translated(ValueError, lambda error: ValueError(f"foreign: {error}")):
        foreign = read(Foreign, report["foreign"]) if report.get("foreign") is not None else Foreign((), ())
    if unknown := [install.kind for install in foreign.installs if install.kind not in kinds()]:
        raise ValueError(f"foreign: no kind of this version: {unknown[0][:40]!a}")
    return foreign


def _require_known(change: Change) -> None:
    if change.kind not in registry.words("kinds") or change.disruption not in DISRUPTIONS:
        raise ValueError(f"unknown kind of change: {change.kind[:40]!a} ({change.disruption[:40]!a})")


#: Kinds whose neighbours share a line, and how many of them are named.
_SHARED, _NAMED = frozenset({"hold", "unhold", "sign", "delete"}), 3
_DIGEST = "sha256:"


def action_words(change: Change) -> str:
    """What is done."""
    return registry.words("kinds")[change.kind].format(change.subject)


def before_words(change: Change) -> str:
    """What the host has now."""
    words = registry.words("reasons").get(change.reason)
    if words is not None:
        return words.format(_short(change.before), by=change.by)
    return _short(change.before) or ("not installed" if change.kind == "install" else change.reason or "nothing")


def after_words(change: Change) -> str:
    """What the host should have."""
    ends = change.kind in ("remove", "delete", "unload", "unbuild")
    return _short(change.after) or ("nothing" if ends else "as the lock has it")


def grouped(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Changes that a line can say together, in their order."""
    for (kind, _, reason), same in groupby(changes, key=lambda change: (change.kind, change.resource, change.reason)):
        if kind in _SHARED and reason:
            yield list(same)
        else:
            yield from ([change] for change in same)


def sentence(group: Sequence[Change]) -> str:
    """What is done by changes of one kind."""
    return registry.words("kinds")[group[0].kind].format(first_few([change.subject for change in group], _NAMED))


def change_to_json(change: Change) -> dict[str, Any]:
    """A change with its words beside its data."""
    words = {
        "role": ROLES.get(change.resource, ""),
        "what": action_words(change),
        "found": before_words(change),
        "wanted": after_words(change),
    }
    return {**words, **change.to_json()}


def _short(text: str) -> str:
    return f"{text[: len(_DIGEST) + 12]}…" if text.startswith(_DIGEST) else text
