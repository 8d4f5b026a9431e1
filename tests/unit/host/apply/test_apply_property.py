"""Whatever happened to the files: a check predicts the changes, a second run has none, remove restores the tree."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, strategies as st

from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.errors import ApplyError
from tests.unit.host.apply import apply_tree
from tests.unit.host.apply.apply_tree import FILES, DesiredFiles, Some, apply, check, differing, tree

#: fsync costs nothing there.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
PATHS = [file.path for file in FILES]
#: What can be at a path before gdsdeploy came.
BEFORE = st.sampled_from(["nothing", "same", "other", "mode", "link", "dangling", "circle"])
DRIFTS = st.sampled_from(["edited", "removed", "chmod", "link", "dangling", "circle", "folder", "file", "chown"])


def put(root: Path, path: str, what: str) -> None:
    """Have something at ``path``; a folder where a folder is wanted."""
    place = root / path.lstrip("/")
    file = next(entry for entry in FILES if entry.path == path)
    if what == "nothing":
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if what in ("link", "dangling", "circle"):
        target = {"link": "/srv/elsewhere", "dangling": "/srv/none", "circle": place.name}[what]
        if file.kind == "folder":
            # In a folder that leads round in a circle nothing can be looked at.
            target = "/srv/folder" if what == "link" else "/srv/none"
        # Relative, so that this test follows them inside the root, too.
        place.symlink_to(os.path.relpath(target, Path(path).parent) if target.startswith("/") else target)
    elif file.kind == "folder":
        place.mkdir(mode=0o755, exist_ok=True)
        place.chmod(file.mode if what == "same" else 0o700)
    else:
        place.write_bytes(file.content if what in ("same", "mode") else b"other\n")
        place.chmod(file.mode if what == "same" else 0o640)


def drift(root: Path, path: str, what: str) -> None:
    """Somebody changes ``path`` behind our back."""
    place = root / path.lstrip("/")
    folder = next(entry.kind for entry in FILES if entry.path == path) == "folder"
    if not place.parent.is_dir() or (folder and what not in ("chmod", "chown", "file")):
        return
    if what in ("edited", "chmod", "chown") and place.exists():
        if what == "edited" and place.is_file():
            place.write_bytes(b"edited\n")
        elif what == "chown":
            os.chown(place, 12, 34)
        else:
            place.chmod(0o705)
        return
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()
    if what in ("link", "dangling", "circle"):
        put(root, path, what)
    elif what == "folder":
        place.mkdir()
    elif what == "file":
        place.write_bytes(b"a file of somebody else\n")


def populated(root: Path, before: dict[str, str]) -> None:
    (root / "srv" / "folder").mkdir(parents=True)
    (root / "srv" / "elsewhere").write_bytes(b"elsewhere\n")
    (root / "etc").mkdir()
    (root / "var" / "lib").mkdir(parents=True)
    for path in PATHS:
        place = root / path.lstrip("/")
        if os.path.lexists(place) or place.parent.is_symlink():
            continue
        put(root, path, before[path])


@pytest.mark.skipif(os.geteuid() != 0, reason="files are root's")
@given(
    before=st.fixed_dictionaries(dict.fromkeys(PATHS, BEFORE)),
    drifts=st.lists(st.tuples(st.sampled_from(PATHS), DRIFTS), max_size=5),
)
def test_predicted_made_and_taken_back(before: dict[str, str], drifts: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = Path(folder)
        populated(root, before)
        original = tree(root)
        if run(root):
            after = tree(root)
            for path, what in drifts:
                drift(root, path, what)
            drifted = tree(root)
            # What gdsdeploy hadn't changed is as its owner has left it.
            theirs = differing(after, drifted) - differing(original, after)
            original = {path: entry for path, entry in original.items() if path not in theirs}
            original.update({path: drifted[path] for path in theirs if path in drifted})
            run(root)
        host = ManagedHost(root=folder)
        predicted = {real(root, change.subject) for change in Some().revert(ManagedHost(check=True, root=folder))}
        now = tree(root)
        refused = any(refusal.id == "kind" for refusal in check(root, Some(), DesiredFiles(FILES)).refusals)
        event("refused" if refused else "applied")
        if refused:
            return
        Some().revert(host)
        assert predicted == differing(now, tree(root))
        assert tree(root) == original
        assert host.record.paths == {}
        assert Some().revert(ManagedHost(check=True, root=folder)) == []


def real(root: Path, path: str) -> str:
    """Where a path is, if its folder is a link, or itself one to a folder."""
    target = ManagedHost(root=str(root)).target
    file = next((entry for entry in FILES if entry.path == path), None)
    if file is not None and file.kind == "folder":
        return target(path)
    return str(Path(target(str(Path(path).parent)), Path(path).name))


def run(root: Path) -> bool:
    """Apply, as predicted; whether it was not refused, in which case nothing may have changed."""
    predicted = check(root, Some(), DesiredFiles(FILES))
    now = tree(root)
    if predicted.refusals or predicted.unknown:
        with pytest.raises(ApplyError):
            apply(root, Some(), DesiredFiles(FILES))
        assert tree(root) == now
        return False
    changes: list[Any] = apply(root, Some(), DesiredFiles(FILES))
    after = tree(root)
    assert [(c.kind, c.subject, c.reason) for c in changes] == [
        (c.kind, c.subject, c.reason) for c in predicted.changes
    ]
    # Folders are made for files where there are none, and belong to them.
    parents = {"/opt", "/opt/deep", "/opt/deep/er"}
    assert differing(now, after) - parents == {real(root, change.subject) for change in changes}
    assert check(root, Some(), DesiredFiles(FILES)).changes == []
    assert not [path for path in after if apply_tree.OWN not in path and path.endswith("-new")]
    return True
