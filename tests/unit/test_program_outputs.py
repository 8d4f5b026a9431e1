"""What each supported release of a program prints comes to the same: tests/cases/programs.yml."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.host.gate.gate import node_from
from gdsdeploy.repo.repository import _judge
from gdsdeploy.ssh import sshconfig

CASES: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "programs.yml").read_text())
#: Who signed the documents.
PINS = ("B40207DF803CE8F4528948F4EB5ED3293CEB094D", "B96B2345B8D873CE5602647D07F0B6FAD7C0CE2E")


def ssh(text: str, name: str) -> dict[str, Any]:
    end = sshconfig.parse(text, name)
    return {**vars(end), "known_hosts": list(map(str, end.known_hosts)), "proxy": list(end.proxy)}


def gpgv(text: str, _: str) -> dict[str, Any]:
    good, reasons = _judge(text, PINS)
    return {"good": sorted(good), "reasons": reasons}


PARSERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "ssh": ssh,
    "gpgv": gpgv,
    "scontrol": lambda text, _: vars(node_from(text)),
}


def rows() -> Iterator[Any]:
    for command, case in CASES.items():
        for release, text in case["rows"].items():
            yield pytest.param(command.split(), text, case["expected"], id=f"{command}, {release}")


@pytest.mark.parametrize(("command", "text", "expected"), list(rows()))
def test_what_each_release_prints_is_read(
    command: list[str], text: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    for home in ("/root", os.path.expanduser("~")):  # noqa: PTH111 - as ssh's output is read
        text = text.replace(f"{home}/.ssh", "~/.ssh")
    known_hosts = [os.path.expanduser(word) for word in expected.get("known_hosts", ())]  # noqa: PTH111
    expected = {**expected, **({"known_hosts": known_hosts} if known_hosts else {})}
    found = PARSERS[command[0]](text, command[-1])
    assert {key: found[key] for key in expected} == expected
