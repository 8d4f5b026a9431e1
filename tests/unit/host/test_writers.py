"""The host program changes files through ``atomic`` only, or is on this page, with the reason why it may."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import gdsdeploy.host

HOST = Path(gdsdeploy.host.__file__).parent

_OS = "mkdir makedirs chmod chown lchown rename renames replace symlink link unlink remove rmdir removedirs truncate"
_OS += " mkfifo mknod setxattr removexattr utime mkdirat"
_SHUTIL = "copy copy2 copyfile copymode copystat copytree move rmtree chown make_archive unpack_archive"
_TEMPFILE = "TemporaryFile NamedTemporaryFile SpooledTemporaryFile TemporaryDirectory mkstemp mkdtemp mktemp"
CALLS = {
    *(f"os.{name}" for name in _OS.split()),
    *(f"shutil.{name}" for name in _SHUTIL.split()),
    *(f"tempfile.{name}" for name in _TEMPFILE.split()),
}
_PATH = "write_text write_bytes touch unlink rmdir mkdir rename chmod symlink_to hardlink_to extractall"
METHODS = set(_PATH.split())
READING = {"r", "rb", "rt", "r:", "r:*"}
#: ``os.open`` with nothing but these only reads.
HARMLESS = {f"os.O_{name}" for name in ("RDONLY", "CLOEXEC", "NOFOLLOW", "NONBLOCK", "DIRECTORY", "PATH")}

#: In a folder that this program has just made by mkdtemp(3): 0700, and root's.
OWN = "in a folder of mode 0700 of its own"
#: In /lib/modules, /var/lib/gdsdeploy and the like: ``atomic`` has refused the folder if others can change it.
ROOTS = "in a folder that atomic has walked to, or that the distribution keeps for root"
#: A name is taken away; what a link at its end leads to stays.  shutil.rmtree follows no link either.
AWAY = "takes a name away"
#: On a mount of users: O_TMPFILE or O_EXCL, a name that nobody can guess, mode 0600, by descriptor from then on.
SCRATCH = "a scratch file without a name, or made by O_EXCL under a random one"

REVIEWED: dict[str, dict[str, tuple[int, str]]] = {
    "__main__.py": {"os.open": (1, "/dev/null")},
    "apply/files.py": {"os.unlink": (1, AWAY), "os.rmdir": (1, AWAY), "shutil.rmtree": (1, AWAY)},
    "apply/host.py": {"os.unlink": (1, AWAY), "shutil.rmtree": (1, AWAY)},
    "apply/modules.py": {"os.unlink": (1, AWAY)},
    "apply/packages/apt.py": {"tempfile.NamedTemporaryFile": (1, "made by O_EXCL under a random name, mode 0600")},
    "apply/restore.py": {"os.unlink": (1, AWAY)},
    "cufile_probe.py": {"tempfile.TemporaryDirectory": (1, OWN), "open": (1, OWN), "os.mkdir": (1, OWN)},
    "evidence/programs.py": {"tempfile.TemporaryDirectory": (1, OWN)},
    "gdscheck/live.py": {"tempfile.TemporaryDirectory": (1, OWN)},
    "kmod/archive.py": {"tempfile.TemporaryDirectory": (1, OWN), "open": (2, OWN)},
    "kmod/building/finish.py": {"open": (1, OWN)},
    "kmod/building/job.py": {"shutil.copytree": (1, OWN)},
    "kmod/building/kept.py": {
        "tempfile.mkdtemp": (1, ROOTS),
        "os.makedirs": (1, OWN),
        "shutil.copy2": (1, OWN),
        "os.rename": (1, ROOTS),
        "os.unlink": (2, AWAY),
        "shutil.rmtree": (3, AWAY),
    },
    "kmod/building/nvidia_fs.py": {"shutil.copytree": (1, OWN)},
    "kmod/building/peermem.py": {"open": (1, OWN)},
    "kmod/building/run.py": {"tempfile.mkdtemp": (1, ROOTS), "shutil.rmtree": (1, AWAY)},
    "kmod/building/versions.py": {"open": (1, OWN)},
    "kmod/building/whole.py": {"shutil.copytree": (1, OWN)},
    "kmod/files.py": {"tempfile.SpooledTemporaryFile": (1, "it has no name")},
    "kmod/image.py": {"tempfile.NamedTemporaryFile": (1, "made by O_EXCL under a random name, mode 0600")},
    "kmod/kbuild.py": {"os.makedirs": (1, OWN), "open": (1, OWN)},
    "kmod/mok.py": {
        "tempfile.TemporaryDirectory": (2, ROOTS),
        "open": (3, OWN),
        "os.open": (1, OWN),
        "os.chmod": (2, OWN),
        "os.link": (2, ROOTS),
        "os.unlink": (2, AWAY),
    },
    "kmod/pack.py": {
        "tempfile.mkdtemp": (2, ROOTS),
        "os.chmod": (1, "of what mkdtemp has made"),
        "os.rename": (3, ROOTS),
        "os.unlink": (1, AWAY),
        "shutil.rmtree": (3, AWAY),
        "tarfile.open": (1, "into a file that atomic has opened"),
    },
    "kmod/signing.py": {
        "tempfile.mkdtemp": (1, OWN),
        "open": (3, OWN),
        "lzma.open": (1, "into a file that atomic has opened"),
        "shutil.rmtree": (1, AWAY),
    },
    "odirect/scratch.py": {"os.open": (4, SCRATCH), "os.unlink": (2, SCRATCH)},
    "proof.py": {
        "tempfile.TemporaryDirectory": (1, OWN),
        "os.mkdir": (1, OWN),
        "open": (1, OWN),
        "os.unlink": (1, AWAY),
    },
    "proof_child.py": {"os.open": (2, SCRATCH), "os.unlink": (1, AWAY)},
    "rollout/keep.py": {"shutil.rmtree": (1, AWAY)},
    "rollout/reload.py": {"tempfile.mkdtemp": (1, ROOTS), "shutil.rmtree": (1, AWAY)},
}


def writing(tree: ast.AST) -> Iterator[str]:
    """The names of all calls that change files, as they are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            called = node.func.attr if isinstance(node.func, ast.Attribute) else name
            if name == "os.open":
                if {ast.unparse(part) for part in _flags(node.args[1])} - HARMLESS:
                    yield name
            elif name in CALLS or (called == "open" and not _reads(node)) or _is_method(name, called):
                yield name


def _is_method(name: str, called: str) -> bool:
    return called in METHODS and name.partition(".")[0] not in ("os", "shutil", "atomic")


def _flags(argument: ast.expr) -> Iterator[ast.expr]:
    """The parts of ``a | b | c``."""
    if isinstance(argument, ast.BinOp):
        yield from _flags(argument.left)
        yield from _flags(argument.right)
    else:
        yield argument


def _reads(call: ast.Call) -> bool:
    """Whether the mode of an ``open`` is one that only reads; one that is no literal may be any."""
    modes = [word.value for word in call.keywords if word.arg == "mode"] + call.args[1:2]
    return all(isinstance(mode, ast.Constant) and mode.value in READING for mode in modes)


def test_every_call_that_changes_files_is_reviewed() -> None:
    found = {}
    for path in sorted(HOST.rglob("*.py")):
        name = path.relative_to(HOST).as_posix()
        counts = Counter(writing(ast.parse(path.read_text())))
        if counts and name != "atomic.py":
            found[name] = dict(counts)
    assert found == {module: {call: count for call, (count, _) in calls.items()} for module, calls in REVIEWED.items()}
