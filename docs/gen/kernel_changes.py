"""Which releases of NVIDIA's modules know which change of the kernel, read from the tags of their repositories.

::

    python -m docs.gen.kernel_changes --driver CLONE [--nvidia-fs CLONE] > /tmp/tags.yml

CLONE is a git directory of NVIDIA/open-gpu-kernel-modules or NVIDIA/gds-nvidia-fs.  gdsdeploy/lock/kernel_changes.yml
says what to look for; gdsdeploy/lock/tags.yml has what this prints.  A module that isn't named keeps what the file has.
Of each release that the file lacks it says on stderr which probes of the kernel are new: a change may be missing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import Field, Strict

from gdsdeploy import lock
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.rules import Conditions
from gdsdeploy.host.model.compat import version_order
from gdsdeploy.model.text import Model

#: Module → the folder of its repository that is compiled on hosts.
FOLDERS: Final = {"driver": "kernel-open/", "nvidia_fs": "src/"}
#: Module → the file that probes the kernel, and the name of a probe in it.
PROBES: Final = {"driver": ("conftest.sh", r"^ {8}([a-z0-9_]+)\)$"), "nvidia_fs": ("configure", r"\bHAVE_\w+")}
WEEK: Final = 7 * 86400
#: A release: a tag, or a branch of NVIDIA/gds-nvidia-fs, which has some releases as branches only.
_RELEASE: Final = re.compile(r"(?:tags/v?|heads/(?=[0-9]+\.[0-9]+\.))([0-9]+(?:\.[0-9]+)+)")

#: A file's path below the module's folder, as a shell pattern → a regular expression; one match suffices.
Patterns = Mapping[str, str]
Ranges = Annotated[tuple[str, ...], Strict(False)]


class Document(Model):
    """What something else than the tags says about a release and a change: a report, a build, a release note."""

    version: str
    date: Annotated[date, Strict(False)]
    knows: bool
    source: str


class Change(Model):
    """One block of kernel_changes.yml; its head says what the keys mean."""

    id: str
    module: Literal["driver", "nvidia_fs"]
    says: str
    source: str
    known: Literal["measured", "source", "documentation"] = "source"
    kernel: Ranges = ()
    maybe: Ranges = ()
    when: Conditions = Field(default_factory=dict)
    others: str = ""
    knows: dict[str, str] = Field(default_factory=dict)
    uses: dict[str, str] = Field(default_factory=dict)
    documents: Annotated[tuple[Document, ...], Strict(False)] = ()
    fixed: str = ""


class ChangeFile(Model):
    """kernel_changes.yml."""

    #: the last day on which the tags are new enough
    read_again_after: Annotated[date, Strict(False)]
    changes: Annotated[tuple[Change, ...], Strict(False)]


class Seen(Model):
    """What tags say about a change, as version expressions; releases without any don't have the interface in use."""

    knows: Ranges = ()
    breaks: Ranges = ()
    #: releases after the last tag of a branch that lacks it, and between two such tags
    unknown: Ranges = ()


class Tags(Model):
    """What was read of one module."""

    newest: str
    #: of the newest tag's commit
    date: Annotated[date, Strict(False)]
    #: branch → its tags
    tags: dict[str, Ranges]
    #: id of a change → what its tags say
    changes: dict[str, Seen]


def table() -> ChangeFile:
    """The hand-written table; raises ValueError (pydantic's) for a malformed one."""
    text = resources.files(lock).joinpath("kernel_changes.yml").read_text(encoding="utf-8")
    return ChangeFile.model_validate(yamlfile.shipped(text))


def changes() -> tuple[Change, ...]:
    """Those of the hand-written table."""
    return table().changes


def tags() -> dict[str, Tags]:
    """Module → what tags.yml has of it."""
    text = resources.files(lock).joinpath("tags.yml").read_text(encoding="utf-8")
    return {module: Tags.model_validate(block) for module, block in (yamlfile.shipped(text) or {}).items()}


@dataclass(frozen=True)
class Tag:
    """A release and its files."""

    version: str
    #: seconds since 1970
    time: float
    #: path below the module's folder → id of the content
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def branch(self) -> str:
        return self.version.split(".")[0]


class Clone:
    """A repository with the sources of a module."""

    def __init__(self, path: Path, module: str) -> None:
        self._path, self._folder, self._module = path, FOLDERS[module], module
        self._found: dict[tuple[str, str], bool] = {}
        self._reader = subprocess.Popen(  # noqa: S603 # git, and a path that the maintainer gave
            [*self._git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @property
    def _git(self) -> list[str]:
        return ["git", "-C", str(self._path)]

    def _run(self, *arguments: str) -> str:
        command = [*self._git, *arguments]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout  # noqa: S603

    @cached_property
    def tags(self) -> list[Tag]:
        """Each release, in the order of versions."""
        found = dict[str, Tag]()
        # Branches come before tags, which are more exact.
        for line in self._run(
            "for-each-ref", "--format=%(refname:lstrip=1) %(*committerdate:unix) %(committerdate:unix)"
        ).splitlines():
            name, *times = line.split()
            if match := _RELEASE.fullmatch(name):
                found[match.group(1)] = Tag(match.group(1), int(times[0]), dict(self._files(name)))
        return [found[version] for version in sorted(found, key=version_order)]

    def _files(self, tag: str) -> Iterator[tuple[str, str]]:
        for line in self._run("ls-tree", "-r", tag, self._folder).splitlines():
            about, path = line.split("\t")
            yield path.removeprefix(self._folder), about.split()[2]

    def has(self, tag: Tag, patterns: Patterns) -> bool:
        """Whether a file of the release has what its pattern asks for."""
        return any(
            self._matches(content, pattern)
            for glob, pattern in patterns.items()
            for path, content in tag.files.items()
            if fnmatchcase(path, glob)
        )

    def probes(self, tag: Tag) -> set[str]:
        """Names of what the release probes the kernel for."""
        file, pattern = PROBES[self._module]
        return set(re.findall(pattern, self._read(tag.files[file]), re.MULTILINE)) if file in tag.files else set()

    def _matches(self, content: str, pattern: str) -> bool:
        key = content, pattern
        if key not in self._found:
            self._found[key] = re.search(pattern, self._read(content), re.MULTILINE) is not None
        return self._found[key]

    @lru_cache(maxsize=1024)  # noqa: B019 # about as many files as a release has; there are two clones
    def _read(self, content: str) -> str:
        assert self._reader.stdin
        assert self._reader.stdout
        self._reader.stdin.write(f"{content}\n".encode())
        self._reader.stdin.flush()
        size = int(self._reader.stdout.readline().split()[2])
        text = self._reader.stdout.read(size)
        self._reader.stdout.read(1)
        return text.decode("utf-8", "replace")


State = Literal["knows", "breaks", "unknown", "unused"]


def state_of(change: Change, clone: Clone, tag: Tag) -> State:
    """Whether a release compiles where the kernel has the change."""
    if clone.has(tag, change.knows):
        return "knows"
    return "breaks" if clone.has(tag, change.uses) else "unused"


def states(change: Change, tags: Sequence[tuple[Tag, State]]) -> list[tuple[Tag, State]]:
    """Each release that tags or documents tell of, in the order of versions; documents go before tags."""
    known = {tag.version: (tag, state) for tag, state in tags}
    for each in change.documents:
        time = datetime.combine(each.date, datetime.min.time(), UTC).timestamp()
        known[each.version] = Tag(each.version, time), "knows" if each.knows else "breaks"
    return [known[version] for version in sorted(known, key=version_order)]


def ranges(states: Sequence[tuple[Tag, State]]) -> Seen:
    """The states of all tags as version expressions, with what follows for releases without a tag.

    A branch keeps what its newest tag knows; branches newer than every tag carry what the newest tag carries.  What
    isn't in the newest tag of a branch may be in its next release.
    """
    found: dict[State, list[str]] = {"knows": [], "breaks": [], "unknown": [], "unused": []}
    for part, low, high in _spans(states):
        found[part].append(", ".join(filter(None, (low, high))))
    return Seen(knows=tuple(found["knows"]), breaks=tuple(found["breaks"]), unknown=tuple(found["unknown"]))


def _spans(states: Sequence[tuple[Tag, State]]) -> Iterator[tuple[State, str, str]]:
    """(state, lower bound, upper bound), neighbours of one state joined."""
    joined: list[tuple[State, str, str]] = []
    for state, low, high in _pieces(states):
        if joined and joined[-1][0] == state and _meet(joined[-1][2], low):
            joined[-1] = state, joined[-1][1], high
        else:
            joined.append((state, low, high))
    yield from joined


def _meet(high: str, low: str) -> bool:
    return high.lstrip("<=") == low.lstrip(">=") and ("=" in high) != ("=" in low)


def _pieces(states: Sequence[tuple[Tag, State]]) -> Iterator[tuple[State, str, str]]:
    branches: dict[str, list[tuple[Tag, State]]] = {}
    for tag, state in states:
        branches.setdefault(tag.branch, []).append((tag, state))
    state = states[0][1]
    # What the oldest one lacks, those before it lack, too.
    before: State = state if state == "breaks" else "unknown"
    end = ""
    for branch, own in branches.items():
        first, state = own[0]
        # A branch without a tag is like its neighbours, if they are alike.
        yield state if state == before else "unknown", end, f"<{first.version}"
        for (tag, state), (following, after) in pairwise(own):
            yield state, f">={tag.version}", f"<={tag.version}"
            # Some branches have releases for developers beside the others, with lower numbers and later dates.
            aside = tag.time > following.time + WEEK
            gap: State = state if state in ("knows", "unused") or (state == after and not aside) else "unknown"
            yield gap, f">{tag.version}", f"<{following.version}"
        last, before = own[-1]
        yield before, f">={last.version}", f"<={last.version}"
        end = f">={int(branch) + 1}"
        yield _later(own), f">{last.version}", f"<{int(branch) + 1}"
    yield _later(states), end, ""


def _later(states: Iterable[tuple[Tag, State]]) -> State:
    _, state = max(states, key=lambda each: each[0].time)
    return "unknown" if state == "breaks" else state


def read(clone: Clone, changes: Sequence[Change]) -> Tags:
    """What the tags of a clone say about the changes."""
    newest = max(clone.tags, key=lambda tag: tag.time)
    branches: dict[str, tuple[str, ...]] = {}
    found: dict[str, list[tuple[Tag, State]]] = {each.id: [] for each in changes}
    for tag in clone.tags:
        branches[tag.branch] = (*branches.get(tag.branch, ()), tag.version)
        for each in changes:
            found[each.id].append((tag, state_of(each, clone, tag)))
    seen = {each.id: ranges(states(each, found[each.id])) for each in changes}
    date = datetime.fromtimestamp(newest.time, UTC).date()
    return Tags(newest=newest.version, date=date, tags=branches, changes=seen)


def new_probes(clone: Clone, before: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """(release, probes that no earlier one has) of each release that isn't in ``before``, in the order of versions."""
    known = set[str]().union(*(clone.probes(tag) for tag in clone.tags if tag.version in before))
    for tag in clone.tags:
        if tag.version not in before:
            own = clone.probes(tag)
            yield tag.version, sorted(own - known)
            known |= own


_HEAD: Final = """\
# What the tags of NVIDIA's repositories say about kernel_changes.yml.  A program writes it; change nothing by hand:
#
#   python -m docs.gen.kernel_changes --driver CLONE --nvidia-fs CLONE > /tmp/tags.yml
#
#   knows    these releases know the change
#   breaks   these use what the kernel changed, and don't know it
#   unknown  releases without a tag, of which no tag tells
#
# A release that isn't here was known from reports only, if at all: see read_again_after in kernel_changes.yml.
"""


def text(read: Mapping[str, Tags]) -> str:
    """tags.yml."""
    content = {module: each.model_dump(mode="json", exclude_defaults=True) for module, each in sorted(read.items())}
    return _HEAD + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Lists go on as far as a line does."""


_Dumper.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.gen.kernel_changes", description=__doc__)
    for module in FOLDERS:
        parser.add_argument(f"--{module.replace('_', '-')}", type=Path, metavar="CLONE")
    given = vars(parser.parse_args(arguments))
    found = tags()
    for module, clone in given.items():
        if clone:
            source = Clone(clone, module)
            before = {tag for each in found[module].tags.values() for tag in each} if module in found else set()
            for version, probes in new_probes(source, before):
                print(f"{module} {version}: new probes: {', '.join(probes) or 'none'}", file=sys.stderr)
            found[module] = read(source, [each for each in changes() if each.module == module])
    print(text(found), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
