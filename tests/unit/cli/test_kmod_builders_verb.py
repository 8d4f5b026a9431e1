"""``gdsdeploy kmod builders``: the keys on record, and one that was refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gdsdeploy.builds.cache import BuilderKeys, fingerprint
from tests import commandline
from tests.loopback.builds.test_cache import EVIL, ORIGIN

GOLDEN = Path(__file__).parents[2] / "golden" / "lab" / "fleet.yml"


def test_the_keys_of_a_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    fleet = Path(shutil.copy(GOLDEN, tmp_path / "fleet.yml"))
    record = BuilderKeys.of(fleet).path("build1")
    assert commandline.run("kmod", "builders", fleet) == 0
    assert f"No key is recorded in {record.parent}" in capsys.readouterr().err
    record.write_text(ORIGIN.public)
    record.with_name("build1.pub.new").write_text(EVIL.public)
    assert commandline.run("kmod", "builders", fleet, "--json") == 0
    assert json.loads(capsys.readouterr().out)["builders"] == [
        {
            "name": "build1",
            "key": fingerprint(ORIGIN.public),
            "refused": fingerprint(EVIL.public),
            "file": str(record),
        }
    ]
    assert commandline.run("kmod", "builders", fleet, "--accept", "build1") == 0
    assert capsys.readouterr().out == f"build1  {fingerprint(EVIL.public)}  {record}\n"
    assert commandline.run("kmod", "builders", fleet, "--accept", "build1") == 19
    assert "build1 has shown no other key" in capsys.readouterr().err
    assert commandline.run("kmod", "builders", fleet, "--accept", "../x") == 10
