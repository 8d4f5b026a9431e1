"""What the program that reads the tags of NVIDIA's repositories says of releases that are new to it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from docs.gen import kernel_changes
from docs.gen.kernel_changes import Clone


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


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
