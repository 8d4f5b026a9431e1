"""What can go wrong on a host: fault → its case in tests/cases/checks/faults_*.yml, which names the checks that fail.

A fault starts on the provisioned host.  Other checks than the named ones may only become unknown.
"""

from __future__ import annotations

from tests.unit.host import cases
from tests.unit.host.cases import Case

SUBJECTS = ("basic", "arguments", "cufile", "foreign", "hardware", "modules", "stack", "kernel_messages")
FAULTS: dict[str, Case] = {
    name: case for subject in SUBJECTS for name, case in cases.read(f"checks/faults_{subject}").items()
}
