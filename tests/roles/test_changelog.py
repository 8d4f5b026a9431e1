"""The collection's changelog: fragments name what changed, and a release collects them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import yaml

from tests.roles.installing import BIN, ROOT
from tests.roles.readme import ROLES

FRAGMENTS = sorted((ROOT / "changelogs/fragments").glob("*"))
MODULES = {path.stem for path in (ROOT / "plugins/modules").glob("gds_*.py")}
#: What a line may be about.
SUBJECTS = {"All modules", "All playbooks", "All roles", *MODULES, *(role.name for role in ROLES)}
LINE = re.compile(r"(?P<subjects>[\w, ]+) - .+\.")


def lines(fragment: Path) -> list[str]:
    """Its lines, without the summary of the release."""
    sections = yaml.safe_load(fragment.read_text())
    return [line for name, texts in sections.items() if name != "release_summary" for line in texts]


def problems(texts: Iterable[str]) -> list[str]:
    """Lines that don't begin with what they are about."""
    matches = [(text, LINE.fullmatch(text)) for text in texts]
    return [text for text, match in matches if not match or not set(match["subjects"].split(", ")) <= SUBJECTS]


def test_fragments_are_about_roles_modules_and_playbooks() -> None:
    assert problems(line for fragment in FRAGMENTS for line in lines(fragment)) == []
    assert problems(["gds_host, gds_gate - a change.", "All roles - a change."]) == []
    wrong = ["A change.", "gds_nothing - a change.", "gds_host - a change", "gds_host: a change."]
    assert problems(wrong) == wrong


def test_the_changelog_doesnt_repeat_a_fragment() -> None:
    text = " ".join((ROOT / "CHANGELOG.md").read_text().split()).lower()
    changes = [line.partition(" - ")[2] for fragment in FRAGMENTS for line in lines(fragment)]
    assert [change for change in changes if change.replace("``", "`").lower().rstrip(".") in text] == []


def new_modules(version: str) -> set[str]:
    """Modules whose ``version_added``, their own or the fragment's of all, is this version."""
    default = _version_added((ROOT / "plugins/doc_fragments/apply.py").read_text())
    versions = {path.stem: _version_added(path.read_text()) for path in (ROOT / "plugins/modules").glob("gds_*.py")}
    return {name for name, own in versions.items() if (own or default) == version}


def _version_added(text: str) -> str:
    match = re.search(r"(?m)^version_added: (\S+)$", text)
    return match[1] if match else ""


def test_a_release_collects_fragments_and_new_modules(tmp_path: Path) -> None:
    for name in ("changelogs", "gdsdeploy", "meta", "playbooks", "plugins", "roles"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "_share"))
    shutil.copy(ROOT / "galaxy.yml", tmp_path)
    fragment = tmp_path / "changelogs/fragments/another.yml"
    fragment.write_text("---\nbugfixes:\n  - gds_cufile - a release has this line.\n")
    env = {"HOME": str(tmp_path), "PATH": f"{BIN}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    argv = [BIN / "antsibull-changelog", "release", "--update-existing"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    version = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
    release = yaml.safe_load((tmp_path / "changelogs/changelog.yaml").read_text())["releases"][version]
    texts = {text for texts in release["changes"].values() for text in ([texts] if isinstance(texts, str) else texts)}
    assert texts >= {"gds_cufile - a release has this line.", *(line for each in FRAGMENTS for line in lines(each))}
    assert {module["name"] for module in release.get("modules", [])} == new_modules(version)
    assert "a release has this line" in (tmp_path / "changelogs/CHANGELOG.md").read_text()
    assert list((tmp_path / "changelogs/fragments").iterdir()) == []
