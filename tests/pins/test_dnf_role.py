"""The roles on a system of dnf's: the real Ansible, dnf and rpm, above this machine's folders, in memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.platform import stack_platform_for
from tests.pins.inplace import in_place
from tests.pins.test_dnf_pins import BASE, NEWER, STACK, plugins
from tests.repos.archive import Key, Server, serve
from tests.repos.rpmarchive import RpmArchive, Stream, build

__all__ = ["plugins"]
ROOT = Path(__file__).parents[2]
_OURS = [rpm for rpm in STACK if rpm.version.startswith("3:")]
STREAMS = (
    Stream("nvidia-driver", "580-open", tuple(_OURS)),
    Stream("nvidia-driver", "open-dkms", tuple(rpm for rpm in NEWER if rpm.version.startswith("3:"))),
)
#: Everything that is written lands in memory, over this machine's own folders, and is gone with the namespace.
IN_PLACE = """
mkdir -p /etc/dnf/modules.d /etc/dnf/plugins /etc/yum.repos.d /var/lib/gdsdeploy
mount -t tmpfs tmpfs /var/lib/rpm
rpm --justdb --nodeps --noscripts --nosignature --install "$1"/all/*.rpm.installed
cp -r "$1/etc/." /etc/
shift
status=0; "$@" || status=$?
cd /etc
cat yum.repos.d/gdsdeploy.repo dnf/plugins/versionlock.list dnf/modules.d/nvidia-driver.module 2>/dev/null || :
exit $status
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, signing_key: Key, plugins: Path) -> Iterator[tuple[Path, Server]]:
    """A folder with the repository, what is installed, and the configuration of the host."""
    www = tmp_path_factory.mktemp("role")
    RpmArchive(build([*STACK, *NEWER, *BASE], www / "all"), streams=STREAMS).publish(signing_key)
    for rpm in [*STACK, *BASE]:
        shutil.copy(www / "all" / rpm.file, www / "all" / (rpm.file + ".installed"))
    (www / "key").write_text(signing_key.armoured())
    files = {
        "dnf/dnf.conf": f"[main]\npluginpath={plugins}\nmodule_platform_id=platform:el9\ngpgcheck=1\nbest=0\n",
        "dnf/plugins/versionlock.conf": "[main]\nenabled=1\nlocklist=/etc/dnf/plugins/versionlock.list\n",
        "dnf/plugins/versionlock.list": "htop-0:3.2.1-1.*\n",
        "dnf/modules.d/nvidia-driver.module": "[nvidia-driver]\nname=nvidia-driver\nstream=open-dkms\n"
        "profiles=\nstate=enabled\n",
    }
    for name, text in files.items():
        (www / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (www / "etc" / name).write_text(text)
    with serve(www) as server:
        yield www, server


def converge(site: tuple[Path, Server], tmp: Path, plugins: Path, rounds: int = 1, **changed: Any) -> tuple[int, str]:
    """Run both roles ``rounds`` times; the exit status and what Ansible and the host's files say."""
    www, server = site
    pins = [{"package": rpm.name, "version": rpm.version, "sha256": "0" * 64} for rpm in STACK]
    key = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-cuda"
    index = {
        "repository": "cuda",
        "uri": f"{server.uri}/all",
        "suite": "",
        "components": [],
        "host_keyring": key,
        "exclusive": True,
    }
    given = {
        "gds_repo_manager": "dnf",
        "gds_repo_indices": [index],
        "gds_repo_keys": [{"src": str(www / "key"), "dest": key}],
        "gds_repo_pins": pins,
        "gds_repo_modules": ["nvidia-driver:580-open"],
        "gds_repo_deny": list(stack_platform_for("rhel-9").kept_out()),
        "gds_packages_manager": "dnf",
        "gds_packages_wanted": [{k: pin[k] for k in ("package", "version")} for pin in pins],
        "ansible_python_interpreter": "/usr/bin/python3",
        **changed,
    }
    # Ansible would take this machine's own package manager.
    dnf = {"ansible.builtin.dnf": {"use_backend": "dnf4"}}
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": given, "module_defaults": dnf}
    plays = [{**play, "roles": ["gds_repo", "gds_packages"]}] * rounds
    (tmp / "play.yml").write_text(yaml.safe_dump(plays))
    env = {
        **os.environ, "ANSIBLE_ROLES_PATH": str(ROOT / "roles"), "ANSIBLE_LOCALHOST_WARNING": "0", "LC_ALL": "C.UTF-8",
        "HOME": str(tmp), "PYTHONPATH": str(plugins), "no_proxy": "127.0.0.1", "ANSIBLE_NOCOLOR": "1",
    }  # fmt: skip
    ansible = [Path(sys.executable).parent / "ansible-playbook", "-i", "localhost,", tmp / "play.yml"]
    argv = in_place(IN_PLACE, www, *ansible, over=("etc", "var"), processes=True)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_the_roles_pin_a_host_and_find_nothing_to_do_the_second_time(
    site: tuple[Path, Server], tmp_path: Path, plugins: Path
) -> None:
    status, said = converge(site, tmp_path, plugins, rounds=2)
    assert status == 0, said
    first, second = said.split("PLAY [localhost]")[1:]
    assert len(re.findall(r"^changed:", first, re.MULTILINE)) >= 5
    assert re.findall(r"^changed:", second.partition("PLAY RECAP")[0], re.MULTILINE) == []
    assert "htop-0:3.2.1-1.*" in second, "locks of others stay"
    assert "libcufile-12-9-0:1.14.1.1-1.*" in second
    assert "repo_gpgcheck=1" in second
    assert "stream=580-open" in second


def test_a_version_that_is_gone_leaves_the_host_as_it_was(
    site: tuple[Path, Server], tmp_path: Path, plugins: Path
) -> None:
    pins = [{"package": "libcufile-12-9", "version": "1.14.0.9-1", "sha256": "0" * 64}]
    status, said = converge(site, tmp_path, plugins, gds_repo_pins=pins)
    assert status == 2
    assert "dnf would not take exactly the locked versions of: libcufile-12-9=0:1.14.0.9-1" in said
    files = said.partition("PLAY RECAP")[2]
    assert "[gdsdeploy-cuda]" not in files
    assert "gdsdeploy" not in files.partition("htop")[2]
