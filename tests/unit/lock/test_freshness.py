"""How old an index may be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gdsdeploy.errors import RepositoryUntrusted
from gdsdeploy.lock.compat import OLD_INDEX, judge_ages
from gdsdeploy.model.fleet import Repository
from gdsdeploy.model.lock import Index

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def index(age: timedelta, *, valid_until: str | None = None, suite: str = "trixie") -> Index:
    return Index(
        repository="debian",
        uri="http://mirror.example/debian",
        suite=suite,
        components=("main",),
        date=f"{NOW - age:%Y-%m-%dT%H:%M:%SZ}",
        valid_until=valid_until,
        signed_by="A" * 40,
        host_keyring="/k.gpg",
    )


def wish(max_age: object) -> dict[str, Repository]:
    return {"debian": Repository.model_validate({"max_age": max_age})}


def test_an_old_index_without_valid_until_is_a_warning() -> None:
    (finding,) = judge_ages([index(OLD_INDEX + DAY)], {}, NOW)
    assert (finding.rule, finding.warning) == ("index-age", True)
    assert finding.words.startswith(
        "http://mirror.example/debian: the index of debian trixie is dated 2026-05-26T12:00:00Z, 181 days ago"
    )


@pytest.mark.parametrize(
    "other",
    [index(OLD_INDEX - DAY), index(OLD_INDEX - DAY, valid_until="2036-12-01T00:00:00Z"), index(-DAY)],
    ids=["young", "young and valid for long", "ahead"],
)
def test_other_indices_are_none(other: Index) -> None:
    assert judge_ages([other], {}, NOW) == []


def test_an_old_index_that_is_valid_for_years_is_a_warning() -> None:
    (finding,) = judge_ages([index(OLD_INDEX + DAY, valid_until="2036-12-01T00:00:00Z")], {}, NOW)
    assert "181 days ago, and is valid until 2036-12-01T00:00:00Z: is that mirror up to date?" in finding.words


@pytest.mark.parametrize("valid_until", [None, "2026-12-01T00:00:00Z"])
@pytest.mark.parametrize("max_age", ["30d", "720h", 30 * 86400])
def test_max_age_refuses_whatever_valid_until_says(max_age: object, valid_until: str | None) -> None:
    assert judge_ages([index(29 * DAY, valid_until=valid_until)], wish(max_age), NOW) == []
    with pytest.raises(
        RepositoryUntrusted, match=r"31 days ago, and max_age of repositories\.debian is 30 days"
    ) as caught:
        judge_ages([index(31 * DAY, valid_until=valid_until), index(DAY, suite="young")], wish(max_age), NOW)
    assert "young" not in caught.value.message
    assert "clock" in str(caught.value.hint)


def test_an_age_that_the_fleet_file_admits_is_no_warning() -> None:
    assert judge_ages([index(2 * OLD_INDEX)], wish("400d"), NOW) == []


def test_the_date_of_an_rpm_index_without_timestamps_is_too_old() -> None:
    stands = index(DAY, suite="").model_copy(update={"kind": "rpm", "date": "1970-01-01T00:00:00Z"})
    assert len(judge_ages([stands], {}, NOW)) == 1
    with pytest.raises(RepositoryUntrusted, match="the index of debian is dated 1970"):
        judge_ages([stands], wish("1d"), NOW)


@pytest.mark.parametrize("value", ["30", "1 day", "5m", "20000d", -1, True, 1.5])
def test_what_is_no_age(value: object) -> None:
    with pytest.raises(ValueError, match="max_age"):
        wish(value)
