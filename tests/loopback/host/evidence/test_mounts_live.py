"""Mounts as the running kernel has them: covered ones, automounts, full and read-only ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.odirect.trials import ANOTHER_MOUNT
from gdsdeploy.host.paths import MOUNTINFO
from gdsdeploy.host.subjects.path import storage_paths

ROOT = Path(__file__).parents[4]
#: Runs in a mount namespace of its own.  Two automounts of the kernel's own kind: somebody answers for the first.
PROGRAM = r"""
import ctypes, fcntl, json, os, struct, subprocess, sys, threading
sys.path.insert(0, sys.argv[2])
from gdsdeploy.host.cli.trials import try_paths
from gdsdeploy.host.evidence.recorder import EvidenceRequest, Recorder
from gdsdeploy.host.io.mounts import Mounts
from gdsdeploy.host.odirect import trials
from gdsdeploy.host.subjects import storage

def mount(kind, name, options=""):
    os.makedirs(name, exist_ok=True)
    done = libc.mount(kind.encode(), os.path.join(folder, name).encode(), kind.encode(), 0, options.encode())
    assert done == 0, os.strerror(ctypes.get_errno())

def answer(requests, place, name):
    # linux/auto_fs.h: struct autofs_v5_packet, its token after version and type; AUTOFS_IOC_READY.
    packet = os.read(requests, 304)
    mount("tmpfs", name)
    fcntl.ioctl(place, 0x9360, struct.unpack_from("=iiI", packet)[2])

folder, libc = sys.argv[1], ctypes.CDLL(None, use_errno=True)
os.chdir(folder)
mount("tmpfs", "outer/inner")
for name in ("answered", "dead"):
    requests, end = os.pipe()
    mount("autofs", name, f"fd={end},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct")
    if name == "answered":
        # The daemon's own process group doesn't wait for it.
        place = os.open(name, os.O_RDONLY)
        threading.Thread(target=answer, args=(requests, place, name), daemon=True).start()
storage.SECONDS = 1.0
every = [os.path.join(folder, name) for name in ("answered", "dead", "dead/below", "outer/inner")]
before = Mounts(open("/proc/self/mountinfo").read()).at(every[-1]).id
mount("tmpfs", "outer")
os.mkdir("outer/inner")
recorder = Recorder()
storage.collect_storage(recorder, EvidenceRequest(mounts=tuple(every)))
mount("tmpfs", "full", "size=24k")
mount("tmpfs", "read-only", "ro")
open("file", "w").close()
outcome = {
    "evidence": recorder.finish(),
    "covered": trials.audit(every[-1], 5.0, before)["error"],
    "full": trials.audit("full")["error"],
    "left": os.listdir("outer/inner"),
    "proven": sorted(try_paths([os.path.join(folder, name) for name in ("read-only", "file", "full")], 5.0)),
}
print(json.dumps(outcome))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("mounts")
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", PROGRAM, str(folder), str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, start_new_session=True)
    assert done.returncode == 0, done.stderr
    return {"folder": str(folder), **json.loads(done.stdout)}


def test_an_automount_is_visited_and_never_judged_for_what_it_will_be(outcome: dict[str, Any]) -> None:
    folder, facts = outcome["folder"], facts_from(outcome["evidence"])
    assert outcome["evidence"]["files"][MOUNTINFO].count(f" {folder}/answered ") == 2
    names = [f"{folder}/{name}" for name in ("answered", "dead", "dead/below")]
    answered, *dead = storage_paths(facts, [(name, "direct") for name in names])
    assert answered.path is not None
    assert answered.mounted.filesystem == "tmpfs"  # type: ignore[union-attr]
    for each in dead:
        assert isinstance(each.path_name, Unknown)
        assert "automount" in each.path_name.reason


def test_a_covered_mount_is_named_and_never_written_to(outcome: dict[str, Any]) -> None:
    (inner,) = storage_paths(facts_from(outcome["evidence"]), [(outcome["folder"] + "/outer/inner", "direct")])
    assert inner.description.startswith("it is covered: tmpfs on ")
    assert (inner.satisfies, outcome["covered"], outcome["left"]) == (False, ANOTHER_MOUNT, [])


def test_a_mount_that_fills_up_within_a_write_is_full(outcome: dict[str, Any]) -> None:
    assert outcome["full"] == "it is full (ENOSPC)"


def test_no_mount_ends_the_proofs_of_the_others(outcome: dict[str, Any]) -> None:
    assert outcome["proven"] == [f"{outcome['folder']}/{name}" for name in ("file", "full", "read-only")]
