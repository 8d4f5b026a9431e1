"""What is computed from facts; tests/cases/facts has the facts themselves."""

from __future__ import annotations

import pytest

from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.pci import addresses
from tests.unit.host import cases, hosts

HOST = cases.read("facts/host")


def test_options_of_a_kernel() -> None:
    kernel = facts_from(hosts.named("bare, as recorded")).kernel
    assert [kernel.option(name) for name in ("PCI_P2PDMA", "MODVERSIONS", "NO_SUCH_OPTION")] == ["n", "y", "n"]
    assert kernel.secure_boot is False


@pytest.mark.parametrize("name", [name for name in HOST if name.startswith("why Secure Boot")])
def test_secure_boot_counts_in_one_state(name: str) -> None:
    kernel = facts_from(HOST[name].document()).kernel
    assert kernel.secure_boot is (kernel.secure_boot_state == "on")


def test_secure_boot_that_was_not_read() -> None:
    assert isinstance(
        facts_from(cases.read("facts/host")["Secure Boot as the firmware has it"].document()).kernel.secure_boot,
        Unknown,
    )


def test_gpus_are_functions() -> None:
    """One function less may be one GPU less."""
    first, second = (
        facts_from(look.document).pci.gpus for look in cases.read("facts/host")["a GPU and its bars"].looks()
    )
    assert not isinstance(first, Unknown)
    assert [gpu.address for gpu in first] == ["0000:00:06.0"]
    assert isinstance(second, Unknown)
    assert facts_from(hosts.named("bare, as recorded")).pci.gpus == ()


def test_addresses_in_a_path() -> None:
    assert addresses("/sys/devices/pci0000:00/0000:00:1c.0/10000:e1:00.0/nvme/nvme0") == (
        "0000:00:1c.0",
        "10000:e1:00.0",
    )


def test_a_variable_that_is_not_set_and_one_that_was_not_looked_for() -> None:
    assert facts_from(hosts.named("bare")).environment.variable("CUFILE_X") is None
    assert isinstance(facts_from(hosts.named("bare, as recorded")).environment.variable("CUFILE_X"), Unknown)
