"""The checker of commands on pages finds verbs and options that don't exist."""

from __future__ import annotations

import pytest

from tests.unit.docs_commands import Shown, problem, shown_commands


@pytest.mark.parametrize(
    "words",
    [
        "lok fleet.yml",
        "lock --upgrad fleet.yml",
        "diff before.json",
        "rollout begin fleet.yml",
        "mirror gdsdeploy.lock",
        "plan fleet.yml another.yml",
        "validate fleet.yml --limit",
        "validate fleet.yml --connections 0",
        "lab up --os debian-11",
        "provision fleet.yml --chekc",
        "kmod audit --kernl X",
        "kmod preflight fleet.yml --fully",
    ],
)
def test_a_wrong_command_is_reported(words: str) -> None:
    assert problem(Shown(1, words, is_whole=True)) != ""


@pytest.mark.parametrize(
    "words",
    [
        "lock --upgrade fleet.yml driver",
        "plan --limit gpu1",
        "--quiet plan fleet.yml",
        "rollout pause|resume fleet.yml",
        "provision fleet.yml --check --diff",
        "kmod audit --root /mnt/image --kernel 6.12.94+deb13-amd64",
        "mirror gdsdeploy.lock DIR --key …",
        "kmod cache prune [--size 5GiB]",
        "lab ssh gpu1 -- uname -r",
        "validate fleet.yml --pytest -- --junitxml=gpus.xml -k storage",
    ],
)
def test_a_right_command_is_not(words: str) -> None:
    assert problem(Shown(1, words, is_whole=True)) == ""


def test_a_sentence_may_leave_words_out() -> None:
    assert problem(Shown(1, "diff", is_whole=False)) == ""
    assert problem(Shown(1, "lock --explain", is_whole=False)) == ""
    assert problem(Shown(1, "lock --explainn", is_whole=False)) != ""


def test_where_commands_are() -> None:
    markdown = (
        "Run `gdsdeploy plan`.\n\n    sudo gdsdeploy lab list   # look\n    dmesg | gdsdeploy explain --log\n\n"
        "```console\n$ A=1 gdsdeploy lock fleet.yml && echo\ngdsdeploy is not a command here\n```\n\n"
        "```\ngdsdeploy kmod build x \\\n  --jobs 2 > log\n```\n"
    )
    assert shown_commands(markdown) == [
        Shown(1, "plan", is_whole=False),
        Shown(3, "lab list", is_whole=True),
        Shown(4, "explain --log", is_whole=True),
        Shown(7, "lock fleet.yml", is_whole=True),
        Shown(12, "kmod build x    --jobs 2", is_whole=True),
    ]
