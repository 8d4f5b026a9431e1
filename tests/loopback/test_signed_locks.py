"""Locks that the fleet's signers have to sign, with the real ssh-keygen: what is refused before a host is asked."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gdsdeploy.cli import lock as cli_lock
from gdsdeploy.errors import ChecksUnknown, FleetInvalid, GdsError, MissingProgram, SignatureRefused, SigningKeyUnusable
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile, releases, signatures
from gdsdeploy.lock.resolve_fleet import Resolved
from gdsdeploy.model.rollout import Plan
from gdsdeploy.preflight.prove import Attempt, Proven
from gdsdeploy.preflight.record import Answer, PreflightRecord
from gdsdeploy.rollout.session import RealEffects
from tests import commandline
from tests.loopback.loopback_fleet import LoopbackFleet

OWN, OTHER = "0" * 32, "1" * 32


def _key(folder: Path, name: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name], check=True)
    return folder / name


def _listed(key: Path, options: str = "") -> str:
    return f"{key.name} {options} {key.with_suffix('.pub').read_text()}"


@pytest.fixture
def fleet(make_fleet: Callable[..., LoopbackFleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoopbackFleet:
    """A fleet whose lock alice has signed; bob is no signer."""
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    fleet = make_fleet(gpu1={"profile": "right"})
    alice, _ = _key(tmp_path, "alice"), _key(tmp_path, "bob")
    (tmp_path / "allowed_signers").write_text(_listed(alice, 'namespaces="gdsdeploy.lock"'))
    value = yaml.safe_load(fleet.path.read_text())
    fleet.path.write_text(yaml.safe_dump({**value, "signers": "allowed_signers", "fleet_id": OWN}))
    path = lockfile.beside(fleet.path)
    lockfile.write(path, lockfile.build(lockfile.read(path).targets, fleet_id=OWN, serial=4))
    _sign(path, alice)
    return fleet


def _sign(lock: Path, key: Path) -> None:
    signatures.write(lock, signatures.sign(lock.read_bytes(), key))


def _refused(fleet: LoopbackFleet, error: type[GdsError], words: str) -> None:
    """Each verb that changes hosts refuses, with a next step, and no host was asked."""
    with pytest.raises(error, match=words) as caught:
        lockfile.fleet_and_lock(fleet.path)
    assert caught.value.hint
    for verb in ("provision", "remove --limit gpu1", "rollout start --yes", "lock --check"):
        assert commandline.run(*verb.split(), fleet.path) == error.exit_code, verb
    assert commandline.run("mirror", lockfile.beside(fleet.path), fleet.path.parent / "mirror") == error.exit_code
    assert fleet.sessions() == 0


def test_what_a_listed_signer_signed_is_taken(fleet: LoopbackFleet) -> None:
    intent, lock = lockfile.fleet_and_lock(fleet.path)
    assert lock.serial == 4
    assert signatures.lock_order(intent, lock) == (OWN, 4)
    assert signatures.lock_order(lockfile.fleet_and_lock(fleet.path, any_serial=True)[0], lock) == (OWN, 0)
    assert signatures.lock_order(intent.model_copy(update={"signers": None}), lock) == ("", 0)


def test_a_rollout_keeps_the_signature_and_the_order(fleet: LoopbackFleet) -> None:
    intent, lock = lockfile.fleet_and_lock(fleet.path)
    release = releases.store(fleet.path, lock)
    assert signatures.lock_order(release.fleet, release.lock) == (OWN, 4)
    back = release.for_host("gpu1", intent)
    assert signatures.lock_order(back, release.lock) == (OWN, 0), "a rollback is a deliberate way back"
    assert intent.any_serial is False
    plan = Plan("1", str(fleet.path), lock.digest, release.fleet_digest, (), intent.rollout.model_dump(mode="json"))
    for allowed in (False, True):
        kept = Plan.from_json(replace(plan, any_serial=allowed).as_json())
        assert RealEffects(kept)._fleet.any_serial is allowed
    releases.require_signed(fleet.path, lock.digest, release.fleet_digest)
    (release.folder / "gdsdeploy.lock.sig").unlink()
    with pytest.raises(SignatureRefused, match="is not signed") as caught:
        releases.require_signed(fleet.path, lock.digest, release.fleet_digest)
    assert "rollout abort" in str(caught.value.hint)


def test_an_unsigned_and_a_broken_signature(fleet: LoopbackFleet) -> None:
    place = signatures.beside(lockfile.beside(fleet.path))
    signature = place.read_text()
    place.write_text("no signature\n")
    _refused(fleet, SignatureRefused, "is no signature of what")
    place.unlink()
    _refused(fleet, SignatureRefused, "is not signed, but")
    place.write_text(signature)
    path = lockfile.beside(fleet.path)
    path.write_text(path.read_text() + "# a byte more\n")
    _refused(fleet, SignatureRefused, "incorrect signature")


def test_keys_that_are_not_listed_expired_for_other_things_and_revoked(fleet: LoopbackFleet, tmp_path: Path) -> None:
    path, listed = lockfile.beside(fleet.path), tmp_path / "allowed_signers"
    good = listed.read_text()
    _sign(path, tmp_path / "bob")
    _refused(fleet, SignatureRefused, "of no signer in .*No principal matched")
    _sign(path, tmp_path / "alice")
    listed.write_text(_listed(tmp_path / "alice", 'valid-before="20200101"'))
    _refused(fleet, SignatureRefused, "key has expired")
    listed.write_text(_listed(tmp_path / "alice", 'namespaces="file"'))
    _refused(fleet, SignatureRefused, "sign")
    listed.write_text(good)
    (tmp_path / "revoked").write_text((tmp_path / "alice.pub").read_text())
    fleet.path.write_text(fleet.path.read_text() + "revoked_signers: revoked\n")
    _refused(fleet, SignatureRefused, "revoked revokes")
    (tmp_path / "revoked").write_text((tmp_path / "bob.pub").read_text())
    assert lockfile.fleet_and_lock(fleet.path)[1].serial == 4


def test_a_lock_of_another_fleet(fleet: LoopbackFleet, tmp_path: Path) -> None:
    path = lockfile.beside(fleet.path)
    targets = lockfile.read(path).targets
    lockfile.write(path, lockfile.build(targets, fleet_id=OTHER, serial=9))
    _sign(path, tmp_path / "alice")
    _refused(fleet, SignatureRefused, f"is a lock of the fleet {OTHER}")
    fleet.path.write_text(fleet.path.read_text().replace(f"fleet_id: '{OWN}'\n", ""))
    _refused(fleet, SignatureRefused, "names signers, but not the fleet")
    lockfile.write(path, lockfile.build(targets))
    _sign(path, tmp_path / "alice")
    _refused(fleet, SignatureRefused, "names no fleet")


def test_what_is_missing_or_too_old(fleet: LoopbackFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text("#!/bin/sh\necho 'OpenSSH_8.7p1, OpenSSL 3.0.7' >&2\n")
    (programs / "ssh").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        _refused(fleet, MissingProgram, r"has OpenSSH 8\.7; signatures of locks need 8\.9")
    (tmp_path / "allowed_signers").unlink()
    _refused(fleet, FleetInvalid, "signers: .*there is no such file")


def test_a_key_that_cannot_sign_leaves_the_lock_as_it_is(
    fleet: LoopbackFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lockfile.beside(fleet.path)
    before = path.read_bytes(), signatures.beside(path).read_bytes()
    (tmp_path / "none").write_text("no key\n")
    for name in ("none", "missing"):
        assert commandline.run("lock", "--sign", tmp_path / name, fleet.path) == SigningKeyUnusable.exit_code
        assert f"{name}: no key of OpenSSH" in commandline.plain(capsys.readouterr().err)
        assert (path.read_bytes(), signatures.beside(path).read_bytes()) == before
    assert commandline.run("lock", "--check", "--sign", tmp_path / "alice", fleet.path) == 2


def test_a_lock_is_signed_whatever_else_the_command_ends_in(
    fleet: LoopbackFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lockfile.beside(fleet.path)
    resolved = Resolved(lockfile.read(path), ())
    record = PreflightRecord("1", "2", "open", "", "x", Answer.UNKNOWN, Answer.UNKNOWN, (), 1.0, "", "")
    proven = Proven(resolved, (Attempt("right", "its stack", record, is_earlier=False),))
    monkeypatch.setattr(cli_lock, "_resolve", lambda *_: (resolved, proven))
    signatures.beside(path).unlink()
    command = ("lock", "--prove", fleet.path, "--sign")
    assert commandline.run(*command, tmp_path / "alice") == ChecksUnknown.exit_code
    lockfile.fleet_and_lock(fleet.path)
    assert commandline.run(*command, tmp_path / "bob") == SignatureRefused.exit_code
    out, err = capsys.readouterr()
    assert out.count("packages") == 2, "what is locked is shown all the same"
    assert err.count("its stack has no proof") == 2


def test_each_new_lock_has_the_fleet_and_the_next_serial(fleet: LoopbackFleet) -> None:
    intent, lock = load_fleet(fleet.path), lockfile.read(lockfile.beside(fleet.path))
    after = lockfile.successor(lock, intent, lock)
    assert (after.fleet_id, after.serial) == (OWN, 5)
    free = intent.model_copy(update={"fleet_id": None})
    assert lockfile.successor(lock, free, lock).fleet_id == OWN
    first, second = (lockfile.successor(lock, free, None) for _ in range(2))
    assert (first.serial, first.fleet_id == second.fleet_id) == (1, False)


def test_the_lock_that_hosts_had_is_signed_too(fleet: LoopbackFleet, tmp_path: Path) -> None:
    """A rollout may bring hosts back to it."""
    old = tmp_path / "old" / lockfile.NAME
    old.parent.mkdir()
    lockfile.write(old, lockfile.build(lockfile.read(lockfile.beside(fleet.path)).targets, fleet_id=OWN, serial=3))
    start = ("rollout", "start", fleet.path, "--yes", "--from", old)
    assert commandline.run(*start) == SignatureRefused.exit_code
    assert fleet.sessions() == 0
    with pytest.raises(SignatureRefused, match="is not signed"):
        releases.add(fleet.path, old, load_fleet(fleet.path))
    _sign(old, tmp_path / "alice")
    assert releases.add(fleet.path, old, load_fleet(fleet.path)).lock.serial == 3
