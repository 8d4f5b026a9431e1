"""What gdsdeploy itself runs on a host: the boot gate, and the service that counts I/O through cuFile."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from gdsdeploy.model.text import MaybePath, Model, matching

#: Name of a systemd unit.
Unit = Annotated[
    str, matching(r"^[A-Za-z0-9:_.@-]+\.(service|target)$", "write the name of a unit, such as slurmd.service")
]
#: Daemons of schedulers, by which a host gets work.
SCHEDULERS = (
    *("slurmd.service", "kubelet.service", "k3s.service", "k3s-agent.service", "rke2-agent.service"),
    *("pbs.service", "condor.service"),
)


class Gate(Model):
    """The boot gate of a host: see docs/gate.md."""

    enabled: bool = True
    #: Units that start after the gate, whatever it finds.
    before: Annotated[tuple[Unit, ...], Strict(False)] = SCHEDULERS
    #: Units that do not start at all while it is closed.
    required_by: Annotated[tuple[Unit, ...], Strict(False)] = ()
    #: What its look at the host may take.
    seconds: Annotated[int, Field(ge=1, le=600)] = 30
    #: A file that is there while the gate is open; empty: none.
    file: MaybePath = "/run/gdsdeploy/healthy"
    #: Whether Slurm's node is drained and resumed.
    slurm: bool = False
    #: Folder of node_exporter's textfile collector; empty: the usual ones, where they are.
    metrics: MaybePath = ""
    #: Whether each record has PCR 7 of the TPM and the state of Secure Boot.
    measured_boot: bool = False


class Watch(Model):
    """The service that counts I/O through cuFile on a host, for Prometheus: see docs/watch.md."""

    enabled: bool = False
    #: Seconds between two looks at the processes.
    every: Annotated[int, Field(ge=1, le=3600)] = 30
    #: Folder of node_exporter's textfile collector; empty: the usual ones, where they are.
    metrics: MaybePath = ""
