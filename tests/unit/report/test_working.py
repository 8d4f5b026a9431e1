"""Work that is under way: who, on what, for how long, and how long it usually takes."""

from __future__ import annotations

from gdsdeploy.report.model import Activity, activity_lines, heartbeat

BUILD = "gds_modules: Build nvidia with DKMS"
STEP = Activity("Provisioning gpu[1-40]", "", 0.0, 900.0)
HOSTS = [
    Activity("gds_driver: Install the driver's packages", f"gpu{number}", 500.0 + number, 120.0)
    for number in range(1, 41)
]
BUILDER = Activity(BUILD, "build1", 300.0, 330.0)


def test_lines_have_the_steps_and_then_the_longest_work() -> None:
    assert activity_lines([STEP, *HOSTS, BUILDER], 720.0, 10) == [
        "‣ Provisioning gpu[1-40] for 12 min (usually 15 min)",
        "    build1: gds_modules: Build nvidia with DKMS for 7 min (usually 6 min)",
        "    40 hosts: gpu[1-40]: gds_driver: Install the driver's packages for 4 min (usually 2 min)",
    ]


def test_lines_fit_the_terminal() -> None:
    different = [Activity(f"task {number}", f"h{number}", float(number)) for number in range(50)]
    text = activity_lines([STEP, *different], 100.0, 5)
    assert len(text) == 5
    assert text[1] == "    h0: task 0 for 2 min"
    assert text[-1] == "    and 47 more"
    assert len(activity_lines([STEP, *different], 100.0, 0)) == 2, "of a terminal without rows"


def test_a_heartbeat_is_one_line() -> None:
    assert heartbeat([STEP, BUILDER], 720.0) == (
        "  still at work: Provisioning gpu[1-40] for 12 min (usually 15 min); "
        "build1: gds_modules: Build nvidia with DKMS for 7 min (usually 6 min)"
    )
    different = [Activity(f"task {number}", f"h{number}", float(number)) for number in range(5)]
    assert heartbeat([STEP, *different], 9.0).endswith("h2: task 2 for 7 s; and 2 more")
    assert heartbeat([STEP, Activity("Reading trixie", "", 5.0)], 9.0).endswith("; Reading trixie for 4 s")
    assert heartbeat([], 9.0) == ""
