"""Take what identifies a site out of texts, the same word always for the same thing, so that they still make sense.

Addresses and UUIDs stay well formed for their readers.  The table of what was replaced never leaves this process.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gdsdeploy.files.secret import REDACTED, hide, names_secret
from gdsdeploy.host.paths import SECURE_BOOT, SHIM_STATE

_IPV4 = re.compile(r"(?<![\w.+~])(?:\d{1,3}\.){3}\d{1,3}(?![\w+~]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
#: Ethernet's six octets, InfiniBand's eight and twenty.
_MAC = re.compile(
    r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}(?:(?:[0-9A-Fa-f]{2}:){2}|(?:[0-9A-Fa-f]{2}:){14})?[0-9A-Fa-f]{2}(?![\w:])"
)
_GUID = re.compile(r"(?<![\w:])[0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{4}){3}(?![\w:])")
_UUID = re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f])")
_MACHINE = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{32}(?![0-9A-Za-z])")
_NAMES = re.compile(
    r"(?<![\w.])(?:nqn\.\d{4}-?\.?\d\d\.[^\s\"',]+|iqn\.\d{4}-\d\d\.[^\s\"',]+|(?:eui|naa)\.[0-9A-Fa-f]{16,32})"
)
_SERIAL = re.compile(
    r"(?im)\b((?:board |chassis |product )?serial(?: number|_number)?(?:\s*[:=]\s*|\s+(?=[A-Z0-9-]*\d{5})))"
    r"([^\s\"',;\\]{3,})"
)
_HOME = re.compile(r"(/home/)([^/\s\"':;,]+)")
_LETTER = "[A-Za-z0-9]"
USER = "user name"
#: Login names that identify no person, or that mean something else on every host.
_COMMON = frozenset(
    {
        *("root", "admin", "administrator", "user", "ubuntu", "debian", "rocky", "centos", "almalinux", "fedora"),
        *("redhat", "rhel", "cloud-user", "ec2-user", "opc", "ansible", "slurm"),
        *("nvidia", "cuda", "gds", "nvme", "dkms", "kernel"),
    }
)


class Redactor:
    """Replaces what identifies a site; one for a whole bundle, so that hosts keep their relations."""

    def __init__(self, *, versions: Iterable[str] = (), names: Mapping[str, str] | None = None) -> None:
        """versions: texts whose dotted numbers are versions and no addresses.  names: word → what stands for it."""
        self._versions = {version for text in versions for version in _IPV4.findall(text)}
        self._words = dict(names or {})
        self._kinds: dict[str, dict[str, str]] = {"host name": dict(names or {})} if names else {}
        self._secrets = 0

    def learn(self, kind: str, word: str) -> None:
        """Take ``word`` out wherever it stands from now on; what is too short would be found everywhere."""
        if len(word) >= (3 if kind == USER else 4) and word not in _COMMON:
            self._words.setdefault(word, self._stand_in(kind, word, lambda n: f"{kind.replace(' ', '-')}-{n}"))

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it redacted, the keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            is_secret_pair = isinstance(value.get("name"), str) and names_secret(value["name"])
            return {
                self.text(str(key)): self._masked(inner)
                if names_secret(str(key)) or (is_secret_pair and key == "value")
                else self.value(inner)
                for key, inner in value.items()
            }
        return [self.value(inner) for inner in value] if isinstance(value, list) else value

    def _masked(self, value: Any) -> Any:
        """A JSON value with every text in it masked; numbers say nothing that a check does not need."""
        if isinstance(value, str):
            return value if value in ("", REDACTED) else self.secret()
        if isinstance(value, dict):
            return {self.text(str(key)): self._masked(inner) for key, inner in value.items()}
        return [self._masked(inner) for inner in value] if isinstance(value, list) else value

    def text(self, text: str) -> str:
        """One text."""
        text = hide(text, self.secret)
        text = _SERIAL.sub(lambda m: m[1] + self._stand_in("serial number", m[2], lambda n: f"serial-{n}"), text)
        text = _HOME.sub(lambda m: m[1] + self._stand_in(USER, m[2], lambda n: f"user{n}"), text)
        text = _NAMES.sub(lambda m: self._stand_in("device name", m[0], lambda n: f"device-{n}"), text)
        text = _UUID.sub(self._uuid, text)
        text = _MACHINE.sub(lambda m: self._stand_in("machine id", m[0], lambda n: f"{n:032x}"), text)
        text = _MAC.sub(self._mac, text)
        text = _GUID.sub(
            lambda m: self._stand_in("hardware address", m[0].lower(), lambda n: f"0200:0000:0000:{n:04x}"), text
        )
        text = _IPV6.sub(self._address, text)
        text = _IPV4.sub(self._address, text)
        return self._replace_words(text)

    def secret(self, value: str = "") -> str:
        """Count one more secret; returns what stands for it.  value: an address is taken out wherever it stands."""
        self._secrets += 1
        if "://" in value:
            self._words[value] = REDACTED
        return REDACTED

    def summary(self) -> dict[str, int]:
        """Kind → how many different ones were replaced."""
        counts = {kind: len(table) for kind, table in sorted(self._kinds.items()) if table}
        return {**counts, **({"secret": self._secrets} if self._secrets else {})}

    def _stand_in(self, kind: str, original: str, make: Callable[[int], str]) -> str:
        table = self._kinds.setdefault(kind, {})
        # What stands for something already is not replaced once more.
        if original in table.values():
            return original
        return table.setdefault(original, make(len(table) + 1))

    def _uuid(self, match: re.Match[str]) -> str:
        # Part of an EFI variable's name, the same on every machine.
        if (SECURE_BOOT + SHIM_STATE).count(match[0]):
            return match[0]
        return self._stand_in("UUID", match[0].lower(), lambda n: f"00000000-0000-4000-8000-{n:012x}")

    def _mac(self, match: re.Match[str]) -> str:
        octets = match[0].count(":") + 1
        if not match[0].strip("0:") or not match[0].lower().strip("f:"):
            return match[0]
        fill = ":".join(["02", *["00"] * (octets - 3)])
        return self._stand_in("hardware address", match[0].lower(), lambda n: f"{fill}:{n >> 8:02x}:{n & 255:02x}")

    def _address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if address.is_loopback or address.is_unspecified:
            return match[0]
        if address.version == 6:
            prefix = "fe80::" if address.is_link_local else "2001:db8::"
            return self._stand_in("IPv6 address", match[0].lower(), lambda n: f"{prefix}{n:x}")
        if match[0] in self._versions or match[0].startswith("255."):
            return match[0]
        # Of the range for benchmarks, which no network uses.
        return self._stand_in("IPv4 address", match[0], lambda n: str(ipaddress.IPv4Address("198.18.0.0") + n))

    def _replace_words(self, text: str) -> str:
        for word in sorted(self._words, key=len, reverse=True):
            if word in text:
                # A login name may be a part of other words: gds-tools names no user.
                before, after = (r"[\w.-]", r"[\w-]|\.\w") if word in self._kinds.get(USER, {}) else (_LETTER, _LETTER)
                text = re.sub(rf"(?<!{before}){re.escape(word)}(?!{after})", self._words[word], text)
        return text
