"""What a mount has to deliver while it is busy: the key ``load`` of a mount in the fleet file."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _rate(value: object) -> object:
    """``"5 GB/s"`` → bytes a second."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(kB|MB|GB|KiB|MiB|GiB)/s", value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a rate is text such as "5 GB/s", "900 MB/s" or "2.5 GiB/s"')
    return round(float(found[1]) * _UNITS[found[2]])


class Load(BaseModel):
    """A threshold that is tried only when somebody asks for it, or a rollout validates."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: The least that has to be read, in bytes a second.
    read: Annotated[int, BeforeValidator(_rate), Field(gt=0)]
    #: For how long.
    seconds: Annotated[int, Field(ge=1, le=60)] = 10
