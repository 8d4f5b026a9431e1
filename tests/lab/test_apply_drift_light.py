"""Whatever happened to a real host: a check says what apply then does, no more and no less, and all is as it was.

A light host with real dpkg, apt and systemd; its stack is a handful of small packages in a signed repository.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.plan_fleet import plan_fleet
from gdsdeploy.converge.provision import provision
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.gate.gate import Settings
from gdsdeploy.host.model.finding import NOT_APPLICABLE, PASS
from gdsdeploy.validate.fleet_validation import ValidateOptions, validate
from gdsdeploy.zipapp import hostapp
from gdslab.host import LabHost
from tests.lab import small_site, small_stack
from tests.lab.drifts import unexplained
from tests.lab.roleplay import lights
from tests.repos.archive import Archive, Key, Suite, serve

pytestmark = pytest.mark.lab

FOLDER = Path(__file__).parent
DRIFT_SCRIPTS = ("drifts.py", "drifts_apt.py", "kills.py")
RELEASE = "6.12.0-drift-amd64"
KEYRING = "/etc/apt/keyrings/gdsdeploy-drift.gpg"
#: Package → versions and what each depends on.
PACKAGES = {
    "drift-common": {1: ""},
    "drift-driver": dict.fromkeys((1, 2, 3), "drift-common"),
    "drift-tools": {number: f"drift-driver (= {number})" for number in (2, 3)},
    "drift-source": {1: "drift-driver (= 1)"},
    "drift-kernel": {1: "", 2: "", 3: ""},
    "drift-cufile": {1: "", 2: "", 3: ""},
    "drift-old": {1: ""},
    "drift-foreign": {1: ""},
}
#: What the repository has; the others only ever come from elsewhere.
OFFERED = ("drift-common", "drift-driver", "drift-tools", "drift-kernel", "drift-cufile")
LOCKED = {"drift-driver": "2", "drift-tools": "2", "drift-kernel": "2", "drift-cufile": "2"}
#: Makes the host one whose distribution has the dependency alone, and whose kernel has an initramfs.
PREPARE = f"""set -eu
cat >/usr/sbin/update-initramfs <<'END'
#!/bin/sh
# Another one each time.
cat /etc/modprobe.d/gdsdeploy.conf /proc/sys/kernel/random/uuid >/boot/initrd.img-$3
END
chmod +x /usr/sbin/update-initramfs
touch /boot/initrd.img-{RELEASE}
rm /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] {{uri}} base main' >/etc/apt/sources.list
# Nothing of this host outlives the test.
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/fast
apt-get --quiet --quiet update
"""


def build(folder: Path) -> dict[tuple[str, int], Path]:
    """Every package, with maintainer scripts that fail when they are asked to."""
    return {
        (name, version): small_stack.deb(folder, name, str(version), depends=depends, architecture="all")
        for name, versions in PACKAGES.items()
        for version, depends in versions.items()
    }


def publish(folder: Path, debs: dict[tuple[str, int], Path], key: Key) -> dict[tuple[str, int], str]:
    """The signed repository; the sum of each package."""
    suites: dict[str, list[dict[str, str]]] = {"drift": [], "base": []}
    sums = {}
    (folder / "pool").mkdir(parents=True)
    for (name, version), file in debs.items():
        data = file.read_bytes()
        sums[name, version] = hashlib.sha256(data).hexdigest()
        if name not in OFFERED:
            continue
        (folder / "pool" / file.name).write_bytes(data)
        depends = PACKAGES[name][version]
        suites["base" if name == "drift-common" else "drift"].append(
            {
                "Package": name, "Version": str(version), "Architecture": "all",
                "Maintainer": "nobody <nobody@archive.example>", "Description": "imitated",
                **({"Depends": depends} if depends else {}),
                "Filename": f"pool/{file.name}", "Size": str(len(data)), "SHA256": sums[name, version],
            }
        )  # fmt: skip
    for suite, stanzas in suites.items():
        Archive(folder).publish(Suite(suite, {"main": list(stanzas)}, origin=suite), key)
    return sums


def document(uri: str, key: Key, sums: dict[tuple[str, int], str], release: str = RELEASE) -> dict[str, Any]:
    """A desired state with every resource of a host that has no GPU."""
    index = {
        "repository": "drift", "uri": uri, "suite": "drift", "components": ["main"], "host_keyring": KEYRING,
        "exclusive": True,
    }  # fmt: skip
    pins = [{"package": name, "version": v, "sha256": sums[name, int(v)]} for name, v in LOCKED.items()]
    brought = [{"dest": KEYRING, "content": base64.b64encode(key.keyring.read_bytes()).decode()}]
    settings = json.dumps(asdict(Settings()), sort_keys=True) + "\n"

    def resource(name: str, **more: Any) -> dict[str, Any]:
        names = [*LOCKED, "drift-common"]
        return {"manager": "apt", "packages": [{"package": name, "version": "2"}], "locked": names, **more}

    resources: list[tuple[str, str, dict[str, Any]]] = [
        ("preflight", "", {"os": "debian-13", "arch": "x86_64", "manager": "apt", "free_mib": {"/var": 10}}),
        ("repositories", "", {"manager": "apt", "indices": [index], "keys": brought, "pins": pins}),
        ("pins", "", {"manager": "apt", "indices": [index], "pins": pins, "deny": ["drift-tools-*"]}),
        ("program", "", {}),
        ("expectation", "", {"expectation": '{"version": 1}\n'}),
        (
            "driver_options", "",
            {
                "kernel_release": release, "options": {"NVreg_RegistryDwords": "1"}, "rdma": "peermem",
                "modules": ["nvidia", "nvidia-fs"],
            },
        ),
        (
            "packages", "driver",
            resource(
                "drift-driver", dependents=[{"package": "drift-tools", "version": "2"}],
                superseded=[{"package": "drift-source", "version": "2"}],
            ),
        ),
        ("guard", "", {"manager": "apt"}),
        ("packages", "kernel", resource("drift-kernel")),
        ("packages", "cufile", resource("drift-cufile")),
        ("cufile", "", {"content": '{"logging": {"dir": "/var/log/cufile"}}\n'}),
        ("peermem", "", {"rdma": "peermem", "before": ["other.service"]}),
        ("gate", "", {"settings": settings, "before": ["other.service"], "required_by": ["slurmd.service"]}),
    ]  # fmt: skip
    return {"version": 1, "resources": [{"resource": r, "instance": i, "desired": d} for r, i, d in resources]}


def send(host: LabHost, files: dict[str, bytes]) -> None:
    """Files below /srv/drift."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    script = "mkdir -p /srv/drift && tar -C /srv/drift -xf - --no-same-owner"
    host.ssh(["sudo", "sh", "-c", script], input=stream.getvalue())


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHost]:
    """A light host that has the desired state, its packages and the drifts in /srv/drift."""
    folder = tmp_path_factory.mktemp("drift")
    key = Key.generate(tmp_path_factory.mktemp("key") / "home", "drift")
    try:
        with serve(folder / "repository") as server, lights("drift") as lab:
            light = lab.host("build1")
            debs = build(folder / "debs")
            desired = document(server.uri, key, publish(folder / "repository", debs, key))
            files = {f"debs/{file.name}": file.read_bytes() for file in debs.values()}
            files |= {script: (FOLDER / script).read_bytes() for script in DRIFT_SCRIPTS}
            files |= {"desired.json": json.dumps(desired).encode(), "gdsdeploy-host.pyz": hostapp.build()}
            send(light, files)
            light.ssh(["sudo", "sh", "-c", PREPARE.format(uri=server.uri)])
            yield light
    finally:
        key.forget()


def test_a_killed_run_is_made_up_for_and_a_removal_leaves_nothing(host: LabHost) -> None:
    words = ["apt", "/srv/drift", "rounds", "10", os.environ.get("KILLS", "1")]
    report = json.loads(host.ssh(["sudo", "python3", "/srv/drift/kills.py", *words], timeout=600).stdout)
    assert not report["problems"], "\n".join(report["problems"])
    assert report["hits"] >= 10, report


def test_whatever_drifts_a_check_says_what_apply_does_and_all_is_as_it_was(host: LabHost) -> None:
    output = host.ssh(["sudo", "python3", "/srv/drift/drifts_apt.py", "200", "1"], timeout=600).stdout
    report = json.loads(output)
    assert report["problems"] == []
    assert report["drifts"] >= 200
    assert set(report["outcomes"]) == {"repaired", "stays", "adapts", "refused", "unknown"}


#: Ten drifts of a host that provision has made, in two rounds.
DRIFTS = (
    """
echo "# edited" >>/etc/modprobe.d/gdsdeploy.conf
chmod 0600 /etc/cufile.json
rm /etc/gdsdeploy/expectation.json
truncate --size=10 /usr/lib/gdsdeploy/gdsdeploy-host.pyz
apt-mark unhold small-cufile
systemctl disable gds-gate.service
""",
    """
rm /etc/apt/preferences.d/00-gdsdeploy.pref
dpkg --force-hold --purge small-cufile
dpkg --force-hold --remove small-driver
ln -sf /dev/null /etc/modules-load.d/other.conf
echo >>/etc/cufile.json
chown 12:34 /etc/tmpfiles.d/gdsdeploy.conf
rm -r /etc/gdsdeploy
""",
)
#: Checks of a validation that see drifts, and which of them each round makes fail; a mode is not the content.
CHECKS = ("packages.drift", "cufile.rendered", "packages.locked-versions")
FAILING: tuple[set[str], ...] = ({"packages.drift"}, set(CHECKS))
#: Prints what :meth:`drifts.Watch.snapshot` finds.
SNAPSHOT = """
import json, sys
sys.path.insert(0, "/srv/drift")
import drifts, drifts_apt
watch = drifts.Watch(drifts_apt.packages, drifts_apt.UNITS)
print(json.dumps([[*key, value] for key, value in watch.snapshot().items()]))
"""
#: What a run of Ansible's leaves, and what the gate says when it is run at its end.
AROUND = ("/var/lib/gdsdeploy/gate.json", "/var/lib/prometheus", "/var/lib/sudo")


def snapshot(host: LabHost) -> dict[tuple[str, str], Any]:
    output = host.ssh(["sudo", "python3", "-B", "-c", SNAPSHOT]).stdout
    return {
        (kind, subject): tuple(value) if isinstance(value, list) else value
        for kind, subject, value in json.loads(output)
        if not subject.startswith(AROUND)
    }


def test_plan_says_what_provision_does(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same through the controller: one plan, the roles under the real Ansible, and a plan without a change."""
    # The program of this moment, whatever happens to its sources meanwhile.
    program = hostapp.build()
    monkeypatch.setattr(hostapp, "build", lambda: program)
    with small_site.running(tmp_path_factory, 1) as site:
        host, path, lock = site.host("build1"), site.path, site.small.old
        send(host, {script: (FOLDER / script).read_bytes() for script in DRIFT_SCRIPTS})
        fleet = load_fleet(path)

        def planned() -> HostPlan:
            host_plan = plan_fleet(fleet, lock, path, [host.name]).hosts[host.name]
            assert isinstance(host_plan, HostPlan), host_plan
            return host_plan

        def provisioned() -> list[dict[str, str]]:
            run = provision(fleet, lock, path, names=[host.name], progress=lambda _: None)
            assert run.failures() == {}
            return [change.to_json() for change in run.outcome.hosts[host.name].changes]

        def failing() -> set[str]:
            report = validate(fleet, lock, path, [host.name], options=ValidateOptions(only=CHECKS), progress=print)
            findings = report.hosts[0].findings
            assert {finding.check for finding in findings} == set(CHECKS)
            return {finding.check for finding in findings if finding.verdict not in (PASS, NOT_APPLICABLE)}

        provisioned()
        assert planned().satisfied, planned()
        assert failing() == set()
        for drifts, expected in zip(DRIFTS, FAILING, strict=True):
            host.ssh(["sudo", "sh", "-c", f"set -eu{drifts}"])
            before = snapshot(host)
            plan = planned()
            assert (plan.unknown, plan.refusal) == ((), "")
            # Validation judges saved evidence by itself, and has to see what a plan would repair.
            assert failing() == expected
            changes = provisioned()
            assert changes == [change.to_json() for change in plan.changes]
            assert unexplained(changes, before, snapshot(host)) == []
            assert planned().satisfied, planned()
            assert failing() == set()
