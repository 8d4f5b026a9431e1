"""RDMA adapters: their links, and their addresses in libcufile's configuration."""

from __future__ import annotations

from typing import Iterator, List, Mapping, Tuple

from ..explain import userspace_rdma
from ..facts import HostFacts, require
from ..facts.effective import given_keys
from ..model.expectation import Expectation
from .registry import Answer, check, failed, not_applicable, passed, subject

subject("rdma", after="peermem")

LIST = "rdma_dev_addr_list"
TABLE = "mount_table"
NOT_ASKED = "not needed: the fleet asks for no RDMA"


@check(
    "rdma.link",
    "the RDMA adapters have a link",
    expects="a port of every RDMA device is active",
    prevents="storage traffic through one adapter only, or a failover, because a cable or switch port is down",
)
def link(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable(NOT_ASKED)
    interfaces = require(facts.network.rdma)
    if not interfaces:
        return failed("this host has no RDMA device", "Load the adapter's driver, or set the fleet's rdma to none")
    shown = ["{} ({}): {}".format(i.device, i.interface, "active" if i.active else "down") for i in interfaces]
    down = list(dict.fromkeys(interface.device for interface in interfaces if not interface.active))
    if down:
        hint = "Check the cable, the switch port and, for InfiniBand, the subnet manager: ibstat, rdma link"
        return failed("no port of {} is active".format(", ".join(down)), hint, shown)
    return passed("{} active".format(", ".join(dict.fromkeys(interface.device for interface in interfaces))), shown)


@check(
    "rdma.addresses",
    "the addresses in cufile.json's RDMA lists belong to this host's RDMA adapters",
    expects="every address of {cufile_path} on an RDMA interface of this host",
    prevents="a file copied from another node, with which libcufile finds no adapter and falls back to compat mode",
)
def addresses(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable(NOT_ASKED)
    config = require(facts.cufile.config)
    listed = list(_listed(config)) if config is not None else []
    without = _without_addresses(facts, expectation)
    if without:
        hint = f"Set properties.{LIST}: the profile's `fit` does it for each host"
        return failed("no address of an RDMA adapter is listed for {}".format(", ".join(without)), hint)
    if not listed:
        return not_applicable("no list has an address: libcufile chooses the adapters")
    own = {entry.address: f"{i.device} on {i.interface}" for i in require(facts.network.rdma) for entry in i.addresses}
    foreign = [f"{key}: {address}" for key, address in listed if address not in own]
    if foreign:
        hint = "Render the file for this host: the profile's `fit` fills these lists from the host itself"
        shown = [f"{address}: {place}" for address, place in sorted(own.items())]
        return failed("not an address of this host's RDMA adapters: {}".format("; ".join(foreign)), hint, shown)
    return passed("{} as listed".format(", ".join(dict.fromkeys(own[address] for _, address in listed))))


def _without_addresses(facts: HostFacts, expectation: Expectation) -> List[str]:
    """Mounts that take a direct path only with an address, and have none; Spectrum Scale can also use nvidia-fs."""
    mounts = require(facts.storage.mounts)
    if expectation.mode == "compat":
        return []
    clients = [(mount, userspace_rdma.CLIENTS.get(mount.filesystem)) for mount in mounts.values()]
    return [
        f"{mount.mount_point} ({mount.filesystem})"
        for mount, client in clients
        if client is not None
        and not (client.hooks and expectation.mode == "nvidia-fs")
        and userspace_rdma.listed_addresses(facts, client, mount) == ()
    ]


def _listed(config: Mapping[str, object]) -> Iterator[Tuple[str, str]]:
    """(key, address) of every list, those of mount tables too."""
    for key, value in given_keys(config):
        if key.endswith(TABLE) and isinstance(value, Mapping):
            for mount, row in value.items():
                addresses = row.get(LIST) if isinstance(row, Mapping) else row
                yield from ((f"{key}.{mount}", address) for address in _strings(addresses))
        elif key.endswith(LIST):
            yield from ((key, address) for address in _strings(value))


def _strings(value: object) -> List[str]:
    return [text for text in value if isinstance(text, str) and text] if isinstance(value, list) else []
