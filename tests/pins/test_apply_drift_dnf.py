"""Whatever happened to a host with dnf: a check says what apply then does, no more and no less.

The real dnf and rpm, above this machine's folders, in memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.zipapp import hostapp
from tests.pins.inplace import in_place
from tests.pins.test_dnf_pins import plugins
from tests.repos.archive import Key, Server, serve
from tests.repos.rpmarchive import Rpm, RpmArchive, Stream, build

__all__ = ["plugins"]
LAB = Path(__file__).parents[1] / "lab"
#: Before the lock, of the lock, after it.
VERSIONS = {
    "drift-driver": ["3:1-1", "3:2-1", "3:3-1"],
    "drift-cufile": ["1-1", "2-1", "3-1"],
    "drift-common": ["1-1", "2-1", "3-1"],
}
RPMS = [Rpm(name, version) for name, versions in VERSIONS.items() for version in versions]
LOCKED = [Rpm(name, versions[1]) for name, versions in VERSIONS.items()]
DRIVERS = [rpm for rpm in RPMS if rpm.name == "drift-driver"]
STREAMS = (Stream("drift", "locked", (DRIVERS[1],)), Stream("drift", "other", (DRIVERS[2],)))
#: Everything that is written lands in memory, over this machine's own folders, and is gone with the namespace.
PREPARE = """
mkdir -p /etc/dnf/modules.d /etc/dnf/plugins /etc/yum.repos.d /var/lib/gdsdeploy
mount -t tmpfs tmpfs /var/lib/rpm
# A host of rpm's has no package of dpkg's.
: >/var/lib/dpkg/status
cp -r "$1/etc/." /etc/
cd "$1"
shift
exec "$@"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, signing_key: Key, plugins: Path) -> Iterator[tuple[Path, Server]]:
    """A folder with signed packages, a repository of them, and the configuration of the host."""
    www = tmp_path_factory.mktemp("drift")
    build(RPMS, www / "rpms")
    defines = ("__gpg /usr/bin/gpg", f"_gpg_name {signing_key.fingerprint}", f"_gpg_path {signing_key.home}")
    options = [word for define in defines for word in ("--define", define)]
    subprocess.run(["rpmsign", "--addsign", *options, *(www / "rpms").glob("*.rpm")], check=True, capture_output=True)
    for name in ("all", "rebuilt"):
        shutil.copytree(www / "rpms", www / name)
    # The same name and version, signed with the right key.
    build([DRIVERS[1]], www / "again")
    subprocess.run(["rpmsign", "--addsign", *options, *(www / "again").glob("*")], check=True, capture_output=True)
    shutil.copy(www / "again" / DRIVERS[1].file, www / "rebuilt")
    for name in ("all", "rebuilt"):
        RpmArchive(www / name, streams=STREAMS).publish(signing_key)
    (www / "key").write_text(signing_key.armoured())
    files = {
        "dnf/dnf.conf": f"[main]\npluginpath={plugins}\nmodule_platform_id=platform:el9\ngpgcheck=1\nbest=0\n",
        "dnf/plugins/versionlock.conf": "[main]\nenabled=1\nlocklist=/etc/dnf/plugins/versionlock.list\n",
        "dnf/plugins/versionlock.list": "htop-0:3.2.1-1.*\n",
    }
    for name, text in files.items():
        (www / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (www / "etc" / name).write_text(text)
    with serve(www) as server:
        yield www, server


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def document(www: Path, server: Server, folder: str = "all") -> dict[str, Any]:
    pins = [{"package": rpm.name, "version": rpm.version} for rpm in LOCKED]
    locked = [{**pin, "sha256": digest(www / "all" / rpm.file)} for pin, rpm in zip(pins, LOCKED, strict=True)]
    key = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-drift"
    index = {
        "repository": "drift", "uri": f"{server.uri}/{folder}", "suite": "", "components": [], "host_keyring": key,
        "exclusive": True,
    }  # fmt: skip
    content = base64.b64encode((www / "key").read_bytes()).decode()
    driver, *others = pins
    resources: list[tuple[str, str, dict[str, Any]]] = [
        ("repositories", "", {"indices": [index], "keys": [{"dest": key, "content": content}], "pins": locked}),
        ("pins", "", {"indices": [index], "pins": locked, "deny": ["drift-denied"], "modules": ["drift:locked"]}),
        ("packages", "driver", {"packages": [driver]}),
        ("packages", "cufile", {"packages": others}),
    ]
    listed = [{"resource": name, "instance": i, "desired": {"manager": "dnf", **d}} for name, i, d in resources]
    return {"version": 1, "resources": listed}


def environment(home: Path, plugins: Path) -> dict[str, str]:
    own = {"HOME": str(home), "PYTHONPATH": f"{plugins}:{LAB}", "no_proxy": "127.0.0.1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **own}


def test_whatever_drifts_a_check_says_what_apply_does_and_all_is_as_it_was(
    site: tuple[Path, Server], plugins: Path, tmp_path: Path
) -> None:
    www, server = site
    (www / "desired.json").write_text(json.dumps(document(www, server)))
    (www / "versions.json").write_text(json.dumps(VERSIONS))
    hostapp.build(www / "gdsdeploy-host.pyz")
    env = environment(tmp_path, plugins)
    play = [sys.executable, LAB / "drifts_dnf.py", www, "60", "1", *os.environ.get("DRIFTS", "").split()]
    argv = in_place(PREPARE, www, *play, over=("etc", "var", "srv"), processes=True)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["problems"] == []
    assert report["drifts"] >= 60


def test_a_killed_run_is_made_up_for_and_a_removal_leaves_nothing(
    site: tuple[Path, Server], plugins: Path, tmp_path: Path
) -> None:
    www, server = site
    (www / "desired.json").write_text(json.dumps(document(www, server)))
    hostapp.build(www / "gdsdeploy-host.pyz")
    play = [sys.executable, LAB / "kills.py", "dnf", www, "rounds", "10", os.environ.get("KILLS", "1")]
    argv = in_place(PREPARE, www, *play, over=("etc", "var", "srv"), processes=True)
    done = subprocess.run(
        argv, env=environment(tmp_path, plugins), capture_output=True, text=True, check=False, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert not report["problems"], "\n".join(report["problems"])
    assert report["hits"] >= 10, report


#: Refused with another file of the driver; then, with the locked one, everything is there.
APPLY = """
for name in rebuilt locked; do
    python3 -I -S host.pyz apply --json --desired $name.json >$name.answer || echo "$name: $?"
    rpm -qa --qf "$name: %{NAME}\n"
    ls /etc/yum.repos.d/gdsdeploy.repo 2>&1 || true
done
"""


def test_a_package_that_was_built_again_is_not_installed(
    site: tuple[Path, Server], plugins: Path, tmp_path: Path
) -> None:
    www, server = site
    hostapp.build(www / "host.pyz")
    for name, folder in (("rebuilt", "rebuilt"), ("locked", "all")):
        (www / f"{name}.json").write_text(json.dumps(document(www, server, folder)))
    argv = in_place(PREPARE, www, "sh", "-euc", APPLY, over=("etc", "var", "srv"), processes=True)
    done = subprocess.run(
        argv, env=environment(tmp_path, plugins), capture_output=True, text=True, check=False, timeout=1800
    )
    answers = {name: json.loads((www / f"{name}.answer").read_text()) for name in ("rebuilt", "locked")}
    assert answers["locked"]["error"] is None, answers["locked"]["error"]
    error = answers["rebuilt"]["error"]
    rebuilt, locked = digest(www / "rebuilt" / DRIVERS[1].file), digest(www / "all" / DRIVERS[1].file)
    assert error["message"] == (
        f"dnf on this host offers other files than the locked ones: drift-driver=3:2-1 has sha256 {rebuilt}, "
        f"and in the lock {locked}"
    )
    assert error["kind"] == "verify"
    assert done.stdout.split("locked: ")[0].splitlines()[0].startswith("rebuilt: 1"), done.stdout + done.stderr
    installed = [line for line in done.stdout.splitlines() if "drift-" in line]
    assert sorted(installed) == ["locked: drift-common", "locked: drift-cufile", "locked: drift-driver"]
    assert "gdsdeploy.repo: No such file" in done.stdout.replace("'", ""), "its repository is taken back"


#: Killed between the end of dnf and that of its record: rpm trusts the key, and the record only has those before.
STOPPED = """
for round in whole stopped; do
    python3 -I -S host.pyz apply --json --desired desired.json >$round.answer
    cp /var/lib/gdsdeploy/rpmkeys $round.keys
    echo "before nothing" >/var/lib/gdsdeploy/rpmkeys
done
"""


def test_the_record_of_keys_is_settled_by_a_run_that_installs_nothing(
    site: tuple[Path, Server], plugins: Path, tmp_path: Path
) -> None:
    www, server = site
    hostapp.build(www / "host.pyz")
    (www / "desired.json").write_text(json.dumps(document(www, server)))
    argv = in_place(PREPARE, www, "sh", "-euc", STOPPED, over=("etc", "var", "srv"), processes=True)
    subprocess.run(argv, env=environment(tmp_path, plugins), capture_output=True, check=True, timeout=1800)
    resources = json.loads((www / "stopped.answer").read_text())["resources"]
    assert [resource["changes"] for resource in resources] == [[]] * 4
    assert (www / "stopped.keys").read_text() == (www / "whole.keys").read_text()
    assert (www / "whole.keys").read_text().startswith("ours ")
