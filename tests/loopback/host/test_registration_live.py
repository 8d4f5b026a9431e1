"""The program that registers GPU memory with adapters, with stand-ins for libcuda and libibverbs.

The stand-ins hand out host memory and answer as their real counterparts do; what remains real is the program, its
limits, and what its record says.  They can't show what a GPU or an adapter does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts import UndecidedError, Unknown
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.subjects import proof
from gdsdeploy.host.subjects.condition import DMABUF, PEERMEM
from gdsdeploy.host.subjects.peermem import Registration, registrations
from tests.loopback.host.test_proof_live import CUDA, compiled

EXPORTS = """
#include <sys/mman.h>
int cuPointerSetAttribute(const void *value, int attribute, uint64_t at) { return 0; }
int cuMemGetHandleForAddressRange(void *to, uint64_t at, size_t size, int type, unsigned long long flags) {
    *(int *)to = memfd_create("gpu", 0);
    return type == 1 && size % 65536 == 0 ? 0 : 1;
}
"""
VERBS = """
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *names[] = {"mlx5_0", "rxe0"};
static int live;
void **ibv_get_device_list(int *count) { *count = 2; return (void **)names; }
const char *ibv_get_device_name(void *device) { return device; }
void *ibv_open_device(void *device) { return device; }
void *ibv_alloc_pd(void *context) { return context; }
static void *region(void *domain, int good, int error) {
    if (good) { live++; return domain; }
    errno = error;
    return NULL;
}
int ibv_dereg_mr(void *region) { return live-- > 0 ? 0 : EINVAL; }
"""
GOOD = """
void *ibv_reg_mr(void *domain, void *at, size_t size, int access) { return region(domain, at && access == 7, EINVAL); }
void *ibv_reg_dmabuf_mr(void *domain, uint64_t offset, size_t size, uint64_t iova, int fd, int access) {
    return region(domain, fd > 2 && lseek(fd, 0, SEEK_END) == 0 && access == 7, EOPNOTSUPP);
}
"""


@pytest.fixture(autouse=True)
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path, "libcuda.so.1", "#define _GNU_SOURCE\n" + CUDA + EXPORTS)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


def tried(folder: Path, verbs: str, timeout: float = 20.0) -> object:
    compiled(folder, "libibverbs.so.1", VERBS + verbs)
    recorder = Recorder()
    proof.register_memory(recorder.command, timeout)
    return registrations(Document({"commands": recorder.document["commands"]}))


def results(answer: object) -> dict[tuple[str, str, str], Registration]:
    assert isinstance(answer, tuple), answer
    return {(one.gpu, one.adapter, one.by): one for one in answer}


FIRST, SECOND = "0000:1a:00.0", "0000:1b:00.0"


def test_every_gpu_is_registered_with_every_adapter_in_both_ways(tmp_path: Path) -> None:
    shown = results(tried(tmp_path, GOOD))
    pairs = [(gpu, adapter) for gpu in (FIRST, SECOND) for adapter in ("mlx5_0", "rxe0")]
    assert list(shown) == [(*pair, way) for pair in pairs for way in (PEERMEM, DMABUF)]
    assert all(one.ok is True for one in shown.values()), shown


def test_a_core_without_peerdirect_refuses_the_address_of_a_gpu(tmp_path: Path) -> None:
    """The control registers host memory first, once for each adapter."""
    refusing = GOOD.replace("at && access == 7, EINVAL", "live < 1 && calls++ < 2, EFAULT").replace(
        "\nvoid *ibv_reg_mr", "\nstatic int calls;\nvoid *ibv_reg_mr"
    )
    shown = results(tried(tmp_path, refusing))
    assert {one.ok for key, one in shown.items() if key[2] == DMABUF} == {True}
    assert {(one.ok, one.why) for key, one in shown.items() if key[2] == PEERMEM} == {(False, "ibv_reg_mr: EFAULT")}


def test_an_adapter_that_refuses_host_memory_says_nothing_about_gpus(tmp_path: Path) -> None:
    refusing = GOOD.replace("at && access == 7, EINVAL", '!strcmp(domain, "mlx5_0"), ENOMEM')
    shown = results(tried(tmp_path, refusing))
    other = shown[FIRST, "rxe0", PEERMEM].ok
    assert shown[FIRST, "mlx5_0", PEERMEM].ok is True
    assert isinstance(other, Unknown)
    assert other.reason == "rxe0 doesn't register memory of the host either: ENOMEM"


def test_an_old_libibverbs_has_no_dmabuf(tmp_path: Path) -> None:
    shown = results(tried(tmp_path, GOOD[: GOOD.index("void *ibv_reg_dmabuf_mr")]))
    assert shown[FIRST, "mlx5_0", PEERMEM].ok is True
    assert shown[FIRST, "mlx5_0", DMABUF].why == "ibv_reg_dmabuf_mr: ENOSYS"


def test_a_driver_that_exports_no_memory_has_no_dmabuf(tmp_path: Path) -> None:
    compiled(tmp_path, "libcuda.so.1", "#define _GNU_SOURCE\n" + CUDA + EXPORTS.replace("? 0 : 1", "? 801 : 1"))
    shown = results(tried(tmp_path, GOOD))
    assert shown[FIRST, "mlx5_0", DMABUF].why == "no export as DMA-BUF: CUDA error 801"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("abort();", "was ended by signal 6 at mlx5_0 with GPU " + FIRST),
        ("for (;;) pause();", "did not return in time"),
    ],
)
def test_a_crash_or_a_hang_leaves_the_rest_unknown(tmp_path: Path, how: str, words: str) -> None:
    shown = results(tried(tmp_path, GOOD.replace("return region(domain, fd", how + " return region(domain, fd"), 3.0))
    assert shown[FIRST, "mlx5_0", PEERMEM].ok is True
    for key in ((FIRST, "mlx5_0", DMABUF), (SECOND, "rxe0", PEERMEM)):
        verdict = shown[key].ok
        assert isinstance(verdict, Unknown)
        assert words in verdict.reason


def test_without_libibverbs_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "libibverbs.so.1").write_text("no library")
    recorder = Recorder()
    proof.register_memory(recorder.command)
    with pytest.raises(UndecidedError, match=r"^a library was not loaded: "):
        registrations(Document({"commands": recorder.document["commands"]}))


def test_a_registration_that_cannot_be_taken_back_has_failed(tmp_path: Path) -> None:
    shown = results(
        tried(tmp_path, GOOD.replace("{ return region(domain, at", "{ live = -9; return region(domain, at"))
    )
    assert (shown[FIRST, "mlx5_0", PEERMEM].ok, shown[FIRST, "mlx5_0", PEERMEM].why) == (False, "ibv_dereg_mr: EINVAL")
