"""What hosts were provisioned with is found again by its digest, word for word, or it is said that it is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.errors import GdsError, RolloutRefused
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.fleetfile.rules import rules_of
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.model.lock import Lock
from tests.loopback.loopback_fleet import target

FLEET: dict[str, Any] = {
    "version": 1,
    "ssh": {"user": "root", "identity_file": "keys/id"},
    "profiles": {"gds": {"os": "debian-13", "repositories": []}},
    "hosts": {"gpu1": {"profile": "gds", "address": "192.0.2.1"}, "gpu2": "gds"},
}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yml"
    path.write_text(yaml.safe_dump(FLEET))
    return path


def lock(fleet: Path, kernel: str, profile: str = "gds") -> Lock:
    return lockfile.build({profile: target(load_fleet(fleet), "gds", kernel)})


def test_it_is_found_as_it_was_whatever_became_of_the_files(fleet: Path) -> None:
    old, new = lock(fleet, "1"), lock(fleet, "2")
    own = fleet.with_name("fleet.compat.yml")
    own.write_text("rules:\n- {id: ours, says: X., known: measured, source: here, refuses: {driver: '1'}}\n")
    release = releases.store(fleet, old)
    own.unlink()
    fleet.write_text(fleet.read_text().replace("gpu2", "gpu3"))
    releases.store(fleet, new)
    match = releases.find(fleet, old.digest)
    assert match is not None
    assert match.lock == old
    assert set(match.fleet.hosts) == {"gpu1", "gpu2"}
    assert "ours" in {rule.id for rule in rules_of(match.fleet)}
    last = releases.find(fleet, new.digest)
    assert last is not None
    assert "ours" not in {rule.id for rule in rules_of(last.fleet)}
    assert releases.of_plan(fleet, old.digest, release.fleet_digest) == match
    assert releases.find(fleet, "sha256:" + "0" * 64) is None
    with pytest.raises(RolloutRefused, match="is not kept on this machine"):
        releases.of_plan(fleet, new.digest, release.fleet_digest)


def test_of_two_with_the_same_lock_a_host_has_the_one_that_it_got_last(fleet: Path) -> None:
    same = lock(fleet, "1")
    first = releases.store(fleet, same)
    releases.record_hosts(first, ["gpu1"])
    fleet.write_text(fleet.read_text() + "# another\n")
    second = releases.store(fleet, same)
    releases.record_hosts(second, ["gpu2"])
    folders = [releases.find(fleet, same.digest, name).folder for name in ("gpu1", "gpu2", "gpu9")]  # type: ignore[union-attr]
    assert folders == [first.folder, second.folder, second.folder]
    releases.store(fleet, same)
    assert "gpu2" in releases.find(fleet, same.digest, "gpu2").hosts, "kept again, it is still known who has it"  # type: ignore[union-attr]


def test_another_fleet_file_has_releases_of_its_own(fleet: Path, tmp_path: Path) -> None:
    one = lock(fleet, "1")
    releases.store(fleet, one)
    other = tmp_path / "other.yml"
    other.write_text(fleet.read_text())
    assert releases.find(other, one.digest) is None


def test_a_host_is_taken_back_where_it_answers_now(fleet: Path) -> None:
    release = releases.store(fleet, lock(fleet, "1"))
    value = {**FLEET, "ssh": {"user": "admin"}, "hosts": {"gpu1": {"profile": "gds", "address": "192.0.2.9"}}}
    fleet.write_text(yaml.safe_dump({**value, "profiles": {"gds": {**FLEET["profiles"]["gds"], "driver": "580"}}}))
    now = load_fleet(fleet)
    target_fleet = release.for_host("gpu1", now)
    assert target_fleet.connection("gpu1").address == "192.0.2.9"
    assert target_fleet.connection("gpu1").user == "admin"
    assert target_fleet.profiles["gds"].driver.version == "newest", "profiles are those of the release"
    assert release.fleet.connection("gpu1").address == "192.0.2.1"


def test_a_profile_that_the_release_does_not_have_is_refused(fleet: Path) -> None:
    release = releases.store(fleet, lock(fleet, "1"))
    value = {**FLEET, "profiles": {"new": FLEET["profiles"]["gds"]}, "hosts": {"gpu9": "new"}}
    fleet.write_text(yaml.safe_dump(value))
    with pytest.raises(RolloutRefused, match="has no profile new"):
        release.for_host("gpu9", load_fleet(fleet))


def test_a_lock_from_elsewhere_can_be_added_if_it_fits(fleet: Path, tmp_path: Path) -> None:
    lock_file = tmp_path / "old.lock"
    lockfile.write(lock_file, lock(fleet, "1"))
    release = releases.add(fleet, lock_file, load_fleet(fleet))
    assert releases.find(fleet, release.lock.digest) == release
    lockfile.write(lock_file, lock(fleet, "1", profile="other"))
    with pytest.raises(RolloutRefused, match="nothing for profile gds"):
        releases.add(fleet, lock_file, load_fleet(fleet))


def test_what_was_changed_there_is_not_taken_for_what_was_kept(fleet: Path) -> None:
    release = releases.store(fleet, lock(fleet, "1"))
    copy = release.folder / "fleet.yml"
    copy.write_text(copy.read_text().replace("192.0.2.1", "192.0.2.2"))
    with pytest.raises(RolloutRefused, match="the files there were changed"):
        releases.find(fleet, release.lock.digest)
    (release.folder / "release.json").write_text("{")
    assert releases.find(fleet, release.lock.digest) is None


def test_a_state_folder_that_cannot_be_written_says_so(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(GdsError, match="cannot be written") as caught:
        releases.store(fleet, lock(fleet, "1"))
    assert "GDSDEPLOY_STATE_DIR" in str(caught.value.hint)
