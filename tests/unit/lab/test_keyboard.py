"""Letters as keys of a US keyboard."""

from __future__ import annotations

import string

import pytest

from gdslab.errors import LabUnavailable
from gdslab.keyboard import strokes


def test_letters_digits_and_signs() -> None:
    assert strokes("aZ0?") == [("a",), ("shift", "z"), ("0",), ("shift", "slash")]
    printable = string.ascii_letters + string.digits + string.punctuation + " "
    assert len(set(strokes(printable))) == len(printable) == 95


def test_a_letter_of_another_keyboard_is_one_error() -> None:
    with pytest.raises(LabUnavailable, match="letters that a US keyboard doesn't have"):
        strokes("ünder")
