"""Each verb in each environment: streams, locale, terminal, home, umask, user.  Exit code, files and words stay right.

A verb runs in a child of this process, so that a pair costs what the verb itself does; some pairs start a real one.
``make test`` takes a third of all pairs, always the same, in which each verb and each environment is often enough;
GDSDEPLOY_ALL_PAIRS=1 takes all.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
import re
import shutil
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pytest

from gdsdeploy import console
from gdsdeploy.cli import group, main
from tests.loopback.verbs import verbs

HERE = Path(__file__).parents[2]
H100 = HERE / "evidence" / "hosts" / "h100-libcufile-1.20.0.json"
RECORDING = next((HERE / "evidence" / "gdscheck").rglob("*.txt"))
#: What a process ends with whose last bytes Python couldn't write, and one with a traceback.
UNFLUSHED, BROKEN = 120, 99


@dataclass(frozen=True)
class Verb:
    """A command line that asks no host that answers; FOLDER in it is a folder of its own."""

    words: str
    code: int = 0
    #: in FOLDER, that it writes
    files: tuple[str, ...] = ()


VERBS = [
    Verb("help validate"),
    Verb("--help"),
    Verb("--version"),
    Verb("validte", 2),
    Verb("explain --error 5027"),
    Verb("explain --error 5999", 1),
    Verb(f"explain --log {RECORDING}"),
    Verb("explain --log fleet.yml", 31),
    Verb("explain --log", 1),
    Verb("gdscheck parse", 31),
    Verb("cufile check --libcufile 1.20 -", 16),
    Verb(f"explain --evidence {H100}"),
    Verb(f"doctor --evidence {H100}", 30),
    Verb("fits driver=580.126.09 kernel=6.19.2 nvidia-fs=2.28.4 --json", 30),
    Verb(f"topology --evidence {H100} --json"),
    Verb("topology fleet.yml", 20),
    Verb(f"gdscheck parse {RECORDING} --json"),
    Verb("gdscheck parse --require direct fleet.yml", 31),
    Verb("cufile check --libcufile 1.20 bad.json", 16),
    Verb("cufile render fleet.yml gpu1"),
    Verb("cufile render fleet.yml gpu1 --output FOLDER/cufile.json", 0, ("cufile.json",)),
    Verb("validate fleet.yml --junit FOLDER/j.xml --html FOLDER/h.html --metrics FOLDER/m.prom", 20,
         ("j.xml", "h.html", "m.prom")),
    Verb("validate fleet.yml --json", 20),
    Verb("diff before.json after.json", 33),
    Verb("diff after.json after.json --json"),
    Verb("plan fleet.yml --json", 20),
    Verb("provision fleet.yml --json", 20),
    Verb("remove fleet.yml --limit gpu1", 20),
    Verb("support-bundle fleet.yml -o FOLDER/case.tar.gz", 0, ("case.tar.gz",)),
    Verb("init gpu1 --ssh-config ssh_config -o FOLDER/new.yml", 20),
    Verb("watch fleet.yml --once", 20),
    Verb("rollout history fleet.yml --json"),
    Verb("rollout status fleet.yml", 50),
    Verb("rollout pause fleet.yml", 50),
    Verb("rollout start fleet.yml --dry-run", 50),
    Verb("kmod cache list"),
    Verb("kmod cache prune --json"),
    Verb("kmod cache verify"),
    Verb("kmod builders fleet.yml"),
    Verb("kmod trees --json"),
    Verb("kmod audit none.ko", 1),
    Verb("prometheus alerts"),
    Verb("prometheus dashboard"),
    Verb("sudoers ann"),
    Verb("sudoers ANN", 2),
]  # fmt: skip
#: Verb → why it isn't here.
OTHERS = {
    **dict.fromkeys(("lock", "mirror", "inventory", "kmod preflight"), "it needs repositories or builds"),
    **dict.fromkeys(("kmod build", "kmod sign", "kmod keygen", "kmod enrol", "kmod unenrol"), "as kmod audit, by the "
                    "host program's own parser"),
    **dict.fromkeys(("rollout resume", "rollout abort", "rollout rollback"), "as rollout pause, without a rollout"),
}  # fmt: skip

CLOSED, PIPE, FULL = "closed", "a pipe that nobody reads", "/dev/full"


@dataclass(frozen=True)
class Environment:
    """What differs from the usual; a stream is CLOSED, PIPE or a file, with < or > behind it in the wrong direction."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    stdin: str = "/dev/null"
    stdout: str = ""
    stderr: str = ""
    encoding: str = "utf-8"
    umask: int = 0o022
    #: of the child, before the verb begins
    prepare: Callable[[], object] = bool
    #: A verb may fail here, with an error that says so.
    strict: bool = True


def another_user() -> None:
    """Root's rights over files of others are gone."""
    library = ctypes.CDLL(None, use_errno=True)
    none = (ctypes.c_uint32 * 6)()
    if library.capset((ctypes.c_uint32 * 2)(0x20080522, 0), none):
        raise OSError(ctypes.get_errno(), "capset")


def foreign_home() -> None:
    home = Path("foreign")
    home.mkdir(mode=0o700, exist_ok=True)
    os.chown(home, 1234, 1234)
    another_user()


def vanished() -> None:
    folder = Path("vanished").absolute()
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    folder.rmdir()


OWN = {"GDSDEPLOY_STATE_DIR": None, "GDSDEPLOY_CACHE_DIR": None, "GDSDEPLOY_CONFIG_DIR": None}
ENVIRONMENTS = {
    "usual": Environment(),
    "closed output": Environment(stdout=CLOSED),
    "full output": Environment(stdout=FULL),
    "unread output": Environment(stdout=PIPE),
    "output that is read-only": Environment(stdout="/dev/zero<"),
    "closed errors": Environment(stderr=CLOSED),
    "full errors": Environment(stderr=FULL),
    "unread errors": Environment(stderr=PIPE),
    "unread both": Environment(stdout=PIPE, stderr=PIPE),
    "full both": Environment(stdout=FULL, stderr=FULL),
    "closed input": Environment(stdin=CLOSED),
    "input that is write-only": Environment(stdin="/dev/null>", strict=False),
    "all closed": Environment(stdin=CLOSED, stdout=CLOSED, stderr=CLOSED),
    "closed input and output": Environment(stdin=CLOSED, stdout=CLOSED),
    "ASCII": Environment({"LC_ALL": "C"}, encoding="ascii"),
    "Latin-1": Environment({"LC_ALL": "de_DE.ISO-8859-1"}, encoding="latin-1"),
    "EUC-JP": Environment({"LC_ALL": "ja_JP.EUC-JP"}, encoding="euc-jp"),
    "Latin-1, full": Environment(encoding="latin-1", stdout=FULL),
    "no columns": Environment({"COLUMNS": "0", "LINES": "0"}),
    "one column": Environment({"COLUMNS": "1", "LINES": "1"}),
    "many columns": Environment({"COLUMNS": "5000"}),
    "columns that are words": Environment({"COLUMNS": "wide"}),
    "a dumb terminal": Environment({"TERM": "dumb"}),
    "no terminal": Environment({"TERM": None}),
    "colours": Environment({"FORCE_COLOR": "1"}),
    "no colours": Environment({"NO_COLOR": "1"}),
    "a private umask": Environment(umask=0o077),
    "an open umask": Environment(umask=0),
    "no home": Environment({**OWN, "HOME": None}, strict=False),
    "an empty home": Environment({**OWN, "HOME": ""}, strict=False),
    "a home that is missing": Environment({**OWN, "HOME": "/nonexistent/home"}, strict=False),
    "a home that is a device": Environment({**OWN, "HOME": "/dev/null"}, strict=False),
    "a home of another user": Environment({**OWN, "HOME": "foreign"}, prepare=foreign_home, strict=False),
    "another user": Environment(prepare=another_user),
    "state that is a file": Environment({"GDSDEPLOY_STATE_DIR": "fleet.yml"}, strict=False),
    "no temporary folder": Environment({"TMPDIR": "/nonexistent"}),
    "no path": Environment({"PATH": "/nonexistent"}, strict=False),
    "a folder that vanished": Environment(prepare=vanished, strict=False),
}


@dataclass(frozen=True)
class Ended:
    """How a verb ended; a text is None where it can't be read."""

    code: int
    out: str | None
    err: str | None
    files: dict[str, int]


def _open(target: str, capture: Path, number: int) -> None:
    """Make descriptor ``number`` what an environment says."""
    if target == CLOSED:
        os.close(number)
    elif target == PIPE:
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, number)
    elif target.endswith("<") or (not number and not target.endswith(">")):
        os.dup2(os.open(target.rstrip("<"), os.O_RDONLY), number)
    else:
        os.dup2(os.open(target.rstrip(">") or capture, os.O_WRONLY | os.O_CREAT, 0o600), number)


def _stream(number: int, target: str, encoding: str) -> TextIO | None:
    """As Python makes it when it starts."""
    if target == CLOSED:
        return None
    errors = "backslashreplace" if number == 2 else "strict"
    return open(number, "w" if number else "r", encoding=encoding, errors=errors, closefd=False)


def _child(words: list[str], where: Environment, captures: list[Path]) -> int:
    os.umask(where.umask)
    targets = (where.stdin, where.stdout, where.stderr)
    for number, target in enumerate(targets):
        _open(target, captures[number], number)
    for name, value in where.variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, _stream(number, targets[number], where.encoding))
    try:
        where.prepare()
        importlib.reload(console)
        main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else BROKEN
    except BaseException:  # noqa: BLE001 - whatever it is, it is what a user would see
        captures[3].write_text(traceback.format_exc())
        return BROKEN
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except OSError:
        return UNFLUSHED
    return code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files that the verbs read, and everything that they import, which another user may not read."""
    place = tmp_path_factory.mktemp("environments")
    for name in ("fleet.yml", "gdsdeploy.lock"):
        text = (HERE / "golden" / "lab" / name).read_text()
        (place / name).write_text(re.sub(r"port: 220(\d\d)", r"port: \1", text))
    (place / "bad.json").write_text('{"profile": {"nvtx": "é"}}')
    (place / "ssh_config").write_text("Host gpu1\n  HostName 127.0.0.1\n  Port 1\n")
    (place / "known_hosts").touch()
    kept = dict(os.environ), Path.cwd()
    os.chdir(place)
    os.environ |= {"GDSDEPLOY_STATE_DIR": str(place / "state"), "GDSDEPLOY_CACHE_DIR": str(place / "cache")}
    list(verbs(group))
    for name in ("before", "after"):
        report = run(place, Verb("validate fleet.yml --json --timeout 5", 20), ENVIRONMENTS["usual"]).out
        (place / f"{name}.json").write_text(str(report).replace("127.0.0.1", name))
    yield place
    os.environ.clear()
    os.environ |= kept[0]
    os.chdir(kept[1])


def run(folder: Path, verb: Verb, where: Environment) -> Ended:
    own = folder / "own"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    captures = [folder / name for name in ("input", "output", "errors", "trace")]
    for capture in captures:
        capture.unlink(missing_ok=True)
    words = verb.words.replace("FOLDER", str(own)).split()
    child = os.fork()
    if not child:
        os._exit(_child(words, where, captures))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert not captures[3].exists(), captures[3].read_text()
    out, err = (
        path.read_bytes().decode(where.encoding) if not target else None
        for path, target in zip(captures[1:3], (where.stdout, where.stderr), strict=True)
    )
    return Ended(code, out, err, {path.name: stat.S_IMODE(path.stat().st_mode) for path in own.iterdir()})


def plain(text: str) -> list[str]:
    """The words, without colours, times, and whatever a stream has in place of its own characters."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)
    return re.sub(
        r"\d+(\.\d+)?( ?ms| s)\b|\d{4}-\d\d-\d\d\S*|\d{8}T\d{4}-\w+|\"(seconds|time|when)\": [^,]*", "TIME", text
    ).split()


def judge(verb: Verb, where: Environment, usual: Ended, ended: Ended) -> None:
    """What is right of a verb that ended in an environment, and not in the usual one."""
    unread = where.stdout and bool(usual.out)
    lost = (141 if where.stdout == PIPE else 1) if unread else 0
    failed = not where.strict and ended.code not in (usual.code, lost) and "rror: " in (ended.err or "")
    assert failed or ended.code == (usual.code or lost), ended
    assert "Traceback" not in f"{ended.out}{ended.err}"
    if failed:
        return
    if ended.out is not None and where.strict:
        # A narrow terminal breaks words at their hyphens.
        assert "".join(plain(ended.out)) == "".join(plain(str(usual.out)))
    if ended.err is not None:
        said = [line for line in ended.err.splitlines() if line.startswith("error: standard output can't be written")]
        assert bool(said) == bool(unread and where.stdout != PIPE), ended.err
        errors = [line for line in str(usual.err).splitlines() if line.startswith(("error:", "hint:", "Error:"))]
        assert not where.strict or set(plain(" ".join(errors))) <= set(plain(ended.err))
    assert set(ended.files) == set(verb.files)
    for name, mode in ended.files.items():
        assert mode == (0o600 if name == "case.tar.gz" else 0o666 & ~where.umask), name


PAIRS = [
    (verb, name)
    for (row, verb), (column, name) in itertools.product(enumerate(VERBS), enumerate(ENVIRONMENTS))
    if name != "usual" and ("GDSDEPLOY_ALL_PAIRS" in os.environ or (row + column) % 3 == 0)
]


@pytest.fixture(scope="module")
def usual(folder: Path) -> Callable[[Verb], Ended]:
    known: dict[str, Ended] = {}

    def of(verb: Verb) -> Ended:
        if verb.words not in known:
            known[verb.words] = run(folder, verb, ENVIRONMENTS["usual"])
        return known[verb.words]

    return of


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.words[:40])
def test_in_the_usual_environment(verb: Verb, usual: Callable[[Verb], Ended]) -> None:
    ended = usual(verb)
    assert (ended.code, set(ended.files)) == (verb.code, set(verb.files)), ended
    assert bool(verb.code in (0, 33)) or ended.err


@pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name != "usual"])
def test_in_another_environment(name: str, folder: Path, usual: Callable[[Verb], Ended]) -> None:
    for verb in [verb for verb, place in PAIRS if place == name]:
        try:
            judge(verb, ENVIRONMENTS[name], usual(verb), run(folder, verb, ENVIRONMENTS[name]))
        except AssertionError as error:
            pytest.fail(f"gdsdeploy {verb.words}: {error}")


@pytest.mark.parametrize(
    ("variables", "streams", "code"),
    [
        ({"PYTHONIOENCODING": "latin-1"}, "", 33),
        ({"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "COLUMNS": "0"}, "", 33),
        ({}, ">/dev/full", 33),
        ({}, "<&- >&- 2>&-", 33),
        ({}, "| head -c 0", 33),
    ],
    ids=str,
)
def test_a_process_of_its_own(
    variables: dict[str, str], streams: str, code: int, folder: Path, usual: Callable[[Verb], Ended]
) -> None:
    """Python starts there as the children above pretend."""
    verb = Verb("diff before.json after.json", 33)
    script = f"set -o pipefail; {Path(sys.executable).parent}/gdsdeploy {verb.words} {streams}"
    done = subprocess.run(["bash", "-c", script], env={**os.environ, **variables}, capture_output=True, check=False)
    where = Environment(stdout=streams, stderr=streams, encoding="ascii" if variables else "utf-8")
    out, err = (None if streams else text.decode(where.encoding) for text in (done.stdout, done.stderr))
    judge(verb, where, usual(verb), Ended(done.returncode, out, err, {}))
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)


def test_streams_that_are_closed_are_open_in_programs_that_are_started() -> None:
    """And a file that is opened gets none of their numbers."""
    code = """if True:
        import os, subprocess
        from gdsdeploy.host.io import streams
        with streams.guarded():
            opened = os.open("/dev/null", os.O_RDONLY)
            done = subprocess.run(["test", "-e", "/proc/self/fd/0", "-a", "-e", "/proc/self/fd/2"])
            os._exit(done.returncode if opened > 2 else 9)
    """
    assert (
        subprocess.run(
            ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "x", sys.executable, "-c", code], check=False
        ).returncode
        == 0
    )


def test_every_verb_is_here() -> None:
    listed = {name for name in verbs(group) if not name.startswith("lab")}
    assert {name for name in listed if not any(f"{verb.words} ".startswith(f"{name} ") for verb in VERBS)} == {*OTHERS}
