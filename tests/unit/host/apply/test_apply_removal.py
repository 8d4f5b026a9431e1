"""remove: everything that was recorded, and everything that older versions left without a record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import record, registry, removal, written
from gdsdeploy.host.apply.file_resource import FileResource
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change, Resource
from gdsdeploy.host.errors import DesiredError
from tests.unit.host.apply.apply_tree import FILES, DesiredFiles, Some, Systemctl, apply, tree

MARKED = "# Rendered by gdsdeploy; changes here are overwritten.\n"
THEIRS = {
    "/etc/cufile.json.site": "{}",
    "/etc/dkms/framework.conf": "# of the package\n",
    "/etc/dkms/zfs.conf": "# of somebody\n",
    "/etc/apt/keyrings/docker.gpg": "key",
    "/etc/depmod.d/ubuntu.conf": "search updates\n",
    "/etc/systemd/system/slurmd.service": "[Unit]\n",
    "/var/log/cufile/cufile_1.log": "log\n",
}
#: Of any number there may be, one each.
OURS = {
    "/etc/cufile.json": "// Rendered by gdsdeploy; changes here are overwritten.\n{}",
    "/etc/apt/keyrings/gdsdeploy-cuda.gpg": "key",
    "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-cuda": "key",
    "/etc/dkms/nvidia-fs.conf": MARKED,
    "/etc/gdsdeploy/expectation.json": "{}",
    "/etc/gdsdeploy/gate.json": "{}",
    "/usr/lib/gdsdeploy/gdsdeploy-host.pyz": "PK",
    "/usr/lib/gdsdeploy/slurm-health": MARKED,
    "/usr/lib/gdsdeploy/sign-file": MARKED,
    "/var/lib/gdsdeploy/gate.json": "{}",
    "/var/lib/gdsdeploy/modules-6.1.0.tar": "tar",
    "/var/lib/gdsdeploy-restore/packages/x.deb": "deb",
    "/var/lib/gdsdeploy-mok-password": "secret",
    "/var/log/gdsdeploy/kmod/6.1.0/nvidia.log": "log\n",
    "/run/gdsdeploy/healthy": "2026-11-22T10:00:00Z 20 checks passed\n",
}


def put(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        Path(f"{root}{path}").parent.mkdir(parents=True, exist_ok=True)
        Path(f"{root}{path}").write_text(text)


def summaries(changes: list[Change]) -> set[tuple[str, str]]:
    return {(change.kind, change.subject) for change in changes}


def removed(root: Path) -> set[tuple[str, str]]:
    """Remove what was predicted; a second call is without change."""
    predicted = summaries(removal.remove(ManagedHost(check=True, root=str(root))))
    assert summaries(removal.remove(ManagedHost(root=str(root)))) == predicted
    assert removal.remove(ManagedHost(check=True, root=str(root))) == []
    assert removal.remove(ManagedHost(root=str(root))) == []
    return predicted


def files(root: Path) -> dict[str, str]:
    return {path: entry[-1].decode() for path, entry in tree(root, ()).items() if isinstance(entry[-1], bytes)}


def test_a_host_of_an_older_version_is_cleaned_without_a_record(tmp_path: Path, systemctl: Systemctl) -> None:
    put(tmp_path, {**THEIRS, **OURS, **dict.fromkeys(written.FILES, MARKED), "/run/gdsdeploy/apply.lock": ""})
    removed(tmp_path)
    assert files(tmp_path) == {**THEIRS, "/run/gdsdeploy/apply.lock": ""}
    assert [argv[1:] for argv in systemctl.calls if argv[0] == "systemctl"] == [
        ["disable", "gds-gate.service"],
        ["disable", "gds-watch.service"],
        ["disable", "gds-peermem.service"],
    ]


def test_what_was_recorded_comes_back(tmp_path: Path, systemctl: Systemctl) -> None:
    put(tmp_path, {**THEIRS, "/etc/some.conf": "before\n"})
    # A resource that this version doesn't know.
    apply(tmp_path, Some(), DesiredFiles(FILES))
    put(tmp_path, OURS)
    removed(tmp_path)
    assert files(tmp_path) == {**THEIRS, "/etc/some.conf": "before\n"}
    assert not Path(f"{tmp_path}{record.PATH}").exists()


def test_a_host_that_never_had_it(tmp_path: Path, systemctl: Systemctl) -> None:
    put(tmp_path, THEIRS)
    before = tree(tmp_path, ())
    assert removed(tmp_path) == set()
    assert tree(tmp_path, ()) == before


def test_only_some_resources(tmp_path: Path, systemctl: Systemctl) -> None:
    put(tmp_path, {**OURS, **dict.fromkeys(written.FILES, MARKED)})
    changes = removal.remove(ManagedHost(root=str(tmp_path)), ["cufile", "guard"])
    assert {change.subject for change in changes} == {
        *(path for path in written.FILES if "gdsdeploy-guard" in path),
        *("/etc/cufile.json", "/etc/tmpfiles.d/gdsdeploy.conf"),
    }
    assert "/etc/gdsdeploy/gate.json" in files(tmp_path)
    with pytest.raises(DesiredError, match="preflight: can't be removed by itself; known: guard, "):
        removal.remove(ManagedHost(root=str(tmp_path)), ["cufile", "preflight"])


def test_packages_of_the_running_kernel_are_remembered(
    tmp_path: Path, systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"/var/lib/gdsdeploy/installed": "linux-image-6.1.0\n", "/var/lib/gdsdeploy/gate.json": "{}"})
    monkeypatch.setattr(removal.packages, "staying", lambda host: ["linux-image-6.1.0"])
    monkeypatch.setattr(removal.packages.Packages, "revert", lambda self, host: [])
    removed(tmp_path)
    assert files(tmp_path) == {"/var/lib/gdsdeploy/installed": "linux-image-6.1.0\n"}
    monkeypatch.setattr(removal.packages, "staying", lambda host: [])
    removed(tmp_path)
    assert not (tmp_path / "var/lib/gdsdeploy").exists()


def stopping(host: ManagedHost, number: int) -> ManagedHost:
    """A host that is interrupted before its change of this number."""
    calls = iter(range(number))

    def wrapped(real: Callable[..., None]) -> Callable[..., None]:
        def change(*words: Any, **named: Any) -> None:
            if next(calls, None) is None:
                raise KeyboardInterrupt
            real(*words, **named)

        return change

    host.restore, host.remove_tree = wrapped(host.restore), wrapped(host.remove_tree)  # type: ignore[method-assign]
    return host


def test_an_interrupted_removal_goes_on(tmp_path: Path, systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {**OURS, **dict.fromkeys(written.FILES, MARKED), "/etc/some.conf": "before\n"})
    apply(tmp_path, Some(), DesiredFiles(FILES))
    for number in (1, 3, 5):
        with pytest.raises(KeyboardInterrupt):
            removal.remove(stopping(ManagedHost(root=str(tmp_path)), number))
        assert "/etc/some.conf" in json.loads(Path(f"{tmp_path}{record.PATH}").read_text())["paths"]
    removed(tmp_path)
    assert files(tmp_path) == {"/etc/some.conf": "before\n"}


def test_every_resource_that_changes_a_host_is_taken_back() -> None:
    resources = [registry.resource(name) for name in registry.names()]
    own = [one for one in resources if type(one).revert not in (Resource.revert, FileResource.revert)]
    by_paths = [one for one in resources if type(one).revert is FileResource.revert and getattr(one, "reverts", ())]
    reverting = {one.name for one in [*own, *by_paths]}
    assert reverting == set(registry.removal_order())


def test_the_order_of_removal() -> None:
    """Hooks go before what they call, packages before what they came from."""
    assert " ".join(registry.removal_order()) == (
        "guard gate watch peermem modules boot_default boot_arguments imex packages pins repositories driver_options "
        "module_options cufile signing recipes expectation program"
    )


def test_one_list_of_files_serves_removal_and_snapshots() -> None:
    """What resources say they revert is what a snapshot looks at; nothing of ours is on one list only."""
    paths = {
        path
        for name in registry.removal_order()
        for path in getattr(registry.resource(name), "reverts", ())
        if not path.startswith(written.FOLDERS)
    }
    snapshot = {
        *written.FILES,
        *written.PASSING,
        *written.SHARED,
        *(f"{folder}/{pattern}" for folder, pattern in written.KEYS),
    }
    recipes = f"{written.RECIPES[0]}/{written.RECIPES[1]}"
    assert {path for path in paths if path not in snapshot and path != recipes} == set()
