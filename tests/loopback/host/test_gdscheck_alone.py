"""gdscheck's report without gdscheck: the host program opens libcufile itself and reads its log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import __main__ as host
from gdsdeploy.host.libcufile import errors as cufile_errors
from gdsdeploy.zipapp import hostapp
from tests.cufile import gdschecks, libraries


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zipapp") / "gdsdeploy-host.pyz"
    hostapp.build(path)
    return path


def report(zipapp: Path, version: str, *words: str, **options: Any) -> dict[str, Any]:
    """The JSON object that the zipapp prints where this version of libcufile is the one that the loader finds."""
    argv = [sys.executable, str(zipapp), "gdscheck", "--json", *words]
    done = gdschecks.started(argv, version, **options)
    assert done.status == 0, done.text
    document: dict[str, Any] = json.loads(done.text)
    return document


@pytest.mark.parametrize("version", ["1.4.0.31", "1.9.1.3"])
def test_without_nvidia_fs_everything_is_compat_and_the_reasons_are_told(
    version: str, zipapp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUFILE_LOGGING_LEVEL", "ERROR")
    document = report(zipapp, version, proc=gdschecks.NO_NVIDIA_FS)
    assert document["file"].endswith("/libcufile.so.0")
    assert (document["kind"], document["verdict"]) == ("cufile.log", "compat")
    assert document["opened"] == {"error": 0, "name": None, "cuda_error": 0, "hung": False}
    assert document["reasons"] == [
        "the library sees no nvidia-fs, without which it examines no GPU",
    ]
    assert document["config"]["properties.max_direct_io_size_kb"] == 1024
    assert not any(row["supported"] for row in document["storage"].values())


def test_a_configuration_that_is_refused_is_told_though_it_is_not_logged(zipapp: Path) -> None:
    document = report(zipapp, "1.9.1.3", config='{"properties": {"use_poll_mode": 1}}')
    assert (document["verdict"], document["opened"]["error"], document["opened"]["name"]) == ("refused", -22, "EINVAL")
    assert document["reasons"][0].startswith("the value of properties.use_poll_mode has a wrong type")


def test_a_library_that_never_returns_is_ended(zipapp: Path) -> None:
    """Without CUDA and without /proc/modules, as in some containers, releases from 1.16 spin."""
    nothing = {**gdschecks.NO_NVIDIA_FS, "modules": None}
    document = report(zipapp, "1.20.0.107", "--timeout", "2", libcuda=False, proc=nothing)
    assert (document["verdict"], document["complete"]) == ("unknown", False)
    assert document["opened"] == {"error": None, "name": None, "cuda_error": None, "hung": True}
    assert document["reasons"][0].startswith("cuFileDriverOpen did not return")
    assert not any(row["supported"] for row in document["storage"].values())


@pytest.mark.parametrize("version", libraries.RELEASES)
def test_without_libcuda_old_releases_give_up_and_new_ones_serve_host_memory(version: str, zipapp: Path) -> None:
    document = report(zipapp, version, libcuda=False, proc=gdschecks.NO_NVIDIA_FS)
    if tuple(int(part) for part in version.split(".")[:2]) < (1, 16):
        assert (document["verdict"], document["opened"]["error"]) == ("refused", 5033)
        assert document["opened"]["name"] == "CU_FILE_NVFS_SETUP_ERROR"
        assert document["reasons"][0].startswith("libcuda.so.1 is missing or too old: missing cuda symbols")
    else:
        assert (document["verdict"], document["opened"]["error"], document["release"]) == ("compat", 0, version)
        assert document["reasons"] == ["CUDA or a GPU is missing: the library serves host memory only"]
        assert document["config"]["execution.max_io_threads"] == 8


def test_text_names_the_library_that_was_asked(zipapp: Path) -> None:
    library = libraries.library("1.9.1.3").path.resolve()
    argv = [sys.executable, str(zipapp), "gdscheck", "--library", str(library)]
    done = gdschecks.started(argv, "1.9.1.3", proc=gdschecks.HOOKS, sys_files=gdschecks.SYSFS)
    assert (done.status, done.text.splitlines()[:2]) == (
        0,
        [f"{library}: direct", "  a direct path is offered for NVMe, NVMeOF"],
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--library", "/nowhere/libcufile.so.0"), "libcufile can't be opened: /nowhere/libcufile.so.0: cannot open"),
        (("--library", "/etc/passwd"), "libcufile can't be opened: /etc/passwd: "),
        (("--timeout", "0"), "'0' isn't a number of seconds above 0 and up to 3600"),
        (("--timeout", "soon"), "'soon' isn't a number of seconds above 0 and up to 3600"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = host.main(["gdscheck", *words])
    except SystemExit as end:
        status = int(str(end.code))
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("version", libraries.RELEASES)
def test_codes_that_releases_return_are_those_of_the_table(version: str) -> None:
    """A refused configuration is -22 up to 1.18 and 5002 since; an unused code would be no entry."""
    error = libraries.library(version).ask('{"properties": {').error
    new = tuple(int(part) for part in version.split(".")[:2]) >= (1, 19)
    assert error == (5002 if new else -22)
    (entry,) = cufile_errors.lookup(str(error))
    assert entry.name == ("CU_FILE_DRIVER_INVALID_PROPS" if new else "EINVAL")


@pytest.mark.parametrize("version", ["1.4.0.31", "1.15.1.6", "1.20.0.107"])
@pytest.mark.parametrize(
    ("config", "proc", "name"),
    [
        (gdschecks.DIRECT_ONLY, gdschecks.NO_NVIDIA_FS, "CU_FILE_DRIVER_NOT_INITIALIZED"),
        (gdschecks.SECTIONS, {"driver/nvidia-fs/version": "version: 3.1\n"}, "CU_FILE_DRIVER_VERSION_MISMATCH"),
    ],
    ids=["no-nvidia-fs", "version"],
)
def test_the_code_that_comes_back_has_its_name(
    version: str, config: str, proc: dict[str, str | None], name: str, zipapp: Path
) -> None:
    document = report(zipapp, version, config=config, proc=proc)
    assert (document["verdict"], document["opened"]["name"]) == ("refused", name)
    assert name in [error["name"] for error in document["errors"]]
