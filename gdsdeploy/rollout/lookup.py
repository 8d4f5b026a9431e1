"""The rollouts of a fleet, for a command: their journal, one of them, whether a process runs it, and how it ended."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from pathlib import Path

from gdsdeploy.errors import GdsError, Interrupted, RolloutFailed, RolloutRefused
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.model.events import Event
from gdsdeploy.model.rollout import Outcome
from gdsdeploy.rollout import journal, status, writerlock
from gdsdeploy.rollout.report.page import sentence
from gdsdeploy.rollout.status import Status


def journal_of(fleet: Path) -> Path | None:
    """The fleet's journal, or None where there was no rollout of it; raises FleetInvalid: no such fleet file."""
    path = journal.path_of(fleet)
    if path.exists():
        return path
    # With a journal nothing else reads the fleet file, and what reads it is half of what such a command imports.
    from gdsdeploy.fleetfile.load import load_fleet

    load_fleet(fleet)
    return None


def require_journal(fleet: Path) -> Path:
    """As ``journal_of``; raises RolloutRefused where there was no rollout."""
    path = journal_of(fleet)
    if path is None:
        raise RolloutRefused(
            f"there is no rollout of {fleet}",
            hint=f"Begin one: gdsdeploy rollout start {fleet}; its journal is {journal.path_of(fleet)}",
        )
    return path


def find_rollout(fleet: Path, rollout: str | None) -> tuple[journal.Summary, list[Event]]:
    """The fleet's rollout of that id, or its newest, with its events; raises RolloutRefused where there is none."""
    with journal.reading(require_journal(fleet)) as book:
        summaries = {summary.id: summary for summary in book.rollouts()}
        name = rollout or next(reversed(summaries), "")
        if name not in summaries:
            raise RolloutRefused(
                f"there is no rollout {rollout}" if rollout else "there is no rollout of this fleet",
                hint=f"List the rollouts: gdsdeploy rollout history {fleet}",
            )
        return summaries[name], list(book.events(name))


def has_driver(path: Path) -> bool:
    """Whether a process works on the journal ``path``; the check doesn't take the lock."""
    place = writerlock.lock_path(path)
    try:
        inode, text = place.stat().st_ino, place.read_text()
    except OSError:
        return False
    # Not every file system has the same device number there as in stat.
    with suppress(OSError):
        if re.search(rf"^\S+ FLOCK .*:{inode} ", Path("/proc/locks").read_text(), re.MULTILINE):
            return True
    # Over NFS only the machine with the lock lists it; the file's content survives a crash.
    with suppress(ValueError, TypeError, KeyError):
        return bool(json.loads(text)["host"] != socket.gethostname())
    return False


def final_error(current: Status) -> GdsError | None:
    """The error with which a command ends; None: the rollout reached its goal."""
    fleet = current.plan.fleet
    see = f"See: gdsdeploy rollout status {fleet} --html rollout.html"
    if not current.finished:
        resume = f"gdsdeploy rollout resume {fleet}"
        if current.phase == status.PAUSED:
            return Interrupted(f"paused: {current.reason or 'by request'}", hint=f"Continue with: {resume}")
        return RolloutFailed(
            f"{current.phase}: {current.reason}\n{sentence(current)}",
            hint=f"Look at the hosts above; then: {resume}, or rollback, or abort",
        )
    hosts = current.taking_part()
    stuck = [host.name for host in hosts if host.outcome in (Outcome.KEPT, Outcome.LOST)]
    failed = [host.name for host in hosts if host.outcome in (Outcome.ROLLED_BACK, Outcome.REFUSED)]
    if current.phase == status.ROLLED_BACK:
        failed = [host.name for host in hosts if host.outcome == Outcome.DONE]
    elif current.phase == status.CUT:
        return RolloutFailed(f"aborted: {current.reason}\n{sentence(current)}", hint=see)
    if stuck or failed:
        return RolloutFailed(f"{sentence(current)}: {first_few([*stuck, *failed], 10)}", hint=see)
    return None
