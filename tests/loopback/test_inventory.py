"""Inventories: what the real ansible-inventory reads, checked before it counts; a folder of ours that stands alone."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gdsdeploy import paths, resources
from gdsdeploy.builds import cache as buildcache
from gdsdeploy.builds.assign import by_intent
from gdsdeploy.builds.cache import BuilderKeys
from gdsdeploy.cli import group
from gdsdeploy.converge import plan_fleet
from gdsdeploy.converge.inventory import FOLDER, dump, inventory
from gdsdeploy.errors import FleetInvalid, GdsError, HostUnreachable, NotProvisioned
from gdsdeploy.fleetfile import ansible_inventory
from gdsdeploy.fleetfile.load import TRUSTED, load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.text import WORDS
from tests.loopback.builds.test_cache import ORIGIN, archive
from tests.pins.rendering import values_in

LAB = Path(__file__).parents[1] / "golden" / "lab"
BIN = Path(sys.executable).parent
COLLECTION = "collections/ansible_collections/gdsdeploy/gds"


pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """The lab's fleet in a folder whose name is found again wherever it slips in."""
    folder = tmp_path / "controllers-own-folder"
    shutil.copytree(LAB, folder)
    (folder / "known_hosts").write_text("[127.0.0.1]:22011 ssh-ed25519 AAAA\n[127.0.0.1]:22001 ssh-ed25519 AAAA\n")
    return folder / "fleet.yml"


def edit(fleet: Path, change: Callable[[Any], object]) -> None:
    value = yaml.safe_load(fleet.read_text())
    change(value)
    fleet.write_text(yaml.safe_dump(value))


def write(fleet: Path, folder: Path) -> dict[str, Any]:
    result = CliRunner().invoke(group, ["inventory", str(fleet), "-o", str(folder), "--json"])
    if isinstance(result.exception, GdsError):
        raise result.exception
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def values(folder: Path, name: str) -> dict[str, Any]:
    """As Ansible reads them."""
    argv = [BIN / "ansible-inventory", "-i", folder / "hosts.yml", "--host", name]
    listed: dict[str, Any] = json.loads(subprocess.run(argv, cwd="/", check=True, capture_output=True).stdout)
    return listed


def keep_a_build(fleet: Path, tmp_path: Path) -> bytes:
    """Have the cache keep a build by build1 that serves gpu1."""
    want = by_intent(load_fleet(fleet), lockfile.read(LAB / "gdsdeploy.lock"), "gpu1").want
    build = archive(tmp_path / "kept.tar", "kept")
    buildcache.default(print).put(build, want, ORIGIN)
    BuilderKeys.of(fleet).path("build1").write_text(ORIGIN.public)
    return build.read_bytes()


def test_the_folder_stands_alone_and_is_the_same_twice(fleet: Path, tmp_path: Path) -> None:
    keep_a_build(fleet, tmp_path)
    folder = tmp_path / "out"
    first = write(fleet, folder)
    assert {*first["changed"], "gdsdeploy-inventory.json"} == set(content(folder))
    for path, data in content(folder).items():
        for own in (fleet.parent, paths.cache(), Path.home() / ".", resources.share()):
            assert f"{own}/".encode() not in data or path.endswith(".pyz"), f"{path} names {own}"
        assert b"id_ed25519" not in data, path
        assert (folder / path).stat().st_mode & 0o777 == 0o644, path

    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = write(fleet, folder)
    assert (again["changed"], again["removed"]) == ([], [])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times
    write(fleet, tmp_path / "other")
    assert content(tmp_path / "other") == content(folder)


def test_machines_have_the_variables_of_provision(fleet: Path, tmp_path: Path) -> None:
    """What Ansible makes of the inventory is what provision gives it, but for where files lie."""
    folder = tmp_path / "out"
    write(fleet, folder)
    intent, lock = load_fleet(fleet), lockfile.read(lockfile.beside(fleet))
    run_files = plan_fleet.write_run_files(fleet.parent)
    for name, expected in values_in(inventory(intent, lock, run_files)).items():
        listing = values(folder, name)
        for variable, kind in (("gds_modules_builder_key", "builders"), ("gds_modules_archive", "modules")):
            file = Path(expected.pop(variable)).name
            assert listing[variable] == f"{{{{ playbook_dir }}}}/files/{kind}/{file}"
        roles = {key: value for key, value in expected.items() if key.startswith("gds_")}
        assert {key: listing[key] for key in roles} == roles
        assert (listing["ansible_host"], listing["ansible_port"]) == (
            expected["ansible_host"],
            expected["ansible_port"],
        )
        assert "StrictHostKeyChecking=yes" in listing["ansible_ssh_common_args"]
        assert listing["ansible_ssh_args"].startswith("-o StrictHostKeyChecking=yes ")
        assert listing["ansible_host_key_checking"] is True
        assert "ansible_ssh_private_key_file" not in listing
    assert (folder / "files/known_hosts").read_text().count("\n") == 2
    assert list(yaml.safe_load((folder / "hosts.yml").read_text())["all"]["children"]["hosts"]["hosts"]) == ["gpu1"]


def test_no_text_becomes_a_template_but_the_folder_of_the_playbooks() -> None:
    texts = {
        "a": "{{ lookup('pipe', 'id') }}",
        "b": f"{FOLDER}/key",
        "c": f"{FOLDER}/{{% raw %}}",
        "d": "{{ playbook_dir }}",
    }
    written = yaml.load(dump(texts), _Tags)
    assert written == {"a": texts["a"], "b": ("template", "{{ playbook_dir }}/key"), "c": texts["c"], "d": texts["d"]}


class _Tags(yaml.SafeLoader):
    """Texts that Ansible takes as they are are texts; others are marked."""


_Tags.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))
_Tags.add_constructor(
    "tag:yaml.org,2002:str",
    lambda loader, node: ("template", node.value) if "{{" in node.value else loader.construct_scalar(node),
)

CHECK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Ask the packed host program
      gdsdeploy.gds.gds_apply:
        resource: expectation
        desired: {expectation: "{}"}
      check_mode: true
      register: answer
    - ansible.builtin.assert:
        that: answer.changes | map(attribute="subject") | list == ["/etc/gdsdeploy", "/etc/gdsdeploy/expectation.json"]
      when: answer is changed
"""


def test_the_collection_works_where_there_is_no_gdsdeploy(fleet: Path, tmp_path: Path) -> None:
    """Beside the playbooks, and installed by requirements.yml, with nothing but Ansible and PyYAML."""
    folder, elsewhere, missing = tmp_path / "out", tmp_path / "elsewhere", tmp_path / "missing"
    write(fleet, folder)
    missing.mkdir()
    for name in ("gdsdeploy", "pydantic", "platformdirs"):
        (missing / f"{name}.py").write_text(f"raise ModuleNotFoundError('{name} is not installed')\n")
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(missing)}
    for name in ("provision.yml", "remove.yml"):
        play(folder, env, "-i", folder / "hosts.yml", "--syntax-check", name)
    (folder / "check.yml").write_text(CHECK)
    play(folder, env, "-i", "localhost,", "check.yml")

    install = [BIN / "ansible-galaxy", "install", "-r", "requirements.yml"]
    subprocess.run(install, cwd=folder, env=env, check=True, capture_output=True)
    elsewhere.mkdir()
    shutil.copy(folder / "check.yml", elsewhere)
    play(elsewhere, env, "-i", "localhost,", "check.yml")


def play(folder: Path, env: dict[str, str], *words: str | Path) -> None:
    argv = [BIN / "ansible-playbook", *words]
    done = subprocess.run(argv, cwd=folder, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_this_machines_ssh_says_is_carried_as_far_as_it_can_be(fleet: Path, tmp_path: Path) -> None:
    """Names, ports, users and aliases are; a machine in between is the engine's own matter, and said."""
    (fleet.parent / "config").write_text(
        "Host 127.0.0.1\nHostName gpu1.fleet.example\nHostKeyAlias gpus\nUser operator\nProxyJump bastion.example\n"
    )
    (fleet.parent / "known_hosts").write_text("gpus ssh-ed25519 AAAA\n@revoked gpus ssh-ed25519 BBBB\n")
    edit(fleet, lambda value: value.update(ssh={"config": "config", "known_hosts": "known_hosts"}))
    notes = write(fleet, tmp_path / "out")["notes"]
    assert [note.partition(";")[0] for note in notes if note.startswith("gpu1")] == [
        "gpu1: this machine reaches it through another one"
    ]
    listing = values(tmp_path / "out", "gpu1")
    assert (listing["ansible_host"], listing["ansible_user"]) == ("gpu1.fleet.example", "operator")
    assert listing["ansible_become"] is True
    assert "-o HostKeyAlias=gpus" in listing["ansible_ssh_common_args"]
    recorded = (tmp_path / "out/files/known_hosts").read_text().splitlines()
    assert recorded == ["@revoked gpus ssh-ed25519 BBBB", "gpus ssh-ed25519 AAAA"]


def test_what_is_beside_stays_and_what_was_ours_goes_with_its_host(fleet: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    edit(fleet, lambda value: value["hosts"].update(gpu2={"profile": "gds", "address": "127.0.0.1", "port": 22012}))
    first = write(fleet, folder)
    assert any(note.startswith("gpu2: no key of it is on record here") for note in first["notes"])
    (folder / "host_vars/gpu2/own.yml").write_text("site: north\n")
    (folder / "remove.yml").write_text("# changed by hand\n")
    edit(fleet, lambda value: value["hosts"].pop("gpu2"))
    second = write(fleet, folder)
    assert second["removed"] == ["host_vars/gpu2/gdsdeploy.yml"]
    assert second["changed"] == ["hosts.yml", "remove.yml"]
    assert content(folder / "host_vars/gpu2") == {"own.yml": b"site: north\n"}


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda at: (at / "hosts.yml").write_text("all: {}\n"), "hosts.yml: it exists, and gdsdeploy inventory didn't"),
        (lambda at: (at / "hosts.yml").symlink_to("/etc/hosts"), "hosts.yml: it is a link, or behind one"),
        (lambda at: (at / "host_vars").symlink_to("/etc"), "gdsdeploy.yml: it is a link, or behind one"),
        (lambda at: (at / "host_vars").write_text(""), "gdsdeploy.yml: cannot be written: Not a directory"),
        (
            lambda at: (at / "gdsdeploy-inventory.json").write_text("{}"),
            "json: not a list of files by gdsdeploy inventory",
        ),
        (
            lambda at: (at / "gdsdeploy-inventory.json").write_text('{"lock_digest": "", "files": ["../fleet.yml"]}'),
            "fleet.yml: it is a link, or behind one",
        ),
    ],
)
def test_files_of_somebody_else_are_left_alone(
    fleet: Path, tmp_path: Path, prepare: Callable[[Path], object], message: str
) -> None:
    folder = fleet.parent / "out"
    folder.mkdir()
    prepare(folder)
    before, intent = content(folder), fleet.read_text()
    with pytest.raises(FleetInvalid, match=message):
        write(fleet, folder)
    assert content(folder) == before
    assert fleet.read_text() == intent


def test_a_run_without_room_is_gone_on_with(fleet: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write(fleet, tmp_path / "warm")
    program = (tmp_path / "warm" / COLLECTION / "gdsdeploy-host.pyz").stat().st_size

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (program - 1, program - 1))

    argv = [BIN / "gdsdeploy", "inventory", fleet, "-o", folder]
    done = subprocess.run(argv, preexec_fn=limit, env=os.environ, check=False, capture_output=True, text=True)
    assert done.returncode == 10, done.stderr
    assert "cannot be written: File too large" in done.stderr
    # As another version would have written it.
    (folder / COLLECTION / "galaxy.yml").write_text("version: 0.0.1\n")
    write(fleet, folder)
    assert content(folder) == content(tmp_path / "warm")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda value: value["profiles"]["gds"].update(signing={"key": "pkcs11:token=x?pin-value=1234"}),
            "the PIN of a token",
        ),
        (
            lambda value: value.update(mirror={"uri": "https://me:secret@mirror.example/gds", "keyring": "key.gpg"}),
            "leave user, password and parameters out",
        ),
        (
            lambda value: value.update(mirror={"uri": "https://mirror.example/gds", "keyring": "private.gpg"}),
            "not a keyring",
        ),
    ],
)
def test_no_secret_is_written(fleet: Path, tmp_path: Path, change: Any, what: str) -> None:
    edit(fleet, change)
    (fleet.parent / "key.gpg").write_bytes(b"\x99key")
    (fleet.parent / "private.gpg").write_bytes(b"-----BEGIN PGP PRIVATE KEY BLOCK-----")
    with pytest.raises(FleetInvalid, match=what) as caught:
        write(fleet, tmp_path / "out")
    assert "1234" not in str(caught.value)
    assert "me:secret" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_keyrings_travel(fleet: Path, tmp_path: Path) -> None:
    edit(fleet, lambda value: value.update(mirror={"uri": "https://mirror.example/gds", "keyring": "key.gpg"}))
    (fleet.parent / "key.gpg").write_bytes(b"\x99public")
    write(fleet, tmp_path / "out")
    (key,) = values(tmp_path / "out", "gpu1")["gds_repo_keys"]
    assert Path(key["src"].replace("{{ playbook_dir }}", str(tmp_path / "out"))).read_bytes() == b"\x99public"


def test_a_host_that_nobody_builds_for_needs_a_kept_build(fleet: Path, tmp_path: Path) -> None:
    def alone(value: Any) -> None:
        value["profiles"]["gds"].pop("builder")
        value["hosts"]["gpu1"]["modules"] = "receive"

    build = keep_a_build(fleet, tmp_path)
    edit(fleet, alone)
    report = write(fleet, tmp_path / "out")
    assert report["machines"]["gpu1"].startswith("takes its modules from the cache")
    (inside,) = (tmp_path / "out/files/modules").iterdir()
    assert inside.read_bytes() == build
    assert (tmp_path / "out/files/builders/build1.pub").read_text() == ORIGIN.public
    assert (
        values(tmp_path / "out", "gpu1")["gds_modules_archive"] == f"{{{{ playbook_dir }}}}/files/modules/{inside.name}"
    )
    shutil.rmtree(paths.cache())
    with pytest.raises(NotProvisioned, match="no machine builds the modules of gpu1"):
        write(fleet, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_host_that_has_to_be_asked_and_does_not_answer(fleet: Path, tmp_path: Path) -> None:
    edit(fleet, lambda value: value["profiles"]["gds"].update(fit={}))
    with pytest.raises(HostUnreachable, match="gpu1"):
        write(fleet, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- Hosts from an Ansible inventory: what the real ansible-inventory reads, checked before it counts.

INI = """[gpu]
gpu[1:2] ansible_user=root
gpu3 ansible_host=10.0.0.3 ansible_port=2222 ansible_ssh_private_key_file=~/.ssh/fleet
[login]
login1 ansible_connection=local
"""
YAML = """all:
  children:
    cluster:
      children:
        gpu: {hosts: {gpu1: {ansible_user: root}, gpu2: {ansible_user: root}}}
        more: {hosts: {gpu3: {ansible_host: 10.0.0.3, ansible_port: "2222"}}}
      vars: {ansible_ssh_private_key_file: ~/.ssh/fleet}
"""


def write_folder(folder: Path, groups: str = "{gpu: gds}", *, file: str = "hosts", more: str = "") -> Path:
    path = folder / "fleet.yml"
    path.write_text(
        f"version: 1\nprofiles:\n  gds: {{os: debian-13}}\n  other: {{os: debian-12}}\n"
        f"inventory:\n  file: {file}\n  groups: {groups}\n{more}"
    )
    return path


def loaded(folder: Path, inventory: str, groups: str = "{gpu: gds}", *, more: str = "") -> Fleet:
    (folder / "hosts").write_text(inventory)
    return load_fleet(write_folder(folder, groups, more=more), TRUSTED)


def problems(path: Path) -> list[str]:
    with pytest.raises(FleetInvalid) as error:
        load_fleet(path, TRUSTED)
    return error.value.message.replace(f"{path.parent}/", "").splitlines()


def test_an_ini_inventory(tmp_path: Path) -> None:
    fleet = loaded(tmp_path, INI)
    assert list(fleet.hosts) == ["gpu1", "gpu2", "gpu3"]
    assert (fleet.hosts["gpu1"].address, fleet.hosts["gpu1"].user) == (None, "root")
    third = fleet.hosts["gpu3"]
    assert (third.address, third.port, third.identity_file) == ("10.0.0.3", 2222, "~/.ssh/fleet")
    assert {host.profile for host in fleet.hosts.values()} == {"gds"}


def test_a_yaml_inventory_with_groups_in_groups(tmp_path: Path) -> None:
    fleet = loaded(tmp_path, YAML, "{cluster: gds}")
    assert list(fleet.hosts) == ["gpu1", "gpu2", "gpu3"]
    assert fleet.hosts["gpu3"].port == 2222
    assert fleet.hosts["gpu2"].identity_file == "~/.ssh/fleet"
    assert list(loaded(tmp_path, YAML, "{all: gds}").hosts) == ["gpu1", "gpu2", "gpu3"]


def test_a_folder_with_variables_of_groups(tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "a.ini").write_text("[gpu]\ngpu1\n")
    (tmp_path / "hosts" / "group_vars").mkdir()
    (tmp_path / "hosts" / "group_vars" / "gpu.yml").write_text("ansible_host: 10.0.0.7\n")
    assert load_fleet(write_folder(tmp_path)).hosts["gpu1"].address == "10.0.0.7"


def program(folder: Path, text: str) -> Path:
    path = folder / "hosts"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return write_folder(folder)


def test_a_dynamic_inventory(tmp_path: Path) -> None:
    value = {"gpu": {"hosts": ["gpu1"]}, "_meta": {"hostvars": {"gpu1": {"ansible_host": "10.0.0.1"}}}}
    path = program(tmp_path, f"echo '{json.dumps(value)}'")
    assert load_fleet(path, TRUSTED).hosts["gpu1"].address == "10.0.0.1"


def test_a_dynamic_inventory_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, with what it started: its own child would otherwise stay."""
    # Enough for ansible-inventory to start the program, on a busy machine too.
    monkeypatch.setattr(ansible_inventory, "SECONDS", 10)
    path = program(tmp_path, f"sleep 300 &\necho $$ $! > {tmp_path}/pids\nwait")
    begin = time.monotonic()
    assert problems(path) == ["hosts: ansible-inventory had not ended after 10 s"]
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() - begin < 60, "the program, or what it started, is still there"
        time.sleep(0.1)


@pytest.mark.parametrize("text", ["[gpu\nx\n", "exit 3", "echo '[1, 2]'", "echo not json"])
def test_what_ansible_inventory_does_not_take(text: str, tmp_path: Path) -> None:
    if text.startswith("["):
        (tmp_path / "hosts").write_text(text)
        path = write_folder(tmp_path)
    else:
        path = program(tmp_path, text)
    lines = problems(path)
    assert lines[0] == "hosts: ansible-inventory cannot read it"
    assert any("  | " in line for line in lines)


def test_a_file_that_is_not_there_or_would_be_a_list(tmp_path: Path) -> None:
    assert problems(write_folder(tmp_path)) == ["hosts: there is no such inventory"]
    assert "without commas" in problems(write_folder(tmp_path, file='"a,b"'))[0]


def test_every_problem_names_group_and_host(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(
        '[gpu]\ngpu1 ansible_host=\'{{ lookup("pipe", "touch CANARY") }}\'\ngpu2 ansible_user=Root\n'
        "gpu3 ansible_port=77777\ngpu4 ansible_connection=local\ngpu5 ansible_ssh_private_key_file=keys/a\n-x\n"
        "[more]\ngpu6\n[other]\ngpu6\n"
    )
    lines = problems(write_folder(tmp_path, "{gpu: gds, more: gds, other: other, gpus: gds}"))
    assert [line.removeprefix("hosts: group ").partition(" write ")[0] for line in lines] == [
        'gpu, host gpu1: ansible_host (\'{{ lookup("pipe", "touch CANARY") }}\'):',
        "gpu, host gpu2: ansible_user ('Root'):",
        "gpu, host gpu3: ansible_port (77777): Input should be less than or equal to 65535",
        "gpu, host gpu4: ansible_connection is 'local', and gdsdeploy reaches hosts over SSH only",
        "gpu, host gpu5: ansible_ssh_private_key_file is 'keys/a':",
        f"gpu, host -x: its name: {WORDS[r'^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$']}",
        "other, host gpu6: its profile is other here and gds in group more",
        "hosts: there is no group 'gpus' with hosts; did you mean 'gpu'?",
    ]
    assert not Path("CANARY").exists()
    assert not (tmp_path / "CANARY").exists()


def test_groups_without_hosts_and_profiles_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("[gpu]\n[login]\nlogin1\n")
    assert problems(write_folder(tmp_path)) == ["hosts: there is no group 'gpu' with hosts"]
    (tmp_path / "hosts").write_text("[gpu]\n")
    assert problems(write_folder(tmp_path, "{all: gds}")) == ["hosts: no host is in all"]
    (tmp_path / "hosts").write_text(INI)
    lines = problems(write_folder(tmp_path, "{gpu: none}"))
    assert "fleet.yml:7:17: inventory.groups.gpu: there is no profile 'none'" in lines


def test_a_hosts_own_entry_counts_before_the_inventory(tmp_path: Path) -> None:
    """Also where the inventory's is one that a fleet file can't have."""
    own = "hosts:\n  login1: {profile: other, address: 10.0.0.9}\n  gpu1: {profile: other, labels: {rack: r1}}\n"
    fleet = loaded(tmp_path, INI, "{gpu: gds, login: gds}", more=own)
    assert fleet.hosts["login1"].address == "10.0.0.9"
    assert (fleet.hosts["gpu1"].profile, fleet.hosts["gpu1"].user) == ("other", None)
    assert fleet.hosts["gpu2"].profile == "gds"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hosts.ini", "inventory: a mapping is needed here"),
        ("{file: hosts.ini}", "inventory.groups: this key is required"),
        ("{file: hosts.ini, groups: {}}", "inventory.groups: dictionary should have at least 1 item"),
        ("{file: hosts.ini, groups: {gpu: 1}}", "inventory.groups.gpu: text is needed here"),
        ("{file: hosts.ini, groups: {gpu: gds}, limit: x}", "inventory.limit: unknown key"),
    ],
)
def test_the_key_itself_is_checked_first(source: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text(f"version: 1\nprofiles: {{gds: {{os: debian-13}}}}\ninventory: {source}\nhosts: {{a: gds}}\n")
    assert any(words in line and line.startswith("fleet.yml:3:") for line in problems(path))


def test_ansible_settings_of_the_folder_and_the_shell_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ansible.cfg").write_text("[inventory]\nenable_plugins = nothing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANSIBLE_INVENTORY_ENABLED", "nothing")
    assert list(loaded(tmp_path, INI).hosts) == ["gpu1", "gpu2", "gpu3"]
