"""Patterns and dataclasses that are made at their first use are the same afterwards."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from gdsdeploy.host.data import late


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of classes that were made; all wait."""
    names: list[str] = []
    make = vars(late)["_made"]

    def note(kind: Any, settings: dict[str, Any]) -> Any:
        names.append(kind.__name__)
        return make(kind, settings)

    monkeypatch.setattr(late, "_made", note)
    monkeypatch.setattr(late, "CLASSES_WAIT", True)
    return names


def test_a_class_is_made_at_its_first_use(made: list[str]) -> None:
    @late.dataclass(frozen=True)
    class Base:
        name: str
        words: list[str] = late.field(default_factory=list)

    @late.dataclass(frozen=True)
    class Derived(Base):
        number: int = 1

    assert made == []
    derived = Derived("a", number=2)
    assert sorted(made) == ["Base", "Derived"]
    assert derived == Derived("a", [], 2) != Base("a")
    assert hash(Derived("a", (), 2)) == hash(Derived("a", (), 2))  # type: ignore[arg-type]
    assert late.replace(derived, number=3).number == 3
    assert late.asdict(derived) == {"name": "a", "words": [], "number": 2}
    assert repr(Base("b")).endswith("Base(name='b', words=[])")
    with pytest.raises(FrozenInstanceError):
        derived.name = "b"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Derived()  # type: ignore[call-arg]
    assert len(made) == 2


def test_a_pattern_is_compiled_at_its_first_use() -> None:
    broken, right = late.re.compile("("), late.re.compile("^B+", late.re.MULTILINE | late.re.IGNORECASE)
    assert right.findall("a\nbb") == ["bb"]
    assert right.pattern == "^B+"
    with pytest.raises(late.re.error):
        broken.search("")
