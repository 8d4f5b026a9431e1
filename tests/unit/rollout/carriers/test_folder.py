"""What a host says of a folder that it pulled: whole and of the lock that is meant, or every reason why not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.host.__main__ import main
from gdsdeploy.host.cli import carrier_check

LOCK = "digest: sha256:aa\n"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"local.yml": "- hosts: all\n", "roles/r/tasks/main.yml": "[]\n", "gdsdeploy.lock": LOCK}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    manifest = {
        "version": 1,
        "for": "pull",
        "lock_digest": "sha256:aa",
        "files": {path: sha256(text) for path, text in files.items()},
    }
    (tmp_path / carrier_check.MANIFEST).write_text(json.dumps(manifest))
    return tmp_path


def test_whole_and_meant(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ours in (".git/config", "roles/r/__pycache__/x.pyc", "serve/a.tar"):
        (folder / ours).parent.mkdir(parents=True, exist_ok=True)
        (folder / ours).write_text("")
    assert main(["carried", str(folder), "--lock-digest", "sha256:aa", "--lock-sha256", sha256(LOCK)]) == 0
    assert capsys.readouterr().out == "3 files, made from the lock sha256:aa\n"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda at: (at / "local.yml").write_text("- hosts: none\n"), "local.yml: it is not as it was rendered"),
        (lambda at: (at / "local.yml").unlink(), "local.yml: it is missing"),
        (
            lambda at: (at / "roles/r/library").mkdir() or (at / "roles/r/library/uri.py").write_text(""),
            "roles/r/library/uri.py: it is in the folder, but was not rendered",
        ),
        (lambda at: (at / "host_vars").symlink_to("/etc"), "host_vars: it is in the folder, but was not rendered"),
        (
            lambda at: (at / "local.yml").rename(at / "serve") and (at / "local.yml").symlink_to("serve"),
            "local.yml: cannot be read: Too many levels of symbolic links",
        ),
        (lambda at: (at / carrier_check.MANIFEST).write_text("{"), "it isn't a manifest of gdsdeploy"),
        (
            lambda at: (at / carrier_check.MANIFEST).write_text('{"files": {}, "version": 1}'),
            "the rendering was interrupted",
        ),
        (lambda at: (at / carrier_check.MANIFEST).write_text('{"files": {"a": "b"}, "version": 2}'), "version 2"),
        (lambda at: (at / carrier_check.MANIFEST).unlink(), "cannot be read: No such file"),
        (
            lambda at: (at / carrier_check.MANIFEST).write_text('{"files": {"../x": "b"}, "version": 1}'),
            "the manifest points out of the folder",
        ),
    ],
)
def test_every_reason_not_to_run_it(
    folder: Path, change: Callable[[Path], object], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder)
    assert main(["carried", str(folder), "--json"]) == 30
    document = json.loads(capsys.readouterr().out)
    assert any(reason in line for line in document["wrong"]), document


def test_another_lock(folder: Path) -> None:
    by_name = carrier_check.judge(str(folder), lock_digest="sha256:bb")
    assert by_name["wrong"] == ["it was rendered from the lock sha256:aa, but sha256:bb is expected"]
    (wrong,) = carrier_check.judge(str(folder), lock_sha256=sha256("digest: sha256:aa\n# edited\n"))["wrong"]
    assert "it was rendered from another lock than the expected one" in wrong
