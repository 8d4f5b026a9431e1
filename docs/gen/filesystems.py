"""The matrix of filesystems as a page: ``python -m docs.gen.filesystems > docs/filesystems.md``."""

from __future__ import annotations

from collections.abc import Iterable

from docs.gen import table_row
from gdsdeploy.host.explain.cause import COMPAT
from gdsdeploy.validate.ideal_host import DEVICES, GPUS
from gdsdeploy.validate.support import KERNELS, LATEST, UNDECIDED, Support, gpu_words, matrix

HEAD = """\
# Which filesystem can take which path

`python -m docs.gen.filesystems > docs/filesystems.md` writes this page. It runs the rules of [explain](explain.md)
on an imaginary host that has everything, takes one part away at a time, and notes which parts a path needs. Nothing on
this page was seen on a real host.

`gdsdeploy explain --support [FILESYSTEM]` shows the same. `--mode`, `--libcufile`, `--kernel` and `--gpu` ask about
other versions, and `--json` prints one object.

*libcufile* and *kernel* are the first ones with the path; *any*: no rule refuses a kernel. Kernels are those of
kernel.org. Distributions may have backports. The newest known libcufile is {libcufile}.
"""
DIRECT_HEAD = """
## Direct paths

| filesystem | mode | libcufile | kernel | GPUs | needs |
| --- | --- | --- | --- | --- | --- |
"""
COMPAT_HEAD = """
## Only through CPU memory

libcufile moves data of these filesystems through CPU memory. An older release refuses their files.

| filesystem | libcufile | why |
| --- | --- | --- |
"""
GPU_HEAD = """
## Names

These models stand for the classes of GPUs:

| class | model |
| --- | --- |
"""
DEVICE_NAMES = {"nvmeof": "XFS on NVMe over RDMA", "raid0": "XFS on md RAID 0 of local NVMe disks"}


def page() -> str:
    """Markdown: a table of direct paths, one of compat mode, and the names of devices and GPUs."""
    rows = matrix()
    with_direct_path = {row.filesystem for row in rows if row.mode != COMPAT}
    direct = [row for row in rows if row.mode != COMPAT]
    others = [row for row in rows if row.filesystem not in with_direct_path]
    return "".join(
        [HEAD.format(libcufile=LATEST.libcufile), DIRECT_HEAD, *_direct(direct), *_compat(others), *_names()]
    )


def _direct(rows: Iterable[Support]) -> Iterable[str]:
    for row in rows:
        kernel = "any" if row.kernel == KERNELS[0] else row.kernel
        mode = "not known" if row.mode == UNDECIDED else f"`{row.mode}`"
        needs = ", ".join(row.needs) or row.why
        yield table_row(
            f"`{row.filesystem}`", mode, row.libcufile, kernel, gpu_words(row.gpus) if kernel else "", needs
        )


def _compat(rows: Iterable[Support]) -> Iterable[str]:
    yield COMPAT_HEAD
    for row in rows:
        yield table_row(f"`{row.filesystem}`", row.libcufile, row.why.partition(": ")[2])


def _names() -> Iterable[str]:
    words = "; ".join(f"`{name}` is {DEVICE_NAMES[name]}" for name in DEVICES)
    yield GPU_HEAD.replace("## Names\n", f"## Names\n\n{words}.\n")
    yield from (table_row(f"`{name}`", model) for name, model in GPUS.items())


if __name__ == "__main__":
    print(page(), end="")
