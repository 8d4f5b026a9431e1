"""The tutorial does what it says, for a user who has nothing but Debian, Python, git and sudo."""

from __future__ import annotations

import pytest

from tests.newcomer.tutorial import follow, newcomer


@pytest.mark.lab
def test_a_new_user_follows_the_tutorial_to_its_end() -> None:
    with newcomer() as user:
        follow(user)
