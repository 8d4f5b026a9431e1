"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from gdsdeploy import atomic
from gdsdeploy.report import html
from gdsdeploy.report.model import Report
from gdsdeploy.rollout.machine import Status
from gdsdeploy.rollout.report import page as rollout_page
from tests.packages import CHROMIUM

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
