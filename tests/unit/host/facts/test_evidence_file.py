"""Saved evidence, read in one place: each kind of file through each verb, and each way in which a file is none."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host import __main__ as program
from gdsdeploy.host.facts import document
from gdsdeploy.host.facts.document import UNNAMED, EvidenceFileError, one, read
from gdsdeploy.host.model.expectation import Expectation, from_json
from gdsdeploy.report.model import Trouble
from gdsdeploy.validate import support_bundle
from tests.commandline import plain, run

H100 = Path(__file__).parents[3] / "evidence/hosts/h100-libcufile-1.20.0.json"
EVIDENCE = json.loads(H100.read_text())
DEEP = "[" * 90_000 + "]" * 90_000


def expected(host: str) -> Expectation:
    return replace(from_json(H100.with_name("lab-vm.expectation.json").read_text()), host=host)


def packed(path: Path, *names: str, mode: str = "gz") -> Path:
    """A support bundle of these hosts, and of one that gave no evidence."""
    hosts = {name: support_bundle.BundleHost(expected(name), EVIDENCE) for name in names}
    hosts["lost"] = support_bundle.BundleHost(expected("lost"), None, Trouble("HostUnreachable", "no answer", "", 20))
    data = support_bundle.pack(support_bundle.Bundle("fleet.yml", "0" * 64, "2026-11-22T00:00:00Z", hosts), {})
    path.write_bytes(data if mode == "gz" else gzip.decompress(data))
    return path


def unpacked(path: Path, *names: str) -> Path:
    with tarfile.open(packed(path.with_suffix(".tar.gz"), *names)) as archive:
        archive.extractall(path, filter="data")
    return path


def report(path: Path) -> Path:
    path.write_text(json.dumps({"host": "gpu1", "findings": [], "evidence": EVIDENCE}))
    return path


@pytest.fixture(params=["document", "report", "archive", "plain archive", "folder", "folder inside"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The evidence of one host in each of the ways that it can be kept."""
    match request.param:
        case "document":
            return H100
        case "report":
            return report(tmp_path / "report.json")
        case "archive":
            return packed(tmp_path / "case.tar.gz", "gpu1")
        case "plain archive":
            return packed(tmp_path / "case.tar", "gpu1", mode="tar")
        case "folder":
            return unpacked(tmp_path / "case", "gpu1")
        case _:
            return unpacked(tmp_path / "case", "gpu1") / document.FOLDER


def test_every_kind_holds_the_same_evidence(saved: Path) -> None:
    assert one(str(saved)) == EVIDENCE
    assert list(read(str(saved))) in ([UNNAMED], ["gpu1"])


@pytest.mark.parametrize("flag", ["--evidence", "--from"])
def test_topology(saved: Path, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topology", "--evidence", H100, "--json") == 0
    alone = json.loads(capsys.readouterr().out)
    assert run("topology", flag, saved, "--json") == 0
    assert json.loads(capsys.readouterr().out) in (alone, {"gpu1": alone})
    assert run("topology", flag, saved) == 0
    assert capsys.readouterr().out


def test_explain(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "--evidence", H100) == 0
    alone = capsys.readouterr().out
    assert run("explain", "--evidence", saved) == 0
    assert capsys.readouterr().out == alone


@pytest.mark.parametrize("verb", ["facts", "topology", "explain"])
def test_the_program_on_hosts(saved: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([verb, "--evidence", str(H100)]) == 0
    alone = capsys.readouterr().out
    assert program.main([verb, "--evidence", str(saved)]) == 0
    assert capsys.readouterr().out == alone


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(H100.read_text()))
    assert read("-") == {UNNAMED: EVIDENCE}


def test_validate_reads_bundles_packed_or_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = packed(tmp_path / "a.tar.gz", "gpu1"), unpacked(tmp_path / "b", "gpu1")
    codes, outputs = set(), []
    for flag, path in (("--evidence", file), ("--from", file), ("--evidence", folder)):
        codes.add(run("validate", flag, path, "--json"))
        outputs.append({**json.loads(capsys.readouterr().out), "fleet": ""})
    assert codes == {30}
    assert outputs[0] == outputs[1] == outputs[2]
    assert run("validate", "--evidence", H100) == 1
    err = plain(capsys.readouterr().err)
    assert f"{H100}: isn't a support bundle" in err
    assert "--expectation FILE" in err


def test_a_host_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = packed(tmp_path / "case.tar.gz", "gpu1", "gpu2")
    assert set(read(str(file))) == {"gpu1", "gpu2"}
    assert one(str(file), "gpu2") == EVIDENCE
    for host, words in (
        ("", "evidence of several hosts: gpu1, gpu2"),
        ("gpu3", "no evidence of gpu3"),
        ("lost", "of lost"),
    ):
        with pytest.raises(EvidenceFileError, match=words):
            one(str(file), host)
    assert run("topology", "--evidence", file, "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"gpu1", "gpu2"}
    assert run("explain", "gpu2", "--evidence", file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["host"] == "gpu2"
    assert run("explain", "--evidence", file) == 1
    assert "Name one as HOST" in plain(capsys.readouterr().err)


def test_a_bundle_in_which_no_host_gave_evidence(tmp_path: Path) -> None:
    with pytest.raises(EvidenceFileError, match="this support bundle has no host's evidence"):
        read(str(packed(tmp_path / "case.tar.gz")))


#: What is in a file, and the words that say why it is no evidence.
USELESS = {
    "missing": (None, "cannot be read: No such file or directory"),
    "empty": (b"", "not evidence: not JSON"),
    "not JSON": (b"{", "not evidence: not JSON"),
    "another kind": (b'{"hosts": []}', "not evidence: JSON of another kind"),
    "files of another kind": (b'{"files": []}', "not evidence: JSON of another kind"),
    "too deep": (DEEP.encode(), "not evidence: it is nested more than 64 deep"),
    "too deep inside": (f'{{"files": {{}}, "x": {DEEP}}}'.encode(), "not evidence: it is nested more than 64 deep"),
    "bytes": (b"\xff\xfe", "not evidence: neither text nor a support bundle"),
    "damaged": (b"\x1f\x8b\x08garbage", "isn't a support bundle, or is a damaged one"),
}


@pytest.mark.parametrize(("content", "words"), USELESS.values(), ids=USELESS.keys())
def test_every_verb_says_alike_why_a_file_is_none(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    if content is not None:
        file.write_bytes(content)
    for verb in ("topology", "explain"):
        assert run(verb, "--evidence", file) == 1
        assert f"{file}: {words}" in plain(capsys.readouterr().err).replace("\n", " ")
    for verb in ("facts", "topology", "explain"):
        assert program.main([verb, "--evidence", str(file)]) == 2
        assert f"gdsdeploy-host: {file}: {words}" in capsys.readouterr().err


@pytest.mark.parametrize("manifest", ["{", "[]", "{}", '{"version": 2}'])
def test_a_bundle_with_a_bad_manifest(manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = unpacked(tmp_path / "case", "gpu1")
    (folder / document.FOLDER / "manifest.json").write_text(manifest)
    for verb in ("topology", "validate"):
        assert run(verb, "--evidence", folder) == 1
        assert "bundle" in plain(capsys.readouterr().err)


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "case", "gpu1")
    file = folder / document.FOLDER / "hosts/gpu1/evidence.json"
    file.unlink()
    file.symlink_to(H100)
    with pytest.raises(EvidenceFileError, match="this support bundle has no host's evidence"):
        read(str(folder))
