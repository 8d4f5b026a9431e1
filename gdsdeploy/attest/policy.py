"""A policy: a YAML file with public keys, and the keys that may sign each kind of statement."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from securesystemslib.signer import Key

from gdsdeploy import paths
from gdsdeploy.attest import keys
from gdsdeploy.attest.statement import Kind
from gdsdeploy.errors import AttestationRefused, PolicyInvalid
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.load import parse_document
from gdsdeploy.host.io import reading

_Text = Annotated[str, StringConstraints(min_length=1)]


class _Policy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1]
    #: The last day on which it is valid, in UTC.
    expires: dt.date | None = None
    #: Name → PEM of a public key, or a file with it, relative to the policy.
    keys: Annotated[dict[_Text, _Text], Field(min_length=1)]
    #: Kind of statement → names of keys.
    accept: dict[Kind, list[_Text]]

    @field_validator("expires", mode="before")
    @classmethod
    def _day(cls, value: object) -> object:
        return dt.date.fromisoformat(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Policy:
    """Which keys may sign each kind of statement, as ``name → key``."""

    path: Path
    accepted: Mapping[Kind, Mapping[str, Key]]


def read(path: Path, today: dt.date) -> Policy:
    """The policy in ``path``, valid on the day ``today`` (UTC).

    Raises PolicyInvalid with every problem, SigningKeyUnusable for a key, AttestationRefused when it has expired.
    """
    absent = ("no such file", "Write one: gdsdeploy verify --help has an example")
    content = yamlfile.read(path, error=PolicyInvalid, absent=absent)
    policy = parse_document(content, _Policy, error=PolicyInvalid, also=_unknown_keys)
    if policy.expires is not None and policy.expires < today:
        hint = "Review its keys, then set a later day in expires"
        raise AttestationRefused(f"{path}: the policy has expired on {policy.expires}", hint=hint)
    public = {name: _key(path, name, text) for name, text in policy.keys.items()}
    return Policy(path, {kind: {name: public[name] for name in names} for kind, names in policy.accept.items()})


def _unknown_keys(policy: _Policy) -> list[tuple[tuple[str | int, ...], str]]:
    return [
        (("accept", kind, number), f"there is no key {name!r}")
        for kind, names in policy.accept.items()
        for number, name in enumerate(names)
        if name not in policy.keys
    ]


def _key(path: Path, name: str, text: str) -> Key:
    if text.startswith("-----BEGIN"):
        return keys.public(text.encode(), f"{path}: keys.{name}")
    file = paths.locate(path.parent, text)
    try:
        return keys.public(reading.whole(str(file), keys.LIMIT), str(file))
    except OSError as error:
        raise PolicyInvalid(f"{path}: keys.{name}: {file}: {error.strerror}", hint="Name the key's file") from None
