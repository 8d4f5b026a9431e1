"""The rules of compat.yml that explain a failed build, as the program on hosts reads them.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gdsdeploy import compat
from gdsdeploy.compat import Rule

#: What a host knows of the thing that it builds.
SUBJECTS = frozenset({"driver", "flavour", "kernel", "arch", "nvidia_fs", "nvidia_fs_origin"})
#: What it does not: conditions on these are left out, and such a rule is named where it may explain the failure.
_DROPPED = frozenset({"driver_package", "nvidia_fs_package", "kernel_package"})


def for_hosts(rules: Iterable[Rule] | None = None) -> bytes:
    """JSON: those rules that refuse a driver or an nvidia-fs on a kernel, or an nvidia-fs with a driver."""
    found = []
    for rule in compat.shipped() if rules is None else rules:
        effect = {**rule.needs, **rule.refuses}
        if not rule.looks_at <= SUBJECTS | _DROPPED:
            continue
        about = "nvidia-fs" if "nvidia_fs" in rule.looks_at else "driver" if "driver" in rule.looks_at else ""
        if not about or not effect or (about == "driver" and "kernel" not in rule.looks_at):
            continue
        found.append(
            {
                "id": rule.id,
                "about": about,
                "says": " ".join(rule.says.split()),
                "source": " ".join(rule.source.split()),
                "fixed": rule.fixed,
                "when": {subject: list(texts) for subject, texts in rule.when.items() if subject in SUBJECTS},
                "needs": {subject: list(texts) for subject, texts in rule.needs.items()},
                "refuses": {subject: list(texts) for subject, texts in rule.refuses.items()},
            }
        )
    return (json.dumps(found, sort_keys=True, ensure_ascii=False) + "\n").encode()
