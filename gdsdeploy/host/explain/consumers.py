"""What a consumer of this stack (KvikIO, NCCL, …) needs of a host, and whether it holds there."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.environment import Variable
from ..facts.unknown import if_known
from ..facts.userland import WHEEL
from ..model import consumer as table
from ..model.consumer import Consumer, Need, consumers
from . import config, processes
from .cause import weigh
from .mechanisms import mechanisms
from .text import wrapped

VERSION = 1
STATES = {True: "holds", False: "fails", None: "advice"}


@dataclass(frozen=True)
class JudgedNeed:
    """``holds`` is None for advice, which no evidence decides; ``evidence`` is what decides it."""

    need: Need
    holds: Maybe[Optional[bool]]
    evidence: Tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """``holds``, ``fails``, ``unknown`` or ``advice``."""
        return "unknown" if isinstance(self.holds, Unknown) else STATES[self.holds]

    @property
    def reason(self) -> str:
        """Why it is unknown; empty where it isn't."""
        return self.holds.reason if isinstance(self.holds, Unknown) else ""


@dataclass(frozen=True)
class ConsumerNeeds:
    """``installed``: Python packages of the consumer that were seen, as paths."""

    consumer: Consumer
    host: str
    installed: Tuple[str, ...]
    needs: Tuple[JudgedNeed, ...]


def names() -> Tuple[str, ...]:
    """The names of all consumers."""
    return tuple(consumers())


def needs_of(name: str, facts: HostFacts) -> ConsumerNeeds:
    """Judge every need of the consumer; raises KeyError for an unknown name."""
    consumer = consumers()[name]
    host = facts.name if isinstance(facts.name, str) else "this host"
    return ConsumerNeeds(
        consumer,
        host,
        tuple(_installed(consumer, facts)),
        tuple(_JUDGES[need.kind](facts, need) for need in consumer.needs),
    )


def _installed(consumer: Consumer, facts: HostFacts) -> Iterator[str]:
    for path in if_known(facts.userland.python_packages, ()):
        if posixpath.basename(path).split("-")[0].lower() in consumer.packages:
            yield path


def _variable(facts: HostFacts, need: Need) -> JudgedNeed:
    """The variable of this host's programs, and of those that run now."""
    variable = facts.environment.variable(need.variable)
    lines: List[str] = []
    if isinstance(variable, Variable) and variable.value.upper() in need.refused:
        lines.append(f"{variable.place}: {variable.line}")
    for program in if_known(facts.processes.programs, ()):
        value = if_known(program.variables, {}).get(need.variable, "")
        if value.upper() in need.refused:
            lines.append(f"{program.label}: {need.variable}={value}")
    if lines:
        return JudgedNeed(need, False, tuple(lines))
    if isinstance(variable, Unknown):
        return JudgedNeed(need, variable)
    return JudgedNeed(need, True, (f"{variable.place}: {variable.line}",) if variable else ("it isn't set",))


def _config(facts: HostFacts, need: Need) -> JudgedNeed:
    """By default, and for every program that runs now."""
    verdict = weigh(config.direct(facts, None))
    lines = [quote for cause in verdict.causes for quote in (cause.what, *cause.evidence)]
    for each in if_known(processes.programs(facts), ()):
        lines += [f"{each.program.label}: {cause.what}" for cause in each.causes]
    return JudgedNeed(need, False if lines else verdict.holds, tuple(lines))


def _library(facts: HostFacts, need: Need) -> JudgedNeed:
    loaded, packages = config.library(facts), facts.userland.python_packages
    wheels = ((path, WHEEL.fullmatch(posixpath.basename(path))) for path in if_known(packages, ()))
    versions = {path: wheel.group(2) for path, wheel in wheels if wheel}
    lines = [f"{path}: libcufile {version}" for path, version in versions.items()]
    lines += [f"the loader takes libcufile {loaded}"] if isinstance(loaded, str) else []
    if isinstance(loaded, str) and not all((version + ".").startswith(loaded + ".") for version in versions.values()):
        return JudgedNeed(need, False, tuple(lines))
    if isinstance(packages, Unknown):
        return JudgedNeed(need, packages, tuple(lines))
    if len(set(versions.values())) > 1:
        return JudgedNeed(need, False, tuple(lines))
    if isinstance(loaded, Unknown):
        return JudgedNeed(need, loaded, tuple(lines))
    return JudgedNeed(need, True, tuple(lines)) if lines else JudgedNeed(need, False, ("there is no libcufile",))


def _mechanism(facts: HostFacts, need: Need) -> JudgedNeed:
    chosen = [mechanism for mechanism in mechanisms(facts) if mechanism.name in need.any_of]
    usable = next((mechanism for mechanism in chosen if mechanism.usable is True), None)
    if usable is not None:
        return JudgedNeed(need, True, (f"{usable.title} is usable",))
    lines = tuple(f"{mechanism.title}: {why}" for mechanism in chosen for why in mechanism.why)
    unknown = [mechanism.usable for mechanism in chosen if isinstance(mechanism.usable, Unknown)]
    return JudgedNeed(need, unknown[0] if unknown else False, lines)


def _udev(facts: HostFacts, need: Need) -> JudgedNeed:
    entries = facts.environment.udev
    if isinstance(entries, Unknown):
        return JudgedNeed(need, entries)
    return JudgedNeed(need, bool(entries), ("/run/udev: " + (", ".join(entries) or "empty, or not there"),))


_JUDGES: Dict[str, Callable[[HostFacts, Need], JudgedNeed]] = {
    table.VARIABLE: _variable,
    table.CONFIG: _config,
    table.LIBRARY: _library,
    table.MECHANISM: _mechanism,
    table.UDEV: _udev,
    table.ADVICE: lambda _facts, need: JudgedNeed(need, None),
}


def as_document(answer: ConsumerNeeds) -> Dict[str, Any]:
    """The needs as JSON values; see docs/consumers.md."""
    consumer = answer.consumer
    return {
        "version": VERSION,
        "host": answer.host,
        "consumer": consumer.name,
        "title": consumer.title,
        "does": consumer.does,
        "installed": list(answer.installed),
        "needs": [_row(need) for need in answer.needs],
    }


def _row(answer: JudgedNeed) -> Dict[str, Any]:
    shared = {name: getattr(answer.need, name) for name in ("id", "kind", "what", "fix", "source")}
    return {**shared, "state": answer.state, "reason": answer.reason, "evidence": list(answer.evidence)}


def render(answer: ConsumerNeeds) -> str:
    consumer = answer.consumer
    lines = wrapped(f"{consumer.title} on {answer.host}: {consumer.does}", "")
    lines += wrapped("installed: " + (", ".join(answer.installed) or "no Python package of it was seen"), "  ")
    for each in answer.needs:
        lines += ["", *wrapped(f"{each.need.what} [{each.need.id}]", f"{each.state.upper():<8} ")]
        for text in (each.reason, *each.evidence):
            lines += wrapped(text, "         seen ")
        if each.holds is not True:
            lines += wrapped(each.need.fix, "         do   ")
        lines += wrapped(each.need.source, "         read ")
    return "\n".join(lines)
