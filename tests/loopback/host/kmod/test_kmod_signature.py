from __future__ import annotations

import gzip
import io
import lzma
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.secure_boot import signature, signing, trust
from gdsdeploy.host.secure_boot.certificate import read_certificate
from gdsdeploy.host.secure_boot.firmware import read_lists
from gdsdeploy.host.secure_boot.openssl import OpensslError
from gdsdeploy.host.secure_boot.signature import MalformedError, UnsupportedError, read_signature, verifies
from tests.unit.host.kmod.kmod_elf import SIGNATURE, appended, module_bytes, signed_by
from tests.unit.host.kmod.kmod_keys import KINDS, Pair, efi, pair, signature_list
from tests.unit.host.kmod.kmod_root import RELEASE, Root

CONFIG = f"usr/src/linux-headers-{RELEASE}/.config"
LOCKED = "CONFIG_MODULE_SIG=y\nCONFIG_LOCK_DOWN_IN_EFI_SECURE_BOOT=y\n"
#: As the distributions' kernels are, which take keys of the firmware for modules.
DISTRIBUTION = LOCKED + "CONFIG_INTEGRITY_PLATFORM_KEYRING=y\n"
#: As upstream has the owner's keys for modules, if shim was told to trust them.
MACHINE = "CONFIG_INTEGRITY_MACHINE_KEYRING=y\nCONFIG_SECONDARY_TRUSTED_KEYRING=y\n"
FORCED = "CONFIG_MODULE_SIG=y\nCONFIG_MODULE_SIG_FORCE=y\n"
MODULE = module_bytes("thing")
#: As far as it matters, what the kernel's sign-file does with -s: it appends the signature as it is.
SIGN_FILE = """\
#!/usr/bin/env python3
import struct, sys
message = open(sys.argv[2], "rb").read()
with open(sys.argv[5], "ab") as module:
    module.write(message + struct.pack(">BBBBB3xI", 0, 0, 2, 0, 0, len(message)) + b"~Module signature appended~\\n")
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("keys")
    return {kind: pair(folder, f"owner {kind}", kind) for kind in KINDS}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def messages_of(root: Root, data: bytes, suffix: str = "") -> list[str]:
    """``severity id`` of what the audit of signatures finds in ``data``."""
    file = root.modules / f"updates/thing.ko{suffix}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress(data) if suffix == ".xz" else data)
    result = signature.findings(Kernel(RELEASE, str(root.path)), str(file))
    assert all(entry["hint"] and entry["message"] for entry in result)
    return [f"{entry['severity']} {entry['id']}" for entry in result]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hashed", ["sha256", "sha512"])
@pytest.mark.parametrize("options", [("-noattr",), ("-noattr", "-keyid")])
def test_real_signatures_verify_and_changed_content_does_not(
    keys: dict[str, Pair], kind: str, hashed: str, options: tuple[str, ...]
) -> None:
    data = keys[kind].sign(MODULE, *options, hashed=hashed)
    result = read_signature(io.BytesIO(data))
    assert result is not None
    certificate = read_certificate(keys[kind].der.read_bytes())
    assert (result.size, result.hash, result.is_by(certificate)) == (len(MODULE), hashed, True)
    assert verifies(result, io.BytesIO(data), certificate) is True
    assert verifies(result, io.BytesIO(b"\x7fELG" + data[4:]), certificate) is False
    other = read_certificate(pair(keys[kind].der.parent, "another", kind).der.read_bytes())
    assert not result.is_by(other)
    assert verifies(result, io.BytesIO(data), other) is False


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-nosmimecap",), "has signed attributes"),
        (("-noattr", "-nodetach"), "has the content inside"),
        (("-noattr", "-keyid", "-econtent_type", "1.2.840.113549.1.9.16.1.4"), "not of plain data"),
        # A message of version 3 with a signer of version 1.
        (("-noattr", "-econtent_type", "1.2.840.113549.1.9.16.1.4"), "version"),
    ],
)
def test_what_only_cms_allows_is_refused_and_not_made(
    root: Root, keys: dict[str, Pair], options: tuple[str, ...], reason: str
) -> None:
    """The kernel's words: "has authattrs", "non-detached data", "not pkcs7-data"; each is fatal without Secure Boot."""
    data = keys["rsa"].sign(MODULE, *options)
    with pytest.raises(MalformedError, match=reason):
        read_signature(io.BytesIO(data))
    assert messages_of(root, data) == ["error signature-malformed"]
    argv = ["openssl", "cms", "-sign", "-binary", "-nocerts", "-outform", "DER", "-md", "sha256", *options]
    argv += ["-signer", str(keys["rsa"].pem), "-inkey", str(keys["rsa"].key)]
    file = root.modules / "updates/thing.ko"
    file.write_bytes(MODULE)
    tool = root.path / f"usr/src/linux-headers-{RELEASE}/scripts/sign-file"
    tool.parent.mkdir()
    tool.write_text(SIGN_FILE)
    tool.chmod(0o755)
    with pytest.raises(signing.SigningError, match=reason):
        signing.sign(Kernel(RELEASE, str(root.path)), [str(file)], signing.signer(str(keys["rsa"].pem), command=argv))
    assert file.read_bytes() == MODULE


def test_rsa_pss_counts_as_unsigned(root: Root, keys: dict[str, Pair]) -> None:
    root.etc(CONFIG, FORCED)
    image_of(root, keys["rsa"])
    data = keys["rsa"].sign(MODULE, "-noattr", "-keyopt", "rsa_padding_mode:pss")
    with pytest.raises(UnsupportedError, match=r"1\.2\.840\.113549\.1\.1\.10"):
        read_signature(io.BytesIO(data))
    assert messages_of(root, data) == ["error unsigned"]


def test_one_of_several_signers_has_to_be_trusted_and_none_may_be_wrong(root: Root, keys: dict[str, Pair]) -> None:
    root.etc(CONFIG, FORCED)
    image_of(root, keys["rsa"])
    other = ("-signer", str(keys["p256"].pem), "-inkey", str(keys["p256"].key))
    data = keys["rsa"].sign(MODULE, "-noattr", *other)
    signed = read_signature(io.BytesIO(data))
    assert signed is not None
    assert len(signed.others) == 1
    assert messages_of(root, data) == []
    assert messages_of(root, b"\x7fELG" + data[4:]) == ["error signature-wrong"]
    image_of(root, keys["p384"])
    assert messages_of(root, data) == ["error signature-key"]


def test_an_altered_signature_does_not_verify(keys: dict[str, Pair]) -> None:
    for kind, owner in keys.items():
        data = bytearray(owner.sign(MODULE))
        certificate = read_certificate(owner.der.read_bytes())
        data[-50] ^= 1
        result = read_signature(io.BytesIO(bytes(data)))
        assert result is not None, kind
        assert verifies(result, io.BytesIO(bytes(data)), certificate) is False, kind


def test_certificates_are_read_as_openssl_reads_them(keys: dict[str, Pair]) -> None:
    argv = [
        "openssl",
        "x509",
        "-in",
        str(keys["rsa"].pem),
        "-noout",
        "-serial",
        "-fingerprint",
        "-ext",
        "subjectKeyIdentifier",
    ]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    result = read_certificate(keys["rsa"].der.read_bytes())
    # openssl shows whole bytes.
    assert re.search(rf"^serial=0?{result.serial:X}$", shown, re.MULTILINE)
    assert result.fingerprint.upper() in shown
    assert result.key_id.hex(":").upper() in shown
    assert result.subject == "owner rsa"


#: Whether shim was told to have kernels trust the owner's keys; lists of keys by the names of the keys in them.
TRUSTED, OWNERS = {"MokListTrustedRT": b"\x01"}, {"mok": "rsa"}
REVOKED = {**OWNERS, "MokListXRT": "rsa"}
CA = "CONFIG_INTEGRITY_CA_MACHINE_KEYRING=y\n"
#: (the kernel's configuration, key in its image, EFI variables, module: see ``module_of``, what is found)
DECISIONS = [
    # Where nothing is enforced, only what every kernel refuses is an error.
    ("", "", None, "unsigned", "note unsigned"),
    ("", "", None, "rsa", "note signature-key"),
    ("", "", None, "own", ""),
    ("", "", None, "odd", "error signature-malformed"),
    ("", "", None, "cut", "error signature-malformed"),
    ("", "", None, "long", "error signature-malformed"),
    ("", "", None, "other type", "note unsigned"),
    ("CONFIG_SMP=y\n", "", None, "odd", ""),
    # Under Secure Boot the owner's keys count; without the image it can't be told whether that has a key.
    (DISTRIBUTION, "", {"mok": "p256 rsa"}, "rsa", ""),
    (DISTRIBUTION, "", {"mok": "p256 rsa"}, "unsigned", "error unsigned"),
    (DISTRIBUTION, "", {"mok": "p256 rsa"}, "rsa changed", "error signature-wrong"),
    (DISTRIBUTION, "", {"mok": "p256 rsa"}, "p384", "warning signature-key-unknown"),
    # A wrong signature is refused even where none is needed, unless nothing says whether this kernel has the key.
    ("CONFIG_MODULE_SIG=y\n" + MACHINE, "", {**OWNERS, **TRUSTED}, "rsa", ""),
    ("CONFIG_MODULE_SIG=y\n" + MACHINE, "", {**OWNERS, **TRUSTED}, "rsa changed", "error signature-wrong"),
    ("CONFIG_MODULE_SIG=y\n", "", {**OWNERS, **TRUSTED}, "rsa", ""),
    ("CONFIG_MODULE_SIG=y\n", "", {**OWNERS, **TRUSTED}, "rsa changed", "warning signature-unknown"),
    # Without the key a kernel doesn't notice a change; module.sig_enforce=1 asks for a key that it has.
    (LOCKED, "", {**OWNERS, "secure_boot": 0}, "rsa changed", "note signature-wrong"),
    (FORCED, "", {**OWNERS, "secure_boot": 0}, "rsa changed", "error signature-wrong"),
    # Keys of the firmware count on the distributions' kernels, unless shim's owner leaves them out.
    (DISTRIBUTION, "p256", {"db": "rsa"}, "rsa", ""),
    (DISTRIBUTION, "p256", {"db": "rsa"}, "rsa changed", "error signature-wrong"),
    (DISTRIBUTION, "p256", {"db": "rsa", "MokIgnoreDB": b"\x01"}, "rsa", "error signature-key"),
    (FORCED, "p256", {"db": "rsa"}, "rsa", "warning signature-key-unknown"),
    # Keys that come and go at the next boot.
    (DISTRIBUTION, "p256", {"MokNew": "rsa"}, "rsa", "error signature-key-pending"),
    (DISTRIBUTION, "p256", {**OWNERS, "MokDel": "rsa"}, "rsa", "warning signature-key-leaving"),
    # Debian's kernels are built without a list of revoked keys.
    (
        FORCED + DISTRIBUTION + "CONFIG_SYSTEM_REVOCATION_LIST=y\n",
        "p256",
        REVOKED,
        "rsa",
        "error signature-key-revoked",
    ),
    (FORCED + DISTRIBUTION, "p256", REVOKED, "rsa", ""),
    # An upstream kernel takes the owner's keys if shim was told to.
    (FORCED + MACHINE, "", OWNERS, "rsa", "warning signature-key-unknown"),
    (FORCED + MACHINE, "", {**OWNERS, **TRUSTED}, "rsa", ""),
    (FORCED + MACHINE + CA, "", {**OWNERS, **TRUSTED}, "rsa", "warning signature-key-unknown"),
    (FORCED, "", {**OWNERS, **TRUSTED}, "rsa", "warning signature-key-unknown"),
    # Without Secure Boot the kernel doesn't load the owner's keys.
    (FORCED, "", {**OWNERS, "secure_boot": 0}, "rsa", "error signature-key"),
    (FORCED, "", {**OWNERS, "MokSBStateRT": b"\x01"}, "rsa", "error signature-key"),
    # Whether it is on can't be told.
    (LOCKED, "", {"secure_boot": None}, "unsigned", "warning secure-boot-unknown"),
    (LOCKED, "", {"secure_boot": None}, "rsa", "warning secure-boot-unknown"),
    (LOCKED, "", {"secure_boot": None}, "own", ""),
]


def module_of(keys: dict[str, Pair], kind: str) -> bytes:
    name, _, changed = kind.partition(" ")
    if name in keys:
        signed = keys[name].sign(MODULE)
        return b"\x7fELG" + signed[4:] if changed else signed
    return {
        "unsigned": MODULE,
        "own": MODULE + SIGNATURE,
        "odd": MODULE + appended(b"\x30\x03\x02\x01\x01"),
        "cut": MODULE[:300] + b"~Module signature appended~\n",
        "long": MODULE + appended(b"x", size=1 << 20),
        "other type": MODULE + appended(b"x", kind=1),
    }[kind]


def started_by_efi(root: Root, keys: dict[str, Pair], variables: dict[str, Any]) -> None:
    lists = {name: keys_in(keys, value) if isinstance(value, str) else value for name, value in variables.items()}
    efi(root.path, **lists)


def keys_in(keys: dict[str, Pair], names: str) -> bytes:
    return signature_list(*(keys[name].der.read_bytes() for name in names.split()))


@pytest.mark.parametrize(("config", "image", "variables", "module", "found"), DECISIONS)
def test_what_the_kernel_makes_of_a_module(
    root: Root,
    keys: dict[str, Pair],
    config: str,
    image: str,
    variables: dict[str, Any] | None,
    module: str,
    found: str,
) -> None:
    if config:
        root.etc(CONFIG, config)
    if image:
        image_of(root, keys[image], pack="gz")
    if variables is not None:
        started_by_efi(root, keys, variables)
    assert messages_of(root, module_of(keys, module)) == ([found] if found else [])


def test_a_packed_module_and_a_menu_that_cannot_be_read(root: Root, keys: dict[str, Pair]) -> None:
    root.etc(CONFIG, DISTRIBUTION)
    started_by_efi(root, keys, OWNERS)
    assert messages_of(root, module_of(keys, "rsa"), ".xz") == []
    root.etc(CONFIG, LOCKED)
    started_by_efi(root, keys, {**OWNERS, "secure_boot": 0})
    unreadable(root, "boot/grub/grub.cfg")
    assert messages_of(root, module_of(keys, "rsa changed")) == ["warning enforcement-unknown"]


def test_long_lists_are_read_where_the_kernel_shows_them_whole(root: Root, keys: dict[str, Pair]) -> None:
    root.etc(CONFIG, DISTRIBUTION)
    efi(root.path)
    folder = root.path / "sys/firmware/efi/mok-variables"
    folder.mkdir()
    (folder / "MokListRT").write_bytes(keys_in(keys, "rsa"))
    assert messages_of(root, keys["rsa"].sign(MODULE)) == []


@pytest.mark.parametrize(
    ("variables", "module", "words"),
    [
        ({"secure_boot": 0, "SetupMode": b"\x01"}, "unsigned", "Setup Mode"),
        ({"secure_boot": 1, "MokSBStateRT": b"\x01"}, "unsigned", "shim's validation is off"),
        ({"MokNew": "rsa"}, "rsa", "within 10 s"),
    ],
)
def test_what_a_finding_names(
    root: Root, keys: dict[str, Pair], variables: dict[str, Any], module: str, words: str
) -> None:
    root.etc(CONFIG, DISTRIBUTION)
    started_by_efi(root, keys, variables)
    messages_of(root, module_of(keys, module))
    (entry,) = signature.findings(Kernel(RELEASE, str(root.path)), str(root.modules / "updates/thing.ko"))
    assert words in entry["message"] + entry["hint"]


def running(root: Root, **files: str) -> None:
    root.etc("proc/sys/kernel/osrelease", RELEASE + "\n")
    for path, text in files.items():
        root.etc(path.replace("__", "/"), text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz quiet module.sig_enforce=1\n"),
        ("proc/cmdline", "quiet module.sig_enforce\n"),
        ("proc/cmdline", "lockdown=integrity\n"),
        ("sys/module/module/parameters/sig_enforce", "Y\n"),
        ("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
        ("boot/grub/grub.cfg", f"\tlinux\t/boot/vmlinuz-{RELEASE} root=/dev/vda1 ro module.sig_enforce=1\n"),
        ("boot/grub2/grub.cfg", f"\tlinuxefi /vmlinuz-{RELEASE} module.sig-enforce=y\n"),
        ("boot/loader/entries/x.conf", f"linux /vmlinuz-{RELEASE}\noptions root=/dev/vda1 module.sig_enforce=1\n"),
        ("etc/default/grub.d/sign.cfg", 'GRUB_CMDLINE_LINUX="module.sig_enforce=1"\n'),
        ("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT='module.sig_enforce quiet'\n"),
        ("etc/kernel/cmdline", "root=/dev/vda1 lockdown=confidentiality\n"),
        *(("proc/cmdline", f"quiet module.sig_enforce={word}\n") for word in ("yes", "true", "On", "T", "1 x=0")),
        # Neither can be taken back.
        ("proc/cmdline", "module.sig_enforce=1 module.sig_enforce=0\n"),
        ("proc/cmdline", "lockdown=integrity lockdown=none\n"),
        ("efi/loader/entries/x.conf", f"version {RELEASE}\nlinux /x/linux\noptions module.sig_enforce=1\n"),
        ("boot/efi/loader/entries/x.conf", f"linux /x/{RELEASE}/linux\noptions lockdown=integrity\n"),
        (CONFIG, "CONFIG_MODULE_SIG=y\nCONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY=y\n"),
        (CONFIG, "CONFIG_MODULE_SIG=y\nCONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY=y\n"),
        (CONFIG, 'CONFIG_MODULE_SIG=y\nCONFIG_CMDLINE="quiet module.sig_enforce=1"\n'),
    ],
)
def test_what_turns_enforcing_on(root: Root, path: str, text: str) -> None:
    running(root)
    assert messages_of(root, MODULE) == ["note unsigned"]
    root.etc(path, text)
    assert messages_of(root, MODULE) == ["error unsigned"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("proc/cmdline", "quiet module.sig_enforce=0 lockdown=none\n"),
        ("sys/kernel/security/lockdown", "[none] integrity confidentiality\n"),
        ("boot/grub/grub.cfg", "\tlinux\t/boot/vmlinuz-6.1.0-1-amd64 module.sig_enforce=1\n"),
        ("boot/loader/entries/x.conf", "linux /vmlinuz-6.1.0-1-amd64\noptions module.sig_enforce=1\n"),
        ("boot/loader/entries/x.conf", f"linux /vmlinuz-{RELEASE}-64k\noptions module.sig_enforce=1\n"),
        *(("proc/cmdline", f"module.sig_enforce={word}\n") for word in ("", "0", "no", "off", "2")),
    ],
)
def test_what_does_not(root: Root, path: str, text: str) -> None:
    running(root)
    root.etc(path, text)
    assert messages_of(root, MODULE) == ["note unsigned"]


def unreadable(root: Root, path: str) -> None:
    """A folder in place of a file, or a link to itself in place of a folder."""
    place = root.path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix or place.name in ("cmdline", "grub"):
        place.mkdir()
    else:
        place.symlink_to(place.name)


@pytest.mark.parametrize(
    "path",
    [
        "proc/cmdline", "boot/grub/grub.cfg", "boot/grub2/grub.cfg", "boot/loader/entries",
        "boot/loader/entries/x.conf", "etc/default/grub", "etc/default/grub.d/sign.cfg",
    ],
)  # fmt: skip
def test_a_file_that_may_enforce_and_cannot_be_read_leaves_it_unknown(
    root: Root, keys: dict[str, Pair], path: str
) -> None:
    running(root)
    unreadable(root, path)
    assert messages_of(root, MODULE) == ["warning enforcement-unknown"]
    assert messages_of(root, keys["rsa"].sign(MODULE)) == ["warning enforcement-unknown"]
    (entry,) = signature.findings(Kernel(RELEASE, str(root.path)), str(root.modules / "updates/thing.ko"))
    assert f"/{path}: " in entry["message"]
    # With a key of the kernel it loads in any case.
    assert messages_of(root, MODULE + SIGNATURE) == []
    image_of(root, keys["p256"])
    assert messages_of(root, keys["p256"].sign(MODULE)) == []
    root.etc(CONFIG, FORCED)
    assert messages_of(root, MODULE) == ["error unsigned"]


def test_a_key_of_the_owner_may_be_of_no_use_without_secure_boot(root: Root, keys: dict[str, Pair]) -> None:
    efi(root.path, secure_boot=0, mok=signature_list(keys["rsa"].der.read_bytes()))
    root.etc(CONFIG, "CONFIG_MODULE_SIG=y\n")
    assert messages_of(root, keys["rsa"].sign(MODULE)) == []
    unreadable(root, "boot/grub/grub.cfg")
    assert messages_of(root, keys["rsa"].sign(MODULE)) == ["warning enforcement-unknown"]


def test_variables_of_grub_that_an_entry_uses(root: Root) -> None:
    root.etc("boot/loader/entries/x.conf", f"linux /vmlinuz-{RELEASE}\noptions $kernelopts $tuned_params\n")
    root.etc("boot/grub2/grubenv", "kernelopts=root=/dev/vda1 ro\n")
    root.etc("boot/grub2/grub.cfg", 'set tuned_params=""\n')
    assert messages_of(root, MODULE) == ["note unsigned"]
    root.etc("boot/grub2/grub.cfg", 'set tuned_params="module.sig_enforce=1"\n')
    assert messages_of(root, MODULE) == ["error unsigned"]
    root.etc("boot/grub2/grub.cfg", "")
    root.etc("boot/grub2/grubenv", "kernelopts=root=/dev/vda1 ro lockdown=integrity\n")
    assert messages_of(root, MODULE) == ["error unsigned"]


@pytest.mark.parametrize("folder", ["boot", "efi", "boot/efi"])
def test_a_unified_kernel_image_has_its_arguments_inside(root: Root, tmp_path: Path, folder: str) -> None:
    image = root.path / folder / "EFI/Linux/debian.efi"
    image.parent.mkdir(parents=True)
    for release, words, result in (
        (RELEASE, "quiet\n", "note"),
        (RELEASE, "quiet module.sig_enforce=1\n", "error"),
        ("6.1.0-1-amd64", "quiet module.sig_enforce=1\n", "note"),
    ):
        (tmp_path / "cmdline").write_text(words)
        (tmp_path / "uname").write_text(release)
        # As systemd's ukify does it.
        argv = ["objcopy", "--input-target=binary", "--output-target=pei-x86-64", "--rename-section", ".data=.linux"]
        for number, name in enumerate(("cmdline", "uname"), start=1):
            argv += ["--add-section", f".{name}={tmp_path / name}"]
            argv += ["--set-section-flags", f".{name}=contents,data"]
            argv += ["--change-section-vma", f".{name}={number << 20:#x}"]
        (tmp_path / "linux").write_bytes(b"kernel")
        subprocess.run([*argv, str(tmp_path / "linux"), str(image)], check=True, capture_output=True)
        assert messages_of(root, MODULE) == [f"{result} unsigned"], (release, words)
    image.write_bytes(b"MZ")
    assert messages_of(root, MODULE) == ["note unsigned"]


def test_what_runs_says_nothing_about_another_kernel(root: Root) -> None:
    root.etc("proc/sys/kernel/osrelease", "6.1.0-1-amd64\n")
    root.etc("proc/cmdline", "module.sig_enforce=1\n")
    assert messages_of(root, MODULE) == ["note unsigned"]


def image_of(root: Root, *owners: Pair, pack: str = "xz") -> None:
    """A bzImage whose kernel has these certificates."""
    plain = random.Random(1).randbytes(5 << 20) + b"".join(entry.der.read_bytes() + b"\0" * 9 for entry in owners)
    packed = {"xz": lambda: lzma.compress(plain, preset=0), "gz": lambda: gzip.compress(plain, 1)}.get(pack)
    program = ["lz4", "-qcl"] if pack == "lz4" else ["zstd", "-qc", "-1"]
    payload = packed() if packed else subprocess.run(program, input=plain, capture_output=True, check=True).stdout
    size = len(plain).to_bytes(4, "little")
    header = bytearray(1024)
    header[0x1F1] = 1
    header[0x202:0x206] = b"HdrS"
    header[0x248:0x24C] = (64).to_bytes(4, "little")
    header[0x24C:0x250] = (len(payload) + 4).to_bytes(4, "little")
    root.etc(f"boot/vmlinuz-{RELEASE}", "")
    (root.path / f"boot/vmlinuz-{RELEASE}").write_bytes(bytes(header) + bytes(64) + payload + size + b"more")


@pytest.mark.parametrize("pack", ["xz", "gz", "zst", "lz4"])
def test_the_keys_inside_the_kernel(root: Root, keys: dict[str, Pair], pack: str) -> None:
    image_of(root, keys["p384"], pack=pack)
    root.etc(CONFIG, FORCED)
    signed = keys["p384"].sign(MODULE)
    assert messages_of(root, signed) == []
    assert messages_of(root, b"\x7fELG" + signed[4:]) == ["error signature-wrong"]
    assert messages_of(root, keys["rsa"].sign(MODULE)) == ["error signature-key"]


def test_an_efi_zboot_image_and_a_plain_one(tmp_path: Path, keys: dict[str, Pair]) -> None:
    payload = gzip.compress(b"kernel" + keys["rsa"].der.read_bytes())
    sizes = (64).to_bytes(4, "little") + len(payload).to_bytes(4, "little")
    (tmp_path / "zboot").write_bytes((b"MZ\0\0zimg" + sizes).ljust(64, b"\0") + payload + b"rest")
    (tmp_path / "plain").write_bytes(b"kernel" + keys["rsa"].der.read_bytes() * 2)
    (tmp_path / "other").write_bytes((b"MZ\0\0zimg" + sizes).ljust(64, b"\0") + b"LZ4?" + payload)
    for name in ("zboot", "plain"):
        assert [entry.subject for entry in trust.certificates(str(tmp_path / name))] == ["owner rsa"]
    with pytest.raises(trust.ImageError, match="packed in an unknown way"):
        trust.certificates(str(tmp_path / "other"))
    damaged = (b"MZ\0\0zimg" + sizes).ljust(64, b"\0") + b"\x02\x21\x4c\x18\x09\0\0\0" + payload
    (tmp_path / "other").write_bytes(damaged)
    with pytest.raises(trust.ImageError, match="damaged lz4 data"):
        trust.certificates(str(tmp_path / "other"))


def test_the_key_of_a_kernel_that_was_built_here(root: Root, keys: dict[str, Pair]) -> None:
    root.etc(CONFIG, FORCED)
    folder = root.path / f"usr/src/linux-headers-{RELEASE}/certs"
    folder.mkdir()
    (folder / "signing_key.x509").write_bytes(keys["rsa"].der.read_bytes())
    assert messages_of(root, keys["rsa"].sign(MODULE)) == []


def test_the_kernels_own_signer_is_known_by_its_modules(root: Root) -> None:
    root.etc(CONFIG, FORCED)
    assert messages_of(root, MODULE + SIGNATURE) == ["warning signature-unknown"]
    assert messages_of(root, MODULE + signed_by("someone else")) == ["warning signature-key-unknown"]


def test_damaged_messages_end_in_a_clear_word(keys: dict[str, Pair]) -> None:
    chance = random.Random(7)
    messages = [
        keys[kind].sign(b"", *options)[:-40] for kind in KINDS for options in (("-noattr",), ("-noattr", "-keyid"))
    ]
    refused = 0
    for _ in range(3000):
        message = bytearray(chance.choice(messages))
        for _ in range(chance.randint(1, 4)):
            message[chance.randrange(len(message))] = chance.randrange(256)
        try:
            read_signature(io.BytesIO(MODULE + appended(bytes(message[: chance.choice((len(message), 40))]))))
        except (MalformedError, UnsupportedError):
            refused += 1
    assert refused > 1000


def test_damaged_certificates_and_lists_end_too(keys: dict[str, Pair]) -> None:
    chance = random.Random(8)
    whole = signature_list(*(entry.der.read_bytes() for entry in keys.values()))
    assert len(read_lists(whole)) == 3
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        read_lists(bytes(data)[: chance.randrange(len(data))])


def test_without_openssl_a_signature_is_neither_good_nor_wrong(
    root: Root, keys: dict[str, Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.etc(CONFIG, DISTRIBUTION)
    efi(root.path, mok=signature_list(keys["rsa"].der.read_bytes()))
    signed = keys["rsa"].sign(MODULE)
    path = root.modules / "updates/thing.ko"
    monkeypatch.setattr("gdsdeploy.host.process.search_path", lambda _env=None: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for data in (signed, b"\x7fELG" + signed[4:]):
        assert messages_of(root, data) == ["warning signature-unknown"]
        (entry,) = signature.findings(Kernel(RELEASE, str(root.path)), str(path))
        assert "wasn't verified: openssl isn't installed" in entry["message"]
        assert entry["hint"] == "install the package openssl"
        with pytest.raises(OpensslError):
            signing.is_signed(str(path), read_certificate(keys["rsa"].der.read_bytes()))
