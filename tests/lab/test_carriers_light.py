"""Other engines carry the work to a real host: ansible-runner, AWX's way of giving an inventory, and ansible-pull.

The roles are the real ones and really change the host, which is a light one: those that are cheap.  Left out, because
they download and build for minutes and the story runs them: gds_driver, gds_kernel, and DKMS in gds_modules, which here
receives a build.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import gdslab as labs
from gdsdeploy.builds import cache
from gdsdeploy.builds.assign import by_intent
from gdsdeploy.builds.builder_keys import BuilderKeys
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.archive import pack
from gdsdeploy.host.archive.provenance import Builder, Origin, public_pem
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.lock import lockfile
from gdslab.host import LabHost
from gdslab.state import Lab
from tests.lab.publishing import Published, published
from tests.lab.roleplay import connections, put
from tests.naming import unique
from tests.unit.host.kmod.kmod_root import RELEASE, Root

pytestmark = pytest.mark.lab

BIN = Path(sys.executable).parent
GOLDEN = Path(__file__).parents[1] / "golden" / "lab" / "gdsdeploy.lock"
RUN = "gds_preflight,gds_repo,gds_host,gds_cufile"
PULL = "gds_preflight,gds_repo,gds_host,gds_cufile,gds_gate,gds_reboot"
PREFERENCES = "/etc/apt/preferences.d/00-gdsdeploy.pref"
NEEDED, EXPECTATION = "/run/gdsdeploy/reboot-needed", "/etc/gdsdeploy/expectation.json"
CHECKOUT = "/var/lib/gdsdeploy-pull"
ARCHIVE = f"/var/lib/gdsdeploy/modules-{RELEASE}.tar"


@pytest.fixture(scope="module")
def small() -> Iterator[Lab]:
    name = unique("carriers")
    try:
        yield labs.up(name, vms=0, lights=1)
    finally:
        labs.down(Lab(name))


@pytest.fixture(scope="module")
def host(small: Lab) -> LabHost:
    builder = small.host("build1")
    builder.wait_ssh()
    return builder


@pytest.fixture(scope="module")
def fleet(small: Lab) -> Path:
    """The light host as a host that builds for itself, with a lock of the archive as it is."""
    value = yaml.safe_load(small.fleet_path.read_text())
    value["hosts"] = {name: {**entry, "modules": "build"} for name, entry in value.pop("builders").items()}
    value["profiles"]["gds"].pop("builder")
    small.fleet_path.write_text(yaml.safe_dump(value))
    run(BIN / "gdsdeploy", "lock", small.fleet_path)
    return small.fleet_path


@pytest.fixture(scope="module")
def site(host: LabHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """Where the host pulls from; it has ansible-core and git of its own archive, and knows authority and signer."""
    with published(tmp_path_factory.mktemp("site") / "site") as checkout:
        put(host, "/usr/local/share/ca-certificates/site.crt", checkout.authority)
        put(host, "/root/release.asc", checkout.key())
        script = (
            "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends "
            "ansible-core git gpg gpg-agent ca-certificates && update-ca-certificates && "
            "gpg --batch --import /root/release.asc"
        )
        host.ssh(["sudo", "sh", "-c", script], timeout=600)
        yield checkout


def run(*argv: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, status: int = 0) -> str:
    """What it printed; its exit code is as expected."""
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with connections() as own:
        done = subprocess.run(
            [str(argument) for argument in argv], env={**os.environ, **path, **own, **(env or {})}, cwd=cwd,
            capture_output=True, text=True, check=False, timeout=600, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == status, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def render(fleet: Path, folder: Path, carrier: str, *words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        run(BIN / "gdsdeploy", "rollout", "render", fleet, folder, "--for", carrier, "--json", *words)
    )
    return answer


def text(host: LabHost, path: str) -> str:
    return host.ssh(["sudo", "cat", path], ok=(0, 1)).stdout


def locked(fleet: Path) -> str:
    return lockfile.read(lockfile.beside(fleet)).digest


def pull(host: LabHost, site: Published, *words: str, tags: str = PULL) -> tuple[int, str]:
    """As a timer on the host would: exit code, and what was said; a plain web server cannot give one commit alone."""
    argv = ["sudo", "env", "LC_ALL=C.UTF-8", "ansible-pull", "--url", f"{site.uri}/repo.git", "--checkout", "main",
            "--directory", CHECKOUT, "--inventory", "inventory/hosts.yml", "--full", "--verify-commit", "--tags", tags,
            *words]  # fmt: skip
    done = host.ssh(argv, ok=range(256), timeout=600)
    return done.status, done.stdout + done.stderr


@pytest.fixture(scope="module")
def render_into(fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders for ansible-runner and AWX, not where they were rendered, as on the machine that runs them."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for carrier, words in (("runner", ["--ask"]), ("awx", [])):
        answer = render(fleet, folder / "rendered", carrier, *words)
        assert answer["machines"] == {"build1": "it builds them"}
        shutil.move(folder / "rendered", folder / carrier)
    return folder


def test_ansible_runner_carries_it(host: LabHost, fleet: Path, render_into: Path) -> None:
    folder = render_into / "runner"
    shutil.copy(fleet.parent / "id_ed25519", folder / "env" / "ssh_key")
    run("ansible-runner", "run", folder, "-p", "provision.yml", "--ident", "one", "--cmdline", f"--tags {RUN}")
    events = [json.loads(path.read_text()) for path in (folder / "artifacts/one/job_events").glob("*.json")]
    stats = next(entry["event_data"] for entry in events if entry["event"] == "playbook_on_stats")
    assert stats["changed"]["build1"] > 5
    assert (stats["failures"], stats["dark"]) == ({}, {})
    assert json.loads(text(host, EXPECTATION))["lock_digest"] == locked(fleet)
    assert "Rendered by gdsdeploy" in text(host, "/etc/cufile.json")
    assert host.ssh(["dpkg-query", "--show", "--showformat=${db:Status-Status}", "libcufile0"]).stdout == "installed"
    assert text(host, PREFERENCES)


def test_awx_finds_nothing_left_to_do(fleet: Path, render_into: Path, tmp_path: Path) -> None:
    """AWX reads an inventory source once, and gives it to each job as a script that prints it."""
    project = render_into / "awx"
    listed = run("ansible-inventory", "-i", "inventory/hosts.yml", "--list", "--export", cwd=project)
    (tmp_path / "listed.json").write_text(listed)
    script = tmp_path / "hosts"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/listed.json\n")
    script.chmod(0o755)
    key = fleet.parent / "id_ed25519"
    output = run("ansible-playbook", "-i", script, "--private-key", key, "--tags", RUN, "provision.yml", cwd=project)
    # The same as ansible-runner has done, to the byte.
    assert "changed=0" in output, output
    assert "failed=0" in output


def test_a_host_pulls_the_lock_that_is_meant_and_no_other(host: LabHost, fleet: Path, site: Published) -> None:
    render(fleet, site.checkout, "pull")
    site.commit()
    shutil.copy(lockfile.beside(fleet), site.served / "gdsdeploy.lock")
    lock_option = ("--extra-vars", f"gds_lock={site.uri}/gdsdeploy.lock")
    before = text(host, EXPECTATION)

    status, output = pull(host, site, "--limit", "build1", "--extra-vars", f"gds_lock_digest=sha256:{'0' * 64}")
    assert (status, "it was rendered from the lock sha256:" in output) == (2, True), output
    assert "changed=0" in output
    assert text(host, EXPECTATION) == before

    host.ssh(["sudo", "rm", "-f", "/etc/cufile.json", PREFERENCES])
    status, output = pull(host, site, *lock_option)
    assert status == 0, output
    assert "Rendered by gdsdeploy" in text(host, "/etc/cufile.json")
    assert "Pin: version" in text(host, PREFERENCES)
    assert host.ssh(["systemctl", "is-enabled", "gds-gate.service"]).stdout.strip() == "enabled"
    # The kernel that runs is this machine's own; a reboot is said to be needed, and none is made.
    assert "reboot needed: " in output
    assert "the running kernel is" in text(host, NEEDED)
    assert host.ssh(["sudo", "test", "-e", "/run/gdsdeploy/gate.json"], ok=(0, 1)).status == 1, "the gate waits for it"
    # What Python compiled in the checkout is no reason to refuse it.
    status, output = pull(host, site, *lock_option)
    assert (status, "changed=0" in output) == (0, True), output


def test_the_next_lock_comes_when_both_are_published(host: LabHost, fleet: Path, site: Published) -> None:
    """Needs the host as the test before has left it."""
    old = locked(fleet)
    target = lockfile.read(lockfile.beside(fleet)).targets["gds"]
    rest = tuple(package for package in target.packages if package.package != "nvidia-smi")
    lockfile.write(lockfile.beside(fleet), lockfile.build({"gds": target.model_copy(update={"packages": rest})}))
    shutil.copy(lockfile.beside(fleet), site.served / "gdsdeploy.lock")
    lock_option = ("--extra-vars", f"gds_lock={site.uri}/gdsdeploy.lock")
    status, output = pull(host, site, *lock_option)
    assert (status, "it was rendered from another lock than the expected one" in output) == (2, True), output
    assert json.loads(text(host, EXPECTATION))["lock_digest"] == old

    render(fleet, site.checkout, "pull")
    site.commit(sign=False)
    status, output = pull(host, site, *lock_option)
    assert status != 0, output
    assert "verify" in output.lower()
    assert json.loads(text(host, EXPECTATION))["lock_digest"] == old
    site.undo()

    render(fleet, site.checkout, "pull")
    site.commit()
    # What lies beside the rendered files would be taken by Ansible, too.
    put(host, f"{CHECKOUT}/group_vars/all.yml", b"gds_cufile_path: /etc/other.json\n")
    status, output = pull(host, site, *lock_option)
    assert (status, "group_vars/all.yml: it is in the folder, but was not rendered" in output) == (2, True), output
    assert json.loads(text(host, EXPECTATION))["lock_digest"] == old
    host.ssh(["sudo", "rm", "-r", f"{CHECKOUT}/group_vars"])

    status, output = pull(host, site, *lock_option)
    assert status == 0, output
    assert json.loads(text(host, EXPECTATION))["lock_digest"] == locked(fleet) != old


def test_modules_are_fetched_and_held_against_the_manifest(
    host: LabHost, site: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose modules are fetched over HTTPS; it has a kernel's modules, and neither headers nor compiler."""
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    value = yaml.safe_load((GOLDEN.parent / "fleet.yml").read_text())
    value["builders"], value["profiles"]["gds"]["builder"] = {"maker": "gds"}, "maker"
    value["hosts"] = {"build1": {"profile": "gds", "modules": "receive"}}
    changed = tmp_path / "fleet.yml"
    changed.write_text(yaml.safe_dump(value))
    shutil.copy(GOLDEN, lockfile.beside(changed))
    built, bare = Root(tmp_path / "built"), Root(tmp_path / "bare")
    built.nvidia(imports={"kfree": 0xAAAA0001})
    built.nvidia_fs()
    bare.remove_headers()
    bare.lists()
    maker = Builder("maker", b"m" * 32)
    pack.pack(Kernel(RELEASE, str(built.path)), (), str(tmp_path / "modules.tar"), maker)
    BuilderKeys.of(changed).path("maker").write_text(public_pem(maker.seed))
    want = by_intent(load_fleet(changed), lockfile.read(GOLDEN), "build1").want
    cache.default(print).put(tmp_path / "modules.tar", want, Origin("maker", public_pem(maker.seed)))

    shutil.rmtree(site.served / "modules", ignore_errors=True)
    for path in [entry for entry in site.checkout.iterdir() if entry.name != ".git"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    render(changed, site.checkout, "pull", "--modules-url", f"{site.uri}/modules")
    site.commit()
    shutil.copytree(site.checkout / "serve", site.served / "modules")
    digest = lockfile.read(GOLDEN).digest
    files = subprocess.run(["tar", "-C", bare.path, "-c", f"lib/modules/{RELEASE}"], check=True, capture_output=True)
    host.ssh(["sudo", "sh", "-c", f"tar -C /usr -xf - && depmod {RELEASE}"], input=files.stdout)

    archive = next((site.served / "modules").iterdir())
    good = archive.read_bytes()
    archive.write_bytes(good.replace(b"ELF", b"EVL", 1))
    words = ("--extra-vars", f"gds_lock_digest={digest}")
    status, output = pull(host, site, *words, tags="gds_host,gds_modules")
    assert (status, "checksum" in output) == (2, True), output
    paths_left = host.ssh(["sh", "-c", f"ls -d {ARCHIVE} /lib/modules/{RELEASE}/updates"], ok=(0, 1, 2)).stdout
    assert paths_left == ""
    archive.write_bytes(good)
    status, output = pull(host, site, *words, tags="gds_host,gds_modules")
    # The kernel that runs is another, so that nothing is loaded.
    assert status == 0, output
    assert "nvidia-fs.ko" in host.ssh(["ls", f"/lib/modules/{RELEASE}/updates/gdsdeploy"]).stdout
    status, output = pull(host, site, *words, tags="gds_host,gds_modules")
    assert (status, "changed=0" in output) == (0, True), output


def test_the_same_folder_takes_it_back(host: LabHost, render_into: Path) -> None:
    # ansible-runner keeps what --cmdline said for every run after it: docs/carriers.md.
    (render_into / "runner" / "env" / "cmdline").unlink()
    run("ansible-runner", "run", render_into / "runner", "-p", "remove.yml")
    listing = f"ls -d {EXPECTATION} {PREFERENCES} /usr/lib/gdsdeploy /etc/systemd/system/gds-gate.service"
    assert host.ssh(["sudo", "sh", "-c", listing], ok=(2,)).stdout == ""
