"""Package repositories and mirrors, as a fleet file names them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict, StringConstraints

from gdsdeploy.model.rollout_settings import Seconds
from gdsdeploy.model.text import AbsolutePath, Address, Fingerprint, Model, Word


class Repository(Model):
    """A signed package repository; what is left out comes from the platform's preset of the same name."""

    kind: Literal["apt", "rpm"] | None = None
    #: Base address; without it, the controller's own apt configuration says where this archive is.
    uri: Address | None = None
    suites: Annotated[tuple[Word, ...], Strict(False)] | None = None
    components: Annotated[tuple[Word, ...], Strict(False)] | None = None
    #: OpenPGP keyring file on the controller that holds the signing keys.
    keyring: AbsolutePath | None = None
    #: Full fingerprints of the primary keys that may sign; one good signature by one of them is required.
    fingerprints: Annotated[tuple[Fingerprint, ...], Strict(False)] | None = None
    #: Keyring path on the host for apt's Signed-By; default: one we install from ``keyring``.
    signed_by: AbsolutePath | None = None
    #: Seconds that an index may be old, whatever its Valid-Until says; without it, an old one is a warning.
    max_age: Annotated[Seconds, Field(ge=3600, le=10 * 365 * 86400)] | None = None


class Mirror(Model):
    """A mirror that `gdsdeploy mirror` wrote, which the hosts use instead of the original repositories."""

    #: As the hosts reach it.
    uri: Address
    #: File on the controller that has its key, relative to the fleet file; the mirror's folder has it.
    keyring: Annotated[str, StringConstraints(min_length=1)]
