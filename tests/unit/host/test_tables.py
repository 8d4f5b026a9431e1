"""Tables of the host program and of the page of the audit: schemas, distinct rows, patterns; and tables as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs.gen import audit
from gdsdeploy.host import data
from gdsdeploy.host.gdscheck import document
from gdsdeploy.host.io.wording import aligned
from gdsdeploy.host.subjects import filesystem, storage

FOLDER = Path(data.__file__).parent
#: Table → its file and its schema.  Only documentation uses the audit's findings, so hosts don't get them.
TABLES = {path.stem: (path, FOLDER / "schema" / path.name) for path in FOLDER.glob("*.json")}
TABLES["audit_findings"] = (audit.TABLE, audit.TABLE.with_suffix(".schema.json"))
NAMES = sorted(TABLES)
#: Fields that tell the rows of a table apart.
KEYS = {
    "audit_findings": ("id",),
    "compat": ("id",),
    "causes": ("id",),
    "cufile_clients": ("id",),
    "cufile_counters": ("version", "size"),
    "cufile_errors": ("family", "code"),
    "file_flags": ("flag",),
    "filesystems": ("name",),
    "foreign": ("id",),
    "gdscheck_errors": ("pattern",),
    "gdscheck_remarks": ("words",),
    "kernel_messages": ("id",),
    "log_facts": ("subject", "pattern"),
    "log_parts": ("kind", "pattern"),
    "log_signs": ("id",),
    "p2pdma_keys": ("storage",),
}


def table(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(TABLES[name][0].read_text())
    return rows


def schema(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(TABLES[name][1].read_text())
    return value


def test_every_table_has_a_schema_and_every_schema_a_table() -> None:
    schemas = {path.stem for path in (FOLDER / "schema").iterdir()} | {"audit_findings"}
    assert sorted(schemas) == NAMES == sorted(KEYS)
    assert all(file.is_file() and schema.is_file() for file, schema in TABLES.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_table_follows_its_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))
    jsonschema.validate(table(name), schema(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_refuses_unknown_fields_missing_fields_and_empty_texts(name: str) -> None:
    validator = jsonschema.Draft202012Validator(schema(name))
    row = table(name)[0]
    assert not validator.is_valid([])
    assert not validator.is_valid([{**row, "other": "x"}])
    for field in row:
        assert not validator.is_valid([{**row, field: ""}])
    for field in schema(name)["items"]["required"]:
        assert not validator.is_valid([{key: value for key, value in row.items() if key != field}])


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_told_apart(name: str) -> None:
    keys = [tuple(row[field] for field in KEYS[name]) for row in table(name)]
    assert len(set(keys)) == len(keys)


# A program writes the rules of compat.yml, and test_stack_rules.py compares them.
@pytest.mark.parametrize("name", sorted({*NAMES} - {"compat"}))
def test_a_file_is_written_in_one_way(name: str) -> None:
    assert TABLES[name][0].read_text() == json.dumps(table(name), indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("row", table("gdscheck_errors"), ids=lambda row: row["pattern"])
def test_patterns_compile_and_have_the_groups_that_are_shown(row: dict[str, Any]) -> None:
    shown = {int(number) for number in re.findall(r"\{(\d)\}", row["means"])}
    assert shown == set(range(re.compile(row["pattern"]).groups))


def fixes(value: Any) -> Iterator[str]:
    """Every ``fix`` in a table, at any depth."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from fixes(inner)
    if isinstance(value, dict) and isinstance(value.get("fix"), str):
        yield value["fix"]


#: What needs a fleet file, and what stands before it.
FLEET, SECOND = (
    re.compile(r"\b(?:provision|gdsdeploy (?:lock|provision|kmod)|of the lock|lock a)\b", re.IGNORECASE),
    "; with gdsdeploy: ",
)


def helps_without_a_fleet(fix: str) -> bool:
    """Whether a fix says first what somebody does who has no fleet file."""
    first, _, _ = fix.partition(SECOND)
    return bool(first) and not FLEET.search(first)


# The audit's findings are about gdsdeploy itself.
@pytest.mark.parametrize("name", sorted({*NAMES} - {"audit_findings"}))
def test_a_fix_says_first_what_helps_without_a_fleet_file(name: str) -> None:
    assert [fix for fix in fixes(table(name)) if not helps_without_a_fleet(fix)] == []


@pytest.mark.parametrize(
    "fix",
    [
        "provision the host again",
        "run gdsdeploy provision",
        "install it: gdsdeploy lock",
        "; with gdsdeploy: provision",
    ],
)
def test_a_fix_of_a_fleet_alone_is_noticed(fix: str) -> None:
    assert not helps_without_a_fleet(fix)
    assert helps_without_a_fleet(f"build it again{SECOND}{fix}")


def test_code_has_the_rows_in_their_order() -> None:
    rows, errors = table("gdscheck_errors"), data.rows("gdscheck_errors", document._Error)
    assert [error.pattern for error in errors] == [row["pattern"] for row in rows]
    assert {error.points for error in errors} == {"", document.BACK, document.ON}


def test_flags_are_those_that_facts_have() -> None:
    assert {row.flag for row in data.rows("file_flags", filesystem.Flag)} < set(storage.FLAGS)


def test_an_incomplete_program_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        data.rows("no_such_table", dict)


def test_columns_are_aligned() -> None:
    rows = [("host", "state"), ("gpu1", "done"), ("builder", "")]
    assert aligned(rows) == ["host     state", "gpu1     done", "builder"]
    assert aligned(rows, "  ")[1:] == ["  gpu1     done", "  builder"]
    assert aligned([]) == []
