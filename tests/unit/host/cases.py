"""Cases: a host, a patch of its evidence, and what has to be found; tests/cases/README.md says how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.unit.host import hosts
from tests.unit.host.patches import PatchError, patched

FOLDER = Path(__file__).parents[2] / "cases"
#: What a look at a host may expect; test_cases.py has a function for each.
SUBJECTS = (
    "findings",
    "failing",
    "undecided",
    "inapplicable",
    "mounts",
    "kinds",
    "explanation",
    "process",
    "facts",
    "conditions",
    "text",
)
#: What a case of a known truth has besides: where the evidence's format is from, and the fixes that may destroy.
TRUTHS = ("source", "destroys")
KEYS = ("host", "patch", "expectation", "afresh", *SUBJECTS)
#: Cases of this folder say the whole verdict of a host.
TRUTH = "truth"
FOLDERS = ("checks", "explain", "facts", TRUTH)
CAUSES = ("causes", "suspects", "notes")
Document = dict[str, Any]


class CaseError(Exception):
    """A case that is written wrongly; the message says where."""


@dataclass(frozen=True, eq=False)
class Look:
    """A host as it is after a patch, and what has to be found: subject → what is expected of it."""

    document: Document
    expectation: dict[str, Any]
    expected: dict[str, Any]
    #: fixes whose hints may destroy something, by their ids
    destroys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One rule: its looks follow each other, each on the host that the one before has left."""

    file: str
    name: str
    host: str
    #: one a look
    patches: tuple[Any, ...]
    steps: tuple[dict[str, Any], ...]

    def looks(self) -> Iterator[Look]:
        """Raises CaseError where a patch doesn't fit its host, or changes nothing."""
        document = hosts.named(self.host)
        for number, step in enumerate(self.steps):
            document = self.change(hosts.named(self.host) if step.get("afresh") else document, number)
            expected = {subject: step[subject] for subject in SUBJECTS if subject in step}
            yield Look(document, step.get("expectation", {}), expected, tuple(step.get("destroys", ())))

    def change(self, document: Document, number: int = 0) -> Document:
        """``document`` with this case's first patch, or a later one."""
        if not self.patches[number]:
            return document
        try:
            changed: Document = patched(document, self.patches[number], hosts.named)
        except PatchError as error:
            raise CaseError(f"{self.file}: {self.name}: {error}") from None
        return changed

    def document(self) -> Document:
        """The host after the first patch."""
        return next(self.looks()).document


class _Loader(yaml.SafeLoader):
    """YAML in which a key may be written once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for position, key in enumerate(keys) if key in keys[:position]]
        if twice:
            raise CaseError(f"{self.name}:{node.start_mark.line + 1}: {twice[0]!r} is written twice")
        return super().construct_mapping(node, deep)


@cache
def read(name: str) -> dict[str, Case]:
    """The cases of tests/cases/NAME.yml, by their names.  Raises CaseError where the file is written wrongly."""
    content = _content(name)
    unknown = set(content) - {"host", "expectation", "cases"}
    if unknown or not content.get("cases"):
        raise CaseError(f"{name}: a file has host, expectation and cases, not {unknown or 'no cases'}")
    return {title: _case(name, title, content, entry) for title, entry in content["cases"].items()}


def load(name: str) -> dict[str, Any]:
    """The cases of a file whose tests read it themselves."""
    loaded: dict[str, Any] = _content(name)["cases"]
    return loaded


def _content(name: str) -> Any:
    with (FOLDER / f"{name}.yml").open() as stream:
        return yaml.load(stream, _Loader)  # nosec B506 # a SafeLoader


def _case(file: str, title: str, content: Any, entry: Any) -> Case:
    steps = entry if isinstance(entry, list) else [entry]
    is_truth = file.startswith(TRUTH + "/")
    for step in steps:
        wrong = sorted(set(step) - {*KEYS, *(TRUTHS if is_truth else ())})
        if wrong or not any(step.get(key) not in (None, {}) for key in SUBJECTS):
            raise CaseError(f"{file}: {title}: {'unknown keys ' + ', '.join(wrong) if wrong else 'it expects nothing'}")
        if is_truth and not _is_whole(step):
            raise CaseError(
                f"{file}: {title}: it lacks its source, or failing and undecided, or mounts with a path each"
            )
    patches = tuple(step.get("patch") for step in steps)
    wanted, fleet = [], content.get("expectation", {})
    for step in steps:
        if "expectation" in step:
            fleet = {**content.get("expectation", {}), **step["expectation"]}
        wanted.append({**step, "expectation": fleet})
    return Case(file, title, steps[0].get("host", content.get("host", "")), patches, tuple(wanted))


def _is_whole(step: Mapping[str, Any]) -> bool:
    """Whether a case of a known truth names its source and says the whole verdict."""
    mounts = step.get("mounts", {}).values()
    paths = [one.get("path") if isinstance(one, Mapping) else one for one in mounts]
    source = step.get("source")
    has_verdict = {"failing", "undecided"} <= set(step) or (paths and all(isinstance(path, str) for path in paths))
    return isinstance(source, str) and bool(source.strip()) and bool(has_verdict)


def paths() -> list[Path]:
    """The files of cases about hosts; other tests have files of their own beside them."""
    return sorted(path for folder in FOLDERS for path in (FOLDER / folder).glob("*.yml"))


def every() -> Iterator[Case]:
    """All cases of all files."""
    for path in paths():
        yield from read(path.relative_to(FOLDER).with_suffix("").as_posix()).values()


def failing() -> set[str]:
    """Ids of the checks that a case expects to fail."""
    steps = [step for case in every() for step in case.steps]
    judged = [entry for step in steps for entry in step.get("findings", {}).items()]
    failed = {ident for ident, one in judged if "fail" in (one, isinstance(one, Mapping) and one.get("verdict"))}
    return failed.union(*(step.get("failing", []) for step in steps))


def causes() -> set[str]:
    """Ids of the causes that a case expects of a mount, a kind of storage or a process."""
    steps = [step for case in every() for step in case.steps]
    paths = [path for step in steps for key in ("mounts", "kinds", "process") for path in step.get(key, {}).values()]
    return {ident for path in paths if isinstance(path, Mapping) for key in CAUSES for ident in _ids(path.get(key))}


def _ids(expected: Any) -> Iterator[str]:
    if isinstance(expected, str):
        yield expected
    elif isinstance(expected, Mapping):
        for key, inner in expected.items():
            if key in ("id", "$first", "$any", "$all"):
                yield from _ids(inner)
    elif isinstance(expected, list):
        for inner in expected:
            yield from _ids(inner)
