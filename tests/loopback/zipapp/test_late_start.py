"""The start of the host program makes what is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gdsdeploy.zipapp import hostapp


def test_the_host_program_imports_every_page_and_makes_few_classes(tmp_path: Path) -> None:
    program = tmp_path / "host.pyz"
    hostapp.build(program)
    statements = """
import runpy, sys
sys.argv = [sys.argv[1], "--version"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit:
    pass
from gdsdeploy.host.data import late
made, make = [], late._made
late._made = lambda kind, settings: (made.append(kind), make(kind, settings))[1]
from gdsdeploy.host.subjects.register import collectors
print(len(collectors()) > 10, 0 < len(made) < 20)
"""
    argv = [sys.executable, "-I", "-S", "-c", statements, str(program)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "True True", done.stdout
