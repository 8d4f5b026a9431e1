"""Rendered folders stand alone, are the same for the same input, and hold the roles and variables of provision."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gdsdeploy import paths, resources
from gdsdeploy.builds import cache as buildcache
from gdsdeploy.builds.assign import by_intent
from gdsdeploy.builds.builder_keys import BuilderKeys
from gdsdeploy.cli import group
from gdsdeploy.converge import plan_fleet
from gdsdeploy.converge.inventory import inventory
from gdsdeploy.errors import FleetInvalid, GdsError, HostUnreachable, NotProvisioned
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.cli import carrier_check
from gdsdeploy.lock import lockfile
from gdsdeploy.rollout.carriers import CARRIERS
from gdsdeploy.rollout.carriers.playbooks import IMPORT, role_of
from gdsdeploy.rollout.carriers.yamltext import FOLDER_MARK, dump
from tests.loopback.builds.test_cache import ORIGIN, archive

LAB = Path(__file__).parents[3] / "golden" / "lab"
BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True, scope="module")
def _program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packed once; it is the same for every test."""
    with pytest.MonkeyPatch.context() as patch:
        program = plan_fleet.hostapp.keep(tmp_path_factory.mktemp("program"))
        patch.setattr(plan_fleet.hostapp, "keep", lambda *_: program)
        yield


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """The lab's fleet in a folder whose name is found again wherever it slips in."""
    folder = tmp_path / "controllers-own-folder"
    shutil.copytree(LAB, folder)
    (folder / "known_hosts").write_text("[127.0.0.1]:22011 ssh-ed25519 AAAA\n[127.0.0.1]:22001 ssh-ed25519 AAAA\n")
    return folder / "fleet.yml"


def edit(fleet: Path, change: Any) -> None:
    value = yaml.safe_load(fleet.read_text())
    change(value)
    fleet.write_text(yaml.safe_dump(value))


def invoke(*words: object) -> Result:
    return CliRunner().invoke(group, ["rollout", "render", *(str(word) for word in words)])


def render(fleet: Path, folder: Path, carrier: str, *words: object) -> dict[str, Any]:
    result = invoke(fleet, folder, "--for", carrier, "--json", *words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def keep_a_build(fleet: Path, tmp_path: Path) -> bytes:
    """Have the cache keep a build by build1 that serves gpu1."""
    intent = by_intent(load_fleet(fleet), lockfile.read(LAB / "gdsdeploy.lock"), "gpu1").want
    build = archive(tmp_path / "kept.tar", "kept")
    buildcache.default(print).put(build, intent, ORIGIN)
    BuilderKeys.of(fleet).path("build1").write_text(ORIGIN.public)
    return build.read_bytes()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_folder_stands_alone_and_is_the_same_twice(fleet: Path, tmp_path: Path, carrier: str) -> None:
    keep_a_build(fleet, tmp_path)
    folder = tmp_path / "out"
    first = render(fleet, folder, carrier)
    assert set(first["changed"]) == set(content(folder))
    for path, data in content(folder).items():
        for own in (fleet.parent, paths.cache(), Path.home() / ".", resources.share()):
            assert f"{own}/".encode() not in data or path.endswith(".pyz"), f"{path} names {own}"
        assert b"id_ed25519" not in data, path
    manifest = json.loads((folder / carrier_check.MANIFEST).read_text())
    assert manifest["lock_digest"] == lockfile.read(LAB / "gdsdeploy.lock").digest
    assert manifest["files"].keys() == content(folder).keys() - {carrier_check.MANIFEST}
    assert carrier_check.judge(str(folder))["wrong"] == []

    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = render(fleet, folder, carrier)
    assert (again["changed"], again["removed"]) == ([], [])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times
    render(fleet, tmp_path / "other", carrier)
    assert content(tmp_path / "other") == content(folder)


@pytest.mark.parametrize("carrier", ["runner", "pull"])
def test_ansible_reads_it(fleet: Path, tmp_path: Path, carrier: str) -> None:
    keep_a_build(fleet, tmp_path)
    folder = tmp_path / "out"
    render(fleet, folder, carrier)
    project = folder / "project" if carrier == "runner" else folder
    playbook = "local.yml" if carrier == "pull" else "provision.yml"
    argv = ["-i", folder / "inventory" / "hosts.yml", "--syntax-check", playbook]
    subprocess.run([BIN / "ansible-playbook", *argv], cwd=project, check=True, capture_output=True)


def test_machines_have_the_variables_of_provision(fleet: Path, tmp_path: Path) -> None:
    """What Ansible makes of the rendered inventory is what provision gives it, but for where files lie."""
    folder = tmp_path / "out"
    render(fleet, folder, "awx")
    argv = [BIN / "ansible-inventory", "-i", "inventory/hosts.yml", "--list"]
    listed = json.loads(subprocess.run(argv, cwd=folder, check=True, capture_output=True).stdout)
    intent, lock = load_fleet(fleet), lockfile.read(lockfile.beside(fleet))
    run_files = plan_fleet.write_run_files(intent, lock, fleet.parent)
    for name, (group_name, values) in plan_fleet.variables(inventory(intent, lock, run_files)).items():
        listing = listed["_meta"]["hostvars"][name]
        assert name in listed[group_name]["hosts"]
        key = Path(values.pop("gds_modules_builder_key")).name
        assert listing["gds_modules_builder_key"] == f"{{{{ playbook_dir }}}}/files/builders/{key}"
        archive_name = Path(values.pop("gds_modules_archive")).name
        assert listing["gds_modules_archive"] == f"{{{{ playbook_dir }}}}/files/modules/{archive_name}"
        roles = {key: value for key, value in values.items() if key.startswith("gds_")}
        assert {key: listing[key] for key in roles} == roles
        assert (listing["ansible_host"], listing["ansible_port"]) == (values["ansible_host"], values["ansible_port"])
        assert "StrictHostKeyChecking=yes" in listing["ansible_ssh_common_args"]
        assert listing["ansible_ssh_args"].startswith("-o StrictHostKeyChecking=yes ")
        assert listing["ansible_host_key_checking"] is True
        assert "ansible_ssh_private_key_file" not in listing
    assert (folder / "files/known_hosts").read_text().count("\n") == 2


CHECK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Ask the host program of the folder
      gdsdeploy.gds.gds_expectation:
        content: "{}"
      check_mode: true
      register: answer
    - ansible.builtin.assert:
        that: answer.changes | map(attribute="subject") | list == ["/etc/gdsdeploy", "/etc/gdsdeploy/expectation.json"]
      when: answer is changed
"""


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_collection_works_where_there_is_no_gdsdeploy(fleet: Path, tmp_path: Path, carrier: str) -> None:
    """With nothing but Ansible and PyYAML; and what Python has compiled meanwhile is no part of the folder."""
    keep_a_build(fleet, tmp_path)
    folder, missing = tmp_path / "out", tmp_path / "missing"
    render(fleet, folder, carrier)
    missing.mkdir()
    for name in ("gdsdeploy", "pydantic", "platformdirs"):
        (missing / f"{name}.py").write_text(f"raise ModuleNotFoundError('{name} is not installed')\n")
    project = folder / "project" if carrier == "runner" else folder
    (project / "check.yml").write_text(CHECK)
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(missing)}
    argv = [BIN / "ansible-playbook", "-i", "localhost,", "check.yml"]
    done = subprocess.run(argv, cwd=project, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (project / "check.yml").unlink()
    assert carrier_check.judge(str(folder))["wrong"] == []


def test_no_text_becomes_a_template_but_the_folder_of_the_playbooks() -> None:
    values = {
        "content": "{{ lookup('pipe', 'id') }}",
        "key": f"{FOLDER_MARK}/files/key",
        "both": f"{FOLDER_MARK}/{{% raw %}}",
    }
    values["said"] = "see {{ playbook_dir }}/x"
    assert dump(values, sort_keys=False, width=1000, data=True) == (
        "content: !unsafe '{{ lookup(''pipe'', ''id'') }}'\n"
        "key: '{{ playbook_dir }}/files/key'\n"
        "both: !unsafe '{{ playbook_dir }}/{% raw %}'\n"
        "said: !unsafe 'see {{ playbook_dir }}/x'\n"
    )


def steps(plays: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [
        (role_of(task), task[IMPORT].get("tasks_from")) for play in plays for task in play["tasks"] if role_of(task)
    ]


def test_pulling_runs_the_roles_of_provision_in_their_order_but_never_reboots(fleet: Path, tmp_path: Path) -> None:
    keep_a_build(fleet, tmp_path)
    folder = tmp_path / "out"
    render(fleet, folder, "pull")
    plays = yaml.safe_load((folder / "local.yml").read_text())
    own = steps(yaml.safe_load(resources.playbook("provision").read_text()))
    assert [step for step in own if step[0] != "gds_reboot"] == steps(plays)
    assert ("gds_reboot", None) in own
    assert plays[0]["tags"] == ["always"], "what was pulled is checked whatever is asked for"
    assert {play["connection"] for play in plays} == {"local"}
    at = next(number for number, play in enumerate(plays) if play["name"] == "Report whether a reboot is needed")
    (condition,) = {
        task["when"]
        for play in yaml.safe_load(resources.playbook("provision").read_text())
        for task in play["tasks"]
        if role_of(task) == "gds_reboot"
    }
    assert plays[at]["tasks"][0]["when"] == f"{condition} and not ansible_check_mode"
    waiting = [task for play in plays[at + 1 :] for task in play["tasks"]]
    assert waiting
    assert all("__gds_pull_reboot | default([]) | length == 0" in task["when"] for task in waiting)
    assert "ansible.builtin.reboot" not in (folder / "local.yml").read_text()
    for name in ("gpu1", "build1"):
        values = yaml.safe_load((folder / f"inventory/host_vars/{name}.yml").read_text())
        assert not [key for key in values if key.startswith("ansible_")]
    assert values["gds_modules_archive"] == "", "there is nobody to hand anything to"


def test_what_this_machines_ssh_says_is_carried_as_far_as_it_can_be(fleet: Path, tmp_path: Path) -> None:
    """Names, ports, users and aliases are; who stands in between is the engine's own matter, and said."""
    (fleet.parent / "config").write_text(
        "Host 127.0.0.1\nHostName gpu1.fleet.example\nHostKeyAlias gpus\nUser operator\nProxyJump bastion.example\n"
    )
    (fleet.parent / "known_hosts").write_text("gpus ssh-ed25519 AAAA\n@revoked gpus ssh-ed25519 BBBB\n")
    edit(fleet, lambda value: value.update(ssh={"config": "config", "known_hosts": "known_hosts"}))
    notes = render(fleet, tmp_path / "out", "awx")["notes"]
    assert [note.partition(";")[0] for note in notes if note.startswith("gpu1")] == [
        "gpu1: this machine reaches it through another one"
    ]
    values = yaml.safe_load((tmp_path / "out/inventory/group_vars/profile_gds.yml").read_text())
    assert (values["ansible_host"], values["ansible_user"]) == ("gpu1.fleet.example", "operator")
    assert values["ansible_become"] is True
    assert "-o HostKeyAlias=gpus" in values["ansible_ssh_common_args"]
    recorded = (tmp_path / "out/files/known_hosts").read_text().splitlines()
    assert recorded == ["@revoked gpus ssh-ed25519 BBBB", "gpus ssh-ed25519 AAAA"]


def test_a_folder_of_somebody_else_is_left_alone(fleet: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "thesis.tex").write_text("\\end")
    with pytest.raises(FleetInvalid, match="it is not empty, and gdsdeploy did not render it"):
        render(fleet, folder, "runner")
    assert content(folder) == {"thesis.tex": b"\\end"}
    (folder / carrier_check.MANIFEST).write_text("{}")
    with pytest.raises(FleetInvalid, match="no manifest of gdsdeploy"):
        render(fleet, folder, "runner")
    render(fleet, tmp_path / "ours", "runner")
    with pytest.raises(FleetInvalid, match="it was rendered for runner, not for awx"):
        render(fleet, tmp_path / "ours", "awx")


def test_what_is_beside_stays_and_what_was_ours_goes_with_its_host(fleet: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    edit(fleet, lambda value: value["hosts"].update(gpu2={"profile": "gds", "address": "127.0.0.1", "port": 22012}))
    first = render(fleet, folder, "runner")
    assert any("gpu2: no host key of it is on record" in note for note in first["notes"])
    (folder / "env" / "ssh_key").write_text("of the user")
    (folder / "project" / "ansible.cfg").write_text("# changed by hand\n")
    edit(fleet, lambda value: value["hosts"].pop("gpu2"))
    second = render(fleet, folder, "runner")
    assert second["removed"] == ["inventory/host_vars/gpu2.yml"]
    assert second["restored"] == ["project/ansible.cfg"]
    assert (folder / "env" / "ssh_key").read_text() == "of the user"
    assert (folder / "project" / "ansible.cfg").read_text() == (resources.share() / "playbooks/ansible.cfg").read_text()


def test_a_rendering_that_was_interrupted_is_gone_on_with(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gdsdeploy.rollout.carriers import folder as writing

    folder, real = tmp_path / "out", writing._write

    def full(place: Path, data: bytes) -> None:
        if place.name == "provision.yml":
            raise OSError(28, "No space left on device", str(place))
        real(place, data)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "_write", full)
        with pytest.raises(FleetInvalid, match=r"provision.yml: cannot be written: No space left"):
            render(fleet, folder, "awx")
    assert "was interrupted" in carrier_check.judge(str(folder))["wrong"][0]
    render(fleet, folder, "awx")
    assert carrier_check.judge(str(folder))["wrong"] == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda value: value["profiles"]["gds"].update(signing={"key": "pkcs11:token=x?pin-value=1234"}),
            "the PIN of a token",
        ),
        (
            lambda value: value.update(mirror={"uri": "https://me:secret@mirror.example/gds", "keyring": "key.gpg"}),
            "a password in an address",
        ),
    ],
)
def test_no_secret_is_rendered(fleet: Path, tmp_path: Path, change: Any, what: str) -> None:
    edit(fleet, change)
    (fleet.parent / "key.gpg").write_bytes(b"\x99key")
    with pytest.raises(FleetInvalid, match=what) as caught:
        render(fleet, tmp_path / "out", "runner")
    assert "1234" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_private_key_for_a_keyring_is_refused(fleet: Path, tmp_path: Path) -> None:
    edit(fleet, lambda value: value.update(mirror={"uri": "https://mirror.example/gds", "keyring": "key.gpg"}))
    (fleet.parent / "key.gpg").write_bytes(b"-----BEGIN PGP PRIVATE KEY BLOCK-----")
    with pytest.raises(FleetInvalid, match="not a keyring"):
        render(fleet, tmp_path / "out", "runner")


def test_keyrings_travel(fleet: Path, tmp_path: Path) -> None:
    edit(fleet, lambda value: value.update(mirror={"uri": "https://mirror.example/gds", "keyring": "key.gpg"}))
    (fleet.parent / "key.gpg").write_bytes(b"\x99public")
    render(fleet, tmp_path / "out", "runner")
    (shared,) = (tmp_path / "out" / "inventory" / "group_vars").iterdir()
    (key,) = yaml.safe_load(shared.read_text())["gds_repo_keys"]
    place = key["src"].replace("{{ playbook_dir }}", str(tmp_path / "out" / "project"))
    assert Path(place).read_bytes() == b"\x99public"
    (fleet.parent / "key.gpg").unlink()
    with pytest.raises(FleetInvalid, match="the keyring cannot be read"):
        render(fleet, tmp_path / "out", "runner")


@pytest.mark.timeout(60)
def test_a_pipe_for_a_keyring_is_not_waited_for(fleet: Path, tmp_path: Path) -> None:
    edit(fleet, lambda value: value.update(mirror={"uri": "https://mirror.example/gds", "keyring": "key.gpg"}))
    os.mkfifo(fleet.parent / "key.gpg")
    with pytest.raises(FleetInvalid, match="not a keyring"):
        render(fleet, tmp_path / "out", "runner")


def test_a_host_that_pulls_waits_for_nobody(fleet: Path, tmp_path: Path) -> None:
    """gpu1 receives from its builder: in one run with ansible-runner, but when it pulls only what is kept."""
    assert render(fleet, tmp_path / "runner", "runner")["machines"] == {
        "build1": "it builds them, and hands them over",
        "gpu1": "it receives what build1 builds",
    }
    with pytest.raises(NotProvisioned, match="no machine makes the modules of gpu1"):
        render(fleet, tmp_path / "pull", "pull")
    assert not (tmp_path / "pull").exists()
    build = keep_a_build(fleet, tmp_path)
    render(fleet, tmp_path / "pull", "pull")
    (inside,) = (tmp_path / "pull" / "files" / "modules").iterdir()
    assert inside.read_bytes() == build
    assert (tmp_path / "pull/files/builders/build1.pub").read_text() == ORIGIN.public
    values = yaml.safe_load((tmp_path / "pull/inventory/host_vars/gpu1.yml").read_text())
    assert values["gds_modules_archive"] == f"{{{{ playbook_dir }}}}/files/modules/{inside.name}"


def test_archives_that_lie_elsewhere_have_their_sum_in_what_is_checked(fleet: Path, tmp_path: Path) -> None:
    build = keep_a_build(fleet, tmp_path)
    folder = tmp_path / "pull"
    render(fleet, folder, "pull", "--modules-url", "https://files.example/modules/")
    (served,) = (folder / "serve").iterdir()
    values = yaml.safe_load((folder / "inventory/host_vars/gpu1.yml").read_text())
    assert served.read_bytes() == build
    assert values["gds_pull_modules"] == {
        "url": f"https://files.example/modules/{served.name}",
        "sha256": carrier_check.sha256(str(served)),
    }
    # The repository has none of it, and a checkout without it is whole.
    assert "/serve/" in (folder / ".gitignore").read_text()
    shutil.rmtree(folder / "serve")
    assert carrier_check.judge(str(folder))["wrong"] == []
    render(fleet, folder, "pull")
    assert not (folder / "serve").exists()
    assert (folder / "files" / "modules" / served.name).read_bytes() == build


def test_a_host_that_has_to_be_asked_and_does_not_answer(fleet: Path, tmp_path: Path) -> None:
    edit(fleet, lambda value: value["profiles"]["gds"].update(fit={}))
    with pytest.raises(HostUnreachable, match="gpu1"):
        render(fleet, tmp_path / "out", "runner")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--for", "runner", "--modules-url", "https://files.example"), 2, "--modules-url goes with --for pull only"),
        (("--for", "pull", "--modules-url", "http://files.example"), 2, "pass an https:// address"),
        (("--for", "cron"), 2, "'cron' is not one of"),
        ((), 2, "--for"),
    ],
)
def test_words_that_do_not_go_together(fleet: Path, tmp_path: Path, words: Any, status: int, message: str) -> None:
    result = invoke(fleet, tmp_path / "out", *words)
    assert (result.exit_code, message in result.output) == (status, True), result.output


def test_a_lock_that_is_stale_is_not_rendered(fleet: Path, tmp_path: Path) -> None:
    edit(fleet, lambda value: value["profiles"]["gds"].update(driver="545"))
    result = invoke(fleet, tmp_path / "out", "--for", "runner")
    assert isinstance(result.exception, GdsError)
    assert result.exception.exit_code == 12


def test_two_profiles_never_share_a_group(fleet: Path, tmp_path: Path) -> None:
    """Their names differ in what Ansible's group names cannot have."""

    def two(value: dict[str, Any]) -> None:
        profile = {**value["profiles"]["gds"], "modules": "build"}
        profile.pop("builder")
        value["profiles"] = {"a-b": profile, "a.b": {**profile, "reboot": False}}
        value.pop("builders")
        value["hosts"] = {
            name: {"profile": name, "address": "127.0.0.1", "port": port}
            for name, port in (("a-b", 22011), ("a.b", 22001))
        }

    edit(fleet, two)
    target = lockfile.read(lockfile.beside(fleet)).targets["gds"]
    lockfile.write(lockfile.beside(fleet), lockfile.build({"a-b": target, "a.b": target}))
    render(fleet, tmp_path / "out", "awx")
    groups = yaml.safe_load((tmp_path / "out/inventory/hosts.yml").read_text())["all"]["children"]
    names = [name for name in groups if name.startswith("profile_a_b_")]
    values = {
        next(iter(groups[name]["hosts"])): yaml.safe_load(
            (tmp_path / f"out/inventory/group_vars/{name}.yml").read_text()
        )["gds_reboot_allowed"]
        for name in names
    }
    assert values == {"a-b": True, "a.b": False}
