"""How the tutorial is read by the program that follows it."""

from __future__ import annotations

from tests.newcomer.tutorial import PAGE, Command, commands, missing


def test_each_command_has_its_output_and_its_exit_code() -> None:
    page = "a\n```console\n$ one\nx …\n$ two\n```\nb\n<!-- exits with 30 -->\n"
    page += "```console\n$ three\n$ four\ny\n```\n```sh\n$ no\n```\n"
    assert list(commands(page)) == [
        Command("one", ("x …",), 0),
        Command("two", (), 0),
        Command("three", (), 0),
        Command("four", ("y",), 30),
    ]


def test_output_is_compared_in_order_with_room_for_what_is_left_out() -> None:
    output = "1 of 1 hosts pass; 17 checked,   30 not applicable\nnext: a\nlast\n"
    assert missing(("1 of 1 hosts pass; … checked, … not applicable", "…", "last"), output) == ""
    assert missing(("last", "next: a"), output) == "next: a"
    assert missing(("1 of 2 hosts",), output) == "1 of 2 hosts"


def test_the_tutorial_has_all_steps() -> None:
    texts = [command.text for command in commands(PAGE.read_text(encoding="utf-8"))]
    for verb in ("lab up", "lock", "plan", "provision", "validate", "lab down"):
        assert [text for text in texts if f"gdsdeploy {verb}" in text], verb
