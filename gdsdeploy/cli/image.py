"""``--root DIR`` of ``plan``, ``provision`` and ``remove``: the root of an image in place of hosts."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.converge import image as images
from gdsdeploy.converge import plan_report
from gdsdeploy.converge.image import Image, ImagePlan
from gdsdeploy.errors import ChangesPending, ChecksUnknown, HostUnfit
from gdsdeploy.fleetfile import selection
from gdsdeploy.host.apply.model import Change
from gdsdeploy.lock import lockfile


@contextlib.contextmanager
def _open(
    fleet: Path, folder: Path, limit: str | None, *, fresh: bool = True, signed: bool = True, any_serial: bool = False
) -> Iterator[Image]:
    """The image; ends with a usage error unless ``limit`` names one machine."""
    intent, lock = lockfile.fleet_and_lock(fleet, fresh=fresh, signed=signed, any_serial=any_serial)
    options.require(limit is not None, "--root needs --limit HOST: the host whose state the image gets")
    names = selection.select(limit, list(intent.everyone()), fleet)
    options.require(len(names) == 1, f"--root needs one host, and --limit names {len(names)}: {', '.join(names)}")
    with images.open_image(intent, lock, fleet, names[0], folder) as image:
        yield image


def plan(fleet: Path, folder: Path, limit: str | None, *, whole: bool, as_json: bool) -> None:
    """``plan --root``; raises what the plan ends in."""
    with _open(fleet, folder, limit, signed=False) as image:
        begin = time.monotonic()
        planned = _plan(image)
        plans = {image.name: planned.plan}
        if as_json:
            seconds = {image.name: time.monotonic() - begin}
            value = {"root": str(image.root.path), "left": [entry.to_json() for entry in planned.left]}
            console.data(
                plan_report.to_json(plans, seconds, fleet=str(fleet), lock_digest=image.lock.digest, image=value)
            )
        else:
            console.data("\n\n".join([plan_report.text(plans, whole=whole), *_left(planned)]))
    if planned.plan.changes and not planned.plan.refusal:
        raise ChangesPending("")
    if planned.plan.refusal:
        raise HostUnfit(f"provision would refuse {image.root.path}", hint="See the reasons above")
    if planned.plan.unknown:
        raise ChecksUnknown(f"the plan is incomplete for {image.root.path}", hint="See the reasons above")


def provision(fleet: Path, folder: Path, limit: str | None, *, any_serial: bool, as_json: bool) -> None:
    """``provision --root``: plan, then change what differs."""
    with _open(fleet, folder, limit, any_serial=any_serial) as image:
        planned = _plan(image)
        changes: list[Change] = []
        if planned.plan.satisfied:
            console.say("Nothing to change: the image matches the lock")
        else:
            with console.step(f"Provisioning {image.root.path} as {image.name}"):
                if planned.plan.supply is not None:
                    console.say(f"  {plan_report.supply_words(planned.plan.supply)}")
                changes = images.provision_image(image, planned, _say)
            console.say(f"  {len(changes)} changes")
        for text in _left(planned):
            console.say(text)
        if as_json:
            console.data(_summary(image, changes, planned))


def remove(fleet: Path, folder: Path, limit: str | None, *, any_serial: bool, as_json: bool) -> None:
    """``remove --root``."""
    with _open(fleet, folder, limit, fresh=False, any_serial=any_serial) as image:
        with console.step(f"Removing from {image.root.path}"):
            changes = images.remove_image(image, _say)
        console.say(f"  {len(changes)} changes")
        if as_json:
            console.data(_summary(image, changes))


def _plan(image: Image) -> ImagePlan:
    with console.step(f"Planning {image.root.path} as {image.name}"):
        return images.plan_image(image, _say)


def _say(text: str) -> None:
    console.say(f"  {text}")


def _left(planned: ImagePlan) -> list[str]:
    """What isn't done in an image, as a paragraph or none."""
    lines = [f"  - {entry.words}" for entry in planned.left]
    return ["\n".join(["Left out of the image:", *lines])] if lines else []


def _summary(image: Image, changes: Sequence[Change], planned: ImagePlan | None = None) -> str:
    """One JSON object, with the keys that a run on hosts has."""
    host = {"changed": sorted({change.resource for change in changes}), "error": None}
    value = {
        "hosts": {image.name: {**host, "changes": [change.to_json() for change in changes]}},
        "satisfied": [image.name] if planned is not None and planned.plan.satisfied else [],
        "log": None,
        "image": {
            "root": str(image.root.path),
            "left": [entry.to_json() for entry in planned.left] if planned is not None else [],
        },
    }
    return json.dumps(value, indent=2)
