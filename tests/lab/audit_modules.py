"""Runs on the VM host as root: audit module by module.  Prints a list with each answer of ``kmod audit --json``.

Arguments: the host program; a list of the words after ``kmod audit``, as JSON, of each audit.  One process runs all of
them, because a start of the program takes seconds where the processor is emulated.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

sys.path.insert(0, sys.argv[1])

from gdsdeploy.host.__main__ import main

answers = []
for words in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        main(["kmod", "audit", "--json", *words])
    answers.append(json.loads(output.getvalue()))
sys.stdout.write(json.dumps(answers))
