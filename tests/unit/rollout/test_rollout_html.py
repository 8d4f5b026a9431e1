"""A rollout's HTML page and JSON object."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsdeploy.model.events import Kind
from gdsdeploy.model.rollout import Step, Wave
from gdsdeploy.rollout.report import page as rollout
from gdsdeploy.rollout.status import fold
from tests.unit.sample_rollouts import ERROR, Story, large, plan, small

KINDS = st.sampled_from([Kind.BEGIN, Kind.END, Kind.FAIL, Kind.OUTCOME, Kind.RECALL, Kind.PAUSED, Kind.RESUMED,
                         Kind.HALTED, Kind.OPENED, Kind.SOAKING, Kind.CLOSED, Kind.FINISHED, Kind.NOTE])  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(
            KINDS, st.sampled_from(["a", "b", "c"]), st.sampled_from([*Step]), st.floats(-1e5, 1e6), st.text(max_size=9)
        ),
        max_size=40,
    )
)
def test_whatever_a_journal_says_can_be_shown(lines: list[tuple[Kind, str, Step, float, str]]) -> None:
    story = Story(plan((Wave("canary", ("a",), canary=True), Wave("w", ("b", "c")))))
    for kind, host, step, wait, word in lines:
        story.wait(wait)
        of_host = kind in (Kind.BEGIN, Kind.END, Kind.FAIL, Kind.OUTCOME, Kind.RECALL)
        story.say(kind, host if of_host else "", step=str(step), attempt=1, wave="w", until=story.time, reason=word,
                  error={"message": word}, outcome="kept" if word else "done")  # fmt: skip
    status = fold(story.events)
    rollout.render(status)
    json.loads(rollout.to_json(status))


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str | None] = []
        self.data: list[str] = []

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts[-1] and data.strip():
            self.data.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += [dict(attrs).get("type")] if tag == "script" else []
        for key, value in attrs:
            if key == "id":
                self.ids.append(value or "")
            if key in ("href", "src"):
                self.links.append(value or "")


@pytest.mark.parametrize("story", [small(), large(600)], ids=["small", "large"])
def test_the_page_stands_alone(story: Story) -> None:
    text = rollout.render(fold(story.events), live=False)
    page = _Checker()
    page.feed(text)
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids), "every link leads somewhere in the page"
    assert page.scripts == [*["application/json"] * 3, None]
    assert not re.search(r"@import|url\((?!#)", text)
    assert "\x1b" not in text


HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[31m"


def test_hostile_names_and_words_are_text() -> None:
    story = Story(plan((Wave(HOSTILE, (HOSTILE,), canary=True),)))
    story.say(Kind.OPENED, wave=HOSTILE)
    story.step(HOSTILE, Step.PREFLIGHT, error={**ERROR, "message": HOSTILE, "hint": f"`{HOSTILE}`"})
    story.say(Kind.OUTCOME, HOSTILE, outcome="refused", reason=HOSTILE)
    text = rollout.render(fold(story.events), live=False)
    assert "<img" not in text
    assert "\x1b" not in text
    page = _Checker()
    page.feed(text)
    assert page.scripts == [*["application/json"] * 3, None], "no script was ended, and none was added"

    _, hosts, texts = map(json.loads, page.data)
    assert hosts[0][0] == HOSTILE, "JSON escapes it, and the page shows it as text"
    assert HOSTILE.replace("\x1b", "\ufffd") in texts


def test_waves_and_their_times_need_no_script() -> None:
    text = rollout.render(fold(small().events), live=False)
    rows = re.findall(r'<tr><th scope="row">(.*?)</th><td class="wide">(.*?)</td>(.*?)</tr>', text)
    waves = [(name, state, *re.findall(r">([^<]*)</td>", cells)) for name, state, cells in rows]
    # Name, state, hosts, done, failed, where it halts, how long it took.
    assert waves == [
        ("canary", "closed", "1", "1", "0", "1", "20 min"),
        ("wave-2", "closed", "2", "2", "0", "2", "26 min"),
        ("wave-3", "open", "4", "1", "2", "2", "31 min"),
        ("wave-4", "waiting", "1", "0", "0", "2", "–"),
    ]


def test_the_page_says_what_to_do() -> None:
    text = rollout.render(fold(small().events), live=False)
    assert "4 of 8 hosts have the lock, 1 rolled-back, 1 lost, 2 not finished" in text
    assert "Run <code>gdsdeploy kmod preflight fleet.yml</code>" in text
    assert "&lt;nvfs-dma.c:412&gt; &amp;" in text
    assert text.index("no answer within 1200 s") < text.index("does not build"), "hosts out of work come first"


def test_a_host_that_is_out_of_work_is_brought_back_after_its_cause_was_found() -> None:
    story = Story(plan((Wave("canary", ("a",), canary=True),)))
    story.step("a", Step.UNDO, error={**ERROR, "message": "a: two\nlines \x1b[31m"})
    story.say(Kind.OUTCOME, "a", outcome="kept", reason="")
    text = rollout.render(fold(story.events))
    assert "fleet.yml</code>\nLook at it and bring it back yourself" in text
    assert "two\nlines \ufffd[31m" in text, "lines stay lines, and nothing is obeyed"


def test_the_same_fault_is_shown_once() -> None:
    hosts = ("a", "b", "c")
    story = Story(plan((Wave("canary", hosts, canary=True),)))
    for host in hosts:
        story.step(host, Step.PREFLIGHT, error={**ERROR, "message": f"{host}: the disk of {host} is full"})
        story.say(Kind.OUTCOME, host, outcome="refused", reason="")
    text = rollout.render(fold(story.events))
    assert text.count("the disk of HOST is full") == 1


def test_json_has_every_host_and_step() -> None:
    document = json.loads(rollout.to_json(fold(small().events), live=False))
    assert document["counts"] == {"done": 4, "lost": 1, "rolled-back": 1}
    state = document["phase"], document["finished"], document["live"], document["seconds_left"]
    assert state == ("halted", False, False, None)
    assert document["away"] == ["gpu5", "old1"]
    assert [wave["failed"] for wave in document["waves"]] == [0, 0, 2, 0]
    gpu6 = document["hosts"]["gpu6"]
    assert [step["step"] for step in gpu6["steps"]][4:6] == ["modules", "undo"]
    assert gpu6["steps"][4]["error"] == ERROR
    assert document["hosts"]["gpu9"]["outcome"] == "skipped"
