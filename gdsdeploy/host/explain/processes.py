"""Running programs whose libcufile has another configuration than programs of this host have by default."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown, as_dict
from ..facts.environment import VARIABLE, Overlay, Variable
from ..facts.processes import Program
from ..facts.storage import Mount
from ..facts.unknown import all_known, if_known, when_known
from . import config, userspace_rdma
from .cause import Cause, Condition, distinct, weigh

#: Variables that choose no path; VARIABLE's file is compared instead of its name.
NEUTRAL = (VARIABLE, "CUFILE_LOGFILE_PATH", "CUFILE_LOGGING_LEVEL", "CUFILE_LOGFILE_MAX_SIZE_MB", "CUFILE_STATS_LEVEL")


@dataclass(frozen=True)
class ExplainedProgram:
    """``causes`` keep its I/O off every direct path, or make it fail; ``unseen`` is what couldn't be judged."""

    program: Program
    #: whether its configuration differs from the default one
    differs: Maybe[bool]
    causes: Tuple[Cause, ...]
    unseen: Tuple[str, ...]


def programs(facts: HostFacts, mounts: Sequence[Mount] = ()) -> Maybe[Tuple[ExplainedProgram, ...]]:
    """Every program that has loaded libcufile.  mounts: those for which its denylist is judged."""
    return when_known(
        facts.processes.programs, lambda running: tuple(explain_program(facts, mounts, program) for program in running)
    )


def explain_program(facts: HostFacts, mounts: Sequence[Mount], program: Program) -> ExplainedProgram:
    """One program.  mounts: those for which its denylist is judged."""
    own = _facts_of(facts, program)
    conditions: List[Condition] = [*config.overlay_usable(own), *config.direct(own, None)]
    for mount in mounts:
        conditions += config.direct(own, mount)
        client = userspace_rdma.CLIENTS.get(mount.filesystem)
        # Where the program has the host's own choice, the mount's path has the cause.
        if client and not client.hooks and userspace_rdma.peer_type(own) != userspace_rdma.peer_type(facts):
            conditions += userspace_rdma.memory(own)
    verdict = weigh(conditions)
    return ExplainedProgram(program, _differs(facts, own, program), distinct(verdict.causes), verdict.unseen)


def _facts_of(facts: HostFacts, program: Program) -> HostFacts:
    """The host's facts with the configuration and the variables of the program."""
    cufile = replace(facts.cufile, config=program.base, overlay=program.overlay, path=program.base_path)
    if isinstance(program.variables, Unknown):
        environment = replace(facts.environment, variables={}, complete=program.variables)
    else:
        place = f"the environment of process {program.pid}"
        variables = {name: Variable(name, v, place, f"{name}={v}") for name, v in program.variables.items()}
        environment = replace(facts.environment, variables=variables, complete=True)
    return replace(facts, cufile=cufile, environment=environment)


def _differs(facts: HostFacts, own: HostFacts, program: Program) -> Maybe[bool]:
    both = all_known([facts.cufile.merged, own.cufile.merged, program.variables, facts.environment.complete])
    if isinstance(both, Unknown):
        return both
    mine, default = (
        {name: v.value for name, v in each.environment.variables.items() if _counts(name)} for each in (own, facts)
    )
    return facts.cufile.merged != own.cufile.merged or mine != default


def _counts(name: str) -> bool:
    return name.startswith("CUFILE_") and name not in NEUTRAL


def is_listed(explained: ExplainedProgram) -> bool:
    """Whether an explanation shows it: it differs, or that is unknown."""
    return bool(explained.causes) or explained.differs is not False


def configuration(program: Program) -> str:
    """The files of its configuration and the variables over them, in words."""
    over, variables = program.overlay, program.variables
    more = [over.path] if isinstance(over, Overlay) else [f"({over.reason})"] if isinstance(over, Unknown) else []
    if not isinstance(variables, Unknown):
        more += [f"{name}={value}" for name, value in variables.items() if _counts(name)]
    return program.base_path + (" with " + ", ".join(more) if more else "")


def versions(program: Program) -> List[str]:
    """Each libcufile that it has loaded: its file, and its version where that is known."""
    shown = {path: if_known(version, "") for path, version in program.libraries.items()}
    return [f"{path} ({version})" if version else path for path, version in shown.items()]


def as_row(explained: ExplainedProgram) -> Dict[str, Any]:
    """As JSON values; see docs/explain.md."""
    program = explained.program
    return {
        "pid": program.pid,
        "program": program.name,
        "unit": program.unit,
        "container": if_known(program.container, None),
        "libcufile": {path: if_known(version, None) for path, version in program.libraries.items()},
        "configuration": configuration(program),
        "differs": if_known(explained.differs, None),
        "causes": as_dict(explained.causes),
        "unseen": list(explained.unseen),
    }
