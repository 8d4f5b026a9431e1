"""The parts of a host to which a cufile.json is fitted: RDMA interfaces with their addresses, and memory."""

from __future__ import annotations

from ..paths import INFINIBAND
from .recorder import Recorder
from .request import EvidenceRequest

#: Entries of a port's table that name its network interface; the first one has it.
NDEV = "gid_attrs/ndevs/0"


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    recorder.excerpt("/proc/meminfo", "^MemTotal:")
    for name in recorder.names(INFINIBAND):
        device = INFINIBAND + "/" + name
        recorder.link(device + "/device")
        recorder.names(device + "/device/net")
        for port in recorder.names(device + "/ports"):
            recorder.texts(device + "/ports/" + port, ("state", "rate", "link_layer", NDEV))
    recorder.command("ip-address", ["ip", "-json", "address", "show"])
