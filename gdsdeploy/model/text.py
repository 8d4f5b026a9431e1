"""What the models of our files share: their base, and kinds of text with what to say of them to people."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

#: Pattern → what a text that matches it is.
WORDS: dict[str, str] = {}


def matching(pattern: str, words: str) -> StringConstraints:
    """A constraint on a text.  words: what to write, for whoever wrote something else."""
    WORDS[pattern] = words
    return StringConstraints(pattern=pattern)


class Model(BaseModel):
    """Frozen, without other keys, and with no value that only resembles the right one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


#: A name that is safe as a file name, an inventory host and a DNS label.
Name = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
        "a name is made of letters, digits, dots, hyphens and underscores, and begins and ends with a letter or digit",
    ),
]
AbsolutePath = Annotated[str, matching(r"^/[^\x00\n]*$", "write an absolute path, one that begins with /")]
Fingerprint = Annotated[
    str, matching(r"^[0-9A-F]{40}$", "a fingerprint is the 40 digits 0-9 and A-F of a primary key, without spaces")
]
PackageName = Annotated[
    str, matching(r"^[a-zA-Z0-9][a-zA-Z0-9.+_-]+$", "write the name of a package, without a version")
]
Address = Annotated[
    str, matching(r"^(https?|file)://[^\s]+$", "write an address that begins with https://, http:// or file://")
]
#: Or empty.
MaybePath = Annotated[str, matching(r"^(/[^\x00\n]+)?$", "write an absolute path, or '' for none")]
