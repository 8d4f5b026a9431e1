"""The boot gate: judges this host by itself after each boot, says so where schedulers look, keeps it out if it fails.

Closed is what it starts from: only a verdict of this boot opens it.  The verdict is kept in two places: in /run for
this boot, which a reboot takes away, and in /var/lib for whoever asks later what the last one was.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import traceback
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..io import atomic
from ..model import waiver
from ..model.expectation import Expectation
from ..model.expectation import from_json as expectation_from
from ..model.finding import FAIL, PASS, UNKNOWN, WAIVED, Finding, finding_from, worst

#: Where provision leaves the gate's settings.
PATH = "/etc/gdsdeploy/gate.json"
RUN_FOLDER = "/run/gdsdeploy"
STATE_FOLDER = "/var/lib/gdsdeploy"
RECORD = "gate.json"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
OPEN, CLOSED = "open", "closed"
#: Checks that a one-line reason names; the record has all of them.
NAMED = 3
VERSION = 1


@dataclass(frozen=True)
class Settings:
    """How the gate of a host works."""

    #: what the collection of evidence may take; what is not there by then could not be told
    seconds: float = 30.0
    #: a file that is there while the gate is open; empty: none
    file: str = RUN_FOLDER + "/healthy"
    #: whether Slurm's node of this host is drained and resumed
    slurm: bool = False
    #: folder of node_exporter's textfile collector; empty: the usual ones where they are
    metrics: str = ""
    #: as waiver.Waiver has them
    waivers: List[Dict[str, str]] = field(default_factory=list)
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    def accepted(self) -> List[waiver.Waiver]:
        """The waivers; raises ValueError."""
        return [waiver.waiver_from(item) for item in self.waivers]


def settings_from(text: str) -> Settings:
    """Read settings; raises ValueError that says what is wrong with them."""
    value: Any = json.loads(text)
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise ValueError(f"the gate's settings are a JSON object of version {VERSION}")
    surplus = sorted(set(value) - {item.name for item in fields(Settings)})
    if surplus:
        raise ValueError("unknown keys: {}".format(", ".join(surplus)))
    made = Settings(**value)
    made.accepted()
    return made


@dataclass(frozen=True)
class Record:
    """What the gate found in one boot."""

    state: str
    #: one line: why
    reason: str
    verdict: str
    boot_id: str
    #: RFC 3339, UTC, and seconds of the whole run
    when: str
    seconds: float
    host: str = ""
    profile: str = ""
    lock_digest: str = ""
    #: digest of what this host was held against: its expectation and the gate's settings
    basis: str = ""
    stack: List[List[str]] = field(default_factory=list)
    findings: List[Dict[str, Any]] = field(default_factory=list)
    gaps: List[str] = field(default_factory=list)
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    def judged(self) -> List[Finding]:
        return [finding_from(item) for item in self.findings]


def record_from(text: str) -> Record:
    """The inverse of :meth:`Record.to_json`; raises ValueError."""
    return record_of(json.loads(text))


def record_of(value: Any) -> Record:
    """The record in a JSON object; raises ValueError."""
    try:
        found = Record(**value)
        found.judged()
    except TypeError as error:
        raise ValueError(f"this is no record of the gate: {error}") from None
    if found.version != VERSION or found.state not in (OPEN, CLOSED):
        raise ValueError(f"this is no record of the gate of version {VERSION}")
    return found


def boot_id(path: str = BOOT_ID) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def basis(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8")).hexdigest()


def judge(expectation: str, settings: str) -> Record:
    """Collect the evidence, run every check and decide; never raises: what goes wrong closes the gate.

    expectation, settings: the texts of the two files.
    """
    begin = time.monotonic()
    boot, digest = boot_id(), basis(expectation, settings)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        made = _judged(expectation_from(expectation), settings_from(settings))
    except Exception as error:  # noqa: BLE001 - whatever it is, the gate has to close and to say so
        reason = f"the gate itself failed: {traceback.format_exception_only(type(error), error)[-1].strip()}"
        made = {"state": CLOSED, "reason": reason, "verdict": UNKNOWN}
    return Record(boot_id=boot, when=when, seconds=round(time.monotonic() - begin, 3), basis=digest, **made)


def _judged(expectation: Expectation, settings: Settings) -> Dict[str, Any]:
    from .. import checks, facts
    from ..checks import report
    from ..evidence import collect, wanted_by

    found = facts.facts_from(collect(wanted_by(expectation), total=settings.seconds))
    findings = waiver.apply(checks.run(found, expectation), settings.accepted(), waiver.today())
    document = report.document(expectation, found, findings)
    state, reason = decide(findings)
    return {
        "state": state,
        "reason": reason,
        **{name: document[name] for name in ("verdict", "host", "profile", "lock_digest", "stack", "findings", "gaps")},
    }


def decide(findings: Sequence[Finding]) -> Tuple[str, str]:
    """(state, reason); pure.  What could not be told does not open the gate: a node has to earn its way back."""
    if not findings:
        return CLOSED, "no check applies to this host"
    for verdict, words in ((FAIL, "failed"), (UNKNOWN, "could not be decided")):
        named = [item.check for item in findings if item.verdict == verdict]
        if named:
            more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
            return CLOSED, "{}{} {}".format(", ".join(named[:NAMED]), more, words)
    waived = sum(item.verdict == WAIVED for item in findings)
    passed = sum(item.verdict == PASS for item in findings)
    return OPEN, "{} checks passed{}".format(passed, f", {waived} waived" if waived else "")


def keep(record: Record, settings: Settings, run: str = RUN_FOLDER, state: str = STATE_FOLDER) -> None:
    """Write the record down, and have the file of ``settings`` there or not; raises OSError."""
    if record.state == CLOSED and settings.file:
        atomic.remove(settings.file)
    for folder in (run, state):
        atomic.write(os.path.join(folder, RECORD), record.to_json())
    if record.state == OPEN and settings.file:
        atomic.write(settings.file, f"{record.when} {record.reason}\n")


def last(folder: str = STATE_FOLDER) -> Optional[Record]:
    """The record in ``folder``; None where there is none that can be read."""
    try:
        with open(os.path.join(folder, RECORD), encoding="utf-8") as file:
            return record_from(file.read())
    except (OSError, ValueError):
        return None


def of_this_boot(record: Optional[Record]) -> Tuple[Optional[Record], str]:
    """The record if it is of this boot, else why there is none: never judged, or judged in an earlier boot."""
    if record is None:
        return None, "the gate has not judged this host yet"
    if record.boot_id != boot_id():
        last = f"{record.state} of {record.when}"
        return None, f"the gate has not judged this boot; its last verdict, {last}, is of an earlier one"
    return _today(record), ""


def _today(record: Record) -> Record:
    """The record as it counts today: a host that runs for long may outlive a waiver."""
    findings = waiver.apply(record.judged(), (), waiver.today())
    if [item.as_dict() for item in findings] == record.findings:
        return record
    state, reason = decide(findings)
    rows = [item.as_dict() for item in findings]
    return replace(record, state=state, reason=reason, verdict=worst(findings), findings=rows)
