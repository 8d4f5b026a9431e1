"""What can go wrong on a host: fault → (what makes it on the provisioned one, the checks that have to fail).

Each subject has a table of its own, faults_<subject>.py; other checks than the named ones may only become unknown.
"""

from __future__ import annotations

from tests.unit.host.checks import (
    faults_arguments,
    faults_basic,
    faults_cufile,
    faults_foreign,
    faults_hardware,
    faults_kernel_messages,
    faults_modules,
    faults_stack,
)
from tests.unit.host.checks.changes import Change

FAULTS: dict[str, tuple[Change, set[str]]] = {
    **faults_basic.FAULTS,
    **faults_arguments.FAULTS,
    **faults_cufile.FAULTS,
    **faults_foreign.FAULTS,
    **faults_hardware.FAULTS,
    **faults_modules.FAULTS,
    **faults_stack.FAULTS,
    **faults_kernel_messages.FAULTS,
}
