"""The rules of compat.yml that explain a failed build, as the program on hosts reads them.

It doesn't need pydantic, which isn't installed where the collection packs the host program.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

#: What a host knows of the thing that it builds.
SUBJECTS = frozenset({"driver", "flavour", "kernel", "arch", "nvidia_fs", "nvidia_fs_origin"})
#: What it does not: conditions on these are left out, and such a rule is named where it may explain the failure.
_DROPPED = frozenset({"driver_package", "nvidia_fs_package", "kernel_package"})

Conditions = dict[str, list[str]]


def for_hosts() -> bytes:
    """JSON: those rules that refuse a driver or an nvidia-fs on a kernel, or an nvidia-fs with a driver."""
    text = (Path(__file__).parents[1] / "lock" / "compat.yml").read_text(encoding="utf-8")
    rules = list(_selected(yaml.safe_load(text)["rules"]))
    return (json.dumps(rules, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _selected(rules: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for rule in rules:
        when, needs, refuses = (_conditions(rule.get(key, {})) for key in ("when", "needs", "refuses"))
        looks_at = {*when, *needs, *refuses, *rule.get("warns", {})}
        if not looks_at <= SUBJECTS | _DROPPED:
            continue
        about = "nvidia-fs" if "nvidia_fs" in looks_at else "driver" if "driver" in looks_at else ""
        if not about or not {**needs, **refuses} or (about == "driver" and "kernel" not in looks_at):
            continue
        yield {
            "id": rule["id"],
            "about": about,
            "says": " ".join(rule["says"].split()),
            "source": " ".join(rule["source"].split()),
            "fixed": rule.get("fixed", ""),
            "when": {subject: texts for subject, texts in when.items() if subject in SUBJECTS},
            "needs": needs,
            "refuses": refuses,
        }


def _conditions(value: Mapping[str, Any]) -> Conditions:
    return {subject: [texts] if isinstance(texts, str) else list(texts) for subject, texts in value.items()}
