"""Types of arguments of most pages.  Their modules import the pages, so a page can only name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["EvidenceRequest", "HostFacts", "Mount", "Recorder"]

if TYPE_CHECKING:
    from ..evidence.recorder import EvidenceRequest, Recorder
    from ..facts import HostFacts
    from .storage import Mount
else:
    EvidenceRequest = HostFacts = Mount = Recorder = Any
