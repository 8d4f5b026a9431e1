"""Registrations of GPU memory with RDMA adapters, where the fleet uses RDMA and the host has both."""

from __future__ import annotations

from ..paths import INFINIBAND, NVIDIA
from ..proof import registration
from .recorder import Recorder
from .request import EvidenceRequest


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
    if request.registration and recorder.names(NVIDIA + "/gpus") and recorder.names(INFINIBAND):
        registration.register(recorder.command)
