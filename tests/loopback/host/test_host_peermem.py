"""Loading nvidia-peermem: stubs told beforehand, its predecessor out of the way, registered and not only loaded."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gdsdeploy.host.__main__ import main
from gdsdeploy.host.apply.driver_options import Desired, modprobe_conf
from gdsdeploy.host.cli import peermem
from gdsdeploy.host.cli.peermem import PeermemError, load, refuse_stub, unload
from gdsdeploy.host.process import Output
from tests.unit.host.kmod.kmod_elf import write_module

REGISTER = {"ib_register_peer_memory_client": 0x1234, "_printk": 1}


class PeermemHost:
    """A /sys of its own; modprobe and rmmod, which need a kernel, are imitated, and what they were asked is kept."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.asked = root, list[str]()
        self.refused, self.registers, self.client = "", True, "nv_mem"
        self.file = root / "nvidia-peermem.ko"
        monkeypatch.setattr(peermem, "file_of", lambda _name: str(self.file) if self.file.exists() else "")
        monkeypatch.setattr(peermem.process, "run", self.run)
        (root / "sys/kernel/mm/memory_peers").mkdir(parents=True)

    def module(self, imports: dict[str, int]) -> Path:
        write_module(self.file, "nvidia_peermem", imports=imports)
        return self.file

    def load(self, name: str) -> None:
        (self.root / "sys/module" / name).mkdir(parents=True)

    def run(self, argv: list[str], timeout: float) -> Output:
        assert timeout > 0
        self.asked.append(" ".join(argv))
        if self.refused:
            return Output(1, "", f"{argv[0]}: ERROR: {self.refused}\n")
        if argv[0] == "modprobe":
            self.load("nvidia_peermem")
            if self.registers:
                (self.root / "sys/kernel/mm/memory_peers" / self.client).mkdir()
        else:
            (self.root / "sys/module" / argv[1]).rmdir()
        return Output(0, "", "")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeermemHost:
    return PeermemHost(tmp_path, monkeypatch)


def test_a_stub_is_refused_without_asking_the_kernel(machine: PeermemHost) -> None:
    machine.module({"_printk": 1})
    with pytest.raises(PeermemError, match=r"is a stub, built without OFED.*rdma: dmabuf"):
        load(str(machine.root))
    assert machine.asked == []


def test_a_module_that_is_not_there_or_no_module(machine: PeermemHost) -> None:
    with pytest.raises(PeermemError, match=f"there is no nvidia-peermem for kernel {os.uname().release}"):
        load(str(machine.root))
    machine.file.write_text("nothing of the kind")
    with pytest.raises(PeermemError, match="cannot be read"):
        refuse_stub(str(machine.file))


@pytest.mark.parametrize("client", ["nv_mem", "nv_mem_nc"])
def test_it_is_loaded_and_its_registration_is_looked_at(machine: PeermemHost, client: str) -> None:
    machine.module(REGISTER)
    machine.client = client
    done = load(str(machine.root))
    assert (done.changed, done.words) == (True, "nvidia-peermem is loaded, and registered with the RDMA core")
    again = load(str(machine.root))
    assert (again.changed, machine.asked) == (False, ["modprobe nvidia-peermem"])


def test_loaded_without_a_client_is_taken_back(machine: PeermemHost) -> None:
    machine.module(REGISTER)
    machine.registers = False
    with pytest.raises(PeermemError, match="memory_peers has no client: the RDMA core took no client"):
        load(str(machine.root))
    assert machine.asked == ["modprobe nvidia-peermem", "rmmod nvidia_peermem"]


def test_a_kernel_that_shows_no_clients_proves_no_registration(machine: PeermemHost) -> None:
    machine.module(REGISTER)
    machine.registers = False
    (machine.root / "sys/kernel/mm/memory_peers").rmdir()
    (machine.root / "sys/module/ib_uverbs/holders/nvidia_peermem").mkdir(parents=True)
    assert load(str(machine.root)).words.endswith("so its registration is not proven")


def test_nv_peer_mem_makes_way(machine: PeermemHost) -> None:
    machine.module(REGISTER)
    machine.load("nv_peer_mem")
    assert load(str(machine.root)).changed
    assert machine.asked == ["rmmod nv_peer_mem", "modprobe nvidia-peermem"]


def test_what_the_kernel_refuses_is_said_in_its_words(machine: PeermemHost) -> None:
    machine.module(REGISTER)
    machine.refused = "could not insert 'nvidia_peermem': Invalid argument"
    with pytest.raises(PeermemError, match=r"modprobe nvidia-peermem: .*Invalid argument"):
        load(str(machine.root))


def test_it_is_unloaded_by_its_name_in_the_kernel(machine: PeermemHost) -> None:
    assert not unload(str(machine.root)).changed
    machine.load("nvidia_peermem")
    assert unload(str(machine.root)).changed
    assert machine.asked == ["rmmod nvidia_peermem"]
    machine.load("nvidia_peermem")
    machine.refused = "Module nvidia_peermem is in use"
    with pytest.raises(PeermemError, match="in use"):
        unload(str(machine.root))


def test_the_verb_says_it_and_ends_with_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peermem", "unload", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"changed": False, "words": "nvidia-peermem is not loaded"}
    assert main(["peermem", "load"]) == 30, "this machine has no such module"
    assert capsys.readouterr().out.startswith("gdsdeploy-host: there is no nvidia-peermem")


def options(rdma: str, module: str = "nvidia") -> str:
    return modprobe_conf(Desired(kernel_release="", option_module=module, rdma=rdma))


def shown(root: Path, config: str, name: str) -> list[str]:
    """What the real modprobe would do for ``name`` under ``config``."""
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/gds.conf").write_text(config)
    argv = ["modprobe", "-d", str(root), "-C", str(root / "etc/gds.conf"), "--show-depends", "-b", name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return [Path(line.split()[1]).stem if line.startswith("insmod") else line for line in done.stdout.splitlines()]


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    folder = tmp_path / "lib/modules" / os.uname().release
    names = ("nvidia", "nvidia-peermem", "nvidia-current-open-peermem", "ib_core", "ib_uverbs", "nv_peer_mem")
    for name in names:
        (folder / "extra").mkdir(parents=True, exist_ok=True)
        write_module(folder / "extra" / f"{name}.ko", name.replace("-", "_"))
    subprocess.run(["depmod", "-b", str(tmp_path)], check=True, capture_output=True)
    return tmp_path


@pytest.mark.parametrize("name", ["nvidia-peermem", "nvidia-current-open-peermem"])
def test_the_rdma_core_is_loaded_before_it(modules: Path, name: str) -> None:
    config = options("peermem", "nvidia-current-open")
    assert [line.split()[0] for line in shown(modules, config, name)] == ["nvidia", "ib_core", "ib_uverbs", name]


@pytest.mark.parametrize("rdma", ["peermem", "dmabuf"])
def test_its_predecessor_is_not_loaded(modules: Path, rdma: str) -> None:
    assert shown(modules, options("none"), "nv_peer_mem") == ["nv_peer_mem"]
    assert shown(modules, options(rdma), "nv_peer_mem") in ([], ["install /bin/false"], ["install /bin/false "])


def test_where_dma_buf_serves_nothing_loads_it_by_the_way(modules: Path) -> None:
    assert shown(modules, options("dmabuf"), "nvidia-peermem") == []
    assert "nvidia-peermem" not in options("none")
