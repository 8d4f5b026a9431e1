"""What the verbs that change a rollout have in common: whoever works on it does it, or else this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdsdeploy import console
from gdsdeploy.errors import Busy, RolloutRefused
from gdsdeploy.model.rollout import Kind, Plan
from gdsdeploy.rollout import control, journal, session
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.effects import Effects
from gdsdeploy.rollout.report.events import sentence
from gdsdeploy.rollout.status import Status


def carry_out(fleet: Path, kind: Kind, data: Mapping[str, Any], *, as_json: bool) -> Status | None:
    """Have the newest rollout of ``fleet`` become ``kind``, and go on with it here; None: another process does.

    Raises RolloutRefused: it cannot become that; Busy: who works on it does not answer; and as running.run.
    """
    path = session.require_journal(fleet)
    watch = Watch(as_json=as_json)
    try:
        with journal.writing(path, doing=f"rollout {kind}") as writer:
            return _here(writer, kind, data, watch)
    except Busy:
        event, by_driver = control.tell(path, kind, data)
    if not by_driver:
        # Whoever worked on it has ended in between, and the wish is written down.
        with journal.writing(path, doing=f"rollout {kind}") as writer:
            return _here(writer, None, data, watch)
    console.say(f"Done by the process that works on it: {sentence(event)}")
    console.say(f"Watch it: gdsdeploy rollout status {fleet} --watch")
    return None


def _here(writer: journal.Writer, kind: Kind | None, data: Mapping[str, Any], watch: Watch) -> Status:
    newest = writer.newest()
    if newest is None:
        raise RolloutRefused("there is no rollout of this fleet", hint="Begin one: gdsdeploy rollout start FLEET")
    plan = writer.go_on(newest)
    watch.known(writer.events(newest))
    # Before anything is written: what it was planned with is still there.
    effects = _effects(plan, kind, watch)
    if kind is not None:
        watch.observe(control.write(writer, kind, data))
    return session.run(writer, plan, watch, effects)


def _effects(plan: Plan, kind: Kind | None, watch: Watch) -> Effects:
    try:
        return session.real(plan)
    except RolloutRefused as error:
        # Where nothing is under way an abort needs no hosts; otherwise nobody could ever begin another rollout.
        if kind is not Kind.ABORTED or watch.status is None or watch.status.under_way():
            raise
        return session.Nobody(error)
