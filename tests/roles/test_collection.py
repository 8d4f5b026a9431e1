"""The collection: what its tarball has, a module for each of the host program's resources, what their tasks return."""

from __future__ import annotations

import base64
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy import resources
from gdsdeploy.host.apply import registry
from gdsdeploy.zipapp import hostapp
from tests.roles.installing import BIN, ROOT, environment

MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("gds_*.py"))
#: The command ``remove`` isn't a resource.
COMMANDS = {"gds_remove"}


@pytest.fixture(scope="module", autouse=True)
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return resources.collections()


def test_every_resource_has_a_module() -> None:
    assert set(MODULES) - COMMANDS == {f"gds_{name}" for name in registry.names()}


def test_the_tarball_has_what_a_controller_needs_and_no_more(installed: Path) -> None:
    (tarball,) = installed.glob("gdsdeploy-gds-*.tar.gz")
    with tarfile.open(tarball) as file:
        names = {member.name for member in file if member.isfile()}
    top = {name.partition("/")[0] for name in names}
    files = {"FILES.json", "LICENSE", "MANIFEST.json", "NOTICE", "README.md"}
    assert top == files | {"changelogs", "gdsdeploy", "meta", "playbooks", "plugins", "roles"}
    changelogs = {name.removeprefix("changelogs/") for name in names if name.startswith("changelogs/")}
    assert {"config.yaml"} <= changelogs <= {"config.yaml", "changelog.yaml", "CHANGELOG.md"}
    package = {name.split("/")[1] for name in names if name.startswith("gdsdeploy/")}
    assert package == {"__init__.py", "atomic.py", "host", "zipapp"}, "correct build_ignore in galaxy.yml"


PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
{tasks}
    - ansible.builtin.copy:
        content: "{{{{ dict(names | zip(query('vars', *names))) | to_json }}}}"
        dest: {out}
        mode: "0600"
      vars:
        names: "{{{{ query('varnames', '^result_') }}}}"
      check_mode: false
"""


def play(tmp_path: Path, collections: Path, tasks: Mapping[str, Any], **variables: Any) -> dict[str, Any]:
    """Run tasks by name in check mode and return their results; the host is this machine, and nothing is changed."""
    listed = []
    for name, task in tasks.items():
        listed.append({"check_mode": True, "diff": True, "ignore_errors": True, **task, "register": f"result_{name}"})
    text = "".join(f"    {line}\n" for line in yaml.safe_dump(listed, width=10_000).splitlines())
    out = tmp_path / "out.json"
    (tmp_path / "play.yml").write_text(PLAY.format(tasks=text, out=out))
    env = {**environment(collections, tmp_path), **variables.pop("env", {})}
    argv = [BIN / "ansible-playbook", "-i", "localhost,", "-e", json.dumps(variables), tmp_path / "play.yml"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert out.is_file(), done.stdout + done.stderr
    results = {name.removeprefix("result_"): value for name, value in json.loads(out.read_text()).items()}
    return {**results, "output": done.stdout + done.stderr}


def test_tasks_work_with_ansible_alone(installed: Path, tmp_path: Path) -> None:
    """As a user has it who installed the collection and nothing else."""
    options = {"kernel_release": "6.12", "modules": ["nvidia"]}
    results = play(
        tmp_path,
        installed / "collections",
        {
            "changes": {"gdsdeploy.gds.gds_driver_options": options},
            "nothing": {"gdsdeploy.gds.gds_expectation": {}},
            "mistake": {"gdsdeploy.gds.gds_driver_options": {**options, "rdma": "magic"}},
            "other": {"gdsdeploy.gds.gds_expectation": {}, "vars": {"ansible_python_interpreter": "/no/python"}},
            "missing": {
                "gdsdeploy.gds.gds_repositories": {
                    "manager": "apt", "indices": [], "keys": [{"src": "no.gpg", "dest": "/etc/apt/keyrings/x.gpg"}],
                }
            },
        },
    )  # fmt: skip
    changed = results["changes"]
    assert changed["changed"], results["output"]
    assert {change["subject"] for change in changed["changes"]} == {
        "/etc/modprobe.d/gdsdeploy.conf", "/etc/modules-load.d/gdsdeploy.conf",
    }  # fmt: skip
    assert "blacklist nouveau" in changed["diff"][0]["after"]
    assert (results["nothing"]["changed"], results["nothing"]["changes"]) == (False, [])
    assert "rdma must be one of" in results["mistake"]["msg"]
    assert results["other"]["gds_error"]["kind"] == "python"
    assert "/no/python" in results["other"]["msg"]
    assert results["missing"]["gds_error"]["kind"] == "not-delivered"


ANSWERS = """
import json, sys

def main():
    argv = sys.argv[1:]
    entry = {**ENTRY, "name": "x", "report": {"argv": argv, "document": json.loads(sys.stdin.read())}}
    print(json.dumps({"error": None, "notes": NOTES, "resources": [entry]}))
    return 0
"""


def program(folder: Path, entry: Mapping[str, Any], notes: list[str]) -> dict[str, str]:
    """The environment of an Ansible with a host program that changes nothing and reports what it was sent."""
    path = folder / "program.pyz"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("gdsdeploy/__init__.py", "gdsdeploy/host/__init__.py"):
            file.writestr(name, "")
        file.writestr("__main__.py", hostapp._MAIN)
        file.writestr("gdsdeploy/host/__main__.py", f"ENTRY, NOTES = {dict(entry)!r}, {notes!r}\n{ANSWERS}")
    return {"GDSDEPLOY_HOST_PROGRAM": str(path)}


def test_the_program_that_is_named_is_run(collections: Path, tmp_path: Path) -> None:
    """``gdsdeploy provision`` packs once."""
    env = program(tmp_path, {"changes": [], "unknown": ["dpkg is locked"]}, ["a note"])
    tasks = {
        "unknown": {"gdsdeploy.gds.gds_packages": {"manager": "apt", "instance": "driver"}, "diff": False},
        "absent": {"gdsdeploy.gds.gds_gate": {"state": "absent"}, "check_mode": False},
        "remove": {"gdsdeploy.gds.gds_remove": {}, "check_mode": False},
        "ordered": {"gdsdeploy.gds.gds_remove": {"fleet_id": "f", "lock_serial": 4}, "check_mode": False},
    }
    results = play(tmp_path, collections, tasks, env=env, gds_run="r1", gds_who="{{ 'o' ~ 'p' }}")
    unknown = results["unknown"]
    assert unknown["changed"], "what a check can't tell is never no change"
    argv = ["apply", "--desired", "-", "--json", "--check", "--run", "r1", "--who", "op"]
    assert unknown["report"]["argv"] == argv
    desired = {"manager": "apt", "wanted": [], "along": [], "leaving": [], "locked": [], "removes": []}
    assert unknown["report"]["document"] == {
        "version": 1, "resources": [{"resource": "packages", "instance": "driver", "desired": desired}],
    }  # fmt: skip
    assert "localhost: a note" in results["output"]
    assert "dpkg is locked" in results["output"]
    assert results["absent"]["report"]["argv"][:2] == ["remove", "gate"]
    assert results["remove"]["report"]["argv"][:2] == ["remove", "--json"]
    assert results["ordered"]["report"]["argv"][:5] == ["remove", "--fleet-id", "f", "--lock-serial", "4"]


def test_files_of_the_controller_become_part_of_the_desired_state(collections: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.gpg"
    key.write_bytes(b"\x00key\xff")
    stack = {"driver_version": "1", "driver_flavour": "open", "driver_tree": "/usr/src/x", "driver_dkms_name": "x"}
    modules = {"kernel_release": "6", **stack}
    keys = [{"src": str(key), "dest": "/etc/apt/keyrings/x.gpg"}]
    archive = {"gdsdeploy.gds.gds_modules": {**modules, "source": "receive", "archive": str(tmp_path / "none.tar")}}
    tasks = {
        "keys": {"gdsdeploy.gds.gds_repositories": {"manager": "apt", "indices": [], "keys": keys}},
        "shared": {"gdsdeploy.gds.gds_signing": {"certificate": "/c", "shared": str(key)}},
        "built": {"gdsdeploy.gds.gds_modules": {**modules, "source": "build", "archive": "/x.tar"}},
        "checked": archive,
        "received": {**archive, "check_mode": False},
    }
    results = play(tmp_path, collections, tasks, env=program(tmp_path, {"changes": []}, []))

    def desired(name: str) -> dict[str, Any]:
        value: dict[str, Any] = results[name]["report"]["document"]["resources"][0]["desired"]
        return value

    content = base64.b64encode(key.read_bytes()).decode()
    assert desired("keys")["keys"] == [{"dest": "/etc/apt/keyrings/x.gpg", "content": content}]
    assert desired("shared")["certificate_content"] == content
    assert "shared" not in desired("shared")
    assert desired("built")["hand_over"] is True
    assert desired("checked")["archive_sha256"] == "none"
    assert results["received"]["gds_error"]["kind"] == "not-delivered"


REPOSITORIES = """
import json, sys

def main():
    argv = sys.argv[1:]
    # "remove" is sent a document, too, and leaves it alone.
    name = argv[1] if argv[0] == "remove" else json.loads(sys.stdin.read())["resources"][0]["resource"]
    with open(LOG, "a") as file:
        print(argv[0], name, file=file)
    change = {"kind": "write", "subject": "gdsdeploy.sources", "before": "", "after": "", "reason": REASON}
    entry = {"name": name, "changes": [{**change, "disruption": "none", "resource": name}], "report": {}}
    error = {"kind": "verify", "message": "other files are offered", "hint": "lock anew"} if name == "pins" else None
    print(json.dumps({"error": error, "notes": [], "resources": [] if error else [entry]}))
    return 0
"""


@pytest.mark.parametrize(("reason", "taken_back"), [("missing", ["remove repositories"]), ("content", [])])
def test_repositories_that_are_new_and_cannot_be_pinned_are_taken_back(
    collections: Path, tmp_path: Path, reason: str, taken_back: list[str]
) -> None:
    log = tmp_path / "log"
    env = {**environment(collections, tmp_path), "GDSDEPLOY_HOST_PROGRAM": str(tmp_path / "program.pyz")}
    with zipfile.ZipFile(env["GDSDEPLOY_HOST_PROGRAM"], "w") as file:
        for name in ("gdsdeploy/__init__.py", "gdsdeploy/host/__init__.py"):
            file.writestr(name, "")
        file.writestr("__main__.py", hostapp._MAIN)
        file.writestr("gdsdeploy/host/__main__.py", f"LOG, REASON = {str(log)!r}, {reason!r}\n{REPOSITORIES}")
    variables = {"gds_repo_manager": "apt", "gds_repo_indices": [], "gds_repo_pins": []}
    book = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{**book, "roles": ["gdsdeploy.gds.gds_repo"]}]))
    argv = [BIN / "ansible-playbook", "-i", "localhost,", tmp_path / "play.yml"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert log.read_text().splitlines() == ["apply repositories", "apply pins", *taken_back]
    assert '"gds_error": {"hint": "lock anew", "kind": "verify"' in done.stdout


def test_many_runs_share_the_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path))
    first = resources.collections() / "ansible_collections/gdsdeploy/gds"
    assert (first / "gdsdeploy/zipapp/hostapp.py").is_file()
    (first / "roles").unlink()
    assert resources.collections() / "ansible_collections/gdsdeploy/gds" == first
    assert (first / "roles").readlink() == ROOT / "roles"
