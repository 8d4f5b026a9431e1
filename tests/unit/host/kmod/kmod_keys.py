"""Keys that sign modules, made by openssl, and what firmware keeps of them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.unit.host.kmod.kmod_elf import appended

KINDS = {"rsa": ["rsa:2048"], "p256": ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]}
KINDS["p384"] = ["ec", "-pkeyopt", "ec_paramgen_curve:P-384"]
SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
SECURITY = "d719b2cb-3d3a-4596-a3bc-dad00e67656f"
GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"


@dataclass(frozen=True)
class Pair:
    """A private key and its certificate."""

    key: Path
    pem: Path
    der: Path

    def sign(self, data: bytes, *options: str, hashed: str = "sha256") -> bytes:
        """``data`` with the signature appended that sign-file would append."""
        argv = ["openssl", "cms", "-sign", "-binary", "-nocerts", "-outform", "DER", "-md", hashed]
        argv += ["-signer", str(self.pem), "-inkey", str(self.key), *(options or ("-noattr",))]
        message = subprocess.run(argv, input=data, capture_output=True, check=True).stdout
        return data + appended(message)


def pair(folder: Path, name: str, kind: str = "rsa") -> Pair:
    folder.mkdir(parents=True, exist_ok=True)
    key_pair = Pair(folder / f"{name}.key", folder / f"{name}.pem", folder / f"{name}.der")
    argv = ["openssl", "req", "-new", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-newkey", *KINDS[kind]]
    subprocess.run([*argv, "-keyout", key_pair.key, "-out", key_pair.pem], check=True, capture_output=True)
    subprocess.run(["openssl", "x509", "-in", key_pair.pem, "-outform", "DER", "-out", key_pair.der], check=True)
    return key_pair


def signature_list(*certificates: bytes) -> bytes:
    """EFI_SIGNATURE_LISTs, one a certificate, each with an owner of zeros."""
    kind = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
    result = b""
    for entry in certificates:
        sizes = (28 + 16 + len(entry), 0, 16 + len(entry))
        result += kind + b"".join(size.to_bytes(4, "little") for size in sizes) + bytes(16) + entry
    return result


def efi(root: Path, *, secure_boot: int | None = 1, mok: bytes = b"", db: bytes = b"", **others: bytes) -> None:
    """A root whose host was started by EFI, with these variables."""
    folder = root / "sys/firmware/efi/efivars"
    folder.mkdir(parents=True, exist_ok=True)
    values = {f"MokListRT-{SHIM}": mok, f"db-{SECURITY}": db}
    values |= {f"{name}-{GLOBAL if name == 'SetupMode' else SHIM}": value for name, value in others.items()}
    if secure_boot is not None:
        values[f"SecureBoot-{GLOBAL}"] = bytes([secure_boot])
    for name, value in values.items():
        (folder / name).write_bytes(b"\x06\x00\x00\x00" + value)
