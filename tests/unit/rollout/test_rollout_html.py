"""A rollout's HTML page and JSON object."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import Step, Wave
from gdsdeploy.rollout import page as rollout
from gdsdeploy.rollout.control import objection
from gdsdeploy.rollout.machine import fold
from tests.unit.rollout.rehearsed import SILENT, Play
from tests.unit.sample_rollouts import ERROR, KEEPS, Story, large, plan, small


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_happens_can_be_shown(data: st.DataObject) -> None:
    waves = (Wave("canary", ("a",), soak=60, canary=True, halt_at=2), Wave("w", ("b", "c", "d"), halt_at=3))
    play = Play(plan(waves, down=("d",), settings={}, max_unavailable=4))
    for _ in range(data.draw(st.integers(1, 60))):
        decided = play.step()
        play.now += data.draw(st.floats(-1e5, 1e6))
        if play.under_way and data.draw(st.integers(0, 9)):
            host = data.draw(st.sampled_from(sorted(play.under_way)))
            if data.draw(st.integers(0, 5)):
                play.end(host)
            else:
                play.fail(host, {**data.draw(st.sampled_from([SILENT, ERROR])), "message": data.draw(st.text())})
        elif decided.wake_at is not None:
            play.now = decided.wake_at
        else:
            kind = data.draw(st.sampled_from([Kind.RESUMED, Kind.ABORTED, Kind.ROLLBACK]))
            if objection(kind, play.machine) is None:
                play.say(kind, reason=data.draw(st.text()), **({"accept": ["a"]} if kind is Kind.RESUMED else {}))
    status = fold([Event(1, 0.0, Kind.PLANNED, data={"plan": play.plan.as_json()}), *play.events[1:]])
    rollout.render(status)
    document = json.loads(rollout.to_json(status))
    out = {name for name, host in play.machine.hosts.items() if host.out}
    assert {name for name, host in document["hosts"].items() if host["away"]} == out | play.machine.slots.down
    assert sum(document["counts"].values()) == sum(bool(host["outcome"]) for host in document["hosts"].values())


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
    story = Story(plan((Wave("canary", ("a",), canary=True),), settings=KEEPS))
    story.say(Kind.OPENED, wave="canary")
    story.upgrade("a", until=Step.APPLY, error={**ERROR, "message": "a: two\nlines \x1b[31m"})
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
