"""Reading, writing and ageing of a lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.machine import Machine
from gdsdeploy.errors import LockInvalid, LockStale
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.lock.lockfile import Difference
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Component, Index, Kernel, Lock, LockedDriver, Package, Source, Target
from gdsdeploy.platform import stack_platform_for

SIGNER = {name: preset.fingerprints[0] for name, preset in stack_platform_for("debian-13").presets().items()}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")


def index(repository: str, suite: str, **changes: Any) -> Index:
    value = {
        "repository": repository, "uri": f"https://mirror.example/{repository}", "suite": suite,
        "components": COMPONENTS, "date": "2026-11-18T22:17:43Z", "valid_until": None,
        "signed_by": SIGNER[repository], "host_keyring": KEYRING, **changes,
    }  # fmt: skip
    return Index(**value)


def package(name: str, version: str = "550.163.01-2", **changes: Any) -> Package:
    value = {
        "package": name, "version": version, "architecture": "amd64", "part": "support", "needed_by": "host",
        "file": f"pool/{name}.deb", "size": 1234, "sha256": "1" * 64, "repository": "debian",
        "suite": "trixie", "component": "main", **changes,
    }  # fmt: skip
    return Package(**value)


def target(**changes: Any) -> Target:
    value = {
        "os": "debian-13", "arch": "x86_64", "kernel": Kernel(release="6.12.94+deb13-amd64", version="6.12.94-1"),
        "driver": LockedDriver(version="550.163.01", flavour="open", source_tree="/usr/src/d", dkms_name="d"),
        "nvidia_fs": Source(version="2.19.7", source_tree="/usr/src/f", dkms_name="f"),
        "libcufile": Component(version="1.9.1.3"), "gds_tools": Component(version="1.9.1.3"), "rules": ("a-rule",),
        "pins": {"driver": "newest", "flavour": "open", "kernel": "newest", "libcufile": "newest",
                 "mode": "nvidia-fs", "nvidia_fs": "newest", "rdma": "none"},
        "indices": (index("debian", "trixie"), index("debian", "trixie-updates"),
                    index("debian-security", "trixie-security")),
        "packages": (package("dkms", "3.2.2-1~deb13u1"), package("libcuda1")), **changes,
    }  # fmt: skip
    return Target(**value)


LOCK = lockfile.build({"gds": target()})


def fleet(repositories: dict[str, Any] | None = None, **profile: Any) -> Fleet:
    value = {"version": 1, "profiles": {"gds": {"os": "debian-13", **profile}}, "hosts": {"gpu1": "gds"}}
    return Fleet.model_validate({**value, "repositories": repositories or {}})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "gdsdeploy.lock"
    lockfile.write(written, LOCK)
    return written


# ── reading and writing ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_digest_is_over_content_and_not_layout(path: Path) -> None:
    value = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(dict(reversed(value.items())), default_flow_style=True))
    assert lockfile.read(path) == LOCK
    assert list(lockfile.build({"b": target(), "a": target()}).targets) == ["a", "b"]


def test_a_lock_that_no_reader_takes_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamlfile, "LIMIT", 10)
    with pytest.raises(LockInvalid, match=r"it would have [\d,]+ bytes; no reader takes more than 10"):
        lockfile.write(tmp_path / "gdsdeploy.lock", LOCK)
    assert not list(tmp_path.iterdir())


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(LockInvalid, match=r"gone/gdsdeploy\.lock: cannot be written"):
        lockfile.write(tmp_path / "gone" / "gdsdeploy.lock", LOCK)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("size: 1234", "size: many", r"gdsdeploy\.lock:\d+:13: .*size"),
        ("  gds:\n", "  gds: [\n", r"gdsdeploy\.lock:\d+:\d+: not valid YAML"),
        ("      file:", "      flie:", r"gdsdeploy\.lock:\d+:7: .*flie: unknown key; did you mean 'file'\?"),
        ("lock_version: '1.7'", "lock_version: one", r"write a version such as 1.7"),
    ],
)
def test_a_malformed_lock_is_named_by_place(path: Path, old: str, new: str, place: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(LockInvalid, match=place):
        lockfile.read(path)


def resign(path: Path, **changes: Any) -> None:
    """Write the lock as another version of the program would: changed, and with a digest that fits."""
    value = yaml.safe_load(path.read_text()) | changes
    path.write_text(yaml.safe_dump(value | {"digest": lockfile._digest(value)}))


def test_a_newer_minor_is_read_with_a_warning(path: Path) -> None:
    value = yaml.safe_load(path.read_text())
    value["targets"]["gds"]["doca"] = {"version": "3.1"}
    resign(path, lock_version="1.8", targets=value["targets"])
    warnings: list[str] = []
    assert lockfile.read(path, warn=warnings.append).targets == LOCK.targets
    assert len(warnings) == 1
    assert "lock version 1.8" in warnings[0]


def test_an_edit_of_a_newer_minor_is_noticed_too(path: Path) -> None:
    resign(path, lock_version="1.8")
    path.write_text(path.read_text().replace("550.163.01-2", "550.163.01-3"))
    with pytest.raises(LockInvalid, match="was edited by hand"):
        lockfile.read(path, warn=lambda text: None)


def test_a_newer_minor_that_cannot_be_understood_is_refused(path: Path) -> None:
    resign(path, lock_version="1.8", targets={"gds": {}})
    with pytest.raises(LockInvalid, match=r"gdsdeploy\.lock:4:8: targets\.gds\.os: this key is required"):
        lockfile.read(path, warn=lambda text: None)


@pytest.mark.parametrize(("version", "hint"), [("2.0", "gdsdeploy that wrote it"), ("0.9", "gdsdeploy lock")])
def test_another_major_is_refused(path: Path, version: str, hint: str) -> None:
    resign(path, lock_version=version)
    with pytest.raises(LockInvalid, match=f"lock version {version}") as error:
        lockfile.read(path)
    assert hint in (error.value.hint or "")


def test_a_lock_that_is_to_be_replaced_may_be_broken_but_not_newer(path: Path) -> None:
    warnings: list[str] = []
    assert lockfile.previous(path.parent / "none") is None
    assert lockfile.previous(path) == LOCK
    resign(path, lock_version="0.9")
    assert lockfile.previous(path, warn=warnings.append) is None
    path.write_text("{")
    assert lockfile.previous(path, warn=warnings.append) is None
    assert len(warnings) == 2
    lockfile.write(path, LOCK)
    resign(path, lock_version="2.0")
    with pytest.raises(LockInvalid):
        lockfile.previous(path)


# ── does it fit? ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_the_lock_does_not_depend_on_may_change() -> None:
    changed = fleet(storage=[{"mount": "/data"}], cufile={"logging": {"level": "INFO"}}, reboot=False)
    assert lockfile.status(changed, LOCK) == []


REASONS: list[tuple[dict[str, Any], Difference, str, str, str]] = [
    ({"os": "debian-12"}, Difference.OS_CHANGED, "", "debian-12", "debian-13"),
    ({"arch": "aarch64"}, Difference.ARCH_CHANGED, "", "aarch64", "x86_64"),
    ({"kernel": "6.12"}, Difference.PIN_CHANGED, "kernel", "6.12", "newest"),
    ({"driver": "550"}, Difference.PIN_CHANGED, "driver", "550", "newest"),
    ({"nvidia_fs": "2.19"}, Difference.PIN_CHANGED, "nvidia_fs", "2.19", "newest"),
    ({"libcufile": "1.9"}, Difference.PIN_CHANGED, "libcufile", "1.9", "newest"),
    ({"rdma": "peermem"}, Difference.PIN_CHANGED, "rdma", "peermem", "none"),
    ({"mode": "compat"}, Difference.MODE_CHANGED, "", "compat", "nvidia-fs"),
    ({"driver": {"flavour": "proprietary"}}, Difference.FLAVOUR_CHANGED, "", "proprietary", "open"),
    ({"repositories": ["debian"]}, Difference.REPOSITORIES_CHANGED, "", "debian", "debian, debian-security"),
]


@pytest.mark.parametrize(("profile", "difference", "subject", "expected", "actual"), REASONS)
def test_a_changed_profile_is_named(
    profile: dict[str, Any], difference: Difference, subject: str, expected: str, actual: str
) -> None:
    wish = {"version": 1, "profiles": {"gds": {"os": "debian-13", **profile}}, "hosts": {"gpu1": "gds"}}
    reasons = lockfile.status(Fleet.model_validate(wish), LOCK)
    assert (difference, subject, expected, actual) in [
        (reason.difference, reason.subject, reason.expected, reason.found) for reason in reasons
    ]


@pytest.mark.parametrize(
    ("wish", "subject"),
    [
        ({"uri": "https://other.example/debian"}, "debian.uri"),
        ({"suites": ["trixie"]}, "debian.suites"),
        ({"components": ["main"]}, "debian.components"),
        ({"signed_by": "/etc/apt/keyrings/site.gpg"}, "debian.signed_by"),
    ],
)
def test_a_changed_repository_is_named(wish: dict[str, Any], subject: str) -> None:
    (reason,) = lockfile.status(fleet({"debian": wish}), LOCK)
    assert (reason.difference, reason.subject) == (Difference.REPOSITORIES_CHANGED, subject)


def test_an_address_that_the_fleet_leaves_open_may_differ() -> None:
    elsewhere = target(indices=tuple(i.model_copy(update={"uri": "https://x.example"}) for i in target().indices))
    assert lockfile.status(fleet(), lockfile.build({"gds": elsewhere})) == []


def test_a_signer_that_is_no_longer_pinned_is_named() -> None:
    reasons = lockfile.status(fleet({"debian": {"fingerprints": ["A" * 40]}}), LOCK)
    assert [(r.difference, r.subject, r.expected, r.found) for r in reasons] == [
        (Difference.KEYS_CHANGED, "debian", "A" * 40, SIGNER["debian"])
    ]


def test_profiles_that_came_and_went_are_named() -> None:
    lock = lockfile.build({"old": target()})
    assert [(r.difference, r.profile) for r in lockfile.status(fleet(), lock)] == [
        (Difference.PROFILE_MISSING, "gds"),
        (Difference.PROFILE_GONE, "old"),
    ]


def test_a_stale_lock_lists_every_reason_and_the_next_step() -> None:
    with pytest.raises(LockStale) as error:
        lockfile.require_fresh(fleet(kernel="6.12", driver="550"), LOCK, fleet_file="site.yml")
    assert error.value.message.splitlines()[1:] == [
        "  - profile gds: pin driver: the fleet file says 550, the lock has newest",
        "  - profile gds: pin kernel: the fleet file says 6.12, the lock has newest",
    ]
    assert error.value.hint == "Run `gdsdeploy lock site.yml` and review the change list"


# ── change lists ─────────────────────────────────────────────────────────────────────────────────────────────────


def changed(**changes: Any) -> Lock:
    return lockfile.build({"gds": target(**changes)})


def test_changes_read_as_a_list() -> None:
    new = changed(
        kernel=Kernel(release="6.12.96+deb13-amd64", version="6.12.96-1"),
        packages=(package("added"), package("dkms", "3.2.1-1"), package("libcuda1", sha256="0" * 64)),
    )
    assert [str(change) for change in lockfile.changes(LOCK, new)] == [
        "kernel 6.12.94+deb13-amd64 → 6.12.96+deb13-amd64",
        "added 550.163.01-2 (added)",
        "dkms 3.2.2-1~deb13u1 → 3.2.1-1 (downgraded)",
        "libcuda1 550.163.01-2 → 550.163.01-2 (rebuilt)",
    ]
    assert lockfile.changes(LOCK, LOCK) == []
    assert {change.kind for change in lockfile.changes(None, LOCK)} == {"added"}


def test_newer_indices_alone_are_no_change() -> None:
    newer = tuple(i.model_copy(update={"date": "2026-11-20T00:00:00Z"}) for i in target().indices)
    assert lockfile.same_choice(LOCK, changed(indices=newer))
    assert not lockfile.same_choice(LOCK, changed(indices=newer[:-1]))
    assert not lockfile.same_choice(LOCK, changed(rules=()))
    assert not lockfile.same_choice(None, LOCK)


@pytest.mark.parametrize(
    ("what", "before", "after", "subject", "speaks"),
    [
        ("libcufile", "1.11.1.6", "1.17.1.22", True, True),
        ("libcufile", "1.9.1.3~12.4.1-2", "1.16.0.49-1", True, True),
        ("libcufile", "1.16.1.26", "1.20.0.107", True, False),
        ("libcufile", "1.11.1.6", "1.15.1.6", True, False),
        ("libcufile", "", "1.17.1.22", True, False),
        ("libcufile", "1.17.1.22", "1.11.1.6", True, False),
        ("libcufile", "1.11.1.6", "1.17.1.22", False, False),
        ("driver", "550.163.01", "580.65.06", True, False),
    ],
)
def test_an_upgrade_past_the_silent_registration_is_told(
    what: str, before: str, after: str, subject: bool, speaks: bool
) -> None:
    change = lockfile.Change("gds", "upgraded", what, before, after, subject)
    assert ("fall back silently" in lockfile.consequences(change)) is speaks


#: What rules judged when it was locked.
JUDGED = {
    "driver": "550.163.01",
    "driver_package": "550.163.01-2",
    "flavour": "open",
    "gpu": "ampere",
    "arch": "x86_64",
}
RULE = "rules:\n- {id: %s, says: %s, known: measured, source: here, %s}\n"


@pytest.mark.parametrize(
    ("conditions", "refuses"),
    [
        ("refuses: {driver_package: '==550.163.01-2'}", True),
        ("refuses: {driver_package: '<550.163.01-2'}", False),
        ("when: {gpu: ampere}, refuses: {kernel: '>=6.12.94-1'}", True),
        ("when: {gpu: ada}, refuses: {kernel: '>=6.12.94-1'}", False),
        ("warns: {kernel: '6.12'}", False),
    ],
)
def test_a_rule_that_came_later_makes_a_lock_stale(conditions: str, refuses: bool, tmp_path: Path) -> None:
    path, lock = tmp_path / "prod.yml", lockfile.build({"gds": target(judged=JUDGED)})
    path.write_text(yaml.safe_dump({"version": 1, "profiles": {"gds": {"os": "debian-13"}}, "hosts": {"gpu1": "gds"}}))
    (tmp_path / "prod.compat.yml").write_text("# Ours.\n" + RULE % ("ours", "Ours crash.", conditions))
    mine = load_fleet(path)
    reasons = [reason for reason in lockfile.status(mine, lock) if reason.difference is Difference.RULE_REFUSES]
    assert [reason.subject for reason in reasons] == (["ours"] if refuses else [])
    if refuses:
        with pytest.raises(LockStale) as error:
            lockfile.require_fresh(mine, lock, fleet_file=path)
        assert "profile gds: [ours] Ours crash. Here: " in error.value.message
        assert f"The rule is in {tmp_path}/prod.compat.yml:3" in error.value.message
        assert f"gdsdeploy lock {path}" in str(error.value.hint)
    assert [rule.id for rule in expectation(Machine(mine, lock, "gpu1")).rules] == ["ours"]


def test_a_lock_is_judged_by_rules_of_a_later_gdsdeploy() -> None:
    lock = lockfile.build({"gds": target(judged={**JUDGED, "driver_origin": "debian"})})
    other = lock.targets["gds"].model_copy(
        update={"kernel": Kernel(release="6.12.107+deb13-amd64", version="6.12.107-1")}
    )
    (reason,) = [r for r in lockfile.status(fleet(), lockfile.build({"gds": other})) if "RULE" in r.difference.name]
    assert (reason.subject, reason.expected) == ("driver-550-pci-resize", "gdsdeploy/lock/compat.yml")
    assert not [r for r in lockfile.status(fleet(), lock) if "RULE" in r.difference.name]
