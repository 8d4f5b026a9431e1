"""Programs in the root of an image, and Ansible's tasks: what they reach, what they leave, and how they end.

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
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy import run
from gdsdeploy.converge import ansible
from gdsdeploy.converge.image import Image
from gdsdeploy.converge.inventory import dump
from gdsdeploy.errors import HostUnfit
from gdsdeploy.host.paths import EXPECTATION
from gdsdeploy.image import root as roots
from gdsdeploy.image.root import ImageRoot, ask, entered, join, open_root
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.zipapp import hostapp
from gdslab import archive as archives, guest, images, recipe
from gdslab.state import cache_directory
from tests.roles.tasks import apply
from tests.unit.host.apply.apply_tree import differing, tree

pytestmark = pytest.mark.usefixtures("own_folders")

ROOT = Path(__file__).parents[3]
EVIDENCE = (ROOT / "tests/evidence/hosts/lab-vm.expectation.json").read_text()
MACHINE_ID = "0123456789abcdef0123456789abcdef\n"
OS = "debian-13"
#: What tests add to the copy.
ADDED = (
    *("etc/init.d/lab", "etc/rc2.d/S01lab", "etc/resolv.conf", "usr/sbin/runlevel", "usr/sbin/policy-rc.d"),
    *("root/started", "root/interrupted"),
)

#: Tries what must not work, and prints what did.
PROBE = """
import ctypes, json, os, resource, subprocess, sys

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
    "rights": [line.split()[1] for line in open("/proc/self/status") if line[:6] in ("CapInh", "CapEff", "CapBnd")],
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
    "limits": [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)],
    "reboot": allowed(lambda: libc.reboot(0)),
    "module": allowed(lambda: libc.syscall(313, 0, b"", 0)),
    "root": sorted(os.listdir("/")),
    "escape": escape(),
}))
"""
#: Reads what the image's links lead to.
LINKED = """
import json
print(json.dumps({"resolver": open("/etc/resolv.conf").read(), "policy": open("/usr/sbin/policy-rc.d").read()}))
"""
#: Those of join.py, as the kernel shows them.
RIGHTS = f"{sum(1 << right for right in (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31)):016x}"
#: Shows that it runs, and ends in its own way when it's interrupted.
PATIENT = """
import signal, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    open("/root/started", "w").close()
    time.sleep(300)
except KeyboardInterrupt:
    time.sleep(3)
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
    base = images.base(cache_directory(), recipe.debian(guest.RELEASES["trixie"], archive, "light"))
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


@contextmanager
def inside(root: Path, *, changes: bool = True) -> Iterator[Callable[..., dict[str, Any]]]:
    """What runs the text of a program in the root, and returns its answer."""
    with open_root(root, OS) as image, entered(image, changes=changes) as enter:
        yield lambda text, argv=(): ask(image, enter, argv, b"", program(text))


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    return tree(root, without=("/usr/share", "/usr/lib"))


def test_nothing_of_this_machine_is_in_reach(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THIS_MACHINE", "1")
    before = snapshot(root)
    with inside(root) as answer_of:
        answer = answer_of(PROBE)
    assert (answer["id"], answer["marker"], answer["hostname"]) == ("image", True, "localhost")
    assert (answer["processes"][0], len(answer["processes"])) == ("1", 2)
    assert answer["rights"] == ["0" * 16, RIGHTS, RIGHTS]
    refused = ("mount", "device", "sysctl", "reboot", "module")
    assert {name: answer[name] for name in refused} == dict.fromkeys(refused, False)
    assert answer["escape"] == answer["root"], "a second chroot leads nowhere"
    assert (answer["sys"], answer["proc"], answer["driver"], answer["tmp"]) == ([], [], [], [])
    assert answer["limits"] == [-1, -1], "those of Ansible are for what hosts send"
    assert answer["resolver"] == Path("/etc/resolv.conf").read_text()
    assert "SYSTEMD_OFFLINE" in answer["environment"]
    assert "OF_THIS_MACHINE" not in answer["environment"]
    assert differing(before, snapshot(root)) == set()


def test_links_of_the_image_mean_its_own_files(root: Path, tmp_path: Path) -> None:
    """They name folders of this machine."""
    name = f"/opt/of-{tmp_path.parent.name}-{tmp_path.name}"
    (root / name.lstrip("/")).mkdir()
    (root / "etc/resolv.conf").symlink_to(f"{name}/resolv.conf")
    (root / "usr/sbin/policy-rc.d").symlink_to(f"{name}/policy")
    with inside(root) as answer_of:
        assert answer_of(LINKED) == {
            "resolver": Path("/etc/resolv.conf").read_text(),
            "policy": "#!/bin/sh\nexit 101\n",
        }
    assert list((root / name.lstrip("/")).iterdir()) == []
    assert not Path(name).exists()


def test_no_service_starts(root: Path) -> None:
    # Older systems have this program, and a machine that makes images may have a runlevel.
    (root / "usr/sbin/runlevel").write_text("#!/bin/sh\necho N 2\n")
    (root / "usr/sbin/runlevel").chmod(0o755)
    (root / "etc/rc2.d/S01lab").symlink_to("../init.d/lab")
    (root / "etc/init.d/lab").write_text(LSB)
    (root / "etc/init.d/lab").chmod(0o755)
    with inside(root) as answer_of:
        assert "policy-rc.d denied execution of start" in answer_of(SERVICE)["output"]
    assert not (root / "root/started").exists()
    with inside(root, changes=False) as answer_of:
        # The policy is what keeps it from starting.
        answer_of(SERVICE)
    assert (root / "root/started").exists()
    assert not (root / "usr/sbin/policy-rc.d").exists()


def test_nothing_runs_in_an_image_that_was_left(root: Path) -> None:
    """The number of its process may be another's by then, which has the mounts of this machine."""
    other = subprocess.Popen(["sleep", "300"])
    try:
        done = subprocess.run([*join(other.pid), "-c", "echo ran"], capture_output=True, text=True, check=False)
    finally:
        other.kill()
        other.wait()
    assert (done.returncode, done.stdout) == (1, "")
    assert "another one has its number" in done.stderr


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
        with pytest.raises(HostUnfit) as caught, inside(root, changes=False) as answer_of:
            answer_of("")
    finally:
        python.with_name("away").rename(python)
    assert "python3: not found" in caught.value.message
    assert "needs Python 3.9" in (caught.value.hint or "")


ANSWERS = [
    ("echo sh: python3: not found; exit 127", "ended with status 127 and gave no answer\n  | sh: python3: not found"),
    ("echo Killed; exit 3", "ended with status 3 and gave no answer\n  | Killed"),
    ("echo '{\"version\": 1'", "gave no answer"),
    ("echo '[1]'", "gave no answer"),
]


@pytest.mark.parametrize(("script", "words"), ANSWERS)
def test_an_answer_that_is_none(script: str, words: str) -> None:
    with pytest.raises(HostUnfit) as caught:
        ask(ImageRoot(Path("/image")), ["sh", "-c", script, "sh"], ["hello"], b"", b"")
    assert words in caught.value.message


def test_an_answer_among_other_lines() -> None:
    script = "printf '%s\\n' before '' 'waiting for apt' '{\"version\": 1}' after"
    assert ask(ImageRoot(Path("/image")), ["sh", "-c", script, "sh"], ["hello"], b"", b"") == {"version": 1}


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


@pytest.fixture
def small(root: Path) -> Iterator[Path]:
    """A folder of the image with a file system of one MiB."""
    folder = root / "opt/of-small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def play(root: Path, folder: Path, tasks: list[dict[str, Any]], host_program: bytes = b"") -> ansible.Outcome:
    """What a play with these tasks does in the root."""
    book, inventory, zipapp = folder / "play.yml", folder / "inventory.yml", folder / "program.pyz"
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    zipapp.write_bytes(host_program or hostapp.build())
    with open_root(root, "debian-13") as opened, entered(opened, changes=True) as enter:
        image = Image(opened, enter, "gpu1", Fleet.model_construct())
        values = image.connection() | {"gds_host_expectation": EVIDENCE}
        inventory.write_text(dump({"all": {"hosts": {"gpu1": values}}}))
        environment = ansible.environment(control_dir=folder, program=zipapp)
        command = [sys.executable, "-P", "-m", "ansible", "playbook", "-i", str(inventory), str(book)]
        return ansible.play(command, environment, log=folder / "log", progress=lambda _: None)


def test_the_same_tasks_work_in_a_root(root: Path, tmp_path: Path) -> None:
    (root / "etc/machine-id").write_text(MACHINE_ID)
    archive = tmp_path / "archive"
    archive.write_bytes(os.urandom(3 << 20))
    tasks = [
        apply("expectation", expectation="{{ gds_host_expectation }}"),
        {"ansible.builtin.copy": {"src": str(archive), "dest": "/opt/of-tasks", "owner": "root", "mode": "0644"}},
        {"ansible.builtin.fetch": {"src": "/opt/of-tasks", "dest": str(tmp_path / "fetched"), "flat": True}},
        apply("image"),
    ]
    outcome = play(root, tmp_path, tasks)
    assert (outcome.status, outcome.hosts["gpu1"].failure) == (0, None), (tmp_path / "log").read_text()
    subjects = {change.subject for change in outcome.hosts["gpu1"].changes}
    assert {EXPECTATION, "/etc/machine-id"} <= subjects
    assert (root / EXPECTATION.lstrip("/")).read_text() == EVIDENCE
    assert (root / "etc/machine-id").read_text() == ""
    assert (root / "opt/of-tasks").read_bytes() == archive.read_bytes() == (tmp_path / "fetched").read_bytes()
    assert not (root / "root/.ansible").exists(), "Ansible's own files are in memory"
    assert not Path(EXPECTATION).exists()
    assert play(root, tmp_path, tasks).hosts["gpu1"].changed == []


@pytest.mark.parametrize("brought_to", ["/tmp", "/opt/of-small"])
def test_a_file_for_which_there_is_no_space_leaves_nothing(
    root: Path, small: Path, tmp_path: Path, brought_to: str
) -> None:
    (tmp_path / "archive").write_bytes(bytes(4 << 20))
    copy = {"src": f"{tmp_path}/archive", "dest": "/opt/of-small/x"}
    outcome = play(root, tmp_path, [{"ansible.builtin.copy": copy, "vars": {"ansible_remote_tmp": brought_to}}])
    failure = outcome.hosts["gpu1"].failure
    assert failure is not None
    assert "No space left on device" in failure.message
    assert [path for path in small.rglob("*") if path.is_file()] == []


CALLER = """
import sys
from pathlib import Path
from tests.loopback.image.test_enter import PATIENT, apply, play, program

play(Path(sys.argv[1]), Path(sys.argv[2]), [apply("program")], program(PATIENT))
"""


def start(root: Path, tmp_path: Path) -> subprocess.Popen[bytes]:
    """A play whose program has begun, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", CALLER, root, tmp_path]
    caller = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True, env=environment)
    wait_for((root / "root/started").exists)
    return caller


def of_run(folder: Path) -> list[str]:
    """The processes that have the run's folder among their arguments."""
    listed = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            listed += [entry.parent.name] if os.fsencode(folder) in entry.read_bytes() else []
        except OSError:
            continue
    return listed


def test_ctrl_c_lets_the_program_of_a_task_end(root: Path, tmp_path: Path) -> None:
    caller = start(root, tmp_path)
    caller.send_signal(signal.SIGINT)
    assert caller.wait(300) != 0
    assert (root / "root/interrupted").exists()
    assert (in_the_image(root), of_run(tmp_path)) == ([], [])


def test_a_run_that_is_killed_leaves_no_process_and_no_mount(root: Path, tmp_path: Path) -> None:
    caller = start(root, tmp_path)
    with pytest.raises(HostUnfit, match="a running system"):
        # Its lock is free, as after a kill of gdsdeploy alone.
        roots._require_idle(root)
    caller.kill()
    caller.wait(300)
    # At once: in what a Ctrl-C leaves, programs have 15 seconds.
    wait_for(lambda: not in_the_image(root), 10.0)
    wait_for(lambda: not of_run(tmp_path))
    assert not (root / "root/interrupted").exists()
    left = root / "usr/sbin/policy-rc.d"
    assert (left.read_text(), left.stat().st_mode & 0o111) == ("", 0), "what is left of the mount point denies nothing"
    with inside(root):
        assert left.exists()
    assert not left.exists(), "the next run removes it"
    assert not any(str(root) in text for text in mounts())


def mounts() -> Iterator[str]:
    """Of each process, what is mounted in its namespace."""
    for entry in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            yield entry.read_text()
        except OSError:
            continue
