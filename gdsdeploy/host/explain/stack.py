"""Compatibility rules that forbid what runs, or warn about it, as far as they concern the path through nvidia-fs.

p2pdma.py judges the other path by what the running kernel and driver show, which says more than their versions.
"""

from __future__ import annotations

from typing import Iterator

from ..facts import HostFacts
from ..facts.running_set import judge
from ..facts.storage import Mount
from . import blocks, p2pdma_keys
from .cause import NVIDIA_FS, Cause
from .rules import NOTES, rule

#: A warning without one of these is about programs, not about a path.
OF_PATHS = {"nvidia_fs", "mode"}
#: nvidia_fs.py judges it by what nvidia-fs was built against, where the rule warns about every new driver.
JUDGED_ELSEWHERE = {"nvidia-fs-p2p-abi-580"}


@rule(NOTES, 90)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    if p2pdma_keys.requests(facts, blocks.storage_of(facts, mount)) is True:
        return
    verdict = judge(facts, NVIDIA_FS, "none")
    for name, words in {**verdict.forbidden, **verdict.warnings}.items():
        broken = verdict.rules[name]
        if name in verdict.warnings and (name in JUDGED_ELSEWHERE or not OF_PATHS & broken.looks_at):
            continue
        ident = "stack.forbidden" if name in verdict.forbidden else "stack.warning"
        fix = f"install {broken.fixed}" if broken.fixed else "install versions that go together: gdsdeploy lock FLEET"
        yield Cause(ident, words, fix, (f"compatibility rule {name}: {broken.source}"[:200],))
