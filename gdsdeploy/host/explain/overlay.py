"""The configuration that CUFILE_ENV_PATH_JSON names, laid over /etc/cufile.json.

What it sets is judged by the rules about cufile.json.  These are about the file itself.
"""

from __future__ import annotations

from typing import Iterator, Optional

from ..facts import HostFacts, Unknown
from ..facts.environment import VARIABLE, Overlay, Variable
from ..facts.storage import Mount
from . import quote, reference
from .cause import Cause, Condition
from .rules import DIRECT, NOTES, USABLE, rule


@rule(USABLE, 11)
def usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """If libcufile refuses the second file, every cuFile call fails as well."""
    over = facts.cufile.overlay
    if isinstance(over, Overlay) and over.broken:
        what = f"libcufile refuses the configuration that {VARIABLE} names: {over.broken}"
        fix = f"correct the file, or remove the variable from {over.variable.place}: gdsdeploy cufile check {over.path}"
        evidence = (*quote.with_source(over.path, [over.broken]), *quote.variable(over.variable))
        yield Condition(False, Cause("cufile.overlay-refused", what, fix, evidence, reference.VARIABLES))


@rule(DIRECT, 21)
def direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """A file that was not seen may set anything."""
    over, named = facts.cufile.overlay, facts.environment.variables.get(VARIABLE)
    if isinstance(over, Unknown) and isinstance(named, Variable):
        what = f"{VARIABLE} overlays /etc/cufile.json with a configuration that couldn't be examined"
        fix = f"examine that file, or remove the variable from {named.place}"
        evidence = (*quote.variable(named), over.reason)
        cause = Cause("cufile.variable-overlays", what, fix, evidence, reference.VARIABLES)
        yield Condition(Unknown(over.reason), cause, suspect=True)


@rule(NOTES, 11)
def notes(facts: HostFacts, _mount: Mount) -> Iterator[Cause]:
    over = facts.cufile.overlay
    if isinstance(over, Overlay) and not over.exists:
        what = f"{VARIABLE} names {over.path}, which doesn't exist: libcufile ignores it"
        fix = f"create the file, or remove the variable from {over.variable.place}"
        evidence = quote.variable(over.variable)
        yield Cause("cufile.overlay-missing", what, fix, evidence, reference.VARIABLES)
