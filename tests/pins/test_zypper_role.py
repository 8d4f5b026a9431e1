"""The roles on a system of zypper's: the real Ansible, zypper and rpm, above this machine's folders, in memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy import roletasks
from gdsdeploy.inventory import HOSTS
from gdsdeploy.repo import zyppins
from tests.pins.inplace import in_place
from tests.pins.test_zypper_pins import denied, pins
from tests.pins.zyppmachine import AROUND, NEWER, STACK
from tests.repos.archive import Key, Server, serve
from tests.repos.rpmarchive import Rpm, RpmArchive, build

ROOT = Path(__file__).parents[2]
KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-cuda"
#: What the roles have to install; the rest of the stack is there.
MISSING = {"libcufile-12-9", "gds-tools-12-9"}
THEIRS = "type: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: htop\n"
LOCKED = "libcufile-12-9-1.14.1.1-1.x86_64"
#: Everything that is written lands in memory, over this machine's own folders, and is gone with the namespace.
IN_PLACE = """
mkdir -p /etc/zypp/repos.d /etc/products.d /etc/pki/rpm-gpg /var/lib/gdsdeploy /var/cache/zypp
mount -t tmpfs tmpfs /var/cache/zypp
# Debian's rpm has its database in the home directory; libzypp looks where SUSE has it.
mount -t tmpfs tmpfs /var/lib/rpm
ln -s /var/lib/rpm "$HOME/.rpmdb"
rpm --justdb --nodeps --noscripts --nosignature --install "$1"/installed/*.rpm
cp -r "$1/etc/." /etc/
shift
exec "$@"
"""
#: What is there after a play, for the test to read.
KEEP = """
mkdir "$1"
cd /etc/zypp
cp locks "$1"
cp repos.d/gdsdeploy.repo gdsdeploy-locks "$1" 2>/dev/null || :
rpm --query --all > "$1/installed"
"""


@pytest.fixture(scope="module")
def zypp_site(tmp_path_factory: pytest.TempPathFactory, signing_key: Key) -> Iterator[tuple[Path, Server]]:
    """A folder with the repository of signed packages, what is installed, and the configuration of the host."""
    www = tmp_path_factory.mktemp("zypprole")
    build([*STACK, *NEWER, *AROUND], www / "all")
    defines = {"__gpg": "/usr/bin/gpg", "_gpg_name": signing_key.fingerprint, "_gpg_path": signing_key.home}
    options = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
    signed = [www / "all" / rpm.file for rpm in STACK if rpm.name in MISSING]
    subprocess.run(["rpmsign", "--addsign", *options, *signed], check=True, capture_output=True)
    RpmArchive(www / "all").publish(signing_key)
    (www / "installed").mkdir()
    for rpm in [*STACK, *AROUND, Rpm("python3", "3.11.2-1"), Rpm("htop", "3.2.1-1")]:
        if rpm.name not in MISSING and (www / "all" / rpm.file).exists():
            shutil.copy(www / "all" / rpm.file, www / "installed")
    (www / "key").write_text(signing_key.armoured())
    (www / "etc/zypp").mkdir(parents=True)
    (www / "etc/zypp/locks").write_text(THEIRS)
    (www / "etc/zypp/zypp.conf").write_text("[main]\narch = x86_64\nmultiversion = provides:multiversion(kernel)\n")
    with serve(www) as server:
        yield www, server


def variables(site: tuple[Path, Server], **changed: Any) -> dict[str, Any]:
    www, server = site
    return {
        "gds_repo_manager": "zypper",
        "gds_repo_indices": [
            {
                "repository": "cuda", "uri": f"{server.uri}/all", "suite": "", "components": [],
                "host_keyring": KEY, "exclusive": True,
            }
        ],
        "gds_repo_keys": [{"src": str(www / "key"), "dest": KEY}],
        "gds_repo_pins": [{**pin, "sha256": "0" * 64} for pin in pins(STACK)],
        "gds_repo_deny": list(denied()),
        "gds_packages_manager": "zypper",
        "gds_packages_wanted": pins(STACK),
        "ansible_python_interpreter": "/usr/bin/python3",
        **changed,
    }  # fmt: skip


@dataclass(frozen=True)
class Played:
    """What Ansible said of a play, and what it left: file → text, ``installed`` for rpm's list."""

    said: str
    files: dict[str, str]

    @property
    def changed(self) -> int:
        return len(re.findall(r"^changed:", self.said, re.MULTILINE))


@pytest.fixture(scope="module")
def played(zypp_site: tuple[Path, Server], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """One host through all of these, in this order: Ansible takes its time to start."""
    tmp = tmp_path_factory.mktemp("zyppplay")
    gone = [{"package": "libcufile-12-9", "version": "1.14.0.9-1", "sha256": "0" * 64}]
    recorded = {"content": b64encode(b"libcufile-12-9\ngds-tools-12-9\nnever-installed\n").decode()}
    roles = [{"ansible.builtin.include_role": {"name": name}} for name in ("gds_repo", "gds_packages")]
    remove = {"ansible.builtin.include_role": {"name": "gds_remove", "tasks_from": "zypper"}}
    plays: dict[str, dict[str, Any]] = {
        "checked": {"tasks": roles},
        "gone": {"tasks": roles, "vars": {"gds_repo_pins": gone}},
        "first": {"tasks": roles},
        "second": {"tasks": roles},
        "removed": {"tasks": [{**remove, "vars": {"__gds_remove_installed": recorded}}]},
    }
    book = [
        {
            "hosts": "localhost", "connection": "local", "gather_facts": False, "name": name, **play,
            "vars": {**variables(zypp_site), **play.get("vars", {})},
            "tasks": [
                {"block": play["tasks"], "rescue": [{"ansible.builtin.debug": {"msg": "failed as a whole"}}]},
                {
                    "ansible.builtin.command": {"argv": ["sh", "-c", KEEP, "sh", str(tmp / name)]},
                    "changed_when": False, "check_mode": False,
                },
            ],
        }
        for name, play in plays.items()
    ]  # fmt: skip
    (tmp / "check.yml").write_text(yaml.safe_dump(book[:1]))
    (tmp / "play.yml").write_text(yaml.safe_dump(book[1:]))
    env = {
        **os.environ, "ANSIBLE_ROLES_PATH": str(ROOT / "roles"), "ANSIBLE_LOCALHOST_WARNING": "0", "LC_ALL": "C.UTF-8",
        "HOME": str(tmp), "no_proxy": "127.0.0.1", "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PIPELINING": "1", "ZYPP_LOGFILE": os.devnull,
    }  # fmt: skip
    ansible = f"{Path(sys.executable).parent}/ansible-playbook -i localhost, "
    both = ["sh", "-c", f"{ansible} --check {tmp}/check.yml && {ansible} {tmp}/play.yml"]
    argv = in_place(IN_PLACE, zypp_site[0], *both, over=("etc", "var"), processes=True)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.split(
        r"^PLAY \[.*", re.sub(r"^PLAY RECAP.*\n.*\n", "", done.stdout, flags=re.MULTILINE), flags=re.MULTILINE
    )[1:]
    read = {name: {file.name: file.read_text() for file in (tmp / name).iterdir()} for name in plays}
    return {name: Played(text, read[name]) for name, text in zip(plays, said, strict=True)}


def untouched(files: dict[str, str]) -> bool:
    return files.keys() == {"locks", "installed"} and files["locks"] == THEIRS and LOCKED not in files["installed"]


def test_the_roles_lock_a_zypper_host_and_find_nothing_to_do_the_second_time(played: dict[str, Played]) -> None:
    first, second = played["first"], played["second"]
    assert first.changed >= 6, first.said
    assert "failed as a whole" not in first.said + second.said
    assert second.changed == 0, second.said
    assert first.files == second.files
    assert zyppins.merged(first.files["locks"], first.files["gdsdeploy-locks"], "") == THEIRS
    assert "version: != 1.14.1.1-1\nsolvable_name: libcufile-12-9\n" in first.files["locks"]
    assert "pkg_gpgcheck=1" in first.files["gdsdeploy.repo"]
    assert LOCKED in first.files["installed"], "from a signed package"


def test_check_mode_changes_nothing_on_a_zypper_host(played: dict[str, Played]) -> None:
    checked = played["checked"]
    assert checked.changed >= 4, checked.said
    assert "would install" in checked.said
    assert "failed as a whole" not in checked.said
    assert untouched(checked.files)


def test_what_is_taken_back_leaves_the_locks_of_others(played: dict[str, Played]) -> None:
    removed = played["removed"]
    assert "failed as a whole" not in removed.said, removed.said
    assert removed.files["locks"] == THEIRS
    assert LOCKED not in removed.files["installed"]
    assert "nvidia-driver-cuda-3:580" not in removed.files["installed"]
    assert "nvidia-driver-cuda-580.65.06" in removed.files["installed"], "it was there before"


def test_a_version_that_is_gone_leaves_the_zypper_host_as_it_was(played: dict[str, Played]) -> None:
    gone = played["gone"]
    assert "zypper would not take the locked versions: " in gone.said, gone.said
    assert "libcufile-12-9=1.14.0.9-1" in gone.said
    assert untouched(gone.files)


@pytest.mark.parametrize("there", ["", THEIRS])
def test_the_plan_reads_the_locks_out_of_the_role(zypp_site: tuple[Path, Server], there: str) -> None:
    every = [task for task in roletasks.tasks("provision", HOSTS, variables(zypp_site)) if task.role == "gds_repo"]
    tasks = [task for task in every if roletasks.path_of(task) == "/etc/zypp/locks" and "Lock the" in task.name]
    assert set(roletasks.questions(tasks, every)) == {"__gds_repo_locks", "__gds_repo_locked"}
    told = {name: {"stdout": text, "rc": 0} for name, text in (("__gds_repo_locks", there), ("__gds_repo_locked", ""))}
    item = roletasks.managed(tasks[0], told)
    assert item is not None
    assert item.mode == "0644"
