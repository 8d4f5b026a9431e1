"""Random archives: what is on offer there, and what can be installed, is the same for gdsdeploy and for the real apt.

apt takes each package in its newest version only, so it may miss an answer.  What it installs, the resolver has to find
installable too; and what the resolver finds, apt has to accept.  ``GDSDEPLOY_ARCHIVES=300@7`` tries 300 archives from
seed 7 on.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gdsdeploy.lock.resolve.dependencies import Provider, Unsolvable, exactly, solve
from gdsdeploy.repo import apt
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import DEB, Candidate, Order, Universe
from gdsdeploy.repo.repository import Repository
from tests.pins.aptmachine import AptMachine
from tests.repos.archive import Archive, Key, Stanza, Suite, serve
from tests.repos.stack import package

COUNT, _, FIRST = os.environ.get("GDSDEPLOY_ARCHIVES", "6@1").partition("@")
SEEDS = range(int(FIRST or 1), int(FIRST or 1) + int(COUNT))
NAMES = "abcdef"
VIRTUAL = "vw"
#: Names that packages may provide beside their own.
PROVIDED = VIRTUAL + NAMES[:2]


@dataclass
class Everything:
    """All packages are of the stack, and none is the driver's."""

    order: Order = DEB

    def in_stack(self, candidate: Candidate) -> bool:
        return True

    def follows_driver(self, candidate: Candidate) -> bool:
        return False

    def of_driver(self, candidate: Candidate) -> bool:
        return False

    def upstream_version(self, version: str) -> str:
        return version


def installable(universe: Universe, candidate: Candidate) -> dict[str, str] | None:
    """Package → version of everything that comes with it; None where it can't be installed."""
    provider = Provider(universe, Everything(), driver=candidate, kernel_package="", excluded=(), preferred=frozenset())
    try:
        packages = solve(provider, [exactly(candidate)]).packages
    except Unsolvable:
        return None
    return {name: each.version for name, each in packages.items()}


def taken(machine: AptMachine, *words: str) -> set[str]:
    """Names of what apt would install, whether or not it finds an order for that; none where it refuses."""
    said = machine.run("apt-get", "--simulate", "install", *words, ok=(0, 100))
    named = re.search(r"^The following NEW packages will be installed:\n((?:  .*\n)+)", said, re.MULTILINE)
    return set(named[1].split()) if named else set()


class Dice(random.Random):
    """What random archives are made of."""

    def maybe(self, chance: float, text: str) -> str:
        return text if self.random() < chance else ""

    def relation(self, names: Sequence[str], architecture: str) -> str:
        qualifier = self.choice(("", "", "", ":any", ":native", f":{architecture}", ":i386"))
        version = f" ({self.choice(('<<', '<=', '=', '>=', '>>'))} {self.randint(1, 3)})"
        name = self.choice(names)
        # apt 2.6 compares ``v:amd64 (>= 2)`` with the version of v's provider, and not with what that provides.
        odd = qualifier and name in PROVIDED
        return name + qualifier + ("" if odd else self.maybe(0.3, version))

    def field(self, count: int, architecture: str, *, alternatives: bool) -> str:
        names = NAMES + VIRTUAL
        words = [self.relation(names, architecture) for _ in range(self.randint(0, count))]
        if alternatives:
            words = [w + self.maybe(0.3, f" | {self.relation(names, architecture)}") for w in words]
        return ", ".join(words)

    def provided(self, architecture: str) -> str:
        qualifier = self.choice(("", "", ":any", f":{architecture}"))
        return self.choice(PROVIDED) + qualifier + self.maybe(0.4, f" (= {self.randint(1, 3)})")

    def stanza(self, name: str, version: int, architecture: str) -> Stanza:
        fields = {
            "multi_arch": self.choice(("", "", "allowed", "foreign", "same")),
            "depends": self.field(2, architecture, alternatives=True),
            "pre_depends": self.maybe(0.1, self.relation(NAMES, architecture)),
            "provides": self.maybe(0.4, self.provided(architecture)),
            "conflicts": self.maybe(0.3, self.field(1, architecture, alternatives=False)),
            "breaks": self.maybe(0.2, self.field(1, architecture, alternatives=False)),
        }
        own = self.choice((architecture, architecture, "all"))
        if own == "all" and fields["multi_arch"] == "same":
            fields["multi_arch"] = ""
        return package(name, str(version), architecture=own, **{key: text for key, text in fields.items() if text})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_archive(seed: int, tmp_path: Path, key: Key) -> None:
    dice = Dice(seed)
    architecture = dice.choice(("amd64", "arm64"))
    versions = [(name, version) for name in NAMES for version in (1, 2, 3) if dice.random() < 0.5]
    components: dict[str, list[Stanza]] = {"main": [], "extra": []}
    for each in dice.sample(versions, len(versions)):
        components[dice.choice(("main", "extra"))].append(dice.stanza(*each, architecture))
    suite = Suite(
        "stable", {**components}, all_apart=dice.random() < 0.5, by_hash=dice.random() < 0.5,
        compressions=dice.choice(((".xz", ".gz"), (".gz",), ("",))),
    )  # fmt: skip
    archive = Archive(tmp_path / "www", dice.choice(((architecture,), ("arm64", "amd64"))))
    detached = dice.random() < 0.3
    archive.publish(suite, key, detached=detached)
    #: of one address: both components, or each by itself
    parts = dice.choice(((("main", "extra"),), (("main",), ("extra",))))
    machine = AptMachine.make(tmp_path / "machine", (), architecture)
    with serve(archive.root) as server, Fetcher(tmp_path / "cache") as fetcher:
        # Without InRelease, apt takes nothing but 404 for an answer.
        server.instead[404] = 404 if detached else dice.choice((403, 404))
        for part in parts:
            machine.source(part[0], f"deb [signed-by={key.keyring}] {server.uri} stable {' '.join(part)}")
        machine.run("apt-get", "--error-on=any", "update")
        repositories = [
            Repository(part[0], server.uri, key.keyring, (key.fingerprint,), "/k.gpg", ("stable",), part)
            for part in parts
        ]
        universe, _ = apt.read(fetcher, repositories, architecture)
    offered = {c.key: c for name in universe.names() for c in universe.named(name)}
    shown = machine.run("apt-cache", "show", "--all-versions", *NAMES, ok=(0, 100))
    stanzas = [dict(re.findall(r"^(\S+): (.*)$", stanza, re.MULTILINE)) for stanza in re.split(r"\n\n+", shown)]
    assert {tuple(s[f] for f in ("Package", "Version", "Architecture")) for s in stanzas if "Version" in s} == set(
        offered
    )
    assert len(offered) == sum(map(len, components.values()))
    for candidate in dice.sample(sorted(offered.values(), key=lambda c: c.key), min(4, len(offered))):
        name = f"{candidate.package}={candidate.version}"
        ours = installable(universe, candidate)
        asked = [name] if ours is None else [f"{each}={version}" for each, version in ours.items()]
        assert taken(machine, *asked) == set(ours or ()), (name, ours)
