"""The timeline of a rollout and the page around it, for eight hosts and for thousands."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsdeploy.model.events import Kind
from gdsdeploy.model.rollout import Step, Wave
from gdsdeploy.rollout.report import page as rollout
from gdsdeploy.rollout.report import timeline
from gdsdeploy.rollout.report.flow import HEIGHT, MOMENTS, bands
from gdsdeploy.rollout.status import Status, fold
from tests.unit.sample_rollouts import BEGIN, ERROR, SECONDS, Story, large, plan, small

SVG = "{http://www.w3.org/2000/svg}"
GOLDEN = """\
check gpu1: preflight (4 s)
drain gpu1: drain (95 s)
change gpu1: snapshot (12 s), apply (2 min), modules (3 min), audit (6 s)
reboot gpu1: reboot (3 s), boot (2 min)
validate gpu1: validate (40 s)
return gpu1: return (2 s)
validate gpu1: soak (30 s)
check gpu5: preflight (4 s)
drain gpu5: drain (95 s)
change gpu5: snapshot (12 s), apply (2 min), modules (3 min), audit (6 s)
reboot bad gpu5: reboot (3 s), boot (2 min): failed: gpu5: no answer within 1200 s of its reboot
check gpu6: preflight (4 s)
drain gpu6: drain (95 s)
change bad gpu6: snapshot (12 s), apply (2 min), modules (3 min): failed: gpu6: nvidia-fs does not build: \
<nvfs-dma.c:412> & 'struct page' has no member \ufffd[31mpgmap
take-back gpu6: undo (2 min), undo-reboot (3 s), undo-boot (2 min), undo-validate (35 s)
return gpu6: return (2 s)
check open gpu7: preflight (under way, attempt 2)"""


def parsed(status: Status) -> ET.Element:
    drawn = str(timeline.draw(status, "<what> & why"))
    assert not re.search(r"nan|inf\b|e[-+][0-9]", re.sub("<title>.*?</title>|>[^<]*<", "><", drawn))
    return ET.fromstring(drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def bars(root: ET.Element) -> list[ET.Element]:
    return [element for element in root.iter(f"{SVG}g") if "bar" in (element.get("class") or "") and title(element)]


def title(element: ET.Element) -> str:
    return element.findtext(f"{SVG}title") or ""


def texts(root: ET.Element) -> list[str]:
    elements = root.iter(f"{SVG}text")
    return [(element.text or "") + "".join(child.tail or "" for child in element) for element in elements]


def inside(root: ET.Element) -> bool:
    """Whether every rectangle and every text begins within the drawing."""
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for element in root.iter():
        if element.tag in (f"{SVG}rect", f"{SVG}text"):
            x, y = float(element.get("x", 0)), float(element.get("y", 0))
            wide = float(element.get("width", 0))
            if not (0 <= x <= width and 0 <= y <= height and x + wide <= width + 2):
                return False
    return True


def test_every_bar_says_what_was_done() -> None:
    root = parsed(fold(small().events))
    labels = [f"{(bar.get('class') or '').removeprefix('bar ')} {title(bar)}" for bar in bars(root)]
    names = ("gpu1", "gpu5", "gpu6", "gpu7")
    assert "\n".join(line for line in labels if any(f" {name}:" in line for name in names)) == GOLDEN
    assert root.get("aria-label") == "<what> & why"


def test_failures_pauses_and_decisions_need_no_colour() -> None:
    root = parsed(fold(small().events))
    words = texts(root)
    assert {"✗ change", "✗", "paused", "halted", "gpu5 ?", "gpu6 ↺", "wave-3 · 4 hosts", "11:40"} <= set(words)
    (pause,) = [element for element in root.iter(f"{SVG}rect") if element.get("class") == "paused"]
    assert title(pause) == "paused, 7 min"
    used = {element.get("fill") for element in root.iter() if (element.get("fill") or "").startswith("url(")}
    patterns = {f"url(#{element.get('id')})" for element in root.iter(f"{SVG}pattern")}
    assert used <= patterns
    assert {"url(#t-take-back)", "url(#t-reboot)", "url(#t-paused)"} <= used
    paths = [element[0].get("d") for element in root.iter(f"{SVG}pattern")]
    assert len(set(paths)) >= len(paths) - 2, "patterns differ where colours cannot be told apart"


def test_bars_lie_where_their_time_is() -> None:
    status = fold(small().events)
    scale = timeline.LENGTH / status.lapse
    drain = next(bar for bar in bars(parsed(status)) if title(bar).startswith("gpu1: drain"))
    assert float(drain[1].get("x", 0)) == pytest.approx(timeline.NAMES + timeline.MARGIN + 4 * scale, abs=0.06)
    assert float(drain[1].get("width", 0)) == pytest.approx(SECONDS[Step.DRAIN] * scale, abs=0.06)


def test_thousands_of_hosts_are_drawn_by_state() -> None:
    status = fold(large(2000).events)
    root = parsed(status)
    assert float(root.get("height", 0)) < HEIGHT + 20 * timeline.ROW + 120
    failed = [host for host in status.hosts.values() if host.outcome == "kept"]
    shown = [word for word in texts(root) if word.startswith("node")]
    assert shown == [f"{host.name} ✗" for host in failed][: timeline.FAILED]
    assert len(failed) > 5
    counts, total = bands(status, list(status.hosts.values()), timeline.KIND_OF)
    assert total == 2000
    assert all(sum(counts[kind][moment] for kind in counts) <= total for moment in range(MOMENTS))
    assert counts["done"][-1] + counts["failed"][-1] == 2000
    assert list(counts["done"]) == sorted(counts["done"]), "nobody is undone here"
    assert inside(root)


def test_a_thousand_waves_share_a_row() -> None:
    waves = tuple(Wave(f"wave-{n}", (f"h{n}",), canary=n < 2) for n in range(1000))
    story = Story(plan(waves))
    for wave in waves[:2]:
        story.say(Kind.OPENED, wave=wave.name)
        story.upgrade(wave.hosts[0])
        story.say(Kind.CLOSED, wave=wave.name)
    root = parsed(fold(story.events))
    assert float(root.get("height", 0)) < HEIGHT + 200
    assert "1000 waves" in texts(root)
    spans = [title(element) for element in root.iter(f"{SVG}rect") if element.get("class") == "span"]
    assert spans == ["wave-0 (1 host): closed, 10 min", "wave-1 (1 host): closed, 10 min"]


KINDS = st.sampled_from([Kind.BEGIN, Kind.END, Kind.FAIL, Kind.OUTCOME, Kind.RECALL, Kind.PAUSED, Kind.RESUMED,
                         Kind.HALTED, Kind.OPENED, Kind.SOAKING, Kind.CLOSED, Kind.FINISHED, Kind.NOTE])  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(
            KINDS, st.sampled_from(["a", "b", "c"]), st.sampled_from([*Step]), st.floats(-1e5, 1e6), st.text(max_size=9)
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_whatever_a_journal_says_can_be_drawn(lines: list[tuple[Kind, str, Step, float, str]], crowded: bool) -> None:
    more = tuple(f"n{number}" for number in range(timeline.HOSTS)) if crowded else ()
    story = Story(plan((Wave("canary", ("a",), canary=True), Wave("w", ("b", "c", *more)))))
    for kind, host, step, wait, word in lines:
        story.wait(wait)
        of_host = kind in (Kind.BEGIN, Kind.END, Kind.FAIL, Kind.OUTCOME, Kind.RECALL)
        story.say(kind, host if of_host else "", step=str(step), attempt=1, wave="w", until=story.time, reason=word,
                  error={"message": word}, outcome="kept" if word else "done")  # fmt: skip
    status = fold(story.events)
    root = parsed(status)
    assert inside(root)
    rollout.render(status)
    json.loads(rollout.to_json(status))


@pytest.mark.parametrize("lapse", [0.0, 0.4, 9, 61, 3599, 86400, 30 * 86400, 900 * 86400])
def test_ticks_are_few_and_round(lapse: float) -> None:
    ticks = timeline.ticks(BEGIN + 17.3, lapse)
    assert len(ticks) <= 11
    assert all(0 <= at <= lapse for at, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)
    if lapse >= 3599:
        assert len(ticks) >= 4


def test_a_day_is_named_where_the_rollout_crosses_midnight() -> None:
    labels = [label for _, label in timeline.ticks(BEGIN, 16 * 3600)]
    assert labels[0] == "21 Nov 12:00"
    assert "22 Nov 00:00" in labels
    assert "14:00" in labels


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str | None] = []

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


def test_the_page_says_what_to_do() -> None:
    text = rollout.render(fold(small().events), live=False)
    assert "4 of 8 hosts have the lock, 1 rolled-back, 1 lost, 2 not finished" in text
    assert "Run <code>gdsdeploy kmod preflight fleet.yml --full</code>" in text
    assert "&lt;nvfs-dma.c:412&gt; &amp;" in text
    assert text.index("no answer within 1200 s") < text.index("does not build"), "hosts out of work come first"


def test_a_host_that_is_out_of_work_is_brought_back_after_its_cause_was_found() -> None:
    story = Story(plan((Wave("canary", ("a",), canary=True),)))
    story.step("a", Step.UNDO, error={**ERROR, "message": "a: two\nlines \x1b[31m"})
    story.say(Kind.OUTCOME, "a", outcome="kept", reason="")
    text = rollout.render(fold(story.events))
    assert "--full</code>\nLook at it and bring it back yourself" in text
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
