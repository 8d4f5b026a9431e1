"""What may be locked beside the rules: stacks that were proven, and how old an index may be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from gdsdeploy.errors import RepositoryUntrusted
from gdsdeploy.host.model.compat import WARNED, Verdict
from gdsdeploy.model.fleet import Repository
from gdsdeploy.model.hostnames import grouped
from gdsdeploy.model.lock import BUILT_FROM, Index, Target


def ingredients(target: Target, *, nvidia_fs: bool = True) -> str:
    """``sha256:…`` over the packages and pins that the modules of ``target`` depend on.

    nvidia_fs: whether with those of nvidia-fs, on which the driver's own modules don't depend.
    """
    lines = sorted(
        f"{package.package} {package.version} {package.architecture} {package.sha256}"
        for package in target.packages
        if package.part in BUILT_FROM and (nvidia_fs or package.part != "nvidia-fs-source")
    )
    lines += [f"{key}={target.pins.get(key, '')}" for key in ("flavour", "mode", "rdma")]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_proven(target: Target) -> bool:
    """Whether `gdsdeploy lock --prove` saw every module of exactly these packages build, and audited it."""
    return bool(target.proof) and target.proof == ingredients(target)


def keep_proof(target: Target, before: Target | None) -> Target:
    """``target`` with the proof of ``before``, if its modules are made from the same."""
    same = before is not None and is_proven(before) and before.proof == ingredients(target)
    return target.model_copy(update={"proof": before.proof}) if before is not None and same else target


#: An older index gets a warning unless its Valid-Until ends it within that time; stable releases get new indices more
#: often.
OLD_INDEX: Final = timedelta(days=180)
#: The rule's name in warnings.
INDEX_AGE: Final = "index-age"
#: The same for an index without a signature.
UNSIGNED_INDEX: Final = "unsigned-index"


def judge_ages(indices: Iterable[Index], repositories: Mapping[str, Repository], now: datetime | None) -> list[Verdict]:
    """A warning for each old index, without Valid-Until or with one far away, whose repository has no ``max_age``.

    repositories: name → its entry in the fleet file.  now: aware; by default this machine's clock.
    Raises RepositoryUntrusted listing every index that is older than the ``max_age`` of its repository.
    """
    moment, refused, warnings = now or datetime.now(UTC), list[str](), list[Verdict]()
    for index in indices:
        date = datetime.fromisoformat(index.date)
        age, ends = moment - date, index.valid_until
        entry = repositories.get(index.repository)
        if entry and entry.max_age is not None:
            if age > timedelta(seconds=entry.max_age):
                most = f"max_age of repositories.{index.repository} is {_words(timedelta(seconds=entry.max_age))}"
                refused.append(f"{_dated(index, age)}, and {most}")
        elif age > OLD_INDEX and (ends is None or datetime.fromisoformat(ends) - date > OLD_INDEX):
            until = "has no Valid-Until" if ends is None else f"is valid until {ends}"
            words = f"{_dated(index, age)}, and {until}: is that mirror up to date? max_age makes this an error"
            warnings.append(Verdict(INDEX_AGE, WARNED, words))
        if index.metadata == "unsigned":
            keys = ", ".join(index.package_keys)
            words = f"{index.uri}: the index of {index.repository} is used unsigned ({index.why}): its server chooses"
            words += f" which packages are on offer, and each locked one is signed by {keys}"
            warnings.append(Verdict(UNSIGNED_INDEX, WARNED, words))
    if refused:
        raise RepositoryUntrusted(
            "\n".join(refused),
            hint="The mirror is stale, or an attacker replays an old state: use another mirror. If this machine's "
            "clock is wrong, correct it",
        )
    return warnings


def lines(warnings: Iterable[tuple[str, Verdict]]) -> list[str]:
    """One line for each of them, (profile, verdict); profiles share one."""
    profiles = grouped((name, (verdict.rule, verdict.words)) for name, verdict in warnings)
    return [
        f"{'profile' if len(names) == 1 else 'profiles'} {', '.join(names)}: [{rule}] {words}"
        for (rule, words), names in profiles.items()
    ]


def to_json(warnings: Iterable[tuple[str, Verdict]]) -> list[dict[str, str]]:
    """The same as JSON values, one for each profile."""
    return [{"profile": name, "rule": v.rule, "verdict": v.kind, "words": v.words} for name, v in warnings]


def _dated(index: Index, age: timedelta) -> str:
    subject = f"{index.uri}: the index of {index.repository} {index.suite}".rstrip()
    return f"{subject} is dated {index.date}, {_words(age)} ago"


def _words(age: timedelta) -> str:
    return f"{age.days} days" if age >= timedelta(days=3) else f"{age / timedelta(hours=1):.0f} hours"
