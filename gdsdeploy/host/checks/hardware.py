"""The number and kind of GPUs, network adapters and NVMe disks, as the fleet file counts them."""

from __future__ import annotations

import re
from typing import Any, List, Mapping, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown, require
from ..facts.hardware import Part
from ..facts.unknown import when_known
from ..io.phrases import first_few
from ..model.expectation import Expectation
from .registry import Answer, check, failed, not_applicable, passed, subject, unknown

subject("gpu", after="topology")
subject("nic", after="gpu")
subject("nvme", after="nic")

#: Of the kernel's messages: a device that doesn't answer on the PCIe bus any more.
FALLEN = re.compile(r"fallen off the bus|GPU is lost", re.IGNORECASE)
#: Devices that a finding names; the rest is counted.
NAMED = 16
UNKNOWN_HINT = "Check that the driver runs all of them, then validate again"
MISSING_HINT = (
    "Look for the missing device with lspci and journalctl -k. Power the host off and on. If the device is still"
    " missing, have its slot and card checked"
)


@check(
    "gpu.present",
    "the host has as many GPUs as the fleet file says",
    expects="gpus of the profile",
    prevents="a job that waits for, or silently does without, a GPU that died or was taken out",
    unknown_hint=UNKNOWN_HINT,
)
def gpus(facts: HostFacts, expectation: Expectation) -> Answer:
    return _counted(facts, expectation, "gpus", "GPU")


@check(
    "nic.present",
    "the host has as many network adapters as the fleet file says",
    expects="nics of the profile",
    prevents="storage traffic through fewer adapters after one died, lost its driver or came up at a lower rate",
    unknown_hint=UNKNOWN_HINT,
)
def nics(facts: HostFacts, expectation: Expectation) -> Answer:
    return _counted(facts, expectation, "nics", "network adapter")


@check(
    "nvme.present",
    "the host has as many NVMe disks as the fleet file says",
    expects="nvme of the profile",
    prevents="a scratch filesystem on fewer disks after one died or was taken out",
    unknown_hint=UNKNOWN_HINT,
)
def disks(facts: HostFacts, expectation: Expectation) -> Answer:
    return _counted(facts, expectation, "nvme", "NVMe disk")


def _counted(facts: HostFacts, expectation: Expectation, key: str, noun: str) -> Answer:
    devices = expectation.hardware.get(key)
    if devices is None:
        return not_applicable(f"the profile has no key {key}")
    parts: Maybe[Tuple[Part, ...]] = getattr(facts.hardware, key)
    count = int(devices["count"])
    expected = _amount(count, noun) + "".join(f", {name} {devices[name]}" for name in devices if name != "count")
    answers = [(part, _counts(part, devices)) for part in require(parts)]
    sure = [part.address for part, answer in answers if answer is True]
    open_ones = [(part.address, answer) for part, answer in answers if isinstance(answer, Unknown)]
    others = [f"{part.address} ({_words(part)})" for part, answer in answers if answer is False]
    lines = [f"/sys/bus/pci/devices/{part.address}: {_words(part)}" for part, _ in answers]
    most = len(sure) + len(open_ones)
    if len(sure) <= count <= most:
        if open_ones:
            reason = f"{_amount(most, noun)} may count; {open_ones[0][1].reason}"
            return unknown(reason, UNKNOWN_HINT, expected=expected)
        return passed(_amount(count, noun) + _named(sure), lines, expected=expected)
    present = sure + [address for address, _ in open_ones]
    rest = f"; not counted: {first_few(others, NAMED)}" if others else ""
    if most < count:
        fallen = [line for line in facts.kernel.log.lines if FALLEN.search(line)] if key == "gpus" else []
        words = f"expected {count}, found {most}: {count - most} missing; present{_named(present) or ': none'}{rest}"
        words += f"; the kernel says: {fallen[0].strip()}" if fallen else ""
        return failed(words, MISSING_HINT, [*fallen, *lines], expected=expected)
    words = f"expected {count}, found {len(sure)}{_named(sure)}{rest}"
    hint = f"Correct profiles.{expectation.profile}.{key} in the fleet file, or give this host a profile of its own"
    return failed(words, hint, lines, expected=expected)


def _amount(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _named(addresses: Sequence[str]) -> str:
    return f": {first_few(addresses, NAMED)}" if addresses else ""


def _counts(part: Part, devices: Mapping[str, Any]) -> Maybe[bool]:
    """Whether a device is one of those that the fleet file counts."""
    answers: List[Maybe[bool]] = []
    if "model" in devices:
        answers.append(when_known(part.model, lambda model: devices["model"].lower() in model.lower()))
    if "driver" in devices:
        answers.append(when_known(part.driver, lambda driver: driver == devices["driver"]))
    if "link" in devices:
        answers.append(when_known(part.link, lambda link: link == devices["link"]))
    if any(answer is False for answer in answers):
        return False
    return next((answer for answer in answers if isinstance(answer, Unknown)), True)


def _words(part: Part) -> str:
    words = [part.model] if isinstance(part.model, str) else []
    if not isinstance(part.driver, Unknown):
        words.append(f"driver {part.driver}" if part.driver else "no driver")
    if not isinstance(part.link, Unknown):
        words.append(f"{part.link:g} Gbit/s" if part.link else "no active port")
    return ", ".join(words)
