"""A build id is shown without the header of the ELF note that carries it."""

from __future__ import annotations

import copy

import pytest

from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.kmod.module import build_id_of
from tests.unit.host.checks.changes import GOOD, module

ID = "0123456789abcdef0123456789abcdef01234567"
NOTE = "040000001400000003000000474e5500" + ID


@pytest.mark.parametrize(
    ("note", "build_id"),
    [
        (NOTE, ID),
        ("000000040000001400000003474e5500" + ID, ID),
        (ID, ID),
        ("", ""),
        ("zz", "zz"),
        ("040000001400000003000000474e5500", "040000001400000003000000474e5500"),
        ("040000001400000001000000474e5500" + ID, "040000001400000001000000474e5500" + ID),
    ],
)
def test_the_header_is_left_out(note: str, build_id: str) -> None:
    assert build_id_of(note) == build_id


@pytest.mark.parametrize("recorded", [NOTE, ID])
def test_recordings_with_and_without_the_header_are_compared(recorded: str) -> None:
    document = copy.deepcopy(GOOD)
    document["binaries"]["/sys/module/nvidia_fs/notes/.note.gnu.build-id"] = NOTE
    document["modules"][module("nvidia_fs")]["build_id"] = recorded
    facts = facts_from(document).nvidia_fs.module
    assert facts.build_id == ID
    assert facts.is_its_file() is True
