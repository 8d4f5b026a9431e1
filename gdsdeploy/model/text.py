"""What the models of fleet file and lock share: their base, and kinds of text with words for errors."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic.config import JsonDict

T = TypeVar("T")

#: Marks a key in the schema (``json_schema_extra``): no error quotes its value, which may be a secret or hold one.
SECRET: Final[JsonDict] = {"x-secret": True}
#: Pattern → what a text that matches it is.
WORDS: dict[str, str] = {}


def matching(pattern: str, words: str) -> StringConstraints:
    """A constraint on a text.  words: what to write instead of a text that doesn't match."""
    WORDS[pattern] = words
    return StringConstraints(pattern=pattern)


class Model(BaseModel):
    """Frozen, without other keys, and with no value that only resembles the right one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


#: A name that is safe as a file name, an inventory host and a DNS label.
NAME: Final = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")
Name = Annotated[
    str,
    matching(
        NAME.pattern,
        "a name is made of letters, digits, dots, hyphens and underscores, and begins and ends with a letter or digit",
    ),
]
AbsolutePath = Annotated[str, matching(r"^/[^\x00-\x1f\x7f]*$", "write an absolute path, one that begins with /")]
Fingerprint = Annotated[
    str, matching(r"^[0-9A-F]{40}$", "a fingerprint is the 40 digits 0-9 and A-F of a primary key, without spaces")
]
#: Random; what a fleet and its locks have in common.
FleetId = Annotated[str, matching(r"^[0-9a-f]{32}$", "write the fleet_id of the fleet's lock, 32 digits 0-9 and a-f")]
PackageName = Annotated[
    str, matching(r"^[a-zA-Z0-9][a-zA-Z0-9.+_-]+$", "write the name of a package, without a version")
]
#: Name of a package, or a shell pattern of such names.
PackagePattern = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9*?\[][A-Za-z0-9+._*?\[\]!-]*$",
        "write the name of a package or a shell pattern: libnvidia-decode-*",
    ),
]


#: What begins parameters, or is in them.
_PARAMETERS: Final = frozenset("?#;&=")


def has_login(address: str) -> bool:
    """Whether an address has a user, a password, or parameters, which may be a token."""
    # As a client may read it: a full-width @ becomes one in the name of a host.
    plain = unicodedata.normalize("NFKC", unquote(address))
    return "@" in plain.partition("://")[2].lstrip("/").partition("/")[0] or bool(_PARAMETERS.intersection(plain))


def without_login(address: str) -> str:
    """``address``; raises ValueError, which quotes nothing of it, if :func:`has_login`, or if it names no machine."""
    try:
        parts = urlsplit(address)
        named = parts.scheme == "file" or (parts.hostname and parts.port != 0)
    except ValueError:
        named = False
    if not named:
        raise ValueError("its machine or its port is none")
    if has_login(address):
        raise ValueError(
            "leave user, password and parameters out of the address: `credentials` names a file with them for this"
            " machine, and hosts have them in /etc/apt/auth.conf.d"
        )
    return address


def below(part: str) -> str:
    """``part``, which a path below a repository's address is made of; raises ValueError if it leads up."""
    if ".." in unquote(part).split("/"):
        raise ValueError("leave .. out: it leads out of the repository")
    return part


Address = Annotated[
    str,
    matching(
        r"^(https?|file)://[^\s\x00-\x1f\x7f]+$", "write an address that begins with https://, http:// or file://"
    ),
    AfterValidator(without_login),
]
#: Or empty.
MaybePath = Annotated[str, matching(r"^(/[^\x00-\x1f\x7f]+)?$", "write an absolute path, or '' for none")]
#: What becomes one word of a line, in a configuration file or on a command line, and never an option there.
Word = Annotated[
    str,
    matching(r"^[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*$", "write one word, without blanks, that begins with no hyphen"),
]
#: A suite or a component of a repository.
Suite = Annotated[Word, AfterValidator(below)]
#: Or empty.
MaybeWord = Annotated[str, matching(r"^([^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*)?$", "write one word, or '' for none")]
#: A name in DNS, or an address; of IPv6 also with a zone.  It comes to ssh, and to the shell of a ProxyCommand.
NetworkAddress = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9_:]([A-Za-z0-9._:%-]{0,253}[A-Za-z0-9_:.])?$",
        "write a host name or an address: letters, digits, dots, hyphens, colons",
    ),
]
#: The name of a file as a line of ssh's configuration can have it.
SshFile = Annotated[
    str, matching(r'^[^"\x00-\x1f\x7f]+$', "write the name of a file, in one line and without double quotes")
]


_adapters: dict[Any, TypeAdapter[Any]] = {}


def adapter(shape: Any) -> TypeAdapter[Any]:
    """Pydantic's reader and writer of a type, made once."""
    if shape not in _adapters:
        _adapters[shape] = TypeAdapter(shape)
    return _adapters[shape]


def read(shape: type[T], value: Any) -> T:
    """A JSON value as a ``shape``; other keys are ignored.  Raises ValueError with the place."""
    try:
        instance: T = adapter(shape).validate_python(value)
    except ValidationError as error:
        raise ValueError(first_error(error)) from None
    return instance


def fits(shape: Any, value: Any) -> bool:
    """Whether a value is a ``shape``."""
    try:
        adapter(shape).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def first_error(error: ValidationError) -> str:
    """What is wrong with a document, and where in it."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place + ': ' if place else ''}{first['msg']}"
