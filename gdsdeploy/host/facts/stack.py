"""The parts of the stack that run on a host, in one line each."""

from __future__ import annotations

from typing import List, Tuple

from . import HostFacts

#: Parts of the stack, from the kernel's surroundings up.
STACK = ("os", "kernel", "driver", "nvidia-fs", "libcufile")


def stack(facts: HostFacts) -> List[Tuple[str, str]]:
    """(part, version) in the order of STACK; without the parts that aren't installed or aren't known."""
    module = facts.nvidia_fs.module
    driver = [word for word in (facts.driver.version, facts.driver.flavour) if isinstance(word, str)]
    nvidia_fs = module.version if module.loaded is True else ""
    versions = (facts.os.name, facts.kernel.release, " ".join(driver), nvidia_fs, facts.cufile.library)
    return [(part, version) for part, version in zip(STACK, versions) if isinstance(version, str) and version]
