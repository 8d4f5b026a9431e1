"""The repository role with a mirror: dnf's plugin comes from there too, checked with its maker's key."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.mirrored import HOST_KEY
from tests.pins.test_dnf_pins import BASE, STACK, plugins
from tests.pins.test_dnf_role import STREAMS, converge
from tests.repos.archive import Key, Server, serve
from tests.repos.rpmarchive import RpmArchive, build

__all__ = ["plugins"]
MAKER_KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-baseos"
#: As RHEL's package, but for its places; the plugin is the real one.
PLUGIN = """\
Name: python3-dnf-plugin-versionlock
Version: 4.3.0
Release: 16.el9
Summary: Nothing
License: None
BuildArch: noarch
%description
Nothing.
%install
mkdir -p %{buildroot}/etc/dnf/plugins && cd %{buildroot}/etc/dnf/plugins
printf '[main]\\nenabled=1\\nlocklist=/etc/dnf/plugins/versionlock.list\\n' >versionlock.conf
touch versionlock.list
install -D -m 644 %{plugin}/versionlock.py %{buildroot}/etc/dnf/code/versionlock.py
%files
/etc/dnf/plugins
/etc/dnf/code
"""


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """Signs the packages."""
    made = Key.generate(tmp_path_factory.mktemp("maker") / "home", "maker")
    yield made
    made.forget()


@pytest.fixture(scope="module")
def mirror(
    tmp_path_factory: pytest.TempPathFactory, signing_key: Key, maker: Key, plugins: Path
) -> Iterator[tuple[Path, Server]]:
    """A folder with a mirror, what is installed, and a host's configuration without the plugin."""
    www = tmp_path_factory.mktemp("mirror")
    build([*STACK, *BASE], www / "all")
    for rpm in [*STACK, *BASE]:
        shutil.copy(www / "all" / rpm.file, www / "all" / (rpm.file + ".installed"))
    (www / "plugin.spec").write_text(PLUGIN)
    defines = {
        "_topdir": www / "build", "_rpmdir": www / "all",
        "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        "plugin": plugins, "__os_install_post": "%{nil}", "__gpg": "/usr/bin/gpg", "_gpg_name": maker.fingerprint,
        "_gpg_path": maker.home,
    }  # fmt: skip
    options = [word for key, value in defines.items() for word in ("--define", f"{key} {value}")]
    subprocess.run(["rpmbuild", "-bb", "--quiet", *options, www / "plugin.spec"], check=True, capture_output=True)
    subprocess.run(["rpmsign", "--addsign", *options, *(www / "all").glob("*.rpm")], check=True, capture_output=True)
    RpmArchive(www / "all", streams=STREAMS[:1]).publish(signing_key)
    (www / "key").write_text(signing_key.armoured())
    (www / "maker").write_text(maker.armoured())
    (www / "etc/dnf").mkdir(parents=True)
    (www / "etc/dnf/dnf.conf").write_text(
        "[main]\npluginpath=/etc/dnf/code\nmodule_platform_id=platform:el9\ngpgcheck=1\nbest=0\n"
    )
    with serve(www) as server:
        yield www, server


def test_a_host_gets_all_from_the_mirror(mirror: tuple[Path, Server], plugins: Path, tmp_path: Path) -> None:
    www, server = mirror
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
    index = {
        "repository": "mirror", "uri": f"{server.uri}/all", "suite": "", "components": [], "host_keyring": HOST_KEY,
        "package_keys": [MAKER_KEY], "exclusive": False,
    }  # fmt: skip
    own = {"src": str(www / "key"), "dest": HOST_KEY}
    brought = {"src": str(www / "maker"), "dest": MAKER_KEY}
    status, said = converge((www, server), homes[0], plugins, gds_repo_indices=[index], gds_repo_keys=[own, brought])
    assert status == 0, said
    task = said.partition("Have the plugin that locks versions")[2].partition("TASK")[0]
    assert "changed: [localhost]" in task
    assert f"gpgkey=file://{HOST_KEY} file://{MAKER_KEY}\n" in said
    assert "libcufile-12-9-0:1.14.1.1-1.*" in said
    assert "stream=580-open" in said
    index["package_keys"] = []
    status, said = converge((www, server), homes[1], plugins, gds_repo_indices=[index], gds_repo_keys=[own, brought])
    assert status == 2
    reason = said.partition("Say what was in the way]")[2]
    assert "Failed to validate GPG signature for python3-dnf-plugin-versionlock" in reason
    assert "[gdsdeploy-mirror]" not in reason
