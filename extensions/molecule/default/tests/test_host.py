"""What the role left on the host: a program that runs there, and an expectation that validation reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EXPECTATION = json.loads((Path(__file__).parents[1] / "expectation.json").read_text())
PROGRAM = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"


def test_the_program_validates_the_host(host: Any) -> None:
    """Without a controller, as the gate runs it."""
    with host.sudo():
        assert host.file(PROGRAM).user == "root"
        done = host.run(f"python3 -I -S {PROGRAM} validate --json")
    assert done.rc == 30, done.stderr
    assert json.loads(done.stdout)["findings"]


def test_the_expectation_is_the_plays(host: Any, gds: Any) -> None:
    """The fixture ``gds`` validates by the file on the host, because no fleet file has this host."""
    validated = gds(host)
    assert validated.trouble == ""
    release = validated.check("os.release")
    assert (release.verdict, release.expected) == ("pass", f"{EXPECTATION['os']} on {EXPECTATION['arch']}")
    driver = validated.check("driver.loaded-version")
    assert driver.verdict != "pass", "the host has no driver"
    assert EXPECTATION["driver_version"] in driver.expected
