"""A verb imports what it needs: every library that is dear to start is named here, and no time is measured."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Libraries that take tens of milliseconds to import, and parts of gdsdeploy that import most of the rest.
HEAVY = {
    *("httpx", "paramiko", "jinja2", "debian", "pydantic", "yaml", "cryptography"),
    *("gdsdeploy.host.facts", "gdsdeploy.host.checks", "gdsdeploy.host.apply", "gdsdeploy.platform"),
    *("gdslab", "gdsdeploy.preflight.trial"),
}
#: Of those, what asking hosts and judging their answers needs.
ASKS = HEAVY - {"httpx", "gdslab", "gdsdeploy.preflight.trial"}
#: What resolving a lock needs, without hosts to ask and stacks to build.
RESOLVES = {"httpx", "debian", "pydantic", "yaml"}
RESOLVES |= {"gdsdeploy.host.facts", "gdsdeploy.host.apply", "gdsdeploy.platform"}

_PROGRAM = """
import sys
sys.argv[0] = "gdsdeploy"
heavy, statements = sys.argv.pop(1).split(","), sys.argv.pop(1)
try:
    exec(statements)
finally:
    print("loaded:", *(name for name in heavy if name in sys.modules))
"""


def loaded(statements: str, *argv: object) -> set[str]:
    """Which of HEAVY a fresh process has imported after ``statements``."""
    words = [sys.executable, "-c", _PROGRAM, ",".join(sorted(HEAVY)), statements, *map(str, argv)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert "loaded:" in done.stdout, done.stderr
    return set(done.stdout.rpartition("loaded:")[2].split())


def of_verb(*argv: str) -> set[str]:
    return loaded("from gdsdeploy.cli import main; main()", *argv)


@pytest.mark.parametrize(
    "argv",
    [
        ("--help",),
        ("validate", "--help"),
        ("validate", "--waive", "x", "fleet.yml"),
        ("explain", "--help"),
        ("explain", "--error", "5027"),
        ("explain", "--error", "5027", "--json"),
    ],
    ids=" ".join,
)
def test_what_asks_no_host_imports_nothing_for_hosts(argv: tuple[str, ...]) -> None:
    assert of_verb(*argv) == set()


def test_hosts_are_validated_without_what_resolves_and_downloads() -> None:
    statements = "import gdsdeploy.cli.validate, gdsdeploy.lock.lockfile, gdsdeploy.validate.fleet_validation"
    assert loaded(statements) <= ASKS
    # The names above are those that a process has.
    assert {"paramiko", "pydantic", "gdsdeploy.host.facts"} <= loaded(statements)
    assert {"httpx", "debian"} <= loaded("import gdsdeploy.cli.lock")


def test_a_lock_is_resolved_without_what_asks_and_builds() -> None:
    assert loaded("import gdsdeploy.cli.lock") == RESOLVES
    asks, builds = "lock.adopt_hosts", "preflight.prove"
    later = {module: loaded(f"import gdsdeploy.{module}") - RESOLVES for module in (asks, builds)}
    assert "paramiko" in later[asks]
    assert "gdsdeploy.preflight.trial" in later[builds]


@pytest.mark.usefixtures("own_folders")
def test_versions_are_judged_without_fleets_and_hosts() -> None:
    assert of_verb("fits", "driver=580.126.09", "kernel=6.17.4", "nvidia-fs=2.28.4") == {"yaml"}


def test_a_rollout_is_shown_and_paused_without_what_its_steps_need() -> None:
    assert loaded("import gdsdeploy.cli.rollout") == {"pydantic", "jinja2"}


def test_a_lab_reads_no_lock_and_no_certificate_before_it_needs_them() -> None:
    assert loaded("import gdslab.cli") == {"gdslab", "gdsdeploy.host.apply", "jinja2", "yaml"}
    assert "pydantic" in loaded("import gdsdeploy.model.lock")
