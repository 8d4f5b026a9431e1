"""A rollback where the repository has dropped the old packages: the real dnf takes the files that were brought."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply.packages import dnf
from gdsdeploy.host.apply.packages.managers import Package
from gdsdeploy.host.apply.restore import ARCHIVE, PLACE
from gdsdeploy.zipapp import hostapp
from tests.pins.inplace import in_place
from tests.pins.test_apply_drift_dnf import PREPARE, RPMS, STREAMS, VERSIONS, document, environment, plugins, site
from tests.repos.archive import Key, Server
from tests.repos.rpmarchive import RpmArchive

__all__ = ["plugins", "site"]
OLD = [rpm for rpm in RPMS if rpm.version == VERSIONS[rpm.name][1]]
NEW = [rpm for rpm in RPMS if rpm.version == VERSIONS[rpm.name][2]]
#: Locks and streams as they are after each step; then the versions that are installed.
PLAY = """
rpm --install --nosignature "$OLD"/*.rpm
run() {
    python3 -I -S host.pyz apply --json --desired "$1.json" >"$1.answer" || :
    rpm -qa --qf "$1 %{NAME} %{VERSION}\\n" 'drift-*' | sort
}
run upgrade
cp packages.tar "$ARCHIVE"
run offer
printf '[gone]\\nname=gone\\nbaseurl=http://127.0.0.1:9/\\nskip_if_unavailable=0\\n' >/etc/yum.repos.d/gone.repo
run rollback
run again
run remove
ls "$PLACE" 2>&1 || :
rm /etc/yum.repos.d/gone.repo
run provision
"""


def locked(www: Path, server: Server, rpms: list[Any], stream: str) -> dict[str, Any]:
    """The document of a lock with these packages, of a repository that has only the new ones."""
    text = json.dumps(document(www, server, "new"))
    for old, new in zip(OLD, rpms, strict=True):
        if old != new:
            digests = [hashlib.sha256((www / "all" / rpm.file).read_bytes()).hexdigest() for rpm in (old, new)]
            text = text.replace(
                f'"package": "{old.name}", "version": "{old.version}"',
                f'"package": "{old.name}", "version": "{new.version}"',
            )
            text = text.replace(*digests)
    value: dict[str, Any] = json.loads(text.replace("drift:locked", f"drift:{stream}"))
    return value


def restore(step: str, **desired: str) -> dict[str, Any]:
    return {
        "version": 1,
        "resources": [{"resource": "restore", "desired": {"manager": "dnf", "step": step, **desired}}],
    }


@pytest.mark.parametrize("brought", [True, False])
def test_old_packages_come_back_although_the_repository_dropped_them(
    site: tuple[Path, Server], signing_key: Key, plugins: Path, tmp_path: Path, brought: bool
) -> None:
    www, server = site
    shutil.rmtree(www / "new", ignore_errors=True)
    for folder, rpms in ((www / "new", NEW), (tmp_path / "old", OLD)):
        folder.mkdir()
        for rpm in rpms:
            shutil.copy(www / "all" / rpm.file, folder)
    RpmArchive(www / "new", streams=STREAMS).publish(signing_key)
    with tarfile.open(www / "packages.tar", "w") as tar:
        for rpm in OLD if brought else []:
            tar.add(www / "all" / rpm.file, Path(dnf.file_of(Package(rpm.name, rpm.version))).name)
    digest = hashlib.sha256((www / "packages.tar").read_bytes()).hexdigest()
    back = locked(www, server, OLD, "locked")
    documents = {
        "upgrade": locked(www, server, NEW, "other"), "offer": restore("offer", archive_sha256=digest),
        "rollback": back, "again": back, "remove": restore("remove"), "provision": back,
    }  # fmt: skip
    for name, value in documents.items():
        (www / f"{name}.json").write_text(json.dumps(value))
    hostapp.build(www / "host.pyz")
    script = f"OLD={tmp_path / 'old'}; ARCHIVE={ARCHIVE}; PLACE={PLACE}\n{PLAY}"
    argv = in_place(PREPARE, www, "sh", "-euc", script, over=("etc", "var", "srv"), processes=True)
    done = subprocess.run(
        argv, env=environment(tmp_path, plugins), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = {name: json.loads((www / f"{name}.answer").read_text()) for name in documents}
    installed = {
        name: [line.split()[-1] for line in done.stdout.splitlines() if line.startswith(name + " ")]
        for name in documents
    }
    assert installed["upgrade"] == ["3", "3", "3"], answers["upgrade"]["error"]
    assert answers["offer"]["error"] is None
    if not brought:
        words = "dnf would not take exactly the locked versions of: "
        assert answers["rollback"]["error"]["message"].startswith(words)
        assert installed["rollback"] == ["3", "3", "3"]
        return
    assert answers["rollback"]["error"] is None, answers["rollback"]["error"]
    assert installed["rollback"] == ["2", "2", "2"]
    # Nothing is left to do, with and without the files.
    for name in ("again", "remove", "provision"):
        assert answers[name]["error"] is None, answers[name]["error"]
    for name in ("again", "provision"):
        assert [c for result in answers[name]["resources"] for c in result["changes"]] == []
    assert "No such file" in done.stdout
