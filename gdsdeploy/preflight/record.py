"""Records of preflights, which a rollout reads before it starts; each is valid only for the packages it tried."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gdsdeploy import atomic, paths
from gdsdeploy.host.kmod.module import ERROR, UNKNOWN, outcome_of
from gdsdeploy.host.model import compat as rules
from gdsdeploy.host.model.compat import Combination, Rule, Verdict

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from gdsdeploy.model.lock import Target

NVIDIA_FS: Final = "nvidia_fs"
PEERMEM: Final = "nvidia_peermem"
#: Subjects of compat.yml that tell which package a record is about.
PACKAGES: Final = ("driver_package", "driver_origin", "kernel_package", "nvidia_fs_package", "nvidia_fs_origin")
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
    #: PACKAGES → their values; empty in records of older versions
    packages: Mapping[str, str] = field(default_factory=dict)
    format: int = field(default=FORMAT)

    @property
    def ok(self) -> bool:
        """Whether every module was tried, builds and loads."""
        return self.builds is Answer.YES and self.loads is Answer.YES

    @property
    def failed(self) -> bool:
        """Whether some module doesn't build or would not load."""
        return Answer.NO in (self.builds, self.loads)

    def answer_of(self, subject: str) -> Answer:
        """Whether the modules of ``driver``, or ``nvidia_fs``, build and would load.

        nvidia_peermem counts only if it fails: without OFED, a preflight compiles it as a stub.
        """
        answers = [
            Answer.worst((module.builds, module.loads))
            for module in self.modules
            if (module.module == NVIDIA_FS) == (subject == NVIDIA_FS)
            and (module.module != PEERMEM or Answer.NO in (module.builds, module.loads))
        ]
        return Answer.worst(answers)

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


@cache
def _reader() -> TypeAdapter[PreflightRecord]:
    from pydantic import TypeAdapter  # dear to import, and often nothing is kept

    return TypeAdapter(PreflightRecord)


def find(target: Target) -> PreflightRecord | None:
    """The record for exactly the packages of ``target``; None without a readable one."""
    # `fits` reads records without any lock.
    from gdsdeploy.lock.compat import ingredients

    digest = ingredients(target)
    record = _read(path_of(digest))
    return record if record and record.ingredients == digest else None


def kept() -> list[PreflightRecord]:
    """Every readable record of this machine, the newest first."""
    records = filter(None, map(_read, path_of("").parent.glob("*-full.json")))
    return sorted(records, key=lambda record: record.time, reverse=True)


def _read(path: Path) -> PreflightRecord | None:
    try:
        record = _reader().validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if record.format == FORMAT else None


def keep(record: PreflightRecord) -> Path:
    """Write a record; raises OSError."""
    path = path_of(record.ingredients)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, json.dumps(asdict(record), indent=2, sort_keys=True) + "\n")
    return path


def with_records(
    combination: Combination, verdicts: Iterable[Verdict], records: Iterable[PreflightRecord] | None = None
) -> list[Verdict]:
    """``verdicts`` with what records tell about exactly the versions of ``combination``.

    A stack that built here outweighs the doubts about its modules and the kernel, and one that failed is refused.  What
    rules refuse stays refused.  A combination without ``driver_origin`` is about NVIDIA's own packages.
    records: the newest first; None: those of this machine.
    """
    result, decided = list(verdicts), set[str]()
    for record in kept() if records is None else records:
        for subject in ("driver", NVIDIA_FS):
            built = {Answer.YES: True, Answer.NO: False}.get(record.answer_of(subject))
            if built is None or subject in decided or not _is_about(record, combination, subject):
                continue
            decided.add(subject)
            if built:
                result = [each for each in result if each.kind != rules.UNKNOWN or not is_build(each, subject)]
            words = f"It {'was built and audited' if built else 'failed'} on this machine on {record.time[:10]}: "
            words += f"driver {record.driver} ({record.flavour}), kernel {record.kernel}"
            words += f", nvidia-fs {record.nvidia_fs}" if subject == NVIDIA_FS else ""
            words += "." if built else f": {record.error}"
            name = f"local-{record.ingredients.removeprefix('sha256:')[:16]}"
            kind = rules.FITS if built else rules.REFUSED
            result.append(Verdict(name, kind, words, frozenset((subject, "kernel", "driver"))))
    return result


def cautions(target: Target, fleet_rules: Sequence[Rule]) -> list[Verdict]:
    """What `gdsdeploy lock` warns about in a target, where neither its proof nor a kept preflight has decided it.

    One that failed is the first.  fleet_rules: by which its fleet is judged; none of them refuses it.
    """
    from gdsdeploy.lock import compat, lockfile

    combination, tried = lockfile.combination(target), find(target)
    verdicts = with_records(combination, rules.judge(combination, fleet_rules), [tried] if tried else [])
    built = bool(target.packaged) or compat.is_proven(target)
    failed = [verdict for verdict in verdicts if not verdict.allowed]
    return failed + rules.cautions(combination, verdicts, built=built and not failed)


def _is_about(record: PreflightRecord, combination: Combination, subject: str) -> bool:
    """Whether kernel, driver and ``subject`` are those of the combination, and their packages where it tells."""
    versions = {name: str(getattr(record, name)) for name in ("kernel", "driver", subject)}
    told: dict[str, tuple[str, ...]] = {"driver_origin": ("nvidia",), "nvidia_fs_origin": ("nvidia",)}
    for key, value in combination.items():
        if value is not None:
            told[key] = value if isinstance(value, rules.Version) else (value,)
    details = {key: value for key, value in record.packages.items() if key.startswith(tuple(versions))}
    details["flavour"] = record.flavour
    wanted = {key: value for key, value in details.items() if key in told} | versions
    return bool(record.packages) and all(value in told.get(key, ()) for key, value in wanted.items())


def is_build(verdict: Verdict, subject: str) -> bool:
    """Whether it is about building ``subject``: the driver for a kernel, or nvidia-fs for a kernel or a driver."""
    parts = rules.built_parts(verdict)
    return subject in parts and (NVIDIA_FS in parts) == (subject == NVIDIA_FS)


def path_of(ingredients: str) -> Path:
    """Where the record for packages of this digest is."""
    return paths.state() / "preflight" / "records" / f"{ingredients.removeprefix('sha256:')[:32]}-full.json"
