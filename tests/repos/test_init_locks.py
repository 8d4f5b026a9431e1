"""What `gdsdeploy init` proposes for a mixed fleet is locked without an edit, from the hosts' own repositories."""

from __future__ import annotations

from pathlib import Path

from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.proposal.propose import Source, propose, yaml_text
from tests.commandline import run
from tests.repos.archive import Key
from tests.repos.conftest import Debian, Ubuntu, serve_rhel
from tests.repos.rpmarchive import RpmArchive
from tests.unit.proposal import observed_hosts as hosts

KEYRINGS = "/usr/share/keyrings"


def test_a_mixed_fleet_locks_without_an_edit(
    debian: Debian, ubuntu: Ubuntu, rpm_pool: Path, key: Key, tmp_path: Path
) -> None:
    """Site mirrors, signed by the site's key: the controller has neither their addresses nor their keys."""
    public = key.keyring.read_bytes()
    (tmp_path / "www/nv/ubuntu2404").mkdir(parents=True)
    (tmp_path / "www/nv/ubuntu2404/x86_64").symlink_to(ubuntu.cuda.root)
    (tmp_path / "el").mkdir()
    with serve_rhel(tmp_path / "el", rpm_pool, key) as rhel:
        root = tmp_path / "el/www"
        (root / "none").mkdir()
        RpmArchive(root / "none").publish(key)
        for place, target in {
            **dict.fromkeys(("rocky/9/BaseOS/x86_64/os", "rocky/9/AppStream/x86_64/os"), "baseos"),
            "epel/9/Everything/x86_64": "none",
            "nv/rhel9/x86_64": "cuda",
        }.items():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).symlink_to(root / target)
        repo = "".join(
            f"[{name}]\nname=x\nbaseurl={rhel.server.uri}/{place}\nenabled=1\ngpgkey=file:///etc/pki/rpm-gpg/site\n"
            for name, place in {
                "baseos": "rocky/$releasever/BaseOS/$basearch/os/",
                "appstream": "rocky/$releasever/AppStream/$basearch/os/",
                "epel": "epel/$releasever/Everything/$basearch",
                "cuda-rhel9": "nv/rhel9/x86_64",
            }.items()
        )
        deb = hosts.DEBIAN.replace("http://deb.debian.org/debian", debian.server.uri)
        deb = deb.replace("http://security.debian.org/debian-security", debian.server.uri).replace(
            "main", "main contrib"
        )
        noble = hosts.UBUNTU.replace("http://archive.ubuntu.com", ubuntu.server.uri)
        noble = noble.replace("http://security.ubuntu.com", ubuntu.server.uri)
        cuda = f"deb [signed-by={KEYRINGS}/cuda.gpg] {ubuntu.server.uri}/nv/ubuntu2404/x86_64 /\n"
        documents = {
            "deb1": hosts.with_files(
                hosts.bare(),
                {"/etc/apt/sources.list.d/debian.sources": deb},
                {f"{KEYRINGS}/debian-archive-keyring.gpg": public},
            ),
            "noble1": hosts.with_files(
                hosts.gpu(driver="580.82.07"),
                {"/etc/apt/sources.list.d/ubuntu.sources": noble, "/etc/apt/sources.list.d/cuda.list": cuda},
                {f"{KEYRINGS}/{name}": public for name in ("ubuntu-archive-keyring.gpg", "cuda.gpg")},
            ),
            "el1": hosts.with_files(
                hosts.gpu("rocky-9.5", "5.14.0-503.40.1.el9_5.x86_64"),
                {"/etc/yum.repos.d/rocky.repo": repo},
                {"/etc/pki/rpm-gpg/site": key.armoured().encode()},
            ),
        }
        observations = [hosts.observed(name, document, Path.is_file) for name, document in documents.items()]
        proposal = propose(observations, {}, Source({}), keys=str(tmp_path / "keys"), day="2026-11-26")
        (tmp_path / "keys").mkdir()
        for name, content in proposal.keys.items():
            (tmp_path / "keys" / name).write_bytes(content)
        path = tmp_path / "proposed.yml"
        path.write_text(yaml_text(proposal.nodes))
        assert run("lock", path) == 0
        assert run("lock", "--check", path) == 0
    # One key, one file.
    assert sorted(proposal.keys) == ["debian.gpg", "rocky-baseos.asc"]
    fleet, targets = load_fleet(path), lockfile.read(lockfile.beside(path)).targets
    by_host = {name: targets[host.profile] for name, host in fleet.hosts.items()}
    assert {name: (target.os, target.driver.version, target.kernel.release) for name, target in by_host.items()} == {
        "deb1": ("debian-13", "550.163.01", "6.12.94+deb13-amd64"),
        "noble1": ("ubuntu-24.04", "580.95.05", "6.11.0-26-generic"),
        "el1": ("rocky-9", "580.95.05", "5.14.0-503.40.1.el9_5.x86_64"),
    }
    assert {index.signed_by for target in by_host.values() for index in target.indices if index.signed_by} == {
        key.fingerprint
    }
