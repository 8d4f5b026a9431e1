"""Groups of tests, which run together in one process, and the order in which they begin.

``make test`` has two processes.  Each takes the next group when it has come to the end of one, so all of them end at
about the same time, on machines of any speed, if what takes longest begins first.
"""

from __future__ import annotations

from fnmatch import fnmatch

#: Groups of tests in the order in which they begin: (pattern of the path, name of the group, or the path where there is
#: none).  What takes longest begins first, and what costs nothing fills the time until all processes are done.
ORDER = (
    # All that needs most of an emulated machine, one after the other: side by side they would wait for each other's
    # processors.  The first three share one lab, and go on with what the one before has left of its machine.  What its
    # builder compiles is in the user's cache when the rollout wants it.
    ("lab/test_lab.py", "machines"),
    ("lab/test_story.py", "machines"),
    ("lab/test_vm_modules.py", "machines"),
    ("lab/test_rollout_story.py", "machines"),
    ("lab/test_rollout_light.py", None),
    ("lab/test_slurm_lights.py", None),
    ("lab/test_vm_*.py", "another machine"),
    ("lab/*", None),
    ("loopback/*", None),
    # They compile on both processors, which they leave to the first machine's builder at the beginning.  Their drivers
    # and layers are made once for each process.
    ("kmod/*", "kmod"),
    ("preflight/*", "preflight"),
    ("pins/*", None),
    ("repos/*", None),
    ("roles/*", None),
    ("cufile/*", None),
    ("*", None),
)


#: The group that is waited for at the end: the others leave it the processors, of which it needs one most of the time.
LONGEST = "machines"


def placed(path: str) -> tuple[int, str]:
    """Where the tests of a module (its path below tests/) come, and the group that they are in."""
    for place, (pattern, group) in enumerate(ORDER):
        if fnmatch(path, pattern):
            return place, group or path
    raise LookupError(path)


def of(nodeid: str) -> tuple[int, str]:
    """The same of a test, by its id."""
    return placed(nodeid.partition("::")[0].removeprefix("tests/"))
