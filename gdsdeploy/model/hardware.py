"""Devices that every host of a profile must have, as ``fleet.yml`` counts them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gdsdeploy.model.text import Model, matching

#: Part of a device's model, as drivers name it: ``H100``, ``NVIDIA H100 80GB HBM3``.
ModelWords = Annotated[
    str,
    matching(r"^[A-Za-z0-9]([A-Za-z0-9 ._/()+-]*[A-Za-z0-9)+])?$", "write part of a model's name, such as H100"),
]
#: Name of a driver, as the link ``driver`` of a PCI device ends.
DriverName = Annotated[str, matching(r"^[A-Za-z0-9_.-]+$", "write the name of a driver, such as mlx5_core")]


class Devices(Model):
    """How many devices of one kind a host has; the other fields narrow what counts."""

    count: Annotated[int, Field(ge=0, le=1024)]

    def expected(self) -> dict[str, Any]:
        """As the expectation has it: only the fields that the fleet file has."""
        return self.model_dump(exclude_none=True)


class Models(Devices):
    """GPUs or NVMe disks: those whose model contains these words, in any case."""

    model: ModelWords | None = None


class Adapters(Devices):
    """Network adapters: those that this driver runs, and those whose RDMA port has this rate in Gbit/s."""

    driver: DriverName | None = None
    link: Annotated[int, Field(ge=1, le=100_000)] | None = None


def _short(value: object) -> object:
    """``8`` stands for ``{count: 8}``."""
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


ModelCount = Annotated[Models, BeforeValidator(_short)]
AdapterCount = Annotated[Adapters, BeforeValidator(_short)]
