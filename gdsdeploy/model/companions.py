"""What runs beside the driver, and IMEX domains: which hosts share GPU memory over NVLink, by their addresses.

NVIDIA's IMEX guide: every node's ``/etc/nvidia-imex/nodes_config.cfg`` lists the addresses of all nodes of its domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, model_validator

from gdsdeploy.model.text import Model, Name

#: ``nvlink5``: the fabric manager with NVLSM, for fourth-generation NVSwitches.
Companion = Literal["persistenced", "fabricmanager", "imex", "nvlink5"]


def check_companions(companions: tuple[Companion, ...], gpu: str | None) -> None:
    """Raise ValueError for companions that can't serve these GPUs.

    Fabric Manager User Guide: on B200 and B300 it needs NVLSM, and no other Blackwell machine has a fabric manager.
    """
    if gpu == "blackwell" and "fabricmanager" in companions and "nvlink5" not in companions:
        raise ValueError("companions: on Blackwell the fabric manager needs NVLSM; write nvlink5, which brings both")


def _ip(value: str) -> str:
    try:
        return str(ip_address(value))
    except ValueError:
        raise ValueError("write an IP address: IMEX's nodes file has no names") from None


class ImexNode(Model):
    """A host's place in an IMEX domain; the domain's name is short for ``{domain: NAME}``."""

    domain: Name
    #: None: the host's address, which has to be an IP address then
    address: Annotated[str, AfterValidator(_ip)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        return {"domain": value} if isinstance(value, str) else value


class Host(Protocol):
    """What of a host decides its domain."""

    @property
    def profile(self) -> str: ...
    @property
    def address(self) -> str | None: ...
    @property
    def imex(self) -> ImexNode | None: ...


def imex_domains(hosts: Mapping[str, Host]) -> dict[str, tuple[str, ...]]:
    """Domain → the addresses of its hosts, in the order of the hosts' names."""
    domains: dict[str, list[str]] = {}
    for name in sorted(hosts):
        own = hosts[name].imex
        if own is not None:
            domains.setdefault(own.domain, []).append(_address(name, hosts[name]))
    return {domain: tuple(addresses) for domain, addresses in domains.items()}


def domain_problems(
    hosts: Mapping[str, Host], companions: Mapping[str, tuple[Companion, ...]]
) -> Iterator[tuple[str, str]]:
    """(name, what is wrong with its place in a domain); companions: of each profile.

    The hosts of a domain have one profile, because their IMEX services have to be of one version.
    """
    first: dict[str, str] = {}
    owners: dict[tuple[str, str], str] = {}
    for name, host in hosts.items():
        if host.imex is None:
            continue
        domain, address = host.imex.domain, _address(name, host)
        other = first.setdefault(domain, name)
        if "imex" not in companions.get(host.profile, ("imex",)):
            yield name, f"profile {host.profile} doesn't have imex among its companions"
        elif hosts[other].profile != host.profile:
            yield name, f"{other} is in domain {domain}, too, and has another profile"
        try:
            twin = owners.setdefault((domain, _ip(address)), name)
        except ValueError:
            yield name, f"{address} isn't an IP address; write imex: {{domain: {domain}, address: ADDRESS}}"
            continue
        if twin != name:
            yield name, f"{twin} of domain {domain} has the same address, {address}"


def _address(name: str, host: Host) -> str:
    return (host.imex.address if host.imex else None) or host.address or name
