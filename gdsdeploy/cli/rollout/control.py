"""Shared by the verbs that change a rollout: the process that runs it does the work, or else this one."""

from __future__ import annotations

from pathlib import Path

from gdsdeploy import console
from gdsdeploy.errors import Busy, RolloutRefused
from gdsdeploy.model.events import Payload, RolloutAborted
from gdsdeploy.model.rollout import Plan
from gdsdeploy.rollout import control, journal, lookup, session
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.effects import Effects
from gdsdeploy.rollout.report.events import sentence
from gdsdeploy.rollout.status import Status


def carry_out(fleet: Path, payload: Payload, *, as_json: bool) -> Status | None:
    """Make ``payload`` happen to the newest rollout of ``fleet``, and run it here; None: another process runs it.

    Raises RolloutRefused if it cannot become that, Busy if the process that runs it doesn't answer, and as session.run.
    """
    path = lookup.require_journal(fleet)
    watch = Watch(as_json=as_json)
    try:
        with journal.writing(path, doing=f"rollout {payload.kind}") as writer:
            return _run_here(fleet, writer, payload, watch)
    except Busy:
        event, by_driver = control.tell(path, payload)
    if not by_driver:
        # The other process has ended in between, and the request is in the journal.
        with journal.writing(path, doing=f"rollout {payload.kind}") as writer:
            return _run_here(fleet, writer, None, watch)
    console.say(f"Done by the process that runs the rollout: {sentence(event)}")
    console.say(f"Watch it: gdsdeploy rollout status {fleet} --watch")
    return None


def _run_here(fleet: Path, writer: journal.Writer, payload: Payload | None, watch: Watch) -> Status:
    newest = writer.newest()
    if newest is None:
        raise RolloutRefused("there is no rollout of this fleet", hint=f"Start one: gdsdeploy rollout start {fleet}")
    plan = writer.go_on(newest)
    watch.replay(writer.events(newest))
    # Check that the planned lock and fleet file still exist before anything is written.
    effects = _effects(plan, payload, watch)
    if payload is not None:
        watch.observe(control.write(writer, payload))
    return session.run(writer, plan, watch, effects)


def _effects(plan: Plan, payload: Payload | None, watch: Watch) -> Effects:
    try:
        return session.real(plan)
    except RolloutRefused as error:
        # An abort without hosts in progress touches no host; refusing it would block every later rollout.
        if not isinstance(payload, RolloutAborted) or watch.status is None or watch.status.under_way():
            raise
        return session.RefusingEffects(error)
