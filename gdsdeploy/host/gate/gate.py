"""The boot gate: validates this host after each boot, publishes the verdict for schedulers, and keeps a bad host out.

It is closed at first: only a verdict of this boot opens it.  /run has this boot's verdict, and /var/lib the last one.

The gate's verdict in Prometheus' text format, for node_exporter's textfile collector: see docs/prometheus.md.

The labels of a series say what it is about.  They never say how it went, so that a host keeps its series for as long as
it has its stack.

Slurm's side of the gate: the node of this host is drained while the gate is closed, and resumed when it opens.

The gate only cancels its own drains: another reason stays.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ..io import atomic
from ..io.prometheus import Sample, folders, text
from ..io.scontrol import SlurmError, node_name, scontrol
from ..io.wording import first_few
from ..model import schema
from ..model.expectation import Expectation, from_json as expectation_from
from ..model.finding import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    PATHS,
    UNKNOWN,
    VERDICTS,
    WAIVED,
    Finding,
    Waiver,
    apply,
    today,
    worst,
)
from ..rootdir import read_text
from ..secure_boot.firmware import measured_boot

#: Where provision leaves the gate's settings.
PATH = "/etc/gdsdeploy/gate.json"
RUN_FOLDER = "/run/gdsdeploy"
STATE_FOLDER = "/var/lib/gdsdeploy"
RECORD = "gate.json"
#: In RUN_FOLDER: locked by flock(2) while the gate works.
LOCK = "gate.lock"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
_STAT = "/proc/stat"
OPEN, CLOSED = "open", "closed"
#: Checks that a one-line reason names; the record has all of them.
NAMED = 3
VERSION = 1


@dataclass(frozen=True)
class Settings:
    """How the gate of a host works."""

    #: time limit of the collection of evidence; what is missing then is undecided
    seconds: float = 30.0
    #: a file that is there while the gate is open; empty: none
    file: str = RUN_FOLDER + "/healthy"
    #: whether Slurm's node of this host is drained and resumed
    slurm: bool = False
    #: folder of node_exporter's textfile collector; empty: the usual ones where they are
    metrics: str = ""
    #: whether each record has PCR 7 and the state of Secure Boot
    measured_boot: bool = False
    waivers: List[Waiver] = field(default_factory=list)
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def settings_from(text: str) -> Settings:
    """Read settings; raises ValueError that says what is wrong with them."""
    value: Any = json.loads(text)
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise ValueError(f"the gate's settings are a JSON object of version {VERSION}")
    return schema.read(Settings, value, "settings")


def settings_or_default(text: str) -> Settings:
    """The settings; the default ones where they can't be read, of which the verdict says so."""
    try:
        return settings_from(text)
    except (ValueError, TypeError):
        return Settings()


@dataclass(frozen=True)
class Record:
    """What the gate found in one boot; raises ValueError for what is no such record, also in its findings."""

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
    #: digest of the expectation and the gate's settings
    basis: str = ""
    stack: List[List[str]] = field(default_factory=list)
    findings: List[Finding] = field(default_factory=list)
    gaps: List[str] = field(default_factory=list)
    #: when this boot began, in seconds since 1970 by the host's clock; 0: not known
    boot_time: int = 0
    #: of this boot, as secure_boot.measured has it; empty: not asked for
    measured: Dict[str, str] = field(default_factory=dict)
    #: files beside the record that show the verdict
    outputs: List[str] = field(default_factory=list)
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION or self.state not in (OPEN, CLOSED):
            raise ValueError(f"this is not a record of the gate of version {VERSION}")
        rows: List[Any] = self.findings
        object.__setattr__(self, "findings", [row if isinstance(row, Finding) else Finding(**row) for row in rows])

    def document(self) -> Dict[str, Any]:
        """The record as JSON has it."""
        return {**vars(self), "findings": [finding.as_dict() for finding in self.findings]}

    def to_json(self) -> str:
        return json.dumps(self.document(), indent=2, sort_keys=True) + "\n"


def record_from(text: str) -> Record:
    """The inverse of :meth:`Record.to_json`; raises ValueError."""
    try:
        return Record(**json.loads(text))
    except TypeError as error:
        raise ValueError(f"this is not a record of the gate: {error}") from None


def boot_id(path: str = BOOT_ID) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def boot_time(path: str = _STAT) -> int:
    """When the running boot began, as node_exporter's node_boot_time_seconds has it; 0 where that can't be read.

    It moves when the clock is set.
    """
    match = re.search(r"^btime ([0-9]{1,18})$", read_text("/", path), re.MULTILINE)
    return int(match.group(1)) if match else 0


def basis(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8")).hexdigest()


@contextlib.contextmanager
def turn(folder: str, patience: float) -> Iterator[None]:
    """Run the block after other runs of the gate, or once another has taken ``patience`` seconds.

    Without a file that can be locked, it runs at once: two verdicts are better than none.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock = stack.enter_context(os.fdopen(atomic.open_descriptor(os.path.join(folder, LOCK)), "r+"))
            _lock(lock.fileno(), time.monotonic() + patience)
        yield


def _lock(descriptor: int, end: float) -> None:
    """Lock, and try it until ``end``; raises OSError."""
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        time.sleep(0.2)


def judge(expectation: str, settings: str) -> Record:
    """Collect the evidence, run every check and decide; never raises: an error closes the gate.

    expectation, settings: the texts of the two files.
    """
    begin = time.monotonic()
    boot, digest = boot_id(), basis(expectation, settings)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        verdict = _verdict(expectation_from(expectation), settings_from(settings))
    except Exception as error:  # noqa: BLE001 - whatever it is, the gate has to close and to say so
        reason = f"the gate itself failed: {traceback.format_exception_only(type(error), error)[-1].strip()}"
        verdict = {"state": CLOSED, "reason": reason, "verdict": UNKNOWN}
    verdict["measured"] = measured_boot() if settings_or_default(settings).measured_boot else {}
    seconds = round(time.monotonic() - begin, 3)
    return Record(boot_id=boot, when=when, seconds=seconds, basis=digest, boot_time=boot_time(), **verdict)


def _verdict(expectation: Expectation, settings: Settings) -> Dict[str, Any]:
    from .. import checks, facts
    from ..evidence import collect, request_for

    request = request_for(expectation)._replace(fresh=True)
    host_facts = facts.facts_from(collect(request, total=settings.seconds))
    findings = apply(checks.run(host_facts, expectation), settings.waivers, today())
    document = checks.document(expectation, host_facts, findings)
    state, reason = decide(findings)
    keys = ("verdict", "host", "profile", "lock_digest", "stack", "findings", "gaps")
    return {"state": state, "reason": reason, **{key: document[key] for key in keys}}


def decide(findings: Sequence[Finding]) -> Tuple[str, str]:
    """(state, reason); pure.  An undecided check keeps the gate closed."""
    if all(finding.verdict == NOT_APPLICABLE for finding in findings):
        return CLOSED, "no check applies to this host"
    for verdict, words in ((FAIL, "failed"), (UNKNOWN, "could not be decided")):
        checks = [finding.check for finding in findings if finding.verdict == verdict]
        if checks:
            return CLOSED, f"{first_few(checks, NAMED)} {words}"
    passed, waived = (sum(finding.verdict == verdict for finding in findings) for verdict in (PASS, WAIVED))
    return OPEN, f"{passed} checks passed{f', {waived} waived' if waived else ''}"


def publish(
    record: Record, settings: Settings, run: str = RUN_FOLDER, state: str = STATE_FOLDER
) -> Tuple[Record, List[str]]:
    """Write the verdict to everything that shows it: (the record as it counts, what could not be done, in words).

    What says that the gate is open goes first, the record before all else: removing needs no room.  An output that
    can't be written keeps no other from it.  A verdict that can't be kept is a closed one.
    """
    problems: List[str] = []

    def attempt(work: Callable[..., None], path: str, *content: str, **options: bool) -> bool:
        try:
            work(path, *content, **options)
        except OSError as error:
            problems.append(f"{path} cannot be {'written' if content else 'removed'}: {error}")
            return False
        return True

    is_open, place, earlier = record.state == OPEN, os.path.join(run, RECORD), last(run)
    metrics = [os.path.join(folder, FILE) for folder in folders(settings.metrics)]
    record = replace(record, outputs=[*filter(None, [settings.file]), *metrics])
    # Also where an earlier verdict had other settings.
    stale = [path for path in (earlier.outputs if earlier else []) if not is_open or path not in record.outputs]
    for path in dict.fromkeys(stale if is_open else [place, *stale, *record.outputs]):
        attempt(atomic.remove, path)
    if not attempt(atomic.write, place, record.to_json()) and is_open:
        return publish(replace(record, state=CLOSED, verdict=UNKNOWN, reason=problems[-1]), settings, run, state)
    attempt(atomic.write, os.path.join(state, RECORD), record.to_json())
    if is_open and settings.file:
        attempt(atomic.write, settings.file, f"{record.when} {record.reason}\n")
    for path in metrics:
        attempt(atomic.write, path, render(record), shared=True)
    return record, problems


def last(folder: str = STATE_FOLDER) -> Optional[Record]:
    """The record in ``folder``, of whatever boot; None without a readable one.  For verdicts: :func:`current`."""
    try:
        with open(os.path.join(folder, RECORD), encoding="utf-8") as file:
            return record_from(file.read())
    except (OSError, ValueError):
        return None


def current(run: str = RUN_FOLDER, state: str = "") -> Tuple[Optional[Record], str]:
    """The verdict on this boot as it counts now, or why there is none; every reader on the host asks here.

    state: the folder whose record says when the last verdict was; empty: none.
    """
    record, reason = of_boot(boot_id(), last(run), last(state) if state else None)
    return (_as_of_today(record) if record else None), reason


def of_boot(boot: str, record: Optional[Record], earlier: Optional[Record]) -> Tuple[Optional[Record], str]:
    """The verdict on that boot, or why there is none.  Only ``record``, of RUN_FOLDER, is one; earlier: the kept one.

    The latter may be what a closing verdict couldn't replace.
    """
    if record is not None and record.boot_id == boot:
        return record, ""
    record = record or earlier
    if record is None:
        return None, "the gate has not judged this host yet"
    verdict = f"{record.state} of {record.when}"
    if record.boot_id == boot:
        return None, f"the gate's verdict on this boot, {verdict}, is no longer in {RUN_FOLDER}"
    return None, f"the gate has not judged this boot; its last verdict, {verdict}, is of an earlier one"


def ends(record: Record) -> int:
    """When the first waiver of an open gate ends, in seconds since 1970; 0: it stays open."""
    days = [finding.waiver["until"] for finding in record.findings if finding.verdict == WAIVED and finding.waiver]
    return calendar.timegm(time.strptime(min(days), "%Y-%m-%d")) + 86400 if days and record.state == OPEN else 0


def _as_of_today(record: Record) -> Record:
    """The record as it counts today: a waiver may have ended since the boot."""
    findings = apply(record.findings, (), today())
    if findings == record.findings:
        return record
    state, reason = decide(findings)
    return replace(record, state=state, reason=reason, verdict=worst(findings), findings=findings)


FILE = "gdsdeploy.prom"

#: Every series that a host exports, with its help.
HELP = {
    "gdsdeploy_gate_open": "Whether this host may take work.",
    "gdsdeploy_gate_open_until_seconds": "When a waiver ends that keeps the gate open; +Inf: none does.",
    "gdsdeploy_gate_timestamp_seconds": "When the gate judged this host.",
    "gdsdeploy_gate_boot_time_seconds": (
        "When the boot began that was judged; node_boot_time_seconds differs in another boot."
    ),
    "gdsdeploy_gate_duration_seconds": "How long that took.",
    "gdsdeploy_gate_info": "What was judged, and against what.",
    "gdsdeploy_gate_checks": "Number of checks by verdict.",
    "gdsdeploy_check_verdict": "0 the check passed, 1 it is waived, 2 it could not tell, 3 it failed.",
    "gdsdeploy_mount_path": "1 for the path that I/O on a mount takes, 0 for the others.",
}
#: The value of gdsdeploy_check_verdict: the larger, the worse.  A check that is not applicable has no sample;
#: gdsdeploy_gate_checks counts it.
CODES: Dict[str, int] = {PASS: 0, WAIVED: 1, UNKNOWN: 2, FAIL: 3}
#: The value of gdsdeploy_mount_path's label ``path`` where no evidence proves a path.
UNPROVEN = "unknown"


def render(record: Record) -> str:
    """Every metric with its help; pure."""
    samples = _samples(record)
    return text((name, words, samples[name]) for name, words in HELP.items())


def _samples(record: Record) -> Dict[str, Sequence[Sample]]:
    findings = record.findings
    about = [("boot_id", record.boot_id), ("profile", record.profile), ("lock", record.lock_digest)]
    about += [(name.replace("-", "_"), value) for name, value in record.stack]
    until = str(ends(record) or "+Inf") if record.state == OPEN else "0"
    moment = calendar.timegm(time.strptime(record.when, "%Y-%m-%dT%H:%M:%SZ"))
    counts = Counter(finding.verdict for finding in findings)
    results: List[Sample] = []
    paths: List[Sample] = []
    for finding in findings:
        check, _, subject = finding.check.partition(":")
        if finding.verdict == NOT_APPLICABLE:
            continue
        results.append(([("check", check), ("subject", subject)], str(CODES[finding.verdict])))
        if check == "storage.path" and subject:
            path = _path(finding)
            states = (*PATHS, UNPROVEN)
            paths += [([("mount", subject), ("path", each)], str(int(each == path))) for each in states]
    return {
        "gdsdeploy_gate_open": [([], str(int(record.state == OPEN)))],
        "gdsdeploy_gate_open_until_seconds": [([], until)],
        "gdsdeploy_gate_timestamp_seconds": [([], str(moment))],
        "gdsdeploy_gate_boot_time_seconds": [([], str(record.boot_time))],
        "gdsdeploy_gate_duration_seconds": [([], str(record.seconds))],
        "gdsdeploy_gate_info": [(about, "1")],
        "gdsdeploy_gate_checks": [([("verdict", each)], str(counts[each])) for each in VERDICTS],
        "gdsdeploy_check_verdict": results,
        "gdsdeploy_mount_path": paths,
    }


def _path(finding: Finding) -> str:
    """The path that is proven: that of an undecided check is only expected."""
    verdict = finding.waiver["was"] if finding.verdict == WAIVED and finding.waiver else finding.verdict
    return finding.path if finding.path and verdict != UNKNOWN else UNPROVEN


#: How the gate's reasons begin.
OURS = "gdsdeploy: "
#: Characters of a reason; it is shown in one line of sinfo.
REASON_LENGTH = 200
#: Separates the gate's reason from that of a node that was down already.
WAS = "; was: "
#: What Slurm adds to the reason of a node that it reboots.
REBOOTED = re.compile(r"( : reboot (requested|issued|complete))+$")
#: Reasons that Slurm itself gives, and that no longer hold once the host is back.
UNREACHABLE = re.compile(r"(Not responding|Node unexpectedly rebooted)")
#: States that don't end by themselves, as scontrol writes them.
DRAINED = {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"}


@dataclass(frozen=True)
class Node:
    """A node as Slurm's controller has it."""

    name: str
    #: e.g. {"IDLE", "DRAIN"}
    states: List[str]
    #: without who set it and when, and what Slurm added; empty: none
    reason: str


@dataclass(frozen=True)
class Step:
    """What to do with a node: ``argv`` for scontrol, empty for nothing; and that in words."""

    argv: List[str]
    says: str


def node_from(text: str) -> Node:
    """Read what ``scontrol --oneliner show node`` prints; raises SlurmError."""
    name = re.match(r"NodeName=(\S+)", text)
    state = re.search(r"\sState=(\S+)", text)
    # What a site has written elsewhere (Comment, Extra) may follow it.
    reason = re.search(r"\sReason=(.*?)(?: \[[^\[\]\s]*@[0-9-]+T[0-9:]+\]|\s*$)", text, re.DOTALL)
    if name is None or state is None:
        raise SlurmError(f"scontrol printed something else than a node: {text.strip()[:200]}")
    # Flags stand behind a +, marks such as * and ~ behind the state.
    states = [re.sub(r"[^A-Z_]", "", word) for word in state.group(1).split("+")]
    return Node(name.group(1), states, REBOOTED.sub("", reason.group(1)) if reason else "")


def drain_argv(reason: str, earlier: str) -> List[str]:
    """What of ``scontrol update`` drains a node; ``earlier``: the reason to restore when the drain ends."""
    return ["State=DRAIN", "Reason=" + reason[:REASON_LENGTH] + (WAS + earlier if earlier else "")]


def undrain_argv(node: Node, earlier: str) -> List[str]:
    """What of ``scontrol update`` ends our drain; ``earlier``: why the node was down before, empty: it wasn't."""
    down = "DOWN" in node.states
    if down and not earlier:
        # Slurm took it down because it rebooted; UNDRAIN would leave it so.
        return ["State=RESUME"]
    if earlier and not down and not UNREACHABLE.match(earlier):
        # Slurm took it up by itself, although an administrator had it down.
        return ["State=DOWN", "Reason=" + earlier]
    # Unlike RESUME it leaves a node down that was down for another reason.
    return ["State=UNDRAIN", *(["Reason=" + earlier] if earlier else [])]


def step(node: Node, state: str, reason: str) -> Step:
    """How the node gets into the state that the gate decided; pure."""
    drained, ours = not DRAINED.isdisjoint(node.states), node.reason.startswith(OURS)
    theirs = node.reason.partition(WAS)[2] if ours else node.reason
    down = "DOWN" in node.states
    if state == OPEN:
        if ours and (drained or (down and not theirs)):
            return Step(undrain_argv(node, theirs), f"{node.name} is resumed")
        if drained or down:
            return Step([], f"{node.name} stays out: {theirs or 'no reason is given'}")
        return Step([], f"{node.name} is in already")
    if drained and not ours:
        return Step([], f"{node.name} is out already, and keeps its reason: {theirs or 'none'}")
    # Slurm itself takes a node that is only down back as soon as it answers.
    argv = drain_argv(OURS + reason, theirs if down or ours else "")
    words = argv[1][len("Reason=") :]
    if drained and node.reason == words:
        return Step([], f"{node.name} is drained already")
    return Step(argv, f"{node.name} is drained: {words}")


def apply_step(state: str, reason: str, name: str = "") -> str:
    """Drain or resume the node of this host; returns the action in words.

    name: of the node, where it is known.  Raises SlurmError.
    """
    node = node_from(scontrol(["--oneliner", "show", "node", name or node_name()]))
    needed = step(node, state, reason)
    if needed.argv:
        scontrol(["update", "NodeName=" + node.name, *needed.argv])
    return needed.says
