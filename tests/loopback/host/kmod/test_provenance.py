"""Archives that their builder has signed: what a receiver refuses before it unpacks, and that others can read it."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers

from gdsdeploy.host.archive import pack, provenance
from gdsdeploy.host.archive.provenance import Builder, Origin
from gdsdeploy.host.errors import PackError
from gdsdeploy.host.kmod import files
from tests.loopback.builds.test_cache import EVIL, ORIGIN, OTHER, SIGNER, archive


@pytest.fixture(scope="module")
def packed_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive(tmp_path_factory.mktemp("archive") / "modules.tar", "a", 5_000)


def manifest_of(path: Path) -> bytes:
    with tarfile.open(path) as opened:
        file = opened.extractfile("manifest.json")
        assert file is not None
        return file.read()


def test_who_built_it_and_when_is_what_a_statement_says(packed_archive: Path) -> None:
    envelope = pack.read_provenance(str(packed_archive))
    statement = provenance.verify(envelope, manifest_of(packed_archive), ORIGIN)
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    run = statement["predicate"]["runDetails"]
    assert run["builder"]["id"] == "urn:gdsdeploy:builder:build1"
    assert run["metadata"]["invocationId"] == "run-1"
    definition = statement["predicate"]["buildDefinition"]
    assert definition["internalParameters"]["build_key"].startswith("sha256:")
    assert [entry["name"] for entry in statement["subject"]] == ["manifest.json", "modules/nvidia.ko"]


def test_openssl_reads_the_key_and_verifies_the_signature(packed_archive: Path, tmp_path: Path) -> None:
    seed = provenance.own_key(str(tmp_path))
    private = tmp_path / provenance.KEY.lstrip("/")
    shown = subprocess.run(
        ["openssl", "pkey", "-in", private, "-pubout"], check=True, capture_output=True, text=True
    ).stdout
    assert shown == (tmp_path / provenance.PUBLIC.lstrip("/")).read_text() == provenance.public_pem(seed)
    value = json.loads(pack.read_provenance(str(packed_archive)))
    for name, data in (
        ("signed", provenance.encoding(base64.b64decode(value["payload"]))),
        ("signature", base64.b64decode(value["signatures"][0]["sig"])),
        ("public", ORIGIN.public.encode()),
    ):
        (tmp_path / name).write_bytes(data)
    words = "openssl pkeyutl -verify -rawin -pubin -inkey public -in signed -sigfile signature"
    assert subprocess.run(words.split(), cwd=tmp_path, check=False, capture_output=True).returncode == 0
    (tmp_path / "signed").write_bytes(b"other")
    assert subprocess.run(words.split(), cwd=tmp_path, check=False, capture_output=True).returncode != 0


def test_the_key_is_made_once_and_refused_when_others_could_have_it(tmp_path: Path) -> None:
    seed = provenance.own_key(str(tmp_path))
    path = tmp_path / provenance.KEY.lstrip("/")
    assert path.stat().st_mode & 0o777 == 0o600
    assert provenance.own_key(str(tmp_path)) == seed
    path.chmod(0o640)
    with pytest.raises(PackError, match="others than root could have read or changed it"):
        provenance.own_key(str(tmp_path))
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(PackError, match="not an Ed25519 key"):
        provenance.own_key(str(tmp_path))


@pytest.mark.parametrize(
    ("signer", "origin", "words"),
    [
        (None, ORIGIN, "isn't signed"),
        (OTHER, ORIGIN, "isn't by the builder that the controller knows"),
        (Builder("evil", SIGNER.seed), ORIGIN, "signed as 'urn:gdsdeploy:builder:evil', not by build1"),
        (SIGNER, EVIL, "isn't by the builder that the controller knows"),
        (SIGNER, Origin("build1", ""), "the builder's public key: not an Ed25519 key"),
        (
            SIGNER,
            Origin("build1", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
            "not an Ed25519 key",
        ),
    ],
)
def test_what_the_builder_has_not_signed_is_refused(
    tmp_path: Path, signer: Builder | None, origin: Origin, words: str
) -> None:
    path = archive(tmp_path / "modules.tar", "a", 5_000, signer)
    folder = tmp_path / "unpacked"
    folder.mkdir()
    with pytest.raises(PackError, match=words):
        pack.unpack(str(path), "", str(folder), origin)
    assert list(folder.iterdir()) == [], "nothing is unpacked before it is verified"


def test_a_signature_of_another_archive_is_refused(packed_archive: Path, tmp_path: Path) -> None:
    """The review's attack: module bytes changed, manifest written anew, and the good signature kept."""
    other = archive(tmp_path / "other.tar", "a", 9_000)
    good, bad = pack.read_provenance(str(packed_archive)), pack.read_provenance(str(other))
    with pytest.raises(PackError, match="is about another archive"):
        provenance.verify(bad, manifest_of(packed_archive), ORIGIN)
    assert provenance.verify(good, manifest_of(packed_archive), ORIGIN)


def fields(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every leaf."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    return [path] if items is None else [leaf for key, entry in items for leaf in fields(entry, (*path, key))]


def replace_leaf(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    if not path:
        return leaf
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replace_leaf(copy[path[0]], path[1:], leaf)
    return copy


@pytest.mark.parametrize("leaf", ["x", None, 5, [], {}, "\ud800", [[[[]]]]], ids=repr)
def test_every_field_that_is_changed_is_noticed(packed_archive: Path, leaf: Any) -> None:
    """In the envelope, and in the statement, whose signature does not fit then."""
    envelope = json.loads(pack.read_provenance(str(packed_archive)))
    statement = json.loads(base64.b64decode(envelope["payload"]))
    wrong = [replace_leaf(envelope, path, leaf) for path in fields(envelope)]
    for path in fields(statement):
        payload = json.dumps(replace_leaf(statement, path, leaf)).encode()
        wrong.append({**envelope, "payload": base64.b64encode(payload).decode()})
    assert len(wrong) > 15
    for value in wrong:
        with pytest.raises(PackError):
            provenance.verify(json.dumps(value).encode(), manifest_of(packed_archive), ORIGIN)


def test_an_envelope_has_one_form(packed_archive: Path) -> None:
    """One signature, each key once, plain base64: two programs never see two things in it."""
    text = pack.read_provenance(str(packed_archive)).decode()
    value = json.loads(text)
    (signature,), payload = value["signatures"], value["payload"]
    forged = json.loads(provenance.sign(manifest_of(packed_archive), OTHER))["signatures"]
    for wrong in (
        {**value, "signatures": []},
        {**value, "signatures": [signature, *forged]},
        {**value, "signatures": [*forged, signature]},
        {**value, "signatures": [signature, signature]},
        {**value, "signatures": [{**forged[0], "keyid": signature["keyid"]}]},
        {**value, "payload": payload.rstrip("=") + "\n"},
        {**value, "payload": f" {payload}"},
        {**value, "signatures": [{**signature, "sig": signature["sig"].replace("=", "")}]},
        {**value, "signatures": [{**signature, "sig": signature["sig"] + "AAAA"}]},
    ):
        with pytest.raises(PackError):
            provenance.verify(json.dumps(wrong).encode(), manifest_of(packed_archive), ORIGIN)
    for key in ("payload", "payloadType", "signatures"):
        twice = f'{{"{key}": {json.dumps(value[key])}, {text[1:]}'
        assert json.loads(twice) == value
        with pytest.raises(PackError, match="its signature is malformed"):
            provenance.verify(twice.encode(), manifest_of(packed_archive), ORIGIN)


@pytest.mark.parametrize("key", [None, "x"])
def test_an_archive_that_names_no_ingredients_is_refused(packed_archive: Path, tmp_path: Path, key: Any) -> None:
    text = json.dumps({**json.loads(manifest_of(packed_archive)), "key": key}).encode()
    member = tarfile.TarInfo("manifest.json")
    member.size = len(text)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(member, io.BytesIO(text))
    with pytest.raises(PackError, match="its manifest needs objects as driver, nvidia_fs, key"):
        pack.read_manifest(str(tmp_path / "a.tar"))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"payload": 1}'], ids=repr)
def test_what_is_no_envelope_is_one_error(packed_archive: Path, data: bytes) -> None:
    with pytest.raises(PackError, match="its signature is malformed"):
        provenance.verify(data, manifest_of(packed_archive), ORIGIN)


@given(where=integers(0, 1 << 20), bit=integers(0, 7))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_flipped_bit_of_an_archive_changes_what_is_unpacked(
    packed_archive: Path, tmp_path_factory: pytest.TempPathFactory, where: int, bit: int
) -> None:
    """Refused, or in bytes of the tar file that say nothing."""
    data = bytearray(packed_archive.read_bytes())
    data[where % len(data)] ^= 1 << bit
    folder = tmp_path_factory.mktemp("flip", numbered=True)
    path = folder / "modules.tar"
    path.write_bytes(data)
    try:
        result = pack.unpack(str(path), "", str(folder), ORIGIN)
    except PackError:
        return
    assert result == pack.read_manifest(str(packed_archive))
    module = folder / "nvidia.ko"
    assert files.sha256(str(module)) == result["modules"][0]["sha256"]


def test_a_manifest_that_is_not_of_the_lock_is_told_by_what_differs() -> None:
    manifest = {"kernel_release": "6.12", "driver": {"version": "1", "flavour": "open"}, "nvidia_fs": {}}
    same = {"kernel_release": "6.12", "driver_version": "1", "driver_flavour": "open", "nvidia_fs_version": ""}
    assert provenance.differences(manifest, same) == []
    wrong = {**same, "driver_version": "2", "nvidia_fs_version": "2.19"}
    assert provenance.differences(manifest, wrong) == [
        "its driver version is 1, not 2", "its nvidia fs version is None, not 2.19",
    ]  # fmt: skip
