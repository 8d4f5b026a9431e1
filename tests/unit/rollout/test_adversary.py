"""A few rollouts among all the trouble that tests/unit/rollout/adversary.py has; it runs thousands of them by hand."""

from __future__ import annotations

import pytest

from tests.unit.rollout.adversary import World


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_no_work_is_disturbed_and_no_host_is_forgotten(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            World(seed).run()
        except Exception as error:
            error.add_note(f"python -m tests.unit.rollout.adversary --seed {seed}")
            raise
