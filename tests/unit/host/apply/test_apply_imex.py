"""The nodes file of IMEX: written, taken back, and read again by a service that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.apply import removal
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.errors import HostError
from tests.unit.host.apply.apply_tree import tree
from tests.unit.host.apply.kernel_hosts import apply, check, short
from tests.unit.host.apply.test_loaded import IMEX, Systemd

PATH = "/etc/nvidia-imex/nodes_config.cfg"
NODES = {"imex_nodes": ["10.0.0.1", "fd00::2"]}
WRITE = [("write", PATH, "missing")]


def test_the_file_is_written_once_and_taken_back(tmp_path: Path) -> None:
    before = tree(tmp_path)
    assert short(check(tmp_path, "imex", NODES).changes) == WRITE
    assert tree(tmp_path) == before
    assert short(apply(tmp_path, "imex", NODES).changes) == WRITE
    assert (tmp_path / PATH[1:]).read_text() == "10.0.0.1\nfd00::2\n"
    assert apply(tmp_path, "imex", NODES).changes == []
    removal.remove(ManagedHost(root=str(tmp_path)))
    assert not (tmp_path / "etc/nvidia-imex").exists()


def test_a_file_of_others_stays_or_comes_back(tmp_path: Path) -> None:
    """A scheduler's, on a host without a domain; and one from before the host had a domain."""
    file = tmp_path / PATH[1:]
    file.parent.mkdir(parents=True)
    file.write_text("192.0.2.1\n")
    assert apply(tmp_path, "imex", {}).changes == []
    assert short(apply(tmp_path, "imex", NODES).changes) == [("write", PATH, "content")]
    assert short(check(tmp_path, "imex", {}).changes) == [("write", PATH, "restore")]
    assert short(apply(tmp_path, "imex", {}).changes) == [("write", PATH, "restore")]
    assert file.read_text() == "192.0.2.1\n"
    assert apply(tmp_path, "imex", {}).changes == []


def test_imex_restarts_where_it_runs_with_other_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd(tmp_path, monkeypatch)
    assert short(apply(tmp_path, "imex", NODES).changes) == WRITE
    systemd.active.add(IMEX)
    assert apply(tmp_path, "imex", NODES).changes == []
    more = {"imex_nodes": ["10.0.0.1"]}
    (_, restart) = check(tmp_path, "imex", more).changes
    assert (restart.kind, restart.subject, restart.disruption) == ("restart", IMEX, "module reload")
    assert systemd.commands == []
    apply(tmp_path, "imex", more)
    assert systemd.commands == [["systemctl", "restart", IMEX]]


def test_a_line_that_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="isn't an IP address"):
        apply(tmp_path, "imex", {"imex_nodes": ["10.0.0.1", "tray2 10.0.0.2"]})
