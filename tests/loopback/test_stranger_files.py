"""Files that others made or named: no reader waits for a writer, or takes a file of any size into memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gdsdeploy.converge.machine import Files
from gdsdeploy.errors import ControllerUnfit, FleetInvalid, HostUnreachable
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.gdscheck import reader
from gdsdeploy.host.io import reading
from gdsdeploy.model.rollout_settings import Notify
from gdsdeploy.rollout.notify import Notifier
from gdsdeploy.ssh.endpoint import Endpoint
from gdsdeploy.ssh.transport import known_keys
from tests import commandline

MIB = 1024 * 1024

pytestmark = pytest.mark.timeout(600)
#: Verbs that read a file of others, with FILE where its name goes.
VERBS = (
    "validate FILE",
    "validate --evidence FILE",
    "lock --check FILE",
    "mirror FILE x",
    "diff FILE FILE",
    "topology --evidence FILE",
    "explain --evidence FILE /mnt",
    "cufile check --libcufile 1.20 FILE",
    "gdscheck parse FILE",
)


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Half a GiB more than before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 512 * MIB, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(params=["pipe", "/dev/zero", "loop", "larger than any disk"])
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file that a usual open or a whole read would never come to the end of, or that cannot be read."""
    if request.param == "/dev/zero":
        return Path("/dev/zero")
    path = tmp_path / "file"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "loop":
        path.symlink_to(path)
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_what_is_wrong_and_where(
    verb: str, strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", sys.__stdin__)
    code = commandline.run(*verb.replace("FILE", str(strange)).split())
    out, err = capfd.readouterr()
    assert code not in (0, 70)
    assert "Traceback" not in err
    assert err.count("error: ") + err.count("Error: ") == 1
    # A pipe is an empty cufile.json, which only a library can refuse.
    assert any(name in (out + err).replace("\n", "") for name in (str(strange), "/no/such"))


def fleet(folder: Path, **profile: object) -> Path:
    path = folder / "fleet.yml"
    value = {
        "version": 1,
        "profiles": {"gds": {"os": "debian-13", "repositories": [], **profile}},
        "hosts": {"gpu1": "gds"},
    }
    path.write_text(yaml.safe_dump(value))
    return path


def test_files_that_a_fleet_file_names(strange: Path, tmp_path: Path) -> None:
    intent = load_fleet(fleet(tmp_path, topology={"golden": str(strange)}))
    words = intent.profiles["gds"].topology._document
    assert isinstance(words, str)
    assert words.startswith(f"{strange}: ")
    with pytest.raises(FleetInvalid, match=str(strange)):
        Notifier(
            Notify(webhook="http://x/", token_file=str(strange)), rollout="r", fleet=tmp_path / "fleet.yml", warn=print
        )


def test_keyrings(strange: Path) -> None:
    try:
        assert Files().content(str(strange)) == b""
    except FleetInvalid as error:
        assert error.message.startswith(f"{strange}: ")  # noqa: PT017 - a pipe is empty instead


def test_known_hosts(strange: Path) -> None:
    host = Endpoint("gpu1", "192.0.2.1", 22, "root", (), (strange,))
    try:
        assert known_keys(host) == []
    except OSError as error:
        assert error.filename == str(strange)  # noqa: PT017 - a pipe and a link to itself have no keys instead


def test_patterns_of_known_hosts_take_no_time(tmp_path: Path) -> None:
    """A regular expression tries every way to share a name out among stars."""
    path = tmp_path / "known_hosts"
    path.write_text(f"{'*1' * 30}x,{'*' * 60}x,!{'?*' * 30}x,[192.0.2.*]:2?22 ssh-ed25519 AAAA\n")
    begin = time.process_time()
    host = Endpoint("gpu1", "192.0.2." + "1" * 60, 2222, "root", (), (path,))
    assert [key.type for key in known_keys(host)] == ["ssh-ed25519"]
    assert time.process_time() - begin < 60


def test_a_key_that_is_not_ascii_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text("192.0.2.1 ssh-ed25519 AAA\u00c4\n|1|\u00c4|\u00c4= ssh-ed25519 AAAA\n192.0.2.1 ssh-rsa AAAA\n")
    keys = known_keys(Endpoint("gpu1", "192.0.2.1", 22, "root", (), (path,)))
    assert [(key.line, key.type) for key in keys] == [(3, "ssh-rsa")]


def test_a_pipe_with_a_writer_is_read(tmp_path: Path) -> None:
    """As a shell makes it of <(command)."""
    output, into = os.pipe()
    os.write(into, b"a" * 100)
    os.close(into)
    assert reading.whole(f"/dev/fd/{output}", 100, pipes=True) == b"a" * 100
    os.close(output)
    file = tmp_path / "file"
    file.write_bytes(b"a" * 101)
    assert reading.beginning(str(file), 99) == b"a" * 100
    with pytest.raises(OSError, match="larger than 100 bytes"):
        reading.whole(str(file), 100)
    with pytest.raises(IsADirectoryError):
        reading.whole(str(tmp_path), 100)


#: Runs a command, and prints its exit status and the most memory that it had, in KiB.  A process begins with the memory
#: of the one that starts it, so this one has to be small.
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_the_largest_recording_takes_less_than_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"\n" * (reader.LIMIT + 1))
    parse = [sys.executable, "-m", "gdsdeploy", "gdscheck", "parse", str(file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    measured = subprocess.check_output([sys.executable, "-c", MEASURE, *parse], env=environment, text=True)
    status, memory = map(int, measured.split())
    assert status == 31
    assert 10 * 1024 < memory < 300 * 1024


#: Runs verbs in one process, and prints what each ends with.
RUNS = """
import json, sys
from gdsdeploy.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        print(end.code, flush=True)
"""
RIGHTS = "-dac_override,-dac_read_search,-fowner"


def test_what_belongs_to_another_user_is_one_error_with_the_way_out(tmp_path: Path) -> None:
    """State of another user, and a home with keys of another user: as with sudo, and then without."""
    state, home = tmp_path / "state", tmp_path / "home" / ".ssh"
    for folder in (state, home):
        folder.mkdir(parents=True)
    (home / "id_rsa").touch()
    fleet = tmp_path / "fleet.yml"
    fleet.write_text(
        "version: 1\nrepositories: {debian: {suites: [trixie]}}\n"
        "profiles: {gds: {os: debian-13, repositories: [debian]}}\n"
        "hosts: {gpu1: {profile: gds, address: 127.0.0.1, port: 9}}\n"
    )
    verbs = [["rollout", "status", fleet], ["rollout", "history", fleet], ["topology", fleet]]
    root = os.geteuid() == 0
    for folder in (state, home):
        if root:
            os.chown(folder, 65534, 65534)
        folder.chmod(0o700 if root else 0)
    argv = ["setpriv", f"--bounding-set={RIGHTS}", f"--inh-caps={RIGHTS}"] if root else []
    done = subprocess.run(
        [*argv, sys.executable, "-c", RUNS, json.dumps(verbs, default=str)],
        env={**os.environ, "HOME": str(home.parent), "GDSDEPLOY_STATE_DIR": str(state), "PYTHONPATH": str(Path.cwd())},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [str(ControllerUnfit.exit_code)] * 2 + [str(HostUnreachable.exit_code)], done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count(f"{state / 'rollouts'}/fleet-") == 2
    if root:
        assert (
            done.stderr.count(f": {state} belongs to nobody, and this is root\nhint: Run it as nobody, or choose") == 2
        )
    for folder in (state, home):
        folder.chmod(0o700)
