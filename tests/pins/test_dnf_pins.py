"""The stack on a host with dnf: it comes in the locked versions, and nothing that people do with dnf moves it.

The real dnf and rpm, with the real versionlock plugin: on a system of their own, or above this machine's folders.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply.packages import dnf
from gdsdeploy.host.apply.packages.managers import Index, Pin
from gdsdeploy.mirror.host_sources import HOST_KEY
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.zipapp import hostapp
from tests.pins.inplace import in_place
from tests.repos import rpmstack
from tests.repos.archive import Key, Server, serve
from tests.repos.rpmarchive import Rpm, RpmArchive, Stream, build

BASE = [rpm for rpm in rpmstack.BASEOS if not rpm.name.startswith("kernel")]
#: On the host: an older release of the locked branch, with all that belongs to it.
STACK = [
    *(rpm for rpm in rpmstack.D580_OLD if rpm.name not in {"kmod-nvidia-latest-dkms", "cuda-drivers", "nvidia-open"}),
    *(rpm for rpm in rpmstack.gds("12.9", "1.14.1.1") if rpm.name in {"libcufile-12-9", "gds-tools-12-9"}),
    *(rpm for rpm in rpmstack.nvidia_fs("2.25.7") if rpm.name == "nvidia-fs-dkms"),
    *rpmstack.kernel(rpmstack.KERNELS[0])[:4],
]
NEWER = [
    *rpmstack.D580, *rpmstack.D590, *rpmstack.gds("12.9", "1.14.2.2"), *rpmstack.nvidia_fs("2.26.6"),
    *rpmstack.kernel(rpmstack.KERNELS[2]), Rpm("dkms", "3.2.1-1.el9", "noarch"),
    Rpm("libnvidia-container1", "1.18.0-1"),
    Rpm("nvidia-container-toolkit", "1.18.0-1", requires=("libnvidia-container1 >= 1.18.0-1",)),
]  # fmt: skip
COMMANDS = (
    "upgrade",
    "upgrade nvidia-driver-cuda",
    "distro-sync",
    "install --allowerasing cuda-12-9",
    "install --allowerasing cuda-drivers",
    "install nvidia-open",
    "install nvidia-gds-12-9",
    "install nvidia-fs",
    "install --allowerasing kmod-nvidia-latest-dkms",
    "upgrade kernel kernel-core kernel-modules",
)


@dataclass(frozen=True)
class DnfMachine:
    """``root`` holds the installed system and its configuration."""

    root: Path
    plugins: Path

    def would(self, *words: str) -> dict[str, str]:
        """Package → version of everything in the transaction that ``dnf WORDS`` proposes; removals say ``removed``."""
        argv = [
            "dnf", "--assumeno", f"--installroot={self.root}", f"--config={self.root}/etc/dnf/dnf.conf",
            "--releasever=9", "--forcearch=x86_64", *words,
        ]  # fmt: skip
        # The plugin's parts lie beside it, and gpg keeps its homes below the cache.
        env = {"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C", "PYTHONPATH": str(self.plugins), "no_proxy": "127.0.0.1"}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=300)
        output = done.stdout + done.stderr
        assert done.returncode in (0, 1), output
        table = re.split(r"^(?:Skipping packages|Transaction Summary)", output, maxsplit=1, flags=re.MULTILINE)[0]
        changed, _, removed = table.partition("\nRemoving")
        rows = r"^ (\S+)\s+(?:x86_64|noarch)\s+(\S+)\s+\S+\s+[0-9.]+ \S$"
        removals = [name for name, _ in re.findall(rows, removed, re.MULTILINE)]
        assert "Dependencies resolved." in output or re.search(
            r"^(Error|Problem|No match|Unable)", output, re.MULTILINE
        ), output
        return {**dict(re.findall(rows, changed, re.MULTILINE)), **dict.fromkeys(removals, "removed")}

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The versionlock plugin of Debian's archive, unpacked: the dnf of this machine stays as it is."""
    folder = tmp_path_factory.mktemp("plugins")
    subprocess.run(["apt-get", "--quiet", "download", "dnf-plugins-core"], cwd=folder, check=True, capture_output=True)
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    plugin_folder = folder / "versionlock"
    plugin_folder.mkdir()
    source = folder / "usr/lib/python3/dist-packages"
    code = (source / "dnf-plugins/versionlock.py").read_text()
    # On a host its parts are in Python's own folder.
    own = f"import sys; sys.path.insert(0, {str(plugin_folder)!r})\nfrom dnfpluginscore "
    assert "from dnfpluginscore " in code
    (plugin_folder / "versionlock.py").write_text(code.replace("from dnfpluginscore ", own, 1))
    (source / "dnfpluginscore").rename(plugin_folder / "dnfpluginscore")
    return plugin_folder


@pytest.fixture(scope="module")
def rpm_served(tmp_path_factory: pytest.TempPathFactory, signing_key: Key) -> Iterator[Server]:
    www = tmp_path_factory.mktemp("rpms")
    RpmArchive(build([*STACK, *NEWER, *BASE], www / "all")).publish(signing_key)
    (www / "key").write_text(signing_key.armoured())
    with serve(www) as server:
        yield server


@pytest.fixture
def machine_with_dnf(
    tmp_path: Path, rpm_served: Server, plugins: Path, tmp_path_factory: pytest.TempPathFactory
) -> DnfMachine:
    """The stack is installed; a repository of the administrator's offers everything that is newer."""
    machine = DnfMachine(tmp_path / "root", plugins)
    pool = next(path for path in tmp_path_factory.getbasetemp().glob("rpms*/all"))
    machine.write(
        "etc/dnf/dnf.conf",
        f"[main]\npluginpath={plugins}\npluginconfpath={machine.root}/etc/dnf/plugins\nreposdir={machine.root}/etc/yum.repos.d\n"
        f"cachedir={tmp_path}/cache\nlogdir={tmp_path}/log\npersistdir={tmp_path}/persist\nmodule_platform_id=platform:el9\n"
        # Like RHEL's kernels.
        "installonlypkgs=kernel kernel-core kernel-modules kernel-modules-core\ninstall_weak_deps=0\nbest=0\n",
    )
    machine.write(
        "etc/dnf/plugins/versionlock.conf",
        f"[main]\nenabled=1\nlocklist={machine.root}/etc/dnf/plugins/versionlock.list\n",
    )
    machine.write("etc/dnf/plugins/versionlock.list", "")
    machine.write(
        "etc/yum.repos.d/site.repo",
        f"[site]\nname=site\nbaseurl={rpm_served.uri}/all\nenabled=1\ngpgcheck=1\nrepo_gpgcheck=0\n",
    )
    files = [str(pool / rpm.file) for rpm in [*STACK, *BASE]]
    argv = [
        "rpm",
        f"--root={machine.root}",
        "--justdb",
        "--nodeps",
        "--noscripts",
        "--nosignature",
        "--install",
        *files,
    ]
    subprocess.run(argv, check=True, capture_output=True)
    return machine


PINS = [Pin(rpm.name, rpm.version) for rpm in STACK]


def pin(machine: DnfMachine) -> None:
    lines = dnf.locks(PINS, stack_platform_for("rhel-9").kept_out)
    machine.write("etc/dnf/plugins/versionlock.list", dnf.merge_locks("", lines))


def moves(machine: DnfMachine, command: str) -> dict[str, str]:
    names = {rpm.name for rpm in STACK}
    foreign = re.compile(r"(kmod-)?nvidia-(?!driver-assistant)|libnvidia|libcufile|gds-tools|cuda-drivers|kernel")
    return {n: v for n, v in machine.would(*command.split()).items() if n in names or foreign.match(n)}


@pytest.mark.parametrize("command", COMMANDS)
def test_with_the_locks_nothing_moves(command: str, machine_with_dnf: DnfMachine, rpm_served: Server) -> None:
    assert moves(machine_with_dnf, command) != {}, "without the locks, this would not be worth a test"
    pin(machine_with_dnf)
    assert moves(machine_with_dnf, command) == {}


def test_what_is_not_of_the_stack_may_come(machine_with_dnf: DnfMachine, rpm_served: Server) -> None:
    pin(machine_with_dnf)
    assert machine_with_dnf.would("install", "cuda-nvcc-12-9") == {"cuda-nvcc-12-9": "12.9.86-1"}
    toolkit = dict.fromkeys(("nvidia-container-toolkit", "libnvidia-container1"), "1.18.0-1")
    assert machine_with_dnf.would("install", "nvidia-container-toolkit") == toolkit


def test_our_repository_is_checked_and_offers_nothing_but_the_lock(
    machine_with_dnf: DnfMachine, rpm_served: Server, signing_key: Key, tmp_path: Path
) -> None:
    machine = machine_with_dnf
    (machine.root / "etc/yum.repos.d/site.repo").unlink()
    (tmp_path / "key").write_text(signing_key.armoured())
    index = Index("cuda", f"{rpm_served.uri}/all", "", [], str(tmp_path / "key"), exclusive=True)
    machine.write("etc/yum.repos.d/gdsdeploy.repo", dnf.render_repositories([index], PINS))
    assert list_versions(machine) == {f"{rpm.name} {rpm.version.split(':')[-1]}" for rpm in STACK}


def list_versions(machine: DnfMachine) -> set[str]:
    argv = [
        "dnf", "--assumeyes", "--quiet", f"--installroot={machine.root}", f"--config={machine.root}/etc/dnf/dnf.conf",
        "--releasever=9", "--forcearch=x86_64", "repoquery", "--available", "--qf", "%{name} %{version}-%{release}",
    ]  # fmt: skip
    env = {"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C", "PYTHONPATH": str(machine.plugins), "no_proxy": "127.0.0.1"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.splitlines())


# -- The host program on a system of dnf's: the real dnf and rpm, above this machine's folders, in memory.


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
    # As [baseos]: nothing restricts it, and it offers other versions of what is locked.
    RpmArchive(build([*NEWER, *BASE], www / "baseos")).publish(None)
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
        (www / "etc/yum.repos.d").mkdir()
        (www / "etc/yum.repos.d/baseos.repo").write_text(f"[baseos]\nname=BaseOS\nbaseurl={server.uri}/baseos\n")
        yield www, server


def document(site: tuple[Path, Server], **changed: Any) -> dict[str, Any]:
    """Repositories, pins and packages of this host; changed: by ``RESOURCE_FIELD``."""
    www, server = site
    digests = [hashlib.sha256((www / "all" / rpm.file).read_bytes()).hexdigest() for rpm in STACK]
    pins = [{"package": r.name, "version": r.version, "sha256": d} for r, d in zip(STACK, digests, strict=True)]
    key = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-cuda"
    index = {"repository": "cuda", "uri": f"{server.uri}/all", "suite": "", "components": [], "host_keyring": key}
    content = base64.b64encode((www / "key").read_bytes()).decode()
    options: dict[str, Any] = {
        "indices": [{**index, "exclusive": True}],
        "keys": [{"dest": key, "content": content}],
        "pins": pins,
        "deny": list(stack_platform_for("rhel-9").kept_out),
        "modules": ["nvidia-driver:580-open"],
        "packages": [{k: pin[k] for k in ("package", "version")} for pin in pins],
        **changed,
    }
    fields = {
        "repositories": ("indices", "keys", "pins"),
        "pins": ("indices", "pins", "deny", "modules"),
        "packages": ("packages",),
    }
    resources = [
        {"resource": name, "desired": {"manager": "dnf", **{field: options[field] for field in names}}}
        for name, names in fields.items()
    ]
    return {"version": 1, "resources": resources}


#: What is asked of the program, one answer a line.
CONVERGE = """
for words in --check "" --check; do python3 "$1" apply --json --desired "$2" $words; echo; done
"""


def converge(
    site: tuple[Path, Server], tmp: Path, plugins: Path, before: str = "", after: str = "", **changed: Any
) -> tuple[list[dict[str, Any]], str]:
    """Check, apply and check a document; the answers, and the host's files afterwards.

    before, after: scripts that run then.
    """
    program = tmp / "gdsdeploy-host.pyz"
    hostapp.build(program)
    (tmp / "document").write_text(json.dumps(document(site, **changed)))
    env = {**os.environ, "HOME": str(tmp), "PYTHONPATH": str(plugins), "no_proxy": "127.0.0.1"}
    script = ["sh", "-c", f"{before}{CONVERGE}{after}\n:", "sh", program, tmp / "document"]
    argv = in_place(IN_PLACE, site[0], *script, over=("etc", "var"), processes=True)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    lines = done.stdout.splitlines()
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(answers) == 3, done.stdout + done.stderr
    return answers, "\n".join(line for line in lines if not line.startswith("{"))


def changes(answer: dict[str, Any]) -> list[str]:
    assert answer["error"] is None, answer
    assert not any(result["unknown"] for result in answer["resources"]), answer
    return [f"{e['kind']} {e['subject']}" for result in answer["resources"] for e in result["changes"]]


def test_a_host_is_pinned_and_nothing_is_to_do_the_second_time(
    site: tuple[Path, Server], tmp_path: Path, plugins: Path
) -> None:
    (checked, done, again), files = converge(site, tmp_path, plugins)
    assert changes(checked) == [
        "make /etc/pki/rpm-gpg",
        "write /etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-cuda",
        "write /etc/yum.repos.d/gdsdeploy.repo",
        "write /etc/dnf/plugins/versionlock.list",
        "stream nvidia-driver:580-open",
    ]
    assert changes(done) == changes(checked)
    assert changes(again) == []
    assert "htop-0:3.2.1-1.*" in files, "locks of others stay"
    assert "libcufile-12-9-0:1.14.1.1-1.*" in files
    assert "repo_gpgcheck=1" in files
    assert "stream=580-open" in files


def test_a_version_that_is_gone_leaves_the_host_as_it_was(
    site: tuple[Path, Server], tmp_path: Path, plugins: Path
) -> None:
    pins = [{"package": "libcufile-12-9", "version": "1.14.0.9-1", "sha256": "0" * 64}]
    (_, done, _), files = converge(site, tmp_path, plugins, pins=pins)
    assert done["error"]["kind"] == "verify"
    words = "dnf would not take exactly the locked versions of: libcufile-12-9=0:1.14.0.9-1"
    assert done["error"]["message"] == words
    assert "[gdsdeploy-cuda]" not in files
    assert "gdsdeploy" not in files.partition("htop")[2]
    assert "stream=open-dkms" in files


#: One locked package isn't installed.
ERASE = "rpm --erase --justdb --nodeps libcufile-12-9\n"


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("echo 'exclude=libcufile*' >>/etc/dnf/dnf.conf", "An exclude= in /etc/dnf/dnf.conf"),
        ("sed -i 's/enabled=1/enabled=0/' /etc/dnf/plugins/versionlock.conf", "The plugin versionlock isn't at work"),
    ],
)
def test_a_setting_of_the_host_that_hides_or_unlocks_packages_is_named(
    setting: str, hint: str, site: tuple[Path, Server], tmp_path: Path, plugins: Path
) -> None:
    (_, done, _), _ = converge(site, tmp_path, plugins, before=f"{ERASE}{setting}\n")
    assert done["error"]["kind"] == "verify"
    assert "libcufile-12-9=0:1.14" in done["error"]["message"]
    assert hint in done["error"]["hint"]


def test_a_repository_that_offers_less_is_no_obstacle(site: tuple[Path, Server], tmp_path: Path, plugins: Path) -> None:
    before = f"{ERASE}echo 'excludepkgs=libcufile* kernel*' >>/etc/yum.repos.d/baseos.repo\n"
    # Unsigned packages can't be installed.
    (checked, done, again), _ = converge(site, tmp_path, plugins, before=before, packages=[])
    assert changes(done) == changes(checked)
    assert changes(again) == []


REMOVE = """
PYTHONPATH=$1:$PYTHONPATH python3 - <<'END'
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.host import ManagedHost
for name in ("pins", "repositories"):
    registry.resource(name).revert(ManagedHost())
END
"""


def test_what_was_configured_goes_again(site: tuple[Path, Server], tmp_path: Path, plugins: Path) -> None:
    _, files = converge(site, tmp_path, plugins, after=REMOVE)
    assert "htop-0:3.2.1-1.*" in files
    assert "gdsdeploy" not in files
    assert "stream=open-dkms" in files, "as it was before"


def test_a_module_that_had_no_stream_has_none_again(site: tuple[Path, Server], tmp_path: Path, plugins: Path) -> None:
    module = "/etc/dnf/modules.d/nvidia-driver.module"
    after = f'grep -h ^stream {module}{REMOVE}echo "left: $(ls /etc/dnf/modules.d)"\n'
    after += "dnf --quiet module list --enabled nvidia-driver 2>&1\n"
    (checked, _, _), files = converge(site, tmp_path, plugins, before=f"rm {module}\n", after=after)
    assert "stream nvidia-driver:580-open" in changes(checked)
    assert "stream=580-open\nleft: \n" in files
    assert "Error: No matching Modules to list" in files


# -- The host program with a mirror of signed packages: dnf's plugin comes from there too.


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


# -- A host whose last transaction of dnf was interrupted isn't changed: the real rpm and dnf answer.


RPMS = [Rpm("driver", "3:1-1"), Rpm("driver", "3:2-1"), Rpm("kernel", "5-1"), Rpm("kernel", "6-1")]
ASK = """

mkdir -p /etc/dnf
printf '[main]\\ninstallonlypkgs=kernel\\nreleasever=9\\n' >/etc/dnf/dnf.conf
rpm --justdb --nodeps --nosignature --force --install $1
eval "$2"
exec python3 - <<'END'
import json
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages.dnf import Dnf
print(json.dumps([[r.id, r.message, r.hint] for r in Dnf().half_installed(ManagedHost())]))
END
"""


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(RPMS, tmp_path_factory.mktemp("interrupted") / "rpms")


def ask(rpms: Path, home: Path, names: str, damage: str = ":") -> list[list[str]]:
    files = " ".join(str(rpms / f"{name}.x86_64.rpm") for name in names.split())
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "LC_ALL": "C", "HOME": str(home)}
    argv = in_place(ASK, files, damage, over=("etc", "var"), processes=True)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_several_kernels_are_no_interruption(rpms: Path, tmp_path: Path) -> None:
    assert ask(rpms, tmp_path, "driver-1-1 kernel-5-1 kernel-6-1") == []


def test_an_old_version_beside_the_new_one_is_refused(rpms: Path, tmp_path: Path) -> None:
    ((name, message, hint),) = ask(rpms, tmp_path, "driver-1-1 driver-2-1 kernel-5-1")
    assert name == "half-installed"
    assert "two versions: driver-3:" in message
    assert "then run: dnf remove --duplicates;" in hint


def test_a_damaged_database_is_refused(rpms: Path, tmp_path: Path) -> None:
    damage = 'dd if=/dev/zero of="$(rpm --eval %_dbpath)/rpmdb.sqlite" bs=512 count=2 conv=notrunc status=none'
    ((name, message, hint),) = ask(rpms, tmp_path, "driver-1-1", damage)
    assert name == "half-installed"
    assert message.startswith("the database of rpm is damaged: ")
    assert "--rebuilddb" in hint
