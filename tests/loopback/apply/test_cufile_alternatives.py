"""cufile.json as a choice of the real update-alternatives, as NVIDIA's packages of libcufile register theirs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import alternatives, engine
from gdsdeploy.host.apply.alternatives import OWN
from gdsdeploy.host.apply.cufile import Cufile, Desired
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.errors import ApplyError
from tests.unit.host.apply.apply_tree import apply, check, tree

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
    argv = alternatives._argv
    monkeypatch.setattr(alternatives, "_argv", lambda host, *w: ["false"] if w[0] == "--auto" else argv(host, *w))
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
