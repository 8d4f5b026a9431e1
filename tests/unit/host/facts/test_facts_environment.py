"""Containers and variables, by the marks that they leave."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.environment import EnvironmentFacts, environment_facts
from tests.unit.later_evidence import complete

HOSTS = Path(__file__).parents[3] / "evidence" / "hosts"
BARE = json.loads((HOSTS / "lab-vm-bare.json").read_text())
LAYERED = "1 0 0:50 / / rw - overlay overlay rw,lowerdir=/a\n2 1 8:1 / /data rw - ext4 /dev/sda1 rw\n"


def facts(change: dict[str, Any] | None = None, **sections: Any) -> EnvironmentFacts:
    document = complete(copy.deepcopy(BARE))
    document["files"].update(change or {})
    for section, value in sections.items():
        document[section] = {**document[section], **value} if isinstance(value, dict) else value
    return environment_facts(Document(document))


def test_a_host_is_no_container() -> None:
    result = facts()
    assert (result.container, result.root, result.variables, result.complete) == (None, True, {}, True)


@pytest.mark.parametrize(
    ("mark", "text", "name"),
    [
        ("/run/systemd/container", "systemd-nspawn\n", "systemd-nspawn"),
        ("/run/host/container-manager", "systemd-nspawn\n", "systemd-nspawn"),
        ("/.dockerenv", "", "Docker"),
        ("/.singularity.d/runscript", "#!/bin/sh\n", "Apptainer"),
        ("/run/.containerenv", 'engine="podman-4.3.1"\n', "Podman"),
    ],
)
def test_marks_of_containers(mark: str, text: str, name: str) -> None:
    assert facts({mark: text, "/proc/self/mountinfo": LAYERED}).container == name


def test_a_machine_below_a_folder_of_its_host() -> None:
    root = "1 0 8:1 /var/lib/machines/x / rw - ext4 /dev/sda1 rw\n"
    marks = {"/run/systemd/container": "systemd-nspawn\n", "/proc/self/mountinfo": root}
    assert facts(marks).container == "systemd-nspawn"


def test_a_virtual_machine_that_was_made_from_an_image_is_none() -> None:
    assert facts({"/.dockerenv": "", "/run/systemd/container": "docker\n"}).container is None


def test_kubernetes_and_control_groups() -> None:
    assert facts(environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).container == "Kubernetes"
    for line, name in (
        ("/docker/0123", "Docker"),
        ("/kubepods/crio-01", "Kubernetes"),
        ("/containerd/1", "a container"),
    ):
        groups = {"/proc/1/cgroup": {"pattern": "", "lines": [f"12:pids:{line}"]}}
        assert facts(excerpts=groups).container == name


@pytest.mark.parametrize(
    ("variable", "name"),
    [("APPTAINER_NAME", "Apptainer"), ("SINGULARITY_NAME", "Singularity"), ("ENROOT_VERSION", "Enroot")],
)
def test_managers_that_leave_no_file(variable: str, name: str) -> None:
    assert facts(environment={variable: "a.sif"}).container == name


def test_a_pod_of_cri_o_has_the_mark_of_podman_and_the_variable_of_kubernetes() -> None:
    files = {"/run/.containerenv": "", "/proc/self/mountinfo": LAYERED}
    assert facts(files, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).container == "Kubernetes"


def test_what_was_not_looked_at_is_not_known() -> None:
    assert isinstance(environment_facts(Document(BARE)).container, Unknown)
    assert isinstance(environment_facts(Document(BARE)).variable("CUFILE_FORCE_COMPAT_MODE"), Unknown)
    assert isinstance(facts({"/.dockerenv": {"error": "EACCES"}}).container, Unknown)
    document = complete(copy.deepcopy(BARE))
    del document["files"]["/proc/self/mountinfo"]
    document["files"]["/.dockerenv"] = ""
    assert isinstance(environment_facts(Document(document)).container, Unknown)


@pytest.mark.parametrize(
    ("place", "line", "value"),
    [
        ("/etc/environment", "CUFILE_X=true", "true"),
        ("/etc/environment", 'CUFILE_X="true"', "true"),
        ("/etc/profile", "export CUFILE_X=/a/b.json", "/a/b.json"),
        ("/etc/security/pam_env.conf", "CUFILE_X DEFAULT=1 OVERRIDE=2", "1"),
        ("/etc/systemd/system.conf", "DefaultEnvironment=CUFILE_X=true OTHER=1", "true"),
        ("/etc/environment", "# CUFILE_X=true", None),
        ("/etc/environment", "CUFILE_OTHER=true", None),
    ],
)
def test_variables_where_hosts_give_them(place: str, line: str, value: str | None) -> None:
    result = facts(excerpts={place: {"pattern": "", "lines": [line]}}).variable("CUFILE_X")
    if value is None:
        assert result is None
    else:
        assert result is not None
        assert not isinstance(result, Unknown)
        assert (result.value, result.place, result.line) == (value, place, line)


def test_variables_in_folders_and_in_the_environment_itself() -> None:
    listings = {"/etc/profile.d": ["gds.sh", "README"]}
    excerpts = {"/etc/profile.d/gds.sh": {"pattern": "", "lines": ["export CUFILE_X=1"]}}
    result = facts(listings=listings, excerpts=excerpts)
    assert result.variables["CUFILE_X"].place == "/etc/profile.d/gds.sh"
    assert result.complete is True, "a README sets nothing"
    own = facts(listings=listings, excerpts=excerpts, environment={"CUFILE_X": "2"}).variables["CUFILE_X"]
    assert (own.value, own.place) == ("2", "the environment of this program")
    assert isinstance(facts(listings=listings).complete, Unknown), "the fragment was listed and not read"
