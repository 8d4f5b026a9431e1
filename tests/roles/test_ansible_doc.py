"""What ansible-doc shows of the installed collection: its module, and every role."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from docs.gen.collection import ROLES, spec
from tests.roles.installing import BIN, environment
from tests.roles.tasks import APPLY


def ansible_doc(installed: Path, *argv: str) -> str:
    """What it prints, without a warning."""
    env = environment(installed / "collections", installed)
    done = subprocess.run([BIN / "ansible-doc", *argv], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def documents(installed: Path, kind: str, names: list[str]) -> dict[str, Any]:
    """Name → documentation, read from ``ansible-doc --json``."""
    full_names = [f"gdsdeploy.gds.{name}" for name in names]
    answer = json.loads(ansible_doc(installed, "--type", kind, "--json", *full_names))
    return {name.removeprefix("gdsdeploy.gds."): document for name, document in answer.items()}


def test_the_module_is_documented_with_an_example(installed: Path) -> None:
    assert list(json.loads(ansible_doc(installed, "--list", "--json", "gdsdeploy.gds"))) == [APPLY]
    document = documents(installed, "module", ["gds_apply"])["gds_apply"]
    (task,) = yaml.safe_load(document["examples"])
    assert task[APPLY].keys() <= document["doc"]["options"].keys()


def test_every_role_is_documented(installed: Path) -> None:
    """Its variables are the options of the resources that it applies."""
    found = documents(installed, "role", [role.name for role in ROLES])
    for role in ROLES:
        main, expected = found[role.name]["entry_points"]["main"], spec(role)
        assert main["short_description"] == expected["short_description"]
        assert main.get("options", {}).keys() == expected["options"].keys()
