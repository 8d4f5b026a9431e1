"""The tables of pasted logs: every sample is read as its row says, and rows name what exists."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import data
from gdsdeploy.host.logs.judge import answer_to
from gdsdeploy.host.logs.parts import Index, literals, split
from gdsdeploy.host.model import causes
from gdsdeploy.host.model.compat import VERSIONS, parse_versions

FOLDER = Path(data.__file__).parent
#: Messages of libcufile are looked for in its log alone.
LOG_LINE = " 20-11-2026 14:07:56:621 [pid=506 tid=506] ERROR  cufio:339 {}\n"


def table(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return rows


SIGNS = table("log_signs")


def pasted(row: dict[str, Any]) -> bytes:
    return (LOG_LINE.format(row["sample"]) if row["part"] == "cufile" else row["sample"]).encode()


@pytest.mark.parametrize("row", SIGNS, ids=lambda row: row["id"])
def test_a_sample_shows_what_its_row_says(row: dict[str, Any]) -> None:
    answer = answer_to([("paste", pasted(row))])
    if "cause" in row:
        assert row["cause"] in [cause.id for cause in answer.causes]
    else:
        # What is harmless on some hosts is a possible cause where the text doesn't say which host it is.
        assert bool(answer.harmless) == row.get("harmless", False) or {one.certainty for one in answer.causes} == {
            "possible"
        }
        assert not answer.unknown
    assert answer.path != "direct"


@pytest.mark.parametrize("row", SIGNS, ids=lambda row: row["id"])
def test_a_row_names_causes_groups_and_conditions_that_exist(row: dict[str, Any]) -> None:
    assert all(causes.has(ident) for ident in [*filter(None, [row.get("cause")]), *row.get("others", ())])
    subjects = {fact["subject"] for fact in table("log_facts")}
    named, groups = re.findall(r"\{(\w+)(\|[^}]+)?\}", row["means"]), set(re.compile(row["pattern"]).groupindex)
    # What one line may lack has words that stand in for it.
    assert {name for name, words in named if not words} <= groups
    assert {name for name, _ in named} <= groups | subjects
    for subject, text in row.get("when", {}).items():
        assert subject in subjects
        assert subject not in VERSIONS or parse_versions(text)


def test_a_cause_that_a_log_shows_has_a_rank_and_a_reference() -> None:
    shown = {ident for row in SIGNS for ident in [row.get("cause"), *row.get("others", ())]}
    rows = [row for row in table("causes") if row["id"] in shown or "decide" in row]
    assert [row["id"] for row in rows if not {"rank", "reference"} <= row.keys()] == []


def test_every_cause_has_a_sign_or_a_condition_of_a_host_that_names_it() -> None:
    """Else nothing ever says it: a row without either was left behind by what named it."""
    shown = {ident for row in SIGNS for ident in [row.get("cause"), *row.get("others", ())]}
    shown |= {row.get("instead") for row in table("causes")}
    code = "".join(path.read_text() for path in FOLDER.parent.rglob("*.py"))
    assert [row["id"] for row in table("causes") if row["id"] not in shown and f'"{row["id"]}"' not in code] == []


def consequences() -> list[tuple[str, dict[str, Any]]]:
    """(id as a cause, row) of each row that follows from others."""
    kernel = [("kernel." + re.sub(r"^(xid-\d+)-\D.*", r"\1", row["id"]), row) for row in table("kernel_messages")]
    rows = [*((row["id"], row) for row in table("causes")), *kernel]
    return [(ident, row) for ident, row in rows if "follows" in row]


def samples_of(ident: str) -> list[str]:
    """Texts that show a cause: the samples of its signs, or of the kernel's message."""
    rows = [row for row in SIGNS if row.get("cause") == ident and "when" not in row and "certainty" not in row]
    rows += [row for row in table("kernel_messages") if "kernel." + row["id"] == ident]
    return [pasted(row).decode() if "part" in row else row["sample"] for row in rows]


IDS = [*(row["id"] for row in table("causes")), *("kernel." + row["id"] for row in table("kernel_messages"))]


@pytest.mark.parametrize(("ident", "row"), consequences(), ids=lambda one: one if isinstance(one, str) else "")
def test_a_consequence_comes_behind_its_cause_and_gives_no_advice_of_its_own(ident: str, row: dict[str, Any]) -> None:
    own = [row["sample"]] if "sample" in row else samples_of(ident)
    for name in row["follows"]:
        roots = [one for one in IDS if one == name or (name[-1] in ".-" and one.startswith(name))]
        assert roots or name == "compat.", name
        for root in roots:
            for text in samples_of(root):
                answer = answer_to([("paste", "\n".join([text, *own]).encode())])
                said = {cause.id: cause for cause in answer.causes if cause.certainty != "possible"}
                links = [cause.link for cause in said.values() if cause.id != ident]
                if ident in said and any(causes.is_after(said[ident].link, link) for link in links):
                    assert next(iter(said)) != ident, text
                    assert "seat" not in said[ident].fix
                    assert said[ident].fix.startswith("repair ")


@pytest.mark.parametrize("row", table("log_facts"), ids=lambda row: f"{row['subject']} {row['sample'][:40]}")
def test_a_fact_is_drawn_from_its_sample(row: dict[str, Any]) -> None:
    match = re.compile(row["pattern"]).search(row["sample"])
    assert match
    value = row.get("value") or (match["v"].strip() if "v" in match.groupdict() else match.lastgroup)
    assert value in answer_to([("paste", row["sample"].encode())]).setting.values(row["subject"])


#: Subject → a line for each value that a cause is denied by.
DENYING = {
    (row["subject"], row.get("value") or name): row["sample"]
    for row in table("log_facts")
    for name in (re.compile(row["pattern"]).groupindex or ("",))
    if row.get("value") or re.compile(row["pattern"]).search(row["sample"])[name]  # type: ignore[index]
}


@pytest.mark.parametrize("row", [row for row in table("causes") if "unless" in row], ids=lambda row: row["id"])
def test_a_text_that_denies_a_cause_never_leads_to_it(row: dict[str, Any]) -> None:
    signs = [pasted(sign) for sign in SIGNS if row["id"] in (sign.get("cause"), *sign.get("others", ()))]
    assert signs
    for subject, wanted in row["unless"].items():
        lines = [line for (about, value), line in DENYING.items() if about == subject and wanted in ("any", value)]
        assert lines
        for line, sign in itertools.product(lines, signs):
            answer = answer_to([("paste", sign + b"\n\n```\n" + line.encode())])
            # A sign may be about a device of its own, beside the one that denies.
            if len(answer.setting.values(subject)) == 1:
                assert row["id"] not in [cause.id for cause in answer.causes]
            assert causes.row(row.get("instead", row["id"])).instead == ""


@pytest.mark.parametrize("row", table("log_parts"), ids=lambda row: row["pattern"][:40])
def test_a_sample_is_of_its_kind(row: dict[str, Any]) -> None:
    for sample in row["samples"]:
        assert [part.kind for part in split(sample.encode(), "paste")] == [row["kind"]]


@pytest.mark.parametrize(
    "row", [*SIGNS, *table("kernel_messages"), *table("log_facts")], ids=lambda row: row["pattern"]
)
def test_a_row_is_found_by_its_words(row: dict[str, Any]) -> None:
    index = Index([row], lambda one: one["pattern"])
    assert [match for _, match in index.candidates(row["sample"])] == [row]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("Inc-bar-usage failed: size (?P<size>\\d+)", {"inc-bar-usage failed: size "}),
        ("(?:one|other) words here and", {" words here and"}),
        ("optional? thing is here", {" thing is here"}),
        ("first|second thing here", {"first", "second thing here"}),
        ("a \\(bracket\\) of it[^]x]", {"a (bracket) of it"}),
        ("twice{0,2}", {"twic"}),
    ],
)
def test_a_text_is_a_key_only_where_every_match_has_it(pattern: str, texts: set[str]) -> None:
    assert literals(pattern) == texts
