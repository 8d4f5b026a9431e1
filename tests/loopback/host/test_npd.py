"""The gate as a plugin of node-problem-detector, and what NVSentinel makes of its condition.

The schema has the fields and exit codes that node-problem-detector documents.  The plugin's own command runs, as the
example's configuration has it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gdsdeploy.host.gate import gate
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN
from gdsdeploy.zipapp import hostapp

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "kubernetes"
CONFIG: dict[str, Any] = json.loads((EXAMPLES / "node-problem-detector.json").read_text())
SCHEMA = json.loads(Path(__file__).with_name("npd_monitor.schema.json").read_text())
#: Where hosts have the program.
INSTALLED = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"
OK, NOT_OK, CANNOT_TELL = 0, 1, 2
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
RECORD = gate.Record(gate.CLOSED, "c1 failed", FAIL, gate.boot_id(), "2026-11-21T10:54:00Z", 0.5)


def seconds(duration: str) -> float:
    return sum(float(number) * SECONDS[unit] for number, unit in re.findall(r"([0-9.]+)([a-z]+)", duration))


def refusal(config: dict[str, Any]) -> str:
    """Why node-problem-detector wouldn't start with this configuration; empty: it would."""
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(SCHEMA).iter_errors(config))
    if error is not None:
        return f"{error.json_path}: {error.message}"
    limit = seconds(config.get("pluginConfig", {}).get("timeout", "5s"))
    types = {condition["type"] for condition in config["conditions"]}
    for rule in config["rules"]:
        if seconds(rule.get("timeout", "0s")) > limit:
            return "a rule's timeout is longer than the plugin's"
        if rule["type"] == "permanent" and rule["condition"] not in types:
            return f"no condition has the type {rule['condition']}"
    return ""


def test_the_example_is_a_configuration_that_starts() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert refusal(CONFIG) == ""
    assert Path(CONFIG["rules"][0]["path"]).is_file()


@pytest.fixture(scope="module")
def host_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lib") / "gdsdeploy-host.pyz"
    hostapp.build(path)
    return path


def run_rule(program: Path, folder: Path) -> tuple[int, bytes]:
    """Start the plugin as the example says, with another place for program and record; (exit code, output)."""
    rule = CONFIG["rules"][0]
    assert INSTALLED in rule["args"]
    words = [str(program) if word == INSTALLED else word for word in rule["args"]]
    argv = [rule["path"], *words, "--run-folder", str(folder)]
    # A service of systemd has no locale.
    environment = {"LC_ALL": "C", "PATH": os.defpath}
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=seconds(rule["timeout"]), check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("record", "status", "message"),
    [
        (replace(RECORD, state=gate.OPEN, verdict=PASS, reason="33 checks passed"), OK, "33 checks passed"),
        (RECORD, NOT_OK, "c1 failed"),
        (replace(RECORD, verdict=UNKNOWN, reason="c1 could not be decided"), CANNOT_TELL, "c1 could not be decided"),
        (replace(RECORD, verdict=NOT_APPLICABLE, reason="no check applies"), CANNOT_TELL, "no check applies"),
        (replace(RECORD, boot_id="earlier", state=gate.OPEN), CANNOT_TELL, "the gate has not judged this boot"),
        (None, CANNOT_TELL, "the gate has not judged this host yet"),
        # A name of 60 characters and 120 bytes; node-problem-detector counts bytes.
        (replace(RECORD, reason=f"storage.path:/mnt/{'ä' * 60} failed"), NOT_OK, "storage.path:/mnt/ä"),
        (replace(RECORD, reason=f"storage.path:/mnt/\U0001f4be\n{'x' * 99}"), NOT_OK, "storage.path:/mnt/\U0001f4be x"),
    ],
)
def test_each_state_has_its_exit_code_and_one_short_line(
    host_program: Path, tmp_path: Path, record: gate.Record | None, status: int, message: str
) -> None:
    if record is not None:
        (tmp_path / gate.RECORD).write_text(record.to_json())
    code, output = run_rule(host_program, tmp_path)
    assert code == status
    (line,) = output.decode("utf-8").splitlines()
    assert line.startswith(message)
    assert 0 < len(line.encode()) <= CONFIG["pluginConfig"]["max_output_length"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"state": "open"}'])
def test_a_damaged_record_is_no_verdict(host_program: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / gate.RECORD).write_text(text)
    assert run_rule(host_program, tmp_path)[0] == CANNOT_TELL


def test_a_host_without_the_program_is_no_verdict(tmp_path: Path) -> None:
    assert run_rule(tmp_path / "none.pyz", tmp_path)[0] == CANNOT_TELL


def test_nvsentinels_policy_reads_the_condition_that_the_plugin_sets() -> None:
    values = yaml.safe_load((EXAMPLES / "nvsentinel.yml").read_text())
    (policy,) = values["kubernetes-object-monitor"]["policies"]
    assert set(policy) == {"name", "enabled", "resource", "predicate", "healthEvent"}
    assert policy["resource"] == {"group": "", "version": "v1", "kind": "Node"}
    event = policy["healthEvent"]
    assert set(event) == {"componentClass", "isFatal", "message", "recommendedAction", "errorCode"}
    types = re.findall(r'c\.type == "(\w+)"', policy["predicate"]["expression"])
    assert types == [condition["type"] for condition in CONFIG["conditions"]]
    # True is a closed gate and Unknown an undecided one: only False is fine.
    assert 'c.status != "False"' in policy["predicate"]["expression"]
