"""How a host differs from what it was; pure."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Tuple

from ..errors import RolloutError
from .snapshot import VERSION

Difference = Dict[str, str]


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> List[Difference]:
    """Every difference of two snapshots, each as ``{"what", "name", "was", "is", "says"}`` of texts.

    What passes by itself (the boot's id, the time, what boots next) is left out.  Raises RolloutError where ``was`` is
    no snapshot of this version.
    """
    if not isinstance(was, Mapping) or was.get("version") != VERSION or not isinstance(was.get("packages"), Mapping):
        raise RolloutError("snapshot", f"this is no snapshot of version {VERSION}", "rollout snapshot --json")
    found = [_said("boot", "default", was["boot"]["default"], now["boot"]["default"])]
    found += [_said("kernel", "running", was["kernel"], now["kernel"])]
    found += _packages(was["packages"], now["packages"])
    found += _kernels(was["kernels"], now["kernels"])
    for path, one, two in _both(was["files"], now["files"]):
        found.append(_said("file", path, _file(one), _file(two)))
    for name in ("installed", "held"):
        one, two = (" ".join(sorted(each["provision"][name])) for each in (was, now))
        found.append(_said("provision", name, one, two))
    return [item for item in found if item["was"] != item["is"]]


def _packages(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for name, one, two in _both(was, now):
        # A package that only one of them asked about says nothing.
        if one is None or two is None:
            continue
        yield _said("package", name, one["version"], two["version"])
        if one["version"] and two["version"]:
            yield _said("hold", name, "held" if one["held"] else "", "held" if two["held"] else "")


def _kernels(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for release, one, two in _both(was, now):
        yield _said("kernel", release, "installed" if one else "", "installed" if two else "")
        if one is None or two is None:
            continue
        for what, key in (("module", "files"), ("chosen", "chosen")):
            for name, first, second in _both(one[key], two[key]):
                yield _said(what, f"{release}/{name}", first or "", second or "")


def _both(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Tuple[str, Any, Any]]:
    for name in sorted({*was, *now}):
        yield name, was.get(name), now.get(name)


def _file(entry: Any) -> str:
    return "{mode} {uid}:{gid} {sha256}".format(**entry) if entry else ""


def _said(what: str, name: str, was: str, now: str) -> Difference:
    words = "{} {}: was {}, is {}".format(what, name, was or "not there", now or "not there")
    return {"what": what, "name": name, "was": was, "is": now, "says": words}
