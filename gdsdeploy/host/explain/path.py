"""Which path I/O on a mount takes, and in order why not a better one, from everything that is known of the host.

That is not proof.  Proof is an I/O that was seen to take the path (host/proof/proof.py); it needs a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, List, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.proof import Proof
from ..facts.storage import Mount
from ..facts.unknown import test
from . import advice, blocks, config, filesystem, gpus, modules, nvidia_fs, p2pdma
from .cause import BROKEN, COMPAT, NVIDIA_FS, P2PDMA, Cause, Condition, Path, Verdict, distinct, weigh


def path_of(facts: HostFacts, mount: Mount, file: str = "") -> Path:
    """Judge one mount, or ``file`` on it where that is not the whole mount."""
    proofs = facts.storage.proofs.get(mount.mount_point, ())
    return replace(_expected(facts, mount, file), proofs=tuple(_configured(facts, item) for item in proofs))


def _configured(facts: HostFacts, proof: Proof) -> Proof:
    """Programs get what the host's configuration allows them, which the second try of a proof may exceed."""
    if proof.path == COMPAT and config.fallback(facts)[0] is False:
        return replace(proof, path=BROKEN, how=proof.how + "; but the configuration of this host does not allow it")
    return proof


def _expected(facts: HostFacts, mount: Mount, file: str) -> Path:
    gpu = test(facts.pci.gpus, bool)
    usable = weigh([*usable_at_all(facts), *blocks.udev(mount, facts.environment.container)])
    taken, found = _direct(facts, mount, file)
    if usable.holds is False:
        # What would keep it from the direct path is said too, so that one repair is not followed by the next riddle.
        return Path(BROKEN, distinct((*usable.causes, *found.causes)), gpu, found.suspects, usable.unseen)
    if taken is None:
        path, causes = or_compat(facts, found.causes)
        path = usable.holds if isinstance(usable.holds, Unknown) and path != BROKEN else path
        return Path(path, causes, gpu, unseen=usable.unseen)
    if isinstance(usable.holds, Unknown):
        taken = usable.holds
    notes = (*config.notes(facts, mount), *filesystem.notes(mount), *gpus.notes(facts, mount))
    notes = (*notes, *advice.notes(facts, mount))
    unseen = tuple(dict.fromkeys((*usable.unseen, *found.unseen)))
    return Path(taken, found.causes, gpu, found.suspects, unseen, notes)


def usable_at_all(facts: HostFacts) -> Iterator[Condition]:
    yield from config.usable(facts)
    yield from nvidia_fs.usable(facts)


def either(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """What both direct paths need of the host: a driver that runs, a configuration that lets them, GPUs that can."""
    version = facts.driver.version
    cause = modules.not_loaded(facts, modules.driver(facts)) if version is None else None
    yield Condition(test(version, lambda found: found is not None), cause)
    yield from config.direct(facts, mount)
    yield from gpus.direct(facts)


def or_compat(facts: HostFacts, causes: Tuple[Cause, ...]) -> Tuple[Maybe[str], Tuple[Cause, ...]]:
    """What is left without a direct path."""
    allowed, cause = config.fallback(facts)
    if isinstance(allowed, Unknown):
        return allowed, causes
    return (COMPAT, causes) if allowed else (BROKEN, (*causes, cause) if cause is not None else causes)


def _direct(facts: HostFacts, mount: Mount, file: str) -> Tuple[Maybe[Optional[str]], Verdict]:
    """The direct path that is taken, None if there is none.  P2PDMA, where asked for, comes first."""
    shared = [*either(facts, mount), *filesystem.direct(mount)]
    if file and mount.filesystem in filesystem.LOCAL:
        unseen = Unknown(f"the flags of {file} were not looked at")
        shared += filesystem.flagged(file, facts.storage.inodes.get(file, unseen))
    attempts = [(NVIDIA_FS, list(nvidia_fs.direct(facts, mount)))]
    asked = config.asks_for_p2pdma(facts)
    if asked is not False:
        attempts.insert(0, (P2PDMA, [Condition(asked), *p2pdma.direct(facts, mount)]))
    causes: List[Cause] = []
    undecided: Optional[Verdict] = None
    for name, conditions in attempts:
        found = weigh([*shared, *conditions])
        if found.holds is True:
            if undecided is None:
                return name, found
            break
        if isinstance(found.holds, Unknown):
            undecided = undecided or found
        causes += found.causes
    if undecided is not None and isinstance(undecided.holds, Unknown):
        joined = Verdict(undecided.holds, distinct(causes), undecided.suspects, undecided.unseen)
        return undecided.holds, joined
    return None, Verdict(False, distinct(causes))
