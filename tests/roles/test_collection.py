"""The collection: what its tarball has, and what tasks of gds_apply send and return."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy import resources
from gdsdeploy.host.archive.provenance import public_pem
from gdsdeploy.zipapp import hostapp
from plugins.plugin_utils.files import Archive, GdsError
from tests.roles.installing import BIN, ROOT, environment
from tests.roles.tasks import apply, remove


@pytest.fixture(scope="module", autouse=True)
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return resources.collections()


def test_the_tarball_has_what_a_controller_needs_and_no_more(installed: Path) -> None:
    (tarball,) = installed.glob("gdsdeploy-gds-*.tar.gz")
    with tarfile.open(tarball) as file:
        names = {member.name for member in file if member.isfile()}
    top = {name.partition("/")[0] for name in names}
    files = {"FILES.json", "LICENSE", "MANIFEST.json", "NOTICE", "README.md"}
    assert top == files | {"changelogs", "gdsdeploy", "meta", "playbooks", "plugins", "roles"}
    changelogs = {name.removeprefix("changelogs/") for name in names if name.startswith("changelogs/")}
    assert {"config.yaml"} <= changelogs <= {"config.yaml", "changelog.yaml", "CHANGELOG.md"}
    package = {name.split("/")[1] for name in names if name.startswith("gdsdeploy/")}
    assert package == {"__init__.py", "atomic.py", "host", "zipapp"}, "correct build_ignore in galaxy.yml"


PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
{tasks}
    - ansible.builtin.copy:
        content: "{{{{ dict(names | zip(query('vars', *names))) | to_json }}}}"
        dest: {out}
        mode: "0600"
      vars:
        names: "{{{{ query('varnames', '^result_') }}}}"
      check_mode: false
"""


def play(tmp_path: Path, collections: Path, tasks: Mapping[str, Any], **variables: Any) -> dict[str, Any]:
    """Run tasks by name in check mode and return their results; the host is this machine, and nothing is changed."""
    listed = []
    for name, task in tasks.items():
        listed.append({"check_mode": True, "diff": True, "ignore_errors": True, **task, "register": f"result_{name}"})
    text = "".join(f"    {line}\n" for line in yaml.safe_dump(listed, width=10_000).splitlines())
    out = tmp_path / "out.json"
    (tmp_path / "play.yml").write_text(PLAY.format(tasks=text, out=out))
    env = {**environment(collections, tmp_path), **variables.pop("env", {})}
    argv = [BIN / "ansible-playbook", "-i", "localhost,", "-e", json.dumps(variables), tmp_path / "play.yml"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert out.is_file(), done.stdout + done.stderr
    results = {name.removeprefix("result_"): value for name, value in json.loads(out.read_text()).items()}
    return {**results, "output": done.stdout + done.stderr}


def test_tasks_work_with_ansible_alone(installed: Path, tmp_path: Path) -> None:
    """As a user has it who installed the collection and nothing else."""
    options = {"kernel_release": "6.12", "modules": ["nvidia"]}
    results = play(
        tmp_path,
        installed / "collections",
        {
            "changes": apply("driver_options", **options, p2pdma="no"),
            "nothing": apply("expectation"),
            "mistake": apply("driver_options", **options, rdma="magic"),
            "unknown": apply("drivers"),
            "other": {**apply("expectation"), "vars": {"ansible_python_interpreter": "/no/python"}},
            "missing": apply(
                "repositories", manager="apt", indices=[], keys=[{"src": "no.gpg", "dest": "/etc/apt/keyrings/x.gpg"}]
            ),
        },
    )
    changed = results["changes"]
    assert changed["changed"], results["output"]
    assert {change["subject"] for change in changed["changes"]} == {
        "/etc/modprobe.d/gdsdeploy.conf", "/etc/modules-load.d/gdsdeploy.conf",
    }  # fmt: skip
    assert "blacklist nouveau" in changed["diff"][0]["after"]
    assert (results["nothing"]["changed"], results["nothing"]["changes"]) == (False, [])
    assert "rdma must be one of" in results["mistake"]["msg"]
    assert "drivers: unknown resource (set resource to one of " in results["unknown"]["msg"]
    assert results["other"]["gds_error"]["kind"] == "python"
    assert "/no/python" in results["other"]["msg"]
    assert results["missing"]["gds_error"]["kind"] == "not-delivered"


ANSWERS = """
import json, os, sys

def main():
    argv = sys.argv[1:]
    sent = {"argv": argv, "document": json.loads(sys.stdin.read()), "environment": dict(os.environ)}
    entry = {**ENTRY, "name": "x", "report": {**sent, **ENTRY.get("report", {})}}
    print(json.dumps({"error": None, "notes": NOTES, "resources": [entry]}))
    return 0
"""


def program(folder: Path, entry: Mapping[str, Any], notes: list[str]) -> dict[str, str]:
    """The environment of an Ansible with a host program that changes nothing and reports what it was sent."""
    path = folder / "program.pyz"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("", "host/"):
            file.writestr(f"gdsdeploy/{name}__init__.py", "")
        file.writestr("__main__.py", hostapp._MAIN)
        file.writestr("gdsdeploy/host/__main__.py", f"ENTRY, NOTES = {dict(entry)!r}, {notes!r}\n{ANSWERS}")
    return {"GDSDEPLOY_HOST_PROGRAM": str(path)}


def test_the_program_that_is_named_is_run(collections: Path, tmp_path: Path) -> None:
    """``gdsdeploy provision`` packs once."""
    env = program(tmp_path, {"changes": [], "unknown": ["dpkg is locked"]}, ["a note"])
    tasks = {
        "unknown": {**apply("packages.driver", manager="apt"), "diff": False},
        "absent": {**remove("gate"), "check_mode": False},
        "remove": {**remove("all"), "check_mode": False},
        "ordered": {**remove("all", fleet_id="f", lock_serial=4), "check_mode": False},
    }
    results = play(tmp_path, collections, tasks, env=env, gds_run="r1", gds_who="{{ 'o' ~ 'p' }}")
    unknown = results["unknown"]
    assert unknown["changed"], "what a check can't tell is never no change"
    argv = ["apply", "--desired", "-", "--json", "--check", "--run", "r1", "--who", "op"]
    assert unknown["report"]["argv"] == argv
    assert unknown["report"]["document"] == {
        "version": 1, "resources": [{"resource": "packages", "instance": "driver", "desired": {"manager": "apt"}}],
    }  # fmt: skip
    assert "localhost: a note" in results["output"]
    assert "dpkg is locked" in results["output"]
    assert results["absent"]["report"]["argv"][:2] == ["remove", "gate"]
    assert results["remove"]["report"]["argv"][:2] == ["remove", "--json"]
    assert results["ordered"]["report"]["argv"][:5] == ["remove", "--fleet-id", "f", "--lock-serial", "4"]


def test_the_environment_of_a_task_is_that_of_the_hosts_programs(collections: Path, tmp_path: Path) -> None:
    """A proxy for apt and dnf, as every command of Ansible gets it; words stay words."""
    environment = {"https_proxy": "http://{{ 'proxy' }}:3128", "no_proxy": "a 'b' $(id) \"c\""}
    task = {**apply("packages.driver", manager="apt"), "environment": environment}
    results = play(tmp_path, collections, {"one": task}, env=program(tmp_path, {"changes": []}, []))
    seen = results["one"]["report"]["environment"]
    assert (seen["https_proxy"], seen["no_proxy"]) == ("http://proxy:3128", "a 'b' $(id) \"c\"")


REBOOT = {"kind": "reboot", "subject": "kernel 6.12", "before": "", "after": "", "reason": "kernel"}


def test_a_check_predicts_how_the_real_run_ends(collections: Path, tmp_path: Path) -> None:
    """A builder's task of the same run delivers what isn't there; nobody delivers the permission to reboot."""
    refusal = {"id": "not-delivered", "message": "no certificate", "hint": ""}
    task = {"one": apply("signing", certificate="/c.der", signs=False, enrols=False)}
    result = play(tmp_path, collections, task, env=program(tmp_path, {"changes": [], "refusals": [refusal]}, []))["one"]
    assert (result["changed"], result["failed"]) == (True, False)
    assert [(change["kind"], change["reason"]) for change in result["changes"]] == [("receive", "not-delivered")]
    for allowed in (True, False):
        entry = {"changes": [REBOOT], "report": {"allowed": allowed, "reasons": ["another kernel runs"]}}
        task = {"one": apply("reboot", kernel_release="6.12")}
        result = play(tmp_path, collections, task, env=program(tmp_path, entry, []))["one"]
        assert (result["changed"], result["failed"]) == (allowed, not allowed)
    assert "needs a reboot (another kernel runs)" in result["msg"]


def test_a_check_of_a_way_back_needs_nothing_on_the_host(collections: Path, tmp_path: Path) -> None:
    """Only the real run brings the archive."""
    (tmp_path / "packages.tar").write_bytes(b"packages")
    (tmp_path / "key.gpg").write_bytes(b"key")
    offer = {"manager": "apt", "step": "offer", "keyring": str(tmp_path / "key.gpg")}
    tasks = {name: apply("restore", **offer, archive=str(tmp_path / f"{name}.tar")) for name in ("packages", "lost")}
    results = play(tmp_path, collections, tasks)
    assert (results["packages"]["changed"], results["packages"]["failed"]) == (True, False), results["packages"]
    assert ("make", "/var/lib/gdsdeploy-restore") in {
        (change["kind"], change["subject"]) for change in results["packages"]["changes"]
    }
    assert results["lost"]["gds_error"]["kind"] == "not-delivered"


def test_files_of_the_controller_become_part_of_the_desired_state(collections: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.gpg"
    key.write_bytes(b"\x00key\xff")
    stack = {"driver_version": "1", "driver_flavour": "open", "driver_tree": "/usr/src/x", "driver_dkms_name": "x"}
    modules = {"kernel_release": "6", **stack}
    keys = [{"src": str(key), "dest": "/etc/apt/keyrings/x.gpg"}]
    archive = apply("modules", **modules, source="receive", archive=str(tmp_path / "none.tar"))
    tasks = {
        "keys": apply("repositories", manager="apt", indices=[], keys=keys),
        "shared": apply("signing", certificate="/c", shared=str(key)),
        "built": apply("modules", **modules, source="build", archive="/x.tar"),
        "checked": archive,
        "received": {**archive, "check_mode": False},
    }
    results = play(tmp_path, collections, tasks, env=program(tmp_path, {"changes": []}, []))

    def desired(name: str) -> dict[str, Any]:
        value: dict[str, Any] = results[name]["report"]["document"]["resources"][0]["desired"]
        return value

    content = base64.b64encode(key.read_bytes()).decode()
    assert desired("keys")["keys"] == [{"dest": "/etc/apt/keyrings/x.gpg", "content": content}]
    assert desired("shared")["certificate_content"] == content
    assert "shared" not in desired("shared")
    assert desired("built")["hand_over"] is True
    assert desired("checked")["archive_sha256"] == "none"
    assert results["received"]["gds_error"]["kind"] == "not-delivered"


REPOSITORIES = """
import json, sys

def main():
    argv = sys.argv[1:]
    # "remove" is sent a document, too, and leaves it alone.
    name = argv[1] if argv[0] == "remove" else json.loads(sys.stdin.read())["resources"][0]["resource"]
    with open(LOG, "a") as file:
        print(argv[0], name, file=file)
    change = {"kind": "write", "subject": "gdsdeploy.sources", "before": "", "after": "", "reason": REASON}
    entry = {"name": name, "changes": [{**change, "disruption": "none", "resource": name}], "report": {}}
    error = {"kind": "verify", "message": "other files are offered", "hint": "lock anew"} if name == "pins" else None
    print(json.dumps({"error": error, "notes": [], "resources": [] if error else [entry]}))
    return 0
"""


@pytest.mark.parametrize(("reason", "taken_back"), [("missing", ["remove repositories"]), ("content", [])])
def test_repositories_that_are_new_and_cannot_be_pinned_are_taken_back(
    collections: Path, tmp_path: Path, reason: str, taken_back: list[str]
) -> None:
    log = tmp_path / "log"
    env = {**environment(collections, tmp_path), "GDSDEPLOY_HOST_PROGRAM": str(tmp_path / "program.pyz")}
    with zipfile.ZipFile(env["GDSDEPLOY_HOST_PROGRAM"], "w") as file:
        for name in ("", "host/"):
            file.writestr(f"gdsdeploy/{name}__init__.py", "")
        file.writestr("__main__.py", hostapp._MAIN)
        file.writestr("gdsdeploy/host/__main__.py", f"LOG, REASON = {str(log)!r}, {reason!r}\n{REPOSITORIES}")
    variables = {"gds_repo_manager": "apt", "gds_repo_indices": [], "gds_repo_pins": []}
    book = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{**book, "roles": ["gdsdeploy.gds.gds_repo"]}]))
    argv = [BIN / "ansible-playbook", "-i", "localhost,", tmp_path / "play.yml"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert log.read_text().splitlines() == ["apply repositories", "apply pins", *taken_back]
    assert '"gds_error": {"hint": "lock anew", "kind": "verify"' in done.stdout


def test_the_old_name_of_a_variable_is_read_with_a_warning(collections: Path, tmp_path: Path) -> None:
    env = {**environment(collections, tmp_path), **program(tmp_path, {"changes": []}, [])}
    variables = {"gds_packages_manager": "apt", "gds_packages_wanted": [{"package": "x", "version": "{{ 1 + 1 }}"}]}
    book = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{**book, "roles": ["gdsdeploy.gds.gds_packages"]}]))
    argv = [BIN / "ansible-playbook", "-i", "localhost,", "-v", tmp_path / "play.yml"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert '"packages": [{"package": "x", "version": "2"}]' in done.stdout, done.stdout + done.stderr
    words = "localhost: gds_packages_wanted is now gds_packages_packages; the old name works until 0.2.0"
    assert words in " ".join((done.stdout + done.stderr).split())


def test_many_runs_share_the_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path))
    first = resources.collections() / "ansible_collections/gdsdeploy/gds"
    assert (first / "gdsdeploy/zipapp/hostapp.py").is_file()
    (first / "roles").unlink()
    assert resources.collections() / "ansible_collections/gdsdeploy/gds" == first
    assert (first / "roles").readlink() == ROOT / "roles"


# -- The archive of modules: a builder's key is on record from the first time on, and receivers get it.


FIRST, SECOND = public_pem(b"1" * 32), public_pem(b"2" * 32)
BUILDS = {"source": "build", "kernel_release": "6.12", "archive": "x.tar", "builder": "build1"}
ARCHIVE = Archive()


class Task:
    """Stands for the running task: what it would do on a host."""

    checks = False

    def __init__(self, files: dict[str, str], host: str = "gpu1") -> None:
        #: path on the host → content
        self.files, self.host = files, host

    def fetch(self, place: str, destination: str) -> None:
        Path(destination).parent.mkdir(parents=True, exist_ok=True)
        Path(destination).write_text(self.files[place])

    def read(self, path: str) -> bytes:
        if not Path(path).is_file():
            raise GdsError("not-delivered", path)
        return Path(path).read_bytes()

    def bring(self, source: str, _: str) -> str:
        return f"digest of {Path(source).name}"


def host(key: str) -> Task:
    return Task({"/var/lib/gdsdeploy/builder.pub": key, "/var/lib/gdsdeploy/modules-6.12.tar": "archive"})


def test_the_first_key_is_put_on_record_and_another_is_refused(tmp_path: Path) -> None:
    record, archive = tmp_path / "builders/build1.pub", tmp_path / "x.tar"
    options = {**BUILDS, "archive": str(archive), "builder_key": str(record)}
    ARCHIVE.finish(host(FIRST), options)
    assert (record.read_text(), archive.read_text()) == (FIRST, "archive")
    archive.unlink()
    ARCHIVE.finish(host(FIRST), options)
    assert archive.exists()
    archive.unlink()
    other = host(SECOND)
    with pytest.raises(GdsError, match="build1 signs its modules with a key other than the recorded one") as caught:
        ARCHIVE.finish(other, options)
    assert caught.value.kind == "builder-key"
    assert "gdsdeploy kmod builders FLEET --accept build1" in caught.value.hint
    assert not archive.exists(), "no host receives its modules"
    assert (record.read_text(), record.with_name("build1.pub.new").read_text()) == (FIRST, SECOND)


def test_what_is_no_key_is_not_put_on_record(tmp_path: Path) -> None:
    """A record that cannot be read would end the verbs for the whole fleet."""
    record, archive = tmp_path / "builders/build1.pub", tmp_path / "x.tar"
    options = {**BUILDS, "archive": str(archive), "builder_key": str(record)}
    for before in ({}, {record.name: FIRST}):
        for name, text in before.items():
            (record.parent / name).write_text(text)
        for text in ("", "nonsense", FIRST.replace("PUBLIC", "PRIVATE"), FIRST * 2, FIRST.replace("MCow", "MCoX")):
            with pytest.raises(GdsError, match="build1 has no Ed25519 public key") as caught:
                ARCHIVE.finish(host(text), options)
            assert caught.value.kind == "builder-key"
        assert {path.name: path.read_text() for path in record.parent.iterdir()} == before
    assert not archive.exists()


def test_of_two_runs_that_see_a_first_key_one_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "builders/build1.pub"
    options = {**BUILDS, "archive": str(tmp_path / "x.tar"), "builder_key": str(record)}
    late, link = host(SECOND), os.link

    def meanwhile(source: Path, target: Path) -> None:
        record.write_text(FIRST)
        link(source, target)

    monkeypatch.setattr(os, "link", meanwhile)
    with pytest.raises(GdsError, match="a key other than the recorded one"):
        ARCHIVE.finish(late, options)
    assert record.read_text() == FIRST


def test_a_receiver_gets_the_key_of_its_builder(tmp_path: Path) -> None:
    archive, record = tmp_path / "x.tar", tmp_path / "build1.pub"
    archive.touch()
    options = {**BUILDS, "source": "receive", "archive": str(archive), "builder_key": str(record)}
    with pytest.raises(GdsError, match=r"build1\.pub"):
        ARCHIVE.prepare(Task({}), options)
    with pytest.raises(GdsError, match="needs its builder's public key"):
        ARCHIVE.prepare(Task({}), {**options, "builder_key": ""})
    record.write_text("key")
    desired = ARCHIVE.prepare(Task({}), options)
    assert (desired["builder"], desired["builder_key"], desired["archive_sha256"]) == (
        "build1",
        "key",
        "digest of x.tar",
    )
    desired_without = ARCHIVE.prepare(Task({}), {**options, "archive": ""})
    assert not {"archive_sha256", "builder_key"} & set(desired_without)


def test_a_builder_without_a_name_has_that_of_the_inventory() -> None:
    desired = ARCHIVE.prepare(Task({}, "gpu7"), {**BUILDS, "builder": ""})
    assert (desired["builder"], desired["hand_over"]) == ("gpu7", True)
