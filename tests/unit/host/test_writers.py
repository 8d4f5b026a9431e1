"""The host program changes files through ``atomic`` only, or by a call that tests/cases/host/writers.yml has."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import gdsdeploy.host
from tests.unit.host import cases

HOST = Path(gdsdeploy.host.__file__).parent

_OS = "mkdir makedirs chmod chown lchown lchmod rename renames replace symlink link unlink remove rmdir removedirs"
_OS += " truncate mkfifo mknod setxattr removexattr utime mkdirat chflags lchflags creat"
_SHUTIL = "copy copy2 copyfile copymode copystat copytree move rmtree chown make_archive unpack_archive"
_TEMPFILE = "TemporaryFile NamedTemporaryFile SpooledTemporaryFile TemporaryDirectory mkstemp mkdtemp mktemp"
#: Each mention counts, not only a call: it may be handed on.
NAMES = {
    *(f"os.{name}" for name in _OS.split()),
    *(f"shutil.{name}" for name in _SHUTIL.split()),
    *(f"tempfile.{name}" for name in _TEMPFILE.split()),
    *("sqlite3.connect", "logging.FileHandler", "fileinput.input", "shelve.open", "dbm.open"),
}
#: What opens a file by a mode that is its second argument.
OPENERS = {"zipfile.ZipFile", "io.FileIO", "tarfile.TarFile", "gzip.GzipFile", "lzma.LZMAFile", "bz2.BZ2File"}
#: Modules whose names are never given other ones, so that a reader of this page finds every use.
PLAIN = {"os", "shutil", "tempfile", "io", "zipfile", "tarfile", "gzip", "lzma", "bz2", "codecs", "subprocess"}
_PATH = (
    "write_text write_bytes touch unlink rmdir mkdir rename chmod lchmod symlink_to hardlink_to extractall extract bind"
)
METHODS = set(_PATH.split())
READING = {"r", "rb", "rt", "r:", "r:*"}
#: Programs that write where their arguments say, and shells and interpreters, which do anything.
_PROGRAMS = "cp mv ln install tee dd mkdir mktemp rm rmdir chmod chown touch truncate sed tar cpio rsync unzip patch"
_PROGRAMS += " git curl wget sh bash python3 perl awk make"
PROGRAMS = set(_PROGRAMS.split())
#: ``os.open`` with nothing but these only reads.
HARMLESS = {f"os.O_{name}" for name in ("RDONLY", "CLOEXEC", "NOFOLLOW", "NONBLOCK", "DIRECTORY", "PATH")}

#: Module → call → how often, and why it may.
REVIEWED: dict[str, dict[str, tuple[int, str]]] = cases.load("host/writers")


def writing(tree: ast.AST) -> Iterator[str]:
    """The names of all that changes files, as they are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in NAMES:
            yield ast.unparse(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _renamed(node)
        elif isinstance(node, ast.Call):
            yield from _writing_call(node)
        elif isinstance(node, ast.List):
            yield from _program(node)


def _writing_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else name
    if name == "os.open":
        if len(node.args) < 2 or {ast.unparse(part) for part in _flags(node.args[1])} - HARMLESS:
            yield name
    elif name == "getattr" and ast.unparse(node.args[0]) in PLAIN:
        yield ast.unparse(node)
    elif name not in NAMES and (
        ((method == "open" or name in OPENERS) and not _reads(node)) or (method in METHODS and not _is_ours(name))
    ):
        yield name
    elif node.args and isinstance(node.args[0], ast.Tuple):
        yield from _program(node.args[0])


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("os", "shutil", "atomic")


def _renamed(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Imports that give names of PLAIN modules, or the modules themselves, another name."""
    if isinstance(node, ast.ImportFrom):
        if node.level == 0 and node.module in PLAIN:
            yield ast.unparse(node)
    elif any(alias.asname and alias.name in PLAIN for alias in node.names):
        yield ast.unparse(node)


def _program(argv: ast.List | ast.Tuple) -> Iterator[str]:
    first = argv.elts[0] if len(argv.elts) > 1 else None
    if isinstance(first, ast.Constant) and str(first.value).rpartition("/")[2] in PROGRAMS:
        yield f"[{first.value}]"


def _flags(argument: ast.expr) -> Iterator[ast.expr]:
    """The parts of ``a | b | c``."""
    if isinstance(argument, ast.BinOp):
        yield from _flags(argument.left)
        yield from _flags(argument.right)
    else:
        yield argument


def _reads(call: ast.Call) -> bool:
    """Whether the mode of an ``open`` is one that only reads; one that is no literal may be any.

    Of a module it is the second argument, of a path the first.
    """
    if any(word.arg in (None, "opener", "flags") for word in call.keywords):
        return False
    place = 1
    if isinstance(call.func, ast.Attribute) and call.func.attr == "open":
        opened = call.func.value
        named = isinstance(opened, ast.Name) and opened.id not in {*PLAIN, "library"}
        place = 0 if named or isinstance(opened, ast.Call) else 1
    modes = [word.value for word in call.keywords if word.arg == "mode"] + call.args[place : place + 1]
    return all(isinstance(mode, ast.Constant) and mode.value in READING for mode in modes)


@pytest.mark.parametrize(
    "text",
    [
        "os.mkdir(x)",
        "list(map(os.unlink, x))",
        "from os import mkdir",
        "import os as o",
        "getattr(os, name)(x)",
        "os.open(path=x, flags=os.O_CREAT)",
        "os.open(x, os.O_RDWR)",
        "open(x, 'w')",
        "open(x, mode)",
        "open(x, **words)",
        "open(x, 'rb', opener=own)",
        "Path(x).open('w')",
        "path.open('a')",
        "io.FileIO(x, 'w')",
        "zipfile.ZipFile(x, 'a')",
        "lzma.LZMAFile(x, 'w')",
        "archive.extract('m', x)",
        "path.write_text('')",
        "server.bind(x)",
        "process.run(['cp', a, b], 3)",
        "process.run(('/usr/bin/install', a, b), 3)",
        "argv = ['sh', '-c', text]",
    ],
)
def test_what_changes_files_is_seen(text: str) -> None:
    assert len(list(writing(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text", ["open(x)", "open(x, 'rb')", "os.open(x, os.O_RDONLY)", "path.open()", "tarfile.open(x, 'r:')", "['cp']"]
)
def test_what_reads_is_not(text: str) -> None:
    assert list(writing(ast.parse(text))) == []


def test_every_call_that_changes_files_is_reviewed() -> None:
    counts_by_module = {}
    for path in [*sorted(HOST.rglob("*.py")), HOST.parent / "zipapp" / "bootstrap.py"]:
        name = path.relative_to(HOST if HOST in path.parents else HOST.parent).as_posix()
        counts = Counter(writing(ast.parse(path.read_text())))
        if counts and name != "io/atomic.py":
            counts_by_module[name] = dict(counts)
    assert counts_by_module == {
        module: {call: count for call, (count, _) in calls.items()} for module, calls in REVIEWED.items()
    }
