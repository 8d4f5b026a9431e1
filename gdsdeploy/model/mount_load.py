"""What a mount has to deliver while it is busy: the key ``load`` of a mount in the fleet file."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from gdsdeploy.model.text import Model

_UNITS = {"kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _rate(value: object) -> object:
    """``"5 GB/s"`` → bytes a second."""
    rate = re.fullmatch(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_UNITS)})/s", value) if isinstance(value, str) else None
    if rate is None:
        raise ValueError('a rate is text such as "5 GB/s", "900 MB/s" or "2.5 GiB/s"')
    return round(float(rate[1]) * _UNITS[rate[2]])


class Load(Model):
    """A threshold that is tried only on request, or when a rollout validates."""

    #: The least that has to be read, in bytes a second.
    read: Annotated[int, BeforeValidator(_rate), Field(gt=0)]
    #: For how long.
    seconds: Annotated[int, Field(ge=1, le=60)] = 10
