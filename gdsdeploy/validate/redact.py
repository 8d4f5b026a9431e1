"""Take what identifies a site out of texts, the same word always for the same thing, so that they still make sense.

Addresses and UUIDs stay well formed for their readers.  The table of what was replaced never leaves this process.

One expression finds all in one pass, so that nothing that stands for something is replaced again.  Words of gdsdeploy
and of the kernel stay even where a host, a login or a domain has the same name: checks read them.

The fleet file is masked by its structure, too, and loses its comments.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import yaml

from gdsdeploy import resources
from gdsdeploy.files.secret import REDACTED, hide, names_secret
from gdsdeploy.fleetfile.load import secret_keys
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.text import NAME

_IPV4: Final = re.compile(r"(?<![\d.+~vV])(?:\d{1,3}\.){3}\d{1,3}(?![A-Za-z0-9+~]|\.\d)")
#: What is found by its form; of several at one place, the first one counts.
_FORMS: Final = {
    "own": re.escape(REDACTED),
    # The address of a PCI function is that of its place in any machine.
    "pci": r"(?<![0-9A-Za-z:])(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](?![0-9A-Za-z])",
    "serial": r"(?i:\b(?:(?:board |chassis |product )?serial(?: number|_number)?|sn)"
    r"(?:\s*[:=]\s*|\s+(?=[A-Z0-9-]*\d{5})))(?P<number>[^\s\"',;\\]{3,})",
    "home": r"/(?:home|[Uu]sers)/(?P<login>[^/\s\"':;,]+)",
    "device": r"(?<![\w.])(?:[ni]qn\.\d{4}-?\.?\d\d\.[^\s\"',]+|(?:eui|naa)\.[0-9A-Fa-f]{16,32})",
    "uuid": r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f])",
    "machine": r"(?<![0-9A-Za-z])[0-9a-f]{32}(?![0-9A-Za-z])",
    # Ethernet's six octets, InfiniBand's eight and twenty.
    "mac": r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}(?:(?:[0-9A-Fa-f]{2}:){2}|(?:[0-9A-Fa-f]{2}:){14})?"
    r"[0-9A-Fa-f]{2}(?![\w:])",
    # Ethernet's with hyphens, and as switches write it.
    "dashed": r"(?<![\w.-])(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}(?![\w.-])",
    "dotted": r"(?<![\w.-])(?=[0-9.]*[A-Fa-f])(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}(?![\w.-])",
    "guid": r"(?<![\w:])[0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{4}){3}(?![\w:])",
    "ipv6": r"(?<![\w:.])(?=[0-9A-Fa-f:]*::|(?:[0-9A-Fa-f]{1,4}:){7})"
    r"[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])",
    "ipv4": _IPV4.pattern,
}
_MAIL: Final = r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z][\w-]{0,62}\.)+[A-Za-z]{2,}(?![\w-])"
USER: Final = "user name"
HOST: Final = "host name"
OTHER: Final = "other host"
SERIAL: Final = "serial number"
#: What stands for something of a kind; otherwise the kind's name.
_STAND_INS: Final = {USER: "user", HOST: "host-", SERIAL: "serial-", "device name": "device-"}
#: Login names that identify no person, or that mean something else on every host.
_COMMON: Final = frozenset(
    {
        *("root", "admin", "administrator", "user", "ubuntu", "debian", "rocky", "centos", "almalinux", "fedora"),
        *("redhat", "rhel", "cloud-user", "ec2-user", "opc", "ansible", "slurm"),
    }
)
_NUMBER: Final = re.compile(r"0x[0-9A-Fa-f]+|[\d._-]+")
#: What may stand before and after a word.  A login name may be a part of other words: gds-tools names no user.
_EDGES: Final = {"user": (r"(?<![\w.-])", r"(?![\w-]|\.\w)"), "word": ("(?<![A-Za-z0-9])", "(?![A-Za-z0-9])")}
#: Letters below which a word would be found everywhere.
_SHORTEST: Final = {HOST: 1, USER: 3, OTHER: 3}
#: Texts that are read once while hosts are alike.
_ALIKE: Final = 8192
#: Other machines in a log: whose line of the journal it is, at which a login is, and from which something is mounted.
_MACHINES: Final = re.compile(
    r"(?m)(?:^\s*(?:[A-Z][a-z]{2} +\d+ [\d:]+|\d{4}-\d\d-\d\d[T ]\S+) (?=\S+ [\w.@/-]+(?:\[\d+\])?: )|(?<=\w@))"
    r"([a-z][\w.-]{0,62})|(?<![\w./@-])([A-Za-z][\w.-]{0,62}):(?=/\w)"
)
#: Names in domains that are registered, or of an own network.
_DNS: Final = re.compile(
    r"(?<![\w./@-])(?:[A-Za-z][\w-]{0,62}\.)+(?:com|net|org|edu|gov|mil|io|ai|cloud|dev|internal|local|lan|corp|intra"
    r"|example)(?![\w/-]|\.\w)"
)
#: Of those whose documents and packages every site has, and of units.
_PUBLIC: Final = re.compile(
    r"(?:^|[.@])(?:nvidia|github|githubusercontent|kernel|debian|ubuntu|canonical|redhat|mellanox|docker|rockylinux|pypi"
    r"|python|launchpad|fedoraproject|ansible)\.\w+$|\.(?:service|socket|timer|target|mount)$"
)


class Redactor:
    """Replaces what identifies a site; one for a whole bundle, so that hosts keep their relations."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._addresses: set[str] = set()
        self._versions: set[str] = set()
        #: that the kernel gives
        self._names: set[str] = set()
        #: that a site has: none of them stands for another
        self._taken: set[str] = set()
        #: kind → what stands for what, and the next numbers
        self._kinds: dict[str, tuple[dict[str, str], Iterator[int]]] = {}
        self._secrets = 0
        self._expression: re.Pattern[str] | None = None
        self.text = functools.lru_cache(_ALIKE)(self._text)

    def learn(self, kind: str, word: str) -> None:
        """Take ``word`` out wherever it stands, unless it is short, a number, or a word that every site has."""
        if len(word) >= _SHORTEST.get(kind, 4) and word not in _COMMON and not _NUMBER.fullmatch(word):
            self._words.setdefault(word, kind)
            self._taken.update((word, *word.split(".")))
            self._forget()

    def learn_log(self, text: str, known: Iterable[str]) -> None:
        """Take out the machines that lines of a log name, but for ``known`` names."""
        own = {name.partition(".")[0] for name in known} | {"localhost", "kernel"}
        names = (name.rstrip(".") for found in _MACHINES.findall(text) for name in found)
        for name in (*names, *_DNS.findall(text)):
            if name.partition(".")[0] not in own and not _PUBLIC.search(name):
                self.learn(OTHER, name)

    def keep(self, versions: Iterable[str] = (), paths: Iterable[str] = ()) -> None:
        """Leave the versions of four numbers in ``versions``, and the names that the kernel gives in ``paths``."""
        self._versions.update(version for text in versions for version in _IPV4.findall(text))
        kernels = (path for path in paths if path.startswith(("/sys/", "/proc/")))
        self._names.update(name for path in kernels for name in path.split("/"))
        self._forget()

    def kept(self, kind: str) -> list[str]:
        """The learned words of ``kind`` that stay in texts, because the evidence has them as its own."""
        return [word for word, of in self._words.items() if of == kind and self._stays(word)]

    def name(self, name: str) -> str:
        """What stands for a host's name at a place that is only for those; it is again one that a file can have."""
        text = self.text(name)
        is_hidden = self._words.get(name) == HOST or not NAME.fullmatch(text)
        return self._stand_in(HOST, name) if is_hidden else text

    def value(self, value: Any, *, masked: bool = False) -> Any:
        """A JSON value with every text in it redacted, the keys too.

        masked: it is a secret, with every text in it; numbers say nothing that a check does not need.
        """
        match value:
            case str() if masked:
                return value if value in ("", REDACTED) else self.secret()
            case str():
                return self.text(value)
            case dict():
                is_pair = isinstance(value.get("name"), str) and names_secret(value["name"])
                secret = {key for key in value if masked or names_secret(str(key)) or (is_pair and key == "value")}
                return {self.text(str(key)): self.value(inner, masked=key in secret) for key, inner in value.items()}
            case list():
                return [self.value(inner, masked=masked) for inner in value]
        return value

    def _text(self, text: str) -> str:
        """One text."""
        if self._expression is None:
            self._expression = self._compiled()
        return self._expression.sub(self._replaced, hide(text, self.secret))

    def secret(self, value: str = "") -> str:
        """Count one more secret; returns what stands for it.  value: an address is taken out wherever it stands."""
        self._secrets += 1
        if "://" in value:
            self._addresses.add(value)
            self._forget()
        return REDACTED

    def summary(self) -> dict[str, int]:
        """Kind → how many different ones were replaced."""
        counts = {kind: len(table) for kind, (table, _) in sorted(self._kinds.items())}
        return {**counts, **({"secret": self._secrets} if self._secrets else {})}

    def _forget(self) -> None:
        self._expression = None
        self.text.cache_clear()

    def _compiled(self) -> re.Pattern[str]:
        words = [word for word in self._words if not self._stays(word)]
        users = [word for word in words if self._words[word] == USER]
        others = [word for word in words if self._words[word] != USER]
        found = {
            "address": "|".join(map(re.escape, sorted(self._addresses, key=len, reverse=True))),
            **_FORMS,
            **{name: _any_of(of).join(_EDGES[name]) for name, of in (("user", users), ("word", others)) if of},
            "mail": _MAIL,
        }
        return re.compile("|".join(f"(?P<{name}>{expression})" for name, expression in found.items() if expression))

    def _stays(self, word: str) -> bool:
        return word in self._names or _is_own(word)

    def _replaced(self, found: re.Match[str]) -> str:
        text = found[0]
        match found.lastgroup:
            case "user" | "word":
                return self._stand_in(self._words[text], text)
            case "serial":
                return text.removesuffix(found["number"]) + self._stand_in(SERIAL, found["number"])
            case "home":
                return text.removesuffix(found["login"]) + self._stand_in(USER, found["login"])
            case "mac" | "dashed" | "dotted" | "guid":
                return self._hardware(text)
            case "ipv4" | "ipv6":
                return self._address(text)
            # Those of EFI variables and of partitions' types are the same on every machine.
            case "uuid" if text.lower() not in _own_uuids():
                return self._stand_in("UUID", text.lower(), "00000000-0000-4000-8000-{:012x}".format)
            case "machine":
                return self._stand_in("machine id", text, "{:032x}".format)
            case "mail" if not _PUBLIC.search(text):
                return self._stand_in("mail address", text)
            case "device":
                return self._stand_in("device name", text)
            case "address":
                return REDACTED
        return text

    def _stand_in(self, kind: str, original: str, make: Callable[[int], str] | None = None) -> str:
        """What stands for ``original``: as ``make`` has it, or the kind's word and a number that no name has."""
        table, numbers = self._kinds.setdefault(kind, ({}, itertools.count(1)))
        if original not in table:
            made = map(make or f"{_STAND_INS.get(kind, kind.replace(' ', '-') + '-')}{{}}".format, numbers)
            table[original] = next(word for word in made if word not in self._taken)
        return table[original]

    def _hardware(self, text: str) -> str:
        """An address of as many digits, in the same form."""
        digits = re.sub("[:.-]", "", text.lower())
        if not digits.strip("0") or not digits.strip("f"):
            return text
        others = iter(self._stand_in("hardware address", digits, lambda n: f"02{n:0{len(digits) - 2}x}"))
        return re.sub("[0-9A-Fa-f]", lambda _: next(others), text)

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified or text in self._versions or text.startswith("255."):
            return text
        # Of the ranges for benchmarks and for documents, which no network uses.
        first = "198.18.0.0" if address.version == 4 else "fe80::" if address.is_link_local else "2001:db8::"
        stand_in = self._stand_in(f"IPv{address.version} address", str(address), "{}".format)
        return str(ipaddress.ip_address(first) + int(stand_in))


@functools.cache
def _own_words() -> str:
    """All that the program on hosts says and compares: what is in it names no site."""
    files = (resources.package() / "host").rglob("*")
    own = "\n".join(file.read_text(encoding="utf-8") for file in files if file.suffix in (".py", ".json"))
    return f"{own}\n{json.dumps(Fleet.model_json_schema())}"


@functools.cache
def _own_uuids() -> frozenset[str]:
    return frozenset(each.lower() for each in re.findall(_FORMS["uuid"], _own_words()))


@functools.cache
def _is_own(word: str) -> bool:
    return word in _own_words() and re.search(re.escape(word).join(_EDGES["word"]), _own_words()) is not None


def _any_of(words: Iterable[str]) -> str:
    """An expression for the longest of ``words``: a tree of their letters, so that 10,000 names take as long as one."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _branches(tree)


def _branches(node: dict[str, Any]) -> str:
    branches = [re.escape(letter) + _branches(inner) for letter, inner in sorted(node.items()) if letter]
    is_end = "" in node
    return f"(?:{'|'.join(branches)}){'?' * is_end}" if branches and (is_end or branches[1:]) else "".join(branches)


#: Keys that say where hosts are, and who enters them how.
_WAYS: Final = frozenset({"address", "user", "identity_file", "known_hosts", "config"})
#: Sections whose keys aren't the fleet file's own.
_FOREIGN: Final = frozenset({"cufile", "labels", "options", "arguments", "module_options", "groups"})


@functools.cache
def private_keys() -> frozenset[str]:
    """Keys whose values, however deep, are masked; of an address (``uri``) only what has no place in one is."""
    return (secret_keys(Fleet) | _WAYS) - {"uri"}


def mask_fleet(text: str, secret: Callable[[str], object]) -> str:
    """The fleet file ``text`` with private values masked; ``secret`` is called with each.  Raises yaml.YAMLError."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return ""
    for node, private in list(_scalars(root)):
        value = REDACTED if private else _without_login(node.value)
        if value != node.value:
            secret(node.value)
            node.value, node.tag, node.style = value, "tag:yaml.org,2002:str", None
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, width=120))


def _scalars(root: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, bool]]:
    """Every value with whether it is private; one that an alias repeats may come twice."""
    stack, visited = [(root, False, False)], set[tuple[int, bool, bool]]()
    while stack:
        node, private, foreign = stack.pop()
        if (id(node), private, foreign) in visited:
            continue
        visited.add((id(node), private, foreign))
        match node:
            case yaml.ScalarNode():
                yield node, private
            case yaml.SequenceNode():
                stack += [(entry, private, foreign) for entry in node.value]
            case yaml.MappingNode():
                for key, value in node.value:
                    name = key.value if isinstance(key, yaml.ScalarNode) else ""
                    hidden = private or (name in private_keys() and not foreign)
                    stack.append((value, hidden, foreign or name in _FOREIGN))


def _without_login(value: str) -> str:
    """An address without user, password and parameters; any other value as it is."""
    if "://" not in value:
        return value
    try:
        parts = urlsplit(value)
    except ValueError:
        return REDACTED
    place = f"{REDACTED}@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    return urlunsplit(parts._replace(netloc=place, query=REDACTED if parts.query else "", fragment=""))
