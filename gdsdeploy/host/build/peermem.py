"""nvidia-peermem against the OFED tree of the target kernel, or not at all.

NVIDIA's build decides twice and differently: conftest.sh greps several places for the peer memory symbols, ``default``
among them, and Kbuild takes headers and symbols from the first folder that exists.  Both are told here.
"""

from __future__ import annotations

import os
from typing import List, Optional

from ..errors import BuildError, StubError
from ..kmod.ofed import OfedTree
from .conftests import HEADERS, needed
from .context import Bench, Built
from .kbuild import Log, first_error
from .place import audited, placed, provenance, record

NAME = "nvidia-peermem"
HINT = "install OFED or DOCA for this kernel; or use DMA-BUF and leave nvidia-peermem out"
#: The one question that conftest.sh must not answer by its own search; everything else goes to the real script.
_CONFTEST = """\
#!/bin/sh
if [ "$5" = compile_tests ] && [ "$7" = ib_peer_memory_symbols ]; then
    echo "#{answer} NV_MLNX_IB_PEER_MEM_SYMBOLS_PRESENT"
    exit 0
fi
exec /bin/sh "{script}" "$@"
"""


def build_peermem(bench: Bench, output: str, log: Log) -> List[Built]:
    """Build nvidia-peermem into the file ``output``; raises StubError, BuildError, KernelError."""
    job = bench.job
    tree = usable(bench)
    bench.check_headers(log)
    versions = bench.versions(log)
    folder = bench.unit_folder()
    symbols = [versions.path] if tree.own else [versions.path, os.path.join(tree.path, "Module.symvers")]
    argv = ["make", "-C", job.kernel.headers(), "M=" + folder, "NV_KERNEL_MODULES=" + NAME, *bench.settings()]
    argv += [*decided(bench, folder, tree), "KBUILD_EXTRA_SYMBOLS=" + " ".join(symbols), "modules"]
    env = {"IGNORE_CC_MISMATCH": "1", "KCPPFLAGS": f"-ffile-prefix-map={folder}=nvidia"}
    # Its own Kbuild lists one probe; those of headers are common to all, and a hundred compilations.
    probes = [item for item in needed(folder, f"{NAME}/{NAME}.c") if item.startswith(HEADERS + "=")]
    done = log.run([*argv, *probes], folder, env)
    if done.status != 0 and probes:
        # As for the unit that exports the driver's symbols: with all probes, then.
        done = log.run(argv, folder, env)
    built = os.path.join(folder, NAME + ".ko")
    if done.status != 0 or not os.path.isfile(built):
        message = "nvidia-peermem does not build for kernel {} against {} and {}: {}"
        error = first_error(done).replace(folder + "/", "")
        raise BuildError(message.format(job.kernel.release, job.tree.path, tree.path, error), f"the log is {log.path}")
    record(log, built, {**provenance(job), "ofed": tree.symvers})
    results = audited(job, log, [built], versions.extra, NAME, peermem=True)
    return placed([(built, os.path.abspath(output), results[0])])


def usable(bench: Bench) -> OfedTree:
    """The OFED tree of this kernel; raises StubError which says why there is none."""
    search = bench.ofed()
    if search.tree is None:
        message = "nvidia-peermem for kernel {} would be a stub that fails to load with 'Invalid argument': {}"
        raise StubError(message.format(bench.job.kernel.release, search.why_not()), HINT)
    return search.tree


def decided(bench: Bench, folder: str, tree: Optional[OfedTree]) -> List[str]:
    """Variables for the driver's Kbuild by which ``tree``, or none, is what it builds nvidia-peermem against."""
    script = os.path.join(bench.folder, "conftest-peermem.sh")
    with open(script, "w", encoding="utf-8") as file:
        answer = "define" if tree is not None else "undef"
        file.write(_CONFTEST.format(answer=answer, script=os.path.join(folder, "conftest.sh")))
    # A folder that does not exist keeps Kbuild from adding any: the kernel's own symbols need no mention.
    path = os.path.join(bench.folder, "no-ofed") if tree is None or tree.own else tree.path
    return ["NV_CONFTEST_SCRIPT=" + script, "MLNX_OFED_KERNEL=" + path]
