"""RDMA adapters: their links, and the addresses by which libcufile is told to use them."""

from __future__ import annotations

from typing import Iterator, List, Mapping, Tuple

from ..facts import HostFacts, known
from ..facts.effective import given_keys
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed

LIST = "rdma_dev_addr_list"
TABLE = "mount_table"
NOT_ASKED = "not needed: the fleet asks for no RDMA"


@check(
    "rdma.link",
    "the RDMA adapters have a link",
    expects="a port of every RDMA device is active",
    prevents="storage traffic that squeezes through one adapter, or fails over, because a cable or switch port is down",
)
def link(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return passed(NOT_ASKED)
    found = known(facts.network.rdma)
    if not found:
        return failed("this host has no RDMA device", "Load the adapter's driver, or set the fleet's rdma to none")
    shown = ["{} ({}): {}".format(i.device, i.interface, "active" if i.active else "down") for i in found]
    down = list(dict.fromkeys(item.device for item in found if not item.active))
    if down:
        hint = "Look at cable, switch port and (of InfiniBand) the subnet manager: ibstat, rdma link"
        return failed("no port of {} is active".format(", ".join(down)), hint, shown)
    return passed("{} active".format(", ".join(dict.fromkeys(item.device for item in found))), shown)


@check(
    "rdma.addresses",
    "the addresses in cufile.json's RDMA lists are this host's own, on RDMA adapters",
    expects="every address of {cufile_path} on an RDMA interface of this host",
    prevents="a file copied from another node, with which libcufile finds no adapter and falls back to compat mode",
)
def addresses(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return passed(NOT_ASKED)
    config = known(facts.cufile.config)
    listed = list(_listed(config)) if config is not None else []
    if not listed:
        return passed("no list has an address: libcufile chooses by itself")
    own = {item.address: f"{i.device} on {i.interface}" for i in known(facts.network.rdma) for item in i.addresses}
    foreign = [f"{key}: {address}" for key, address in listed if address not in own]
    if foreign:
        hint = "Render the file for this host: the profile's `fit` fills these lists from the host itself"
        shown = ["{}: {}".format(*item) for item in sorted(own.items())]
        return failed("not an address of this host's RDMA adapters: {}".format("; ".join(foreign)), hint, shown)
    return passed("{} as listed".format(", ".join(dict.fromkeys(own[address] for _, address in listed))))


def _listed(config: Mapping[str, object]) -> Iterator[Tuple[str, str]]:
    """(key, address) of every list, those of mount tables too."""
    for key, value in given_keys(config):
        if key.endswith(TABLE) and isinstance(value, Mapping):
            for mount, row in value.items():
                items = row.get(LIST) if isinstance(row, Mapping) else row
                yield from ((key + "." + str(mount), item) for item in _strings(items))
        elif key.endswith(LIST):
            yield from ((key, item) for item in _strings(value))


def _strings(value: object) -> List[str]:
    return [item for item in value if isinstance(item, str) and item] if isinstance(value, list) else []
