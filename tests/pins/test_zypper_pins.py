"""Nothing that people do with zypper moves the stack; without our locks, each of these does.

The real zypper, on an installed system of its own and signed repositories on loopback.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.drift import drift_facts
from gdsdeploy.platform import platform_for
from gdsdeploy.platform.sles import Sles
from gdsdeploy.repo import zyppins
from tests.pins.rendering import rendered
from tests.pins.zyppmachine import AROUND, NEWER, STACK, ZyppMachine
from tests.repos.archive import Key, Server, serve
from tests.repos.rpmarchive import Rpm, RpmArchive, build

COMMANDS = (
    "dup",
    "up",
    "up nvidia-driver-cuda",
    "dup --from site",
    "install cuda-13",
    "install --force-resolution cuda-12-9",
    "install --force-resolution cuda-drivers",
    "install --force-resolution nvidia-open",
    "install --force-resolution nvidia-open-driver-G06",
    "install nvidia-video-G06",
    "install libcufile-13-0",
    "install nvidia-gds-12-9",
    "install nvidia-fs",
    "install libcufile-12-9>1.14.1.1",
    "install --force-resolution kmod-nvidia-latest-dkms",
    "install kernel-default>6.4.0-150600.23.60.5",
    "remove libcufile-12-9",
)


@pytest.fixture(scope="module")
def zypp_served(tmp_path_factory: pytest.TempPathFactory, signing_key: Key) -> Iterator[Server]:
    www = tmp_path_factory.mktemp("zypp")
    RpmArchive(build([*STACK, *NEWER, *AROUND], www / "all")).publish(signing_key)
    with serve(www) as server:
        yield server


@pytest.fixture
def zypp_machine(tmp_path: Path, zypp_served: Server, tmp_path_factory: pytest.TempPathFactory) -> ZyppMachine:
    """The stack is installed; a repository of the administrator's offers everything that is newer."""
    machine = ZyppMachine(tmp_path / "root")
    pool = next(path for path in tmp_path_factory.getbasetemp().glob("zypp*/all"))
    machine.write(
        "etc/zypp/zypp.conf",
        "[main]\narch = x86_64\nsolver.onlyRequires = true\nmultiversion = provides:multiversion(kernel)\n",
    )
    machine.write("etc/zypp/repos.d/site.repo", site(zypp_served.uri))
    machine.install([str(pool / rpm.file) for rpm in [*STACK, *AROUND]])
    assert machine.run("refresh").returncode == 0
    return machine


def site(uri: str) -> str:
    return f"[site]\nname=site\nenabled=1\ntype=rpm-md\nbaseurl={uri}/all\ngpgcheck=0\n"


def pins(rpms: Sequence[Rpm]) -> list[dict[str, str]]:
    return [{"package": rpm.name, "version": rpm.version} for rpm in rpms]


def denied() -> tuple[str, ...]:
    sles = platform_for("sles-15")
    assert isinstance(sles, Sles)
    return sles.kept_out()


def pin(machine: ZyppMachine, rpms: Sequence[Rpm] = STACK, exclusive: Sequence[str] = ()) -> str:
    # The stack here has RHEL's names for the driver too, of which zypper's locks hold as much.
    text = zyppins.locks(pins(rpms), denied(), exclusive)
    machine.write("etc/zypp/locks", text)
    return text


def moved(machine: ZyppMachine, command: str) -> set[str]:
    names = {rpm.name for rpm in STACK}
    foreign = re.compile(r"(kmod-)?nvidia-|libnvidia|libcufile|gds-tools|cuda-drivers|kernel")
    return {name for name in machine.would(command) if name in names or foreign.match(name)}


@pytest.mark.parametrize("command", COMMANDS)
def test_with_the_locks_nothing_moves_on_zypper(command: str, zypp_machine: ZyppMachine) -> None:
    assert moved(zypp_machine, command) != set(), "without the locks, this would not be worth a test"
    pin(zypp_machine)
    assert moved(zypp_machine, command) == set()


def test_what_is_not_of_the_stack_may_come_and_go(zypp_machine: ZyppMachine) -> None:
    pin(zypp_machine)
    assert zypp_machine.would("install cuda-nvcc-12-9") == {"cuda-nvcc-12-9"}
    assert zypp_machine.would("remove numactl-libs") == set(), "libcufile needs it, and may not go"


def test_the_locks_of_another_stack_let_it_come_and_no_more(zypp_machine: ZyppMachine) -> None:
    """Moving on purpose: the versions that were locked go, with no way around the new locks."""
    wanted = [rpm for rpm in NEWER if rpm.name in {"libcufile-12-9", "gds-tools-12-9"}]
    names = {rpm.name for rpm in wanted}
    pin(zypp_machine, [*(rpm for rpm in STACK if rpm.name not in names), *wanted])
    words = " ".join(f"{rpm.name}={rpm.version}" for rpm in wanted)
    assert zypp_machine.would(f"install {words}") == names
    assert zypp_machine.would("dup") == names


def test_our_locks_and_others_live_through_each_others_changes(zypp_machine: ZyppMachine) -> None:
    """Zypper writes its file anew, in its own order: ours still hold, and are still known as ours."""
    ours = pin(zypp_machine)
    assert zypp_machine.run("addlock", "vim").returncode == 0
    there = (zypp_machine.root / "etc/zypp/locks").read_text()
    assert there != ours
    assert moved(zypp_machine, "dup") == set()
    assert zyppins.merged(there, ours, ours) == there, "nothing to do but to leave it"
    left = zyppins.merged(there, ours, "")
    assert re.findall(r"solvable_name: (.*)", left) == ["vim"]
    zypp_machine.write("etc/zypp/locks", left)
    assert moved(zypp_machine, "dup") != set()


def test_from_a_repository_for_the_stack_alone_comes_nothing_else(
    zypp_machine: ZyppMachine, zypp_served: Server, tmp_path: Path, signing_key: Key
) -> None:
    (tmp_path / "key").write_text(signing_key.armoured())
    (zypp_machine.root / "etc/zypp/repos.d/site.repo").unlink()
    write_repository(zypp_machine, zypp_served, tmp_path / "key")
    subprocess.run(
        ["rpm", f"--root={zypp_machine.root}", "--import", tmp_path / "key"],
        check=True,
        env={"HOME": zypp_machine.home},
    )
    done = zypp_machine.run("refresh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert zypp_machine.would("install cuda-nvcc-12-9") == {"cuda-nvcc-12-9"}
    pin(zypp_machine, exclusive=["gdsdeploy-cuda"])
    assert zypp_machine.would("install cuda-nvcc-12-9") == set()


def test_our_repository_is_refused_while_nobody_trusts_its_key(
    zypp_machine: ZyppMachine, zypp_served: Server, tmp_path: Path, signing_key: Key
) -> None:
    (tmp_path / "key").write_text(signing_key.armoured())
    write_repository(zypp_machine, zypp_served, tmp_path / "key")
    done = zypp_machine.run("refresh", "gdsdeploy-cuda")
    assert done.returncode != 0
    assert re.search(r"[Ss]ignature|GPG key|key id", done.stdout + done.stderr)


def write_repository(machine: ZyppMachine, server: Server, key: Path) -> None:
    index = {"repository": "cuda", "uri": f"{server.uri}/all", "host_keyring": str(key), "exclusive": True}
    machine.write("etc/zypp/repos.d/gdsdeploy.repo", rendered("zypp-repo.j2", {"gds_repo_indices": [index]}))


def test_the_drift_check_sees_what_is_locked() -> None:
    text = zyppins.locks(pins(STACK), denied(), [])
    facts = drift_facts(Document({"files": {"/etc/zypp/locks": text}}))
    assert isinstance(facts.locked, tuple)
    assert {rpm.name for rpm in STACK} <= set(facts.locked)


@pytest.mark.parametrize(
    ("begin", "names", "yes", "no"),
    [
        ("nv-", ["nv-a", "nv-ab", "nw"], ["nv-", "nv-b", "nv-aa", "nv-abc", "nv-a-b"], ["nv-a", "nv-ab", "nv", "nw"]),
        ("nv-", ["nv-"], ["nv-a", "nv--"], ["nv-", "nvx"]),
        ("a.", ["a.b+c"], ["a.b", "a.b+", "a.bbc", "a.c", "a.b+cd"], ["a.b+c", "ab", "axb"]),
        ("nv-", [], ["nv-", "nv-x"], ["nv"]),
        ("", ["lib-1-2", "lib-1"], ["l", "lib-1-", "lib-2", "x"], ["lib-1", "lib-1-2"]),
    ],
)
def test_every_other_name_is_meant_and_none_of_these(
    begin: str, names: list[str], yes: list[str], no: list[str]
) -> None:
    pattern = zyppins.others(begin, names)
    done = subprocess.run(["grep", "-E", pattern], input="\n".join([*yes, *no]), capture_output=True, text=True)
    assert done.stdout.split() == yes


@pytest.mark.parametrize("glob", ["nv*a", "nv?", "*nv*", "nv[a]*"])
def test_a_glob_that_is_no_beginning_is_refused(glob: str) -> None:
    with pytest.raises(ValueError, match="beginnings of names"):
        zyppins.locks([], [glob], [])


def test_comments_and_locks_of_no_known_shape_stay() -> None:
    theirs = "# by hand\ntype: package\nquery_string: x\n\nsolvable_name: y\nrepo: z\n"
    ours = zyppins.locks([{"package": "y", "version": "1-1"}], [], [])
    found = zyppins.merged(theirs, "", ours)
    assert "query_string: x" in found
    assert zyppins.merged(found, ours, "") == "type: package\nquery_string: x\n\nsolvable_name: y\nrepo: z\n"
    assert zyppins.merged("", ours, "") == ""
