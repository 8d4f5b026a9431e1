"""What is collected for boot.arguments: parameters that the expectation names, and entries of the boot loader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host.evidence import kernel, request_for
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.kernel import configured, shown_parameters
from gdsdeploy.host.facts.unknown import Unknown
from tests.unit.host.apply.boot_hosts import OLDER, RELEASE, grub, rhel, systemd_boot
from tests.unit.host.kmod.kmod_root import EXPECTED

PATH = "sys/module/nvme_core/parameters/multipath"


def collected(root: Path, parameters: dict[str, str]) -> Document:
    recorder = Recorder(root=str(root))
    request = request_for(replace(EXPECTED, module_parameters=parameters))
    kernel.collect_kernel(recorder, request)
    kernel.collect_boot(recorder, request)
    return Document(recorder.finish())


@pytest.mark.parametrize("host", [rhel, systemd_boot], ids=["entries of RHEL", "entries of systemd-boot"])
def test_entries(tmp_path: Path, host: object) -> None:
    document = collected(host(tmp_path), {})  # type: ignore[operator]
    words = configured(document, RELEASE)
    assert not isinstance(words, Unknown)
    assert [entry[0] for entry in words] == ["root=UUID=0f3c"], "of the locked kernel only"
    everything = configured(document, "9.9")
    assert not isinstance(everything, Unknown)
    assert len(everything) == 2, "neither the rescue image nor another system"


def test_grub_cfg(tmp_path: Path) -> None:
    words = configured(collected(grub(tmp_path), {}), OLDER)
    assert words == (("root=UUID=0f3c", "ro", "quiet", "splash"),)


def test_parameters_of_the_expectation_and_no_other_files(tmp_path: Path) -> None:
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_text("N\n")
    (tmp_path / "sys/secret").write_text("hidden\n")
    names = {"nvme-core.multipath": "N", "nvme_core.other": "1", "../../secret.x": "1", "a/../../secret": "1"}
    document = collected(tmp_path, names)
    shown = shown_parameters(document, names)
    assert (shown["nvme-core.multipath"], shown["nvme_core.other"]) == ("N", None)
    assert isinstance(shown["../../secret.x"], Unknown)
    assert isinstance(shown["a/../../secret"], Unknown)
    assert [path for path in document.paths("files") if "secret" in path] == []


def test_a_host_without_a_boot_loader(tmp_path: Path) -> None:
    assert isinstance(configured(collected(tmp_path, {}), RELEASE), Unknown)
