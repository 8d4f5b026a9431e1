"""Package repositories and mirrors, as a fleet file names them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, StringConstraints, model_validator

from gdsdeploy.model.rollout_settings import Seconds
from gdsdeploy.model.text import SECRET, AbsolutePath, Address, Fingerprint, Model, Word, matching


class Repository(Model):
    """A signed package repository; what is left out comes from the platform's preset of the same name."""

    kind: Literal["apt", "rpm"] | None = None
    #: Base address; without it, the controller's own apt configuration says where this archive is.
    uri: Address | None = Field(default=None, json_schema_extra=SECRET)
    suites: Annotated[tuple[Word, ...], Strict(False)] | None = None
    components: Annotated[tuple[Word, ...], Strict(False)] | None = None
    #: OpenPGP keyring file on the controller that holds the signing keys.
    keyring: AbsolutePath | None = None
    #: Full fingerprints of the primary keys that may sign; one good signature by one of them is required.
    fingerprints: Annotated[tuple[Fingerprint, ...], Strict(False)] | None = None
    #: ``unsigned``: use its index without a signature, for the reason ``why``; rpm only.
    metadata: Literal["signed", "unsigned"] = "signed"
    #: Full fingerprints of the primary keys, in ``keyring``, that sign each package of an unsigned repository.
    package_keys: Annotated[tuple[Fingerprint, ...], Strict(False)] | None = None
    why: Annotated[str, matching(r"^[^\x00-\x1f\x7f]+$", "write the reason in one line")] | None = None
    #: Keyring path on the host for apt's Signed-By; default: one that is installed from ``keyring``.
    signed_by: AbsolutePath | None = None
    #: Seconds that an index may be old, whatever its Valid-Until says; without it, an old one is a warning.
    max_age: Annotated[Seconds, Field(ge=3600, le=10 * 365 * 86400)] | None = None

    @model_validator(mode="after")
    def _choice_with_a_reason(self) -> Self:
        if self.metadata == "signed":
            if self.package_keys or self.why:
                raise ValueError("package_keys and why belong to a repository with `metadata: unsigned`")
            return self
        if self.kind == "apt":
            raise ValueError("metadata: apt packages have no signatures, so their index has to be signed")
        if not self.why:
            raise ValueError("metadata: say `why` an index without a signature is used")
        if self.fingerprints:
            raise ValueError("fingerprints sign an index, and this one is unsigned: write package_keys")
        return self


class Mirror(Model):
    """A mirror that `gdsdeploy mirror` wrote, which the hosts use instead of the original repositories."""

    #: As the hosts reach it.
    uri: Address = Field(json_schema_extra=SECRET)
    #: File on the controller that has its key, relative to the fleet file; the mirror's folder has it.
    keyring: Annotated[str, StringConstraints(min_length=1)]
