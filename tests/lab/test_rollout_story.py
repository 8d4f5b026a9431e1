"""A fleet of two light hosts and a VM host goes from one driver and kernel to the next, for real.

First with a fault in the second wave, such as fleets have: what somebody had left on a host, which goes with the old
stack and not with the new one.  Then to the end, with real reboots.  The tests build on each other, in order.
A fault in the canary is in test_family_story.py.

The tests of test_story.py and test_vm_modules.py go on with its VM host.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.program import gdsdeploy
from tests.lab.rollouts import healthy, outcome, steps, words
from tests.lab.upgrade import MACHINES, NODES, ROLLOUT, Fleet, write

pytestmark = pytest.mark.lab


def outcomes(document: Mapping[str, Any]) -> dict[str, str | None]:
    """Of the hosts that have work to drain, which the builder doesn't."""
    return {name: outcome(document, name) for name in (*NODES, *MACHINES)}


def waves(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those after the builder's."""
    first, *others = document["waves"]
    assert first["hosts"] == ["build1"]
    return list(others)


#: A site's own hook that refuses kernels which it does not know.
HOOK = """#!/bin/sh
case $1 in 6.12.*) echo "$1 is not on the list of this site" >&2; exit 1 ;; esac
"""


def test_all_have_the_old_stack(upgraded: Fleet) -> None:
    drivers = {name: upgraded.driver_of(name).split("-")[0] for name in (*NODES, *MACHINES)}
    assert set(drivers.values()) == {"535.261.03"}
    for name in MACHINES:
        assert upgraded.host(name).ssh(["uname", "-r"]).stdout.strip() == upgraded.old.targets["vm"].kernel.release
        healthy(upgraded.host(name), upgraded.old)
    healthy(upgraded.host("node2"), upgraded.old)
    new, old = upgraded.new.targets["vm"], upgraded.old.targets["vm"]
    assert (new.driver.version, old.driver.version) == ("550.163.01", "535.261.03")
    assert new.kernel.release != old.kernel.release


def test_modules_that_the_builder_has_built_stand_in_for_a_preflight(upgraded: Fleet) -> None:
    """The builder compiles the real driver and nvidia-fs once, before any host is out of work."""
    assert upgraded.preview["refused"] == []
    stacks = {stack["profile"]: stack for stack in upgraded.preview["preflights"]}
    assert set(stacks) == {"vm", "node"}
    for stack in stacks.values():
        assert (stack["kernel"], stack["driver"]) == (upgraded.new.targets["vm"].kernel.release, "550.163.01")
        assert (stack["builders"], stack["ok"]) == (["build1"], True)


def test_a_fault_in_the_second_wave_halts_it_there(upgraded: Fleet) -> None:
    broken = upgraded.host("node2")
    place = "cat > /etc/kernel/postinst.d/zz-site && chmod 0755 /etc/kernel/postinst.d/zz-site"
    broken.ssh(["sudo", "sh", "-c", place], input=HOOK)
    before = upgraded.mark()
    _, document = upgraded.start(status=51)

    by_host = outcomes(document)
    assert (by_host["node1"], by_host["node2"]) == ("done", "rolled-back"), words(document)
    assert {by_host[name] for name in MACHINES} == {None}
    assert [wave["hosts"] for wave in waves(document)] == [["node1"], ["node2"], ["gpu1"]]
    assert "apply" in [entry["step"] for entry in document["hosts"]["node2"]["steps"] if entry["error"]]
    healthy(upgraded.host("node1"), upgraded.new)
    assert upgraded.driver_of("node1").startswith("550.163.01")
    healthy(upgraded.host("node2"), upgraded.old)
    after = {name: upgraded.untouched(name) for name in MACHINES}
    assert after == {name: before[name] for name in after}
    broken.ssh(["sudo", "rm", "/etc/kernel/postinst.d/zz-site"])
    gdsdeploy("rollout", "abort", upgraded.path)


@pytest.mark.proves("rollout", "real", os="debian-13")
def test_all_of_it_comes_to_its_end(upgraded: Fleet, tmp_path: Path) -> None:
    # All at once and in no order: the emulated machine takes as long as all nodes together.
    together = {name: value for name, value in ROLLOUT.items() if name != "order"}
    together["batches"] = {"strategy": "fixed", "size": 8, "largest": 8}
    write(upgraded.lab, "new", {**together, "canary": {"hosts": ["node2"], "soak": "5s"}})
    booted = {name: upgraded.untouched(name).splitlines()[-2] for name in MACHINES}
    begin = time.time()
    events, document = upgraded.start(status=0)

    assert document["phase"] == "finished"
    by_host = outcomes(document)
    assert by_host["node1"] == "satisfied"
    assert {by_host[name] for name in ("node2", *MACHINES)} == {"done"}
    assert document["away"] == []
    for name in MACHINES:
        assert steps(document, name).count("reboot") == 1
        assert upgraded.host(name).ssh(["uname", "-r"]).stdout.strip() == upgraded.new.targets["vm"].kernel.release
        assert upgraded.untouched(name).splitlines()[-2] != booted[name]
        validated = next(
            i for i in events if i["host"] == name and i["kind"] == "end" and i["data"]["step"] == "validate"
        )
        assert validated["data"]["data"]["validated_boot"] == upgraded.untouched(name).splitlines()[-2]
    for name in (*NODES, *MACHINES):
        healthy(upgraded.host(name), upgraded.new)
        assert upgraded.driver_of(name).startswith("550.163.01")

    # The canary soaked before anybody else was begun.
    soaked = next(i["number"] for i in events if i["kind"] == "closed" and i["data"]["wave"] == "canary")
    others = [i["number"] for i in events if i["kind"] == "begin" and i["host"] in MACHINES]
    assert soaked < min(others)
    soaking = next(i for i in events if i["kind"] == "soaking")
    assert soaking["data"]["until"] >= begin + 5

    gdsdeploy("rollout", "status", upgraded.path, "--html", tmp_path / "rollout.html")
    page = (tmp_path / "rollout.html").read_text()
    assert all(name in page for name in (*NODES, *MACHINES))
    assert "<script src" not in page
    gdsdeploy("plan", upgraded.path)
    listed = gdsdeploy("rollout", "history", upgraded.path, "--json")
    assert len(json.loads(listed.stdout)) == 2
