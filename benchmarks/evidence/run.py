"""Processor time of one `evidence` on a provisioned host, by program: first call and later calls, paired and in turn.

Needs root, and changes nothing: in a private mount namespace, the machine's /etc, /usr and /var are overlays in
memory, with a kernel, NVIDIA's modules, DKMS's tree and an expectation in them.  Modules are small there, so a first
call on a real host costs more.  apt, dpkg and modprobe are the machine's.  With --here there are no overlays: the host
is this machine with its GPUs, and the programs go to /run/gdsdeploy as those of a controller do.  Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gdsdeploy import console  # noqa: E402
from gdsdeploy.zipapp import hostapp  # noqa: E402
from tests.unit.host.kmod.kmod_root import EXPECTED, VERSION, Root  # noqa: E402

#: As many as Debian 13 exports; symbols of its size.
EXPORTS = 26_000
PACKAGES = (
    "bash", "coreutils", "dpkg", "apt", "libc6", "util-linux", "kmod", "tar", "gzip", "xz-utils", "grep", "sed",
    "passwd", "findutils", "diffutils", "libcuda1", "libcufile0", "nvidia-driver", "nvidia-kernel-open-dkms",
    "gds-tools",
)  # fmt: skip
INSIDE = "--inside"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--program", type=Path, action="append", default=[], help="compare with this host program, too")
    parser.add_argument("--over", type=Path, help="lay this folder over the root, such as an unpacked package of dkms")
    parser.add_argument("--here", action="store_true", help="look at this machine as it is, with its GPUs")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside and not options.here:
        argv = ["unshare", "--mount", sys.executable, __file__, *sys.argv[1:], INSIDE]
        sys.exit(subprocess.run(argv, check=False).returncode)
    with tempfile.TemporaryDirectory(prefix="gds-bench-") as name:
        folder = Path(name)
        own = hostapp.keep(folder / "programs")
        programs = [path.read_bytes() for path in (*options.program, own)]
        if not options.here:
            cover()
            provision(options.over)
        console.data(json.dumps(compare(programs, options.rounds), indent=2))


def cover() -> None:
    Path("/run/gdsdeploy").mkdir(mode=0o755, exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=755", "none", "/run/gdsdeploy")
    layers = Path("/mnt")
    mount("-t", "tmpfs", "none", str(layers))
    for name in ("etc", "usr", "var"):
        upper, work = layers / name, layers / (name + ".work")
        upper.mkdir()
        work.mkdir()
        mount("-t", "overlay", "-o", f"lowerdir=/{name},upperdir={upper},workdir={work}", "none", "/" + name)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def provision(over: Path | None) -> None:
    """Put the stack onto the covered machine."""
    release = os.uname().release
    place = Path(tempfile.mkdtemp(dir="/usr"))
    root = Root(place, release)
    root.nvidia()
    root.nvidia_fs()
    root.lists()
    symvers = next(place.glob("usr/src/*/Module.symvers"))
    lines = (
        f"0x{number:08x}\tsymbol_of_the_kernel_{number}\tvmlinux\tEXPORT_SYMBOL_GPL\t" for number in range(EXPORTS)
    )
    symvers.write_text(symvers.read_text() + "\n".join(lines) + "\n")
    copy(place / "usr", Path("/usr"))
    copy(place / "lib/modules", Path("/usr/lib/modules"))
    shutil.rmtree(place)
    if over is not None:
        for name in ("etc", "usr", "var"):
            copy(over / name, Path("/") / name)
    modules = Path("/usr/lib/modules") / release
    subprocess.run(["depmod", release], check=True)
    dkms(modules, "nvidia-current-open", VERSION, "nvidia")
    dkms(modules, "nvidia-fs", EXPECTED.nvidia_fs_version, "nvidia-fs")
    expectation = replace(EXPECTED, kernel_release=release, packages=dict.fromkeys(PACKAGES, "1"))
    file = Path("/etc/gdsdeploy/expectation.json")
    file.parent.mkdir(exist_ok=True)
    file.write_text(expectation.to_json())


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


def dkms(modules: Path, name: str, version: str, module: str) -> None:
    """DKMS's folders, links and source of an installed module."""
    tree, release, machine = Path("/var/lib/dkms") / name, os.uname().release, os.uname().machine
    source = Path("/usr/src") / f"{name}-{version}"
    source.mkdir(parents=True)
    (source / "dkms.conf").write_text(
        f'PACKAGE_NAME="{name}"\nPACKAGE_VERSION="{version}"\nBUILT_MODULE_NAME[0]="{module}"\n'
        'DEST_MODULE_LOCATION[0]="/updates/dkms"\nAUTOINSTALL="yes"\n'
    )
    built = tree / version / release / machine
    (built / "module").mkdir(parents=True)
    shutil.copy2(next(modules.rglob(module + ".ko")), built / "module")
    (tree / version / "source").symlink_to(source)
    (tree / f"kernel-{release}-{machine}").symlink_to(built.relative_to(tree))


def compare(programs: list[bytes], rounds: int) -> dict[str, Any]:
    """Milliseconds of the first call and the median of the later ones, of each program; and of Python alone."""
    samples: list[list[float]] = [[] for _ in programs]
    alone = []
    document: dict[str, Any] = {}
    for _ in range(rounds + 1):
        for program, values in zip(programs, samples, strict=True):
            spent, document = evidence(program)
            values.append(spent)
        alone.append(spent_on(["/usr/bin/python3", "-I", "-S", "-c", "pass"], b"")[0])
    return {
        "processors": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "first": [round(values[0], 1) for values in samples],
        "later": [round(statistics.median(values[1:]), 1) for values in samples],
        "least": [round(min(values[1:]), 1) for values in samples],
        "python": round(statistics.median(alone), 1),
        "seconds_of_commands": {name: run["seconds"] for name, run in document["commands"].items()},
        "gaps": document["gaps"],
    }


def evidence(program: bytes) -> tuple[float, dict[str, Any]]:
    """As the controller starts it: the program on standard input, which is in /run from the second call on."""
    argv = ["sh", "-c", "exec " + hostapp.start("/usr/bin/python3")]
    spent, output = spent_on(argv, hostapp.sent(program, ["evidence"], b"", b"\n"))
    return spent, json.loads(output)


def spent_on(argv: list[str], text: bytes) -> tuple[float, bytes]:
    """Milliseconds of processor time of a program and its children, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, input=text, check=True, stdout=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), done.stdout


if __name__ == "__main__":
    main()
