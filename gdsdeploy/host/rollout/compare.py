"""How a host differs from what it was; pure."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Tuple

from ..errors import RolloutError
from .snapshot import VERSION

Difference = Dict[str, str]


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> List[Difference]:
    """Every difference of two snapshots, each as ``{"what", "name", "was", "is", "says"}`` of texts.

    It leaves out the boot's id, the time and what boots next.  Raises RolloutError unless ``was`` is a snapshot of this
    version.
    """
    if not isinstance(was, Mapping) or was.get("version") != VERSION or not isinstance(was.get("packages"), Mapping):
        raise RolloutError(
            "snapshot",
            f"this isn't a snapshot of version {VERSION}",
            "make one: gdsdeploy-host.pyz rollout snapshot --json",
        )
    pairs = [
        _difference("boot", "default", was["boot"]["default"], now["boot"]["default"]),
        _difference("kernel", "running", was["kernel"], now["kernel"]),
        *_packages(was["packages"], now["packages"]),
        *_kernels(was["kernels"], now["kernels"]),
        *(_difference("file", path, _file(one), _file(two)) for path, one, two in _both(was["files"], now["files"])),
    ]
    for name in ("installed", "held", "removed"):
        # Older snapshots don't say what had left.
        if was["provision"].get(name) is None:
            continue
        one, two = (" ".join(sorted(snapshot["provision"][name])) for snapshot in (was, now))
        pairs.append(_difference("provision", name, one, two))
    return [pair for pair in pairs if pair["was"] != pair["is"]]


def _packages(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for name, one, two in _both(was, now):
        # Only one snapshot asked about this package.
        if one is None or two is None:
            continue
        yield _difference("package", name, one["version"], two["version"])
        if one["version"] and two["version"]:
            yield _difference("hold", name, "held" if one["held"] else "", "held" if two["held"] else "")


def _kernels(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for release, one, two in _both(was, now):
        yield _difference("kernel", release, "installed" if one else "", "installed" if two else "")
        if one is None or two is None:
            continue
        for what, key in (("module", "files"), ("chosen", "chosen")):
            for name, first, second in _both(one[key], two[key]):
                yield _difference(what, f"{release}/{name}", first or "", second or "")


def _both(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Tuple[str, Any, Any]]:
    for name in sorted({*was, *now}):
        yield name, was.get(name), now.get(name)


def _file(entry: Any) -> str:
    return "{mode} {uid}:{gid} {sha256}".format(**entry) if entry else ""


def _difference(what: str, name: str, was: str, now: str) -> Difference:
    words = f"{what} {name}: was {was or 'not there'}, is {now or 'not there'}"
    return {"what": what, "name": name, "was": was, "is": now, "says": words}
