"""nvidia-peermem against the OFED tree of the target kernel, or not at all.

NVIDIA's build looks twice and differently: conftest.sh greps several places for the peer memory symbols, Kbuild takes
headers and symbols from the first folder that exists.  Variables set both here.
"""

from __future__ import annotations

import os
from typing import List, Optional

from ..errors import BuildError, StubError
from ..kmod.ofed import OfedTree
from .context import BuildContext, Built
from .kbuild import Log, first_error
from .place import audit_built, place, provenance, record

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


def build_peermem(context: BuildContext, output: str, log: Log) -> List[Built]:
    """Build nvidia-peermem into the file ``output``; raises StubError, BuildError, KernelError."""
    request = context.request
    tree = require_ofed(context)
    context.check_headers(log)
    versions = context.versions(log)
    folder = context.unit_folder()
    symbols = [versions.path] if tree.own else [versions.path, os.path.join(tree.path, "Module.symvers")]
    argv = ["make", "-C", request.kernel.headers(), "M=" + folder, "NV_KERNEL_MODULES=" + NAME, *context.settings()]
    argv += [*ofed_settings(context, folder, tree), "KBUILD_EXTRA_SYMBOLS=" + " ".join(symbols), "modules"]
    env = {"IGNORE_CC_MISMATCH": "1", "KCPPFLAGS": f"-ffile-prefix-map={folder}=nvidia"}
    done = log.run(argv, folder, env)
    built = os.path.join(folder, NAME + ".ko")
    if done.status != 0 or not os.path.isfile(built):
        error = first_error(done).replace(folder + "/", "")
        message = f"nvidia-peermem doesn't build for kernel {request.kernel.release} against {request.tree.path}"
        raise BuildError(f"{message} and {tree.path}: {error}", f"the log is {log.path}")
    record(log, built, {**provenance(request), "ofed": tree.symvers})
    results = audit_built(request, log, [built], versions.extra, NAME, peermem=True)
    return place([(built, os.path.abspath(output), results[0])])


def require_ofed(context: BuildContext) -> OfedTree:
    """The OFED tree of this kernel; raises StubError with the reason if there is none."""
    search = context.ofed()
    if search.tree is None:
        raise StubError(search.stub_reason(context.request.kernel.release), HINT)
    return search.tree


def ofed_settings(context: BuildContext, folder: str, tree: Optional[OfedTree]) -> List[str]:
    """Variables that make the driver's Kbuild build nvidia-peermem against ``tree``, or against none."""
    script = os.path.join(context.folder, "conftest-peermem.sh")
    with open(script, "w", encoding="utf-8") as file:
        answer = "define" if tree is not None else "undef"
        file.write(_CONFTEST.format(answer=answer, script=os.path.join(folder, "conftest.sh")))
    # With a missing folder, Kbuild adds no symbols; the kernel's own need no mention.
    path = os.path.join(context.folder, "no-ofed") if tree is None or tree.own else tree.path
    return ["NV_CONFTEST_SCRIPT=" + script, "MLNX_OFED_KERNEL=" + path]
