"""Whether adapters registered memory of GPUs, as a trial showed.  See host/proof/registration.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..paths import REGISTRATION
from .document import TIMED_OUT, Document, Ran
from .proof import events
from .unknown import Maybe, Unknown

#: Ways of registration, as rdma_child.py names them; HOST is memory of the host, for comparison.
HOST, PEERMEM, DMABUF = "host", "peermem", "dmabuf"


@dataclass(frozen=True)
class Registration:
    """One GPU with one adapter.  ``ok``: Unknown where it was not tried or did not end."""

    #: PCI address as libcuda has it
    gpu: str
    adapter: str
    #: PEERMEM or DMABUF
    by: str
    ok: Maybe[bool]
    #: the failure, e.g. ``ibv_reg_mr: EFAULT``
    why: str = ""

    @property
    def words(self) -> str:
        """The result as one line."""
        pair = f"GPU {self.gpu} with {self.adapter}"
        if isinstance(self.ok, Unknown):
            return f"{pair}: not tried: {self.ok.reason}"
        return f"{pair}: ok" if self.ok else f"{pair}: {self.why}"


def registrations(document: Document) -> Maybe[Tuple[Registration, ...]]:
    """Every GPU × adapter × way of a trial; empty where none was made; Unknown where it ended before it knew them."""
    run = document.attempted(REGISTRATION)
    if isinstance(run, Unknown):
        # A trial is made only where the host has both, and the fleet uses RDMA.
        return ()
    records = events(run.stdout)
    gpus, adapters = (_names(records, kind) for kind in ("gpus", "adapters"))
    if gpus is None or adapters is None:
        return Unknown(_ending(run, records))
    missing = [event for event in records if event.get("event") in ("no context", "no adapter")]
    gpus += [str(event["gpu"]) for event in missing if "gpu" in event]
    adapters += [str(event["adapter"]) for event in missing if "adapter" in event]
    return tuple(
        _judge(run, records, gpu, adapter, way) for gpu in gpus for adapter in adapters for way in (PEERMEM, DMABUF)
    )


def _names(records: List[Dict[str, Any]], kind: str) -> Optional[List[str]]:
    names = _event(records, kind).get(kind)
    return [str(name) for name in names] if isinstance(names, list) else None


def _judge(run: Ran, records: List[Dict[str, Any]], gpu: str, adapter: str, way: str) -> Registration:
    event = _event(records, "registration", gpu=gpu, adapter=adapter, by=way)
    if event.get("ok") is True:
        left = event.get("deregistered")
        return Registration(gpu, adapter, way, not left, f"ibv_dereg_mr: {left}" if left else "")
    if event.get("ok") is False:
        call = "ibv_reg_mr" if way == PEERMEM else "ibv_reg_dmabuf_mr"
        return Registration(gpu, adapter, way, False, "{}: {}".format(call, event.get("errno")))
    exported = _event(records, "export", gpu=gpu).get("status")
    if way == DMABUF and exported:
        why = (
            "libcuda is too old to export DMA-BUF" if exported == -1 else f"no export as DMA-BUF: CUDA error {exported}"
        )
        return Registration(gpu, adapter, way, False, why)
    return Registration(gpu, adapter, way, Unknown(_untried(run, records, gpu, adapter)))


def _untried(run: Ran, records: List[Dict[str, Any]], gpu: str, adapter: str) -> str:
    """Why a registration has no result."""
    refused = _event(records, "no adapter", adapter=adapter)
    if refused:
        return "{}: {} failed: {}".format(adapter, refused.get("call"), refused.get("errno"))
    control = _event(records, "registration", adapter=adapter, by=HOST)
    if control.get("ok") is False:
        return "{} doesn't register memory of the host either: {}".format(adapter, control.get("errno"))
    for kind, words in (("no context", "CUDA has no context for it"), ("no memory", "no memory could be allocated")):
        event = _event(records, kind, gpu=gpu)
        if event:
            return "GPU {}: {}: CUDA error {}".format(gpu, words, event.get("status"))
    return _ending(run, records)


def _event(records: List[Dict[str, Any]], kind: str, **where: str) -> Mapping[str, Any]:
    expected = {"event": kind, **where}
    return next((event for event in records if expected.items() <= event.items()), {})


def _ending(run: Ran, records: List[Dict[str, Any]]) -> str:
    """Why the trial stopped."""
    library, gpu = _event(records, "not loaded"), _event(records, "no GPU")
    if library:
        return "a library was not loaded: {}".format(library.get("reason"))
    if gpu:
        return "CUDA gives no GPU: {} returned {}".format(gpu.get("call"), gpu.get("status"))
    last: Mapping[str, Any] = next((event for event in reversed(records) if event.get("event") == "begin"), {})
    place = " at {} with GPU {}".format(last.get("adapter"), last.get("gpu")) if last.get("gpu") else ""
    if run.status == TIMED_OUT:
        return f"the registration did not return in time{place}"
    if run.status < 0:
        return f"the registration was ended by signal {-run.status}{place}"
    error = (run.stderr.strip().splitlines() or ["it printed no error"])[-1]
    return f"the registration ended with status {run.status}{place}: {error}"
