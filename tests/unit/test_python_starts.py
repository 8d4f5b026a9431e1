"""Wherever Python starts for the host program, it starts without the caller's variables, folders and site-packages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply.program import COMMAND
from gdsdeploy.zipapp import bootstrap, hostapp

ROOT = Path(__file__).parents[2]
FOLDERS = ("gdsdeploy", "lab", "roles", "templates", "plugins", "playbooks", "docs", "examples")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".yml", ".yaml", ".j2", ".md", ".sh", ".cfg", ".service", ".conf", ""}
    and path.is_file()
    and "_share" not in path.parts
)

#: Python as a command that is followed by something: an option, a program, the next word of a list.
_START = re.compile(
    r"""(?x)
    (?: /usr/bin/ )? python3 ['"]? ,? [^\S\n]+ (?: -\s+ )? (?: [-"'*$/{] | f" | \S*\.pyz ) .*
    | sys\.executable (?: \s or \s ['"]python3['"] )? ['"]? \]? , \s .*
    """
)
#: What follows it is no start of the host program as root.
OTHERS = (
    # ansible-playbook and the user's suite of tests, on the controller: they need its site-packages.
    *('sys.executable, "-P")', 'sys.executable, "-P", "-m", "pytest"'),
    # A user makes a virtual environment.
    "python3 -m venv",
    # Sentences.
    *("python3 --version", "python3 -m gdsdeploy.host won't do", "python3 -c``"),
)
_ISOLATED = re.compile(r"""-IS\b|-I['",\s]+(?:-\s+)?['"]?-S\b|\*(?:hostapp\.)?FLAGS\b|\*(?:process\.)?PYTHON\b""")


def starts(text: str) -> list[str]:
    """Each start of Python in ``text``, with what follows on its line; a list in YAML is one line."""
    flat = re.sub(r"\n\s+- ", ", ", text)
    return [start for start in map(str.strip, _START.findall(flat)) if not start.startswith(OTHERS)]


@pytest.mark.parametrize(
    "text",
    [
        "ExecStart=/usr/bin/python3 /usr/lib/x.pyz gate run",
        "exec python3 -I /usr/lib/x.pyz",
        "    sudo python3 gdsdeploy-host.pyz apply",
        "argv: [python3, -I, /usr/lib/x.pyz]",
        'argv = ["python3", f"/build/{_PROGRAM}"]',
        '[sys.executable or "python3", "-I", program]',
        '[sys.executable, "-c", code]',
        "argv:\n  - python3\n  - -I\n  - /x.pyz\n",
        'timeout 600 python3 "$program" guard',
    ],
)
def test_a_start_that_lacks_them_is_seen(text: str) -> None:
    (start,) = starts(text)
    assert not _ISOLATED.search(start)


def test_every_start_has_them() -> None:
    commands = [f"{path.relative_to(ROOT)}: {start}" for path in FILES for start in starts(path.read_text())]
    assert [start for start in commands if not _ISOLATED.search(start)] == []
    assert len(commands) > 20, "otherwise this test sees nothing"


def test_the_constants_have_them() -> None:
    assert process.PYTHON[1:] == hostapp.FLAGS == ("-I", "-S")
    assert COMMAND.startswith("/usr/bin/python3 -I -S /usr/lib/gdsdeploy/")
    assert hostapp.SHEBANG == b"#!/usr/bin/python3 -IS\n"
    assert " -I -S -c " in hostapp.start()


@pytest.mark.parametrize("source", [Path(bootstrap.__file__).read_text(), hostapp._MAIN], ids=["bootstrap.py", "_MAIN"])
def test_what_says_that_a_python_is_too_old_compiles_there(source: str) -> None:
    """The oldest of a system that NVIDIA supports is 3.6, of release 8 of the RHEL family."""
    tree = ast.parse(source, feature_version=(3, 4))
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)] == []
