"""What the program that reads the tags of NVIDIA's repositories says of releases that are new to it."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from docs.gen import kernel_changes
from docs.gen.kernel_changes import Change, Clone, Seen


def git(folder: Path, *arguments: str, day: int = 0) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    when = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)).isoformat()
    dates = {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when} if day else {}
    command = ["git", "-C", folder, *identity, *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **dates})


def test_the_program_names_the_probes_that_a_new_release_has(tmp_path: Path) -> None:
    git(tmp_path, "init")
    conftest = tmp_path / "kernel-open" / "conftest.sh"
    conftest.parent.mkdir()
    for version, probes in {"580.1": ["a_one"], "580.2": ["a_one", "b_two"], "590.1": ["a_one", "b_two"]}.items():
        conftest.write_text("".join(f"        {probe})\n            compile\n        ;;\n" for probe in probes))
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--allow-empty", "-m", version)
        git(tmp_path, "tag", version)
    clone = Clone(tmp_path, "driver")
    assert list(kernel_changes.new_probes(clone, {"580.1"})) == [("580.2", ["b_two"]), ("590.1", [])]
    assert list(kernel_changes.new_probes(clone, {"580.1", "580.2"})) == [("590.1", [])]


CHANGE = {
    "id": "x-1", "module": "driver", "says": "X.", "source": "here", "kernel": (">=6.13",),
    "knows": {"*.c": "NEW"}, "uses": {"*.c": r"\bold\("},
}  # fmt: skip


@pytest.fixture
def releases(tmp_path: Path) -> Path:
    """10.1 and 10.2 use what was changed, 11.1 doesn't, 12.1 knows the change, and 12.0.5, a later one, doesn't."""
    git(tmp_path, "init")
    source = tmp_path / "kernel-open" / "nvidia" / "nv.c"
    source.parent.mkdir(parents=True)
    tags = (("10.1", "old()"), ("10.2", "old()"), ("11.1", ""), ("12.1", "NEW old()"), ("12.0.5", "old()"))
    for number, (version, code) in enumerate(tags, start=1):
        source.write_text(f"// {version}\n{code}\n")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-m", version, day=30 * number)
        git(tmp_path, "tag", version)
    return tmp_path


def test_what_tags_say_of_a_change(releases: Path) -> None:
    read = kernel_changes.read(Clone(releases, "driver"), [Change.model_validate(CHANGE)])
    assert (read.newest, f"{read.date}") == ("12.0.5", "2026-05-31")
    assert read.tags == {"10": ("10.1", "10.2"), "11": ("11.1",), "12": ("12.0.5", "12.1")}
    # A later 10 may know it; 12.0.6 would come after 12.0.5 and not before 12.1; 12.2 may follow either.
    assert read.changes["x-1"] == Seen(
        knows=(">=12.1, <=12.1",),
        breaks=("<=10.2", ">=12.0.5, <=12.0.5"),
        unknown=(">10.2, <11.1", ">=12, <12.0.5", ">12.0.5, <12.1", ">12.1"),
    )


def test_a_document_tells_of_a_release_without_a_tag(releases: Path) -> None:
    document = {"version": "12.4", "date": "2026-06-30", "knows": True, "source": "a build"}
    change = Change.model_validate({**CHANGE, "documents": (document,)})
    seen = kernel_changes.read(Clone(releases, "driver"), [change]).changes["x-1"]
    assert (seen.knows, seen.unknown[-1]) == ((">=12.1",), ">12.0.5, <12.1")
