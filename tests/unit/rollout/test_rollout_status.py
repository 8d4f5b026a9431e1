"""What a rollout looks like, from its events: in a terminal, as an HTML page and as a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings, strategies as st

from gdsdeploy.host.io.wording import span
from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import FORWARD, Outcome, Step, Wave
from gdsdeploy.rollout import page as rollout, progress as words
from gdsdeploy.rollout.control import objection
from gdsdeploy.rollout.machine import Status, first_status, fold
from gdsdeploy.rollout.progress import WIDTH, bar, heartbeat, lines
from tests.unit.rollout.rehearsed import SILENT, Play, run
from tests.unit.sample_rollouts import BEGIN, ERROR, KEEPS, SECONDS, Story, large, plan, small


def render(status: Status, *, live: bool = True) -> str:
    return "".join(rollout.stream(status, live=live))


GOLDEN = """\
rollout 20261121T1054-7f3a: halted
  because: 2 hosts failed, and the rollout halts at 2: gpu6, gpu5
  [##################......] 6 of 8 hosts, 1 h 18 min so far
  4 done, 1 rolled-back, 1 lost, 1 under way, 1 waiting
  out of work: 2 of at most 3
  waves:  ✓ canary 1/1  ✓ wave-2 2/2  ▸ wave-3 3/4  · wave-4 0/1
  under way:
    gpu7  preflight for 12 s, attempt 2
  failed:
    ? gpu5: lost: boot: no answer within 1200 s of its reboot
    ↺ gpu6: rolled-back: modules: nvidia-fs does not build: <nvfs-dma.c:412> & …
  last, 11:11:19 UTC: gpu7: preflight begins (attempt 2): it is checked"""


def shown(status: Status, after: float = 0.0, **how: bool) -> list[str]:
    assert status.last is not None
    return lines(status, now=status.last.time + after, **how)


def test_a_terminal_shows_everything_that_matters() -> None:
    status = fold(small().events)
    assert "\n".join(shown(status, 12)) == GOLDEN


def test_a_log_gets_the_same_in_one_line() -> None:
    status = fold(small().events)
    assert status.last is not None
    assert heartbeat(status, now=status.last.time + 60, latest={"gpu7": "DKMS: nvidia"}) == (
        "  still at work: 6 of 8 hosts, 1 h 18 min so far; gpu7  preflight for 60 s, attempt 2: DKMS: nvidia"
    )


def test_hosts_that_failed_alike_share_a_line() -> None:
    names = [f"n{number}" for number in range(1, 31)]
    story = Story(plan((Wave("canary", tuple(names), canary=True),), settings=KEEPS))
    story.say(Kind.OPENED, wave="canary")
    for name in names:
        story.upgrade(
            name, until=Step.VALIDATE, error={"message": f"{name}: checks failed", "hint": f"x --limit {name}"}
        )
        story.say(Kind.OUTCOME, name, outcome="kept", reason="it failed")
    text = shown(fold(story.events), whole=True)
    assert text.count("    ✗ n[1-30]: kept: validate: checks failed") == 1
    assert "      what to do: x --limit 'n[1-30]'" in text


def test_reasons_can_be_read_whole_with_what_to_do() -> None:
    lines = shown(fold(small().events), whole=True)
    at = lines.index("    ? gpu5: lost: boot: no answer within 1200 s of its reboot")
    assert lines[at + 1 : at + 4] == [
        "    ↺ gpu6: rolled-back: modules: nvidia-fs does not build: <nvfs-dma.c:412> &",
        "      'struct page' has no member \\u001b[31mpgmap",
        "      what to do: Run `gdsdeploy kmod preflight fleet.yml`",
    ]
    assert max(map(len, lines)) <= WIDTH


def test_why_a_host_failed_and_why_it_was_not_taken_back() -> None:
    story = Story(plan((Wave("canary", ("a",), canary=True),)))
    story.upgrade("a", until=Step.VALIDATE, error={"message": "a: first"})
    story.step("a", Step.UNDO)
    story.step("a", Step.UNDO_REBOOT, error={"message": "a: third"})
    story.say(Kind.OUTCOME, "a", outcome="kept", reason="a: first")
    status = fold(story.events)
    assert "    ✗ a: kept: validate: first; then undo-reboot: third" in shown(status)
    assert "first\nthen, at undo-reboot: third" in render(status)


def each(events: Iterable[Event]) -> Iterator[tuple[Event, Status]]:
    """Every event with the (one and same) status after it."""
    first, *others = events
    status = first_status(first)
    yield first, status
    for event in others:
        status.apply(event)
        yield event, status


def test_every_line_fits_and_obeys_nobody() -> None:
    for story in (small(), large(300)):
        for event, status in each(story.events):
            if event.number % 7 == 0:
                lines = shown(status, 3600)
                assert max(map(len, lines)) <= WIDTH
                assert not any("\x1b" in line for line in lines)
                assert len(lines) <= 45, "it has to fit a terminal, however many hosts there are"


def test_time_never_goes_backwards() -> None:
    lapses = [status.lapse for _, status in each(small().events)]
    assert lapses == sorted(lapses)
    assert lapses[-1] > 4000
    status = fold(small().events)
    assert all(work.end is None or work.end >= work.begin for host in status.hosts.values() for work in host.works)
    assert status.last is not None
    early = lines(status, now=0.0)
    assert "-" not in early[2], "a clock that was set back makes nothing negative"


def test_who_is_out_of_work() -> None:
    story = Story(plan((Wave("canary", ("a", "b"), canary=True),), down=("x",)))
    status = fold(story.events)
    assert status.away() == {"x"}

    def then(kind: Kind, host: str = "", **data: object) -> set[str]:
        story.say(kind, host, **data)
        status.apply(story.events[-1])
        return status.away()

    for name in "ab":
        assert name not in then(Kind.BEGIN, name, step="preflight", attempt=1)
        then(Kind.END, name, step="preflight", data={"boot_id": "1"})
        assert name in then(Kind.BEGIN, name, step="drain", attempt=1)
        assert name in then(Kind.FAIL, name, step="drain", error={"message": "no"})
        then(Kind.BEGIN, name, step="undo-validate", attempt=1)
    then(Kind.END, "a", step="undo-validate", data={"validated_boot": "1"})
    assert then(Kind.BEGIN, "a", step="return", attempt=1) == {"a", "b", "x"}
    assert then(Kind.END, "a", step="return", data={"returned": True}) == {"b", "x"}
    assert [end is None for _, end in status.hosts["a"].outages] == [False]
    then(Kind.FAIL, "b", step="undo-validate", error={"message": "no"})
    assert then(Kind.OUTCOME, "b", outcome="kept", reason="no") == {"b", "x"}
    assert then(Kind.RESUMED, accept=["b"]) == {"b", "x"}
    assert then(Kind.LOOKED, down=["y"], back=["b"]) == {"y"}
    assert status.hosts["b"].accepted


def test_how_long_a_host_takes() -> None:
    status = fold(small().events)
    host, steps = status.hosts["gpu1"], [SECONDS[step] for step in FORWARD]
    assert host.worked(status.lapse) == host.seconds == sum(steps), "its soak is no work"
    assert host.out_of_work(status.lapse) == sum(steps[1:]), "not during its preflight"
    story = Story(plan((Wave("canary", ("a",), canary=True),)))
    story.say(Kind.BEGIN, "a", step="preflight", attempt=1)
    story.wait(10)
    story.say(Kind.BEGIN, "a", step="preflight", attempt=2)
    assert [work.end for work in fold(story.events).hosts["a"].works] == [10, None], "its driver was stopped"


def test_an_end_may_be_reconsidered() -> None:
    story = Story(plan((Wave("canary", ("a",), soak=60, canary=True),)))
    story.upgrade("a")
    story.step("a", Step.SOAK, error=ERROR)
    status = fold(story.events)
    assert (status.hosts["a"].state, status.hosts["a"].outcome) == ("between steps", None)
    assert [host.name for host in status.failed()] == ["a"]
    story.step("a", Step.DRAIN)
    story.undo("a")
    assert fold(story.events).hosts["a"].state == "rolled-back"


def test_a_rollback_reconsiders_what_is_done_and_a_soak_ends_first() -> None:
    story = Story(plan((Wave("canary", ("a", "b"), soak=60, canary=True),)))
    story.upgrade("a")
    story.upgrade("b")
    story.say(Kind.BEGIN, "a", step="soak", attempt=1)
    story.say(Kind.ROLLBACK, reason="slower")
    assert {name: host.outcome for name, host in fold(story.events).hosts.items()} == {"a": Outcome.DONE, "b": None}
    story.say(Kind.PAUSED, reason="")
    story.say(Kind.END, "a", step="soak", data={})
    assert fold(story.events).hosts["a"].outcome is None


def test_phases() -> None:
    story = Story(plan((Wave("canary", ("a",), canary=True),)))
    expected = [
        (Kind.OPENED, "running"), (Kind.PAUSED, "paused"), (Kind.PAUSED, "paused"), (Kind.RESUMED, "running"),
        (Kind.HALTED, "halted"), (Kind.RESUMED, "running"), (Kind.ABORTED, "being aborted"), (Kind.PAUSED, "paused"),
        (Kind.RESUMED, "being aborted"), (Kind.FINISHED, "aborted"), (Kind.ROLLBACK, "being rolled back"),
        (Kind.FINISHED, "rolled back"),
    ]  # fmt: skip
    for kind, phase in expected:
        story.say(kind, wave="canary", reason="why")
        status = fold(story.events)
        assert status.phase == phase
        assert status.finished == (kind is Kind.FINISHED)


def test_time_left_comes_from_what_was_expected_and_what_it_took() -> None:
    hosts = tuple("abcdefgh")
    story = Story(plan((Wave("canary", ("c0",), soak=100, canary=True), Wave("w", hosts)), max_unavailable=2))
    assert fold(story.events).left() == 600 + 100 + 8 * 600 / 2
    story.say(Kind.OPENED, wave="canary")
    story.upgrade("c0")
    took = fold(story.events).hosts["c0"].seconds
    assert took == sum([4, 95, 12, 140, 180, 6, 3, 110, 40, 2])
    story.say(Kind.SOAKING, wave="canary", until=story.time + 100)
    story.wait(40)
    story.say(Kind.NOTE, text="x")
    assert fold(story.events).left() == pytest.approx(60 + 8 * took / 2)
    story.say(Kind.PAUSED, reason="")
    assert fold(story.events).left() is None


@pytest.mark.parametrize("events", [[], [Event(1, 0.0, Kind.NOTE, data={"text": "x"})]])
def test_a_journal_begins_with_its_plan(events: list[Event]) -> None:
    with pytest.raises(ValueError, match="begins with the plan"):
        fold(events)


def every_event() -> Iterator[Event]:
    for number, kind in enumerate(Kind, 1):
        yield Event(number, BEGIN, kind)
        yield Event(number, BEGIN, kind, "gpu1")
    for step in [*FORWARD, Step.SOAK, Step.POWER]:
        yield Event(1, BEGIN, Kind.BEGIN, "gpu1", {"step": str(step), "attempt": 2})


def test_every_event_has_words_even_when_it_lacks_all_data() -> None:
    for event in every_event():
        text = words.sentence(event)
        assert text == "".join(char for char in text if char.isprintable())
        assert "None" not in text
        assert words.to_json(event, "r", "f")["text"] == text
    assert all(words.DOING.get(step) for step in Step)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (-5, "0 s"), (99, "99 s"), (100, "2 min"), (3599, "1 h 00 min"), (3900, "1 h 05 min"),
     (200000, "2 d 7 h")],
)  # fmt: skip
def test_spans_as_people_say_them(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_bar_is_full_only_when_all_are_done() -> None:
    assert bar(0, 3, 3) == "[...]"
    assert bar(999, 1000, 24).count("#") == 23
    assert bar(3, 3, 3) == bar(0, 0, 3) == "[###]"


def test_a_host_counts_as_done_while_it_is_validated_again() -> None:
    play = run(Play(plan((Wave("canary", ("a",), soak=60, canary=True),))), until=_soaks)
    assert play.machine.outcomes() == {"done": 1}


def _soaks(play: Play) -> bool:
    return play.machine.hosts["a"].step is Step.SOAK and "a" in play.under_way


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
    render(status)
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
    text = render(fold(story.events), live=False)
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
    text = render(fold(story.events), live=False)
    assert "<img" not in text
    assert "\x1b" not in text
    page = _Checker()
    page.feed(text)
    assert page.scripts == [*["application/json"] * 3, None], "no script was ended, and none was added"

    _, hosts, texts = map(json.loads, page.data)
    assert hosts[0][0] == HOSTILE, "JSON escapes it, and the page shows it as text"
    assert HOSTILE.replace("\x1b", "\ufffd") in texts


def test_waves_and_their_times_need_no_script() -> None:
    text = render(fold(small().events), live=False)
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
    text = render(fold(small().events), live=False)
    assert "4 of 8 hosts have the lock, 1 rolled-back, 1 lost, 2 not finished" in text
    assert "Run <code>gdsdeploy kmod preflight fleet.yml</code>" in text
    assert "&lt;nvfs-dma.c:412&gt; &amp;" in text
    assert text.index("no answer within 1200 s") < text.index("does not build"), "hosts out of work come first"


def test_a_host_that_is_out_of_work_is_brought_back_after_its_cause_was_found() -> None:
    story = Story(plan((Wave("canary", ("a",), canary=True),), settings=KEEPS))
    story.say(Kind.OPENED, wave="canary")
    story.upgrade("a", until=Step.APPLY, error={**ERROR, "message": "a: two\nlines \x1b[31m"})
    story.say(Kind.OUTCOME, "a", outcome="kept", reason="")
    text = render(fold(story.events))
    assert "fleet.yml</code>\nLook at it and bring it back yourself" in text
    assert "two\nlines \ufffd[31m" in text, "lines stay lines, and nothing is obeyed"


def test_the_same_fault_is_shown_once() -> None:
    hosts = ("a", "b", "c")
    story = Story(plan((Wave("canary", hosts, canary=True),)))
    for host in hosts:
        story.step(host, Step.PREFLIGHT, error={**ERROR, "message": f"{host}: the disk of {host} is full"})
        story.say(Kind.OUTCOME, host, outcome="refused", reason="")
    text = render(fold(story.events))
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
