"""What an administrator who has just logged in to a host wants to know, on one screen.

It judges nothing itself: its conditions are those of explain, of the compatibility rules and of watch.  docs/doctor.md
has the JSON object.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .explain import ExplainedMount, Explanation, explain, path_row, wrapped
from .facts import HostFacts, Unknown, as_dict
from .facts.unknown import Maybe, known, or_else
from .io.wording import first_few, joined
from .libcufile.counters import NOT_COUNTED
from .model.finding import FAIL, PASS, UNKNOWN, WORDS
from .subjects import gpu, libcufile, modules, stack
from .subjects.condition import BROKEN, DIRECT, Cause, Condition, Verdict, weigh
from .watch.document import amount, document, reasons, total
from .watch.look import Watcher

VERSION = 1
#: Seconds in which processes count, at least.
INTERVAL = 2.0
#: Mount points that hold the system, homes or containers; they aren't judged where there are others.
SYSTEM = re.compile(r"/$|/(boot|efi|usr|var|tmp|home|root|opt|run|snap|nix|etc)(/|$)")
#: Lines of a list, so that all fits on a screen.
MOUNTS, FEW = 12, 4


class Diagnosis(NamedTuple):
    """``mounts`` are judged, ``others`` aren't; ``processes``: a document of watch, None for saved evidence."""

    explanation: Explanation
    parts: Tuple[Tuple[str, Maybe[Optional[str]]], ...]
    rules: stack.Judgement
    mounts: Tuple[ExplainedMount, ...]
    others: Tuple[str, ...]
    processes: Optional[Dict[str, Any]]
    #: of all conditions, the root cause first
    weighed: Verdict

    @property
    def verdict(self) -> str:
        """``pass``, ``fail`` or ``unknown``."""
        return UNKNOWN if isinstance(self.weighed.holds, Unknown) else PASS if self.weighed.holds else FAIL

    @property
    def why(self) -> str:
        """What the verdict is about, in one sentence."""
        if self.first:
            return self.first.what
        return next(iter(self.weighed.unseen), "nothing was found that keeps data off the direct path")

    @property
    def advice(self) -> str:
        """What to do first, also where there is no cause."""
        if self.first is not None:
            return self.first.fix
        if self.verdict == PASS:
            return f"prove it with a read through cuFile: gdsdeploy-host.pyz proof {self.mounts[0].mount.mount_point}"
        return "run this as root, or read what could not be seen"

    @property
    def first(self) -> Optional[Cause]:
        """What to do first; None: nothing is known to stand in the way."""
        return next(iter(self.weighed.shown), None)


def examine(collect: Any) -> Tuple[HostFacts, Dict[str, Any]]:
    """The facts of this machine that ``collect`` gives, and what its processes did meanwhile, as watch says it."""
    watcher = Watcher()
    watcher.look()
    begin = time.monotonic()
    facts = collect()
    time.sleep(max(0.0, INTERVAL - (time.monotonic() - begin)))
    return facts, document(watcher.look())


def diagnose(facts: HostFacts, processes: Optional[Dict[str, Any]] = None) -> Diagnosis:
    """Never raises for what the host is."""
    explanation = explain(facts, stack.stack(facts))
    judged = tuple(one for one in explanation.mounts if not SYSTEM.match(one.mount.mount_point)) or explanation.mounts
    rules = stack.judge(facts, stack.mode(facts), "none", facts.rules)
    conditions = [gpu.present(facts), modules.loaded(facts, facts.driver.module)]
    conditions += [Condition(False, cause) for cause in stack.causes(rules, rules.forbidden)]
    # What makes every call fail comes before what costs the direct path alone.
    conditions += map(_of_mount, sorted(judged, key=lambda one: one.path.path != BROKEN))
    conditions += [Condition(Unknown("no mount that may hold data is known"))] * (not judged)
    conditions += [Condition(Unknown(f"rule {name}: {reason}")) for name, reason in rules.undecided.items()]
    conditions += map(_of_process, _bouncing(processes))
    conditions += [Condition(Unknown(reason)) for reason in _missing(processes)]
    return Diagnosis(
        explanation=explanation,
        parts=(*stack.parts(facts), ("GDS", known(lambda: _gds(facts))), *_devices(facts)),
        rules=rules,
        mounts=judged,
        others=tuple(one.mount.mount_point for one in explanation.mounts if one not in judged),
        processes=processes,
        weighed=weigh(conditions),
    )


def _gds(facts: HostFacts) -> Optional[str]:
    """GDS has the first two numbers of its libcufile."""
    release = libcufile.release(facts)
    return release and ".".join(release.split(".")[:2])


def _devices(facts: HostFacts) -> Iterator[Tuple[str, Maybe[Optional[str]]]]:
    yield "OFED, DOCA", known(lambda: stack.ofed(facts))
    models = Counter(or_else(model, "of unknown model") for model in facts.driver.models.values())
    words = ", ".join(f"{count} × {model}" for model, count in sorted(models.items()))
    yield "GPUs", known(lambda: words or (str(len(facts.pci.gpus)) if facts.pci.gpus else None))


def _of_mount(explained: ExplainedMount) -> Condition:
    """Whether I/O on a mount takes a direct path."""
    path = explained.path
    if isinstance(path.path, Unknown):
        return Condition(path.path, next(iter((*path.causes, *path.suspects)), None), suspect=True)
    return Condition(path.path in DIRECT, next(iter(path.causes), None))


def _bouncing(processes: Optional[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Rows of watch about processes whose bytes went through CPU memory just now."""
    return [row for row in (processes or {}).get("processes", ()) if row["path"] != NOT_COUNTED and row["bounce_rate"]]


def _of_process(row: Dict[str, Any]) -> Condition:
    what = f"process {row['pid']} ({row['program']}) moves {amount(row['bounce_rate'])}/s through CPU memory"
    fix = row["fix"] or f"read why: gdsdeploy explain {row['pid']}"
    return Condition(False, Cause("process.bounces", what, fix, (f"watch: {row['words']}",)))


def _missing(processes: Optional[Dict[str, Any]]) -> List[str]:
    """Why processes may be missing."""
    incomplete = (processes or {}).get("incomplete")
    return [incomplete] if incomplete else []


def as_document(diagnosis: Diagnosis) -> Dict[str, Any]:
    """The diagnosis as JSON values."""
    rules, first = diagnosis.rules, diagnosis.first
    return {
        "version": VERSION,
        "host": diagnosis.explanation.host,
        "collected_at": diagnosis.explanation.collected_at,
        "verdict": diagnosis.verdict,
        "first": as_dict(first) if first else None,
        "stack": [
            {
                "part": part,
                "version": or_else(version, None),
                "unknown": version.reason if isinstance(version, Unknown) else "",
            }
            for part, version in diagnosis.parts
        ],
        "rules": [
            {"id": name, "says": kind, "what": words, "fixed": rules.rules[name].fixed}
            for kind, name, words in _spoken(rules)
        ],
        "undecided": dict(rules.undecided),
        "mounts": [{"mount": one.mount.mount_point, **path_row(one.path)} for one in diagnosis.mounts],
        "not_judged": list(diagnosis.others),
        "processes": None if diagnosis.processes is None else diagnosis.processes["processes"],
        "unseen": _unseen(diagnosis),
    }


def _spoken(rules: stack.Judgement) -> List[Tuple[str, str, str]]:
    """(``forbidden`` or ``warning``, rule, what it says)."""
    forbidden = [("forbidden", name, words) for name, words in rules.forbidden.items()]
    return forbidden + [("warning", name, words) for name, words in rules.warnings.items()]


def _unseen(diagnosis: Diagnosis) -> List[str]:
    return list(dict.fromkeys((*diagnosis.explanation.unseen, *_missing(diagnosis.processes))))


def render(diagnosis: Diagnosis) -> str:
    """Lines of at most explain.WIDTH characters, except for longer words."""
    lines = wrapped(f"{diagnosis.explanation.host}: {WORDS[diagnosis.verdict]}: {diagnosis.why}", "")
    lines += wrapped(f"do first: {diagnosis.advice}", "  ")
    lines += ["", *(row for part, version in diagnosis.parts for row in wrapped(_version(version), f"  {part:<12}"))]
    lines += ["", "Which rules about versions speak", *_rules(diagnosis.rules)]
    lines += ["", "Path of each mount", *_mounts(diagnosis)]
    lines += ["", "Processes", *_processes(diagnosis.processes)]
    unseen = _unseen(diagnosis)
    if unseen:
        lines += ["", "What could not be seen", *_few(unseen)]
    return joined(lines)


def _version(version: Maybe[Optional[str]]) -> str:
    return f"not known: {version.reason}" if isinstance(version, Unknown) else version or "none"


def _rules(rules: stack.Judgement) -> Iterator[str]:
    spoken = _spoken(rules)
    for kind, name, words in spoken:
        fixed = rules.rules[name].fixed
        yield from wrapped(f"{kind}: {words} [{name}]" + (f" Fixed: {fixed}" if fixed else ""), "  ")
    if not spoken:
        yield "  none speaks against what runs"
    why: Dict[str, List[str]] = {}
    for name, reason in rules.undecided.items():
        why.setdefault(reason, []).append(name)
    for reason, names in why.items():
        yield from wrapped(f"not judged: {first_few(names, FEW)}: {reason}", "  ")


def _mounts(diagnosis: Diagnosis) -> Iterator[str]:
    for explained in diagnosis.mounts[:MOUNTS]:
        path, mount = explained.path, explained.mount
        name = "NOT PROVEN" if isinstance(path.path, Unknown) else path.path.upper()
        cause = next(iter((*path.causes, *path.suspects)), None)
        reason = path.path.reason if isinstance(path.path, Unknown) else ""
        words = f": {cause.what} [{cause.id}]" if cause and path.path not in DIRECT else f": {reason}" if reason else ""
        yield from wrapped(f"{mount.mount_point} ({mount.filesystem})  {name}{words}", "  ")
    if not diagnosis.mounts:
        yield "  no mount that may hold data is known"
    if len(diagnosis.mounts) > MOUNTS:
        yield f"  and {len(diagnosis.mounts) - MOUNTS} more: gdsdeploy explain"
    if diagnosis.others:
        others = first_few(diagnosis.others, FEW)
        yield from wrapped(f"not judged, because they hold the system: {others}; see gdsdeploy explain MOUNT", "  ")


def _processes(processes: Optional[Dict[str, Any]]) -> Iterator[str]:
    if processes is None:
        yield "  not looked at, because the evidence was saved"
        return
    rows = processes["processes"]
    yield from wrapped(total(rows), "  ")
    yield from _few(
        [f"{condition.cause.what}" for condition in map(_of_process, _bouncing(processes)) if condition.cause]
    )
    for row in reasons(rows):
        yield from wrapped(row.strip(), "  ")


def _few(texts: Sequence[str]) -> Iterator[str]:
    for text in texts[:FEW]:
        yield from wrapped(text, "  - ")
    if len(texts) > FEW:
        yield f"  - and {len(texts) - FEW} more"
