"""``gate run|again|show|slurm-health|npd`` of the program on the host.

Exit status of ``run`` and ``show``: 0 the gate is open; 30 a check failed; 31 none failed, but something could not be
told, or the gate has not judged this boot; 2 unusable arguments.  ``slurm-health``: 0 unless Slurm could not be told.
``npd`` is that of node-problem-detector's plugins: 0 fine, 1 a problem, 2 could not tell.
"""

from __future__ import annotations

import argparse
import sys
import syslog
import time
from typing import List, Optional, Tuple

from .. import process, trail
from ..gate import gate
from ..io.wording import line
from ..model.finding import FAIL, NOT_APPLICABLE, PASS, WAIVED
from ..paths import EXPECTATION
from .parsers import FAILED, PROGRAM, UNDECIDED, option, show

GATE = PROGRAM.group("gate", "judge this boot, and keep the host out of its scheduler unless it passes")
_RUN_FOLDER, _STATE_FOLDER, _EXPECTATION, _SETTINGS = (
    option(name, default=default, metavar=metavar, help="default: %(default)s")
    for name, default, metavar in (
        ("--run-folder", gate.RUN_FOLDER, "DIR"),
        ("--state-folder", gate.STATE_FOLDER, "DIR"),
        ("--expectation", EXPECTATION, "FILE"),
        ("--settings", gate.PATH, "FILE"),
    )
)

IDENT = "gds-gate"
#: Seconds that a run may take beyond the time limit of its evidence.
MARGIN = 30.0
#: The transient units of systemd that publish the verdict again, and seconds for systemd to take them.
AGAIN = "gds-gate-again"
SECONDS = 10.0
#: Seconds; of what comes later, systemd need not know.
LONGEST_BOOT = 10 * 366 * 86400
#: node-problem-detector cuts what a plugin says after so many bytes unless it is configured otherwise.
NPD_LENGTH = 80


@GATE.command(
    "run",
    "judge this host now, and publish the verdict",
    option("--once", action="store_true", help="skip it if the gate is open in this boot, by the same basis"),
    option("--quiet", action="store_true", help="report in the journal only"),
    *(_RUN_FOLDER, _STATE_FOLDER, _EXPECTATION, _SETTINGS),
    description=gate.__doc__,
)
def _run(arguments: argparse.Namespace) -> int:
    expectation, settings = _text(arguments.expectation), _text(arguments.settings) or gate.Settings().to_json()
    # Where they can't be read, the verdict goes to the default places.
    configured = gate.settings_or_default(settings)
    trail.note(desired=expectation.encode())
    lines: List[Tuple[int, str]] = []
    # The run that the boot has started often isn't at its end when a controller asks for the verdict.
    with gate.turn(arguments.run_folder, MARGIN + configured.seconds if arguments.once else 0.0):
        record = _open_record(arguments.run_folder, gate.basis(expectation, settings)) if arguments.once else None
        if record is None:
            record = gate.judge(expectation, settings)
            record, lines = _publish(record, configured, arguments)
    if arguments.json or not arguments.quiet:
        show(arguments, record.document(), (text for _, text in lines or [(0, _sentence(record))]))
    return _status(record)


def _open_record(folder: str, basis: str) -> Optional[gate.Record]:
    """The record by which the gate is open in this boot, if it is of the same basis."""
    record, _ = gate.current(folder)
    # A record without the time of its boot is of an older release, whose metrics say less.
    usable = record is not None and record.boot_time > 0 and record.state == gate.OPEN and record.basis == basis
    return record if usable else None


@GATE.command("again", "publish the verdict as it counts today", _RUN_FOLDER, _STATE_FOLDER, _SETTINGS, with_json=False)
def _again(arguments: argparse.Namespace) -> int:
    """A waiver of an open gate may have ended: what the host is isn't looked at again."""
    with gate.turn(arguments.run_folder, MARGIN):
        record, _ = gate.current(arguments.run_folder)
        if record is not None:
            _publish(record, gate.settings_or_default(_text(arguments.settings)), arguments)
    return 0


def _publish(
    record: gate.Record, settings: gate.Settings, arguments: argparse.Namespace
) -> Tuple[gate.Record, List[Tuple[int, str]]]:
    """The record as it counts, and the lines of the journal, once everything was told that shows the verdict."""
    record, problems = gate.publish(record, settings, arguments.run_folder, arguments.state_folder)
    lines = [(syslog.LOG_NOTICE if record.state == gate.OPEN else syslog.LOG_ERR, _sentence(record))]
    lines += [
        (syslog.LOG_ERR, f"{finding.check}: {finding.found}; expected {finding.expected}")
        for finding in record.findings
        if finding.verdict not in (PASS, WAIVED, NOT_APPLICABLE)
    ]
    lines += [(syslog.LOG_WARNING, f"evidence is incomplete: {gap}") for gap in record.gaps]
    lines += [(syslog.LOG_ERR, problem) for problem in problems]
    if 0 < gate.ends(record) < time.time() + LONGEST_BOOT:
        lines += _until(gate.ends(record))
    if settings.slurm:
        lines.append(_slurm(record.state, record.reason))
    syslog.openlog(IDENT)
    for priority, text in lines:
        syslog.syslog(priority, text)
    return record, lines


def _until(end: int) -> List[Tuple[int, str]]:
    """Have systemd publish the verdict again at this time; what can't be done, for the journal."""
    from ..apply.program import COMMAND

    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(end))
    # Of an earlier verdict.  A timer waits for the clock's synchronization unless it's told not to.
    process.run(["systemctl", "stop", f"{AGAIN}.timer"], SECONDS)
    timer = [f"--on-calendar={moment}", "--timer-property=AccuracySec=1s", "--timer-property=DefaultDependencies=no"]
    argv = ["systemd-run", "--quiet", f"--unit={AGAIN}", *timer, *COMMAND.split(), "gate", "again"]
    output = process.run(argv, SECONDS)
    if output.status == 0:
        return []
    words = f"a waiver ends at {moment}, and nothing will say so to readers of the file and the metrics"
    return [(syslog.LOG_WARNING, f"{words}: {output.failure()}")]


def _slurm(state: str, reason: str, name: str = "") -> Tuple[int, str]:
    from ..io.scontrol import SlurmError

    try:
        return syslog.LOG_NOTICE, f"slurm: {gate.apply_step(state, reason, name)}"
    except SlurmError as error:
        # At boot its controller may be unreachable; the health check that slurmd starts comes later.
        return syslog.LOG_WARNING, f"slurm was not told: {error}"


@GATE.command("show", "what the gate found in this boot", _RUN_FOLDER, _STATE_FOLDER)
def _show(arguments: argparse.Namespace) -> int:
    record, reason = gate.current(arguments.run_folder, arguments.state_folder)
    answer = {"version": gate.VERSION, "boot_id": gate.boot_id(), "reason": reason}
    lines = [_sentence(record) if record else reason]
    if record and record.measured:
        lines.append(f"measured: {', '.join(f'{name} {value}' for name, value in sorted(record.measured.items()))}")
    show(arguments, {**answer, "record": record.document() if record else None}, lines)
    return _status(record) if record else UNDECIDED


@GATE.command(
    "slurm-health",
    "Slurm's HealthCheckProgram: drain or resume this node",
    option("--node", default="", metavar="NAME", help="its name in Slurm (default: Slurm is asked)"),
    _RUN_FOLDER,
    with_json=False,
)
def _slurm_health(arguments: argparse.Namespace) -> int:
    record, reason = gate.current(arguments.run_folder)
    state = record.state if record else gate.CLOSED
    priority, text = _slurm(state, record.reason if record else reason, arguments.node)
    if priority == syslog.LOG_NOTICE:
        return 0
    print(line(text), file=sys.stderr)
    return 1


@GATE.command("npd", "a plugin of Kubernetes' node-problem-detector", _RUN_FOLDER, with_json=False)
def _npd(arguments: argparse.Namespace) -> int:
    record, reason = gate.current(arguments.run_folder)
    text = " ".join((record.reason if record else reason).split())
    # node-problem-detector counts bytes, and would cut inside a character.
    print(text.encode("utf-8", "replace")[:NPD_LENGTH].decode("utf-8", "ignore"))
    if record is None:
        return 2
    return 0 if record.state == gate.OPEN else 1 if record.verdict == FAIL else 2


def _sentence(record: gate.Record) -> str:
    return f"{record.state}: {record.reason} ({record.seconds:.1f} s)"


def _status(record: gate.Record) -> int:
    return 0 if record.state == gate.OPEN else FAILED if record.verdict == FAIL else UNDECIDED


def _text(path: str) -> str:
    """A file's text; empty without the file, which every reader refuses."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
