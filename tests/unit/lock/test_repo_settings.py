"""Which repositories a profile uses, and where their addresses come from.

Of a preset, a fleet file needs its name only, whatever the system and the architecture.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.converge.machine import indices as host_indices, keyrings
from gdsdeploy.errors import FleetInvalid, RepositoryUnusable
from gdsdeploy.host.apply.packages.aptsources import Source
from gdsdeploy.lock.repo_settings import controller_uri, repositories
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.platform import stack_platform_for, supported_systems
from gdsdeploy.repo.repository import Repository

TRIXIE = stack_platform_for("debian-13")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def source(uri: str, suite: str, signed_by: str | None = KEYRING, components: tuple[str, ...] = ("main",)) -> Source:
    return Source(("deb",), uri, suite, components, signed_by)


OWN = [
    source("https://mirror.example/debian", "bookworm"),
    source("https://mirror.example/debian-security", "bookworm-security"),
]


def fleet(entries: dict[str, Any] | None = None, system: str = "debian-13", **profile: Any) -> Fleet:
    value = {"version": 1, "profiles": {"gds": {"os": system, **profile}}, "hosts": {"gpu1": "gds"}}
    return Fleet.model_validate({**value, "repositories": entries or {}})


def test_presets_take_their_address_from_the_controller_whatever_its_release() -> None:
    archive, security = repositories(fleet(), "gds", TRIXIE, OWN)
    assert (archive.name, archive.uri) == ("debian", "https://mirror.example/debian")
    assert archive.suites == ("trixie", "trixie-updates")
    assert archive.components == ("main", "contrib", "non-free", "non-free-firmware")
    assert archive.host_keyring == KEYRING
    assert (security.uri, security.suites) == ("https://mirror.example/debian-security", ("trixie-security",))


@pytest.mark.parametrize(
    "other",
    [
        source("https://vendor.example/debian", "bookworm", "/etc/apt/keyrings/vendor.gpg"),
        source("https://vendor.example/debian", "bookworm", None, ("stable",)),
        source("https://vendor.example/sdk", "cloud-sdk-bookworm", None),
        source("cdrom:[Debian 12]", "bookworm", None),
        Source(("deb-src",), "https://vendor.example/debian", "bookworm", ("main",), KEYRING),
    ],
)
def test_other_vendors_entries_are_not_mistaken_for_the_archive(other: Source) -> None:
    assert controller_uri(TRIXIE.presets()["debian"], [other]) is None


def test_an_entry_that_names_the_keyring_is_preferred() -> None:
    unnamed = source("https://vendor.example/debian", "bookworm", None)
    assert controller_uri(TRIXIE.presets()["debian"], [unnamed, *OWN]) == "https://mirror.example/debian"
    assert controller_uri(TRIXIE.presets()["debian"], [unnamed]) == "https://vendor.example/debian"


def test_a_controller_without_the_archive_needs_an_address() -> None:
    with pytest.raises(RepositoryUnusable, match="repository debian: the fleet file gives no uri"):
        repositories(fleet(), "gds", TRIXIE, [])


def test_the_fleet_file_goes_over_the_preset() -> None:
    wish = {"debian": {"uri": "https://site.example/deb/", "suites": ["trixie"], "keyring": "/srv/site.gpg"}}
    archive, _ = repositories(fleet(wish), "gds", TRIXIE, OWN)
    assert (archive.uri, archive.suites, str(archive.keyring)) == (
        "https://site.example/deb",
        ("trixie",),
        "/srv/site.gpg",
    )
    assert archive.host_keyring == "/etc/apt/keyrings/gdsdeploy-debian.gpg"
    assert archive.fingerprints == TRIXIE.presets()["debian"].fingerprints


def test_everything_that_is_missing_is_listed_at_once() -> None:
    wish = {"cuda": {"suites": ["stable"]}, "rpms": {"kind": "rpm", "uri": "https://m.example", "suites": ["x/"],
            "keyring": "/k", "fingerprints": ["A" * 40]}}  # fmt: skip
    with pytest.raises(FleetInvalid) as error:
        repositories(fleet(wish, repositories=["cuda", "rpms", "nowhere"]), "gds", TRIXIE, OWN)
    names = "cuda, debian, debian-security, nvidia, rpms"
    assert error.value.message.splitlines() == [
        "repositories.cuda: debian-13 has no preset of this name, so give uri, keyring, fingerprints, components",
        "repositories.rpms: kind is rpm, but debian-13 uses apt",
        f"profiles.gds.repositories: there is no repository 'nowhere'; there are {names}",
    ]


# -- Presets.

CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
KEY = "0" * 40


def chosen(system: str, *names: str, entries: dict[str, Any] | None = None, arch: str = "x86_64") -> list[Repository]:
    wish = fleet(entries, system, repositories=list(names), arch=arch)
    return repositories(wish, "gds", stack_platform_for(system), [])


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("ubuntu-22.04", "ubuntu2204"), ("ubuntu-24.04", "ubuntu2404"), ("ubuntu-26.04", "ubuntu2604"),
        ("debian-12", "debian12"), ("debian-13", "debian13"), ("rhel-9", "rhel9"), ("rocky-9", "rhel9"),
        ("almalinux-9", "rhel9"), ("oracle-9", "rhel9"), ("amazon-2023", "amzn2023"),
    ],
)  # fmt: skip
def test_nvidias_repository_needs_its_name_only(system: str, name: str) -> None:
    for arch, folder in (("x86_64", "x86_64"), ("aarch64", "sbsa")):
        (repository,) = chosen(system, "nvidia", arch=arch)
        assert repository.uri == f"{CUDA}/{name}/{folder}"
        is_apt = stack_platform_for(system).kind == "apt"
        assert (repository.suites, repository.components) == (("/",) if is_apt else (), ())
        assert re.fullmatch("[0-9A-F]{40}", repository.fingerprints[0])
        # The key comes from the controller; no host has it before.
        assert repository.host_keyring.endswith("gdsdeploy-nvidia" + (".gpg" if is_apt else ""))


@pytest.mark.parametrize("system", ["rhel-10", "rocky-10", "almalinux-10", "oracle-10"])
def test_a_key_of_which_no_full_fingerprint_is_known_is_asked_for(system: str) -> None:
    words = f"repositories.nvidia: the preset of {system} leaves keyring, fingerprints open, so give keyring, finger"
    with pytest.raises(FleetInvalid, match=re.escape(words)):
        chosen(system, "nvidia")
    (repository,) = chosen(system, "nvidia", entries={"nvidia": {"keyring": "/k", "fingerprints": [KEY]}})
    assert (repository.uri, repository.fingerprints) == (f"{CUDA}/rhel10/x86_64", (KEY,))


def test_the_rebuilds_of_rhel_are_two_repositories_by_one_name() -> None:
    baseos, appstream, epel = chosen("rocky-9", "rocky", "epel", arch="aarch64")
    assert (baseos.name, baseos.uri) == ("rocky-baseos", "https://dl.rockylinux.org/pub/rocky/9/BaseOS/aarch64/os")
    assert appstream.uri == "https://dl.rockylinux.org/pub/rocky/9/AppStream/aarch64/os"
    assert baseos.fingerprints == appstream.fingerprints == ("21CB256AE16FC54C6E652949702D426D350D275D",)
    # A Rocky host has its own key; EPEL's is brought.
    assert baseos.host_keyring == "/etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9"
    assert epel.uri == "https://dl.fedoraproject.org/pub/epel/9/Everything/aarch64"
    assert epel.host_keyring == "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-epel"
    names = [r.name for r in chosen("almalinux-10", "alma")]
    assert names == ["alma-baseos", "alma-appstream"]
    assert [r.name for r in repositories(fleet(system="rocky-10"), "gds", stack_platform_for("rocky-10"), [])] == [
        "rocky-baseos",
        "rocky-appstream",
    ]


def test_one_mirror_of_a_vendor_serves_every_system() -> None:
    """``uri`` is where the vendor's tree begins, so that one entry fits all profiles."""
    entries = {"nvidia": {"uri": "https://mirror.example/cuda/"}, "rocky": {"uri": "https://mirror.example/rocky"}}
    baseos, appstream, nvidia = chosen("rocky-9", "rocky", "nvidia", entries=entries)
    assert nvidia.uri == "https://mirror.example/cuda/rhel9/x86_64"
    assert chosen("ubuntu-24.04", "nvidia", entries=entries)[0].uri == "https://mirror.example/cuda/ubuntu2404/x86_64"
    tree = "https://mirror.example/rocky/9"
    assert [baseos.uri, appstream.uri] == [f"{tree}/BaseOS/x86_64/os", f"{tree}/AppStream/x86_64/os"]


def test_an_entry_that_says_everything_is_a_repository_of_its_own() -> None:
    entry = {"uri": "https://mirror.example/signed", "keyring": "/k", "fingerprints": [KEY]}
    (rocky,) = chosen("rocky-9", "rocky", entries={"rocky": entry})
    assert (rocky.name, rocky.uri, rocky.fingerprints) == ("rocky", entry["uri"], (KEY,))
    (nvidia,) = chosen("debian-13", "nvidia", entries={"nvidia": entry})
    assert (nvidia.uri, nvidia.suites) == (entry["uri"], ("/",))


def test_epel_is_used_unsigned_by_the_fleet_files_choice_only() -> None:
    (epel,) = chosen("rocky-9", "epel")
    assert (epel.unsigned, epel.package_keys) == ("", ())
    (epel,) = chosen("rocky-9", "epel", entries={"epel": {"metadata": "unsigned", "why": "EPEL signs no index"}})
    assert (epel.unsigned, epel.fingerprints) == ("EPEL signs no index", ())
    assert epel.package_keys == ("FF8AD1344597106ECE813B918A3872BF3228467C",)


NOBLE = Source(("deb",), "https://mirror.example/ubuntu", "noble", ("main",), None)
PORTS = Source(("deb",), "https://mirror.example/ubuntu-ports", "noble", ("main",), None)


@pytest.mark.parametrize(
    ("machine", "arch", "sources", "uri"),
    [
        ("x86_64", "x86_64", [NOBLE], NOBLE.uri),
        ("x86_64", "x86_64", [PORTS._replace(architectures=("arm64",)), NOBLE], NOBLE.uri),
        ("aarch64", "aarch64", [NOBLE._replace(architectures=("amd64", "i386")), PORTS], PORTS.uri),
        ("x86_64", "aarch64", [NOBLE], "http://ports.ubuntu.com/ubuntu-ports"),
        ("x86_64", "aarch64", [NOBLE, PORTS], PORTS.uri),
        ("aarch64", "aarch64", [NOBLE], NOBLE.uri),
        ("aarch64", "x86_64", [PORTS, NOBLE], NOBLE.uri),
    ],
)
def test_ubuntu_for_arm_is_elsewhere(
    machine: str, arch: str, sources: list[Source], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*uname[:4], machine)))
    wish = fleet(system="ubuntu-24.04", repositories=["ubuntu"], arch=arch)
    (archive,) = repositories(wish, "gds", stack_platform_for("ubuntu-24.04"), sources)
    assert archive.uri == uri


def test_a_vendors_repository_is_there_for_the_stack_alone_and_its_key_is_brought() -> None:
    """Everything else that a vendor offers stays out, as with a repository that the fleet file spells out."""
    wish = fleet(system="rocky-9", repositories=["rocky", "nvidia"])
    indices = tuple(
        Index(
            repository=r.name, kind="rpm", uri=r.uri, suite="", components=(), date="2026-11-01T00:00:00Z",
            signed_by=r.fingerprints[0], host_keyring=r.host_keyring,
        )
        for r in chosen("rocky-9", "rocky", "nvidia")
    )  # fmt: skip
    target = Target.model_construct(os="rocky-9", arch="x86_64", indices=indices)
    assert {index.repository: index.exclusive for index in host_indices(target)} == {
        "rocky-baseos": False, "rocky-appstream": False, "nvidia": True,
    }  # fmt: skip
    assert keyrings(wish, target, Path("/fleet")) == {
        "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-nvidia": "/etc/pki/rpm-gpg/RPM-GPG-KEY-NVIDIA",
    }


@pytest.mark.parametrize("system", supported_systems())
def test_every_preset_is_complete_or_says_what_it_leaves_open(system: str) -> None:
    platform = stack_platform_for(system)
    for name, preset in {**platform.presets(), **platform.vendor_presets()}.items():
        assert all(re.fullmatch("[0-9A-F]{40}", key) for key in preset.fingerprints), name
        assert "{" not in preset.uri
        assert preset.path.format(arch="x86_64", sbsa="sbsa").startswith("/") is False
