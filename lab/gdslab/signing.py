"""Keys that sign kernel modules of the lab, and signatures as the kernel reads them."""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy.files import folders

# The two functions that sign import cryptography.x509: every verb of a lab imports this module, and few sign.

#: The end of a signed module: struct module_signature (its last field is the length), and a marker.
_MARKER = b"~Module signature appended~\n"
_TAIL = struct.Struct(">BBBBB3sI")
#: The kind of signature in struct module_signature.
_PKCS7 = 2
_FOLDER, _KEY, _CERTIFICATE = "module-key", "key.pem", "certificate.der"


@dataclass(frozen=True)
class ModuleKey:
    """A key that signs modules: the files of its private half (PEM) and of its certificate (DER)."""

    key: Path
    certificate: Path

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hexadecimal."""
        return hashlib.sha256(self.certificate.read_bytes()).hexdigest()

    def sign(self, module: bytes) -> bytes:
        """``module``, which isn't compressed, with this key's signature in place of any other."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
        from cryptography.hazmat.primitives.serialization import pkcs7

        module = unsigned(module)
        private = serialization.load_pem_private_key(self.key.read_bytes(), None)
        assert isinstance(private, rsa.RSAPrivateKey)
        certificate = x509.load_der_x509_certificate(self.certificate.read_bytes())
        builder = pkcs7.PKCS7SignatureBuilder().set_data(module).add_signer(certificate, private, hashes.SHA256())
        options = ("Binary", "DetachedSignature", "NoAttributes", "NoCerts")
        chosen = [pkcs7.PKCS7Options[option] for option in options]
        signature = builder.sign(serialization.Encoding.DER, chosen)
        return module + signature + _TAIL.pack(0, 0, _PKCS7, 0, 0, bytes(3), len(signature)) + _MARKER


def module_key(cache: Path) -> ModuleKey:
    """The lab's own key, one for a cache folder; made when missing.  Hosts with Secure Boot know it."""

    def make(work: Path) -> None:
        make_key(work / _KEY, work / _CERTIFICATE, "Key of gdsdeploy's lab for kernel modules")

    folder = folders.cached_folder(cache, _FOLDER, make, what="the key for kernel modules")
    return ModuleKey(folder / _KEY, folder / _CERTIFICATE)


def folder_of(cache: Path) -> Path:
    """Where :func:`module_key` has the key."""
    return cache / _FOLDER


def make_key(key: Path, certificate: Path, name: str) -> None:
    """Write a new key (RSA of 2048 bits, PEM) and its own certificate (DER) for signing code, both of ``name``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=36500))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .sign(private, hashes.SHA256())
    )
    no_passphrase = serialization.NoEncryption()
    form = serialization.PrivateFormat.TraditionalOpenSSL
    key.touch(mode=0o600)
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, no_passphrase))
    certificate.write_bytes(built.public_bytes(serialization.Encoding.DER))


def unsigned(module: bytes) -> bytes:
    """``module`` without its last signature; unchanged without one."""
    if not module.endswith(_MARKER):
        return module
    end = len(module) - len(_MARKER) - _TAIL.size
    return module[: end - _TAIL.unpack_from(module, end)[6]]
