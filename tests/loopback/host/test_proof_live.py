"""The program that reads through cuFile, with libraries that do what a GPU's would, or what one can do to a program.

What real ones answer is recorded in tests/evidence/gpu.  Here libcuda hands out host memory, and libcufile reads with
pread, so that everything else is real: the scratch file, the children, their limits, and what is left behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.libcufile import probe
from gdsdeploy.host.subjects import proof
from gdsdeploy.host.subjects.proof import BROKEN, COMPAT, Proof, proofs
from tests.patience import SURELY

CUDA = """
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = getenv("CUDA_VISIBLE_DEVICES") ? 0 : 2; return 0; }
int cuGetErrorName(int error, const char **to) { *to = "CUDA_ERROR_DEVICES_UNAVAILABLE"; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetPCIBusId(char *to, int length, int device) { strcpy(to, device ? "0000:1B:00.0" : "0000:1A:00.0"); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(intptr_t)(device + 1);
    return device && getenv("REFUSES") ? 46 : 0;
}
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemAlloc_v2(uint64_t *to, size_t size) { return posix_memalign((void **)to, 4096, size); }
int cuMemFree_v2(uint64_t at) { free((void *)at); return 0; }
int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t size) { memset((void *)at, value, size); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
"""  # noqa: E501
HEAD = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/types.h>
typedef struct { int err; int cu_err; } Error;
typedef struct { int type; ssize_t fd; void *operations; } Description;
static const Error good = {0, 0};
/* What the configuration says that was laid over the host's. */
static int strict(void) {
    char text[4096] = "";
    FILE *file = fopen(getenv("CUFILE_ENV_PATH_JSON"), "r");
    fread(text, 1, sizeof text - 1, file);
    fclose(file);
    return strstr(text, "\\"allow_compat_mode\\": false") != NULL;
}
static void logged(const char *words) {
    FILE *file = fopen(getenv("CUFILE_LOGFILE_PATH"), "a");
    fprintf(file, " 21-11-2026 07:00:00:1 [pid=1 tid=1] %s\\n", words);
    fclose(file);
}
Error cuFileBufRegister(void *at, size_t size, int flags) { return good; }
Error cuFileBufDeregister(void *at) { return good; }
/* As the real one does, it opens the file by name once more. */
Error cuFileHandleRegister(void **handle, Description *from) {
    char link[64], name[4096] = "";
    sprintf(link, "/proc/self/fd/%zd", from->fd);
    readlink(link, name, sizeof name - 1);
    *handle = (void *)from->fd;
    return access(name, R_OK) ? (Error){5031, 0} : good;
}
void cuFileHandleDeregister(void *handle) {}
Error cuFileDriverClose(void) { return good; }
"""
OPENS = "Error cuFileDriverOpen(void) { return good; }\n"
WRITES = """
ssize_t cuFileWrite(void *handle, char *from, size_t size, off_t at, off_t into) {
    logged("TRACE  cufio_core:3005 write : Updating stats devPtr: 0x7 p2p mode: 0 compat: 1 size: 1048576");
    return pwrite((int)(ssize_t)handle, from + into, size, at);
}
"""
READ = """
ssize_t cuFileRead(void *handle, char *to, size_t size, off_t at, off_t into) {
    logged("TRACE  cufio_core:3005 read : Updating stats devPtr: 0x7 p2p mode: 0 compat: 1 size: 1048576");
    return pread((int)(ssize_t)handle, to + into, size, at);
}
"""
READS = READ + WRITES
#: As a machine without nvidia-fs answers: see tests/evidence/gpu.
REFUSES = "Error cuFileDriverOpen(void) { return strict() ? (Error){5001, 0} : good; }\n"


def compiled(folder: Path, name: str, source: str) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed"
    (folder / "lib.c").write_text(source)
    subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", folder / name, folder / "lib.c"], check=True)
    return str(folder / name)


@pytest.fixture(autouse=True)
def _cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path, "libcuda.so.1", CUDA)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    (tmp_path / "mount").mkdir()
    return tmp_path / "mount"


def tried(
    monkeypatch: pytest.MonkeyPatch, source: str, mount: Path, timeout: float = 20.0
) -> tuple[dict[str, Any], tuple[Proof, ...]]:
    """The runs, and what they prove for the one mount."""
    monkeypatch.setattr(probe, "LIBRARIES", (compiled(mount.parent, "libcufile.so.1.2.3", source),))
    recorder = Recorder()
    proof.prove(recorder.command, {str(mount): ""}, {}, timeout)
    assert list(mount.iterdir()) == [], "the scratch file is gone"
    commands = recorder.document["commands"]
    return commands, proofs(Document({"commands": commands}))[str(mount)]


def test_a_read_that_needs_compat_mode(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands, results = tried(monkeypatch, HEAD + REFUSES + READS, mount)
    assert list(commands) == ["cufile-proof", "cufile-proof-compat"]
    assert [(result.gpu, result.path) for result in results] == [("0000:1a:00.0", COMPAT), ("0000:1b:00.0", COMPAT)]
    assert "cuFileDriverOpen returned 5001 (CU_FILE_DRIVER_NOT_INITIALIZED)" in results[0].how
    assert any("compat: 1" in line for line in results[0].evidence)


def test_one_that_succeeds_without_anything_to_show_for_it_is_not_proven(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, results = tried(monkeypatch, HEAD + OPENS + READS.replace("compat: 1", "compat: 0"), mount)
    assert list(commands) == ["cufile-proof"], "no second try where the first did"
    assert isinstance(results[0].path, Unknown)
    assert "nvidia-fs shows no counters" in results[0].path.reason


def test_a_gpu_that_cuda_refuses_is_not_proven_and_none_is_hidden(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("REFUSES", "1")
    _, (first, second) = tried(monkeypatch, HEAD + REFUSES + READS, mount)
    assert (first.path, second.gpu) == (COMPAT, "0000:1b:00.0")
    assert isinstance(second.path, Unknown)
    assert "CUDA error 46 (CUDA_ERROR_DEVICES_UNAVAILABLE)" in second.path.reason


#: What goes wrong → libcufile's source, the paths of the first results, and words of how each is known.
FAULTS = {
    "compat mode is forced": (HEAD + OPENS + READS, [COMPAT, COMPAT], ["it is forced"]),
    "the read returns other bytes": (
        HEAD + OPENS + READ.replace("return pread", "ssize_t n = pread").replace("at);", "at); to[99] ^= 1; return n;")
        + WRITES,
        [BROKEN], ["other bytes came back than were written"],
    ),
    "the read crashes": (
        HEAD + OPENS + READS.replace("logged(", "*(volatile int *)0 = 1; logged("),
        [BROKEN, BROKEN], ["cuFile was ended by signal 11, during the read", "before this read"],
    ),
    "it crashes while the file has its name": (
        HEAD.replace("return access(", "abort(); return access(") + OPENS + READS, [BROKEN], ["signal 6"],
    ),
    "the read has an error": (
        HEAD + OPENS + "ssize_t cuFileRead() { return -5027; }\n" + WRITES, [BROKEN], ["cuFileRead returned 5027 ("],
    ),
    "the write has an error": (
        HEAD + OPENS + READS.replace("return pwrite(", "return -5008; ("),
        [COMPAT, BROKEN], ["", "cuFileWrite returned 5008 ("],
    ),
    "the write leaves other bytes": (
        HEAD + OPENS + READS.replace("return pwrite(", "from[7] ^= 1; return pwrite("),
        [COMPAT, BROKEN], ["", "other bytes came back than were written"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_shown(fault: str, mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, paths, words = FAULTS[fault]
    _, results = tried(monkeypatch, source, mount)
    assert [result.path for result in results[: len(paths)]] == paths
    assert all(word in result.how for word, result in zip(words, results, strict=False))
    if paths == [COMPAT, BROKEN]:
        assert [result.operations for result in results[:2]] == [("read",), ("write",)]


def test_a_library_that_never_returns_is_ended(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.monotonic()
    source = HEAD + "Error cuFileDriverOpen(void) { for (;;) pause(); }\n" + READS
    commands, results = tried(monkeypatch, source, mount, 1.5)
    assert time.monotonic() - begin < SURELY
    assert {run["status"] for run in commands.values()} == {124}
    assert [result.path for result in results] == [BROKEN, BROKEN]
    assert "did not return in time" in results[0].how


def test_a_mount_that_cannot_be_written_to_is_not_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIBRARIES", (compiled(tmp_path, "libcufile.so.1.2.3", HEAD + OPENS + READS),))
    recorder = Recorder()
    proof.prove(recorder.command, {"/proc": ""}, {})
    results = proofs(Document({"commands": recorder.document["commands"]}))["/proc"]
    assert isinstance(results[0].path, Unknown)
    assert "no scratch file could be made" in results[0].path.reason


def test_a_mount_that_is_gone_neither_ends_nor_holds_the_tries(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder becomes a file while the library has it, and its server never answers to the removal."""
    (mount.parent / "other").mkdir()
    gone = f'if (!strncmp(name, "{mount}/", strlen("{mount}/"))) system("mv {mount} {mount}.gone; touch {mount}");'
    source = (HEAD + OPENS + READS).replace("*handle = ", gone + "*handle = ")
    monkeypatch.setattr(probe, "LIBRARIES", (compiled(mount.parent, "libcufile.so.1.2.3", source),))
    monkeypatch.setattr(proof, "UNLINK_SECONDS", 0.3)
    real = os.unlink

    def unlink(path: str, **more: Any) -> None:
        time.sleep(600 if str(path).startswith(str(mount)) else 0)
        real(path, **more)

    monkeypatch.setattr(os, "unlink", unlink)
    recorder, begin = Recorder(), time.monotonic()
    proof.prove(recorder.command, {str(mount): "", str(mount.parent / "other"): ""}, {})
    commands = recorder.document["commands"]
    results = proofs(Document({"commands": commands}))
    assert commands["cufile-proof"]["status"] == 0
    assert [one.path for one in results[str(mount.parent / "other")]] == [COMPAT, COMPAT]
    assert time.monotonic() - begin < SURELY


def test_without_libraries_nothing_is_proven(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    recorder = Recorder()
    monkeypatch.setattr(probe, "LIBRARIES", ("/nowhere/libcufile.so.0",))
    proof.prove(recorder.command, {str(mount): ""}, {})
    (result,) = proofs(Document({"commands": recorder.document["commands"]}))[str(mount)]
    assert isinstance(result.path, Unknown)
    assert result.path.reason.startswith("libcufile or libcuda was not loaded")


def test_a_configuration_elsewhere_is_laid_over_whole(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"properties": {"allow_compat_mode": true, "io_batchsize": 64}, /* why */ "denylist": {"drivers": []}}'
    config = proof.configuration(text, "/opt/cufile.json")
    assert proof.configuration(text, "/etc/cufile.json") == {}
    source = OPENS.replace("return good", 'execlp("cp", "cp", getenv("CUFILE_ENV_PATH_JSON"), getenv("COPY"), NULL)')
    copy = mount.parent / "copy.json"
    monkeypatch.setenv("COPY", str(copy))
    monkeypatch.setattr(probe, "LIBRARIES", (compiled(mount.parent, "libcufile.so.1", HEAD + source + READS),))
    proof.prove(lambda *words, **more: Recorder().command(*words, **more), {str(mount): ""}, config)
    expected = '{"properties": {"allow_compat_mode": true, "io_batchsize": 64}, "denylist": {"drivers": []}}'
    assert copy.read_text() == expected, "the second try allows compat mode, and the rest is the host's"


def test_the_program_is_found_in_an_archive_as_well(tmp_path: Path) -> None:
    from gdsdeploy.zipapp import hostapp

    hostapp.build(tmp_path / "host.pyz")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from gdsdeploy.host.subjects.proof import source; print(source())"
    )
    argv = ["/usr/bin/python3", "-I", "-c", code, str(tmp_path / "host.pyz")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.rstrip("\n") == proof.source().rstrip("\n")
