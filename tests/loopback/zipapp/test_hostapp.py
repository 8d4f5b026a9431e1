"""The program that is sent to hosts: always the same bytes; it runs where only Python is; where a host keeps it."""

from __future__ import annotations

import ast
import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from gdsdeploy import __version__
from gdsdeploy.zipapp import bootstrap, hostapp
from tests.patience import SURELY

ROOT = Path(__file__).parents[3]
TABLES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "gdsdeploy/host/data").glob("*.json"))


@cache
def interpreters() -> list[str]:
    """Every Python from 3.9 on that is installed here."""
    pythons = {sys.executable, *filter(None, (shutil.which(f"python3.{minor}") for minor in range(9, 15)))}
    # Where developers keep several: pyenv and uv.
    for folder in (".pyenv/versions", ".local/share/uv/python"):
        pythons |= {str(path) for path in Path.home().glob(f"{folder}/*3.*/bin/python3")}
    chosen: dict[tuple[int, ...], str] = {}
    for path in sorted(pythons):
        result = subprocess.run([path, "--version"], capture_output=True, text=True)
        version = tuple(
            int(number) for number in result.stdout.removeprefix("Python ").split(".")[:2] if number.isdigit()
        )
        if result.returncode == 0 and version >= (3, 9):
            chosen.setdefault(version, path)
    return [path for _, path in sorted(chosen.items())]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostapp") / "gdsdeploy-host.pyz"
    hostapp.build(path)
    return path


def test_the_same_sources_give_the_same_bytes(program: Path) -> None:
    hostapp.packed.cache_clear()
    assert program.read_bytes() == hostapp.build()


def test_it_holds_our_sources_and_nothing_else(program: Path) -> None:
    with zipfile.ZipFile(program) as archive:
        names = archive.namelist()
        assert names == sorted(names)
        assert [name for name in names if not name.endswith(".py")] == TABLES
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        for name in names:
            if name.startswith("gdsdeploy/host/"):
                assert archive.read(name) == (ROOT / name).read_bytes()
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gdsdeploy" / "host").rglob("*.py")}
    packed = {"__main__.py", "gdsdeploy_bootstrap.py", "gdsdeploy/__init__.py"}
    assert set(names) == sources | packed | set(TABLES)


def test_an_unchanged_program_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "host.pyz"
    hostapp.build(path)
    before = path.stat().st_mtime_ns
    hostapp.build(path)
    assert path.stat().st_mtime_ns == before
    path.write_bytes(b"old")
    hostapp.build(path)
    assert path.read_bytes() == hostapp.build()
    assert path.stat().st_mode & 0o777 == 0o755
    assert [entry.name for entry in tmp_path.iterdir()] == ["host.pyz"]


@pytest.mark.parametrize("python", interpreters())
def test_it_runs_on_a_bare_python(program: Path, python: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [python, "-I", "-S", program, "hello"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert json.loads(result.stdout)["kernel"]
    result = subprocess.run(
        [python, "-I", "-S", program, "evidence"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert json.loads(result.stdout)["version"] == 1
    facts = subprocess.run(
        [python, "-I", "-S", program, "facts", "--evidence", "-"],
        input=result.stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(facts.stdout)["kernel"]["release"] == json.loads(result.stdout)["host"]["uname"]["release"]
    argv = [python, "-I", "-S", program, "--version"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == f"gdsdeploy-host {__version__}\n"
    for words in (["kmod", "audit", "--help"], ["boot", "--help"]):
        result = subprocess.run([python, "-I", "-S", program, *words], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")


def test_every_module_in_it_is_python_3_9_and_imports_on_its_own(program: Path) -> None:
    with zipfile.ZipFile(program) as archive:
        for name in (name for name in archive.namelist() if name.endswith(".py")):
            ast.parse(archive.read(name), feature_version=(3, 9))
    sources = [name for name in archive.namelist() if name.startswith("gdsdeploy/host/") and name.endswith(".py")]
    names = [name[:-3].replace("/", ".") for name in sources]
    imports = (
        "import importlib, sys; sys.path.insert(0, sys.argv[1]); [importlib.import_module(n) for n in sys.argv[2:]]"
    )
    names = [name.removesuffix(".__init__") for name in names]
    subprocess.run([sys.executable, "-I", "-S", "-c", imports, program, *names], check=True)


def test_a_python_that_is_too_old_is_told_so() -> None:
    with zipfile.ZipFile(io.BytesIO(hostapp.build())) as archive:
        main = archive.read("__main__.py").decode()
    old = main.replace("sys.version_info", "(3, 8, 18)")
    result = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "python3 is 3.8; 3.9 or newer is needed\n")


def test_it_can_be_started_by_name(program: Path) -> None:
    assert program.read_bytes().startswith(b"#!/usr/bin/python3 -IS\n")
    assert subprocess.run([program, "hello"], capture_output=True, check=True).stdout


def test_versions_are_kept_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = hostapp.keep(tmp_path / "new")
    assert first.read_bytes() == hostapp.build()
    assert hostapp.keep(tmp_path / "new") == first
    monkeypatch.setattr(hostapp, "_MAIN", "print()\n")
    second = hostapp.keep(tmp_path / "new")
    assert second != first
    assert sorted((tmp_path / "new").iterdir()) == sorted([first, second])


def sent(words: list[str], text: bytes, python: str = "python3", mark: bytes = b"here\n") -> tuple[int, str, str]:
    """Exit status, standard output and error of what a host does with the program on its standard input."""
    data = hostapp.sent(hostapp.build(), words, text, mark)
    result = subprocess.run(["sh", "-c", hostapp.start(python)], input=data, capture_output=True, check=False)
    return result.returncode, result.stdout.decode(), result.stderr.decode()


@pytest.mark.parametrize("python", interpreters())
def test_it_runs_from_standard_input_in_one_process(python: str) -> None:
    document = {"version": 1, "resources": [{"resource": "expectation", "desired": {}}]}
    status, out, err = sent(["apply", "--check", "--json", "--desired", "-"], json.dumps(document).encode(), python)
    assert (status, err) == (0, "")
    mark, _, answer = out.partition("\n")
    assert mark == "here"
    assert [entry["name"] for entry in json.loads(answer)["resources"]] == ["expectation"]


@pytest.mark.parametrize("python", interpreters())
def test_it_reads_its_tables_wherever_it_runs_from(program: Path, python: str) -> None:
    words = ["explain", "--error", "5027", "--json"]
    for argv in ([program], [program.parent / "unpacked"]):
        if argv[0].name == "unpacked":
            shutil.unpack_archive(program, argv[0], "zip")
        result = subprocess.run([python, "-I", "-S", *argv, *words], capture_output=True, text=True, check=True)
        assert json.loads(result.stdout)["entries"][0]["code"] == 5027
    status, out, err = sent(words, b"", python, mark=b"")
    assert (status, err, out) == (0, "", result.stdout)


def test_it_installs_itself_from_standard_input() -> None:
    """The program that runs from memory is what the host gets."""
    document = {"version": 1, "resources": [{"resource": "program", "desired": {}}]}
    _, out, _ = sent(["apply", "--check", "--json", "--desired", "-"], json.dumps(document).encode())
    (result,) = json.loads(out.partition("\n")[2])["resources"]
    assert result["unknown"] == []
    after = {change["subject"]: change["after"] for change in result["changes"]}
    digest = hashlib.sha256(hostapp.build()).hexdigest()
    assert after.get("/usr/lib/gdsdeploy/gdsdeploy-host.pyz", f"sha256:{digest}") == f"sha256:{digest}"


def test_a_python_that_is_too_old_says_so_before_anything_is_read() -> None:
    source = (ROOT / "gdsdeploy" / "zipapp" / "bootstrap.py").read_text()
    ast.parse(source, feature_version=(3, 4))
    old = f"import sys; sys.version_info = (3, 6, 8)\n{source}\nload(None)"
    result = subprocess.run([sys.executable, "-I", "-c", old], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (78, "its python3 is 3.6; 3.9 or newer is needed\n")


def test_half_a_program_is_not_run() -> None:
    data = hostapp.sent(hostapp.build(), ["hello"], b"", b"")[:-20000]
    result = subprocess.run(["sh", "-c", hostapp.start()], input=data, capture_output=True, text=False, check=False)
    assert result.returncode == 1
    assert b"did not arrive whole" in result.stderr


#: A host that starts as another user, or has no program yet.
AS = (
    "import os; os.geteuid = lambda: {uid}; f = open(0, 'rb', closefd=False); exec(f.read({size})); FOLDER = {folder!r}"
)


@contextmanager
def host_without_program(
    folder: Path, mark: bytes, *, uid: int = 0, limit: int = 0
) -> Iterator[subprocess.Popen[bytes]]:
    """A host that has asked for the program."""
    source = AS.format(uid=uid, size=len(hostapp._bootstrap()), folder=str(folder))
    argv = [sys.executable, "-I", "-S", "-c", f"{source}; load(f)"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(hostapp.sent(zipped(), [], b"", mark, limit=limit, waits=True))
        process.stdin.flush()
        request = bootstrap.request_of(mark)
        assert mark not in request
        assert process.stdout.read(len(request)) == request
        yield process


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_host_without_the_program_asks_for_it(uid: int, tmp_path: Path) -> None:
    mark = b"\nmark\n"
    with host_without_program(tmp_path / "run", mark, uid=uid) as process:
        out, err = process.communicate(hostapp.framed(zipped()))
    assert (process.returncode, out, err) == (0, mark + b"hello\n", b"")
    assert bool(list(tmp_path.glob("run/program-*"))) == (uid == os.geteuid() == 0)


@pytest.mark.parametrize("size", [0, 4, 100])
def test_half_a_program_that_was_asked_for_is_not_run(size: int, tmp_path: Path) -> None:
    """Nor is anything of it left for the next call."""
    with host_without_program(tmp_path / "run", b"\nmark\n") as process:
        out, err = process.communicate(hostapp.framed(zipped())[:size])
    assert (process.returncode, out) == (1, b"")
    assert err == b"gdsdeploy's program did not arrive whole\n"
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("limit", [1, 3600])
def test_a_host_does_not_wait_for_the_program_for_ever(limit: int, tmp_path: Path) -> None:
    """Neither after its time, nor when its reader is gone."""
    with host_without_program(tmp_path / "run", b"\nmark\n", limit=limit) as process:
        assert process.stdout
        if limit > 1:
            process.stdout.close()
        assert process.wait(SURELY) != 0


def zipped(text: str = "print('hello')\n") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        # without an explicit time, writestr takes the clock's, and two archives of the same text differ
        archive.writestr(zipfile.ZipInfo("__main__.py"), text)
        archive.writestr(zipfile.ZipInfo("gdsdeploy/__init__.py"), "")
    return stream.getvalue()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of programs, in place of root's."""
    folder = tmp_path / "run"
    monkeypatch.setattr(bootstrap, "FOLDER", str(folder))
    return folder


def test_it_is_unpacked_once(programs: Path) -> None:
    place = Path(bootstrap.unpack(str(programs / "program-1"), zipped))
    assert (place / "program.pyz").read_bytes() == zipped()
    assert place.stat().st_mode & 0o777 == 0o700
    (place / "__main__.py").write_text("compiled\n")
    assert bootstrap.unpack(str(place), zipped) == str(place)
    assert (place / "__main__.py").read_text() == "compiled\n"
    assert [path.name for path in programs.iterdir()] == ["program-1"]


def test_another_call_may_be_faster(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def first(source: str, target: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename)
            patch.setattr(os, "getpid", lambda: 1)
            bootstrap.unpack(target, lambda: zipped("first"))
        rename(source, target)

    monkeypatch.setattr(os, "rename", first)
    place = Path(bootstrap.unpack(str(programs / "program-1"), zipped))
    assert (place / "__main__.py").read_text() == "first"
    assert [path.name for path in programs.iterdir()] == ["program-1"]


def test_what_finds_no_room_leaves_nothing(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: zipfile.ZipFile, place: str) -> None:
        (Path(place) / "half").write_text("a file")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(OSError, match="No space left"):
        bootstrap.unpack(str(programs / "program-1"), zipped)
    assert list(programs.iterdir()) == []


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_can_change_is_not_used(mode: int, programs: Path) -> None:
    folder = programs / "program-1"
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text("theirs")
    folder.chmod(mode)
    with pytest.raises(OSError, match=r"not empty|exists"):
        bootstrap.unpack(str(folder), zipped)
    folder.chmod(0o700)
    assert bootstrap.unpack(str(folder), zipped) == str(folder)
    programs.chmod(mode)
    with pytest.raises(OSError, match="can be changed by others"):
        bootstrap.unpack(str(programs / "program-2"), zipped)


def test_a_link_is_not_used(programs: Path, tmp_path: Path) -> None:
    bootstrap.unpack(str(programs / "program-1"), zipped)
    (programs / "program-2").symlink_to(programs / "program-1")
    with pytest.raises(NotADirectoryError):
        bootstrap.unpack(str(programs / "program-2"), zipped)


def test_programs_of_yesterday_go_and_locks_stay(programs: Path) -> None:
    for name in ("program-old", "program-new", "apply.lock"):
        bootstrap.unpack(str(programs / name), zipped)
    for name in ("program-old", "apply.lock"):
        os.utime(programs / name, (0, time.time() - bootstrap.RETENTION - 60))
    bootstrap.unpack(str(programs / "program-1"), zipped)
    assert sorted(path.name for path in programs.iterdir()) == ["apply.lock", "program-1", "program-new"]


@pytest.mark.parametrize("uid", [0, 1000])
def test_without_the_folder_it_runs_from_memory(uid: int, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.write_text("no folder")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    place, code = bootstrap.locate("1", lambda: zipped("answer = 42\n"))
    values: dict[str, object] = {}
    exec(code, values)
    os.close(int(place.rpartition("/")[2]))
    assert (place.startswith("/proc/self/fd/"), values["answer"]) == (True, 42)
