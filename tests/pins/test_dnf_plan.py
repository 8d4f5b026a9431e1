"""What dnf's lists say is read as the role writes it, and the plan tells where they differ."""

from __future__ import annotations

from typing import Any

import pytest

from gdsdeploy.host.facts.document import Ran
from gdsdeploy.host.facts.managed import managed_facts
from gdsdeploy.plan import Wanted, _Plan
from gdsdeploy.repo import dnfpins
from gdsdeploy.repo.order import RPM
from tests.pins.rendering import rendered

VARIABLES: dict[str, Any] = {
    "gds_repo_pins": [
        {"package": "libcufile-12-9", "version": "1.14.1.1-1"},
        {"package": "libnvidia-ml", "version": "3:580.1-1"},
    ],
    "gds_repo_deny": ["cuda-drivers*"],
    "gds_repo_modules": ["nvidia-driver:580-open"],
}
STREAM = "/etc/dnf/modules.d/nvidia-driver.module:stream=580-open\n/etc/dnf/modules.d/nvidia-driver.module:state={}\n"


def listed() -> str:
    nevras = dnfpins.nevras(VARIABLES["gds_repo_pins"])
    inner = rendered("dnf-versionlock.j2", {**VARIABLES, "__gds_repo_nevras": nevras})
    return f"htop-0:3.2.1-1.*\n{dnfpins.BEGIN}\n{inner}{dnfpins.END}\n"


def planned(locks: str, streams: str) -> list[str]:
    facts = managed_facts({})
    commands = {"dnf-locks": Ran(0, locks, ""), "dnf-streams": Ran(0, streams, "")}
    object.__setattr__(facts, "commands", commands)
    made = _Plan(Wanted(VARIABLES, (), (), None), facts, RPM)
    made.locks()
    assert made.unknown == []
    return [action.what for action in made.actions]


def test_lists_as_the_role_writes_them_need_nothing() -> None:
    assert planned(listed(), STREAM.format("enabled")) == []


@pytest.mark.parametrize("before", ["", "libnvidia-ml-3:580.1-1", "cuda-drivers*-0:0-0.none\n", dnfpins.END])
def test_another_list_is_planned(before: str) -> None:
    locks = listed().replace(before, "") if before else ""
    assert planned(locks, STREAM.format("enabled")) == [
        "lock the versions of 2 packages in /etc/dnf/plugins/versionlock.list"
    ]


@pytest.mark.parametrize(
    "streams", ["", STREAM.format("disabled"), STREAM.format("enabled").replace("580-open", "open-dkms")]
)
def test_another_stream_is_planned(streams: str) -> None:
    assert planned(listed(), streams) == ["enable the module stream nvidia-driver:580-open"]


def test_what_was_not_looked_at_is_unknown() -> None:
    made = _Plan(Wanted(VARIABLES, (), (), None), managed_facts({}), RPM)
    made.locks()
    assert made.unknown == ["what dnf has locked was not looked at"]
