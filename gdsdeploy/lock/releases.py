"""Releases: exact copies of the lock and the fleet file that hosts were provisioned with, by their digests.

Layout below the state folder::

    releases/<fleet file>/<lock>-<fleet>/gdsdeploy.lock, fleet.yml, fleet.compat.yml, release.json

``<fleet file>`` is a digest of its path, ``<lock>`` and ``<fleet>`` are the first digits of the contents' digests, and
release.json says when which host got it.  A rollback restores a host's release; a resumed rollout continues with the
release of its plan, even if the files have changed since.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdsdeploy import atomic, paths
from gdsdeploy.errors import GdsError, LockInvalid, RolloutRefused, SignatureRefused, translated
from gdsdeploy.fleetfile.load import TRUSTED, load_fleet
from gdsdeploy.fleetfile.rules import own_rules_of
from gdsdeploy.lock import lockfile
from gdsdeploy.lock.signatures import beside
from gdsdeploy.model.fleet import Fleet, FleetHost
from gdsdeploy.model.lock import Lock

_FLEET, _ABOUT, _LOCKING = "fleet.yml", "release.json", "lock"
_DIGITS = 16


@dataclass(frozen=True)
class Release:
    """A lock and its fleet file, whose relative names start from ``fleet_path``."""

    fleet: Fleet
    lock: Lock
    fleet_path: Path
    #: ``sha256:…`` of the fleet file's bytes
    fleet_digest: str
    #: where it is kept
    folder: Path
    #: host → when it got this release, in seconds since the epoch
    hosts: Mapping[str, float] = field(default_factory=dict)

    def for_host(self, name: str, now: Fleet) -> Fleet:
        """The release's fleet with the current address of ``name``; other machines as they were.

        It is the way back, so the host takes a lock that is older than its own.

        Raises RolloutRefused if the release has no profile for it.
        """
        machines = {**self.fleet.builders, **self.fleet.hosts}
        profile = machines[name].profile if name in machines else now.machine(name).profile
        if profile not in self.fleet.profiles or profile not in self.lock.targets:
            raise RolloutRefused(
                f"{name}: the release {short(self.lock.digest)} has no profile {profile}",
                hint=f"Name the lock that this host has: gdsdeploy rollout start {self.fleet_path} --from LOCK",
            )
        current = now.machine(name)
        modules = machines[name].modules if name in machines else current.modules
        host = FleetHost.model_validate({**current.model_dump(), "profile": profile, "modules": modules})
        group = "builders" if name in now.builders else "hosts"
        own = {**getattr(self.fleet, group), name: host}
        other = "hosts" if group == "builders" else "builders"
        others = {key: value for key, value in getattr(self.fleet, other).items() if key != name}
        return self.fleet.model_copy(update={group: own, other: others, "ssh": now.ssh}).with_any_serial()


def short(digest: str) -> str:
    """The first digits of a digest, for display."""
    return digest.removeprefix("sha256:")[:12]


def digest_of(fleet_path: Path) -> str:
    """``sha256:…`` of a fleet file's bytes, as plans have it; raises RolloutRefused when it cannot be read."""
    return "sha256:" + hashlib.sha256(_bytes(fleet_path)).hexdigest()


def _bytes(fleet_path: Path) -> bytes:
    with translated(OSError, lambda error: RolloutRefused(f"{fleet_path}: cannot be read: {error.strerror}")):
        return fleet_path.read_bytes()


def store(fleet_path: Path, lock: Lock) -> Release:
    """Keep the fleet file as it is now and ``lock``; raises GdsError when the state folder cannot be written."""
    path = fleet_path.resolve()
    text = _bytes(path)
    digest = "sha256:" + hashlib.sha256(text).hexdigest()
    folder = _of(path) / f"{lock.digest.removeprefix('sha256:')[:_DIGITS]}-{digest.removeprefix('sha256:')[:_DIGITS]}"
    with _writing(path):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {
            "fleet_path": str(path),
            "fleet_digest": digest,
            "lock_digest": lock.digest,
            "hosts": _about(folder).get("hosts", {}),
            "stored": time.time(),
        }
        atomic.write(folder / _FLEET, text, mode=0o600)
        own, kept = own_rules_of(path), own_rules_of(folder / _FLEET)
        kept.unlink(missing_ok=True)
        if own.is_file():
            atomic.write(kept, own.read_bytes(), mode=0o600)
        if lock._signed is None:
            lockfile.write(folder / lockfile.NAME, lock)
        else:
            # As it was signed, so that a rollout that is resumed can verify it again.
            for place, data in zip((folder / lockfile.NAME, beside(folder / lockfile.NAME)), lock._signed, strict=True):
                atomic.write(place, data, mode=0o600)
        # Last: without it there is no release.
        _write_about(folder, about)
    return _read(folder, path)


def record_hosts(release: Release, hosts: Iterable[str]) -> None:
    """Record that ``hosts`` got ``release`` now; raises GdsError as :func:`store` does."""
    names = list(hosts)
    if not names:
        return
    with _writing(release.fleet_path):
        about = _about(release.folder)
        about["hosts"] = {**about.get("hosts", {}), **dict.fromkeys(names, time.time())}
        _write_about(release.folder, about)


def of_plan(fleet_path: Path, lock_digest: str, fleet_digest: str) -> Release:
    """The release of a rollout's plan; raises RolloutRefused if it is not kept."""
    for folder, about in _all(fleet_path.resolve()):
        if about.get("lock_digest") == lock_digest and about.get("fleet_digest") == fleet_digest:
            return _read(folder, fleet_path.resolve())
    raise RolloutRefused(
        f"{fleet_path}: lock {short(lock_digest)} with fleet file {short(fleet_digest)}, which the rollout was planned"
        " with, is not kept on this machine",
        hint="Resume it on the machine that started it, or start another with the lock that the hosts should have",
    )


def require_signed(fleet_path: Path, lock_digest: str, fleet_digest: str) -> None:
    """Raise SignatureRefused unless the lock of a rollout's plan is still signed by a signer of the fleet file."""
    fleet = load_fleet(fleet_path, TRUSTED)
    if fleet.signers is not None:
        release = of_plan(fleet_path, lock_digest, fleet_digest)
        try:
            lockfile.read_signed(release.folder / lockfile.NAME, fleet, fleet_path)
        except SignatureRefused as error:
            hint = f"End the rollout: gdsdeploy rollout abort {fleet_path}; then start another with a signed lock"
            raise SignatureRefused(error.message, hint=hint) from None


def find(fleet_path: Path, lock_digest: str, host: str = "") -> Release | None:
    """The release with this lock that ``host`` got last; else the newest one; None without any."""
    folders = [
        (float(about.get("hosts", {}).get(host, 0)), float(about.get("stored", 0)), folder)
        for folder, about in _all(fleet_path.resolve())
        if about.get("lock_digest") == lock_digest
    ]
    return _read(max(folders)[2], fleet_path.resolve()) if folders else None


def last(fleet_path: Path, host: str) -> Release | None:
    """The release that ``host`` got last; None if there is no record of it."""
    folders = [
        (float(about["hosts"][host]), folder)
        for folder, about in _all(fleet_path.resolve())
        if host in about.get("hosts", {})
    ]
    return _read(max(folders)[1], fleet_path.resolve()) if folders else None


def add(fleet_path: Path, lock_path: Path, fleet: Fleet) -> Release:
    """Keep the lock that hosts got from another machine, with the fleet file as it is now.

    Raises what lockfile.read_signed raises, and RolloutRefused if it doesn't have a profile of the fleet.
    """
    lock = lockfile.read_signed(lock_path, fleet, fleet_path)
    if missing := sorted(fleet.profiles.keys() - lock.targets.keys()):
        raise RolloutRefused(
            f"{lock_path}: this lock has nothing for profile {', '.join(missing)} of {fleet_path}",
            hint="Name the lock that the hosts of this fleet were provisioned with",
        )
    return store(fleet_path, lock)


def _of(path: Path) -> Path:
    return paths.state() / "releases" / paths.fleet_digest(path)


def _all(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    yield from ((folder, about) for folder in sorted(_of(path).glob("*-*")) if (about := _about(folder)))


def _about(folder: Path) -> dict[str, Any]:
    """The content of release.json; empty if it is missing or unreadable."""
    try:
        value = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _read(folder: Path, path: Path) -> Release:
    about, hint = _about(folder), f"Remove {folder}, and name the lock with --from"
    with translated(LockInvalid, lambda error: RolloutRefused(error.message, hint=hint)):
        fleet = load_fleet(folder / _FLEET, TRUSTED, names_from=path.parent)
        lock = lockfile.read(folder / lockfile.NAME)
    if lock.digest != about.get("lock_digest") or digest_of(folder / _FLEET) != about.get("fleet_digest"):
        raise RolloutRefused(f"{folder}: the files there were changed", hint=hint)
    return Release(fleet, lock, path, str(about["fleet_digest"]), folder, dict(about.get("hosts", {})))


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    atomic.write(folder / _ABOUT, json.dumps(about, indent=2, sort_keys=True) + "\n", mode=0o600)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Let one run of a fleet at a time write; report errors of the folder as GdsError."""
    folder = _of(path)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (folder / _LOCKING).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise GdsError(
            f"{error.filename or folder}: cannot be written: {error.strerror}",
            hint="Free some space, or set GDSDEPLOY_STATE_DIR to a folder with enough: a rollback needs these files",
        ) from None
