"""The playbooks, played on hosts that answer each resource: its tasks, in the plan's order, and few skipped ones."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy import resources
from gdsdeploy.builds.assign import by_intent
from gdsdeploy.converge import ansible, plan_fleet
from gdsdeploy.converge.desired import TABLE
from gdsdeploy.converge.inventory import dump, inventory
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile

ROOT = Path(__file__).parents[3]
LAB = ROOT / "tests" / "golden" / "lab"
#: Stands for a host's Python: it answers for the resource that it is sent, by the file beside it.
PYTHON = """\
#!{python} -IS
import json, pathlib, sys
sent = sys.stdin.buffer.read()
resource = json.loads(sent[sent.rindex(b'{{"version"'):])["resources"][0]["resource"]
answer = json.loads(pathlib.Path(sys.argv[0]).with_suffix(".answers").read_text()).get(resource, {{}})
plain = {{"name": resource, "changes": [], "refusals": [], "unknown": [], "report": {{}}, "diffs": []}}
whole = {{"resources": [{{**plain, "changes": answer.get("changes", [])}}], "error": answer.get("error"), "notes": []}}
sys.stdout.write("\\x1egdsdeploy\\n" + json.dumps(whole))
"""
CHANGE = {"kind": "write", "subject": "/x", "before": "", "after": "", "reason": "missing", "disruption": "none"}
CHANGES = {"changes": [{**CHANGE, "resource": "x"}]}
FAILS = {"error": {"kind": "failed", "message": "it fails", "hint": ""}}
Answers = Mapping[str, Mapping[str, Any]]


def host(folder: Path, name: str, answers: Answers) -> dict[str, Any]:
    """Ansible's variables of a host that gives these answers."""
    place = folder / f"{name}.python"
    place.write_text(PYTHON.format(python=sys.executable))
    place.chmod(0o755)
    place.with_suffix(".answers").write_text(json.dumps(answers))
    return {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": str(place)}


def play(folder: Path, values: Mapping[str, Any], book: Path, *words: str) -> tuple[ansible.Outcome, str]:
    """What a run does, and what Ansible prints."""
    (folder / "inventory.yml").write_text(dump(values))
    (folder / "program").write_text("")
    environment = ansible.environment(control_dir=folder, program=folder / "program")
    command = [sys.executable, "-P", "-m", "ansible", "playbook", "-i", f"{folder}/inventory.yml", *words, str(book)]
    outcome = ansible.play(command, environment, log=folder / "log", progress=lambda _: None)
    return outcome, (folder / "log").read_text()


def task_names() -> dict[str, list[str]]:
    """ "role: task" → the resources that tasks of this name apply."""
    applied: dict[str, list[str]] = {}
    for file in (ROOT / "roles").glob("*/tasks/*.yml"):
        for task in yaml.safe_load(file.read_text()):
            for inner in (task, *task.get("block", ())):
                for module in (key for key in inner if key.startswith("gdsdeploy.gds.")):
                    instance = (inner[module] or {}).get("instance", "")
                    resource = module.rpartition(".gds_")[2] + (f".{instance}" if instance else "")
                    applied.setdefault(f"{file.parts[-3]}: {inner['name']}", []).append(resource)
    return applied


def test_each_machine_is_applied_what_its_plan_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(LAB, tmp_path / "fleet")
    fleet, lock = load_fleet(tmp_path / "fleet/fleet.yml"), lockfile.read(LAB / "gdsdeploy.lock")
    files = plan_fleet.write_run_files(fleet, lock, tmp_path / "fleet")
    every = inventory(fleet, lock, files)
    groups = every["all"]["children"]
    answers = {use.resource: CHANGES for use in TABLE}
    groups["builders"]["hosts"]["build1"] |= host(tmp_path, "build1", answers)
    groups["hosts"]["hosts"].clear()
    signed = {"gds_secureboot_certificate": "/c.der", "gds_secureboot_shared": "", "gds_modules_signed": True}
    kinds: Mapping[str, tuple[Any, dict[str, Any]]] = {
        "receives": ("receive", {}),
        "builds": ("build", {}),
        "packaged": ("packaged", {"gds_modules_dkms": False}),
        "foreign-kernel": ("receive", {"gds_kernel_boot": False}),
        "signed": ("receive", signed),
        "signs": ("build", signed),
        "image": ("receive", {"gds_host_image": "disk"}),
        "network-image": ("receive", {"gds_host_image": "network"}),
    }
    for name, (mode, more) in kinds.items():
        supplied = replace(files, supplies={"gpu1": replace(by_intent(fleet, lock, "gpu1"), mode=mode)})
        values = inventory(fleet, lock, supplied)["all"]["children"]["hosts"]["hosts"]["gpu1"]
        # The gate's verdict is a command of Ansible's own.
        more |= {"gds_gate_enabled": False}
        groups["hosts"]["hosts"][name] = values | more | host(tmp_path, name, answers)

    # A check, because every host answers that it needs a reboot.
    outcome, log = play(tmp_path, every, resources.playbook("provision"), "--check")

    names = task_names()
    for name, (_, values) in plan_fleet.variables(every).items():
        assert outcome.hosts[name].failure is None
        applied = [names[task][0] for task in outcome.hosts[name].changed]
        assert applied == [use.name for use in TABLE if use.when(values)], name
    # Ansible starts a process for each: of a host that receives, for the gate's verdict.
    skipped = dict(re.findall(r"^([\w-]+) +: ok=.* skipped=(\d+)", log, re.MULTILINE))
    assert skipped["receives"] == skipped["signed"] == "1", log


@pytest.mark.parametrize("strategy", ["linear", "free"])
def test_repositories_without_pins_are_removed_and_other_hosts_go_on(tmp_path: Path, strategy: str) -> None:
    kinds: Mapping[str, Answers] = {
        "honest": {},
        "no-repositories": {"repositories": FAILS},
        "no-pins": {"repositories": CHANGES, "pins": FAILS},
    }
    needs = {"gds_repo_manager": "apt", "gds_repo_indices": [], "gds_repo_pins": []}
    roles = [f"gdsdeploy.gds.{role}" for role in ("gds_repo", "gds_peermem")]
    book = tmp_path / "play.yml"
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "strategy": strategy, "roles": roles}]))
    hosts = {name: needs | host(tmp_path, name, {"peermem": CHANGES, **answers}) for name, answers in kinds.items()}
    outcome, _ = play(tmp_path, {"all": {"hosts": hosts}}, book)
    failed = {name for name, result in outcome.hosts.items() if result.failure is not None}
    assert failed == {"no-repositories", "no-pins"}
    removed = "gds_repo: Remove new repositories without pins"
    assert outcome.hosts["honest"].changed == ["gds_peermem: Load nvidia-peermem after the RDMA core, or block it"]
    assert outcome.hosts["no-repositories"].changed == []
    assert outcome.hosts["no-pins"].changed == ["gds_repo: Configure the repositories", removed]
