"""The repositories of a host: those that presets know, at which address, and with whose keys."""

from __future__ import annotations

import pytest

from gdsdeploy.platform.debian import KEYRING
from gdsdeploy.proposal.observe import ObservedRepository
from tests.unit.proposal.observed_hosts import (
    CUDA,
    DEBIAN,
    UBUNTU,
    Document,
    bare,
    gpu,
    observed,
    with_files,
    with_packages,
)

DEBIANS = KEYRING.read_bytes()
UBUNTU_KEYRING = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
#: Debian's keys, which stand for those of a site.
SITE = {UBUNTU_KEYRING: DEBIANS}
APT = "/etc/apt/sources.list.d"


def names(document: Document) -> tuple[str, ...]:
    return observed("gpu1", document).kind.repositories


def one(document: Document, name: str, *, present: bool = True) -> ObservedRepository:
    """The repository of that name; present: whether the controller has each keyring."""
    return {each.name: each for each in observed("gpu1", document, lambda _: present).repositories}[name]


def test_what_a_host_lacks_is_left_out_or_added() -> None:
    document = with_files(bare(), {f"{APT}/debian.sources": DEBIAN.split("\n\n")[0]})
    assert names(document) == ("debian",)
    assert "it has no repository debian-security" in observed("gpu1", document).notes
    assert names(gpu()) == ("nvidia", "ubuntu", "ubuntu-security")
    assert one(gpu(), "nvidia").remark == "not on these hosts, but the stack needs it"


def test_whose_driver_a_host_has_decides_the_order() -> None:
    cuda = {f"{APT}/cuda.list": CUDA}
    nvidias = with_packages(with_files(gpu(), cuda), [("nvidia-utils-580", "580.95.05-0ubuntu1")])
    assert names(nvidias) == ("nvidia", "ubuntu", "ubuntu-security")
    ubuntus = with_packages(with_files(gpu(), cuda), [("nvidia-utils-580", "580.95.05-0ubuntu0.24.04.1")])
    assert names(ubuntus) == ("ubuntu", "ubuntu-security", "nvidia")
    source = CUDA.replace("ubuntu2404", "debian13")
    debians = with_packages(with_files(bare(), {f"{APT}/cuda.list": source}), [("nvidia-kernel-dkms", "550.163.01-2")])
    assert names(debians) == ("debian", "debian-security", "nvidia")
    assert one(with_files(gpu(), cuda), "nvidia").entry == {}, "the vendor's own address is the preset's"


def test_a_key_that_the_controller_has_is_not_copied() -> None:
    document = with_files(bare(), {}, {str(KEYRING): DEBIANS})
    assert one(document, "debian").key == b""
    copied = one(document, "debian", present=False)
    assert copied.key == DEBIANS
    assert "fingerprints" not in copied.entry, "the preset pins the vendor's keys, whatever the host sent"
    assert copied.remark == ""
    assert "this machine needs its keys" in one(bare(), "debian", present=False).remark


def test_a_sites_own_key_is_pinned_and_named() -> None:
    mirror = one(with_files(gpu(), {}, SITE), "ubuntu")
    assert mirror.key == DEBIANS
    assert "B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8" in mirror.entry["fingerprints"]
    assert mirror.entry["signed_by"] == UBUNTU_KEYRING
    assert "isn't the vendor's published one" in mirror.remark


def test_another_vendors_repository_with_the_same_suite_is_not_the_archive() -> None:
    other = "deb [signed-by=/usr/share/keyrings/microsoft.gpg] https://packages.example/ubuntu/24.04/prod noble main\n"
    document = with_files(gpu(), {f"{APT}/a.list": other})
    assert one(document, "ubuntu").entry == {"uri": "http://archive.ubuntu.com/ubuntu"}
    document["files"][f"{APT}/ubuntu.sources"] = "# empty\n"
    assert "uri" not in one(document, "ubuntu").entry


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("https://user:secret@mirror.example/ubuntu", "has a login in it"),
        ("cdrom://Ubuntu", "none that a fleet file can have"),
        ("https://mirror.example/\x1b[31m", "none that a fleet file can have"),
        ("http://[::1/ubuntu", "none that a fleet file can have"),
    ],
)
def test_an_address_that_no_fleet_file_may_have(uri: str, words: str) -> None:
    text = UBUNTU.replace("http://archive.ubuntu.com/ubuntu/", uri)
    repository = one(with_files(gpu(), {f"{APT}/ubuntu.sources": text}), "ubuntu")
    assert "uri" not in repository.entry
    assert words in repository.remark
    assert "secret" not in repository.remark


def test_a_path_of_keys_that_no_fleet_file_may_have() -> None:
    path = "/keys/\x1b[31m.gpg"
    text = UBUNTU.replace(UBUNTU_KEYRING, path)
    repository = one(with_files(gpu(), {f"{APT}/ubuntu.sources": text}, {path: DEBIANS}), "ubuntu")
    assert repository.key == DEBIANS
    assert "signed_by" not in repository.entry


def test_sources_that_apt_would_not_take_either_are_a_note() -> None:
    host = observed("gpu1", with_files(gpu(), {f"{APT}/broken.list": "deb\n"}))
    assert any("broken.list:1: not an apt source" in note for note in host.notes)


def test_dnfs_variables_and_repositories_that_are_off() -> None:
    mirror = (
        "[baseos]\nbaseurl=https://$site/rocky/$releasever/BaseOS/$basearch/os/\n"
        "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-$releasever\n"
        "[appstream]\nbaseurl=https://$site/rocky/$releasever/AppStream/$basearch/os/\n"
        "[cuda]\nbaseurl=https://old.example/rhel9/x86_64\nenabled=0\n"
    )
    files = {"/etc/yum.repos.d/rocky.repo": mirror, "/etc/dnf/vars/site": "mirror.example\n"}
    document = with_files(gpu("rocky-9.5", "5.14.0-503.40.1.el9_5.x86_64"), files)
    assert names(document) == ("rocky-baseos", "rocky-appstream", "epel", "nvidia")
    assert one(document, "rocky-baseos").entry == {"uri": "https://mirror.example/rocky"}
    assert one(document, "nvidia").entry == {}
    broken = with_files(document, {"/etc/yum.repos.d/bad.repo": "baseurl=x\n"})
    assert any("bad.repo can't be read" in note for note in observed("gpu1", broken).notes)


def test_a_system_without_presets_says_so() -> None:
    host = observed("gpu1", gpu("rhel-9.5", "5.14.0-503.40.1.el9_5.x86_64"))
    assert host.kind.repositories == ("epel", "nvidia")
    assert "rhel-9 has no presets: add its repositories (docs/repositories.md)" in host.notes


def test_evidence_without_sources_is_told_from_a_host_without_them() -> None:
    document = bare()
    del document["files"][f"{APT}/debian.sources"]
    host = observed("gpu1", document)
    assert host.kind.repositories == ("debian", "debian-security")
    assert "its package repositories were not looked at" in host.notes
