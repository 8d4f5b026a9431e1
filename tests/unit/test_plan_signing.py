"""What the fleet file says of signing, what the roles get of it, and what the plan makes of a machine's answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from test_planning import LAB, LOCK, machine, planned
from test_planning import converged as as_it_is

from gdsdeploy import planning
from gdsdeploy.inventory import inventory
from gdsdeploy.load import load_fleet
from gdsdeploy.model.fleet import Fleet, Signing

HERE = "/etc/gdsdeploy-keys/modules.der"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path))


def signing(**values: Any) -> Fleet:
    fleet = load_fleet(LAB / "fleet.yml")
    profile = fleet.profiles["gds"].model_copy(update={"signing": Signing(**values)})
    return fleet.model_copy(update={"profiles": {"gds": profile}})


def variables(fleet: Fleet, name: str) -> dict[str, Any]:
    return planning.variables(inventory(fleet, LOCK, planning.sources(fleet, LOCK, LAB)))[name][1]


def delivered(fleet: Fleet, name: str) -> None:
    """The certificate that a builder has handed over."""
    shared = Path(variables(fleet, name)["gds_secureboot_shared"])
    shared.parent.mkdir(parents=True, exist_ok=True)
    shared.write_bytes(b"certificate")


def test_a_builder_signs_and_its_hosts_enrol() -> None:
    fleet = signing()
    builder, host = variables(fleet, "build1"), variables(fleet, "gpu1")
    assert (builder["gds_secureboot_signs"], builder["gds_secureboot_enrols"]) == (True, False)
    assert (host["gds_secureboot_signs"], host["gds_secureboot_enrols"]) == (False, True)
    assert builder["gds_secureboot_shared"] == host["gds_secureboot_shared"]
    expected = {"certificate": HERE, "key": "/etc/gdsdeploy-keys/modules.key", "signer": []}
    assert json.loads(builder["gds_secureboot_settings"]) == expected
    assert variables(load_fleet(LAB / "fleet.yml"), "build1")["gds_secureboot_certificate"] == ""


def test_a_signer_stands_for_the_key() -> None:
    found = variables(signing(signer=["/usr/local/bin/sign", "--slot", "3"]), "build1")
    assert found["gds_secureboot_key"] == ""
    assert json.loads(found["gds_secureboot_settings"])["signer"] == ["/usr/local/bin/sign", "--slot", "3"]
    found = variables(signing(key="pkcs11:token=fleet"), "build1")
    assert found["gds_secureboot_key"] == "", "an address of a token is no file to look for"
    assert json.loads(found["gds_secureboot_settings"])["key"] == "pkcs11:token=fleet"


@pytest.mark.parametrize(
    "values",
    [
        {"key": "/k", "signer": ["/s"]},
        {"key": "relative"},
        {"certificate": "relative"},
        {"signer": ["sign"]},
        {"signer": [""]},
        {"password": "x"},
    ],
)
def test_what_says_nothing_clear_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Signing(**values)


def test_modules_without_the_fleets_signature_are_planned_to_get_it() -> None:
    made = machine("build1", signing())
    assert (made.survey.certificate, made.survey.signs, made.survey.enrols) == (HERE, True, False)
    evidence = as_it_is(made)
    evidence["answers"]["signing"] = {"unsigned": [], "state": ""}
    assert planned(made, evidence).satisfied
    evidence["answers"]["signing"]["unsigned"] = ["/lib/modules/x/nvidia.ko.xz"]
    (action,) = planned(made, evidence).actions
    assert (action.role, action.what, action.disruption) == (
        "gds_secureboot",
        "sign /lib/modules/x/nvidia.ko.xz",
        "none",
    )
    del evidence["answers"]["signing"]
    found = planned(made, evidence)
    assert not found.satisfied
    assert "the modules' signatures" in found.unknown[0]


def test_a_key_that_is_to_be_enrolled_takes_a_reboot_and_a_person() -> None:
    fleet = signing()
    delivered(fleet, "gpu1")
    made = machine("gpu1", fleet)
    assert (made.survey.certificate, made.survey.signs) == ("/etc/gdsdeploy/modules.der", False)
    evidence = as_it_is(made)
    for state, disruption in (
        ("enrolled", "none"),
        ("not-needed", "none"),
        ("absent", "reboot"),
        ("pending", "reboot"),
    ):
        evidence["answers"]["signing"] = {"unsigned": [], "state": state}
        ours = [action.disruption for action in planned(made, evidence).actions if action.role == "gds_secureboot"]
        assert ours == ([] if disruption == "none" else [disruption]), state


def test_a_fleet_that_signs_nothing_asks_nothing() -> None:
    assert machine("build1").survey.certificate == ""
