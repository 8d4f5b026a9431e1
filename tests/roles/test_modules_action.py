"""The action of gds_modules: a builder's key is on record from the first time on, and receivers get it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gdsdeploy.host.archive.provenance import public_pem

ROOT = Path(__file__).parents[2]
FIRST, SECOND = public_pem(b"1" * 32), public_pem(b"2" * 32)
BUILDS = {"source": "build", "kernel_release": "6.12", "archive": "x.tar", "builder": "build1"}


class Refused(Exception):
    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.hint = kind, message, hint


class Base:
    """Stands for the base of all actions: what it would do on a host."""

    def __init__(self, host: dict[str, str]) -> None:
        #: path on the host → content
        self.host = host
        self.fetched: list[str] = []

    def play(self, action: str, arguments: dict[str, Any], _: dict[str, Any]) -> None:
        assert action == "fetch"
        self.fetched.append(arguments["src"])
        Path(arguments["dest"]).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments["dest"]).write_text(self.host[arguments["src"]])

    def read(self, path: str) -> bytes:
        if not Path(path).is_file():
            raise Refused("not-delivered", path)
        return Path(path).read_bytes()

    def bring(self, source: str, *_: Any) -> str:
        return f"digest of {Path(source).name}"


@pytest.fixture
def action(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    name = "ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply"
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:number]))
        module.__path__ = []  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules[name].__dict__.update(ApplyAction=Base, GdsError=Refused)
    spec = importlib.util.spec_from_file_location("gds_modules_action", ROOT / "plugins/action/gds_modules.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    plugin: Callable[..., Any] = loaded.ActionModule
    return plugin


def host(key: str) -> dict[str, str]:
    return {"/var/lib/gdsdeploy/builder.pub": key, "/var/lib/gdsdeploy/modules-6.12.tar": "archive"}


def test_the_first_key_is_put_on_record_and_another_is_refused(action: Callable[..., Any], tmp_path: Path) -> None:
    record, archive = tmp_path / "builders/build1.pub", tmp_path / "x.tar"
    options = {**BUILDS, "archive": str(archive), "builder_key": str(record)}
    action(host(FIRST)).finish(options, {})
    assert (record.read_text(), archive.read_text()) == (FIRST, "archive")
    archive.unlink()
    action(host(FIRST)).finish(options, {})
    assert archive.exists()
    archive.unlink()
    other = action(host(SECOND))
    with pytest.raises(Refused, match="build1 signs its modules with a key other than the recorded one") as caught:
        other.finish(options, {})
    assert caught.value.kind == "builder-key"
    assert "gdsdeploy kmod builders FLEET --accept build1" in caught.value.hint
    assert not archive.exists(), "no host receives its modules"
    assert (record.read_text(), record.with_name("build1.pub.new").read_text()) == (FIRST, SECOND)


def test_what_is_no_key_is_not_put_on_record(action: Callable[..., Any], tmp_path: Path) -> None:
    """A record that cannot be read would end the verbs for the whole fleet."""
    record, archive = tmp_path / "builders/build1.pub", tmp_path / "x.tar"
    options = {**BUILDS, "archive": str(archive), "builder_key": str(record)}
    for before in ({}, {record.name: FIRST}):
        for name, text in before.items():
            (record.parent / name).write_text(text)
        for text in ("", "nonsense", FIRST.replace("PUBLIC", "PRIVATE"), FIRST * 2, FIRST.replace("MCow", "MCoX")):
            with pytest.raises(Refused, match="build1 has no Ed25519 public key") as caught:
                action(host(text)).finish(options, {})
            assert caught.value.kind == "builder-key"
        assert {path.name: path.read_text() for path in record.parent.iterdir()} == before
    assert not archive.exists()


def test_of_two_runs_that_see_a_first_key_one_records_it(
    action: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "builders/build1.pub"
    options = {**BUILDS, "archive": str(tmp_path / "x.tar"), "builder_key": str(record)}
    late, link = action(host(SECOND)), os.link

    def meanwhile(source: Path, target: Path) -> None:
        record.write_text(FIRST)
        link(source, target)

    monkeypatch.setattr(os, "link", meanwhile)
    with pytest.raises(Refused, match="a key other than the recorded one"):
        late.finish(options, {})
    assert record.read_text() == FIRST


def test_a_receiver_gets_the_key_of_its_builder(action: Callable[..., Any], tmp_path: Path) -> None:
    archive, record = tmp_path / "x.tar", tmp_path / "build1.pub"
    archive.touch()
    options = {**BUILDS, "source": "receive", "archive": str(archive), "builder_key": str(record)}
    with pytest.raises(Refused, match=r"build1\.pub"):
        action({}).prepare(options, {})
    with pytest.raises(Refused, match="needs its builder's public key"):
        action({}).prepare({**options, "builder_key": ""}, {})
    record.write_text("key")
    desired = action({}).prepare(options, {})
    assert (desired["builder"], desired["builder_key"], desired["archive_sha256"]) == (
        "build1",
        "key",
        "digest of x.tar",
    )
    desired_without = action({}).prepare({**options, "archive": ""}, {})
    assert not {"archive_sha256", "builder_key"} & set(desired_without)


def test_a_builder_without_a_name_has_that_of_the_inventory(action: Callable[..., Any]) -> None:
    desired = action({}).prepare({**BUILDS, "builder": ""}, {"inventory_hostname": "gpu7"})
    assert (desired["builder"], desired["hand_over"]) == ("gpu7", True)
