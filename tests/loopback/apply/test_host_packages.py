"""The packages of the host program: what is in them, that they install, and what provision does with their files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdsdeploy import __version__
from gdsdeploy.host.apply import services
from gdsdeploy.host.apply.program import PATH
from tests.loopback.apply.throwaway import PROGRAM, System, subjects

ROOT = Path(__file__).parents[3]
UNITS = {f"/usr/lib/systemd/system/{name}.service" for name in ("gds-gate", "gds-peermem", "gds-watch")}
FILES = {PATH, *UNITS}
ANSWER = f"gdsdeploy-host {__version__}\n"
PROGRAM_DOCUMENT = {"version": 1, "resources": [{"resource": "program", "desired": {}}]}
WATCH_DOCUMENT = {"version": 1, "resources": [{"resource": "watch", "desired": {"every": 60}}]}


def build(folder: Path, *words: str, umask: int = 0o022) -> dict[str, bytes]:
    """Name → content of the packages that the script writes to ``folder``."""
    argv = [sys.executable, ROOT / "packaging" / "build.py", folder, *words]
    done = subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, umask=umask, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(path) for path in sorted(folder.iterdir(), reverse=True)]
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def output(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both packages."""
    place = tmp_path_factory.mktemp("packages")
    build(place)
    return place


@pytest.fixture(scope="module")
def deb(folder: Path) -> Path:
    return folder / f"gdsdeploy-host_{__version__}_all.deb"


@pytest.fixture(scope="module")
def rpm(folder: Path) -> Path:
    return folder / f"gdsdeploy-host-{__version__}-1.noarch.rpm"


def test_the_same_sources_give_the_same_packages(folder: Path, tmp_path: Path) -> None:
    again = build(tmp_path, umask=0o077)
    assert again == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_site_names_its_maintainer(tmp_path: Path) -> None:
    (name,) = build(tmp_path, "--only", "deb", "--maintainer", "Site <site@site.example>")
    assert output("dpkg-deb", "--field", tmp_path / name, "Maintainer") == "Site <site@site.example>\n"


def test_the_debian_package_has_the_program_and_its_units(deb: Path) -> None:
    rows = [line.split(maxsplit=5) for line in output("dpkg-deb", "--contents", deb).splitlines()]
    modes = {row[5].removeprefix("."): row[0] for row in rows if row[0].startswith("-")}
    docs = {f"/usr/share/doc/gdsdeploy-host/{name}" for name in ("NOTICE", "changelog.gz", "copyright")}
    assert modes.keys() == FILES | docs
    assert {row[1] for row in rows} == {"root/root"}
    assert modes.pop(PATH) == "-rwxr-xr-x"
    assert set(modes.values()) == {"-rw-r--r--"}
    assert output("dpkg-deb", "--field", deb, "Depends") == "python3 (>= 3.8)\n"


def test_the_rpm_has_the_program_and_its_units(rpm: Path) -> None:
    rows = output("rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}\n]", rpm).splitlines()
    modes = {path: mode for path, mode, owner in map(str.split, rows) if mode.startswith("-") and owner == "root"}
    licenses = {f"/usr/share/licenses/gdsdeploy-host/{name}" for name in ("LICENSE", "NOTICE")}
    assert modes.keys() == FILES | licenses
    assert modes.pop(PATH) == "-rwxr-xr-x"
    assert set(modes.values()) == {"-rw-r--r--"}
    assert "python3 >= 3.8" in output("rpm", "-qp", "--requires", rpm).splitlines()
    assert output("rpm", "-qp", "--scripts", rpm) == ""


def test_the_rpm_installs(rpm: Path, tmp_path: Path, system: System) -> None:
    """``system`` is for root alone, as rpm's --root is."""
    root = tmp_path / "root"
    subprocess.run(["rpm", f"--root={root}", "--install", "--nodeps", rpm], check=True, capture_output=True)
    assert output("rpm", f"--root={root}", "--query", "gdsdeploy-host") == f"gdsdeploy-host-{__version__}-1.noarch\n"
    assert output("python3", "-I", "-S", root / PATH.lstrip("/"), "--version") == ANSWER
    assert not (root / "etc" / "systemd").exists()


def run(system: System, *argv: str) -> str:
    """The output of a program in the system."""
    out, err = system.start(*argv).communicate(timeout=60)
    return out + err


def test_the_debian_package_installs_and_enables_nothing(deb: Path, system: System) -> None:
    system.path("/tmp/host.deb").write_bytes(deb.read_bytes())
    before = system.changed()
    assert "Setting up gdsdeploy-host" in run(system, "dpkg", "--install", "/tmp/host.deb")
    assert run(system, "python3", "-I", "-S", PROGRAM, "--version") == ANSWER
    assert run(system, "dpkg", "--verify", "gdsdeploy-host") == ""
    new = {path for path in system.changed() - before if not path.startswith(("/var/lib/dpkg/", "/var/log/"))}
    assert new >= FILES
    assert [path for path in new if path.startswith("/etc/")] == []


def test_provision_adopts_or_overwrites_the_program_and_remove_deletes_it(deb: Path, system: System) -> None:
    """The rule of docs/packages.md."""
    system.path("/tmp/host.deb").write_bytes(deb.read_bytes())
    run(system, "dpkg", "--install", "/tmp/host.deb")
    folders = {("make", f"{parent}/gdsdeploy") for parent in ("/etc", "/var/lib")}
    status, answer = system.apply(PROGRAM_DOCUMENT)
    assert (status, set(subjects(answer))) == (0, folders), "the package's program is the same, and is adopted"
    system.path(PROGRAM).write_bytes(b"another version")
    status, answer = system.apply(PROGRAM_DOCUMENT)
    assert (status, subjects(answer)) == (0, [("write", PATH)])
    assert run(system, "dpkg", "--verify", "gdsdeploy-host") == ""
    status, answer = system.apply(WATCH_DOCUMENT)
    unit = "gds-watch.service"
    assert status == 0
    assert "--every 60" in system.path(services.path(unit)).read_text()
    assert "--every 30" in system.path(f"/usr/lib/systemd/system/{unit}").read_text(), "the package's unit stays"
    status, answer = system.remove()
    assert status == 0
    assert not system.path(services.path(unit)).exists()
    assert f"missing     {PATH}" in run(system, "dpkg", "--verify", "gdsdeploy-host")
    run(system, "dpkg", "--install", "/tmp/host.deb")
    assert run(system, "python3", "-I", "-S", PROGRAM, "--version") == ANSWER
