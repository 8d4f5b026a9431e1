"""One file adds a check, a resource, an operating system or a rebuild of RHEL: nothing else is edited.

Each test copies the package to a temporary folder, adds one file there, and runs it in a process of its own: from the
folder, and from the zipapp that is built from it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.cli.parsers import FAILED
from tests.roles.tasks import apply
from tests.roles.test_collection import play
from tests.unit.host.checks.changes import EXPECTATION, GOOD

ROOT = Path(__file__).parents[2]
LAB = ROOT / "tests" / "golden" / "lab"
#: Folders that the package expects beside it.
BESIDE = ("templates", "roles", "plugins", "playbooks", "meta", "galaxy.yml")

SUBJECT = """\
from __future__ import annotations
from .condition import NVIDIA_FS, Cause, Condition, condition, rule
from .register import check, collector, passed

PATH = "/proc/sys/vm/nr_hugepages"

@collector("hugepages")
def collect_hugepages(recorder, _request) -> None:
    recorder.text(PATH)

@condition
def reserved(facts) -> Condition:
    pages = facts.document.line(PATH)
    cause = Cause("hugepages.none", "no page is reserved", f"write 64 to {PATH}", (f"{PATH}: {pages}",))
    return Condition(pages != "0", cause)

@rule(NVIDIA_FS, 5)
def of_path(facts, _mount):
    yield reserved(facts)

@check("hugepages.reserved", "there are huge pages", expects="some on {os}", prevents="slow pinning")
def judge(facts, _expectation):
    yield reserved(facts)
    yield passed(facts.document.line(PATH))
"""
RESOURCE = '''\
from dataclasses import dataclass
from typing import ClassVar, List

from .file_resource import FileResource
from .files import File
from .model import Change, Words

PATH = "/etc/motd.d/gdsdeploy"


@dataclass(frozen=True)
class Desired:
    """``text``: what users read when they log in."""

    text: str


class Greeting(FileResource[Desired]):
    """A greeting."""

    name = "greeting"
    desired_type = Desired
    removal_rank = 35
    kinds: ClassVar[Words] = {"greet": "greet users with {}"}
    reasons: ClassVar[Words] = {"silent": "nobody was greeted"}
    reverts = (PATH,)

    def desired_files(self, desired: Desired) -> List[File]:
        return [File.of(PATH, desired.text)]

    def changes(self, desired, observed, pending=()):
        return [Change("greet", one.subject, reason="silent") for one in super().changes(desired, observed)]
'''
SYSTEM = '''\
from dataclasses import dataclass
from typing import ClassVar

from gdsdeploy.platform.debian import Debian
from gdsdeploy.platform.base import register


@dataclass(frozen=True)
class Devuan(Debian):
    """Debian without systemd."""

    manager: ClassVar[str] = "opkg"


register(Devuan(os="devuan-5", family="devuan", release="5", stack_sources=(), driver_sources=(), codename="daedalus"))
'''

REBUILD = """\
from gdsdeploy.platform.rhel import register_rebuild

register_rebuild("eurolinux", "euro", "https://mirror.example/eurolinux", "RPM-GPG-KEY-eurolinux{}", {"9": 40 * "A"})
"""


class Copy:
    """A copy of the package with one more file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "gdsdeploy", folder / "gdsdeploy", ignore=shutil.ignore_patterns("__pycache__"))
        for name in BESIDE:
            (folder / name).symlink_to(ROOT / name)

    def add(self, path: str, text: str) -> None:
        """Add a file, which must not be there yet."""
        with (self.folder / "gdsdeploy" / path).open("x") as file:
            file.write(text)

    def python(self, code: str, *arguments: str, status: int = 0, place: Path | None = None) -> Any:
        """What ``code`` prints as JSON, run with this copy, or with the zipapp ``place``, as its gdsdeploy."""
        path = str(place or self.folder)
        begin = f"import sys; sys.path[:0] = [{path!r}]\nimport gdsdeploy.host\n"
        begin += f"if not gdsdeploy.host.__file__.startswith({path!r}): sys.exit(gdsdeploy.host.__file__)\n"
        flags = ["-I"] if place is None else ["-I", "-S"]
        argv = [sys.executable, *flags, "-c", begin + code, *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=dict(os.environ))
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    def zipapp(self) -> Path:
        """The host program, built from this copy."""
        path = self.folder / "host.pyz"
        self.python(BUILD, str(path))
        return path


BUILD = """
from pathlib import Path
from gdsdeploy.zipapp import hostapp
hostapp.build(Path(sys.argv[1]))
print(0)
"""
#: Runs the host program in a process, its modules from a folder or a zipapp.
PROGRAM = "from gdsdeploy.host.__main__ import main; sys.exit(main())"
Host = Callable[..., Any]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "copy")


@pytest.fixture(params=["folder", "zipapp"])
def host(request: pytest.FixtureRequest, copy: Copy) -> Host:
    """Runs a command of the host program, or code with its modules."""

    def run(*words: str, code: str = PROGRAM, status: int = 0) -> Any:
        return copy.python(code, *words, status=status, place=copy.zipapp() if request.param == "zipapp" else None)

    return run


def saved(folder: Path, name: str, document: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(document))
    return str(path)


LISTED = """
import json
from gdsdeploy.host.checks import listed
print(json.dumps([": ".join((check.id, check.title, check.expects, check.prevents)) for check in listed()]))
"""


def test_a_subject(copy: Copy, host: Host, tmp_path: Path) -> None:
    """A page has its collector, and a condition that its check and an explanation tell alike."""
    path = "/proc/sys/vm/nr_hugepages"
    evidence = saved(tmp_path, "evidence.json", {**GOOD, "files": {**GOOD["files"], path: "0\n"}})
    expectation = saved(tmp_path, "expectation.json", asdict(EXPECTATION))
    words = ("validate", "--json", "--evidence", evidence, "--expectation", expectation)
    before = [finding["check"] for finding in host(*words)["findings"]]
    copy.add("host/subjects/hugepages.py", SUBJECT)
    findings = {finding["check"]: finding for finding in host(*words, status=FAILED)["findings"]}
    assert [*findings] == [*before, "hugepages.reserved"]
    result = findings["hugepages.reserved"]
    assert (result["verdict"], result["found"]) == ("fail", "no page is reserved")
    assert (result["hint"], result["evidence"]) == (f"Write 64 to {path}", [f"{path}: 0"])
    assert result["expected"] == "some on debian-13"
    explained = host("explain", "--json", "--evidence", evidence)
    (cause,) = {json.dumps(c) for kind in explained["kinds"] for c in kind["causes"] if c["id"] == "hugepages.none"}
    assert json.loads(cause)["fix"] == f"write 64 to {path}"
    assert "hugepages.reserved: there are huge pages: some on {os}: slow pinning" in host(code=LISTED)
    names, text = host(code=COLLECTED)
    assert names[-1] == "hugepages"
    assert text == Path(path).read_text()


COLLECTED = """
import json
from gdsdeploy.host import evidence
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.subjects.register import collectors
recorder = Recorder()
collectors()["hugepages"](recorder, evidence.NOTHING)
print(json.dumps([[*collectors()], recorder.document["files"]["/proc/sys/vm/nr_hugepages"]]))
"""
APPLY = """
import json
from gdsdeploy.host.apply import engine, removal
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply import written
root = sys.argv[1]
resources = engine.read_resources(json.loads(sys.argv[2]))
steps = {}
for step, check in (("check", True), ("apply", False), ("again", True)):
    (result,) = engine.run(ManagedHost(check, root=root), resources)
    steps[step] = [(change.kind, change.subject) for change in result.changes]
for step, check in (("would remove", True), ("remove", False)):
    changes = removal.remove(ManagedHost(check, root=root), ["greeting"])
    steps[step] = [(change.kind, change.subject) for change in changes]
steps["rollback"] = resources[0].resource.reverts[0] in written.paths(root)
print(json.dumps(steps))
"""
PLAN = """
import json
from gdsdeploy.host.apply import registry
from gdsdeploy.converge.diff import change
from gdsdeploy.converge import diff
greeting = change({"kind": "greet", "subject": "/etc/motd", "reason": "silent", "disruption": "none"})
words = diff.action_words(greeting), diff.before_words(greeting)
print(json.dumps([*words, registry.removal_order()]))
"""


def test_a_resource(copy: Copy, host: Host, tmp_path: Path) -> None:
    copy.add("host/apply/greeting.py", RESOURCE)
    (root := tmp_path / "root").mkdir()
    document = {"version": 1, "resources": [{"resource": "greeting", "desired": {"text": "hello"}}]}
    answer = host(str(root), json.dumps(document), code=APPLY)
    greeted, removed = [["greet", "/etc/motd.d/gdsdeploy"]], [["delete", "/etc/motd.d/gdsdeploy"]]
    assert answer["check"] == answer["apply"] == greeted
    assert answer["again"] == []
    assert answer["would remove"][:1] == answer["remove"][:1] == removed
    assert answer["rollback"] is True
    assert not (root / "etc/motd.d").exists()
    assert set(host("apply", "--schema")["greeting"]["properties"]) == {"text"}
    what, was, order = copy.python(PLAN)
    assert (what, was) == ("greet users with /etc/motd", "nobody was greeted")
    assert order[order.index("greeting") - 1 : order.index("greeting") + 2] == ["peermem", "greeting", "modules"]


COLLECTIONS = """
import json
from gdsdeploy import resources
print(json.dumps(str(resources.collections())))
"""


def test_a_task_of_ansible_applies_a_resource(copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In check mode, because the host is this machine."""
    copy.add("host/apply/greeting.py", RESOURCE)
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    wishes = {"greet": {"text": "hello"}, "wrong": {"txt": "hello"}}
    tasks = {name: apply("greeting", **desired) for name, desired in wishes.items()}
    results = play(tmp_path, Path(copy.python(COLLECTIONS)), tasks)
    assert [change["kind"] for change in results["greet"]["changes"]] == ["greet"]
    assert "greeting: " in results["wrong"]["msg"]
    assert "txt" in results["wrong"]["msg"]


SYSTEMS = """
import json
from pathlib import Path
from gdsdeploy.converge.desired import variables
from gdsdeploy.converge.machine import Machine
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.platform import supported_systems
fleet = load_fleet(Path(sys.argv[1]) / "fleet.yml")
lock = lockfile.read(Path(sys.argv[1]) / "gdsdeploy.lock")
targets = {name: target.model_copy(update={"os": "devuan-5"}) for name, target in lock.targets.items()}
lock = lock.model_copy(update={"targets": targets})
hosts = {name: variables(Machine(fleet, lock, name)) for name in fleet.hosts}
systems = supported_systems()
print(json.dumps([systems, {name: [v["gds_preflight_os"], v["gds_repo_manager"]] for name, v in hosts.items()}]))
"""


def test_an_operating_system(copy: Copy, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    shutil.copytree(LAB, folder)
    fleet = folder / "fleet.yml"
    fleet.write_text(fleet.read_text().replace("debian-13", "devuan-5"))
    copy.add("platform/devuan.py", SYSTEM)
    systems, hosts = copy.python(SYSTEMS, str(folder))
    assert systems[-1] == "devuan-5"
    assert hosts
    assert {tuple(pair) for pair in hosts.values()} == {("devuan-5", "opkg")}


SYSTEM_OF_HOST = """
import json
from gdsdeploy.host.facts import facts_from
facts = facts_from(json.loads(sys.argv[1]))
print(json.dumps([facts.os.name, facts.os.family]))
"""
REPOSITORIES = """
import json
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.platform import stack_platform_for
platform = stack_platform_for("eurolinux-9")
try:
    stack_platform_for("eurolinux-8")
except FleetInvalid as error:
    refusal = error.hint
presets = {**platform.presets(), **platform.vendor_presets()}
print(json.dumps([platform.family, refusal, {name: f"{p.uri}/{p.path_for('x86_64')}" for name, p in presets.items()}]))
"""


def test_a_rebuild_of_rhel(copy: Copy, host: Host) -> None:
    """Its hosts, which say in ID_LIKE what they are, and the lock call it the same, so that the same rules hold."""
    copy.add("platform/eurolinux.py", REBUILD)
    release = 'ID="eurolinux"\nVERSION_ID="9.4"\nID_LIKE="rhel fedora centos"\n'
    document = {**GOOD, "files": {**GOOD["files"], "/etc/os-release": release}}
    name, family = host(json.dumps(document), code=SYSTEM_OF_HOST)
    assert (name, family) == ("eurolinux-9", "rhel")
    assert copy.python(REPOSITORIES) == [
        family,
        "Use eurolinux-9",
        {
            "euro-baseos": "https://mirror.example/eurolinux/9/BaseOS/x86_64/os",
            "euro-appstream": "https://mirror.example/eurolinux/9/AppStream/x86_64/os",
            "nvidia": "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64",
            "epel": "https://dl.fedoraproject.org/pub/epel/9/Everything/x86_64",
        },
    ]
