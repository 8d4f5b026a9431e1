"""The program that lets one libcufile read many configurations; started by library.py.

It runs in a private mount namespace.  There /etc/cufile.json links to the file in the current folder of the process
that opens it, so every child process finds its document where a real program finds it.  With a stand-in libcuda, /proc
and /dev also show a loaded nvidia-fs and an open driver: without them most releases stop early, and some never end.

The library is loaded once; each document has a child process with a time limit.  Standard input is one JSON object (see
``main``); each answer is one line of JSON on standard output.  Standard library only: it runs with ``python -I -S``.

With ``argv`` in that object it becomes any program, such as gdscheck, that finds this libcufile (see ``_become``).
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

_MS_BIND, _MS_REC = 4096, 16384
_PR_SET_PDEATHSIG = 1
#: Most bytes that one child may write into one file, and that are read of its log.
_FILE_LIMIT = 4 << 20
#: Most bytes of address space for one child; the default pools of POSIX buffers take one GiB.
_MEMORY_LIMIT = 8 << 30

#: Exit status of a child that failed before the library answered.
FAILED = 70

#: /proc on a host with both modules; every release accepts nvidia-fs 2.28.
_PROC = {
    "driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n",
    "driver/nvidia-fs/version": "version: 2.28\n",
    "driver/nvidia-fs/devcount": "16\n",
    "driver/nvidia-fs/modules": "",
    "driver/nvidia-fs/bridges": "",
    "driver/nvidia-fs/peer_distance": "",
    # Some releases read all of it, which takes longer than everything else.
    "kallsyms": "ffffffff81000000 T _stext\n"
    "ffffffff81000100 T pci_p2pdma_add_resource\nffffffff81000200 r p2pdma_pgmap_ops\n",
    "modules": "nvidia_fs 323584 0 - Live 0x0\nnvidia 14376960 1 nvidia_fs, Live 0x0\n",
}
_DEV = {f"nvidia-fs{number}": "" for number in range(16)}

_libc = ctypes.CDLL(None, use_errno=True)


class _Result(ctypes.Structure):
    """CUfileError_t."""

    _fields_ = (("error", ctypes.c_int), ("cuda_error", ctypes.c_int))


def main() -> int:
    """Read ``{library, standin, timeout, jobs, folders, documents}`` and write an answer for each document.

    library: path of libcufile; standin: path of the stand-in libcuda, or null for the machine's own; timeout: seconds
    for one document; jobs: concurrent children; folders: paths that exist as folders; documents: base64 of each text.
    """
    request = json.load(sys.stdin)
    work = Path.cwd()
    _mount("gdsdeploy", work, "tmpfs", 0)
    os.chdir(work)
    if "argv" in request:
        _become(request, work)
    _show(work, standin=request["standin"] is not None)
    _make_folders(work, [Path(name) for name in request["folders"]])
    library = _load(request["library"], request["standin"])
    pending = [(number, base64.b64decode(text)) for number, text in enumerate(request["documents"])]
    _ask_all(library, pending[::-1], request, work)
    return 0


def _become(request: dict[str, Any], work: Path) -> NoReturn:
    """Run ``argv``.  proc: name → content in place of that above, None for no such file; sys: the same below /sys."""
    _show(work, standin=True)
    for name, content in request["proc"].items():
        path = Path("/proc") / name
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
    if request["sys"]:
        _overlay(Path("/sys"), work / "sys", request["sys"])
    # The program may change its folder, so that the link there would not do.
    config = Path("/etc/cufile.json")
    config.unlink()
    config.write_text(request["config"])
    libraries = work / "lib"
    libraries.mkdir()
    for name, target in (("libcuda.so.1", request["libcuda"]), ("libcufile.so.0", request["libcufile"])):
        if target:
            (libraries / name).symlink_to(target)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CUFILE_")}
    os.execve(request["argv"][0], request["argv"], {**environment, "LD_LIBRARY_PATH": str(libraries)})


def _show(work: Path, *, standin: bool) -> None:
    """Change what this namespace shows."""
    if standin:
        _overlay(Path("/proc"), work / "proc", _PROC)
        _overlay(Path("/dev"), work / "dev", _DEV)
    _overlay(Path("/etc"), work / "etc", {})
    Path("/etc/cufile.json").symlink_to("/proc/self/cwd/cufile.json")


def _make_folders(work: Path, folders: list[Path]) -> None:
    """Make each of ``folders`` in this namespace, without a trace on the machine."""
    for number, path in enumerate(folders):
        parent = next(parent for parent in path.parents if parent.exists())
        if not path.exists():
            # A folder there would be a trace on the machine.
            assert parent != Path("/"), path
            _overlay(parent, work / f"parent{number}", {})
        path.mkdir(parents=True, exist_ok=True)


def _overlay(folder: Path, original: Path, added: dict[str, str]) -> None:
    """Cover ``folder`` with links to its content, which moves to ``original``, and with the files ``added``."""
    original.mkdir()
    _mount(folder, original, None, _MS_BIND | _MS_REC)
    _mount("gdsdeploy", folder, "tmpfs", 0)
    replaced = {name.split("/")[0] for name in added} | {"cufile.json"}
    for entry in original.iterdir():
        # Processes come and go; programs reach theirs through "self".
        if entry.name not in replaced and not entry.name.isdigit():
            (folder / entry.name).symlink_to(entry)
    for name, content in added.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def _mount(source: Path | str, target: Path, kind: str | None, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode() if kind else None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def _load(library: str, standin: str | None) -> Any:
    if standin is not None:
        # The library then finds it under its SONAME, libcuda.so.1.
        ctypes.CDLL(standin, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    loaded = ctypes.CDLL(library)
    loaded.cuFileDriverOpen.restype = _Result
    for stream in ("stdout", "stderr"):
        _libc.setvbuf(ctypes.c_void_p.in_dll(_libc, stream), None, 2, 0)
    return loaded


def _ask_all(library: Any, pending: list[tuple[int, bytes]], request: dict[str, Any], work: Path) -> None:
    """Keep ``jobs`` children busy, and wait for each through a file descriptor of its process."""
    running: dict[int, tuple[int, int, float, Path]] = {}
    poll = select.poll()
    while pending or running:
        while pending and len(running) < request["jobs"]:
            number, text = pending.pop()
            folder = work / str(number)
            folder.mkdir()
            begin = time.monotonic()
            pid = _start(library, folder, text, request)
            descriptor = os.pidfd_open(pid)
            poll.register(descriptor, select.POLLIN)
            running[descriptor] = (pid, number, begin, folder)
        now = time.monotonic()
        overdue = {d for d, entry in running.items() if now - entry[2] >= request["timeout"]}
        first = min(entry[2] for entry in running.values())
        wait = 0.0 if overdue else max(0.0, first + request["timeout"] - now)
        done = {descriptor for descriptor, _ in poll.poll(int(wait * 1000) + 1)}
        for descriptor in done | overdue:
            pid, number, begin, folder = running.pop(descriptor)
            hung = descriptor not in done
            if hung:
                os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            poll.unregister(descriptor)
            os.close(descriptor)
            _answer(number, folder, os.waitstatus_to_exitcode(status), hung, time.monotonic() - begin)
            shutil.rmtree(folder)


def _start(library: Any, folder: Path, text: bytes, request: dict[str, Any]) -> int:
    """Fork the child that opens the library with this document; return its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _limit(standin=request["standin"] is not None)
        os.chdir(folder)
        Path("cufile.json").write_bytes(text)
        output = os.open("said", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # The document may name a log folder that the caller can't write to, or log nothing.
        os.environ["CUFILE_LOGFILE_PATH"] = str(folder / "cufile.log")
        os.environ["CUFILE_LOGGING_LEVEL"] = "INFO"
        begin = time.perf_counter()
        result = library.cuFileDriverOpen()
        inside = time.perf_counter() - begin
        _libc.fflush(None)
        Path("result").write_text(json.dumps([result.error, result.cuda_error, inside]))
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - this process may not continue as its parent
        os.write(2, f"gdsdeploy: {error!r}\n".encode())
        os._exit(FAILED)


def _limit(*, standin: bool) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_LIMIT, _FILE_LIMIT))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if standin:
        # The real CUDA reserves more address space than any machine has memory.
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))


def _answer(number: int, folder: Path, status: int, hung: bool, seconds: float) -> None:
    result = _read(folder / "result")
    answer = {
        "number": number,
        "status": status,
        "hung": hung,
        "seconds": round(seconds, 6),
        "result": json.loads(result) if result else None,
        "said": _read(folder / "said"),
        "log": _read(folder / "cufile.log"),
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_FILE_LIMIT).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
