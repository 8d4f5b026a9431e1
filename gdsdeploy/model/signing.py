"""How the kernel modules of a profile are signed."""

from __future__ import annotations

import json
from typing import Annotated, Self

from pydantic import Strict, StringConstraints, model_validator

from gdsdeploy.model.text import AbsolutePath, Model, matching


class Signing(Model):
    """Whose signature the modules of a profile get; both files are on the machine that builds them."""

    #: Readable by root only, and never copied from there; or pkcs11:… for OpenSSL.
    key: (
        Annotated[str, matching(r"^(/|pkcs11:)[^\x00\n]*$", "write an absolute path, or an address pkcs11:…")] | None
    ) = None
    certificate: AbsolutePath = "/etc/gdsdeploy-keys/modules.der"
    #: Program and arguments that sign in the key's place: module on standard input, PKCS#7 on standard output.
    signer: Annotated[tuple[Annotated[str, StringConstraints(min_length=1)], ...], Strict(False)] = ()

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.key and self.signer:
            raise ValueError("a key or a signer makes the signatures, not both")
        if self.signer and not self.signer[0].startswith("/"):
            raise ValueError("signer: give the program's absolute path")
        return self

    @property
    def own_key(self) -> str:
        """The key's file or address; empty where a signer stands for it."""
        return "" if self.signer else self.key or "/etc/gdsdeploy-keys/modules.key"

    @property
    def settings(self) -> str:
        """What ``kmod sign`` reads on a machine that builds."""
        value = {"certificate": self.certificate, "key": self.own_key, "signer": list(self.signer)}
        return json.dumps(value, sort_keys=True) + "\n"
