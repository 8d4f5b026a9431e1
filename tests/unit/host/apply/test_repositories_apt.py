"""Repositories and pins on a host with apt: what it lacks is added, and a failed verification leaves no trace."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages.apt import SOURCES, Apt
from gdsdeploy.host.apply.packages.aptsources import HOOK, PREFERENCES
from gdsdeploy.host.errors import ApplyError
from tests.unit.host import cases
from tests.unit.host.apply.apt_host import SHA, AptHost, apt, packages, run_case, short

__all__ = ["apt"]
URI = "http://mirror.example/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PINS = [{"package": "libcuda1", "version": "550-2", "sha256": SHA}]
PINNED = """\
# Rendered by gdsdeploy from gdsdeploy.lock; changes here are overwritten.
# The name of this file sorts first: among records for the same thing, apt takes the first.
# Patterns: cuda-drivers*

Package: libcuda1
Pin: version 550-2
Pin-Priority: 1001

Explanation: other versions of these, and whatever else could move the driver, stay out wherever they come from
Package: cuda-drivers libcuda1 cuda-drivers-580
Pin: release *
Pin-Priority: -1
"""


def index(**changed: Any) -> dict[str, Any]:
    defaults = {"repository": "debian", "uri": URI, "suite": "trixie", "components": ["main", "contrib"]}
    return {**defaults, "host_keyring": KEYRING, **changed}


def repositories(*indices: dict[str, Any], keys: Any = (), pins: Any = PINS) -> dict[str, Any]:
    desired = {"manager": "apt", "indices": list(indices or [index()]), "keys": list(keys), "pins": pins}
    return {"resource": "repositories", "desired": desired}


def pins(*indices: dict[str, Any], listed: Any = PINS) -> dict[str, Any]:
    desired = {"manager": "apt", "indices": list(indices or [index()]), "pins": listed, "deny": ["cuda-drivers*"]}
    return {"resource": "pins", "desired": desired}


@pytest.fixture
def host(apt: AptHost) -> AptHost:
    """Its keyring is there, and the repository has what the lock says."""
    apt.write(KEYRING, "key")
    apt.offered = {"libcuda1=550-2": SHA}
    apt.candidates = {"libcuda1": "550-2"}
    apt.names = ["bash", "cuda-drivers-580:i386", "cuda-drivers-580", "cuda-toolkit", "libcuda1"]
    return apt


CASES = cases.load("apply/apt_repositories")


def made(name: str, desired: dict[str, Any]) -> dict[str, Any]:
    """A resource as a case says it."""
    if name == "packages":
        return packages(**desired)
    indices = [index(**changed) for changed in desired.get("indices", [])]
    more = {key: value for key, value in desired.items() if key != "indices"}
    return repositories(*indices, **more) if name == "repositories" else pins(*indices, **more)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, host: AptHost) -> None:
    run_case(host, CASES[name], made, "pins", "repositories")


@pytest.mark.parametrize("question", ["pkgnames", "policy", "show"])
def test_a_question_that_meets_an_old_cache_of_apts_is_asked_again(host: AptHost, question: str) -> None:
    host.failing_once = {f"apt-cache {question}"}
    host.apply(repositories(), pins())
    assert not host.failing_once
    assert short(host.check(repositories(), pins())) == []


def test_packages_that_repositories_offer_later_are_kept_out_after_the_next_update(host: AptHost) -> None:
    """And when the file is written again."""
    host.apply(repositories(), pins())
    host.names.append("cuda-drivers-610")
    assert short(host.check(repositories(), pins())) == []
    managed_host = ManagedHost(root=str(host.root))
    assert Apt().refresh_pins(managed_host) is True
    line = "Package: cuda-drivers libcuda1 cuda-drivers-580 cuda-drivers-610\n"
    assert host.text(PREFERENCES) == PINNED.replace("Package: cuda-drivers libcuda1 cuda-drivers-580\n", line)
    assert short(host.check(repositories(), pins())) == []
    host.names = ["bash"]
    managed_host.forget()
    assert Apt().refresh_pins(managed_host) is False, "lists that can't be read now take no name away"
    host.write(PREFERENCES, PINNED)
    host.names = ["cuda-drivers-580", "cuda-drivers-610"]
    host.candidates = {"libcuda1": "610-1"}
    host.offered = {"libcuda1=610-1": SHA}
    moved = [{**PINS[0], "version": "610-1"}]
    host.apply(repositories(pins=moved), pins(listed=moved))
    assert "\nPackage: cuda-drivers libcuda1 cuda-drivers-580 cuda-drivers-610\n" in host.text(PREFERENCES)


@pytest.mark.parametrize("text", ["", "Package: *\nPin: release *\n", PINNED.replace("# Patterns", "# Others")])
def test_a_file_without_our_patterns_is_left_alone(text: str, host: AptHost) -> None:
    host.write(PREFERENCES, text)
    host.names.append("cuda-drivers-610")
    assert Apt().refresh_pins(ManagedHost(root=str(host.root))) is False
    assert host.text(PREFERENCES) == text


@pytest.mark.parametrize(
    "line", ["cuda-drivers*", "cuda-drivers", "cuda-drivers libcuda1 bash", "cuda-drivers libcuda1 *"]
)
def test_preferences_that_name_other_packages_are_written_anew(line: str, host: AptHost) -> None:
    host.apply(repositories(), pins())
    host.write(PREFERENCES, host.text(PREFERENCES).replace("cuda-drivers libcuda1 cuda-drivers-580", line))
    assert short(host.apply(pins())) != []
    assert host.text(PREFERENCES) == PINNED


def test_a_missing_keyring_is_refused_with_the_package_that_has_it(host: AptHost) -> None:
    (host.root / KEYRING[1:]).unlink()
    (refusal,) = host.check(repositories())[0].refusals
    assert (refusal.id, refusal.hint.split()[-1]) == ("keyring", "debian-archive-keyring")
    with pytest.raises(ApplyError, match="is not on this host") as caught:
        host.apply(repositories())
    assert (caught.value.kind, host.text(SOURCES)) == ("refused", "")
    key = {"dest": KEYRING, "content": base64.b64encode(b"\x99key").decode()}
    host.apply(repositories(keys=[key]))
    assert (host.root / KEYRING[1:]).read_bytes() == b"\x99key"


def test_a_folder_in_the_place_of_the_hook_is_refused(host: AptHost) -> None:
    (host.root / HOOK.path.lstrip("/")).mkdir(parents=True)
    assert [(r.id, HOOK.path in r.message) for r in host.check(pins())[0].refusals] == [("kind", True)]
