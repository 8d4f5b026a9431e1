"""Which repositories a profile uses, and where their addresses come from."""

from __future__ import annotations

from typing import Any

import pytest

from gdsdeploy.errors import FleetInvalid, RepositoryUnusable
from gdsdeploy.host.apply.packages.aptsources import Source
from gdsdeploy.lock.repo_settings import controller_uri, repositories
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.platform import stack_platform_for

TRIXIE = stack_platform_for("debian-13")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def source(uri: str, suite: str, signed_by: str | None = KEYRING, components: tuple[str, ...] = ("main",)) -> Source:
    return Source(("deb",), uri, suite, components, signed_by)


OWN = [
    source("https://mirror.example/debian", "bookworm"),
    source("https://mirror.example/debian-security", "bookworm-security"),
]


def fleet(wishes: dict[str, Any] | None = None, **profile: Any) -> Fleet:
    value = {"version": 1, "profiles": {"gds": {"os": "debian-13", **profile}}, "hosts": {"gpu1": "gds"}}
    return Fleet.model_validate({**value, "repositories": wishes or {}})


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


def test_a_flat_repository_has_no_components() -> None:
    wish = {
        "cuda": {
            "uri": "https://mirror.example/cuda",
            "suites": ["x86_64/"],
            "keyring": "/k.gpg",
            "fingerprints": ["A" * 40],
        }
    }
    (cuda,) = repositories(fleet(wish, repositories=["cuda"]), "gds", TRIXIE, OWN)
    assert (cuda.suites, cuda.components) == (("x86_64/",), ())


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
