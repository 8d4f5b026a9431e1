"""``gdsdeploy`` in a process of its own, with hosts that are pretended: ``python pretended_cli.py FOLDER ARGUMENT…``.

FOLDER has fleet.yml, its locks, and pretended.json: {"fails": hosts, "seconds": of each step}.  Real hosts would take
minutes, and reboot; the command line, the driver, its signals and the journal are real.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[2]))

import pytest  # noqa: E402

from gdsdeploy.cli import main  # noqa: E402
from gdsdeploy.model.rollout import Plan  # noqa: E402
from gdsdeploy.rollout import session  # noqa: E402
from gdsdeploy.rollout.driver import Effects  # noqa: E402
from tests.unit.rollout.planned_fleet import PlannedFleet  # noqa: E402
from tests.unit.rollout.pretended_hosts import Hosts  # noqa: E402


def effects(folder: Path, plan: Plan) -> Effects:
    path = folder / "pretended.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    return Hosts(folder, plan, fails=tuple(settings.get("fails", ())), seconds=float(settings.get("seconds", 0.0)))


def pretend(folder: Path, fleet: PlannedFleet, patch: pytest.MonkeyPatch) -> None:
    """Have every command work with pretended hosts."""
    fleet.answer(patch)
    patch.setattr(session, "RealEffects", lambda plan: effects(folder, plan))


if __name__ == "__main__":
    where = Path(sys.argv[1])
    with pytest.MonkeyPatch.context() as patch:
        pretend(where, PlannedFleet.existing(where), patch)
        main(sys.argv[2:])
