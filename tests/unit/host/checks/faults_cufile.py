"""Faults of running programs that use libcufile: their configuration, their variables, their library."""

from __future__ import annotations

from typing import Any

from tests.unit.host.checks.changes import JOB_LIBRARY, Change, Document

#: As a wheel for CUDA 12 and a wheel of today install it: without a version in its name.
WHEEL = "/srv/venv/lib/python3.11/site-packages/nvidia/cufile/lib/libcufile.so.0"
OWN = "/home/u/cufile.json"


def job(**values: Any) -> Change:
    """The running job is different."""
    return lambda document: document["processes"]["libcufile"]["programs"][0].update(values)


def with_config(record: dict[str, Any]) -> Change:
    """The job names a configuration of its own."""

    def change(document: Document) -> None:
        job(config=OWN, variables={"CUFILE_ENV_PATH_JSON": OWN})(document)
        document["configs"][OWN] = record

    return change


def from_wheel(*names: str) -> Change:
    return job(libraries=[WHEEL], wheels={WHEEL: list(names)})


FAULTS: dict[str, tuple[Change, set[str]]] = {
    "programs that ended have left their statistics": (
        lambda document: document["processes"]["libcufile"].update(dead=1001),
        {"cufile.statistics"},
    ),
    "a job forces compat mode by its file": (
        with_config({"config": {"properties": {"force_compat_mode": True}}}),
        {"cufile.processes"},
    ),
    "a job's file is broken": (with_config({"broken": "it isn't JSON: …"}), {"cufile.processes"}),
    "a job's file has a number for a switch": (
        with_config({"config": {"properties": {"force_compat_mode": 1}}}),
        {"cufile.processes"},
    ),
    "a job's file denies the disk": (
        with_config({"config": {"denylist": {"mounts": ["/mnt/nvme"]}}}),
        {"cufile.processes"},
    ),
    "a job forces compat mode by a variable": (
        job(variables={"CUFILE_FORCE_COMPAT_MODE": "true"}),
        {"cufile.processes"},
    ),
    "a job runs with a wheel's libcufile": (
        from_wheel("nvidia_cufile_cu12-1.13.1.3.dist-info", "nvidia_cufile-1.20.0.107.dist-info"),
        {"cufile.bundled"},
    ),
    "a job still has the libcufile of before": (
        job(libraries=[JOB_LIBRARY.rpartition("so.")[0] + "so.1.4.0 (deleted)"]),
        {"cufile.bundled"},
    ),
}
