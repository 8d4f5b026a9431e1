"""Tests in two tiers and in groups: which tests a run takes, which share a process, and the order in which they begin.

``make test`` takes what needs neither an emulated machine nor a compiled driver.  ``make test-machines`` takes the
rest, or with ``SHARD=k/n`` one of ``n`` shares of it, which take about the same time.  Both have several processes.
Each takes the next group when it has finished one.  The longest groups start first, so all processes end at about the
same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True)
class Machines:
    """Test modules that run one after the other in one process, because each continues with the other's machines."""

    #: processor time of all its programs and machines, in seconds, as ``make test-machines`` prints it
    seconds: int
    #: patterns of paths below tests/, in the order in which they run
    modules: tuple[str, ...]


#: The tests of ``make test-machines``: name of a group → its modules.
MACHINES = {
    "upgrade": Machines(950, ("lab/test_rollout_story.py",)),
    # One VM host, from its image to its end.
    "image": Machines(1450, (
        "lab/test_golden_image.py", "lab/test_story.py", "lab/test_vm_modules.py", "lab/test_secure_boot_story.py",
        "lab/test_removal_story.py",
    )),
    # It compiles the modules of each family; labs of the same systems that start later receive them, and those that
    # start meanwhile wait for them (lab/family_builds.py).
    "families": Machines(1330, ("lab/test_family_story.py", "lab/test_packaged_light.py", "lab/test_family_vm.py")),
    "tutorial": Machines(555, ("newcomer/*",)),
    "secure boot": Machines(450, ("lab/test_vm_secure_boot.py",)),
    "brownfield": Machines(430, ("lab/test_brownfield_light.py",)),
    "lab": Machines(350, ("lab/test_lab.py",)),
    "rollouts": Machines(300, ("lab/test_rollout_light.py",)),
    # They compile on both processors.
    "kmod": Machines(300, ("kmod/*",)),
    "preflight": Machines(250, ("preflight/*",)),
    "power cuts": Machines(400, ("lab/test_vm_power_cut.py",)),
    "drift": Machines(120, ("lab/test_apply_drift_light.py",)),
    "boot loaders": Machines(250, ("lab/test_vm_rollout_boot.py", "lab/test_vm_systemd_boot.py")),
    "storage": Machines(60, ("lab/test_vm_storage.py",)),
    "refusals": Machines(85, ("lab/test_refusals.py",)),
    "inventory": Machines(75, ("lab/test_inventory_light.py",)),
    "playbooks": Machines(110, ("lab/test_playbooks_light.py",)),
    "init": Machines(20, ("lab/test_init_light.py",)),
    "slurm": Machines(60, ("lab/test_slurm_lights.py",)),
}  # fmt: skip

#: The tests of ``make test``: (pattern of the path, name of the group; None: the path).
OTHERS = (
    ("lab/*", None),
    # They see each other's programs: whatever reads through cuFile on this machine is counted.
    ("cufile/test_watch*.py", "watch"),
    # Their roles change this machine inside a mount namespace of theirs, and all take the lock of the same host.
    ("pins/*", "pins"),
    ("loopback/*", None),
    ("repos/*", None),
    ("roles/*", None),
    ("cufile/*", None),
    ("*", None),
)
#: The group that ends last; the others have a lower priority.
LONGEST = max(MACHINES, key=lambda name: MACHINES[name].seconds)


def machines(path: str) -> str | None:
    """The group of machines of a test module, named by its path below tests/; None: it belongs to ``make test``."""
    for name, group in MACHINES.items():
        if any(fnmatch(path, pattern) for pattern in group.modules):
            return name
    return None


def shard(number: int, count: int) -> frozenset[str]:
    """The groups of machines in one of ``count`` shares: the longest group goes to the share with the least to do.

    Raises ValueError unless 1 ≤ number ≤ count.
    """
    if not 1 <= number <= count:
        raise ValueError(f"there is no shard {number} of {count}")
    shares: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(MACHINES, key=lambda name: -MACHINES[name].seconds):
        min(shares, key=lambda share: sum(MACHINES[other].seconds for other in share)).append(name)
    return frozenset(shares[number - 1])


def position(path: str) -> tuple[tuple[int, int], str]:
    """The position and the group of a test module, named by its path below tests/."""
    if name := machines(path):
        order = [fnmatch(path, pattern) for pattern in MACHINES[name].modules]
        return (-MACHINES[name].seconds, order.index(True)), name
    for place, (pattern, group) in enumerate(OTHERS):
        if fnmatch(path, pattern):
            return (0, place), group or path
    raise LookupError(path)


def of(nodeid: str) -> tuple[tuple[int, int], str]:
    """The position and the group of a test."""
    return position(nodeid.partition("::")[0].removeprefix("tests/"))
