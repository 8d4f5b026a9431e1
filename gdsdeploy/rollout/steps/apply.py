"""What changes a host: packages and files, modules, and which kernel boots once.  The boot default stays."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gdsdeploy.builds import run_archives
from gdsdeploy.builds.run_archives import RunArchives
from gdsdeploy.converge.plan_report import supply_words
from gdsdeploy.errors import ModuleBuildFailed, RebootFailed
from gdsdeploy.model.rollout import Step
from gdsdeploy.rollout.steps import answers, lease, provision
from gdsdeploy.rollout.steps.provision import Look
from gdsdeploy.rollout.steps.work import Work

#: Want → lock while a host builds what others may receive.
_BUILDING: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_GUARD = threading.Lock()


def apply(work: Work) -> dict[str, Any]:
    """Repositories, pins, packages, kernel, cufile.json and the expectation; what boots by default stays.

    Raises what the roles end in.
    """
    lease.wait_until_free(work)
    _keep_default(work)
    with run_archives.open_run_archives(work.fleet_path) as shelf:
        look = provision.look(work, shelf)
        provision.refuse(work, look)
        if look.sure and not look.lacks("apply"):
            work.say("packages and files are as the lock has them")
            return {"changed": []}
        return {"changed": provision.play(work, "apply", shelf, look.supply, look.fit)}


def _keep_default(work: Work) -> None:
    """Make the running kernel the boot default before a kernel package sets the newest one."""
    if not work.has_kernel:
        return
    kernel = work.facts.kernel or work.ask(answers.STATUS).kernel
    if work.ask(answers.SET_DEFAULT, "--kernel", kernel).changed:
        work.say(f"{kernel}, which runs, is the boot default")


def modules(work: Work) -> dict[str, Any]:
    """Build or receive the modules, as provision decides; hosts that can share a build wait for the first one.

    Raises ModuleBuildFailed and what the roles end in.
    """
    with _look(work) as (shelf, look):
        provision.refuse(work, look)
        supply = look.supply
        if look.sure and not look.lacks("modules"):
            work.say("modules are as the lock has them")
            changed: list[str] = []
        else:
            work.say(supply_words(supply))
            try:
                changed = provision.play(work, "modules", shelf, supply, look.fit)
            finally:
                # After an interruption, too, so that no build is repeated.
                for error in shelf.keep(work.lock, work.fleet, {work.name: supply}):
                    work.say(error.message)
    return {"supply": {"from": supply.source, "why": supply.why, "want": supply.want}, "changed": changed}


@contextmanager
def _look(work: Work) -> Iterator[tuple[RunArchives, Look]]:
    """A look at the machine; while one builds what others may receive, the others wait and look again."""
    with ExitStack() as stack:
        shelf = stack.enter_context(run_archives.open_run_archives(work.fleet_path))
        look = provision.look(work, shelf)
        if look.supply.mode == "build" and work.fleet.modules(work.name) == "auto" and look.lacks("modules"):
            with _GUARD:
                lock = _BUILDING[look.supply.want]
            stack.enter_context(lock)
            shelf = stack.enter_context(run_archives.open_run_archives(work.fleet_path))
            look = provision.look(work, shelf)
        yield shelf, look


def audit(work: Work) -> dict[str, Any]:
    """Audit the modules for the lock's kernel on the host; then have that kernel boot once.

    Raises ModuleBuildFailed with every objection, RebootFailed.
    """
    kernel = work.target.kernel.release
    if work.is_builder:
        # Its builds are audited after each build, and by the host that receives them.
        return {"audit": {"kernel": kernel, "once": False}}
    verdict = work.ask(answers.JUDGE, "--kernel", kernel)
    if not verdict.admitted:
        reasons = "\n".join(f"  - {text}" for text in verdict.reasons)
        raise ModuleBuildFailed(
            f"{work.name}: the audit refuses the modules for kernel {kernel}:\n{reasons}",
            hint=f"On the host: gdsdeploy-host.pyz kmod audit --kernel {kernel}",
        )
    running = work.ask(answers.STATUS).kernel if work.has_kernel else kernel
    if running == kernel:
        return {"audit": {"kernel": kernel, "once": False}}
    answer = work.ask(answers.ONCE, "--kernel", kernel, "--default", running)
    if not answer.once:
        document = json.dumps(answer.model_dump(), sort_keys=True)
        raise RebootFailed(
            f"{work.name}: kernel {kernel} would boot not only once: {document}",
            hint="On the host: gdsdeploy-host.pyz boot show",
        )
    work.say(f"boots {kernel} once; the boot after that is of {running} again")
    return {"audit": {"kernel": kernel, "once": True}}


STEPS = {Step.APPLY: apply, Step.MODULES: modules, Step.AUDIT: audit}
