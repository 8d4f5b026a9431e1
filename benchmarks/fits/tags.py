"""Compiles what NVIDIA released of its driver, tag by tag, for a kernel of this machine, and compares with the rules.

    python benchmarks/fits/tags.py CLONE [--kernel REL] [--tags TAG …] [--jobs N]

CLONE is a git directory of NVIDIA/open-gpu-kernel-modules.  Only what meets the kernel is compiled (the folder
kernel-open), and only by the compiler's front end: nothing is linked, so a symbol that the kernel doesn't export isn't
found.  The headers of the kernel have to be installed.  It fails if a release compiles that a rule refuses, or fails
though rules know that it compiles.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from gdsdeploy import console
from gdsdeploy.host.build.run import kernel_version
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.model.compat import FITS, KINDS, REFUSED, UNKNOWN, judge, rules_with, version_order

#: Units that each release has at least; fewer were compiled where make itself failed.
UNITS: Final = 150
#: A compiler that reads the sources of modules and writes empty objects; what conftest.sh asks, it compiles.
FRONT_END: Final = """\
#!/bin/sh
source= output= dependencies= previous= compiles=
for word; do
  case $word in
    -c) compiles=1 ;;
    *.c) source=$word ;;
    -Wp,-MMD,*) dependencies=${word#-Wp,-MMD,} ;;
  esac
  [ "$previous" = -o ] && output=$word
  previous=$word
done
case $compiles:$source in 1:*conftest* | 1:*.mod.c | 1: | :*) exec "$REAL_CC" "$@" ;; esac
"$REAL_CC" "$@" -fsyntax-only || exit
[ -z "$dependencies" ] || [ -e "$dependencies" ] || echo "$output: $source" >"$dependencies"
exec "$REAL_CC" -m64 -x c -c /dev/null -o "$output"
"""


def compiled(clone: Path, tag: str, kernel: str, compiler: str) -> tuple[bool | None, str]:
    """(whether the release compiles, the compiler's first error); None where make failed otherwise."""
    archive = subprocess.run(  # git, and a path that the caller gave
        ["git", "-C", str(clone), "archive", tag, "kernel-open"],
        check=True,
        capture_output=True,
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            file.extractall(folder, filter="data")
        tree, front_end = Path(folder, "kernel-open"), Path(folder, "cc")
        front_end.write_text(FRONT_END)
        front_end.chmod(0o755)
        # In place of the objects of NVIDIA's resource manager, which doesn't meet the kernel.
        for name in ("nvidia/nv-kernel", "nvidia-modeset/nv-modeset-kernel"):
            for end in (".o_binary", ".o"):
                subprocess.run([compiler, "-x", "c", "-c", "/dev/null", "-o", tree / (name + end)], check=True)
            part, _, unit = name.rpartition("/")
            (tree / part / f".{unit}.o.cmd").touch()
        build = Path("/lib/modules", kernel, "build").resolve()
        source = Path("/lib/modules", kernel, "source").resolve()
        run = subprocess.run(
            ["make", "-k", f"KERNEL_UNAME={kernel}", f"SYSSRC={source if source.is_dir() else build}",
             f"SYSOUT={build}", f"CC={front_end}", "IGNORE_CC_MISMATCH=1", "KBUILD_MODPOST_WARN=1", "modules"],
            cwd=tree, env={**os.environ, "REAL_CC": compiler, "LC_ALL": "C"}, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    errors = re.findall(r"^.*?([^/\s]+/[^/\s]+:\d+:\d+: (?:fatal )?error: .*)$", run.stdout, re.MULTILINE)
    if errors:
        return False, errors[0]
    units = len(re.findall(r"^ *CC ", run.stdout, re.MULTILINE))
    return (True, "") if units >= UNITS else (None, f"make ended with {run.returncode} after {units} units")


def predicted(tag: str, kernel: str) -> tuple[str, list[str]]:
    """The worst verdict about driver and kernel, and the rules that say so."""
    facts = {"driver": tag, "driver_origin": "nvidia", "flavour": "open", "kernel": kernel, "arch": os.uname().machine}
    verdicts = [verdict for verdict in judge(facts, rules_with(())) if {"driver", "kernel"} <= verdict.subjects]
    worst = min((verdict.kind for verdict in verdicts), key=KINDS.index, default=UNKNOWN)
    return worst, [verdict.rule for verdict in verdicts if verdict.kind == worst != FITS]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--kernel", default=os.uname().release, metavar="REL", help="default: the one that runs")
    parser.add_argument("--tags", nargs="+", default=[], help="default: all")
    parser.add_argument("--compiler", default="cc")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args(argv)
    listed = subprocess.run(
        ["git", "-C", str(arguments.clone), "tag"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    tags = arguments.tags or sorted(listed, key=version_order)
    version = kernel_version(Kernel(arguments.kernel))
    wrong = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = pool.map(lambda tag: compiled(arguments.clone, tag, arguments.kernel, arguments.compiler), tags)
        for tag, (compiles, error) in zip(tags, found, strict=True):
            kind, rules = predicted(tag, version)
            is_wrong = compiles is not None and kind != UNKNOWN and compiles == (kind == REFUSED)
            wrong += is_wrong
            words = {True: "compiles", False: "fails", None: "undecided"}[compiles] + (" WRONG" if is_wrong else "")
            console.data("\t".join((tag, version, kind, words, ", ".join(rules), error)))
    console.data(f"{len(tags)} releases, {wrong} otherwise than predicted")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
