"""Keys that a person enrols at a host's console: the request, the reboot, and what shim made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdsdeploy import atomic
from gdsdeploy.builds import assign
from gdsdeploy.converge.plan_fleet import variables
from gdsdeploy.errors import HostUnfit, HostUnreachable, RolloutRefused
from gdsdeploy.model.rollout import Step
from gdsdeploy.rollout.steps import answers, apply
from gdsdeploy.rollout.steps.answers import Enrolment
from gdsdeploy.rollout.steps.apply import Look
from gdsdeploy.rollout.steps.work import Work

#: States in which the kernel gets the key, or needs none.
_READY = frozenset({"no-efi", "enrolled", "firmware", "leaving", "not-needed"})


def refuse(work: Work, look: Look) -> None:
    """Raise RolloutRefused for a host without the key in a wave that doesn't wait for a person."""
    if look.plan.lacks_key:
        raise RolloutRefused(
            f"{work.name}: Secure Boot is on, and its firmware doesn't have the key of the modules",
            hint=f"Enrol it with a person at its console: gdsdeploy rollout start {work.fleet_path} --enrol-keys",
        )


def enrol(work: Work) -> dict[str, Any]:
    """Request the key's enrolment, reboot, and wait until a person has confirmed it at the console.

    Raises HostUnfit where the firmware doesn't have the key afterwards, HostUnreachable, and what asking raises.
    """
    certificate, content = _certificate(work)

    def ask(*options: str) -> Enrolment:
        return work.ask(answers.ENROL, "--certificate", certificate, *options, stdin=content)

    before = work.facts.boot_id or ""
    answer = ask("--check")
    if answer.state in _READY:
        work.say("its firmware has the key")
        return {"boot_id": answer.boot_id}
    if answer.boot_id == before or not before:
        before = answer.boot_id
        answer = ask()
        _tell_person(work, answer)
        work.ask(answers.REBOOT, "--boot-id", answer.boot_id, "--rollout", work.rollout)
        answer = _await(work, before, ask)
    _password_file(work).unlink(missing_ok=True)
    if answer.state in _READY:
        return {"boot_id": answer.boot_id}
    ask("--withdraw")
    raise HostUnfit(
        f"{work.name}: the key was not confirmed at its console, so shim has dropped the request",
        hint="Begin again with a person at its console; docs/secure-boot.md has the steps",
    )


def _certificate(work: Work) -> tuple[str, bytes]:
    """The certificate as an option's value, and what the host gets on its standard input."""
    with assign.open_run_archives(work.fleet_path) as shelf:
        look = apply.look_at(work, shelf)
        document = apply.render_inventory(work, shelf, look.supply, look.fit)
    values = variables(document)[work.name][1]
    if values["gds_secureboot_signs"]:
        return str(values["gds_secureboot_certificate"]), b""
    path = Path(values["gds_secureboot_shared"])
    if not path.is_file():
        raise RolloutRefused(
            f"{work.name}: this controller doesn't have the certificate that its modules are signed with",
            hint=f"Provision the builder of its profile first: gdsdeploy provision {work.fleet_path}",
        )
    return "-", path.read_bytes()


def _tell_person(work: Work, answer: Enrolment) -> None:
    """Keep the one-time password for the person at the console, for this user only; it goes into no log."""
    path = _password_file(work)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    atomic.write(path, f"{answer.password}\n", mode=0o600)
    work.say("reboots, and waits for a person at its console")
    work.announce(
        f"{work.name} reboots now. At its console, press a key within 10 s of shim's screen. Choose Enroll MOK and View"
        f" key 0: the SHA1 fingerprint has to be {answer.fingerprint}. Choose Continue and Yes, type the password in"
        f" {path}, and choose Reboot."
    )


def _password_file(work: Work) -> Path:
    return work.logs / f"{work.name}.mok-password"


def _await(work: Work, before: str, ask: Callable[..., Enrolment]) -> Enrolment:
    """The state of the key after the reboot; raises HostUnreachable."""
    limit = float(work.settings.console.timeout)
    message = "it is still in the boot before"
    for _ in work.attempts(limit):
        try:
            answer = ask("--check")
        except HostUnreachable as error:
            message = error.message
            continue
        if answer.boot_id != before:
            return answer
    raise HostUnreachable(
        f"{work.name}: no new boot within {limit:.0f} s: {message}",
        hint="Look at its console: shim's menu may be open",
    )


STEPS = {Step.ENROL: enrol}
