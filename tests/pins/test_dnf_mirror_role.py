"""The host program with a mirror of signed packages: dnf's plugin comes from there too."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.mirror.host_vars import HOST_KEY
from tests.pins.test_dnf_pins import BASE, NEWER, STACK, plugins
from tests.pins.test_dnf_role import STREAMS, changes, converge
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
    key = Key.generate(tmp_path_factory.mktemp("maker") / "home", "maker")
    yield key
    key.forget()


@pytest.fixture(scope="module")
def mirror(
    tmp_path_factory: pytest.TempPathFactory, signing_key: Key, maker: Key, plugins: Path
) -> Iterator[tuple[Path, Server]]:
    """A folder with a mirror, what is installed, and a host's configuration without the plugin."""
    www = tmp_path_factory.mktemp("mirror")
    build([*STACK, *BASE], www / "all")
    build([rpm for rpm in NEWER if rpm.name.startswith("gds-tools")], www / "newer")
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


def mirrored(www: Path, server: Server, *makers: str) -> dict[str, Any]:
    """A document's repositories: the mirror alone, and the keys of its packages' makers."""
    index = {
        "repository": "mirror", "uri": f"{server.uri}/all", "suite": "", "components": [], "host_keyring": HOST_KEY,
        "package_keys": list(makers), "exclusive": False,
    }  # fmt: skip
    files = {HOST_KEY: www / "key", MAKER_KEY: www / "maker"}
    keys = [{"dest": k, "content": base64.b64encode(v.read_bytes()).decode()} for k, v in files.items()]
    return {"indices": [index], "keys": keys}


def test_a_host_gets_all_from_the_mirror(mirror: tuple[Path, Server], plugins: Path, tmp_path: Path) -> None:
    (checked, done, again), files = converge(mirror, tmp_path, plugins, **mirrored(*mirror, MAKER_KEY))
    assert "install python3-dnf-plugin-versionlock" in changes(checked)
    assert changes(done) == changes(checked)
    assert changes(again) == []
    assert f"gpgkey=file://{HOST_KEY} file://{MAKER_KEY}\n" in files
    assert "libcufile-12-9-0:1.14.1.1-1.*" in files
    assert "stream=580-open" in files


def test_packages_of_another_maker_are_not_installed(
    mirror: tuple[Path, Server], plugins: Path, tmp_path: Path
) -> None:
    (_, done, _), files = converge(mirror, tmp_path, plugins, **mirrored(*mirror))
    assert done["error"]["kind"] == "failed"
    assert "GPG" in done["error"]["message"]
    assert "python3-dnf-plugin-versionlock" in done["error"]["message"]
    assert "# BEGIN gdsdeploy" not in files


#: One package is missing, and one is newer than the lock; where the files are, the folder before says.
OTHERWISE = """
rpm --erase --justdb --nodeps libcufile-12-9
rpm --upgrade --justdb --nodeps --nosignature {}/newer/gds-tools-12-9-1.14.2*.rpm
"""
UNINSTALL = """
PYTHONPATH=$1:$PYTHONPATH python3 - <<'END'
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import managers
packages = registry.resource("packages")
managers.database.manager = lambda _: "rpm"
print([f"{c.kind} {c.subject}" for c in packages.revert(ManagedHost(check=True))])
print([f"{c.kind} {c.subject}" for c in packages.revert(ManagedHost())])
END
cat /var/lib/gdsdeploy/installed; rpm -qa 'libcufile*' 'gds-tools*'
"""


def test_packages_come_in_the_locked_version_up_and_down_and_go_again(
    mirror: tuple[Path, Server], tmp_path: Path, plugins: Path
) -> None:
    before = OTHERWISE.format(mirror[0])
    (checked, done, again), files = converge(
        mirror, tmp_path, plugins, before, UNINSTALL, **mirrored(*mirror, MAKER_KEY)
    )
    assert set(changes(checked)[-2:]) == {"downgrade gds-tools-12-9", "install libcufile-12-9"}
    assert changes(done) == changes(checked)
    assert changes(again) == []
    assert files.count("['remove libcufile-12-9', 'remove gds-tools-12-9']") == 2, "dnf removes what needs it, too"
    assert "\nlibcufile-12-9-1" not in files
    assert "\ngds-tools-12-9-1" not in files
