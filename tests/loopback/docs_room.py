"""The folder in which commands of pages run: files of the names that pages use, all from evidence and examples."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import yaml

from gdsdeploy.host.model.expectation import from_json as expectation_from
from gdsdeploy.lock import lockfile
from gdsdeploy.report import formats
from gdsdeploy.rollout import journal
from gdsdeploy.validate.support_bundle import Bundle, BundleHost, pack
from gdsdeploy.zipapp import hostapp
from tests.repos import stack
from tests.repos.archive import Archive, Key
from tests.unit import sample_rollouts
from tests.unit.docs_blocks import Command, missing
from tests.unit.report.sample_report import report

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
EVIDENCE = TESTS / "evidence"
#: File of the room → what it is a copy of.
COPIES = {
    "cufile.json": EVIDENCE / "h200/rendered-1.15.1.6.json",
    "site/old.json": EVIDENCE / "h200/rendered-1.15.1.6.json",
    "site/new.json": EVIDENCE / "h200/rendered-1.20.0.107.json",
    "etc/cufile.json": EVIDENCE / "h200/rendered-1.15.1.6.json",
    "cufile.log": EVIDENCE / "h200/libcufile-1.15.1-trace.log",
    "log/cufile.log": EVIDENCE / "gdscheck-live/gdscheck-p.libcufile-1.15.1.6.cufile.log",
    "make.log": EVIDENCE / "kmod/nvfs-2.28.4.with-KBUILD_EXTRA_SYMBOLS.log",
    "gpu1.txt": EVIDENCE / "gdscheck-h200/gdscheck-p.libcufile-1.15.1.6.forced.h200.txt",
    "gpu2.txt": EVIDENCE / "gdscheck-live/gdscheck-p.libcufile-1.20.0.107.direct.txt",
    "gpu1.json": EVIDENCE / "hosts/h100-libcufile-1.15.1.json",
}
#: File of the room → the ticket whose pasted text it holds.
TICKETS = {"dmesg.txt": "016", "ticket.txt": "002"}
#: A cufile.json with one mistake.
WRONG = '{\n  "properties": {\n    "max_direct_io_size_kb": 16384,\n    "io_batchsize": 300\n  }\n}\n'
#: A cufile.json with keys of libcufile 1.15 and 1.18, of which newer releases read only a part.
OLD = """{
  "profile": {
    "nvtx": true
  },
  "properties": {
    "posix_io_mode": true,
    "use_pci_p2pdma": true
  }
}
"""
#: Places of a host in commands → those of the room.
PLACES = {
    "/usr/lib/gdsdeploy/gdsdeploy-host.pyz": "gdsdeploy-host.pyz",
    "/etc/cufile.json": "etc/cufile.json",
    "/etc/prometheus": "etc/prometheus",
    "/var/log/cufile.log": "log/cufile.log",
}
#: Commands for the room's PATH.  gdscheck and dmesg print what they printed on a machine with a GPU.
PROGRAMS = {
    "gdsdeploy": f'exec {shlex.quote(sys.executable)} -m gdsdeploy "$@"',
    "gdscheck": 'cat "$ROOM/gpu2.txt"',
    "dmesg": 'cat "$ROOM/dmesg.txt"',
    "drain-this-node": "",
    "sudo": 'exec "$@"',
}
BIN = "bin"
#: Folders that a reader has.
FOLDERS = ("home", "etc/prometheus/rules", "image")
#: Where the imitated archive of packages is served, in a network of the shell's own.
PORT = 8013
FLEET = """\
version: 1
repositories:
  debian: {signed}
  debian-security: {signed}
profiles:
  gds:
    os: debian-13
    repositories: [debian, debian-security]
    modules: build
    storage:
      - {{mount: /mnt/nvme, path: compat}}
hosts:
  gpu1: gds
"""
#: Seconds for the commands of a page.
PATIENCE = 240


#: It waits until the server listens, and ends it with the shell.
_SERVER = f"""\
python -m http.server {PORT} --bind 127.0.0.1 --directory archive >/dev/null &
trap "kill $!" EXIT
until (: </dev/tcp/127.0.0.1/{PORT}) 2>/dev/null; do sleep 0.05; done"""


def furnish(room: Path) -> None:
    """Make the room's files."""
    for folder in (*FOLDERS, BIN, "state"):
        (room / folder).mkdir(parents=True)
    for name, source in COPIES.items():
        (room / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, room / name)
    for name, ticket in TICKETS.items():
        (room / name).write_text(yaml.safe_load((TESTS / "tickets" / f"{ticket}.yml").read_text())["pasted"])
    (room / "wrong.json").write_text(WRONG)
    (room / "old.json").write_text(OLD)
    for name, script in PROGRAMS.items():
        program = room / BIN / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    hostapp.build(room / "gdsdeploy-host.pyz")
    (room / ".venv").symlink_to(sys.prefix)
    _lock(room)
    _reports(room)
    with mock.patch.dict(os.environ, environment(room)):
        _roll_out(room / "fleet.yml")


def _lock(room: Path) -> None:
    """A fleet file, the archive that it names, and the lock."""
    served, home = Archive(room / "archive"), room.parent / "gnupg"
    key = Key.generate(home, "archive")
    for suite in stack.suites():
        served.publish(suite, key)
        for stanzas in suite.packages.values():
            stack.write_pool(served.root, stanzas)
    shutil.copy(key.keyring, room / "archive.gpg")
    key.forget()
    signed = {
        "uri": f"http://127.0.0.1:{PORT}",
        "keyring": str(room / "archive.gpg"),
        "fingerprints": [key.fingerprint],
    }
    (room / "fleet.yml").write_text(FLEET.format(signed=json.dumps(signed)))
    assert follow(room, [Command("gdsdeploy lock fleet.yml")], "the room") == []


def _reports(room: Path) -> None:
    """Two validations of one fleet, and a support bundle."""
    before = report()
    first, second, *others = before.hosts
    after = replace(before, hosts=(first, replace(second, findings=first.findings), *others))
    (room / "before.json").write_text("".join(formats.json_pieces(before)))
    (room / "after.json").write_text("".join(formats.json_pieces(after)))
    hosts = EVIDENCE / "hosts"
    host = BundleHost(
        expectation_from((hosts / "lab-vm.expectation.json").read_text()),
        json.loads((hosts / "lab-vm-provisioned.json").read_text()),
    )
    lock = lockfile.read(room / "gdsdeploy.lock").digest
    bundle = pack(Bundle("fleet.yml", lock, before.when, {"gpu1": host}), {})
    (room / "case-4711.tar.gz").write_bytes(bundle)
    (room / "case.tar.gz").write_bytes(bundle)


def _roll_out(fleet: Path) -> None:
    """A journal with a rollout that has halted."""
    story = sample_rollouts.small()
    path = journal.path_of(fleet)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = journal.writing(path, doing="a test", wall=lambda: sample_rollouts.BEGIN)
    try:
        writer.begin(replace(story.plan, fleet=str(fleet)))
        writer.extend(story.events[1:])
    finally:
        writer.close()


def environment(room: Path) -> dict[str, str]:
    """The variables of the room's shell."""
    return {
        "ROOM": str(room),
        "HOME": str(room / "home"),
        "PATH": f"{room / BIN}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(ROOT),
        "GDSDEPLOY_STATE_DIR": str(room / "state"),
        "GDSDEPLOY_CACHE_DIR": str(room / "cache"),
        "LANG": "C.UTF-8",
        "COLUMNS": "100",
    }


def follow(room: Path, commands: Sequence[Command], page: str) -> list[str]:
    """Execute commands of a page in one shell without a network; ``PAGE:LINE: COMMAND: problem`` of each that fails."""
    mark = "--the-end-of-a-command--"
    script = "".join(
        f"{_in_room(command.text)}\n{{ status=$?; echo; echo {mark} $status; }} 2>/dev/null\n" for command in commands
    )
    server = _SERVER if any("gdsdeploy lock" in command.text for command in commands) else ""
    alone = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    done = subprocess.run(
        [*alone, "bash", "-c", f'exec 2>&1 </dev/null\nip link set lo up\ncd "$ROOM"\n{server}\n{script}'],
        env=environment(room), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    outputs = done.stdout.split(f"{mark} ")
    problems = []
    for number, command in enumerate(commands):
        where = f"{page}:{command.line}: {command.text}"
        if number + 1 >= len(outputs):
            return [*problems, f"{where}: the shell ended\n{outputs[-1]}{done.stderr}"]
        output = outputs[number].partition("\n")[2] if number else outputs[number]
        status = int(outputs[number + 1].partition("\n")[0])
        if status != command.status:
            problems.append(f"{where}: exit code {status}; the page says {command.status}\n{output}")
        elif line := missing(command.shown, output):
            problems.append(f"{where}: the page shows a line that wasn't printed: {line}\n{output}")
    return problems


def _in_room(text: str) -> str:
    for place, name in PLACES.items():
        text = text.replace(place, f"$ROOM/{name}")
    return text
