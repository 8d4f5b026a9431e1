"""DSSE envelopes as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import FormatError, VerificationError
from securesystemslib.signer import Key, Signer

from gdsdeploy.errors import AttestationInvalid
from gdsdeploy.host.archive.provenance import LIMIT, PAYLOAD_TYPE
from gdsdeploy.host.io import jsontext


def seal(payload: bytes, signer: Signer) -> bytes:
    """An envelope of ``payload`` with one signature, as JSON."""
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return (json.dumps(envelope.to_dict(), indent=2, sort_keys=True) + "\n").encode()


def read(data: bytes, place: str) -> Envelope:
    """The envelope in a file's content; raises AttestationInvalid that names ``place``."""
    if len(data) > LIMIT:
        raise AttestationInvalid(f"{place}: larger than {LIMIT >> 20} MiB, the limit for a signed statement")
    try:
        envelope = Envelope.from_dict(jsontext.loads(data.decode()))
        kind = envelope.payload_type
    except (ValueError, LookupError, TypeError, AttributeError, FormatError):
        raise AttestationInvalid(f"{place}: not a signed statement (a DSSE envelope in JSON)") from None
    if kind != PAYLOAD_TYPE:
        raise AttestationInvalid(f"{place}: its payload is {str(kind)[:80]!r}, not {PAYLOAD_TYPE}")
    return envelope


def signed_by(envelope: Envelope, keys: Iterable[Key]) -> str | None:
    """The id of one of ``keys`` with a good signature of ``envelope``, or None."""
    accepted = list(keys)
    try:
        return next(iter(envelope.verify(accepted, 1))) if accepted else None
    except VerificationError:
        return None
