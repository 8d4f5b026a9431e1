"""The statement that a builder signs about an archive of modules, and that a receiver verifies before it unpacks.

An in-toto Statement v1 with SLSA provenance v1, in a DSSE envelope with one Ed25519 signature.  Its subjects are the
manifest, byte for byte, and every module of it.  Public keys are PEM (SubjectPublicKeyInfo).
openssl signs and verifies: docs/adr.md, 0027.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import secrets
import stat
import time
from typing import Any, Dict, List, Mapping, NamedTuple

from ..errors import PackError
from ..io import atomic, jsontext
from ..io.atomic import exposure
from ..rootdir import inside
from ..secure_boot import openssl
from .key import key_of

MEMBER = "provenance.dsse.json"
#: Bytes of an envelope; a real one has a few thousand.
LIMIT = 1 << 20
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:gdsdeploy:kernel-modules:v1"
BUILDER = "urn:gdsdeploy:builder:"
#: The builder's private key, and its public key for the controller to fetch.
KEY, PUBLIC = "/var/lib/gdsdeploy/builder.key", "/var/lib/gdsdeploy/builder.pub"
#: PKCS#8 and SubjectPublicKeyInfo of Ed25519 have a fixed beginning.
_PRIVATE_DER = bytes.fromhex("302e020100300506032b657004220420")
_PUBLIC_DER = bytes.fromhex("302a300506032b6570032100")


class Builder(NamedTuple):
    """The signer: the machine's name in the fleet, its private key (32 bytes), and the id of the run it builds in."""

    name: str
    seed: bytes
    run: str = ""


class Origin(NamedTuple):
    """Whose archive is accepted: the machine's name in the fleet, and its public key (PEM)."""

    name: str
    public: str


def own_key(root: str = "/") -> bytes:
    """The private key of this machine, made at first use and readable for root only, with PUBLIC beside it.

    Raises PackError if others can read it or it isn't a key, OpensslError, and OSError.
    """
    path = inside(root, KEY)
    if not os.path.lexists(path):
        atomic.write(path, private_pem(secrets.token_bytes(32)), 0o600)
    state = os.lstat(path)
    if not stat.S_ISREG(state.st_mode) or exposure(path, state):
        raise PackError(f"{KEY}: others than root could have read or changed it", "remove it: a new one is made")
    with open(path, encoding="ascii", errors="replace") as file:
        seed = _der(file.read(4096), "PRIVATE KEY", _PRIVATE_DER, KEY)
    atomic.write(inside(root, PUBLIC), public_pem(seed))
    return seed


def private_pem(seed: bytes) -> str:
    """The private key ``seed`` as PEM."""
    text = base64.b64encode(_PRIVATE_DER + seed).decode("ascii")
    return f"-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"


def public_pem(seed: bytes) -> str:
    """The public key of the private key ``seed`` as PEM; raises OpensslError."""
    return openssl.public_of(private_pem(seed))


def public_bytes(pem: str) -> bytes:
    """The 32 bytes of a public key; raises PackError."""
    return _der(pem, "PUBLIC KEY", _PUBLIC_DER, "the builder's public key")


def key_id(pem: str) -> str:
    """The id of a public key: the SHA-256 of its 32 bytes, hexadecimal.  Raises PackError."""
    return hashlib.sha256(public_bytes(pem)).hexdigest()


def sign(manifest: bytes, builder: Builder) -> bytes:
    """The envelope of a statement about an archive with this manifest (JSON, as it is in the archive)."""
    payload = json.dumps(_statement(manifest, builder), sort_keys=True).encode("utf-8")
    signature = {
        "keyid": key_id(public_pem(builder.seed)),
        "sig": base64.b64encode(openssl.sign_ed25519(private_pem(builder.seed), encoding(payload))).decode("ascii"),
    }
    envelope = {"payloadType": PAYLOAD_TYPE, "payload": base64.b64encode(payload).decode("ascii")}
    return json.dumps({**envelope, "signatures": [signature]}).encode("ascii")


def verify(envelope: bytes, manifest: bytes, origin: Origin) -> Dict[str, Any]:
    """The statement in ``envelope``; raises PackError unless ``origin`` signed it and it is about ``manifest``.

    Raises OpensslError where openssl can't tell.
    """
    try:
        payload = _open_envelope(envelope, origin.public)
        statement: Dict[str, Any] = jsontext.loads(payload.decode("utf-8"))
        builder = statement["predicate"]["runDetails"]["builder"]["id"]
        definition = statement["predicate"]["buildDefinition"]
        about = (statement["_type"], statement["predicateType"], definition["buildType"], statement["subject"])
        key = definition["internalParameters"]["build_key"]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise PackError("its signature is malformed", "have its builder pack it again") from None
    if about != (STATEMENT, PREDICATE, BUILD_TYPE, _subjects(manifest)) or key != _build_key(manifest):
        raise PackError("what its builder signed is about another archive", "have its builder pack it again")
    if builder != BUILDER + origin.name:
        raise PackError(f"it was signed as {str(builder)[:80]!r}, not by {origin.name}", "see gdsdeploy plan")
    return statement


def claimed_builder(envelope: bytes) -> str:
    """The name of the builder in an envelope whose signature isn't looked at; empty where it has none."""
    try:
        payload = base64.b64decode(jsontext.loads(envelope.decode("ascii"))["payload"])
        name = jsontext.loads(payload.decode("utf-8"))["predicate"]["runDetails"]["builder"]["id"]
        return str(name)[len(BUILDER) :] if str(name).startswith(BUILDER) else ""
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def encoding(payload: bytes) -> bytes:
    """What is signed: DSSE's pre-authentication encoding of a payload of PAYLOAD_TYPE."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode("ascii"), len(payload), payload)


def differences(manifest: Mapping[str, Any], expected: Mapping[str, str]) -> List[str]:
    """Where a manifest's claims differ from ``expected``, as sentences; an empty text expects nothing.

    Keys: ``kernel_release``, ``driver_version``, ``driver_flavour``, ``nvidia_fs_version``.
    """
    claimed = {
        "kernel_release": manifest["kernel_release"],
        "driver_version": manifest["driver"].get("version"),
        "driver_flavour": manifest["driver"].get("flavour"),
        "nvidia_fs_version": manifest["nvidia_fs"].get("version"),
    }
    return [
        f"its {name.replace('_', ' ')} is {str(claimed[name])[:80] or 'none'}, not {value}"
        for name, value in sorted(expected.items())
        if value and claimed[name] != value
    ]


def _statement(manifest: bytes, builder: Builder) -> Dict[str, Any]:
    release = json.loads(manifest.decode("utf-8"))["kernel_release"]
    return {
        "_type": STATEMENT,
        "subject": _subjects(manifest),
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"kernel_release": release},
                "internalParameters": {"build_key": _build_key(manifest)},
            },
            "runDetails": {
                "builder": {"id": BUILDER + builder.name},
                "metadata": {
                    "invocationId": builder.run,
                    "finishedOn": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                },
            },
        },
    }


def _subjects(manifest: bytes) -> List[Dict[str, Any]]:
    modules = json.loads(manifest.decode("utf-8"))["modules"]
    digests = [("modules/" + module["file"], module["sha256"]) for module in modules]
    digests.insert(0, ("manifest.json", hashlib.sha256(manifest).hexdigest()))
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in digests]


def _build_key(manifest: bytes) -> str:
    return key_of(json.loads(manifest.decode("utf-8"))["key"])


def _open_envelope(envelope: bytes, public: str) -> bytes:
    """The payload of an envelope that has one signature by ``public``; raises PackError, or as JSON and base64 do."""
    value = jsontext.loads(envelope.decode("ascii"))
    payload = base64.b64decode(value["payload"], validate=True)
    (signature,) = value["signatures"]
    matches = signature["keyid"] == key_id(public) and value["payloadType"] == PAYLOAD_TYPE
    signed = base64.b64decode(signature["sig"], validate=True)
    if not matches or not openssl.verify_ed25519(public, encoding(payload), signed):
        raise PackError("its signature isn't by the builder that the controller knows", "see gdsdeploy kmod builders")
    return payload


def _der(pem: str, kind: str, beginning: bytes, name: str) -> bytes:
    first, *lines, last = pem.strip().split("\n") if "\n" in pem else ["", ""]
    try:
        der = base64.b64decode("".join(lines), validate=True)
    except (ValueError, binascii.Error):
        der = b""
    edges = (f"-----BEGIN {kind}-----", f"-----END {kind}-----")
    if (first, last) != edges or not der.startswith(beginning) or len(der) != len(beginning) + 32:
        raise PackError(f"{name}: not an Ed25519 key as PEM has it")
    return der[len(beginning) :]
