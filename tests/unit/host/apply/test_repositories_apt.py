"""Repositories and pins on a host with apt: what it lacks is added, and a failed verification leaves no trace."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages.apt import SOURCES, Apt
from gdsdeploy.host.apply.packages.aptpreferences import HOOK, PREFERENCES
from gdsdeploy.host.errors import ApplyError, DesiredError
from gdsdeploy.host.process import Output
from tests.unit.host.apply.apt_host import SHA, AptHost, apt, packages, short

__all__ = ["apt"]
URI = "http://mirror.example/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
OWN = "/etc/apt/keyrings/gdsdeploy-site.gpg"
PINS = [{"package": "libcuda1", "version": "550-2", "sha256": SHA}]
REFRESH = "apt-get --quiet --option=DPkg::Lock::Timeout=300 --error-on=any update"
RENDERED = f"""\
# Rendered by gdsdeploy from gdsdeploy.lock; changes here are overwritten. Only what other entries lack stands here.

Types: deb
URIs: {URI}
Suites: trixie
Components: main contrib
Signed-By: {KEYRING}
"""
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


def kinds(lines: list[str]) -> list[str]:
    return [" ".join([*line.split()[:2], line.split()[-1]]) for line in lines]


@pytest.fixture
def host(apt: AptHost) -> AptHost:
    """Its keyring is there, and the repository has what the lock says."""
    apt.write(KEYRING, "key")
    apt.offered = {"libcuda1=550-2": SHA}
    apt.candidates = {"libcuda1": "550-2"}
    apt.names = ["bash", "cuda-drivers-580:i386", "cuda-drivers-580", "cuda-toolkit", "libcuda1"]
    return apt


def test_a_host_without_sources_gets_what_is_locked_pinned(host: AptHost) -> None:
    document = (repositories(), pins())
    expected = short(host.check(*document))
    assert kinds(expected) == [
        f"write {SOURCES} missing",
        "refresh package sources",
        f"write {PREFERENCES} missing",
        f"write {HOOK.path} missing",
    ]
    assert short(host.apply(*document)) == expected
    assert host.changed == [REFRESH]
    assert host.text(SOURCES) == RENDERED
    assert host.text(PREFERENCES) == PINNED
    assert short(host.check(*document)) == []
    assert short(host.apply(*document)) == []
    assert host.changed == []


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


def test_only_what_the_host_lacks_is_added_with_the_keyring_that_it_trusts(host: AptHost) -> None:
    host.write("/etc/apt/sources.list", f"deb [signed-by=/own.gpg] {URI}/ trixie main\n")
    host.apply(repositories())
    assert "Components: contrib\nSigned-By: /own.gpg\n" in host.text(SOURCES)


def test_an_embedded_key_of_the_host_is_written_as_it_is(host: AptHost) -> None:
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDME\n -----END PGP PUBLIC KEY BLOCK-----\n"
    text = f"Types: deb\nURIs: {URI}\nSuites: trixie\nComponents: main\n{key}"
    host.write("/etc/apt/sources.list.d/debian.sources", text)
    host.apply(repositories())
    assert host.text(SOURCES).endswith(key.replace("Signed-By:\n ", "Signed-By: "))


def test_a_source_that_apt_would_refuse_is_named_and_nothing_is_written(host: AptHost) -> None:
    host.write("/etc/apt/sources.list.d/broken.list", "deb http://only.example\n")
    assert host.check(repositories())[0].unknown == [
        "/etc/apt/sources.list.d/broken.list:1: not an apt source: deb http://only.example"
    ]
    assert host.text(SOURCES) == ""


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


def test_a_repository_that_is_a_folder_is_refused_where_the_host_lacks_it(host: AptHost) -> None:
    """A local installer of NVIDIA's puts it there."""
    folder = "/var/cuda-repo-ubuntu2404-13-0 local"
    local = index(repository="cuda", uri="file:///var/cuda-repo-ubuntu2404-13-0%20local", suite="/", components=[])
    (refusal,) = host.check(repositories(local))[0].refusals
    assert (refusal.id, folder in refusal.message) == ("folder", True)
    assert "gdsdeploy mirror" in refusal.hint
    host.write(f"{folder}/Release", "")
    assert host.check(repositories(local))[0].refusals == []


def test_a_folder_for_the_stack_alone_is_closed_by_apts_own_address(host: AptHost) -> None:
    """apt lists file:///var/repo as file:/var/repo."""
    host.write("/var/repo/Release", "")
    host.targets = "/etc/apt/sources.list.d/gdsdeploy.sources:1|file:/var/repo/|NVIDIA|NVIDIA CUDA||\n"
    local = index(repository="cuda", uri="file:///var/repo", suite="/", components=[], exclusive=True)
    host.apply(pins(local))
    assert "Pin: release o=NVIDIA,l=NVIDIA CUDA\nPin-Priority: -1\n" in host.text(PREFERENCES)


def test_an_unsigned_index_is_refused_where_no_package_is_signed(host: AptHost) -> None:
    """The controller refuses it before; this host program does not rely on that."""
    (refusal,) = host.check(repositories(index(metadata="unsigned")))[0].refusals
    assert (refusal.id, refusal.message) == (
        "unsigned",
        "the index of debian is unsigned, and apt checks no package's signature",
    )
    with pytest.raises(ApplyError, match="is unsigned"):
        host.apply(repositories(index(metadata="unsigned")))
    assert host.text(SOURCES) == ""


def test_a_key_that_is_none_is_refused_by_place(host: AptHost) -> None:
    for key in (
        {"dest": OWN, "content": "no base64!"},
        {"dest": "etc/x", "content": ""},
        {"dest": "/a/../b", "content": ""},
    ):
        with pytest.raises(DesiredError, match="repositories: "):
            host.apply(repositories(keys=[key]))


def test_lists_that_lack_the_locked_version_are_read_once(host: AptHost) -> None:
    host.apply(repositories())
    host.offered.clear()
    assert kinds(short(host.check(repositories()))) == ["refresh package unknown-versions"]
    with pytest.raises(ApplyError, match="does not offer the locked files of: libcuda1=550-2") as caught:
        host.apply(repositories())
    assert caught.value.kind == "verify"
    assert host.text(SOURCES) == RENDERED, "it was there before"


def test_other_files_under_the_locked_version_are_refused_and_the_sources_go(host: AptHost) -> None:
    host.offered = {"libcuda1=550-2": "b" * 64}
    key = {"dest": OWN, "content": base64.b64encode(b"key").decode()}
    with pytest.raises(ApplyError, match="locked files"):
        host.apply(repositories(keys=[key]))
    assert not (host.root / "etc/apt/sources.list.d").exists() or host.text(SOURCES) == ""
    assert host.text(OWN) == ""


def test_what_is_installed_in_the_locked_version_need_not_be_on_offer(host: AptHost) -> None:
    host.packages = {"libcuda1": ("550-2", "hi")}
    host.offered = {"libcuda1=550-2": "b" * 64}
    assert host.apply(repositories())
    host.packages = {"libcuda1": ("550-2", "rc")}
    with pytest.raises(ApplyError, match="locked files"):
        host.apply(repositories())


def test_a_candidate_that_is_another_takes_pins_and_new_sources_back(host: AptHost) -> None:
    host.candidates = {"libcuda1": "580-1"}
    host.apply(repositories())
    with pytest.raises(ApplyError, match="would not take the locked version of: libcuda1=550-2") as caught:
        host.apply(pins())
    assert caught.value.kind == "verify"
    assert (host.text(PREFERENCES), host.text(SOURCES)) == ("", "")


def test_a_host_that_was_pinned_keeps_what_it_had(host: AptHost) -> None:
    host.apply(repositories(), pins())
    moved = [{**PINS[0], "version": "560-1"}]
    host.offered["libcuda1=560-1"] = SHA
    with pytest.raises(ApplyError, match="libcuda1=560-1"):
        host.apply(pins(listed=moved))
    assert host.text(PREFERENCES) == PINNED
    assert host.text(SOURCES) == RENDERED


TARGET = f"/etc/apt/sources.list.d/gdsdeploy.sources:1|{URI}/|NVIDIA|NVIDIA CUDA|trixie|\n"


def test_a_repository_for_the_stack_alone_is_closed_by_its_own_names(host: AptHost) -> None:
    host.targets = TARGET
    host.apply(pins(index(exclusive=True)))
    assert host.text(PREFERENCES) == PINNED + (
        f"\nExplanation: {URI}/ trixie is configured for the stack alone\n"
        "Package: *\nPin: release o=NVIDIA,l=NVIDIA CUDA\nPin-Priority: -1\n"
    )
    assert short(host.check(pins(index(exclusive=True)))) == []


def test_names_that_only_new_lists_tell_are_not_guessed(host: AptHost) -> None:
    document = (repositories(index(exclusive=True)), pins(index(exclusive=True)))
    assert len(short(host.check(*document))) == 4, "without a file it is written, whatever the names are"
    host.targets = TARGET
    host.apply(*document)
    assert short(host.check(*document)) == []
    host.targets = ""
    moved = (repositories(index(exclusive=True, uri="http://other.example/")), pins(index(exclusive=True)))
    assert host.check(*moved)[1].unknown == []
    host.failing["apt-get --config-file="] = Output(100, "", "E: no answer\n")
    assert host.check(*moved)[1].unknown == ["the repositories' own names are known after their package lists are read"]
    host.targets = TARGET
    host.offered.clear()
    host.write(SOURCES, host.text(SOURCES))
    assert host.check(*document)[1].changes == [], "lists that are read again have the same names"


def revert(host: AptHost, *, check: bool = False) -> list[str]:
    managed_host = ManagedHost(check=check, root=str(host.root))
    changes = [change for name in ("pins", "repositories") for change in registry.resource(name).revert(managed_host)]
    return [f"{change.kind} {change.subject}" for change in changes]


def test_sources_pins_and_keys_go_and_others_stay(host: AptHost) -> None:
    theirs = {"dest": "/etc/apt/keyrings/site.gpg", "content": base64.b64encode(b"ours").decode()}
    host.write("/etc/apt/keyrings/site.gpg", "theirs")
    host.write("/etc/apt/sources.list.d/own.list", "deb http://own.example/ x y\n")
    own = {"dest": OWN, "content": base64.b64encode(b"key").decode()}
    host.apply(repositories(keys=[own, theirs]), pins())
    expected = [f"delete {PREFERENCES}", f"delete {HOOK.path}", "delete /etc/apt/preferences.d", f"delete {SOURCES}"]
    assert set(expected) <= set(revert(host, check=True))
    assert {f"delete {SOURCES}", f"delete {OWN}", "write /etc/apt/keyrings/site.gpg"} <= set(revert(host))
    assert (host.text(SOURCES), host.text(PREFERENCES), host.text(OWN)) == ("", "", "")
    assert host.text("/etc/apt/keyrings/site.gpg") == "theirs"
    assert host.text("/etc/apt/sources.list.d/own.list")
    assert revert(host) == []


def test_what_an_older_gdsdeploy_left_without_a_record_goes_too(host: AptHost) -> None:
    for path in (SOURCES, PREFERENCES, HOOK.path, OWN):
        host.write(path, "left")
    assert set(revert(host)) == {f"delete {path}" for path in (SOURCES, PREFERENCES, HOOK.path, OWN)}


def test_a_whole_document_is_predicted_and_done(host: AptHost) -> None:
    document = (repositories(), pins(), packages(wanted="libcuda1=550-2"))
    expected = short(host.check(*document))
    assert short(host.apply(*document)) == expected
    assert short(host.check(*document)) == []


def test_a_folder_in_the_place_of_the_hook_is_refused(host: AptHost) -> None:
    (host.root / HOOK.path.lstrip("/")).mkdir(parents=True)
    assert [(r.id, HOOK.path in r.message) for r in host.check(pins())[0].refusals] == [("kind", True)]
