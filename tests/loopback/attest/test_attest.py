"""Statements about locks, validations and archives: signed, verified offline, and every change is one clear error."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers

from gdsdeploy.attest import dsse, keys, signing, statement
from gdsdeploy.builds.builder_keys import BuilderKeys
from gdsdeploy.cli import group
from gdsdeploy.errors import AttestationInvalid, AttestationRefused, GdsError, PolicyInvalid, SigningKeyUnusable
from gdsdeploy.host.io import tarball
from gdsdeploy.lock import lockfile
from gdsdeploy.report.model import HostReport, Report
from tests.loopback.builds.test_cache import EVIL, ORIGIN, OTHER, archive

GOLDEN = Path(__file__).parents[2] / "golden" / "lab"
BOOT = "3f1c7a52-5a0e-4b1e-9c58-0d6f0a3c9a11"
VERDICT = "unknown"
#: Of a validation, without its hosts.
PREDICATE = {
    **dict.fromkeys(("tool", "signed_by", "signed_at", "lock", "fleet", "began", "verdict"), "x"),
    "only": [],
    "left_out": [],
}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    for name in ("fleet.yml", "gdsdeploy.lock"):
        shutil.copy(GOLDEN / name, folder / name)
    return folder / "fleet.yml"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """It accepts the operator for locks and validations, and build1 for archives."""
    keys.signer(None)
    (tmp_path / "build1.pub").write_text(ORIGIN.public)
    path = tmp_path / "trust.yml"
    path.write_text(
        "version: 1\nexpires: 2099-12-31\n"
        f"keys:\n  operator: {keys.default().with_suffix('.pub')}\n  build1: build1.pub\n"
        "accept:\n  lock: [operator]\n  validation: [operator]\n  modules: [build1]\n"
    )
    return path


@pytest.fixture
def folder(tmp_path: Path, fleet: Path) -> Path:
    """A folder as ``validate --attest`` leaves it."""
    acceptance = tmp_path / "acceptance"
    host = HostReport("gpu1", "gds", boot_id=BOOT, evidence_digest="sha256:e", expectation_digest="sha256:x")
    report = Report(
        str(fleet), lockfile.read(fleet.with_name("gdsdeploy.lock")).digest, "2026-01-01T00:00:00Z", (host,)
    )
    signing.of_validation(report, fleet, acceptance, keys.signer(None), ["kernel.running"])
    return acceptance


def verify(policy: Path, *paths: Path) -> tuple[Result, dict[str, Any]]:
    result = CliRunner().invoke(group, ["verify", "--json", "--policy", str(policy), *map(str, paths)])
    assert result.exception is None or isinstance(result.exception, (GdsError, SystemExit)), result.exception
    return result, json.loads(result.stdout) if result.stdout else {}


def expect_refusal(policy: Path, path: Path, kind: type[GdsError], words: str) -> None:
    """There is an error of this kind with these words; all name the file."""
    result, output = verify(policy, path)
    assert isinstance(result.exception, GdsError)
    assert (kind.__name__, True) in [(error["kind"], words in error["message"]) for error in output["errors"]], output
    assert all(str(path) in error["message"] for error in output["errors"])


def test_a_lock_is_signed_and_verified(fleet: Path, policy: Path) -> None:
    signing.of_lock(fleet, keys.signer(None))
    lock = fleet.with_name("gdsdeploy.lock")
    statement = lock.with_name("gdsdeploy.lock.intoto.json")
    for path in (lock, statement):
        result, output = verify(policy, path)
        assert result.exit_code == 0, result.output
        (verified,) = output["verified"]
        assert (verified["kind"], verified["signer"], verified["files"]) == ("lock", "operator", ["gdsdeploy.lock"])
    payload = json.loads(base64.b64decode(json.loads(statement.read_text())["payload"]))
    assert payload["predicate"]["lock"] == lockfile.read(lock).digest
    assert set(payload["predicate"]) == {"tool", "signed_by", "signed_at", "lock", "fleet"}
    lock.write_text(lock.read_text() + "\n")
    expect_refusal(policy, lock, AttestationInvalid, "gdsdeploy.lock is not what was signed")
    expect_refusal(policy, fleet, AttestationInvalid, "there is no fleet.yml.intoto.json beside it")
    lock.unlink()
    expect_refusal(policy, statement, AttestationInvalid, "gdsdeploy.lock, which it is about, is missing")
    expect_refusal(policy, lock, AttestationInvalid, "there is no such file")


def test_a_folder_holds_what_was_signed_and_nothing_else(folder: Path, policy: Path, tmp_path: Path) -> None:
    result, output = verify(policy, folder)
    assert result.exit_code == 0, result.output
    assert output["verified"][0]["files"] == ["report.json", "gdsdeploy.lock"]
    assert output["verified"][0]["statement"]["predicate"]["hosts"]["gpu1"]["boot_id"] == BOOT
    payload = json.loads(base64.b64decode(json.loads((folder / signing.VALIDATION).read_text())["payload"]))
    (host,) = payload["predicate"]["hosts"].items()
    assert host == ("gpu1", {"verdict": VERDICT, "boot_id": BOOT, "expectation": "sha256:x", "evidence": "sha256:e"})
    packed = tmp_path / "acceptance.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(folder, ".")
    assert verify(policy, packed)[0].exit_code == 0
    (folder / "notes.txt").write_text("extra")
    expect_refusal(policy, folder, AttestationInvalid, "notes.txt: no statement that holds is about this file")
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(folder, ".")
    expect_refusal(policy, packed, AttestationInvalid, "notes.txt: no statement that holds is about this file")
    (folder / "notes.txt").unlink()
    (folder / "report.json").unlink()
    expect_refusal(policy, folder, AttestationInvalid, "report.json, which it is about, is missing")
    (folder / "report.json").symlink_to("/etc/passwd")
    expect_refusal(policy, folder, AttestationInvalid, "is not a plain file")


def test_what_is_printed_says_who_when_which_boot_and_which_digests(folder: Path, policy: Path, tmp_path: Path) -> None:
    def verify_lines(path: Path) -> list[str]:
        return CliRunner().invoke(group, ["verify", "--policy", str(policy), str(path)]).stdout.splitlines()

    first, *lines = verify_lines(folder)
    assert re.fullmatch(
        rf"{folder}/{signing.VALIDATION}: validation, signed by operator \(key \w{{16}}\), 2 files", first
    )
    assert re.fullmatch(r"  signed at 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ by \S+@\S+ with gdsdeploy \S+", lines[0])
    lock = lockfile.read(folder / "gdsdeploy.lock").digest
    assert lines[1:5] == [
        f"  lock {lock}",
        f"  fleet file sha256:{statement.sha256((tmp_path / 'fleet/fleet.yml').read_bytes())}",
        f"  verdict {VERDICT}, validation began at 2026-01-01T00:00:00Z",
        "  only these checks were made: kernel.running",
    ]
    assert lines[5] == f"  gpu1: {VERDICT}, boot {BOOT}, evidence sha256:e, expectation sha256:x"
    names = ("report.json", "gdsdeploy.lock")
    assert lines[6:] == [f"  sha256:{statement.sha256((folder / name).read_bytes())} {name}" for name in names]
    part = statement.ValidationPredicate.model_validate({**PREDICATE, "left_out": ["gpu2"], "hosts": {}})
    assert part.lines()[-1] == "these hosts were not asked: gpu2"
    modules = archive(tmp_path / "modules.tar", "a")
    _, *lines = verify_lines(modules)
    assert re.fullmatch(r"  built on build1, finished at 20\S+Z, run run-1", lines[0])
    assert re.fullmatch(r"  build key sha256:[0-9a-f]{64}", lines[1])
    assert [line.split()[1] for line in lines[2:]] == ["manifest.json", "modules/nvidia.ko"]


@pytest.mark.parametrize("form", ["", "gz"])
def test_what_follows_the_end_of_a_tar_file_is_noticed(form: str, folder: Path, policy: Path, tmp_path: Path) -> None:
    """``tar --ignore-zeros`` unpacks it."""
    packed, more = tmp_path / "case.tar", tmp_path / "more.tar"
    for path, added in ((packed, folder), (more, policy)):
        with tarfile.open(path, "w") as tar:
            tar.add(added, "." if added.is_dir() else "hidden.yml")
    whole = packed.read_bytes() + more.read_bytes()
    packed.write_bytes(gzip.compress(whole) if form else whole)
    expect_refusal(policy, packed, AttestationInvalid, "something follows its end")
    modules = archive(tmp_path / "modules.tar", "a")
    modules.write_bytes(modules.read_bytes() + more.read_bytes())
    expect_refusal(policy, modules, AttestationInvalid, "something follows its end")


@pytest.mark.parametrize("top", ["../acceptance", "/acceptance", "a//b", "./././a"])
def test_names_in_a_tar_file_stay_below_its_folder(top: str, folder: Path, policy: Path, tmp_path: Path) -> None:
    packed = tmp_path / "case.tar"
    with tarfile.open(packed, "w") as tar:
        for file in folder.iterdir():
            info = tar.gettarinfo(file)
            info.name = f"{top}/{file.name}"
            tar.addfile(info, io.BytesIO(file.read_bytes()))
    expect_refusal(policy, packed, AttestationInvalid, "is not the plain name of a file below its folder")


@pytest.mark.parametrize("form", ["", "gz", "xz", "bz2"])
def test_a_damaged_tar_file_is_one_error(form: str, folder: Path, policy: Path, tmp_path: Path) -> None:
    """Whatever packed it: only plain and gzipped ones are read."""
    packed = tmp_path / "case.tar"
    with tarfile.open(packed, f"w:{form}") as tar:
        tar.add(folder, ".")
    data = packed.read_bytes()
    for damage in (data[: len(data) // 2], data[:40] + b"\xff" * 40 + data[80:]):
        packed.write_bytes(damage)
        expect_refusal(policy, packed, AttestationInvalid, "not a tar file, or damaged: ")


def test_a_header_without_end_is_refused(policy: Path, tmp_path: Path) -> None:
    packed, header = tmp_path / "case.tar", tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    packed.write_bytes(header.tobuf())
    os.truncate(packed, 1 << 31)
    tracemalloc.start()
    expect_refusal(policy, packed, AttestationInvalid, "a header of a member is too large")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


def test_a_folder_without_a_statement_holds_nothing(tmp_path: Path, policy: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    expect_refusal(policy, empty, AttestationInvalid, "there is nothing in it to verify")


def test_an_archive_of_modules_carries_its_own_statement(tmp_path: Path, folder: Path, policy: Path) -> None:
    modules = archive(tmp_path / "modules.tar", "a")
    result, output = verify(policy, modules)
    assert result.exit_code == 0, result.output
    assert (output["verified"][0]["kind"], output["verified"][0]["signer"]) == ("modules", "build1")
    shutil.copy(modules, folder / "modules.tar")
    assert verify(policy, folder)[0].exit_code == 0
    packed = tmp_path / "acceptance.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(folder, ".")
    result, output = verify(policy, packed)
    assert result.exit_code == 0, result.output
    assert [verified["place"] for verified in output["verified"]] == [
        f"{packed}/{signing.VALIDATION}",
        f"{packed}/modules.tar",
    ]
    data = modules.read_bytes()
    modules.write_bytes(data.replace(b"a\na\na\n", b"a\nb\na\n", 1))
    expect_refusal(policy, modules, AttestationInvalid, "doesn't have its manifest's sha256")
    shutil.copy(modules, folder / "modules.tar")
    (folder / "notes.txt").write_text("extra")
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(folder, ".")
    for path in (folder, packed):
        expect_refusal(policy, path, AttestationInvalid, f"{path}/modules.tar: is not what was signed")
        expect_refusal(policy, path, AttestationInvalid, "notes.txt: no statement that holds is about this file")
    archive(modules, "a", signer=OTHER)
    expect_refusal(policy, modules, AttestationRefused, "no key that")


def test_a_tar_file_is_not_read_for_each_of_its_files(
    folder: Path, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files in it could be archives of modules."""
    packed, reads, members = tmp_path / "case.tar.gz", [], tarball.members
    for number in range(20):
        (folder / f"{number}.tar").write_text("x")
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(folder, ".")

    def count_reads(path: str, limit: int) -> Any:
        reads.append(path)
        return members(path, limit)

    monkeypatch.setattr(tarball, "members", count_reads)
    expect_refusal(policy, packed, AttestationInvalid, "19.tar: no statement that holds is about this file")
    # Once as an archive of modules, once for digests, once for the copies.
    assert reads.count(str(packed)) == 3


def test_another_program_verifies_as_the_page_says(folder: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/attest.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shutil.copy(keys.default().with_suffix(".pub"), folder / "alice.pub")

    def run() -> str:
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, check=False, capture_output=True, text=True)
        return f"{done.returncode} {done.stderr}"

    assert run() == "0 "
    (folder / "report.json").write_text("{}")
    assert run() == "1 report.json is not what was signed\n"
    (folder / "alice.pub").write_text(EVIL.public)
    assert "VerificationError" in run()


def test_a_key_counts_only_for_its_kind(fleet: Path, policy: Path) -> None:
    signing.of_lock(fleet, keys.signer(None))
    lock = fleet.with_name("gdsdeploy.lock")
    policy.write_text(policy.read_text().replace("lock: [operator]", "lock: [build1]"))
    expect_refusal(policy, lock, AttestationRefused, "accepts for lock has a good signature")


def test_a_flipped_character_of_a_statement_is_refused(folder: Path, policy: Path) -> None:
    place = folder / signing.VALIDATION
    text = place.read_text()

    @given(where=integers(0, len(text) - 1), other=integers(33, 126))
    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def flip(where: int, other: int) -> None:
        changed = text[:where] + chr(other) + text[where + 1 :]
        place.write_text(changed)
        result, output = verify(policy, folder)
        if result.exit_code == 0:
            # Signed is what the envelope decodes to.
            assert dsse.read(changed.encode(), "x").payload == dsse.read(text.encode(), "x").payload
        else:
            assert isinstance(result.exception, (AttestationInvalid, AttestationRefused))
            assert output["errors"]

    flip()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a signed statement"),
        (b"[" * 100_000, "not a signed statement"),
        (b'{"payload": "e30=", "payloadType": "x", "signatures": []}', "its payload is 'x'"),
        (b'{"payload": "e30=", "payloadType": 5, "signatures": []}', "its payload is '5'"),
        (b'{"payload": "e30=", "payloadType": "application/vnd.in-toto+json", "signatures": [1]}', "not a signed"),
        (b'{"payload": "e30=", "payloadType": "application/vnd.in-toto+json", "signatures": []}', "no in-toto"),
        (b" " * (1 << 20 | 1), "larger than 1 MiB"),
        (b'{"payload": "e30=", "payload": "e30=", "payloadType": "x", "signatures": []}', "not a signed statement"),
    ],
    ids=range(8),
)  # fmt: skip
def test_what_is_no_statement_is_one_error_with_its_file(folder: Path, policy: Path, data: bytes, words: str) -> None:
    (folder / signing.VALIDATION).write_bytes(data)
    expect_refusal(policy, folder, AttestationInvalid, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"predicateType": "urn:other"}, "unknown kind of statement: 'urn:other'"),
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "no in-toto statement: _type"),
        ({"subject": []}, "no in-toto statement: subject"),
        ({"subject": [{"name": "../x", "digest": {"sha256": "a" * 64}}]}, "which it is about, is missing"),
        ({"subject": [{"name": "x", "digest": {"sha256": "a" * 64}}] * 2}, "names a file more than once"),
        ({"predicateType": "urn:gdsdeploy:lock:v1", "predicate": {}}, "no in-toto statement: tool"),
        ({"predicate": {"verdict": "pass"}}, "no in-toto statement: tool"),
        ({"predicate": {**PREDICATE, "hosts": {"gpu1": "pass"}}}, "no in-toto statement: hosts.gpu1"),
        ({"predicateType": "https://slsa.dev/provenance/v1"}, "no in-toto statement: buildDefinition"),
    ],
)
def test_a_signed_statement_has_to_make_sense(folder: Path, policy: Path, change: dict[str, Any], words: str) -> None:
    place = folder / signing.VALIDATION
    value = json.loads(dsse.read(place.read_bytes(), "x").payload)
    place.write_bytes(dsse.seal(json.dumps({**value, **change}).encode(), keys.signer(None)))
    expect_refusal(policy, folder, AttestationInvalid, words)


def test_a_key_twice_in_a_statement_is_refused(folder: Path, policy: Path) -> None:
    """Other programs may take the first of them."""
    place = folder / signing.VALIDATION
    payload = dsse.read(place.read_bytes(), "x").payload
    place.write_bytes(dsse.seal(b'{"subject": [], ' + payload[1:], keys.signer(None)))
    expect_refusal(policy, folder, AttestationInvalid, "an object has a key twice")


def test_one_good_signature_of_several_is_enough(folder: Path, policy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    other.write_bytes(keys.Ed25519PrivateKey.generate().private_bytes(*keys._PRIVATE))
    other.chmod(0o600)
    place = folder / signing.VALIDATION
    first, second = (json.loads(place.read_text()) for _ in range(2))
    second = json.loads(dsse.seal(base64.b64decode(first["payload"]), keys.signer(other)))
    for signatures in (second["signatures"] + first["signatures"], first["signatures"] + second["signatures"]):
        place.write_text(json.dumps({**first, "signatures": signatures}))
        result, output = verify(policy, folder)
        assert result.exit_code == 0, result.output
        assert output["verified"][0]["signer"] == "operator"
    place.write_text(json.dumps(second))
    expect_refusal(policy, folder, AttestationRefused, f"(signed by {second['signatures'][0]['keyid'][:16]})")
    # Its own signature under the name of the accepted key.
    second["signatures"][0]["keyid"] = first["signatures"][0]["keyid"]
    place.write_text(json.dumps(second))
    expect_refusal(policy, folder, AttestationRefused, "no key that")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (("2099-12-31", "2020-01-01"), AttestationRefused, "the policy has expired on 2020-01-01"),
        (("2099-12-31", "soon"), PolicyInvalid, "expires"),
        (("[build1]", "[carol]"), PolicyInvalid, "there is no key 'carol'"),
        (("build1.pub", "nowhere.pub"), PolicyInvalid, "nowhere.pub: No such file"),
        (("build1.pub", "trust.yml"), SigningKeyUnusable, "trust.yml: not a public Ed25519 key in PEM"),
        (("version: 1", "version: 2"), PolicyInvalid, "version"),
        (("modules:", "modulse:"), PolicyInvalid, "accept.modulse"),
        (("version: 1\n", "version: [\n"), PolicyInvalid, "not valid YAML"),
    ],
)
def test_a_policy_that_cannot_be_used(
    folder: Path, policy: Path, change: tuple[str, str], kind: type[GdsError], words: str
) -> None:
    policy.write_text(policy.read_text().replace(*change))
    result, _ = verify(policy, folder)
    assert isinstance(result.exception, kind)
    assert words.lower() in result.exception.message.lower()
    assert str(policy.parent) in result.exception.message


def test_a_policy_may_hold_a_key_itself(folder: Path, policy: Path) -> None:
    text = "\n".join(f"    {line}" for line in keys.default().with_suffix(".pub").read_text().splitlines())
    policy.write_text(
        policy.read_text().replace(f"operator: {keys.default().with_suffix('.pub')}", f"operator: |\n{text}")
    )
    assert verify(policy, folder)[0].exit_code == 0
    policy.write_text(policy.read_text().replace("PUBLIC KEY", "EC KEY"))
    assert isinstance(verify(policy, folder)[0].exception, (SigningKeyUnusable, PolicyInvalid))


def test_the_operators_key_is_made_once_for_nobody_else(tmp_path: Path) -> None:
    first, place = keys.signer(None), keys.default()
    assert place.stat().st_mode & 0o777 == 0o600
    assert keys.signer(None).public_key.keyid == first.public_key.keyid == keys.signer(place).public_key.keyid
    place.chmod(0o640)
    with pytest.raises(SigningKeyUnusable, match="can be read by others"):
        keys.signer(place)
    for name, data in (("text", b"no key"), ("public", EVIL.public.encode())):
        path = tmp_path / name
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(SigningKeyUnusable, match="not an unencrypted private Ed25519 key"):
            keys.signer(path)
    with pytest.raises(SigningKeyUnusable, match="nowhere: No such file"):
        keys.signer(tmp_path / "nowhere")


def test_of_two_processes_that_make_the_operators_key_both_have_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    make, place = keys._make, keys.default()

    def both(path: Path) -> None:
        make(path)
        first = path.read_bytes()
        make(path)
        assert path.read_bytes() == first

    monkeypatch.setattr(keys, "_make", both)
    public = keys.signer(None).public_key
    assert keys.public(place.with_suffix(".pub").read_bytes(), "x") == public == keys.signer(None).public_key
    assert {path.name for path in place.parent.iterdir()} == {"operator.key", "operator.pub"}
    for text in (None, EVIL.public):
        place.with_suffix(".pub").unlink()
        if text:
            place.with_suffix(".pub").write_text(text)
        keys.signer(None)
        assert keys.public(place.with_suffix(".pub").read_bytes(), "x") == public


def test_a_state_folder_that_cannot_be_made_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    for make in (lambda: keys.signer(None), lambda: BuilderKeys.of(tmp_path / "fleet.yml")):
        with pytest.raises(SigningKeyUnusable, match="Not a directory") as caught:
            make()
        assert "GDSDEPLOY_STATE_DIR" in str(caught.value.hint)


@pytest.mark.parametrize(
    "words",
    [
        ["lock", "--sign", "--check", "fleet.yml"],
        ["validate", "--attest", "x.json", "--evidence", "bundle.tar.gz"],
        ["validate", "fleet.yml", "--attest", "x.json", "--pytest"],
    ],
)
def test_flags_that_do_not_go_together(words: list[str]) -> None:
    assert CliRunner().invoke(group, words).exit_code == 2
