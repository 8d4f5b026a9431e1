"""A program in the root of an image: what it reaches, what it leaves, and how it ends.

The root is a copy of the Debian that the lab's light hosts have.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import run
from gdsdeploy.errors import HostUnfit
from gdsdeploy.image.ask import Parcel, ask
from gdsdeploy.image.root import open_root
from gdslab import archive as archives
from gdslab import guest, images, recipe
from gdslab.state import cache_directory
from tests.unit.host.apply.apply_tree import differing, tree

OS = "debian-13"
#: What tests add to the copy.
ADDED = (
    *("etc/init.d/lab", "etc/rc2.d/S01lab", "etc/resolv.conf", "usr/sbin/runlevel", "usr/sbin/policy-rc.d"),
    *("root/started", "root/interrupted", "var/lib/gdsdeploy"),
)

#: Tries what must not work, and prints what did.
PROBE = """
import ctypes, json, os, subprocess, sys

def allowed(attempt):
    try:
        return attempt() in (None, 0)
    except OSError:
        return False

def is_kernels(name):
    path = "/proc/" + name
    return os.path.exists(path) and (os.stat(path).st_dev == os.stat("/proc").st_dev or os.path.getsize(path) > 0)

def escape():
    root = os.open("/", os.O_RDONLY)
    os.mkdir("/tmp/cage")
    os.chroot("/tmp/cage")
    os.fchdir(root)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    return sorted(os.listdir("/"))

libc = ctypes.CDLL(None, use_errno=True)
print(json.dumps({
    "id": open("/etc/of-the-image").read(),
    "pid": os.getpid(),
    "processes": [name for name in os.listdir("/proc") if name.isdecimal()],
    "sys": [folder for folder, _, files in os.walk("/sys") if files],
    "proc": [name for name in ("cmdline", "kallsyms", "kcore", "keys", "modules", "sysrq-trigger") if is_kernels(name)],
    "driver": os.listdir("/proc/driver") if os.path.exists("/proc/driver") else [],
    "hostname": os.uname().nodename,
    "environment": sorted(os.environ),
    "marker": os.path.isdir("/run/gdsdeploy-image"),
    "tmp": os.listdir("/tmp"),
    "resolver": open("/etc/resolv.conf").read(),
    "mount": allowed(lambda: libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) if True else 1),
    "device": allowed(lambda: os.mknod("/mnt/disk", 0o60600, os.makedev(7, 0))),
    "sysctl": allowed(lambda: open("/proc/sys/kernel/hostname", "w").write("x") and None),
    "reboot": allowed(lambda: libc.reboot(0)),
    "module": allowed(lambda: libc.syscall(313, 0, b"", 0)),
    "root": sorted(os.listdir("/")),
    "escape": escape(),
}))
"""
#: Says that it runs, and ends in its own way when it's interrupted.
PATIENT = """
import sys, time
try:
    print("up", file=sys.stderr, flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    open("/root/interrupted", "w").close()
"""
#: Starts a service of sysvinit as a package's script does.
SERVICE = """
import json, subprocess
done = subprocess.run(["invoke-rc.d", "lab", "start"], capture_output=True, text=True)
print(json.dumps({"status": done.returncode, "output": done.stderr}))
"""
LSB = "#!/bin/sh\n### BEGIN INIT INFO\n# Provides: lab\n# Default-Start: 2 3 4 5\n### END INIT INFO\n: >/root/started\n"


def program(text: str) -> bytes:
    """A zipapp with this text."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("__main__.py", text)
    return stream.getvalue()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the lab's Debian, which takes seconds."""
    archive = archives.controller_archive()
    base = images.light_base(cache_directory(), recipe.debian(guest.RELEASES["trixie"], archive, "light"))
    folder = tmp_path_factory.mktemp("image") / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", "-T", base, folder], check=True)
    (folder / "etc/of-the-image").write_text("image")
    yield folder
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


@pytest.fixture
def root(system: Path) -> Iterator[Path]:
    """The copy; what a test has added goes."""
    yield system
    assert str(system) not in Path("/proc/self/mountinfo").read_text(), "nothing stays mounted"
    places = [*(system / name for name in ADDED), *system.glob("opt/of-*")]
    subprocess.run(["rm", "-rf", "--one-file-system", *places], check=True)


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    return tree(root, without=("/usr/share", "/usr/lib"))


def test_nothing_of_this_machine_is_in_reach(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THIS_MACHINE", "1")
    before = snapshot(root)
    with open_root(root, OS) as image:
        answer = ask(image, [], program=program(PROBE), changes=True)
    assert (answer["id"], answer["marker"], answer["hostname"]) == ("image", True, "localhost")
    assert (answer["pid"], len(answer["processes"]) <= 2) == (1, True)
    refused = ("mount", "device", "sysctl", "reboot", "module")
    assert {name: answer[name] for name in refused} == dict.fromkeys(refused, False)
    assert answer["escape"] == answer["root"], "a second chroot leads nowhere"
    assert (answer["sys"], answer["proc"], answer["driver"], answer["tmp"]) == ([], [], [], [])
    assert answer["resolver"] == Path("/etc/resolv.conf").read_text()
    assert "SYSTEMD_OFFLINE" in answer["environment"]
    assert "OF_THIS_MACHINE" not in answer["environment"]
    assert differing(before, snapshot(root)) == set()


def test_what_is_handed_over_stays_inside(root: Path, tmp_path: Path) -> None:
    """Links in the image name folders of this machine, and mean the image's own."""
    name = f"/opt/of-{tmp_path.parent.name}-{tmp_path.name}"
    (root / name.lstrip("/")).mkdir()
    (root / "var/lib/gdsdeploy").symlink_to(name)
    (root / "etc/resolv.conf").symlink_to(f"{name}/resolv.conf")
    (root / "usr/sbin/policy-rc.d").symlink_to(f"{name}/policy")
    parcel = tmp_path / "modules.tar"
    parcel.write_text("modules")
    parcel.chmod(0o600)
    place = Parcel(parcel, "/var/lib/gdsdeploy/modules-6.1.tar")
    with open_root(root, OS) as image:
        ask(image, ["hello"], program=program("print('{}')"), changes=True, parcel=place)
    (entry,) = (root / name.lstrip("/")).iterdir()
    assert (entry.name, entry.read_text(), entry.stat().st_mode & 0o777) == ("modules-6.1.tar", "modules", 0o644)
    assert not Path(name).exists()
    assert parcel.read_text() == "modules"


def test_no_service_starts(root: Path) -> None:
    # Older systems have this program, and a machine that makes images may have a runlevel.
    (root / "usr/sbin/runlevel").write_text("#!/bin/sh\necho N 2\n")
    (root / "usr/sbin/runlevel").chmod(0o755)
    (root / "etc/rc2.d/S01lab").symlink_to("../init.d/lab")
    (root / "etc/init.d/lab").write_text(LSB)
    (root / "etc/init.d/lab").chmod(0o755)
    with open_root(root, OS) as image:
        answer = ask(image, [], program=program(SERVICE), changes=True)
        assert "policy-rc.d denied execution of start" in answer["output"]
        assert not (root / "root/started").exists()
        # The policy is what keeps it from starting.
        ask(image, [], program=program(SERVICE), changes=False)
    assert (root / "root/started").exists()
    assert not (root / "usr/sbin/policy-rc.d").exists()


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def in_the_image(root: Path) -> list[str]:
    """Ids of the processes whose root it is."""
    status, processes = root.stat(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and os.path.samestat((entry / "root").stat(), status):
                processes.append(entry.name)
        except OSError:
            continue
    return processes


CALLER = """
import sys
from pathlib import Path
from gdsdeploy.image.ask import ask
from gdsdeploy.image.root import open_root

with open_root(Path(sys.argv[1]), "debian-13") as image:
    ask(image, [], program=Path(sys.argv[2]).read_bytes(), changes=True, line=lambda text: print(text, flush=True))
"""


def start(root: Path, tmp_path: Path) -> subprocess.Popen[str]:
    """Work that takes long, in a process of its own that has begun."""
    (tmp_path / "program.pyz").write_bytes(program(PATIENT))
    argv = [sys.executable, "-c", CALLER, root, tmp_path / "program.pyz"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    caller = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True, env=environment
    )
    assert caller.stdout is not None
    assert caller.stdout.readline() == "up\n"
    return caller


def test_ctrl_c_lets_the_program_end(root: Path, tmp_path: Path) -> None:
    caller = start(root, tmp_path)
    assert in_the_image(root)
    caller.send_signal(signal.SIGINT)
    assert caller.wait(30) != 0
    assert (root / "root/interrupted").exists()
    assert in_the_image(root) == []
    assert not (root / "usr/sbin/policy-rc.d").exists()


def test_a_kill_takes_everything_with_it(root: Path, tmp_path: Path) -> None:
    caller = start(root, tmp_path)
    with pytest.raises(HostUnfit, match="a running system"):
        # Its lock is free, as after a kill of gdsdeploy alone.
        _require_idle(root)
    caller.kill()
    caller.wait(30)
    wait_for(lambda: not in_the_image(root))
    assert not (root / "root/interrupted").exists()
    left = root / "usr/sbin/policy-rc.d"
    assert (left.read_text(), left.stat().st_mode & 0o111) == ("", 0), "what is left of the mount point denies nothing"
    with open_root(root, OS) as image:
        ask(image, [], program=program("print('{}')"), changes=True)
    assert not left.exists(), "the next run removes it"


def _require_idle(root: Path) -> None:
    from gdsdeploy.image import root as roots

    roots._require_idle(root)


def test_a_layer_of_an_overlay_is_refused(root: Path, tmp_path: Path) -> None:
    for name in ("merged", "upper", "work"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={root},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    script = f'mount -t overlay -o "{options}" test "{tmp_path}/merged" && echo up && sleep 300'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    other = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        with pytest.raises(HostUnfit, match="a layer of an overlay"), open_root(root, OS):
            pytest.fail("it was accepted")
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def test_a_bind_mount_of_this_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    script = 'mount --bind / "$1" && shift && exec "$@"'
    code = "import sys; from pathlib import Path; from gdsdeploy.image.root import open_root\n"
    code += f"with open_root(Path({str(tmp_path / 'root')!r}), 'debian-13'): pass"
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(tmp_path / "root")]
    environment = {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = run.run([*argv, sys.executable, "-c", code], doing="open it", ok=(1,), env=environment)
    assert "is the root of this machine" in done.stderr


def test_an_image_without_python_says_so(root: Path) -> None:
    python = root / "usr/bin/python3"
    python.rename(python.with_name("away"))
    try:
        with open_root(root, OS) as image, pytest.raises(HostUnfit) as caught:
            ask(image, [], program=program(""), changes=False)
    finally:
        python.with_name("away").rename(python)
    assert "python3: not found" in caught.value.message
    assert "needs Python 3.8" in (caught.value.hint or "")
