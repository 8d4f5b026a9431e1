"""The lab ends no process that isn't its own, and stays in its own folders; what it needs of its controller.

That is a Debian archive, packages, and what runs its hosts.  tests/lab/test_lab.py has the rest.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import cancel
from gdsdeploy.run import Completed
from gdslab import archive, guest, images, lifecycle, nspawn, process, qemu, recipe, records, requirements, state
from gdslab.errors import LabUnavailable
from gdslab.host import HostRecord, LabHost
from gdslab.state import Lab

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def sleeper() -> Iterator[process.Process]:
    started = subprocess.Popen(["sleep", "60"])
    record = process.identify(started.pid)
    assert record is not None
    yield record
    process.stop(record)


@pytest.mark.parametrize("another", [{"start": 1}, {"boot": "00000000-0000-0000-0000-000000000000"}])
def test_a_number_that_another_process_has_is_never_signalled(
    sleeper: process.Process, another: dict[str, object]
) -> None:
    earlier = replace(sleeper, **another)  # type: ignore[arg-type]
    assert not process.alive(earlier)
    process.stop(earlier)
    assert process.alive(sleeper)


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "Dev", "a b", "x" * 32])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(LabUnavailable, match="cannot name a lab"):
        Lab(name)


def test_state_of_another_version_is_not_guessed_at() -> None:
    lab = Lab("dev")
    lab.write({"release": "trixie", "hosts": []})
    (lab.directory / "lab.json").write_text('{"version": 2}')
    with pytest.raises(LabUnavailable, match="another version"):
        lab.hosts()


def test_purge_spares_what_a_lab_stands_on() -> None:
    used, unused = (state.cache_directory() / name / "root" for name in ("light", "older"))
    for folder in (used, unused):
        folder.mkdir(parents=True)
    lab = Lab("dev")
    lab.write({"release": "trixie", "hosts": []})
    lab.add_hosts("light", 1, used)
    assert lifecycle.purge() == [used.parent], "what stays"
    assert used.exists()
    assert not unused.exists()


class Pause(Exception):
    """What the work meanwhile ends with."""


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the base systems that are asked for, whose making ends when it is stopped."""
    asked: list[str] = []

    def base(cache: Path, made_from: recipe.Recipe) -> Path:
        asked.append(made_from.name)
        cancel.current().wait(10)
        asked.append("not stopped")
        return images.path(cache, made_from)

    debian = archive.Archive("http://deb.example/debian", None, archive.DEBIAN_KEYRING, {}, {}, None)
    monkeypatch.setattr(archive, "controller_archive", lambda: debian)
    monkeypatch.setattr(requirements, "ensure", lambda **_: None)
    monkeypatch.setattr(images, "base", base)
    return asked


def test_the_fleet_file_is_there_while_hosts_are_made(making: list[str]) -> None:
    """What fails meanwhile ends the making; the next run makes the hosts that are on record."""
    fleets: list[str] = []

    def meanwhile(lab: Lab, lights: Future[None]) -> None:
        assert not lights.done()
        fleets.append(lab.fleet_path.read_text())
        raise Pause

    for _ in range(2):
        with pytest.raises(Pause):
            lifecycle.up("dev", meanwhile=meanwhile)
    assert fleets[0] == fleets[1]
    assert "build1: {profile: gds" in fleets[0]
    assert "gpu1: {profile: gds" in fleets[0]
    assert len(making) == 4
    assert len(set(making)) == 2


def test_image_with_a_stack_has_its_sources_and_what_apt_read() -> None:
    debian = archive.Archive("http://deb.example/debian", None, archive.DEBIAN_KEYRING, {}, {}, None)
    bare, filled = (recipe.debian(guest.RELEASES["trixie"], debian, "vm", more) for more in ((), ("libcuda1",)))
    assert bare.name != filled.name
    words = filled.argv(Path("root"), Path("tree"))
    assert "--skip=cleanup/apt/lists" in words
    assert any(word.startswith("--include=") and "libcuda1" in word for word in words)
    signed = f"[signed-by={archive.DEBIAN_KEYRING}] http://deb.example/debian"
    assert f"deb {signed} bookworm-backports {guest.COMPONENTS}" in words
    assert f"Suites: trixie trixie-updates bookworm-backports\nComponents: {guest.COMPONENTS}\n" in str(
        filled.files[guest.SOURCES]
    )
    assert "Components: main\n" in str(bare.files[guest.SOURCES])


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty etc/apt, with apt's settings as the test's ``settings`` file has them."""
    (tmp_path / "sources.list.d").mkdir()
    settings = tmp_path / "settings"
    settings.write_text("")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(archive.run, "run", lambda argv, **_: Completed(tuple(argv), 0, settings.read_text(), ""))
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "deb http://ubuntu.example/ubuntu noble main\n",
        "deb http://packages.example/apt trixie main\n",
        "deb cdrom:[Debian]/ bookworm main\n",
        "deb http://mirror.example/debian bookworm contrib\n",
    ],
)
def test_no_debian_archive_is_one_clear_error(etc: Path, text: str) -> None:
    (etc / "sources.list").write_text(text)
    with pytest.raises(LabUnavailable, match="no Debian archive") as caught:
        archive.controller_archive(etc)
    assert caught.value.hint


def test_what_reaching_the_archive_takes_is_carried(etc: Path) -> None:
    (etc / "sources.list").write_text("deb https://mirror.example/debian trixie main\n")
    (etc / "settings").write_text(
        'Acquire "";\n'
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::Proxy::mirror.example "DIRECT";\n'
        'Acquire::https::CaInfo "/etc/ssl/site.pem";\n'
        'Acquire::Check-Valid-Until "false";\n'
        'Acquire::AllowInsecureRepositories "1";\n'
        'Acquire::https::Verify-Peer "false";\n'
        'APT::NeverAutoRemove:: "^linux-image";\n'
    )
    debian = archive.controller_archive(etc)
    assert debian.proxy == {
        "Acquire::http::Proxy": "http://proxy.example:3128",
        "Acquire::https::Proxy::mirror.example": "DIRECT",
    }
    assert debian.options == {"Acquire::Check-Valid-Until": "false"}, "nothing that lowers verification travels"
    assert debian.ca_bundle == Path("/etc/ssl/site.pem")


def test_proxy_of_the_environment_is_made_explicit(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (etc / "sources.list").write_text("deb http://mirror.example/debian trixie main\n")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3142")
    monkeypatch.setenv("https_proxy", "http://unused.example:1")
    assert archive.controller_archive(etc).proxy == {"Acquire::http::Proxy": "http://127.0.0.1:3142"}


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A machine that has apt-get and nothing else; returns what was run on it."""
    ran: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> Completed:
        ran.append(list(argv))
        return Completed(tuple(argv), 0, "", "")

    monkeypatch.setattr(requirements.run, "run", run)
    monkeypatch.setattr(requirements, "_is_present", lambda program: False)
    monkeypatch.setattr(requirements.shutil, "which", lambda program: "/usr/bin/apt-get")
    monkeypatch.setattr(requirements.os, "geteuid", lambda: 0)
    monkeypatch.setattr(requirements, "APT_LISTS", tmp_path)
    return ran


def yes(question: str) -> bool:
    return True


def test_packages_are_listed_beforehand_and_installed(
    bare: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    questions: list[str] = []
    confirm: Callable[[str], bool] = lambda question: not questions.append(question)  # type: ignore[func-returns-value]  # noqa: E731
    requirements.ensure(vms=True, lights=False, confirm=confirm)
    assert "qemu-system-x86: runs the VM hosts" in capsys.readouterr().err
    assert len(questions) == 1
    packages = ["debian-archive-keyring", "e2fsprogs", "mmdebstrap", "openssh-client", "qemu-system-x86", "qemu-utils"]
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    assert bare == [
        [*apt, "update"],
        [*apt, "install", "-y", "--no-install-recommends", *packages, "util-linux"],
    ]


def test_no_means_nothing_is_installed(bare: list[list[str]]) -> None:
    with pytest.raises(LabUnavailable, match="were not installed") as caught:
        requirements.ensure(vms=True, lights=True, confirm=lambda question: False)
    assert bare == []
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("apt-get install ")


def test_machine_without_apt_gets_the_list(bare: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.shutil, "which", lambda program: None)
    with pytest.raises(LabUnavailable) as caught:
        requirements.ensure(vms=True, lights=True, confirm=yes)
    for package in ("qemu-system-x86", "mmdebstrap", "systemd-container"):
        assert f"  {package}: " in caught.value.message
    assert bare == []


def test_sudo_is_asked_once_before_steps_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch, bare: list[list[str]]
) -> None:
    monkeypatch.setattr(requirements, "_is_present", lambda program: True)
    monkeypatch.setattr(requirements.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(requirements.run, "which", lambda program: "/usr/bin/sudo")
    requirements.ensure(vms=True, lights=True, confirm=yes)
    assert bare == [["sudo", "-v"]]


def light(folder: Path) -> nspawn.LightHost:
    return nspawn.LightHost(HostRecord("build1", "light", 22001, "/c/root"), folder, folder / "ssh_config")


@pytest.mark.parametrize("name", ["a:b", "a,b", "a\\b"])
def test_path_that_overlayfs_cannot_take_is_one_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(LabUnavailable, match="overlayfs cannot take"):
        light(tmp_path / name).create(b"")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[nspawn.LightHost, list[str]]:
    """A light host that nspawn cannot run, and what was done with it."""
    done: list[str] = []
    host = light(tmp_path / "build1")
    host.directory.mkdir()

    def wait(self: LabHost, timeout: float = 0) -> None:
        done.append(f"wait {self.runtime}")
        if self.runtime == "systemd-nspawn":
            raise LabUnavailable("build1 ended while starting")

    def start(self: Any, argv: list[str]) -> None:
        done.append(f"start {argv[0]}")

    monkeypatch.delenv("GDSDEPLOY_LAB_LIGHT", raising=False)
    monkeypatch.setattr(LabHost, "wait_ssh", wait)
    monkeypatch.setattr(nspawn.LightHost, "_start", start)
    monkeypatch.setattr(nspawn.LightHost, "stop", lambda self: done.append("stop"))
    return host, done


def test_plain_namespace_takes_over_and_stays(
    silent: tuple[nspawn.LightHost, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    host, done = silent
    host.start()
    host.wait_ssh()
    assert done == ["start systemd-nspawn", "wait systemd-nspawn", "stop", "start unshare", "wait namespace"]
    assert host.runtime == "namespace"
    assert "without systemd" in capsys.readouterr().err
    done.clear()
    host.start()
    host.wait_ssh()
    assert done == ["start unshare", "wait namespace"], "the trial is not made again"


def test_nspawn_that_once_worked_is_not_given_up(
    silent: tuple[nspawn.LightHost, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, done = silent
    with monkeypatch.context() as working:
        working.setattr(LabHost, "wait_ssh", lambda self, timeout=0: None)
        host.wait_ssh()
    with pytest.raises(LabUnavailable):
        host.wait_ssh()
    assert done == ["wait systemd-nspawn"]


def vm(folder: Path) -> qemu.VmHost:
    return qemu.VmHost(HostRecord("gpu1", "vm", 22011, "/c/trixie/disk.qcow2"), folder, folder / "ssh_config", "tcg")


def test_machine_reboots_and_listens_on_loopback_only() -> None:
    argv = qemu.qemu_argv(vm(Path("/l")), "kvm")
    assert "-no-reboot" not in argv
    assert argv[argv.index("-accel") : argv.index("-accel") + 4] == ["-accel", "kvm", "-cpu", "host"]
    assert next(word for word in argv if "hostfwd" in word).count("tcp:127.0.0.1:") == 1


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """KVM that opens; ``works`` says how a trial ends, ``tried`` which kernels were tried."""
    outcomes: dict[str, Any] = {"access": True, "works": True, "tried": []}

    def trial(kernel: Path) -> bool:
        outcomes["tried"].append(kernel.name)
        return bool(outcomes["works"])

    monkeypatch.delenv("GDSDEPLOY_LAB_ACCEL", raising=False)
    monkeypatch.setattr(qemu.os, "access", lambda path, mode: outcomes["access"])
    monkeypatch.setattr(qemu, "_kernel_trial", trial)
    return outcomes


@pytest.mark.parametrize(
    ("changed", "chosen", "tried"),
    [({}, "kvm", ["vmlinuz"]), ({"works": False}, "tcg", ["vmlinuz"]), ({"access": False}, "tcg", [])],
)
def test_kvm_is_used_where_a_kernel_has_run_with_it(
    tmp_path: Path, trials: dict[str, Any], changed: dict[str, bool], chosen: str, tried: list[str]
) -> None:
    """What is known isn't tried again."""
    trials |= changed
    assert [qemu.accelerator(tmp_path, tmp_path / "vmlinuz") for _ in range(2)] == [chosen, chosen]
    assert trials["tried"] == tried


def test_verdict_of_another_boot_does_not_count(tmp_path: Path, trials: dict[str, Any]) -> None:
    records.write_json(tmp_path / "accelerator.json", {"boot": "another", "accelerator": "tcg"})
    assert qemu.accelerator(tmp_path, tmp_path / "vmlinuz") == "kvm"
    assert records.read_json(tmp_path / "accelerator.json") == {"boot": process.boot_id(), "accelerator": "kvm"}


def test_the_user_decides_where_he_says_so(
    tmp_path: Path, trials: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDSDEPLOY_LAB_ACCEL", "tcg")
    assert qemu.accelerator(tmp_path, tmp_path / "vmlinuz") == "tcg"
    monkeypatch.setenv("GDSDEPLOY_LAB_ACCEL", "warp")
    with pytest.raises(LabUnavailable, match="'warp'"):
        qemu.accelerator(tmp_path, tmp_path / "vmlinuz")
    assert trials["tried"] == []


def test_creation_keeps_what_is_whole_and_makes_anew_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[str] = []

    def make(path: Path) -> None:
        assert not path.exists(), "a half-made file was written over"
        parts.append(path.name)
        path.write_text("whole")

    host = vm(tmp_path / "gpu1")
    monkeypatch.setattr(qemu.VmHost, "_make_overlay", lambda self, path: make(path))
    monkeypatch.setattr(qemu, "_make_nvme", make)
    host.create(b"seed")
    (host.directory / "nvme.raw").unlink()
    (host.directory / ".nvme.raw.part").write_text("half")
    (host.directory / "disk.qcow2").write_text("used by the guest")
    host.create(b"another seed")
    assert parts == [".disk.qcow2.part", ".nvme.raw.part", ".nvme.raw.part"]
    assert (host.directory / "disk.qcow2").read_text() == "used by the guest"
    assert (host.directory / "seed.tar").read_text() == "seed"
    assert sorted(path.name for path in host.directory.iterdir()) == ["disk.qcow2", "nvme.raw", "seed.tar"]
