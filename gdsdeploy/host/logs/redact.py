"""Pasted text without what identifies a site, with the same stand-in for the same thing in all files together."""

from __future__ import annotations

import re
from typing import Iterable, Iterator, Sequence, Tuple

from ..gdscheck.pasted import plain
from ..io.redact import USER, Redactor

HOST = "host"
#: Where a line names the host that wrote it: the journal, a shell's prompt, NCCL, uname -a, a host's own file.
_HOSTS = (
    re.compile(
        r"(?m)^\s*(?:[A-Z][a-z]{2} +\d+ [\d:]+|\d{4}-\d\d-\d\d[T ]\S+) (?P<host>[A-Za-z][\w.-]*)"
        r" [\w.@/-]+(?:\[\d+\])?: "
    ),
    re.compile(r"(?m)^\s*(?P<host>[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] NCCL "),
    re.compile(r"(?<![\w.])[\w-]+@(?P<host>[A-Za-z][\w.-]*)(?::| |\]|$)"),
    re.compile(r"(?m)^\s*Linux (?P<host>[A-Za-z][\w.-]*) \d+\.\d+"),
    re.compile(r"(?i)\bhost ?name\s*[:=] *(?P<host>[A-Za-z][\w.-]*)"),
)
#: A login name before a host's, in a prompt, or in a line that sudo or sshd wrote.
_USERS = (
    re.compile(r"(?m)^\s*\[?(?P<user>[a-z_][\w-]*)@[A-Za-z][\w.-]*(?:[: \]])"),
    re.compile(r"\buser[ =](?P<user>[a-z_][\w-]+)\b"),
)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}(?![\w-])")
#: Names of a domain: three labels of which the last is a top-level domain, or one of an own network.
_DOMAIN = re.compile(
    r"(?<![\w./@-])(?:[A-Za-z][\w-]*\.)+[\w-]+\.(?:com|net|org|edu|gov|mil|io|ai|cloud|dev|internal|local|lan|corp|intra|[a-z]{2})(?![\w./-])"
)
#: Of GPUs, disks and ports, beside what every bundle has: ``GPU-…`` is a UUID; WWNs and InfiniBand's GUIDs.
_WWN = re.compile(r"(?<![\w.])(?:0x[0-9a-fA-F]{16}|wwn-0x[0-9a-fA-F]{16,32}|nvme-[\w-]*_[A-Z0-9]{8,})(?![\w])")
#: Words that stand where a host's name does and name none.
_NO_HOSTS = frozenset({"localhost", "kernel", "debian", "ubuntu", "lists.debian.org"})
#: Documents of others, which a reader has to find.
_PUBLIC = re.compile(
    r"(?:^|\.)(?:nvidia|github|githubusercontent|kernel|debian|ubuntu|canonical|redhat|mellanox|docker|rockylinux|pypi|python|launchpad|fedoraproject)\.\w+$|\.(?:py|so|ko|sh|cc|js|go|rs|md|in)$"
)


def redacted(contents: Sequence[Tuple[str, bytes]]) -> str:
    """The files, one after the other, as text without addresses, serial numbers and names.

    PCI addresses, versions and names of modules stay.
    """
    texts = [plain(data) for _, data in contents]
    redactor = Redactor(versions=versions(texts))
    for text in texts:
        learn(redactor, text)
    heads = [f"==> {redactor.text(name)} <==\n" if len(contents) > 1 else "" for name, _ in contents]
    return "".join(head + _ended(redactor.text(text)) for head, text in zip(heads, texts))


def learn(redactor: Redactor, text: str) -> None:
    """Have ``redactor`` take out the names that ``text`` shows to be names, wherever they stand."""
    for kind, pattern in (("mail address", _MAIL), ("device", _WWN)):
        for word in dict.fromkeys(pattern.findall(text)):
            redactor.learn(kind, word)
    for kind, word in _names(text):
        redactor.learn(kind, word)
        if kind == HOST and "." in word:
            for name in re.findall(rf"(?<![\w.-])(?:[\w-]+\.)+{re.escape(word)}(?![\w-])", text):
                redactor.learn(HOST, name)


def _names(text: str) -> Iterator[Tuple[str, str]]:
    for pattern in _HOSTS:
        for match in pattern.finditer(text):
            name = match["host"].rstrip(".")
            if name.lower() not in _NO_HOSTS and not _PUBLIC.search(name):
                yield HOST, name
                if "." in name:
                    yield HOST, name.partition(".")[0]
    for match in (match for pattern in _USERS for match in pattern.finditer(text)):
        yield USER, match["user"]
    domains = (address.partition("@")[2] for address in _MAIL.findall(text))
    for name in (*domains, *_DOMAIN.findall(text)):
        if not _PUBLIC.search(name):
            yield HOST, name


def versions(texts: Iterable[str]) -> Iterator[str]:
    """Numbers of four parts beside a word that makes them a version."""
    words = re.compile(
        r"(?i)(?:version|release|libcufile|nvidia[-_]fs|cuda|driver|firmware|vbios)\W{0,20}(?:\d+\.){3}\d+\S*"
    )
    for text in texts:
        yield from words.findall(text)


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
