"""The path that I/O on a mount takes, and the causes that rule out a better one, from all evidence on the host.

That isn't proof.  Proof is an I/O that was seen to take the path (host/proof/proof.py); it needs a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.processes import Proof
from ..facts.storage import Mount
from ..facts.unknown import when_known
from . import blocks, config, filesystem, mechanisms
from .cause import (
    BROKEN,
    COMPAT,
    DIRECT_PATH,
    NOTES,
    NVIDIA_FS,
    P2PDMA,
    USABLE,
    Cause,
    Condition,
    Path,
    Verdict,
    distinct,
    needs,
    ranked,
    weigh,
)
from .config import registers_silently, requests_p2pdma


def path_of(facts: HostFacts, mount: Mount, file: str = "") -> Path:
    """Judge one mount, or ``file`` on it where that isn't the whole mount."""
    proofs = facts.storage.proofs.get(mount.mount_point, ())
    return replace(_expected_path(facts, mount, file), proofs=tuple(_as_configured(facts, proof) for proof in proofs))


def _as_configured(facts: HostFacts, proof: Proof) -> Proof:
    """Programs get what the host's configuration allows, which the second try of a proof may exceed."""
    if proof.path == COMPAT and config.fallback(facts)[0] is False:
        return replace(proof, path=BROKEN, how=proof.how + "; but this host's configuration disallows it")
    return proof


def _expected_path(facts: HostFacts, mount: Mount, file: str) -> Path:
    gpu = when_known(facts.pci.gpus, bool)
    usable = weigh(needs(USABLE, facts, mount))
    name, verdict = _direct(facts, mount, file)
    if usable.holds is False:
        # Also show the obstacles to the direct path: the operator can then repair everything at once.
        return Path(BROKEN, distinct((*usable.causes, *verdict.causes)), gpu, verdict.suspects, usable.unseen)
    if name is None:
        path, causes = or_compat(facts, verdict.causes)
        path = usable.holds if isinstance(usable.holds, Unknown) and path != BROKEN else path
        notes = registers_silently(facts) if path == COMPAT else ()
        return Path(path, causes, gpu, unseen=usable.unseen, notes=notes)
    if isinstance(usable.holds, Unknown):
        name = usable.holds
    unseen = tuple(dict.fromkeys((*usable.unseen, *verdict.unseen)))
    notes = tuple(note for function in ranked(NOTES) for note in function(facts, mount))
    return Path(name, verdict.causes, gpu, verdict.suspects, unseen, notes)


def or_compat(facts: HostFacts, causes: Tuple[Cause, ...]) -> Tuple[Maybe[str], Tuple[Cause, ...]]:
    """The path where there is no direct one, with its causes."""
    allowed, cause = config.fallback(facts)
    if isinstance(allowed, Unknown):
        return allowed, causes
    return (COMPAT, causes) if allowed else (BROKEN, (*causes, cause) if cause is not None else causes)


def _direct(facts: HostFacts, mount: Mount, file: str) -> Tuple[Maybe[Optional[str]], Verdict]:
    """The direct path that is taken, None if there is none.  P2PDMA, where configured, comes first."""
    shared = [*needs(DIRECT_PATH, facts, mount)]
    if file and mount.filesystem in filesystem.LOCAL:
        unseen = Unknown(f"the evidence doesn't show the flags of {file}")
        shared += filesystem.flag_conditions(file, facts.storage.inodes.get(file, unseen))
    attempts = [(NVIDIA_FS, list(needs(NVIDIA_FS, facts, mount)))]
    client = mechanisms.CLIENTS.get(mount.filesystem)
    configured = requests_p2pdma(facts, blocks.storage_of(facts, mount))
    if client is not None:
        attempts = mechanisms.attempts(facts, client, mount)
    elif mount.filesystem == filesystem.PANFS:
        # The rules about DIRECT say what is known: not whether nvidia-fs has a part in it.
        attempts = [(NVIDIA_FS, [])]
    elif configured is not False:
        attempts.insert(0, (P2PDMA, [Condition(configured), *needs(P2PDMA, facts, mount)]))
    return decide(shared, attempts)


def decide(
    shared: List[Condition], attempts: Sequence[Tuple[str, List[Condition]]]
) -> Tuple[Maybe[Optional[str]], Verdict]:
    """The first of (path, its conditions) that holds, beside those of all; unknown from the first that may."""
    causes: List[Cause] = []
    undecided: Optional[Verdict] = None
    for name, conditions in attempts:
        verdict = weigh([*shared, *conditions])
        if verdict.holds is True:
            if undecided is None:
                return name, verdict
            break
        if isinstance(verdict.holds, Unknown):
            undecided = undecided or verdict
        causes += verdict.causes
    if undecided is not None and isinstance(undecided.holds, Unknown):
        return undecided.holds, replace(undecided, causes=distinct(causes))
    return None, Verdict(False, distinct(causes))
