"""DOCA's repositories as the lab makes them: the resolver locks DOCA's own packages, and those built for one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gdsdeploy.errors import NoSolution
from gdsdeploy.model.lock import Target
from gdslab.kit import doca, eldoca, rpm, sign
from gdslab.kit.content import Trees
from gdslab.kit.elversions import Versions
from tests.repos import kitcontent
from tests.repos.conftest import Rhel, Ubuntu, Verb, lock
from tests.repos.rpmarchive import Rpm as RpmPackage, build

#: Neither is the newest kernel on offer.
UBUNTU_KERNEL, EL_KERNEL = "6.8.0-60-generic", "5.14.0-503.15.1.el9_5"
BUILT = {
    "apt": ("doca-kernel-6.8.0.60.generic", "mlnx-nvme-modules"),
    "rpm": ("doca-kernel-5.14.0.503.15.1.el9.5.x86.64", "kmod-mlnx-nvme"),
}


def write_fleet(fleet: Path, entries: Mapping[str, object], *packages: str, **profile: object) -> None:
    """Add DOCA's repositories to a fleet file, and let its profile ask for these packages."""
    value = yaml.safe_load(fleet.read_text())
    value["repositories"].update(entries)
    own = value["profiles"]["gds"]
    own["repositories"] += [name for name in entries if name not in own["repositories"]]
    own.update(doca=list(packages), **profile)
    fleet.write_text(yaml.safe_dump(value))


def versions(target: Target, *repositories: str) -> dict[str, str]:
    return {p.package: p.version for p in target.packages if p.repository in repositories}


@pytest.fixture
def apt(ubuntu: Ubuntu, tmp_path: Path) -> dict[str, object]:
    """DOCA's repositories for a host of Ubuntu 24.04, served; returns their entries for the fleet file."""
    out, work = ubuntu.archive.root.parent, tmp_path / "work"
    kernel = kitcontent.kernel(work)
    keys = doca.publish(kitcontent.content(work), UBUNTU_KERNEL, kernel, "24.04", out, work)
    return {
        name: {
            "uri": f"{ubuntu.server.uri}/{place}",
            "suites": ["/"],
            "keyring": str(out / f"{name}.gpg"),
            "fingerprints": [keys[name]],
        }
        for name, place in doca.folders("ubuntu24.04").items()
    }


def test_apt_takes_the_modules_that_dkms_builds_and_the_distributions_dkms(
    ubuntu: Ubuntu, apt: dict[str, object]
) -> None:
    write_fleet(ubuntu.fleet, {"doca": apt["doca"]}, "doca-ofed", rdma="peermem")
    target = lock(ubuntu.fleet)
    ofed = f"{doca.OFED}.{doca.BUILD}"
    assert versions(target, "doca") == {
        "doca-ofed": doca.DOCA,
        "doca-ofed-userspace": doca.DOCA,
        "mlnx-ofed-kernel-dkms": f"{ofed}-1",
        "mlnx-ofed-kernel-utils": f"{ofed}-1",
        "mlnx-tools": doca.TOOLS,
        "ofed-scripts": "26.04.OFED.26.04.1.0.9-1",
    }
    (dkms,) = [p for p in target.packages if p.package == "dkms"]
    assert dkms.repository != "doca"
    assert {p.needed_by for p in target.packages if p.repository == "doca"} == {"both"}


def test_apt_takes_the_kernel_that_modules_were_built_for(ubuntu: Ubuntu, apt: dict[str, object]) -> None:
    assert lock(ubuntu.fleet).kernel.release != UBUNTU_KERNEL
    write_fleet(ubuntu.fleet, apt, "doca-ofed-userspace", *BUILT["apt"])
    target = lock(ubuntu.fleet)
    assert target.kernel.release == UBUNTU_KERNEL
    assert set(versions(target, "doca-kernel")) == {*BUILT["apt"], "mlnx-ofed-kernel-modules"}
    assert "mlnx-ofed-kernel-dkms" not in versions(target, "doca")
    (why,) = {choice.words for choice in target.refused if choice.rule == "doca-kernel"}
    assert why == f"The profile asks for modules that were built for another kernel: {BUILT['apt'][0]}."


def test_modules_of_another_kernel_and_two_kinds_of_modules_are_refused(
    ubuntu: Ubuntu, apt: dict[str, object], verb: Verb
) -> None:
    write_fleet(ubuntu.fleet, apt, "doca-ofed-userspace", BUILT["apt"][0], kernel="6.11")
    assert (
        "[doca-kernel] kernel 6.11.0-26-generic: The profile asks for modules"
        in verb("lock", ubuntu.fleet, error=NoSolution).err
    )
    write_fleet(ubuntu.fleet, apt, "doca-ofed", BUILT["apt"][0], kernel="newest")
    assert "conflicts with mlnx-ofed-kernel-modules" in verb("lock", ubuntu.fleet, error=NoSolution).err


@pytest.fixture
def dnf(rhel: Rhel, tmp_path: Path) -> dict[str, object]:
    """DOCA's repositories for a host of release 9, served: its own index is unsigned, a site signs the other one."""
    out, trees = rhel.cuda.root.parent, Trees(tmp_path / "work", kitcontent.content(tmp_path / "content"))
    kitcontent.kernel(trees.work)
    shell = RpmPackage("bash", "5.1.8-9.el9", vendor="Red Hat, Inc.", provides=("/bin/sh", "python3"))
    (build([shell], tmp_path / "shell") / shell.file).rename(rhel.baseos.root / shell.file)
    rhel.baseos.publish(rhel.key)
    own = Versions(9, "9.5", "el9", "bookworm", EL_KERNEL, EL_KERNEL, "3.2.2-1.el9")
    entries: dict[str, object] = {}
    for name, packages in (("doca", eldoca.network(own, trees)), ("doca-kernel", eldoca.for_kernel(own, trees))):
        folder = out / doca.folders("rhel9")[name]
        with sign.signer(doca.MAKERS[name]) as signer:
            rpm.sign(rpm.build(packages, folder), signer.home, signer.fingerprint)
            signer.export(out / f"{name}.key", armour=True)
            entry: dict[str, object] = {"kind": "rpm", "uri": f"{rhel.server.uri}/{doca.folders('rhel9')[name]}"}
            entry["keyring"] = str(out / f"{name}.key")
            if name == "doca":
                rpm.publish(folder, None)
                entry |= {"metadata": "unsigned", "why": "DOCA", "package_keys": [signer.fingerprint]}
            else:
                rpm.publish(folder, lambda path, own=signer: own.detached(path, path.with_name(f"{path.name}.asc")))
                entry["fingerprints"] = [signer.fingerprint]
            entries[name] = entry
    return entries


def test_dnf_takes_the_modules_that_dkms_builds(rhel: Rhel, dnf: dict[str, object]) -> None:
    write_fleet(rhel.fleet, {"doca": dnf["doca"]}, "doca-ofed")
    ofed = f"{doca.OFED}-{doca.BUILD}.el9"
    assert versions(lock(rhel.fleet), "doca") == {
        "doca-ofed": f"{doca.DOCA}.el9",
        "doca-ofed-userspace": f"{doca.DOCA}.el9",
        **dict.fromkeys(("mlnx-ofa_kernel", "mlnx-ofa_kernel-dkms", "mlnx-ofa_kernel-source"), ofed),
        "mlnx-tools": f"{doca.TOOLS}.el9",
        "ofed-scripts": "26.04-OFED.26.04.1.0.9",
    }


def test_dnf_takes_the_kernel_that_modules_were_built_for(rhel: Rhel, dnf: dict[str, object]) -> None:
    assert lock(rhel.fleet).kernel.release != f"{EL_KERNEL}.x86_64"
    write_fleet(rhel.fleet, dnf, "doca-ofed-userspace", *BUILT["rpm"])
    target = lock(rhel.fleet)
    assert target.kernel.release == f"{EL_KERNEL}.x86_64"
    assert set(versions(target, "doca-kernel")) == {*BUILT["rpm"], "kmod-mlnx-ofa_kernel"}
