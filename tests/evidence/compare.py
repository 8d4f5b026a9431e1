"""What the host programs of two worktrees say about every recorded host and pasted log: ``compare.py OLD NEW``.

Facts, causes, findings and topology of all recorded hosts of OLD, and the answers to its recorded logs.  It prints
each difference and ends with status 1 if there is any.  Use it before and after a change that must not change answers:

    git worktree add --detach /tmp/old COMMIT
    python tests/evidence/compare.py /tmp/old .
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Runs in a process for each worktree, because both have a package of one name.
CHILD = """
import contextlib, io, json, sys
tree, questions, answers = sys.argv[1:]
sys.path.insert(0, tree)
from gdsdeploy.host.__main__ import main
said = {}
for name, words in json.load(open(questions)).items():
    text, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(errors):
            status = main(words)
    except BaseException as error:
        status = repr(error)
    try:
        value = json.loads(text.getvalue())
    except ValueError:
        value = text.getvalue()
    said[name] = [status, value, errors.getvalue()]
json.dump(said, open(answers, "w"))
"""


def recorded(name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, evidence) of each recorded host inside a JSON value."""
    if isinstance(value, dict):
        if {"files", "host", "listings"} <= value.keys():
            yield name, value
            return
        for key, part in value.items():
            yield from recorded(f"{name}#{key}", part)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from recorded(f"{name}#{index}", part)


def questions(tree: Path, folder: Path) -> dict[str, list[str]]:
    """What is asked → arguments of the host program; evidence is written to ``folder``."""
    asked = {}
    hosts = 0
    for path in sorted([*(tree / "tests").rglob("*.json"), *(tree / "lab").rglob("*.json")]):
        try:
            value = json.loads(path.read_text())
        except ValueError:
            continue
        for name, evidence in recorded(str(path.relative_to(tree)), value):
            hosts += 1
            file = folder / f"{hosts}.json"
            file.write_text(json.dumps(evidence))
            for verb in ("facts", "explain", "topology"):
                asked[f"{name}: {verb}"] = [verb, "--json", "--evidence", str(file)]
            for expected in sorted((tree / "tests").rglob("*expectation*.json")):
                asked[f"{name}: validate for {expected.name}"] = [
                    "validate", "--json", "--evidence", str(file), "--expectation", str(expected),
                ]  # fmt: skip
    for log in sorted([*(tree / "tests/evidence").rglob("*.log"), *(tree / "tests/evidence").rglob("*.txt")]):
        asked[f"{log.relative_to(tree)}: log"] = ["explain", "--json", "--log", str(log)]
    if not hosts:
        sys.exit(f"{tree}: no recorded host is below it; name two worktrees")
    sys.stdout.write(f"{hosts} recorded hosts, {len(asked)} questions\n")
    return asked


def differences(old: Any, new: Any, place: str) -> Iterator[str]:
    """A line for each value that isn't equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key in old and key in new:
                yield from differences(old[key], new[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}: only in {'OLD' if key in old else 'NEW'}"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif old != new:
        yield f"{place}: {str(old)[:150]!r} → {str(new)[:150]!r}"


def main(old: str, new: str) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "questions").write_text(json.dumps(questions(Path(old).resolve(), folder)))
        said = []
        for number, tree in enumerate((old, new)):
            answers = folder / f"answers{number}"
            words = [sys.executable, "-I", "-c", CHILD, Path(tree).resolve(), folder / "questions", answers]
            subprocess.run(words, check=True)
            said.append(json.loads(answers.read_text()))
    refused = sum(isinstance(status, str) or status == 2 for status, _, _ in said[0].values())
    lines = [line for name, answer in said[0].items() for line in differences(answer, said[1][name], name)]
    lines.append(f"{len(lines)} differences; OLD refuses {refused} of the questions")
    sys.stdout.write("\n".join(lines) + "\n")
    return len(lines) > 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
