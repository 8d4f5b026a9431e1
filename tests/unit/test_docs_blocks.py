"""The reader of blocks finds commands, their output and their marks; marks of examples in help."""

from __future__ import annotations

import re

import pytest

from docs.gen import cli, unexecuted
from tests.unit.docs_blocks import Command, blocks, executed, missing, stray_comments


def test_commands_with_lines_exit_codes_and_reasons() -> None:
    page = (
        "text\n\n<!-- not executed, lines 1, 4: a reason -->\n<!-- exits with 33, line 2 -->\n\n"
        "    gdsdeploy plan\n    gdsdeploy diff a b   # says it\n    # a comment\n    gdsdeploy x \\\n      --y\n\n"
        "```\ngdsdeploy: no command\n```\n\n    gdsdeploy VERB [OPTIONS]\n\n"
        "<!-- not executed: another -->\n```sh\nls\n```\n```json\ngdsdeploy plan\n```\n"
    )
    assert [block.commands for block in blocks(page)] == [
        (
            Command("gdsdeploy plan", line=6, reason="a reason"),
            Command("gdsdeploy diff a b   # says it", status=33, line=7),
            Command("gdsdeploy x \\\n  --y", line=9, reason="a reason"),
        ),
        (Command("ls", line=20, reason="another"),),
    ]
    assert [command.text for command in executed(page)] == ["gdsdeploy diff a b   # says it"]


def test_each_command_has_its_output_and_its_exit_code() -> None:
    page = "a\n```console\n$ one\nx …\n$ two\n```\nb\n<!-- exits with 30 -->\n"
    page += "```console\n$ three\n$ four\ny\n```\n<!-- not executed: no -->\n```sh\n$ no\n```\n"
    assert executed(page) == [
        Command("one", ("x …",), 0, 3),
        Command("two", (), 0, 5),
        Command("three", (), 0, 10),
        Command("four", ("y",), 30, 11),
    ]


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        ("<!-- not executed -->", "this is no mark"),
        ("<!-- not executed: -->", "this is no mark"),
        ("<!-- not executed, line x: why -->", "this is no mark"),
        ("<!-- not executed, line 2: why -->", "has no command"),
        ("<!-- exits with 1, line 9 -->", "has no command"),
        ("<!-- exits with one -->", "this is no mark"),
    ],
)
def test_a_wrong_mark_is_a_problem(comment: str, problem: str) -> None:
    (block,) = blocks(f"{comment}\n\n    gdsdeploy plan\n    # a comment\n")
    assert [problem in text for text in block.problems] == [True]


def test_a_mark_without_a_block_is_a_problem() -> None:
    mark = "<!-- not executed: why -->"
    assert stray_comments(f"{mark}\n\ntext\n\n    gdsdeploy plan\n") == [f"1: {mark}"]
    assert stray_comments(f"text\n\n{mark}\n\n    gdsdeploy plan\n") == []


def test_output_is_compared_in_order_with_room_for_what_is_left_out() -> None:
    output = "1 of 1 hosts pass; 17 checked,   30 not applicable\nnext: a\nlast\n"
    assert missing(("1 of 1 hosts pass; … checked, … not applicable", "…", "last"), output) == ""
    assert missing(("last", "next: a"), output) == "next: a"
    assert missing(("1 of 2 hosts",), output) == "1 of 2 hosts"


def test_marks_of_the_page_of_commands() -> None:
    lines = ["gdsdeploy plan x", "gdsdeploy lock \\", "x", "gdsdeploy diff before.json after.json", "gdsdeploy init a"]
    assert unexecuted.marks(lines) == (
        "<!-- not executed, lines 1, 5: needs your own hosts -->\n<!-- exits with 33, line 4 -->\n"
    )
    assert unexecuted.marks(["gdsdeploy plan x"]) == "<!-- not executed: needs your own hosts -->\n"
    assert unexecuted.marks(["gdsdeploy explain --error 5027"]) == ""


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in (*unexecuted.REASONS, *unexecuted.STATUSES)])
def test_each_pattern_is_about_an_example(pattern: str) -> None:
    texts = [f"{command.text} " for block in blocks(cli.page()) for command in block.commands]
    assert [text for text in texts if re.search(pattern, text)], pattern
