"""The pages in a real Chromium: what they weigh and show, by keyboard, on paper, on a phone, and from hostile hosts."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from gdsdeploy import atomic
from gdsdeploy.host.io.wording import span
from gdsdeploy.host.model.finding import FAIL, Finding
from gdsdeploy.report import html
from gdsdeploy.report.model import HostReport, Report, Trouble
from gdsdeploy.rollout import page as rollout_page
from gdsdeploy.rollout.machine import Status, fold
from tests.packages import CHROMIUM
from tests.unit.report import sample_report
from tests.unit.report.sample_report import report
from tests.unit.sample_rollouts import large, small

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Tests are root, for whom Chromium has no sandbox.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open the page of a report or of a rollout, written as the verbs write it; errors of its scripts fail the test."""
    errors: list[str] = []
    contexts = []

    def open_page(what: Report | Status | Path, address: str = "", width: int = 1280, **options: object) -> Page:
        file = what if isinstance(what, Path) else tmp_path / "page.html"
        if isinstance(what, Report):
            atomic.write(file, html.stream(what))
        elif isinstance(what, Status):
            atomic.write(file, rollout_page.stream(what, live=False))
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        requests: list[str] = []
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{file.as_uri()}{address}")
        assert requests == [file.as_uri()]
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


HOSTS = 10_000
#: Of the page of so many hosts.
MIB, NODES, STOPS = 20, 5000, 100
#: Pixels of A4 between margins of 1 cm at 96 dots an inch: width, and height.
PAPER, PAPER_HEIGHT = 718, 1046
STOPS_BEFORE = """
() => [...document.querySelectorAll("a[href], button, input, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility() && one.compareDocumentPosition(document.getElementById("problems")) & 4).length
"""
BEYOND = """
() => [...document.body.querySelectorAll("*")].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width && !one.closest(".hidden") && (box.right > innerWidth + 1 || box.left < -1);
}).map((one) => one.outerHTML.slice(0, 90))
"""
EVIL = "</script><script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\"><!--<script>'`"


def rollout() -> Status:
    return fold(small().events)


def open_all(page: Page) -> None:
    page.evaluate("for (const one of document.querySelectorAll('#details > details')) one.open = true")
    details = page.locator("#details > details")
    expect(details.locator("> :nth-child(2)")).to_have_count(details.count())


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent"))


@pytest.fixture(scope="module")
def ten_thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 10,000 hosts; no part of it is large."""
    file = tmp_path_factory.mktemp("large") / "report.html"
    sizes: list[int] = []

    def counted(part: str) -> str:
        sizes.append(len(part))
        return part

    atomic.write(file, map(counted, html.stream(sample_report.large(HOSTS))))
    assert max(sizes) < 1 << 18
    return file


def test_ten_thousand_hosts_fit(ten_thousand: Path, show: Open) -> None:
    assert ten_thousand.stat().st_size <= MIB << 20
    page = show(ten_thousand)
    assert page.evaluate("document.querySelectorAll('*').length") <= NODES
    assert page.evaluate(STOPS_BEFORE) <= STOPS
    assert page.get_by_text("--limit HOST,…").count() == 4
    assert page.get_by_role("button", name="Copy the command").count() == 0, "it has no names of hosts"
    failing = page.locator("table[role=grid] tbody tr")
    assert failing.count() == 100, "the rest comes when it is asked for"
    page.get_by_role("button", name="Show 100 more").click()
    assert failing.count() == 200
    assert page.get_by_role("status").inner_text().startswith("250 of 10000 hosts; 9750 without a problem")


def test_any_of_ten_thousand_hosts_is_found(ten_thousand: Path, show: Open) -> None:
    page = show(ten_thousand)
    page.get_by_label("all hosts").check()
    page.get_by_label("Filter").fill("gpu07777")
    expect(page.locator("table[role=grid] tbody tr")).to_have_count(1)
    page.locator("#details summary").first.click()
    page.get_by_text("checks without a problem").click()
    page.locator(".finding", has_text="storage.path:/mnt/nvme").locator("summary").click()
    assert "serial S64GNX00007777" in page.locator("#details").inner_text()


def test_a_cause_shows_its_hosts(show: Open) -> None:
    page = show(report())
    card = page.locator("[data-cause]", has_text="storage.path:/mnt/nvme")
    assert "gpu[2-3]" in card.inner_text()
    card.get_by_role("button", name="Show these hosts").click()
    assert page.locator("tbody th[role=rowheader]").all_inner_texts() == ["gpu2", "gpu3"]
    page.get_by_role("button", name="Hosts of all causes").click()
    assert page.locator("tbody th[role=rowheader]").all_inner_texts() == ["gpu2", "gpu3", "gpu4"]


def test_only_what_fails_is_shown_until_it_is_asked_for(show: Open) -> None:
    page = show(report())
    assert page.locator("tbody th[role=rowheader]").all_inner_texts() == ["gpu2", "gpu3", "gpu4"]
    heads = page.locator("thead th[role=columnheader]")
    assert heads.all_inner_texts() == ["host", "verdict", "nvidia-fs.driver-tree", "peermem.usable", "storage.path"]
    page.get_by_label("all checks").check()
    page.get_by_label("all hosts").check()
    assert heads.count() == 2 + len(report().checks())
    assert page.locator("tbody th[role=rowheader]").all_inner_texts() == ["gpu2", "gpu3", "gpu4", "gpu1"]


def test_the_matrix_is_one_stop_and_arrows_move_in_it(show: Open) -> None:
    page = show(report())
    page.get_by_label("all checks").focus()
    page.keyboard.press("Tab")
    assert focused(page) == "gpu2"
    assert page.locator("table[role=grid] [tabindex='0']").count() == 1
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert focused(page) == "✗FAIL"
    page.keyboard.press("ArrowDown")
    assert focused(page) == "✓pass"
    page.keyboard.press("Home")
    assert focused(page) == "gpu3"
    page.keyboard.press("Control+End")
    assert "cannot connect" in focused(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY", "the next stop is behind the matrix"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+Home")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert "nvidia-fs.driver-tree" in focused(page), "Enter opens the finding"
    assert page.locator("pre", has_text="Unknown symbol nvidia_p2p_5").is_visible()
    page.keyboard.press("Escape")
    assert focused(page) == "✗FAIL"


def test_links_lead_past_what_comes_first(show: Open) -> None:
    page = show(report())
    page.keyboard.press("Tab")
    assert focused(page) == "What to do"
    links = page.locator("nav a")
    for link in links.all():
        target = (link.get_attribute("href") or "").removeprefix("#")
        link.press("Enter")
        expect(page.locator(f"#{target}")).to_be_focused()


def test_an_address_opens_a_host(show: Open) -> None:
    page = show(report(), "#host=gpu1")
    assert page.locator("details[open] > summary b").all_inner_texts() == ["gpu1"]
    page.get_by_text("checks without a problem").click()
    assert page.locator(".finding").count() == len(report().hosts[0].findings)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("what", [report, rollout], ids=["report", "rollout"])
def test_pages_are_accessible(show: Open, what: Callable[[], Report | Status], scheme: str) -> None:
    page = show(what(), color_scheme=scheme)
    page.get_by_label("all hosts").check()
    open_all(page)
    results = Axe().run(page)
    assert len(results.response["passes"]) > 20
    assert [(one["id"], one["nodes"][0]["html"]) for one in results.response["violations"]] == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("what", [report, rollout, lambda: fold(large(70).events)], ids=["report", "rollout", "large"])
def test_no_page_scrolls_sideways(show: Open, what: Callable[[], Report | Status], width: int) -> None:
    page = show(what(), width=width)
    wide, high = struct.unpack(">II", page.screenshot(full_page=True)[16:24])
    assert wide == width
    assert high > 900
    for _ in range(2):
        scrolls, fits = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert scrolls <= fits == width
        page.get_by_label("all hosts").check()
        open_all(page)


@pytest.mark.parametrize("what", [report, rollout], ids=["report", "rollout"])
def test_nothing_is_cut_on_paper(show: Open, what: Callable[[], Report | Status]) -> None:
    page = show(what(), width=PAPER)
    page.get_by_label("all hosts").check()
    if page.get_by_label("all checks").count():
        page.get_by_label("all checks").check()
    page.emulate_media(media="print")
    # Its event lets the page open what is printed.
    pdf = page.pdf(format="A4")
    assert pdf.count(b"/Type /Page\n") <= 8
    opened = page.locator("#details > details[open] > summary b").all_inner_texts()
    assert opened == (["gpu2", "gpu3", "gpu4"] if isinstance(what(), Report) else ["gpu5", "gpu6"])
    assert page.evaluate(BEYOND) == []
    row = page.locator("table[role=grid] tbody tr").first
    assert row.locator("td:visible").count() >= 2
    if isinstance(what(), Report):
        names = row.locator("td[data-check]:visible").evaluate_all(
            "(cells) => cells.map((cell) => getComputedStyle(cell, '::after').content)"
        )
        assert names == ['"nvidia-fs.driver-tree"', '"storage.path"']


def test_the_first_page_on_paper_is_a_summary(show: Open) -> None:
    page = show(report(), width=PAPER)
    page.emulate_media(media="print")
    for part in ("#problems", "#failing", ".cause .hint", ".cause .on"):
        assert page.locator(part).first.is_visible()
    end = page.locator("section[aria-labelledby=matrix]")
    assert end.evaluate("(section) => getComputedStyle(section).breakBefore") == "page"
    assert end.evaluate("(section) => section.getBoundingClientRect().top") <= PAPER_HEIGHT


def hostile() -> Report:
    finding = Finding(f"storage.path:{EVIL}", FAIL, EVIL, EVIL, EVIL, EVIL, evidence=[EVIL, "</pre>" + EVIL])
    stack = ((EVIL, EVIL),)
    host = replace(
        report().hosts[1], host=EVIL, profile=EVIL, findings=(finding,), stack=stack, gaps=(EVIL,), boot_id=EVIL,
    )  # fmt: skip
    lost = HostReport(f"lost-{EVIL}", EVIL, trouble=Trouble(EVIL, EVIL, EVIL, 20))
    return Report(EVIL, EVIL, EVIL, (host, lost))


def test_what_hosts_say_is_text(show: Open) -> None:
    page = show(hostile())
    title = page.title()
    open_all(page)
    for one in page.locator("#details details").all():
        one.evaluate("(one) => { one.open = true; }")
    assert page.title() == title != "run"
    assert page.locator("img").count() == 0
    assert page.locator("#details").inner_text().count(EVIL) >= 12, "it is shown as it is"


def test_the_policy_refuses_other_scripts(browser: Browser, tmp_path: Path) -> None:
    """Even if markup of a host came into the page."""
    file = tmp_path / "broken.html"
    script = "<script>document.title = 'run'</script><b onmouseover=\"document.title = 'run'\">here</b>"
    file.write_text("".join(html.stream(report())).replace("</main>", f"{script}</main>"))
    page, refused = browser.new_page(), []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(file.as_uri())
    page.get_by_text("here", exact=True).hover()
    assert page.title() != "run"
    assert len([text for text in refused if "Content Security Policy" in text]) == 2
    page.close()


def test_the_essentials_of_a_report_need_no_script(show: Open) -> None:
    page = show(report(), java_script_enabled=False)
    assert "1 of 4 hosts pass, 2 FAIL, 1 UNREACHABLE" in page.locator("h1").inner_text()
    cards = page.locator("[data-cause]").all_inner_texts()
    words = ["gpu[2-3]", "gdsdeploy provision fleet.yml --limit gpu2", "gpu4 (192.0.2.14:22): cannot connect", "gpu3"]
    assert [word in card for word, card in zip(words, cards, strict=True)] == [True] * 4
    named = page.locator("section", has=page.locator("#failing")).inner_text()
    assert ("gpu[2-3]" in named, "gpu4" in named) == (True, True)
    assert "gdsdeploy validate fleet.yml --verbose" in page.locator("#browser").inner_text()


def test_the_essentials_of_a_rollout_need_no_script(show: Open) -> None:
    page = show(rollout(), java_script_enabled=False)
    assert "4 of 8 hosts have the lock" in page.locator("h1").inner_text()
    cards = page.locator("[data-cause]").all_inner_texts()
    words = ["gdsdeploy rollout resume /srv/fleets/fleet.yml", "gdsdeploy kmod preflight fleet.yml"]
    assert [word in card for word, card in zip(words, cards, strict=True)] == [True] * 2
    assert [word in card for word, card in zip(["gpu5", "gpu6"], cards, strict=True)] == [True] * 2
    outages = "6 hosts out of work for 1 h 00 min in all; median 10 min, longest 11 min (gpu6)"
    assert outages in page.locator("main").inner_text()


def test_a_command_is_copied(show: Open) -> None:
    page = show(report(), permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy the command")
    button.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "gdsdeploy provision fleet.yml --limit gpu2"


def test_a_rollout_shows_how_long_hosts_were_out_of_work(show: Open) -> None:
    story = large(600)
    begins = {one.host: one.time for one in story.events if one.kind == "begin" and one.data["step"] == "drain"}
    ends = {one.host: one.time for one in story.events if one.kind == "end" and one.data["step"] == "return"}
    times = sorted((ends.get(host, story.time) - begin for host, begin in begins.items()), reverse=True)
    page = show(fold(story.events))
    page.get_by_label("all hosts").check()
    page.get_by_label("longest out of work first").check()
    assert page.locator("td[data-name='out of work']").all_inner_texts() == list(map(span, times[:100]))
    page.locator("#details summary").first.click()
    # The browser reports an opened part later, and its content comes then.
    expect(page.locator("#details")).to_contain_text("drain")
