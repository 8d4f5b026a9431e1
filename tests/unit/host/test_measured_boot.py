"""PCR 7 and shim's lists as a record of the gate has them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from gdsdeploy.host.gate import gate
from gdsdeploy.host.secure_boot.firmware import measured_boot
from tests.unit.host.kmod.kmod_keys import efi

PCR = "AB" * 16 + "CD" * 16


def tpm(root: Path, bank: str = "pcr-sha256", value: str = PCR) -> None:
    folder = root / "sys/class/tpm/tpm0" / bank
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "7").write_text(value + "\n")


def test_a_boot_is_measured(tmp_path: Path) -> None:
    efi(tmp_path, mok=b"list")
    tpm(tmp_path)
    assert measured_boot(str(tmp_path)) == {
        "secure_boot": "on", "pcr7": PCR.lower(), "bank": "sha256", "mok": hashlib.sha256(b"list").hexdigest(),
    }  # fmt: skip


def test_an_older_bank_serves(tmp_path: Path) -> None:
    tpm(tmp_path, "pcr-sha1", PCR[:40])
    assert measured_boot(str(tmp_path))["bank"] == "sha1"


def test_without_a_tpm_the_problem_is_named(tmp_path: Path) -> None:
    assert measured_boot(str(tmp_path)) == {"secure_boot": "no-efi", "problem": "there is no TPM"}


@pytest.mark.parametrize("value", ["0" * 64, "F" * 64, "no number", ""])
def test_a_value_that_says_nothing_is_none(tmp_path: Path, value: str) -> None:
    tpm(tmp_path, value=value)
    assert "PCR 7" in measured_boot(str(tmp_path))["problem"]


@pytest.mark.parametrize("measured", [True, False])
def test_a_record_has_it_only_on_request(measured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "measured_boot", lambda: {"pcr7": PCR})
    record = gate.judge("{}", gate.Settings(measured_boot=measured).to_json())
    assert record.measured == ({"pcr7": PCR} if measured else {})
    assert gate.record_from(record.to_json()) == record
    older = json.loads(record.to_json())
    del older["measured"]
    assert gate.Record(**older).measured == {}
