"""What runs beside the driver, and IMEX domains: which hosts share GPU memory over NVLink, by their addresses.

NVIDIA's IMEX guide: every node's ``/etc/nvidia-imex/nodes_config.cfg`` lists the addresses of all nodes of its domain.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def imex_nodes(hosts: Mapping[str, Host], name: str) -> tuple[str, ...]:
    """The addresses of the domain of host ``name``, in the order of the hosts' names; empty: it is in none.

    Raises ValueError for a host whose address isn't an IP address.
    """
    own = hosts[name].imex if name in hosts else None
    if own is None:
        return ()
    members = sorted(other for other, host in hosts.items() if host.imex and host.imex.domain == own.domain)
    return tuple(_address(member, hosts[member]) for member in members)


def check_domains(
    hosts: Mapping[str, Host], builders: Mapping[str, Host], companions: Mapping[str, tuple[Companion, ...]]
) -> None:
    """Raise ValueError for a domain that can't work; companions: of each profile.

    The hosts of a domain have one profile, because their IMEX services have to be of one version.
    """
    for name, builder in builders.items():
        if builder.imex is not None:
            raise ValueError(f"builders.{name}.imex: only hosts are in an IMEX domain")
    first: dict[str, str] = {}
    for name, host in hosts.items():
        if host.imex is None:
            continue
        if "imex" not in companions.get(host.profile, ("imex",)):
            raise ValueError(f"hosts.{name}.imex: profile {host.profile} doesn't have imex among its companions")
        other = first.setdefault(host.imex.domain, name)
        if hosts[other].profile != host.profile:
            raise ValueError(f"hosts.{name}.imex: {other} of domain {host.imex.domain} has another profile")
        if other == name:
            addresses = imex_nodes(hosts, name)
            twice = sorted({address for address in addresses if addresses.count(address) > 1})
            if twice:
                raise ValueError(f"hosts.{name}.imex: two hosts of domain {host.imex.domain} have address {twice[0]}")


def _address(name: str, host: Host) -> str:
    own = (host.imex.address if host.imex else None) or host.address or name
    try:
        return _ip(own)
    except ValueError:
        raise ValueError(f"hosts.{name}.imex: {own} isn't an IP address; write imex: {{domain, address}}") from None
