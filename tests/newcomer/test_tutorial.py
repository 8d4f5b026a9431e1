"""The tutorial does what it says, for a user who has nothing but Debian, Python, git and sudo."""

from __future__ import annotations

import pytest

from tests.newcomer.tutorial import commands, follow, missing, newcomer

pytestmark = pytest.mark.lab


def test_a_new_user_follows_the_tutorial_to_its_end() -> None:
    with newcomer() as user:
        follow(user)


def test_commands_of_a_page_have_their_output_and_exit_code() -> None:
    page = "text\n<!-- exits with 30 -->\n```console\n$ first\nshown\n$ second\n```\n```sh\nnot this\n```\n"
    first, second = commands(page)
    assert (first.text, first.shown, first.status) == ("first", ("shown",), 0)
    assert (second.text, second.shown, second.status) == ("second", (), 30)


@pytest.mark.parametrize(
    ("shown", "absent"),
    [
        (("one", "three"), ""),
        (("o… two",), ""),
        (("one  two",), ""),
        (("three", "one"), "one"),
        (("four",), "four"),
    ],
)
def test_the_first_line_that_the_output_lacks_is_named(shown: tuple[str, ...], absent: str) -> None:
    assert missing(shown, "one two\nthree\n") == absent
