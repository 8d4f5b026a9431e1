"""Reading a repository's XML without what XML is feared for: no document types, so no entities and nothing external."""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree as ET  # nosec B405 # check() comes first

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable

#: In these, and in no other encoding that the parser knows, a document type reads as ASCII.
_ENCODINGS: Final = {b"utf-8", b"us-ascii", b"ascii"}
_DECLARED = re.compile(rb"""^<\?xml[^>]*\bencoding=["']([A-Za-z0-9._-]+)["']""")

Element = ET.Element


def check(data: bytes, uri: str) -> bytes:
    """Give ``data`` back if it is XML without a document type; raises RepositoryUntrusted naming ``uri`` if not."""
    if not data.startswith(b"<"):
        raise RepositoryUntrusted(f"{uri}: this is not XML")
    declared = _DECLARED.match(data)
    if declared and declared[1].lower() not in _ENCODINGS:
        raise RepositoryUntrusted(f"{uri}: written in {declared[1].decode()}, but repositories are in UTF-8")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise RepositoryUntrusted(f"{uri}: it has a document type, which no repository needs; it is not read")
    return data


def parse(data: bytes, uri: str) -> Element:
    """The root element of ``data``; raises as ``check`` does, and RepositoryUnusable for XML that is malformed."""
    try:
        return ET.fromstring(check(data, uri))  # noqa: S314 # nosec B314 # check() refuses what makes XML dangerous
    except ET.ParseError as error:
        raise RepositoryUnusable(f"{uri}: not well-formed XML: {error}") from error
