"""Groups of tests, which run together in one process, and the order in which they begin.

``make test`` has three processes.  Each takes the next group when it has finished one.  The longest groups start first,
so all processes end at about the same time.
"""

from __future__ import annotations

from fnmatch import fnmatch

#: Groups of tests in their order: (pattern of the path, name of the group; None: the path).  The longest start first.
ORDER = (
    # Tests that need most of an emulated machine run one after the other.  These share one lab, and each continues with
    # the previous one's machines.
    ("lab/test_rollout_story.py", "machines"),
    ("lab/test_story.py", "machines"),
    ("lab/test_vm_modules.py", "machines"),
    ("lab/test_secure_boot_story.py", "machines"),
    ("lab/test_removal_story.py", "machines"),
    # It compiles the modules of each family; labs of the same systems that start later receive them, and those that
    # start meanwhile wait for them (lab/family_builds.py).
    ("lab/test_family_story.py", "families"),
    ("lab/test_packaged_light.py", "families"),
    ("lab/test_rollout_light.py", None),
    ("lab/test_slurm_lights.py", None),
    ("lab/test_family_vm.py", None),
    ("newcomer/*", None),
    ("lab/test_lab.py", "another machine"),
    ("lab/test_vm_*.py", "another machine"),
    ("lab/*", None),
    ("loopback/*", None),
    # They compile on both processors, so they start after the first machine's builder.  Each process has its own
    # drivers and layers.
    ("kmod/*", "kmod"),
    ("preflight/*", "preflight"),
    # Their roles change this machine inside a mount namespace of theirs, and all take the lock of the same host.
    ("pins/*", "pins"),
    ("repos/*", None),
    ("roles/*", None),
    # They see each other's programs: whatever reads through cuFile on this machine is counted.
    ("cufile/test_watch*.py", "watch"),
    ("cufile/*", None),
    ("*", None),
)


#: The group that ends last; the others have a lower priority.
LONGEST = "machines"


def position(path: str) -> tuple[int, str]:
    """The position and the group of a test module, named by its path below tests/."""
    for place, (pattern, group) in enumerate(ORDER):
        if fnmatch(path, pattern):
            return place, group or path
    raise LookupError(path)


def of(nodeid: str) -> tuple[int, str]:
    """The position and the group of a test."""
    return position(nodeid.partition("::")[0].removeprefix("tests/"))
