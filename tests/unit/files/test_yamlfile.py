"""Fleet files and locks of strangers: each mistake is one error with its place, and none takes long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from gdsdeploy.errors import FleetInvalid, GdsError, LockInvalid
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.text import WORDS

SMALL = 'version: 1\nprofiles:\n  gds: {os: debian-13, driver: "550"}\nhosts:\n  gpu1: gds\n'
EXAMPLE = (Path(__file__).parents[3] / "examples/cuda-rhel-9.yml").read_text()
#: Each level has nine of the one before.
BOMB = "a0: &a0 x\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


def refused(path: Path, content: str | bytes) -> GdsError:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    begin = time.process_time()
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    assert time.process_time() - begin < 5
    return caught.value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (EXAMPLE.replace("  rhel-appstream:\n", ""), r":\d+:\d+: \*site is inside of &site"),
        ("a: &a\n  - *a\n", ":2:5: *a is inside of &a"),
        ("a: &a {<<: *a}\n", ":1:12: *a is inside of &a"),
        (BOMB, ":6:45: more than 400000 values"),
        ("[" * 1_000_000, ":1:65: nested more than 64 deep"),
        ("a: " + "[" * 64 + "]" * 64, ":1:67: nested more than 64 deep"),
        ("- " * 100_000 + "a", ":1:129: nested more than 64 deep"),
        (SMALL + "waivers: [{check: a, until: 2026-02-30}]", ":6:29: 2026-02-30 cannot be read as date: day is out of"),
        ("version: " + "9" * 5000, ":1:10: 9999"),
        ("version: 0x" + "f" * 5000, ":1:10: 0xff"),
        ("version: !!int x", ":1:10: x cannot be read as int"),
        ("version: !!bool maybe", ":1:10: this cannot be read as bool"),
        ("version: !!int ''", ":1:10:  cannot be read as int"),
        ("a: 1\n2026-02-01: x", ":2:1: 2026-02-01 is not text, as keys are: write it in quotes"),
        ("? [a, b]\n: x", ":1:3: this is not text"),
        ("? !!str [a, b]\n: x", ":1:3: this is not text"),
        ("a: [\n", ":2:1: not valid YAML"),
        ("a: *b\n", ":1:4: not valid YAML: found undefined alias"),
        (b"a: 1\nb: \xff\n", ":2:4: not text in UTF-8"),
        ("a: 1\n".encode("utf-16"), ":1:1: not text in UTF-8"),
        ("a: 1\n".encode("utf-16-le"), ":1:2: the character U+0000 is not text"),
        (b"a: 1\nb: \x1b]0;x\n", ":2:4: the character U+001B is not text"),
        (b"\x7fELF\x02\x01", ":1:1: the character U+007F is not text"),
        (b"#" * (4 * 1024 * 1024 + 1), ": larger than 4 MiB"),
        (b"\xef\xbb\xbf", ": the file is empty"),
        ("lock_version: '1.1'\ntargets: {}\n", ": this is a lock"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_error_with_its_place(tmp_path: Path, content: str | bytes, words: str) -> None:
    path = tmp_path / "fleet.yml"
    message = refused(path, content).message
    assert "\n" not in message
    assert len(message) < 300 + len(str(path))
    if words.startswith(r":\d"):
        (line,) = (n for n, text in enumerate(str(content).splitlines(), 1) if "<<: *site" in text and n < 40)
        assert message.startswith(f"{path}:{line}:9: *site is inside of &site")
    else:
        assert message.startswith(f"{path}{words}")


def test_as_deep_as_a_file_may_be(tmp_path: Path) -> None:
    path = tmp_path / "deep.yml"
    path.write_text("[" * 64 + "]" * 64)
    assert yamlfile.read(path, error=FleetInvalid).value


def test_what_is_no_file_is_explained(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, words in (
        (tmp_path, "this is a folder"),
        (tmp_path / "gone", "no such file"),
        (loop, "cannot be read: Too many levels of symbolic links"),
    ):
        with pytest.raises(FleetInvalid) as caught:
            load_fleet(path)
        assert caught.value.message == f"{path}: {words}"
        assert caught.value.hint


def test_a_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("gdsdeploy.host.io.reading.os.open", denied)
    with pytest.raises(FleetInvalid, match=r"you may not read this file$"):
        load_fleet(tmp_path / "fleet.yml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("debian-13", "debian13", "3:13: profiles.gds.os: write the name of the system, a hyphen and its release"),
        ("gpu1", "gpu 1", "5:3: hosts.gpu 1: a name is made of letters, digits, dots, hyphens and underscores, and"),
        ("gpu1: gds", "gpu1: {profile: gds, version: 1}", "5:24: hosts.gpu1.version: this key does not belong here"),
        ("gpu1: gds", "- gpu1", "5:3: hosts: a mapping of names to hosts is needed here"),
        ("gpu1: gds", "gpu1: gds\nbuilde[rs: {}", "6:1: …: unknown key; did you mean 'builders'?"),
        ("gpu1: gds", "gpu1: gds\n(x: {}", "6:1: (x: unknown key"),
        ('"550"', '"550", modules: [a]', "3:48: profiles.gds.modules: input should be 'auto', 'build', 'rec"),
        ('"550"', '"550", storage: x', "3:48: profiles.gds.storage: a list is needed here (found 'x')"),
        ('"550"', '"550", kernel: "' + "x" * 9999 + '"', "3:47: profiles.gds.kernel: a version pin is"),
    ],
)  # fmt: skip
def test_messages_are_words(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "fleet.yml"
    (line, *_) = refused(path, SMALL.replace(old, new, 1)).message.splitlines()
    assert line.startswith(f"{path}:{words}")
    assert len(line) < 400


def patterns(schema: object) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["pattern"]} if isinstance(schema.get("pattern"), str) else set()
        return own.union(*map(patterns, schema.values()))
    return set[str]().union(*map(patterns, schema)) if isinstance(schema, list) else set()


@pytest.mark.parametrize("model", [Fleet, Lock])
def test_every_pattern_has_words(model: type[Fleet] | type[Lock]) -> None:
    assert patterns(model.model_json_schema()) <= set(WORDS)


def test_a_fleet_file_in_place_of_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "gdsdeploy.lock"
    path.write_text(SMALL)
    with pytest.raises(LockInvalid, match=r"this is a fleet file$") as caught:
        lockfile.read(path)
    assert caught.value.hint == f"Its lock is {path}"


LOCK = {"lock_version": "1.9", "targets": {}, "digest": "sha256:" + "0" * 64}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: " + "[" * 5000, ":1:67: nested more than 64 deep"),
        (f"lock_version: '{'9' * 5000}.1'\n", ":1:1: digest: this key is required"),
        (f"lock_version: {'9' * 5000}\n", ":1:15: 999"),
        ("targets: &a\n  x: *a\n", ":2:6: *a is inside of &a"),
        (yaml.safe_dump(LOCK) + "2026-01-01: x\n", ":4:1: 2026-01-01 is not text"),
        (yaml.safe_dump(LOCK) + "new: 2026-01-01\n", ": the lock was edited by hand"),
    ],
)
def test_damaged_locks(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "gdsdeploy.lock"
    path.write_text(content)
    with pytest.raises(LockInvalid) as caught:
        lockfile.read(path, warn=lambda _: None)
    assert caught.value.message.startswith(f"{path}{words}")
    warned: list[str] = []
    assert lockfile.previous(path, warn=warned.append) is None
    assert warned[-1].startswith(f"{path}{words}")


def test_streams_of_documents() -> None:
    assert list(yamlfile.documents(b"---\na: 5.10\n---\n- 1\n")) == [{"a": "5.10"}, ["1"]]
    with pytest.raises(yaml.YAMLError, match="nested more than 64 deep"):
        list(yamlfile.documents(b"- " * 100_000 + b"a"))
