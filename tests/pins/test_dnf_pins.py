"""Nothing that people do with dnf moves the stack; without our files, each of these does.

The real dnf, with the real versionlock plugin, on an installed system of its own and signed repositories on loopback.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gdsdeploy.host.apply.packages import dnf
from gdsdeploy.host.apply.packages.managers import Index, Pin
from gdsdeploy.platform import stack_platform_for
from tests.repos import rpmstack
from tests.repos.archive import Key, Server, serve
from tests.repos.rpmarchive import Rpm, RpmArchive, build

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
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60)
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
    lines = dnf.locks(PINS, stack_platform_for("rhel-9").kept_out())
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
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.splitlines())
