"""One run of the build: the requested modules in their order, and the outcome of each.

*nvidia-fs* from its source, with what the stock Makefile guesses set explicitly: the driver's folder, the symbol
versions (those of the target kernel's own nvidia.ko), and that an unresolved symbol ends the build.

*nvidia-peermem* against the OFED tree of the target kernel, or not at all.  NVIDIA's build looks twice and differently:
conftest.sh greps several places for the peer memory symbols, Kbuild takes headers and symbols from the first folder
that exists.  Variables set both here.

*The driver's own modules* from its source tree, for one kernel.

Rules of compat.yml that explain a failed build.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..errors import BuildError, HostError, KernelError, StubError, TreeError, UnbuildableError, failing
from ..io import atomic
from ..kmod.files import digest_files
from ..kmod.kernel import Kernel
from ..kmod.ofed import OfedTree
from ..model import compat
from ..model.compat import Conditions, Rule
from ..process import Output
from ..rootdir import read_text
from .kbuild import (
    AGAIN,
    SKIPPED,
    BuildContext,
    BuildRequest,
    Built,
    Log,
    audit_built,
    make_modules,
    place,
    provenance,
    record,
    units_of,
    without_debug_information,
)

#: What a build knows of the stack.
SUBJECTS = frozenset({"driver", "flavour", "kernel", "arch", "nvidia_fs", "nvidia_fs_origin"})
#: What it doesn't know; a condition on these counts as true, so the rule is named where it may explain the failure.
PACKAGES = frozenset({"driver_package", "driver_origin", "nvidia_fs_package", "kernel_package"})


def matches(request: BuildRequest, nvidia_fs: str, source: str) -> List[Rule]:
    """The rules that explain why the driver (or the version ``nvidia_fs``, if given) doesn't build."""
    combination: Dict[str, str] = {
        "driver": request.tree.version,
        "flavour": request.tree.flavour,
        "kernel": kernel_version(request.kernel),
        "arch": os.uname().machine,
    }
    if nvidia_fs:
        combination["nvidia_fs"] = nvidia_fs
        combination["nvidia_fs_origin"] = _origin(source)
    return refusing("nvidia-fs" if nvidia_fs else "driver", combination)


def refusing(about: str, combination: Mapping[str, str]) -> List[Rule]:
    """The rules about builds of ``about`` (``driver`` or ``nvidia-fs``) that refuse ``combination``."""
    return [rule for rule in compat.rules_with(()) if subject(rule) == about and broken(rule, combination)]


def subject(rule: Rule) -> str:
    """What a rule may explain a failed build of: ``driver``, ``nvidia-fs``, or nothing."""
    if rule.is_warning or not rule.looks_at <= SUBJECTS | PACKAGES:
        return ""
    if "nvidia_fs" in rule.looks_at:
        return "nvidia-fs"
    return "driver" if {"driver", "kernel"} <= rule.looks_at else ""


def broken(rule: Rule, combination: Mapping[str, str]) -> bool:
    """Whether ``rule`` is about ``combination`` and refuses it; conditions about unknown parts count as true."""
    if not _all(rule.when, combination):
        return False
    return not _all(rule.needs, combination) if rule.needs else _all(rule.refuses, combination)


def words(rule: Rule) -> str:
    """``known as ID: what it says; fixed in VERSION``, for the hint of an error."""
    fixed = f"; fixed in {rule.fixed}" if rule.fixed else ""
    return f"known as {rule.id}: {rule.says.rstrip('.')}{fixed}"


def kernel_version(kernel: Kernel) -> str:
    """Upstream's version, such as 6.1.176 for Debian's release 6.1.0-50-amd64; by the headers, else by the release."""
    header = f"/lib/modules/{kernel.release}/build/include/generated/uapi/linux/version.h"
    match = re.search(r"LINUX_VERSION_CODE (\d+)", read_text(kernel.root, header))
    if match is None:
        match = re.match(r"\d+(?:\.\d+)*", kernel.release)
        return match.group(0) if match else ""
    code = int(match.group(1))
    return f"{code >> 16}.{code >> 8 & 0xFF}.{code & 0xFF}"


def _all(conditions: Conditions, combination: Mapping[str, str]) -> bool:
    return all(
        not combination.get(subject) or compat.holds(subject, texts, combination[subject])
        for subject, texts in conditions.items()
    )


def _origin(source: str) -> str:
    """``debian`` for a source that Debian patched, which names Debian's driver in DKMS."""
    return "debian" if 'BUILD_DEPENDS[0]="nvidia-current' in read_text(source, "dkms.conf") else "nvidia"


def build_nvidia_fs(context: BuildContext, source: str, output: str, log: Log) -> List[Built]:
    """Build nvidia-fs from ``source`` into the file ``output``.

    Raises TreeError for another source, KernelError for broken headers, BuildError for a failed build or audit.
    """
    request = context.request
    for name in ("Makefile", "configure", "nvfs-core.c"):
        if not os.path.isfile(os.path.join(source, name)):
            hint = "install nvidia-fs-dkms, or name the folder that has its Makefile"
            raise TreeError(f"{source} is not the source of nvidia-fs: it has no {name}", hint)
    context.check_headers(log)
    versions = context.versions(log)
    folder = os.path.join(context.folder, "nvidia-fs")
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*SKIPPED))
    _configure(context, log, folder)
    done = _compile(request, log, folder, versions.path)
    described = f"nvidia-fs {source_version(folder)}".strip()
    message = f"{described} doesn't build for kernel {request.kernel.release} against {request.tree.path}"
    entries = {"source": source_digest(source)}
    return _finish(context, log, done, message, os.path.join(folder, "nvidia-fs.ko"), output, entries)


def _finish(
    context: BuildContext, log: Log, done: Output, message: str, built: str, output: str, entries: Dict[str, str]
) -> List[Built]:
    """Record, audit and place ``built``, which ``done`` has made; raises BuildError, with ``message`` if it hasn't."""
    if done.status != 0 or not os.path.isfile(built):
        raise log.failure(message, done, os.path.dirname(built))
    record(log, built, {**provenance(context.request), **entries})
    name = os.path.basename(built)[: -len(".ko")]
    extra = context.versions(log).extra
    results = audit_built(context.request, log, [built], extra, name, peermem=name == NAME)
    return place([(built, os.path.abspath(output), results[0])])


def source_digest(source: str) -> str:
    """``sha256:…`` over what is compiled and how."""
    names = [
        name
        for name in os.listdir(source)
        if (name.endswith((".c", ".h")) and not name.endswith(".mod.c") and name != "config-host.h")
        or name in ("Makefile", "configure", "GDS_VERSION")
    ]
    return digest_files(source, names)


def source_version(source: str) -> str:
    """The version that the source gives its module, such as 2.19.7; empty without one."""
    text = read_text(source, "nvfs-vers.h")
    parts = [re.search(rf"NVFS_DRIVER_{part}_VERSION\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part.group(1) for part in parts if part)


def _configure(context: BuildContext, log: Log, folder: str) -> None:
    """Run the source's own probes for the target kernel; their answers go to config-host.h."""
    release = context.request.kernel.release
    log.units = _units(folder)
    done = log.run(["bash", "./configure", release], folder, {"KVER": release})
    answers = re.findall(r"^[Cc]hecking .*?(yes|no)$", done.stdout, re.MULTILINE)
    if done.status != 0 or "yes" not in answers:
        # The headers were checked, so the compiler works; the script itself must be broken.
        message = f"every probe of nvidia-fs's configure answers no for kernel {release}"
        if log.trouble(done, folder):
            raise log.failure(f"nvidia-fs's configure can't probe kernel {release}", done, folder)
        raise KernelError(message, f"its answers would be wrong, so nothing was built; the log is {log.path}")


def _compile(request: BuildRequest, log: Log, folder: str, symvers: str) -> Output:
    with open(os.path.join(folder, "GDS_VERSION"), encoding="utf-8", errors="replace") as file:
        version = file.read().strip()
    # The flags of the stock Makefile's "module" target from 2.7 to 2.28; the last one makes the bytes independent of
    # the build folder.
    flags = (
        f"-DCONFIG_NVFS_STATS=y -DGDS_VERSION={version} -DNVFS_ENABLE_KERN_RDMA_SUPPORT -DNVFS_BATCH_SUPPORT=y "
        f"-ffile-prefix-map={folder}=nvidia-fs"
    )
    settings = [
        "KVER=" + request.kernel.release,
        "NVIDIA_SRC_DIR=" + request.tree.headers,
        "KBUILD_EXTRA_SYMBOLS=" + symvers,
        # The Makefile sets it to 1, which turns unresolved symbols into warnings; the command line wins.
        "KBUILD_MODPOST_WARN=",
        *request.variables,
    ]
    env = {"KCPPFLAGS": flags, "CONFIG_NVFS_BATCH_SUPPORT": "y", "CONFIG_NVFS_STATS": "y"}
    env.update(without_debug_information(request.kernel))
    log.units = _units(folder)
    return make_modules(log, request.kernel, folder, settings, request.jobs, env)


def _units(folder: str) -> Dict[str, int]:
    return {"nvidia-fs": sum(name.endswith(".c") for name in os.listdir(folder))}


NAME = "nvidia-peermem"
HINT = "install OFED or DOCA for this kernel; or use DMA-BUF and leave nvidia-peermem out"
#: The one question that conftest.sh must not answer by its own search; everything else goes to the real script.
_CONFTEST = """\
#!/bin/sh
if [ "$5" = compile_tests ] && [ "$7" = ib_peer_memory_symbols ]; then
    echo "#{answer} NV_MLNX_IB_PEER_MEM_SYMBOLS_PRESENT"
    exit 0
fi
exec /bin/sh "{script}" "$@"
"""


def build_peermem(context: BuildContext, output: str, log: Log) -> List[Built]:
    """Build nvidia-peermem into the file ``output``; raises StubError, BuildError, KernelError."""
    request = context.request
    tree = require_ofed(context)
    context.check_headers(log)
    versions = context.versions(log)
    folder = context.unit_folder()
    symbols = [versions.path] if tree.own else [versions.path, os.path.join(tree.path, "Module.symvers")]
    argv = ["make", "-C", request.kernel.headers(), "M=" + folder, "NV_KERNEL_MODULES=" + NAME, *context.settings()]
    argv += [*ofed_settings(context, folder, tree), "KBUILD_EXTRA_SYMBOLS=" + " ".join(symbols), "modules"]
    env = {"IGNORE_CC_MISMATCH": "1", "KCPPFLAGS": f"-ffile-prefix-map={folder}=nvidia"}
    done = log.run(argv, folder, env)
    message = f"nvidia-peermem doesn't build for kernel {request.kernel.release} against {request.tree.path}"
    built = os.path.join(folder, NAME + ".ko")
    return _finish(context, log, done, f"{message} and {tree.path}", built, output, {"ofed": tree.symvers})


def require_ofed(context: BuildContext) -> OfedTree:
    """The OFED tree of this kernel; raises StubError with the reason if there is none."""
    search = context.ofed
    if search.tree is None:
        raise StubError(search.stub_reason(context.request.kernel.release), HINT)
    return search.tree


def ofed_settings(context: BuildContext, folder: str, tree: Optional[OfedTree]) -> List[str]:
    """Variables that make the driver's Kbuild build nvidia-peermem against ``tree``, or against none."""
    script = os.path.join(context.folder, "conftest-peermem.sh")
    with open(script, "w", encoding="utf-8") as file:
        answer = "define" if tree is not None else "undef"
        file.write(_CONFTEST.format(answer=answer, script=os.path.join(folder, "conftest.sh")))
    # With a missing folder, Kbuild adds no symbols; the kernel's own need no mention.
    path = os.path.join(context.folder, "no-ofed") if tree is None or tree.own else tree.path
    return ["NV_CONFTEST_SCRIPT=" + script, "MLNX_OFED_KERNEL=" + path]


def build_driver(context: BuildContext, output: str, log: Log) -> List[Built]:
    """Build every module of the driver into the folder ``output``, with its Module.symvers; all of them or none.

    Raises KernelError for headers that can't build, BuildError for a failed build or audit, StubError where
    nvidia-peermem is required and would be a stub.
    """
    request, tree = context.request, context.request.tree
    names = modules(context)
    ofed = require_ofed(context) if request.peermem == "required" else context.ofed.tree
    context.check_headers(log)
    folder = os.path.join(context.folder, "all")
    shutil.copytree(tree.path, folder, ignore=shutil.ignore_patterns(*SKIPPED))
    # Its own Makefile has workarounds for pahole and for the kernel's compiler.
    argv = ["make", f"-j{max(request.jobs, 1)}", "modules", "KERNEL_UNAME=" + request.kernel.release]
    argv += ["NV_KERNEL_MODULES=" + " ".join(names), "NV_EXCLUDE_KERNEL_MODULES="]
    argv += [*ofed_settings(context, folder, ofed), *request.variables]
    log.units = units_of(folder, names)
    done = log.run(argv, folder, {"IGNORE_CC_MISMATCH": "1", **without_debug_information(request.kernel)})
    files = [os.path.join(folder, name + ".ko") for name in names]
    missing = [os.path.basename(file) for file in files if not os.path.isfile(file)]
    if done.status != 0 or missing:
        message = f"driver {tree.version} ({tree.flavour}) doesn't build for kernel {request.kernel.release}"
        if done.status == 0:
            message += f" (make ended without an error, and without {', '.join(missing)})"
        raise log.failure(f"{message} from {tree.path}", done, folder)
    for name, file in zip(names, files):
        extra = {"ofed": ofed.symvers} if name == NAME and ofed is not None else {}
        record(log, file, {**provenance(request), **extra})
    results = audit_built(request, log, files, {}, "driver " + tree.version, peermem=request.peermem == "required")
    context.use_versions_of(files[0])
    atomic.copy(os.path.join(folder, "Module.symvers"), os.path.join(output, "Module.symvers"))
    targets = [os.path.join(os.path.abspath(output), os.path.basename(file)) for file in files]
    return place(list(zip(files, targets, results)))


def modules(context: BuildContext) -> List[str]:
    """Names of the modules whose parts are in the tree, nvidia first; nvidia-peermem only as requested."""
    path, names = context.request.tree.path, context.request.tree.modules()
    if "nvidia" not in names:
        message = f"{path} has no nvidia/nvidia.Kbuild: the driver can't be built from it"
        raise TreeError(message, "install the package with the driver's kernel module source")
    if NAME in names and context.ofed.tree is None:
        reason = context.ofed.why_not()
        if context.request.peermem == "optional":
            names.remove(NAME)
            context.notes.append(f"nvidia-peermem is left out, it would be a stub: {reason}")
        elif context.request.peermem == "stub":
            context.notes.append(f"nvidia-peermem is a stub: {reason}")
    return ["nvidia", *(name for name in names if name != "nvidia")]


#: In the order in which they depend on each other.
MODULES = ("driver", "nvidia-peermem", "nvidia-fs")


@dataclass
class Outcome:
    """The outcome for one requested module; ``error`` is None when its files are built, audited and in place."""

    module: str
    log: str
    built: List[Built] = field(default_factory=list)
    error: Optional[HostError] = None
    #: rules of compat.yml that explain the error
    rules: List[Rule] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> Dict[str, Any]:
        error = None
        if self.error is not None:
            keys = ("id", "says", "fixed", "source")
            rules = [{key: getattr(rule, key) for key in keys} for rule in self.rules]
            error = {"id": self.error.id, "message": self.error.message, "hint": self.error.hint, "rules": rules}
        return {
            "module": self.module,
            "ok": self.error is None,
            "files": [built.as_dict() for built in self.built],
            "log": self.log,
            "seconds": round(self.seconds, 2),
            "error": error,
        }


@dataclass
class Report:
    """``as_dict`` is what ``kmod build --json`` prints; docs/modules.md describes it."""

    request: BuildRequest
    outcomes: List[Outcome]
    versions_from: str
    ofed: Optional[Dict[str, str]]
    notes: List[str]

    @property
    def failures(self) -> List[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    def as_dict(self) -> Dict[str, Any]:
        return {
            "kernel_release": self.request.kernel.release,
            "driver": self.request.tree.as_dict(),
            "driver_modules": self.request.tree.modules(),
            "ofed": self.ofed,
            "versions_from": self.versions_from,
            "ok": not self.failures,
            "notes": self.notes,
            "modules": [outcome.as_dict() for outcome in self.outcomes],
        }


def build(request: BuildRequest, modules: Sequence[str], source: str, output: str, log: str = "") -> Report:
    """Build ``modules`` (of MODULES) and place them; if one fails, the others are still built.

    source: of nvidia-fs.  output: a file for one module, a folder for several or for the driver.  log: one file for
    all commands; default: ``<output>.log`` or ``<folder>/<module>.log``.  Raises HostError if no build can start.
    """
    names = [name for name in MODULES if name in modules]
    folder = os.path.isdir(output) or output.endswith("/") or len(names) > 1 or "driver" in names
    if folder:
        with failing(BuildError, f"cannot make the folder {output}"):
            atomic.make_folder(output)
    # A driver with its debug data may be too large for a /tmp in memory.
    work = tempfile.mkdtemp(prefix=".gdsdeploy-build-", dir=os.path.abspath(output) if "driver" in names else None)
    context = BuildContext(request, work)
    logs: Dict[str, Log] = {}
    outcomes: List[Outcome] = []
    try:
        for name in names:
            place = os.path.join(output, name + ("" if name == "driver" else ".ko")) if folder else output
            path = os.path.abspath(log or (place.rsplit(".ko", 1)[0] if folder else place) + ".log")
            if path not in logs:
                logs[path] = Log(path, request.progress)
            outcomes.append(_build_one(context, name, source, output if name == "driver" else place, logs[path]))
        tree = context.ofed.tree if names != ["nvidia-fs"] else None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    ofed = tree.as_dict() if tree is not None else None
    return Report(request, outcomes, context.versions_origin, ofed, context.notes)


def _build_one(context: BuildContext, name: str, source: str, output: str, log: Log) -> Outcome:
    outcome = Outcome(name, log.path)
    begun = time.monotonic()
    try:
        if name == "nvidia-fs":
            outcome.built = build_nvidia_fs(context, source, output, log)
        else:
            outcome.built = (build_driver if name == "driver" else build_peermem)(context, output, log)
    except (HostError, OSError) as problem:
        error = problem if isinstance(problem, HostError) else BuildError(f"{name} can't be built: {problem}", AGAIN)
        hint = error.hint
        if isinstance(error, UnbuildableError):
            version = source_version(source) if name == "nvidia-fs" else ""
            outcome.rules = matches(context.request, version, source if name == "nvidia-fs" else "")
            hint = "; ".join([*map(words, outcome.rules), error.hint])
        outcome.error = type(error)(error.message, hint) if hint != error.hint else error
        log.end_with_failure(outcome.error)
    outcome.seconds = time.monotonic() - begun
    return outcome
