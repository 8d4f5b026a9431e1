"""The plugin that pytest loads: options and fixtures.  Everything else is imported when a test uses a fixture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from gdsdeploy import paths

if TYPE_CHECKING:
    from gdsdeploy.report.model import Report
    from gdsdeploy.testing.hosts import Gds, GdsHost


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gdsdeploy")
    group.addoption(
        "--gds-fleet", metavar="FILE", help=f"The fleet file for the fixtures gds, gds_host and gds_report. Default: "
        f"${paths.FLEET_SETTING}, or {paths.DEFAULT_FLEET}."
    )  # fmt: skip
    group.addoption("--gds-limit", metavar="HOST[,HOST…]", help="Only these hosts of it; shell patterns work.")
    group.addoption(
        "--gds-since-boot", action="store_true", help="Take what each host's gate recorded in the current boot."
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``gds_host`` is each host of the fleet, where the test names none."""
    if "gds_host" in metafunc.fixturenames and not _names_hosts(metafunc.definition):
        try:
            names = _gds(metafunc.config).names
        except pytest.fail.Exception:
            # The tests that need the fleet say what is wrong with it; files without such tests are collected.
            names = ["no fleet"]
        metafunc.parametrize("gds_host", names, ids=names, indirect=True, scope="session")


def _names_hosts(test: pytest.Item) -> bool:
    for mark in test.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        if "gds_host" in (names.replace(" ", "").split(",") if isinstance(names, str) else names):
            return True
    return False


@pytest.fixture(scope="session")
def gds(pytestconfig: pytest.Config) -> Gds:
    """The fleet: ``gds("gpu1")`` is one of its hosts, ``gds(host)`` the one that testinfra's ``host`` is."""
    return _gds(pytestconfig)


@pytest.fixture(scope="session")
def gds_host(request: pytest.FixtureRequest, gds: Gds) -> GdsHost:
    """Each host of the fleet, one after the other."""
    return gds(cast("str", request.param))


@pytest.fixture(scope="session")
def gds_report(gds: Gds) -> Report:
    """The report about all hosts, as ``gdsdeploy validate`` makes it."""
    return gds.report


_KEY = pytest.StashKey["Gds"]()


def _gds(config: pytest.Config) -> Gds:
    if _KEY not in config.stash:
        from gdsdeploy.testing.hosts import Gds

        file = config.getoption("--gds-fleet")
        path = Path(file) if file else paths.default_fleet()
        since_boot = bool(config.getoption("--gds-since-boot"))
        config.stash[_KEY] = Gds(path, config.getoption("--gds-limit"), since_boot=since_boot)
    return config.stash[_KEY]
