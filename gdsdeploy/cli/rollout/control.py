"""What the verbs that change a rollout have in common: whoever works on it does it, or else this process."""

from __future__ import annotations

from pathlib import Path

from gdsdeploy import console
from gdsdeploy.errors import Busy, RolloutRefused
from gdsdeploy.model.events import Payload, RolloutAborted
from gdsdeploy.model.rollout import Plan
from gdsdeploy.rollout import control, journal, session
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.effects import Effects
from gdsdeploy.rollout.report.events import sentence
from gdsdeploy.rollout.status import Status


def carry_out(fleet: Path, payload: Payload, *, as_json: bool) -> Status | None:
    """Have ``payload`` happen to the newest rollout of ``fleet``, and go on with it here; None: another process does.

    Raises RolloutRefused: it cannot become that; Busy: who works on it does not answer; and as running.run.
    """
    path = session.require_journal(fleet)
    watch = Watch(as_json=as_json)
    try:
        with journal.writing(path, doing=f"rollout {payload.kind}") as writer:
            return _here(writer, payload, watch)
    except Busy:
        event, by_driver = control.tell(path, payload)
    if not by_driver:
        # Whoever worked on it has ended in between, and the wish is written down.
        with journal.writing(path, doing=f"rollout {payload.kind}") as writer:
            return _here(writer, None, watch)
    console.say(f"Done by the process that works on it: {sentence(event)}")
    console.say(f"Watch it: gdsdeploy rollout status {fleet} --watch")
    return None


def _here(writer: journal.Writer, payload: Payload | None, watch: Watch) -> Status:
    newest = writer.newest()
    if newest is None:
        raise RolloutRefused("there is no rollout of this fleet", hint="Begin one: gdsdeploy rollout start FLEET")
    plan = writer.go_on(newest)
    watch.known(writer.events(newest))
    # Before anything is written: what it was planned with is still there.
    effects = _effects(plan, payload, watch)
    if payload is not None:
        watch.observe(control.write(writer, payload))
    return session.run(writer, plan, watch, effects)


def _effects(plan: Plan, payload: Payload | None, watch: Watch) -> Effects:
    try:
        return session.real(plan)
    except RolloutRefused as error:
        # Where nothing is under way an abort needs no hosts; otherwise nobody could ever begin another rollout.
        if not isinstance(payload, RolloutAborted) or watch.status is None or watch.status.under_way():
            raise
        return session.Nobody(error)
