"""The web server of a lab's repositories."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.files import folders
from gdslab import lifecycle, process, records
from gdslab.errors import LabUnavailable
from gdslab.server import Server
from gdslab.state import Lab, port_in_use, recorded_ports


@pytest.fixture
def lab(home: Path) -> Iterator[Lab]:
    """A lab with a kit of one file, and no hosts."""
    kit = home / "cache/lab/kit-x"
    (kit / "ubuntu").mkdir(parents=True)
    (kit / "ubuntu/file").write_text("content")
    records.write_json(kit / "kit.json", {"keys": {"ubuntu": "A" * 40}})
    dev = Lab("dev")
    dev.write({"os": "ubuntu-24.04", "release": "bookworm", "hosts": []})
    dev.add_server(kit)
    yield dev
    lifecycle.down(dev)


def of(lab: Lab) -> Server:
    server = lab.server
    assert server is not None
    return server


def start(lab: Lab) -> Server:
    server = of(lab)
    server.start(port_in_use(server.port))
    return server


def test_it_serves_until_the_lab_is_taken_down(lab: Lab) -> None:
    server = start(lab)
    with urllib.request.urlopen(f"{server.uri}/ubuntu/file") as answer:
        assert answer.read() == b"content"
    first = server.process()
    assert first is not None
    assert start(lab).process() == first, "a running server stays"
    assert server.describe() == {"uri": server.uri, "running": True}
    lifecycle.down(lab)
    assert not process.alive(first)
    assert not port_in_use(server.port)


def test_a_server_that_ended_starts_again_on_its_port(lab: Lab) -> None:
    server = start(lab)
    first = server.process()
    assert first is not None
    process.stop(first)
    assert not server.running()
    assert start(lab).port == server.port
    assert server.running()


def test_a_server_that_was_not_recorded_is_found(lab: Lab) -> None:
    server = start(lab)
    first = server.process()
    (lab.directory / "repositories.json").unlink()
    assert of(lab).process() == first
    assert start(lab).process() == first


def test_a_port_of_another_program(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", of(lab).port)), pytest.raises(LabUnavailable, match="another program"):
        start(lab)
    assert of(lab).port in recorded_ports()


def test_a_kit_that_was_deleted(lab: Lab, home: Path) -> None:
    folders.remove_tree(home / "cache/lab/kit-x", within=home)
    with pytest.raises(LabUnavailable, match="were deleted"):
        start(lab)
    lifecycle.down(lab)
    assert not lab.exists()
