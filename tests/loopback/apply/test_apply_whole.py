"""The program on a whole system, with the real systemctl: what is predicted is made, and all of it is taken back."""

from __future__ import annotations

import json
import os
from typing import Any

from gdsdeploy.host.gate.gate import Settings
from tests.loopback.apply.throwaway import PROGRAM, SENT, System, ended, subjects

RELEASE = "0.0.0-no-such-kernel"
CUFILE = "// Rendered by gdsdeploy; changes here are overwritten.\n{}\n"


def resource(name: str, **desired: Any) -> dict[str, Any]:
    return {"resource": name, "desired": desired}


def document(*resources: Any) -> dict[str, Any]:
    return {"version": 1, "resources": list(resources)}


GATE = resource(
    "gate", settings=Settings().to_json(), before=["slurmd.service"], required_by=["k3s.service"], slurm=True
)
WHOLE = document(
    resource("program"),
    resource("expectation", content="{}"),
    resource("driver_options", kernel_release=RELEASE, modules=["nvidia"], rdma="peermem"),
    resource("imex", nodes=["10.0.0.1", "fd00::2"]),
    resource("cufile", content=CUFILE),
    resource("peermem", rdma="peermem"),
    GATE,
)
OFF = document(resource("peermem", rdma="none"), resource("gate", enabled=False))


def test_applied_as_predicted_twice_and_taken_back(system: System) -> None:
    status, predicted = system.apply(WHOLE, "--check")
    assert (status, predicted["error"]) == (0, None)
    assert system.changed() == set()
    status, answer = system.apply(WHOLE)
    assert (status, answer["error"]) == (0, None)
    assert subjects(answer) == subjects(predicted)
    wants = "/etc/systemd/system/multi-user.target.wants"
    assert {f"{wants}/gds-gate.service", f"{wants}/gds-peermem.service", PROGRAM} <= system.changed()
    assert "/etc/systemd/system/k3s.service.requires/gds-gate.service" in system.changed()
    assert system.path("/etc/nvidia-imex/nodes_config.cfg").read_text() == "10.0.0.1\nfd00::2\n"
    assert system.path(PROGRAM).read_bytes() == system.path(SENT).read_bytes()
    assert subjects(system.apply(WHOLE, "--check")[1]) == []
    assert subjects(system.apply(WHOLE)[1]) == []
    status, predicted = system.remove("--check", program=PROGRAM)
    # The program removes itself while it runs.
    status, removed = system.remove(program=PROGRAM)
    assert (status, removed["error"]) == (0, None)
    assert set(subjects(removed)) == set(subjects(predicted))
    assert system.changed() == set()
    left = {path.name.partition("-")[0] for path in (system.folder / "run/gdsdeploy").iterdir()}
    assert left == {"apply.lock", "program"}, "a boot takes them away"
    assert subjects(system.remove()[1]) == []


def test_dismissed(system: System) -> None:
    system.apply(document(resource("driver_options", kernel_release=RELEASE), *WHOLE["resources"][4:]))
    predicted = system.apply(OFF, "--check")[1]
    status, answer = system.apply(OFF)
    assert (status, subjects(answer)) == (0, subjects(predicted))
    assert not [path for path in system.changed() if "/systemd/" in path]
    assert subjects(system.apply(OFF)[1]) == []


def test_a_unit_loses_the_links_that_it_no_longer_asks_for(system: System) -> None:
    system.apply(document(GATE))
    link = system.path("/etc/systemd/system/k3s.service.requires/gds-gate.service")
    assert link.is_symlink()
    fewer = {**GATE, "desired": {**GATE["desired"], "required_by": []}}
    assert system.apply(document(fewer))[0] == 0
    assert not os.path.lexists(link)
    assert subjects(system.apply(document(fewer), "--check")[1]) == []


def test_sent_in_memory_it_puts_itself_in_place(system: System) -> None:
    """As a controller sends it: through a descriptor of its own, without a file."""
    system.install("/usr/local/sbin/send.py", SEND)
    done = system.start("python3", "-I", "-S", "/usr/local/sbin/send.py", SENT)
    status, answer = ended(done, json.dumps(document(resource("program"))))
    assert (status, answer["error"]) == (0, None)
    assert system.path(PROGRAM).read_bytes() == system.path(SENT).read_bytes()


SEND = """\
import os, sys
fd = os.memfd_create("gdsdeploy")
with open(sys.argv[1], "rb") as file:
    os.write(fd, file.read())
os.set_inheritable(fd, True)
words = ["apply", "--json", "--desired", "-"]
os.execv(sys.executable, [sys.executable, "-I", f"/proc/self/fd/{fd}", *words])
"""


def test_removed_by_name(system: System) -> None:
    system.apply(WHOLE)
    status, removed = system.remove("cufile", "gate")
    assert status == 0
    assert {subject for _, subject in subjects(removed)} >= {"/etc/cufile.json", "gds-gate.service"}
    assert "/etc/modprobe.d/gdsdeploy.conf" in system.changed()
    assert subjects(system.remove("cufile", "gate")[1]) == []


def test_a_removal_is_refused_with_another_or_an_older_lock(system: System) -> None:
    own, other = "0" * 32, "1" * 32
    system.path("/etc/gdsdeploy/expectation.json").write_text(json.dumps({"fleet_id": own, "lock_serial": 5}))
    for fleet_id, serial, message in (
        (other, 9, f"a lock of the fleet {own}"),
        (own, 4, "serial 5, and this one is older: 4"),
        (own, 5, ""),
        (own, 0, ""),
    ):
        _, answer = system.remove("--check", "--fleet-id", fleet_id, "--lock-serial", str(serial))
        error = answer["error"] or {"kind": "", "message": ""}
        assert error["kind"] == ("refused" if message else ""), answer
        assert message in error["message"]
