"""Kills of a host's program at random moments: the next run repairs, and a removal leaves the host as it was before.

Runs on the host, beside drifts.py: ``python3 kills.py apt|dnf FOLDER rounds COUNT SEED`` prints a report.  Each round
kills an apply and a removal: the program alone, or with all that it has started.

For machines whose power is cut, ``begin`` applies and removes once, ``interrupted apply|remove`` is what is cut, and
``again apply|remove`` is the run that follows.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drifts import ANEW, Program, Snapshot, Watch, differing

APPLY, CHECK, REMOVE = ("apply", "--desired", "-"), ("apply", "--check", "--desired", "-"), ("remove",)
WORDS = {words[0]: words for words in (APPLY, REMOVE)}
#: Seconds that what a killed program has started may go on.
PATIENCE = 120


@dataclass
class Kills:
    """``before``: the host without gdsdeploy, ``after``: in the desired state."""

    program: Program
    watch: Watch
    document: Any
    chance: random.Random
    #: packages of the distribution that come as dependencies, and stay
    stay: tuple[str, ...]
    before: Snapshot = field(default_factory=dict)
    after: Snapshot = field(default_factory=dict)
    #: what takes how long, in seconds
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    #: errors of runs that followed a kill, after which the next run ended well
    said: list[str] = field(default_factory=list)
    #: kills that came before the program had ended
    hits: int = 0

    def begin(self) -> None:
        """Apply and remove once without a kill."""
        self._end(REMOVE)
        self.before = self.watch.snapshot()
        for words in (APPLY, REMOVE):
            start = time.monotonic()
            self._end(words)
            self.seconds[words[0]] = time.monotonic() - start
            if words is APPLY:
                self.after = self.watch.snapshot()
        self.problems += self._off("a removal without a kill", self.before)

    def play(self, number: int) -> None:
        """One round."""
        for words in (APPLY, REMOVE):
            moment = self.chance.uniform(0, self.seconds[words[0]])
            everything = self.chance.random() < 0.5
            self.hits += self._kill(words, moment, everything)
            with_all = " with all" if everything else ""
            self.again(words, f"round {number}, {words[0]} killed after {moment:.2f} s{with_all}")

    def again(self, words: tuple[str, ...], name: str) -> None:
        """The run that follows an interrupted one, and what it has to bring."""
        try:
            self._end(words, self.said)
        except AssertionError as error:
            self.problems.append(f"{name}: {error}")
            return
        self.problems += self._off(name, self.after if words == APPLY else self.before)
        if words == APPLY:
            changes = [change for one in self._call(CHECK)["resources"] for change in one["changes"]]
            self.problems += [f"{name}: a check still has {change}" for change in changes]

    def save(self, file: Path) -> None:
        """Keep what begin() found, also beyond a power cut."""
        snapshots = [[[*key, value] for key, value in one.items()] for one in (self.before, self.after)]
        file.write_text(json.dumps({"snapshots": snapshots, "seconds": self.seconds}))
        os.sync()

    def load(self, file: Path) -> None:
        kept = json.loads(file.read_text())
        self.seconds = kept["seconds"]
        self.before, self.after = (
            {(kind, subject): tuple(value) if isinstance(value, list) else value for kind, subject, value in one}
            for one in kept["snapshots"]
        )

    def _call(self, words: tuple[str, ...]) -> Any:
        return self.program.answer(self.document, *words)

    def _end(self, words: tuple[str, ...], said: list[str] | None = None) -> None:
        """Run to the end; what a first run says may be right only where it has a next step, and another run helps."""
        error = self._call(words)["error"]
        if error is not None and said is not None and error["hint"]:
            said.append(f"{words[0]}: {error['message']}; {error['hint']}")
            error = self._call(words)["error"]
        assert error is None, error

    def _kill(self, words: tuple[str, ...], moment: float, everything: bool) -> bool:
        """Whether the program hadn't ended."""
        child = self.program.start(self.document, *words)
        time.sleep(moment)
        hit = os.waitpid(child, os.WNOHANG) == (0, 0)
        if hit:
            for process in _of_session(child) if everything else [child]:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            os.waitpid(child, 0)
        end = time.monotonic() + PATIENCE
        while _of_session(child):
            assert time.monotonic() < end, f"still running: {_of_session(child)}"
            time.sleep(0.05)
        return hit

    def _off(self, name: str, expected: Snapshot) -> list[str]:
        return [
            f"{name}: {kind} {subject}: {was} → {now}"
            for (kind, subject), (was, now) in differing(expected, self.watch.snapshot()).items()
            if not (subject.startswith(ANEW) and was is not None and now is not None) and subject not in self.stay
        ]

    def report(self) -> dict[str, Any]:
        return {"hits": self.hits, "said": self.said, "seconds": self.seconds, "problems": self.problems}


def _of_session(leader: int) -> list[int]:
    """The processes of a session that haven't ended."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = place.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(session) == leader and state != "Z":
            found.append(int(place.parent.name))
    return found


def main() -> None:
    kind, folder, step, *more = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    os.environ["LC_ALL"] = "C.UTF-8"
    host, kept = importlib.import_module(f"drifts_{kind}"), folder / "kills.json"
    document = json.loads((folder / "desired.json").read_text())
    program = Program(str(folder / "gdsdeploy-host.pyz"))
    kills = Kills(program, host.watch(), document, random.Random(more[-1] if step == "rounds" else None), host.STAY)
    if step in ("rounds", "begin"):
        kills.begin()
        kills.save(kept)
    if step == "rounds":
        for number in range(int(more[0])):
            kills.play(number)
    elif step == "interrupted":
        os.waitpid(program.start(document, *WORDS[more[0]]), 0)
    elif step == "again":
        kills.load(kept)
        kills.again(WORDS[more[0]], more[0])
    print(json.dumps(kills.report()))  # noqa: T201


if __name__ == "__main__":
    main()
