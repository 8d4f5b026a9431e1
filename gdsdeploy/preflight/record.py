"""Records of preflights, which a rollout reads before it starts; each is valid only for the packages it tried."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from gdsdeploy import atomic, paths
from gdsdeploy.host.kmod.module import ERROR, UNKNOWN, outcome_of
from gdsdeploy.lock.compat import ingredients
from gdsdeploy.model.lock import Target

#: Incremented when a field changes meaning; other formats aren't read.
FORMAT: Final = 2


class Answer(enum.StrEnum):
    """Whether a module, or a whole stack, builds or would load."""

    YES = "yes"
    NO = "no"
    #: it was tried, and the result doesn't decide it
    UNKNOWN = "unknown"
    NOT_TRIED = "not tried"

    @staticmethod
    def of(decided: bool | None) -> Answer:
        """The answer of something that was tried; None: undecided."""
        return {True: Answer.YES, False: Answer.NO, None: Answer.UNKNOWN}[decided]

    @staticmethod
    def worst(answers: Iterable[Answer]) -> Answer:
        """The answer of a stack for those of its modules: yes only if there are some, and each is yes."""
        present = set(answers)
        order = (Answer.NO, Answer.UNKNOWN, Answer.NOT_TRIED, Answer.YES)
        return next((answer for answer in order if answer in present), Answer.NOT_TRIED)


@dataclass(frozen=True)
class ModuleResult:
    """One module of a stack; ``driver`` stands for all of the driver's modules where their common build fails."""

    module: str
    builds: Answer
    loads: Answer
    #: findings of its audit (host/kmod/module.py)
    findings: tuple[dict[str, str], ...] = ()
    #: the compiler's first error line, with tree and kernel
    error: str = ""


@dataclass(frozen=True)
class PreflightRecord:
    """The result for one stack: whether its modules build, and whether the kernel would load them.

    ``builds`` and ``loads`` are ``Answer.worst`` over every module that the stack needs, whether tried or not.
    """

    kernel: str
    driver: str
    flavour: str
    #: empty in a mode without nvidia-fs
    nvidia_fs: str
    #: ``sha256:…`` over the packages that it depends on
    ingredients: str
    builds: Answer
    loads: Answer
    modules: tuple[ModuleResult, ...]
    #: of the whole run
    seconds: float
    #: RFC 3339, UTC
    time: str
    #: version of gdsdeploy
    gdsdeploy: str
    #: paths of build logs
    logs: tuple[str, ...] = ()
    #: rules of compat.yml about the failure: ``{"id", "says", "fixed", "source"}``
    rules: tuple[dict[str, str], ...] = ()
    format: int = field(default=FORMAT)

    @property
    def ok(self) -> bool:
        """Whether every module was tried, builds and loads."""
        return self.builds is Answer.YES and self.loads is Answer.YES

    @property
    def failed(self) -> bool:
        """Whether some module doesn't build or would not load."""
        return Answer.NO in (self.builds, self.loads)

    @property
    def untried_modules(self) -> tuple[str, ...]:
        """Modules that weren't compiled."""
        return tuple(module.module for module in self.modules if module.builds is Answer.NOT_TRIED)

    @property
    def error(self) -> str:
        """The first problem; empty without one."""
        errors = [module.error for module in self.modules if module.error]
        errors += [
            f"{module.module}: [{finding['id']}] {finding['message']}"
            for module in self.modules
            for finding in module.findings
            if module.loads is not Answer.YES and outcome_of(finding) in (ERROR, UNKNOWN)
        ]
        return errors[0] if errors else ""


_RECORD = TypeAdapter(PreflightRecord)


def find(target: Target) -> PreflightRecord | None:
    """The record for exactly the packages of ``target``; None without a readable one."""
    digest = ingredients(target)
    try:
        record = _RECORD.validate_json(path_of(digest).read_bytes())
    except (OSError, ValidationError):
        return None
    return record if (record.format, record.ingredients) == (FORMAT, digest) else None


def keep(record: PreflightRecord) -> Path:
    """Write a record; raises OSError."""
    path = path_of(record.ingredients)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, json.dumps(asdict(record), indent=2, sort_keys=True) + "\n")
    return path


def path_of(ingredients: str) -> Path:
    """Where the record for packages of this digest is."""
    return paths.state() / "preflight" / "records" / f"{ingredients.removeprefix('sha256:')[:32]}-full.json"
