"""What packages bring: of the host program by nfpm, and the cufile.json of libcufile's with its alternatives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import __version__
from gdsdeploy.host.apply import alternatives, engine, services
from gdsdeploy.host.apply.alternatives import OWN
from gdsdeploy.host.apply.cufile import Cufile, Desired
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.apply.program import PATH
from gdsdeploy.host.errors import ApplyError
from tests.loopback.apply.throwaway import PROGRAM, System, subjects
from tests.unit.host.apply.apply_tree import apply, check, tree

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
    assert output("dpkg-deb", "--field", deb, "Depends") == "python3 (>= 3.9)\n"


def test_the_rpm_has_the_program_and_its_units(rpm: Path) -> None:
    rows = output("rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}\n]", rpm).splitlines()
    modes = {path: mode for path, mode, owner in map(str.split, rows) if mode.startswith("-") and owner == "root"}
    licenses = {f"/usr/share/licenses/gdsdeploy-host/{name}" for name in ("LICENSE", "NOTICE")}
    assert modes.keys() == FILES | licenses
    assert modes.pop(PATH) == "-rwxr-xr-x"
    assert set(modes.values()) == {"-rw-r--r--"}
    assert "python3 >= 3.9" in output("rpm", "-qp", "--requires", rpm).splitlines()
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
    out, err = system.start(*argv).communicate(timeout=300)
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


# -- cufile.json as a choice of the real update-alternatives, as NVIDIA's packages of libcufile register theirs.


CONTENT = '// Rendered by gdsdeploy; changes here are overwritten.\n{"properties": {}}\n'
#: What is apart from gdsdeploy: its record, and the log of update-alternatives.
APART = ("/var/lib/gdsdeploy", "/var/log/alternatives.log", "/etc/gdsdeploy")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "host")


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    """The same host without gdsdeploy."""
    return make(tmp_path / "twin")


def make(root: Path) -> Path:
    folders = ("etc/alternatives", "etc/gdsdeploy", "etc/tmpfiles.d", "usr/bin", "var/lib/dpkg/alternatives", "var/log")
    for folder in folders:
        (root / folder).mkdir(parents=True)
    (root / "usr/bin/update-alternatives").touch()
    return root


def tool(root: Path, *words: str) -> None:
    subprocess.run(["update-alternatives", "--quiet", "--root", root, *words], check=True, capture_output=True)


def libcufile(release: str) -> str:
    return f"/usr/local/cuda-{release}/gds/cufile.json"


def install(root: Path, release: str) -> None:
    """What the package's files and its postinst do."""
    file = root / libcufile(release).lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(f'{{"release": "{release}"}}\n')
    priority = release.replace(".", "")
    tool(root, "--install", "/etc/cufile.json", "cufile.json", libcufile(release), priority)


def purge(root: Path, release: str) -> None:
    """What its prerm does."""
    tool(root, "--remove", "cufile.json", libcufile(release))
    (root / libcufile(release).lstrip("/")).unlink()


def converge(root: Path, text: str = CONTENT) -> list[tuple[str, str]]:
    """The changes, which a check predicts and a second run doesn't repeat."""
    predicted = [(change.kind, change.subject) for change in check(root, Cufile(), Desired(text)).changes]
    assert [(change.kind, change.subject) for change in apply(root, Cufile(), Desired(text))] == predicted
    assert check(root, Cufile(), Desired(text)).changes == apply(root, Cufile(), Desired(text)) == []
    assert read(root) == text
    return predicted


def read(root: Path) -> str:
    return ManagedHost(root=str(root)).text("/etc/cufile.json")


def remove(root: Path) -> list[Change]:
    predicted = [(c.kind, c.subject, c.after) for c in Cufile().revert(ManagedHost(check=True, root=str(root)))]
    done = Cufile().revert(ManagedHost(root=str(root)))
    assert [(c.kind, c.subject, c.after) for c in done] == predicted
    assert Cufile().revert(ManagedHost(root=str(root))) == []
    assert not (root / OWN.lstrip("/")).exists()
    record = root / "var/lib/gdsdeploy/before.json"
    assert not record.exists() or "/etc/cufile.json" not in json.loads(record.read_text())["paths"]
    return done


def same(root: Path, twin: Path) -> bool:
    return tree(root, APART) == tree(twin, APART)


def test_the_link_leads_to_our_file_and_back(root: Path, twin: Path) -> None:
    """A release that comes later registers itself, and leaves the choice alone."""
    for host in (root, twin):
        install(host, "12.8")
    assert converge(root)[-2:] == [("write", OWN), ("choose", "/etc/cufile.json")]
    assert (root / "etc/cufile.json").readlink() == Path("/etc/alternatives/cufile.json")
    for host in (root, twin):
        install(host, "13.0")
    assert read(root) == CONTENT
    assert converge(root, CONTENT.replace("{}", "[]")) == [("write", OWN)]
    assert (root / libcufile("13.0").lstrip("/")).read_text() == '{"release": "13.0"}\n'
    assert [c.after for c in remove(root) if c.kind == "choose"] == [libcufile("13.0")]
    assert same(root, twin)


def test_the_choice_of_an_administrator_comes_back(root: Path, twin: Path) -> None:
    for host in (root, twin):
        install(host, "12.8")
        install(host, "13.0")
        tool(host, "--set", "cufile.json", libcufile("12.8"))
    converge(root)
    tool(root, "--set", "cufile.json", libcufile("13.0"))
    assert converge(root) == [("choose", "/etc/cufile.json")]
    assert [c.after for c in remove(root) if c.kind == "choose"] == [libcufile("12.8")]
    assert same(root, twin)


def test_a_later_choice_stays(root: Path) -> None:
    install(root, "12.8")
    install(root, "13.0")
    converge(root)
    tool(root, "--set", "cufile.json", libcufile("12.8"))
    assert [c.after for c in remove(root) if c.kind == "choose"] == [libcufile("12.8")]
    assert read(root) == '{"release": "12.8"}\n'


def test_a_file_from_before_becomes_a_link_when_the_packages_come(root: Path, twin: Path) -> None:
    """update-alternatives replaces no file by its link."""
    assert ("write", "/etc/cufile.json") in converge(root)
    install(root, "12.8")
    assert not (root / "etc/cufile.json").is_symlink()
    assert converge(root) == [("write", OWN), ("choose", "/etc/cufile.json")]
    remove(root)
    install(twin, "12.8")
    assert same(root, twin)


def test_an_earlier_release_of_gdsdeploy_put_a_file_in_the_place_of_the_link(root: Path, twin: Path) -> None:
    for host in (root, twin):
        install(host, "12.8")
    earlier = ManagedHost(root=str(root))
    earlier.write(engine.files.File.of("/etc/cufile.json", CONTENT))
    converge(root)
    remove(root)
    assert same(root, twin)


def test_packages_that_came_with_us_leave_nothing(root: Path, twin: Path) -> None:
    """``remove`` takes packages away before cufile.json."""
    install(root, "12.8")
    converge(root)
    purge(root, "12.8")
    assert read(root) == CONTENT
    assert [c.kind for c in remove(root) if c.subject == "/etc/cufile.json"] == ["delete"]
    assert {p for p in tree(root, APART) if "cufile.json" in p} == set()


def test_the_file_of_an_administrator_comes_back(root: Path, twin: Path) -> None:
    for host in (root, twin):
        (host / "etc/cufile.json").write_text('{"mine": true}\n')
        install(host, "12.8")
    converge(root)
    assert (root / "etc/cufile.json").is_symlink()
    remove(root)
    assert same(root, twin)
    assert read(root) == '{"mine": true}\n'


def test_a_check_knows_that_libcufile_will_bring_the_link(root: Path) -> None:
    cufile, host = Cufile(), ManagedHost(check=True, root=str(root))
    observed: Any = cufile.observe(host, Desired(CONTENT))
    for name, expected in (("libcufile-12-8", OWN), ("libcufile0", "/etc/cufile.json")):
        pending = [Change("install", name, "", "1", "missing", resource="packages.cufile")]
        changes = cufile.changes(Desired(CONTENT), observed, pending)
        assert expected in [change.subject for change in changes if change.kind == "write"]
        assert any(change.kind == "choose" for change in changes) == (expected == OWN)


def test_a_tool_that_fails_leaves_nothing_registered(root: Path, twin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in (root, twin):
        install(host, "12.8")
        install(host, "13.0")
        tool(host, "--set", "cufile.json", libcufile("12.8"))
    run = alternatives._run
    monkeypatch.setattr(
        alternatives, "_run", lambda host, *w: host.run(["false"], 1) if w[0] == "--auto" else run(host, *w)
    )
    with pytest.raises(ApplyError, match="false ended with status 1"):
        apply(root, Cufile(), Desired(CONTENT))
    assert not (root / OWN.lstrip("/")).exists()
    assert tree(root, (*APART, "/var/log")) == tree(twin, (*APART, "/var/log"))


@pytest.mark.parametrize(
    "text", ["", "auto\n", "later\n/etc/cufile.json\n\n/a\n1\n", "auto\n/x\n\n/a\n", "manual\n\n\n\n"]
)
def test_a_damaged_database_has_no_choices(root: Path, text: str) -> None:
    (root / "var/lib/dpkg/alternatives/cufile.json").write_text(text)
    group = alternatives.observe(ManagedHost(root=str(root)))
    assert group is None or group.choices == {}


def test_the_database_of_red_hat(root: Path) -> None:
    """With slaves and with families, as chkconfig's alternatives writes them."""
    path = root / "var/lib/alternatives/cufile.json"
    path.parent.mkdir()
    path.write_text("manual\n/etc/cufile.json\nman\n/usr/share/man\n\n/a\n@family@128\n/m\n/b\n130\n\n")
    group = alternatives.observe(ManagedHost(root=str(root)))
    assert group is not None
    assert (group.auto, group.choices) == (False, {"/a": 128, "/b": 130})
