"""A provisioned Debian 13 machine, for the real apt, with repositories that want to move its stack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pins import cudarepo
from tests.pins.aptmachine import AptMachine
from tests.pins.rendering import host_variables
from tests.repos.archive import Archive, Key, Server, Suite, serve
from tests.repos.stack import SURROUNDINGS, TRIXIE, Stanza, package


@pytest.fixture(autouse=True)
def _loopback_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="session")
def signing_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """Signs all repositories of these tests."""
    key = Key.generate(tmp_path_factory.mktemp("pins") / "home", "pins")
    yield key
    key.forget()


@pytest.fixture(scope="session")
def variables() -> dict[str, Any]:
    """What the roles are given for the lab's host, which builds its own modules here and so has the most packages."""
    return host_variables()


@pytest.fixture(scope="session")
def installed(variables: dict[str, Any]) -> list[Stanza]:
    """The locked packages with the relations that they have, and what they lean on."""
    stanzas = {stanza["Package"]: stanza for stanza in TRIXIE}
    locked = []
    for pin in variables["gds_repo_pins"]:
        stanza = stanzas.get(pin["package"], {})
        relations = {
            k.lower().replace("-", "_"): v for k, v in stanza.items() if k in ("Depends", "Provides", "Source")
        }
        locked.append(package(pin["package"], pin["version"], **relations))
    names = {stanza["Package"] for stanza in locked}
    around = [dict(stanza) for stanza in SURROUNDINGS if stanza["Package"] not in names]
    for stanza in around:
        if stanza["Package"] == "python3":
            stanza["Multi-Arch"] = "allowed"
    return [*locked, *around, package("apt", "3.0.3"), package("linux-image-amd64", "6.12.94-1")]


@pytest.fixture(scope="session")
def newer(installed: list[Stanza], variables: dict[str, Any]) -> list[Stanza]:
    """What a security update brings: a newer build of everything, and a kernel on which the driver does not compile."""
    moved = [
        {**stanza, **package(stanza["Package"], stanza["Version"] + "+deb13u9"), "Depends": "libc6"}
        for stanza in installed
    ]
    release = "6.12.107+deb13-amd64"
    images = [package(name, "6.12.107-1") for name in (f"linux-image-{release}", f"linux-headers-{release}")]
    meta = package("linux-image-amd64", "6.12.107-1", depends=f"linux-image-{release} (= 6.12.107-1)")
    return [*(stanza for stanza in moved if stanza["Package"] != "linux-image-amd64"), *images, meta]


@pytest.fixture(scope="session")
def served(
    tmp_path_factory: pytest.TempPathFactory, signing_key: Key, installed: list[Stanza], newer: list[Stanza]
) -> Iterator[Server]:
    """The distribution's archive below /debian, NVIDIA's repository below /cuda."""
    www = tmp_path_factory.mktemp("www")
    archive = Archive(www / "debian")
    archive.publish(Suite("trixie", {"main": installed}), signing_key)
    archive.publish(Suite("trixie-security", {"main": newer}, origin="Debian"), signing_key)
    Archive(www / "cuda").publish(cudarepo.suite(), signing_key)
    with serve(www) as server:
        yield server


@pytest.fixture(scope="session")
def provisioned_once(
    tmp_path_factory: pytest.TempPathFactory, served: Server, signing_key: Key, installed: list[Stanza]
) -> AptMachine:
    machine = AptMachine.make(tmp_path_factory.mktemp("machine") / "root", installed)
    for suite in ("trixie", "trixie-security"):
        machine.source(suite, f"deb [signed-by={signing_key.keyring}] {served.uri}/debian {suite} main")
    machine.run("apt-get", "update")
    return machine


@pytest.fixture(scope="session")
def with_cuda_once(
    tmp_path_factory: pytest.TempPathFactory, provisioned_once: AptMachine, served: Server, signing_key: Key
) -> AptMachine:
    machine = provisioned_once.copy(tmp_path_factory.mktemp("machine") / "root")
    machine.source("cuda", f"deb [signed-by={signing_key.keyring}] {served.uri}/cuda ./")
    machine.run("apt-get", "update")
    return machine


@pytest.fixture
def machine(provisioned_once: AptMachine, tmp_path: Path) -> AptMachine:
    """The stack installed, the distribution's archive configured, and nothing pinned."""
    return provisioned_once.copy(tmp_path / "machine")


@pytest.fixture
def with_cuda(with_cuda_once: AptMachine, tmp_path: Path) -> AptMachine:
    """The same, and the administrator has added NVIDIA's repository with what cuda-keyring brings."""
    machine = with_cuda_once.copy(tmp_path / "machine")
    machine.preferences("cuda-repository-pin-600", cudarepo.PIN_600)
    return machine
