"""Asking real libraries: every release answers, in order, in its own namespace, and none can hold the caller up."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from gdsdeploy import run
from gdsdeploy.errors import MissingProgram
from gdsdeploy.host.facts.cufile import effective_values
from tests.cufile import libraries
from tests.cufile import library as asking
from tests.cufile.library import Library, LibraryUnusable

H200 = Path(__file__).parents[2] / "evidence" / "h200"
BATCH = '{"properties": {"io_batchsize": %d}}'


@pytest.fixture(scope="module")
def newest() -> Library:
    return libraries.library("1.20.0.107")


@pytest.mark.parametrize("version", libraries.RELEASES)
def test_every_release_answers(version: str) -> None:
    library = libraries.library(version)
    assert library.version == version
    comment, typo, wrong, missing, broken, folder = library.ask_all(
        [
            "// of ours\n" + BATCH % 7,
            '{"properties": {"io_batch_size": 5000}}',
            BATCH % 5000,
            '{"denylist": {"mounts": ["/nowhere"]}}',
            '{"properties": {',
            '{"logging": {"dir": "/nowhere"}}',
        ]
    )
    assert (comment.accepted, comment.reason, comment.error, comment.hung) == (True, None, 0, False)
    assert comment.effective["properties.max_batch_io_size"] == "7"
    assert typo.accepted is True
    assert typo.effective["properties.max_batch_io_size"] == "128"
    assert (wrong.accepted, wrong.key, wrong.effective) == (False, "properties.io_batchsize", {})
    assert wrong.reason == "invalid directIO size (KB) specified: 5000 min: 1 max: 256"
    assert missing.key == "denylist.mounts"
    assert missing.reason is not None
    assert "/nowhere" in missing.reason
    assert (broken.accepted, broken.key) == (False, None)
    assert broken.reason == "parsing error, invalid json config /etc/cufile.json"
    assert (folder.accepted, folder.key) == (False, "logging.dir")


def test_a_file_that_ends_the_process_is_not_accepted() -> None:
    fatal = '{"properties": {"per_buffer_cache_size_kb": 0}}'
    answer = libraries.library("1.9.1.3").ask(fatal)
    assert (answer.accepted, answer.error, answer.hung, answer.effective) == (False, None, False, {})
    assert answer.reason == "it ends the process (SIGFPE)"
    aborted = libraries.library("1.20.0.107").ask('{"properties": 5}')
    assert aborted.accepted is False
    assert str(aborted.reason).endswith("requires objectValue or nullValue; it ends the process (SIGABRT)")


def test_many_answers_come_in_order_and_do_not_mix(newest: Library) -> None:
    answers = list(newest.ask_all((BATCH % number for number in range(1, 258)), jobs=3))
    assert [a.effective["properties.max_batch_io_size"] for a in answers[:-1]] == [str(n) for n in range(1, 257)]
    assert answers[-1].accepted is False


def test_lists_and_mount_tables_are_values(newest: Library, tmp_path: Path) -> None:
    folder = tmp_path / "a mount"
    folder.mkdir()
    table = f'{{"{folder}": {{"rdma_dev_addr_list": ["192.0.2.1", "192.0.2.2"]}}}}'
    answer = newest.ask(f'{{"fs": {{"nfs": {{"mount_table": {table}}}}}}}')
    assert answer.effective["fs.nfs.mount_table"] == f"{folder}: 192.0.2.1 192.0.2.2"
    assert answer.effective["properties.posix_pool_slab_size_kb"] == "4 1024 16384"


def test_the_machine_and_the_callers_variables_stay_out_of_it(
    newest: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUFILE_FORCE_COMPAT_MODE", "true")
    overlay = tmp_path / "overlay.json"
    overlay.write_text("{ broken")
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", str(overlay))
    monkeypatch.chdir(tmp_path)
    before = Path("/etc/cufile.json").exists(), Path("/proc/driver/nvidia-fs").exists()
    answer = newest.ask("{}")
    assert answer.accepted is True
    assert answer.effective["properties.force_compat_mode"] == "false"
    assert (Path("/etc/cufile.json").exists(), Path("/proc/driver/nvidia-fs").exists()) == before
    assert list(tmp_path.iterdir()) == [overlay], "nothing is left in the current folder"


def test_a_user_namespace_does_as_well(newest: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--user", "--map-root-user", "--mount", "--propagation", "private")
    monkeypatch.setattr(asking, "_namespace", lambda: flags)
    assert newest.ask(BATCH % 9).effective["properties.max_batch_io_size"] == "9"


@pytest.mark.parametrize("folder", ["/nowhere", "/nowhere/at/all", "/var/nowhere/log", "/proc/nowhere"])
def test_folders_of_another_machine_can_be_shown(newest: Library, folder: str) -> None:
    document = f'{{"logging": {{"dir": "{folder}"}}, "denylist": {{"mounts": ["{folder}"]}}}}'
    assert newest.ask(document).key in {"logging.dir", "denylist.mounts"}
    assert newest.ask(document, folders=[folder, "/nowhere/else", "/usr"]).reason is None
    assert not Path(folder).exists()


def compile_library(folder: Path, source: str) -> Library:
    path = folder / "libcufile.so.0"
    head = "#include <stdio.h>\n#include <stdlib.h>\ntypedef struct { int a, b; } E;\n"
    code = f"{head}E cuFileDriverOpen(void) {{ {source} }}"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", path, "-"], input=code.encode(), check=True)
    return Library(path, cuda="standin")


def test_a_library_that_spins_or_dies_is_reported(tmp_path: Path) -> None:
    begin = time.monotonic()
    answers = list(compile_library(tmp_path, 'printf("so far"); for (;;) {}').ask_all(["{}", "{}"], timeout=0.5))
    assert time.monotonic() - begin < 5
    for answer in answers:
        assert (answer.accepted, answer.hung, answer.output, answer.error) == (None, True, ("so far",), None)
        assert 0.5 <= answer.seconds < 3
    died = compile_library(tmp_path, "abort();").ask("{}")
    assert (died.accepted, died.hung, died.error, died.reason) == (False, False, None, "it ends the process (SIGABRT)")


def test_a_child_cannot_fill_the_disk_or_the_memory(tmp_path: Path) -> None:
    flood = 'FILE *f = fopen(getenv("CUFILE_LOGFILE_PATH"), "w"); while (fputs("more\\n", f) >= 0); return (E){7, 0};'
    answer = compile_library(tmp_path, flood).ask("{}")
    assert (answer.error, len(answer.log)) == (7, 4 << 20)
    hungry = "return (E){malloc(1ul << 40) ? 1 : 2, 0};"
    assert compile_library(tmp_path, hungry).ask("{}").error == 2


def test_what_is_no_library_says_so(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library\n" * 100)
    with pytest.raises(LibraryUnusable, match=r"text\.so can't be used: OSError: .*invalid ELF header") as caught:
        Library(tmp_path / "text.so", cuda="standin").ask("{}")
    assert caught.value.hint is not None
    with pytest.raises(LibraryUnusable, match="there is no such library"):
        Library(tmp_path / "none.so").ask("{}")


def test_without_a_compiler_or_a_namespace_the_next_step_is_named(
    newest: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(run.shutil, "which", lambda program, path: None)
        with pytest.raises(MissingProgram) as caught:
            newest.ask("{}")
    assert caught.value.hint is not None
    assert "gcc" in caught.value.hint
    asking._namespace.cache_clear()
    with monkeypatch.context() as patched:
        denied = run.Completed((), 1, "", "unshare: unshare failed: Operation not permitted")
        patched.setattr(run, "run", lambda *_args, **_kwargs: denied)
        with pytest.raises(LibraryUnusable, match="no mount namespace"):
            asking._namespace()


@pytest.mark.parametrize(
    ("log", "count", "expected"),
    [
        ("libcufile-1.15.1-trace.log", 33, ("properties.use_pci_p2pdma", "true")),
        ("libcufile-1.20.0-p2pdma-requested-trace.log", 63, ("properties.use_pci_p2pdma", "true")),
        ("libcufile-1.20.0-compat-not-allowed.log", 0, None),
    ],
)
def test_logs_of_a_host_with_a_gpu_read_the_same(log: str, count: int, expected: tuple[str, str] | None) -> None:
    values = effective_values((H200 / log).read_text())
    assert len(values) == count
    assert expected is None or values[expected[0]] == expected[1]
