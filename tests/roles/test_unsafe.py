"""Texts of the fleet file and of hosts are data for a real Ansible: no template in them is ever read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.converge import ansible, desired
from gdsdeploy.converge.inventory import dump, inventory
from gdsdeploy.converge.machine import Machine, RunFiles
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.profile_parts import Gate
from tests.pins.rendering import render
from tests.unit.hostile_words import WORDS

LAB = Path(__file__).parents[1] / "golden" / "lab"
#: What would fail, run something, vanish or change if any of it were read as a template or as YAML.
EVIL = (
    "{{ 1/0 }}{% raw %}{# gone #}{{ lookup('pipe', 'touch PWNED') }}{% endraw %}",
    "{{ 1/0 }}",
    "{% raw %}",
    "{# #}",
    "!unsafe x: {{ y }}",
    "yes",
    "0x10",
    "1e3",
    "~",
    "a: 'b' # \"c\" \\ \n \t é \u2028 end\n\n",
    "",
    # Half of a character is replaced where it comes in.
    *(word.replace("CANARY", "PWNED") for word in WORDS if "\ud800" not in word),
)
PLAY = """
- hosts: gpu1
  gather_facts: false
  connection: local
  tasks:
    - ansible.builtin.copy:
        content: "{{ found | to_json }}"
        dest: "{{ playbook_dir }}/out.json"
        mode: "0600"
      vars:
        found: "{{ dict(query('varnames', '^gds_') | zip(query('vars', *query('varnames', '^gds_')))) }}"
"""


def poison(value: Any, texts: Iterator[str]) -> Any:
    """The same with every text replaced; the keys of mappings that are names of variables stay."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, Mapping):
        return {key: poison(element, texts) for key, element in value.items()}
    return [poison(element, texts) for element in value] if isinstance(value, list) else value


def evil() -> Iterator[str]:
    while True:
        yield from EVIL


def play(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The variables as a task of a real ansible-playbook has them."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (folder / "inventory.yml").write_text(dump({"all": {"hosts": {"gpu1": {**values, **local}}}}), encoding="utf-8")
    (folder / "play.yml").write_text(PLAY)
    environment = ansible.environment(control_dir=folder, program=folder / "none", inherited=os.environ)
    env = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    del env["ANSIBLE_CALLBACKS_ENABLED"]
    command = [
        sys.executable,
        "-m",
        "ansible",
        "playbook",
        "-i",
        str(folder / "inventory.yml"),
        str(folder / "play.yml"),
    ]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    return results


@pytest.fixture
def fleet() -> Fleet:
    return load_fleet(LAB / "fleet.yml")


def variables(fleet: Fleet, text: str) -> dict[str, Any]:
    """With ``text`` as the content of its expectation and of its cufile.json."""
    values = render(fleet, lockfile.read(LAB / "gdsdeploy.lock"))["gpu1"]
    values |= {"gds_cufile_content": text, "gds_host_expectation": text}
    return {key: value for key, value in values.items() if not key.startswith("ansible_")}


def test_every_text_arrives_as_it_is(fleet: Fleet, tmp_path: Path) -> None:
    values = poison(variables(fleet, "x"), evil())
    values |= {f"gds_own_{number}": text for number, text in enumerate(EVIL)}
    values["gds_nested"] = {text: [text, {"a": text}] for text in EVIL}
    assert play(tmp_path, values) == json.loads(json.dumps(values))
    assert not (tmp_path / "PWNED").exists()


def test_what_a_fleet_and_a_host_say_reaches_a_task_and_the_plan_alike(fleet: Fleet, tmp_path: Path) -> None:
    """A waiver, a parameter of the driver and a comment of cufile.json, which names interfaces of the host."""
    text = EVIL[0]
    driver = fleet.profiles["gds"].driver.model_copy(update={"options": {"NVreg_X": text}})
    gate = Gate(file="/run/" + text)
    profile = fleet.profiles["gds"].model_copy(update={"driver": driver, "gate": gate})
    fleet = fleet.model_copy(update={"profiles": {"gds": profile}})
    results = play(tmp_path, variables(fleet, f"// of {text}\n"))
    assert results["gds_driver_options"] == {"NVreg_X": text}
    assert results["gds_cufile_content"] == results["gds_host_expectation"] == f"// of {text}\n"
    assert json.loads(results["gds_gate_settings"])["file"] == "/run/" + text
    states = desired.desired_states(Machine(fleet, lockfile.read(LAB / "gdsdeploy.lock"), "gpu1"))
    assert states["driver_options"].options == {"NVreg_X": text}
    assert not (tmp_path / "PWNED").exists()


def test_connection_variables_are_data_too(fleet: Fleet) -> None:
    host = fleet.hosts["gpu1"]
    ssh = fleet.ssh.model_copy(update={"identity_file": EVIL[1]})
    changed_fleet = fleet.model_copy(update={"ssh": ssh, "hosts": {"gpu1": host}})
    text = dump(inventory(changed_fleet, lockfile.read(LAB / "gdsdeploy.lock"), RunFiles()))
    (line,) = {line.strip() for line in text.splitlines() if "ansible_ssh_private_key_file" in line and "1/0" in line}
    assert line.startswith("ansible_ssh_private_key_file: !unsafe ")


def test_an_inventory_stays_yaml_that_says_the_same() -> None:
    class Loader(yaml.SafeLoader):
        """Reads the tag as Ansible does."""

    Loader.add_constructor("!unsafe", yaml.SafeLoader.construct_yaml_str)  # type: ignore[type-var]
    value = {"a": [*EVIL, 1, 2.5, True, None], "b": {"c": EVIL[0]}}
    assert yaml.load(dump(value), Loader) == value
