"""Try stacks in throwaway roots: the host program builds the modules there and audits them against the kernel.

What is tried is the lock's, or others of its repositories; an earlier run's record replaces a trial.  The root has
unpacked packages; no package's script runs, and user namespaces replace root.  Each set of packages is one read-only
layer in the cache, named by its digest, so another kernel costs one more layer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import platform as machine
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Final

from gdsdeploy import __version__, console, paths, run
from gdsdeploy.board import build_progress
from gdsdeploy.errors import GdsError, LockStale, NoSolution
from gdsdeploy.files import folders
from gdsdeploy.fleetfile.rules import rules_of
from gdsdeploy.host.errors import StubError, UnbuildableError
from gdsdeploy.host.kmod.module import in_kernel
from gdsdeploy.host.model.compat import Rule, Verdict, judge, parse_versions
from gdsdeploy.lock import compat, repo_settings
from gdsdeploy.lock.resolve import options, resolve
from gdsdeploy.lock.resolve.dependencies import package_of
from gdsdeploy.lock.resolve.options import Option, Options
from gdsdeploy.lock.resolve.target import base
from gdsdeploy.lock.resolve_fleet import read_repositories
from gdsdeploy.lock.sources import PackageReader, Sources, fetch as fetch_locked
from gdsdeploy.mirror.fill import closure
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Index, Lock, Package, Target
from gdsdeploy.platform import StackPlatform, stack_platform_for
from gdsdeploy.preflight.record import PACKAGES, PEERMEM, Answer, ModuleResult, PreflightRecord, find, keep
from gdsdeploy.repo.fetch import Fetcher, MissingFile
from gdsdeploy.repo.packages import Candidate, Kind, Universe
from gdsdeploy.zipapp import hostapp

#: Part of every layer's name: change it with unpack.sh or ``_finish``.
_RECIPE: Final = "2"
#: Layers that were unused for this long are removed.
KEEP_DAYS: Final = 14
#: Older work folders belong to runs that were killed.
_STALE_SECONDS: Final = 86400.0
#: Program → its package.
_PROGRAMS: Final = {"tar": "tar", "unshare": "util-linux", "setpriv": "util-linux", "mount": "mount"}
_UNPACKERS: Final[dict[Kind, dict[str, str]]] = {"apt": {"dpkg-deb": "dpkg"}, "rpm": {"rpm2archive": "rpm"}}
#: Links that scripts of packages make, and the programs that they may lead to.
_ALTERNATIVES: Final = (("sh", ("dash", "bash")), ("awk", ("mawk", "gawk")), ("ld", ("ld.bfd",)))
_NAMESPACES: Final = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
_USER: Final = ("--user", "--map-root-user")


@dataclass(frozen=True)
class Root:
    """An open root; ``build``: the folder that is ``/build`` inside."""

    build: Path
    _lower: str
    _unprivileged: bool

    def run(self, argv: Sequence[str], *, doing: str, ok: Sequence[int] = (0,)) -> run.Completed:
        """Run a program of the root to its end; raises as run.run does."""
        options = ",userxattr" if self._unprivileged else ""
        script = str(resources.files("gdsdeploy") / "preflight" / "enter.sh")
        work = self.build.parent.relative_to(_place())
        inner = ["sh", script, str(_place()), self._lower, str(work), options, *argv]
        # If this process dies, the build dies, too.
        outer = ["setpriv", "--pdeathsig", "KILL", "unshare", *(_USER if self._unprivileged else ()), *_NAMESPACES]
        words = [*outer, *inner] if self._unprivileged else run.as_root([*outer, *inner])
        return run.run(words, doing=doing, ok=ok)


def require(kind: Kind) -> None:
    """Raise MissingProgram, with the command that installs it, for the first program that packages of a kind need."""
    for program, package in {**_UNPACKERS[kind], **_PROGRAMS}.items():
        run.which(program, hint=f"apt-get install {package}")


def layer(packages: Sequence[Path], *, what: str) -> str:
    """The layer of these package files, unpacked unless cached: a folder below ``preflight/layers``.

    packages: Fetcher's files, named by sha256.  what: for the user.
    """
    names = sorted(path.name for path in packages)
    name = hashlib.sha256("\n".join([_RECIPE, *names]).encode()).hexdigest()[:20]

    def make(work: Path) -> None:
        script = str(resources.files("gdsdeploy") / "preflight" / "unpack.sh")
        argv = ["sh", script, work / "root", work / "archive", *packages]
        (work / "root").mkdir()
        with console.step(f"Unpacking {what}"):
            run.run([str(word) for word in argv], doing=f"unpack {what}")
        _finish(work / "root")

    entry = folders.cached_folder(_layers(), name, make, what=what)
    os.utime(entry)
    return f"{name}/root"


@contextmanager
def throwaway_root(layers: Sequence[str]) -> Iterator[Root]:
    """A root of these layers, the first on top; removed at the end with all that was written in it."""
    place = _place() / "work"
    place.mkdir(parents=True, exist_ok=True)
    _prune(place)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=place))
    try:
        build = work / "build"
        build.mkdir()
        yield Root(build, ":".join(f"layers/{layer}" for layer in layers), _needs_user_namespace())
    finally:
        _remove(work, place)


def _needs_user_namespace() -> bool:
    """Whether to use a user namespace: this process isn't root, and the kernel permits it."""
    if os.geteuid() == 0:
        return False
    trial = ["unshare", *_USER, *_NAMESPACES, "true"]
    if run.run(trial, doing="try a user namespace", ok=range(-64, 256)).status == 0:
        return True
    if shutil.which("sudo") is None:
        raise GdsError(
            "this machine forbids user namespaces, and there is no sudo",
            hint="Run as root, or allow unprivileged user namespaces (sysctl user.max_user_namespaces)",
        )
    return False


def _place() -> Path:
    return paths.cache() / "preflight"


def _layers() -> Path:
    return _place() / "layers"


def _finish(tree: Path) -> None:
    """Make the links and files that a build needs and that package scripts would have made."""
    programs = tree / "usr" / "bin"
    for name, others in _ALTERNATIVES:
        program = next((other for other in others if (programs / other).exists()), None)
        if program and not (programs / name).is_symlink() and not (programs / name).exists():
            (programs / name).symlink_to(program)
    if (programs / "sh").is_symlink():
        (tree / "etc").mkdir(exist_ok=True)
        (tree / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (tree / "etc" / "group").write_text("root:x:0:\n")


def _prune(place: Path) -> None:
    """Remove unused layers and the work folders of killed runs."""
    now = time.time()
    for entry in [entry for entry in place.iterdir() if now - entry.stat().st_mtime > _STALE_SECONDS]:
        _remove(entry, place)
    for entry in _layers().iterdir() if _layers().is_dir() else ():
        if entry.is_dir() and ".tmp-" not in entry.name and now - entry.stat().st_mtime > KEEP_DAYS * 86400:
            with folders.hold_lock(_layers() / f"{entry.name}.lock", what="an old layer"):
                folders.remove_tree(entry, within=_layers())


def _remove(work: Path, place: Path) -> None:
    # overlayfs leaves a folder that its owner can't read.
    locked = work / "work" / "work"
    if locked.is_dir() and locked.stat().st_uid == os.geteuid():
        locked.chmod(0o700)
    folders.remove_tree(work, within=place)


#: Packages that the host program and the build scripts of kernels, drivers and nvidia-fs need.
_COMMON: Final = (
    "bash",
    "binutils",
    "coreutils",
    "diffutils",
    "findutils",
    "gcc",
    "grep",
    "kmod",
    "make",
    "sed",
    "zstd",
)
_TOOLS: Final[dict[Kind, tuple[str, ...]]] = {
    "apt": (*_COMMON, "dash", "libpython3-stdlib", "mawk", "python3-minimal", "xz-utils"),
    # The open driver has parts in C++.
    "rpm": (*_COMMON, "gawk", "gcc-c++", "xz", "python3"),
}
#: A kernel's packages whose dependencies a build needs; an image's are for booting.
_BUILDS: Final = re.compile(r"linux-(?:headers|kbuild|compiler)-.*|kernel-(?:.+-)?devel")
_KERNEL: Final = ("kernel-image", "kernel-headers")
_FETCHES_AT_ONCE: Final = 6


def layers(target: Target, platform: StackPlatform, universe: Universe, fetcher: Fetcher) -> list[str]:
    """The layers of a root for ``target``, the driver's on top; missing packages are fetched, verified and unpacked.

    Raises NoSolution without a compiler in the repositories, LockStale for a missing file, what Fetcher raises.
    """
    compilers = toolchain(target, platform, universe)
    contents = {"the compiler": [package_of(candidate, "support", host=False, build=True) for candidate in compilers]}
    for what, parts in (
        (f"kernel {target.kernel.release}", _KERNEL),
        ("nvidia-fs's source", ("nvidia-fs-source",)),
        (f"the source of driver {target.driver.version}", ("driver-source",)),
    ):
        contents[what] = [package for package in target.packages if package.part in parts]
    paths = _fetch([package for packages in contents.values() for package in packages], target.indices, fetcher)
    filled = [(what, packages) for what, packages in reversed(contents.items()) if packages]
    return [layer([paths[package] for package in packages], what=what) for what, packages in filled]


def toolchain(target: Target, platform: StackPlatform, universe: Universe) -> list[Candidate]:
    """The packages of a compiler and its tools for this kernel, with all dependencies, one version of each.

    Raises NoSolution with the packages that the repositories don't have.
    """
    locked = {package.package: package.sha256 for package in target.packages if package.part in _KERNEL}
    # A kernel that has left the repositories counts without its dependencies.
    kernel = {name: c for name, digest in locked.items() for c in universe.named(name) if c.sha256 == digest}
    roots = [
        c if _BUILDS.fullmatch(c.package) else dataclasses.replace(c, depends=(), pre_depends=())
        for c in kernel.values()
    ]
    tools = [_newest(name, platform, universe) for name in _TOOLS[platform.kind]]
    dependencies, missing = closure([*roots, *tools], universe, platform.order)
    if missing:
        raise NoSolution("\n".join(["the repositories don't have what a compiler needs:", *missing]))
    # Two versions may satisfy different packages; a root can have only the newer one.
    in_order = sorted([*tools, *dependencies], key=lambda c: platform.order.key(c.version))
    newest = {candidate.package: candidate for candidate in in_order}
    return [newest[name] for name in sorted(newest.keys() - kernel.keys())]


def _newest(name: str, platform: StackPlatform, universe: Universe) -> Candidate:
    versions = universe.named(name)
    if not versions:
        raise NoSolution(
            f"the repositories have no {name}, which building modules needs",
            hint="Add the distribution's own repository to the profile",
        )
    return max(versions, key=lambda c: platform.order.key(c.version))


def _fetch(packages: Sequence[Package], indices: Sequence[Index], fetcher: Fetcher) -> dict[Package, Path]:
    def fetch(package: Package) -> Path:
        try:
            return fetch_locked(fetcher, indices, package)
        except MissingFile as error:
            raise LockStale(str(error), hint="Run `gdsdeploy lock` on the fleet file, then try again") from None

    paths = {package: path for package in packages if (path := fetcher.find_cached(package.sha256, package.size))}
    missing = [package for package in packages if package not in paths]
    if missing:
        size = sum(package.size for package in missing) / 1e6
        with console.step(f"Fetching {len(missing)} packages ({size:.0f} MB)"):
            pool = ThreadPoolExecutor(_FETCHES_AT_ONCE)
            try:
                paths.update(zip(missing, pool.map(fetch, missing), strict=True))
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    return paths


#: Number of versions in an error.
_LISTED = 12
#: Index of a subject in ``Options.levels``.
_LEVEL = {"driver": 0, "kernel": 1, "nvidia-fs": 2}


@dataclass(frozen=True)
class StackChoices:
    """Version expressions for each subject; empty: the lock's version."""

    kernels: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    nvidia_fs: tuple[str, ...] = ()


@dataclass(frozen=True)
class StackCandidate:
    profile: str
    #: as ``uname -r`` prints it
    kernel: str
    kernel_package: str
    driver: str
    driver_package: str
    flavour: str
    #: empty in a mode without nvidia-fs
    nvidia_fs: str
    nvidia_fs_package: str
    #: None where its packages cannot be installed together
    target: Target | None
    #: the reason for that
    problem: str = ""
    #: what tells which packages these are (record.PACKAGES)
    packages: dict[str, str] = field(default_factory=dict)
    #: rules that forbid this combination
    against: tuple[Verdict, ...] = ()

    @property
    def label(self) -> str:
        """For progress and file names."""
        nvidia_fs = f", nvidia-fs {self.nvidia_fs}" if self.nvidia_fs else ""
        return f"kernel {self.kernel}, driver {self.driver}{nvidia_fs}"


def candidates(
    name: str,
    profile: Profile,
    platform: StackPlatform,
    universe: Universe,
    indices: Sequence[Index],
    sources: Sources,
    locked: Target | None,
    choices: StackChoices,
    rules: Sequence[Rule],
) -> list[StackCandidate]:
    """Every combination in ``choices``, in the order of its words; kernels outermost.

    Raises NoSolution, with the available versions, for one that the repositories don't have.
    """
    where = f"profile {name}"
    offered = options.find(_with_pins(profile), platform, universe)
    defaults = _defaults(profile, locked)

    def target_of(choice: tuple[Option, Option, Option]) -> tuple[Target | None, str]:
        """The packages of a choice, without compat.yml: the preflight tries also forbidden stacks."""
        kernel, driver, source = choice
        if locked is not None and _is_locked(locked, choice):
            return locked, ""
        nvidia_fs = f"=={source.version}" if source.packages else "newest"
        pinned = _with_pins(profile, f"=={kernel.release}", f"=={driver.version}", nvidia_fs)
        if locked:
            pinned = pinned.model_copy(update={"libcufile": f"=={locked.libcufile.version}"})
        try:
            return resolve(name, pinned, platform, universe, indices, sources, rules=()).target, ""
        except NoSolution as error:
            return None, error.message

    combinations = itertools.product(
        _pick(where, offered, "kernel", choices.kernels or defaults.kernels),
        _pick(where, offered, "driver", choices.drivers or defaults.drivers),
        _pick(where, offered, "nvidia-fs", choices.nvidia_fs or defaults.nvidia_fs),
    )
    stacks = []
    for kernel, driver, source in combinations:
        facts = {**base(profile, platform), **driver.facts, **kernel.facts, **source.facts}
        against = tuple(verdict for verdict in judge(facts, rules) if not verdict.allowed)
        target, problem = target_of((kernel, driver, source))
        stacks.append(
            StackCandidate(
                profile=name,
                kernel=kernel.release,
                kernel_package=str(kernel.facts["kernel_package"]),
                driver=str(driver.facts["driver"]),
                driver_package=str(driver.facts["driver_package"]),
                flavour=profile.driver.flavour,
                nvidia_fs=str(source.facts["nvidia_fs"] or ""),
                nvidia_fs_package=str(source.facts["nvidia_fs_package"] or ""),
                target=target,
                problem=problem,
                packages={subject: str(facts[subject]) for subject in PACKAGES if facts.get(subject)},
                against=against,
            )
        )
    return stacks


def _with_pins(profile: Profile, kernel: str = "newest", driver: str = "newest", nvidia_fs: str = "newest") -> Profile:
    kernel_pin = profile.kernel.model_copy(update={"version": kernel})
    driver_pin = profile.driver.model_copy(update={"version": driver})
    return profile.model_copy(update={"kernel": kernel_pin, "driver": driver_pin, "nvidia_fs": nvidia_fs})


def _defaults(profile: Profile, locked: Target | None) -> StackChoices:
    if locked is None:
        return StackChoices((profile.kernel.version,), (profile.driver.version,), (profile.nvidia_fs,))
    own = {package.part: package.version for package in locked.packages}
    return StackChoices(
        (f"=={locked.kernel.release}",),
        (f"=={own.get('driver-source', locked.driver.version)}",),
        (f"=={own.get('nvidia-fs-source', '0')}",),
    )


def _pick(where: str, offered: Options, subject: str, texts: Sequence[str]) -> list[Option]:
    """The newest option that each of ``texts`` admits, each once."""
    level = offered.levels[_LEVEL[subject]]
    if subject == "nvidia-fs" and level and not level[0].packages:
        return level[:1]
    picked: list[Option] = []
    for text in texts:
        try:
            pin = parse_versions(text)
        except ValueError as error:
            raise GdsError(
                f"{where}: {subject} {text!r}: {error}", hint='Give a release, a version, a branch, or "newest"'
            ) from None
        newest = next((option for option in level if pin.admits(*option.names)), None)
        if newest is None:
            raise _unavailable(where, offered, subject, text)
        if newest not in picked:
            picked.append(newest)
    return picked


def _unavailable(where: str, offered: Options, subject: str, text: str) -> NoSolution:
    level = offered.levels[_LEVEL[subject]]
    names = [option.release or option.version for option in level]
    more = ", …" if len(names) > _LISTED else ""
    version = text.lstrip("=")
    refusals = [option.refused for option in offered.incomplete if option.subject == subject]
    lines = [f"{where}: the repositories have no {subject} {version}"]
    lines += [f"  - {refusal.what}: {refusal.words}" for refusal in refusals if version in refusal.choice]
    return NoSolution("\n".join(lines), hint=f"They have {', '.join(names[:_LISTED]) or 'none'}{more}")


def _is_locked(locked: Target, choice: tuple[Option, Option, Option]) -> bool:
    digests = {(package.package, package.version, package.sha256) for package in locked.packages}
    packages = (package for option in choice for package in option.packages.values())
    return all((package.package, package.version, package.sha256) in digests for package in packages)


#: All of the driver's modules, where their common build fails.
DRIVER = "driver"
_PROGRAM, _PROGRESS = "gdsdeploy-host.pyz", "progress"


def require_machine(target: Target) -> None:
    """Raise GdsError unless this machine has the target's architecture."""
    if target.arch != machine.machine():
        raise GdsError(
            f"the profile is for {target.arch}, and this machine is {machine.machine()}: it can't run the compiler",
            hint=f"Run the preflight on an {target.arch} machine",
        )


def trial(candidate: StackCandidate, layers: Sequence[str], step: console.Step) -> PreflightRecord:
    """Build and audit ``candidate`` in a root of ``layers``; keep the build logs.  Raises what the root raises.

    step: shows what the build is at.
    """
    target = candidate.target
    assert target is not None
    begun = time.monotonic()
    with throwaway_root(layers) as throwaway:
        step.detail = partial(build_progress, throwaway.build / _PROGRESS)
        report = _build(throwaway, target)
        modules = [module for outcome in report["modules"] for module in modules_of(outcome)]
        if all(module.builds is Answer.YES for module in modules):
            modules = _audit(throwaway, target, modules)
        modules = [*untried(report, modules), *modules]
        logs = _keep_logs(throwaway, candidate)
    needed = required(modules, wants_peermem=target.pins.get("rdma") == "peermem")
    errors = [outcome["error"] for outcome in report["modules"] if outcome["error"]]
    return PreflightRecord(
        kernel=candidate.kernel,
        driver=candidate.driver,
        flavour=candidate.flavour,
        nvidia_fs=candidate.nvidia_fs,
        ingredients=compat.ingredients(target),
        builds=Answer.worst(module.builds for module in needed),
        loads=Answer.worst(module.loads for module in needed),
        modules=tuple(modules),
        seconds=round(time.monotonic() - begun, 1),
        time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        gdsdeploy=__version__,
        logs=logs,
        rules=tuple({rule["id"]: rule for error in errors for rule in error["rules"]}.values()),
        packages=candidate.packages,
    )


def _build(throwaway: Root, target: Target) -> dict[str, Any]:
    hostapp.build(throwaway.build / _PROGRAM)
    modules, options = ["driver"], ["--peermem", "stub"]
    if target.nvidia_fs is not None:
        modules.append("nvidia-fs")
        options += ["--source", target.nvidia_fs.source_tree]
    words = ["build", *modules, *options, "--output", "/build/modules/", "--progress", f"/build/{_PROGRESS}"]
    done = _kmod(throwaway, target, words, doing="build", ok=range(256))
    if not done.stdout.lstrip().startswith("{"):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        text = lines[-1].removeprefix("error: ") if lines else f"status {done.status}"
        raise GdsError(f"the preflight could not start the build: {text}", hint="The text is from the throwaway root")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _kmod(throwaway: Root, target: Target, words: Sequence[str], *, doing: str, ok: Sequence[int]) -> run.Completed:
    """Run the host program's ``kmod`` in the root, with the kernel and the driver of ``target``."""
    driver = ["--driver-version", target.driver.version, "--driver-flavour", target.driver.flavour]
    options = ["--kernel", target.kernel.release, *driver, "--json"]
    argv = ["python3", *hostapp.FLAGS, f"/build/{_PROGRAM}", "kmod", *words, *options]
    return throwaway.run(argv, doing=doing, ok=ok)


def modules_of(outcome: dict[str, Any]) -> list[ModuleResult]:
    """The results of one module, or of each of the driver's."""
    error = outcome["error"]
    # nvidia-peermem needs symbols of modules that OFED builds on the host; without them it is a stub.
    if error is not None and error["id"] == StubError.id:
        return [ModuleResult(PEERMEM, Answer.NOT_TRIED, Answer.UNKNOWN, error=error["message"])]
    if error is not None:
        # Anything but the sources' refusal is this machine's trouble.
        answer = Answer.NO if error["id"] == UnbuildableError.id else Answer.UNKNOWN
        return [ModuleResult(in_kernel(outcome["module"]), answer, answer, error=error["message"])]
    return [_module(file["name"], file["audit"]) for file in outcome["files"]]


def _module(name: str, audit: dict[str, Any]) -> ModuleResult:
    result = ModuleResult(name, Answer.YES, Answer.of(audit["ok"]), findings=tuple(audit["findings"]))
    return replace(result, loads=Answer.UNKNOWN) if _is_stub(result) else result


def untried(report: dict[str, Any], modules: Sequence[ModuleResult]) -> list[ModuleResult]:
    """The modules of the driver's tree that this build left out.  report: of ``kmod build``."""
    tried = {module.module for module in modules}
    if DRIVER in tried:
        return []
    names = [in_kernel(name) for name in report["driver_modules"]]
    return [ModuleResult(name, Answer.NOT_TRIED, Answer.NOT_TRIED) for name in names if name not in tried]


def _audit(throwaway: Root, target: Target, modules: Sequence[ModuleResult]) -> list[ModuleResult]:
    """Audit all modules together: each against the driver that would be loaded, not only its sources."""
    files = sorted(f"/build/modules/{path.name}" for path in (throwaway.build / "modules").glob("*.ko"))
    # Its exit statuses are done, failed and unknown.
    done = _kmod(throwaway, target, ["audit", *files], doing="audit the modules", ok=(0, 1, 3))
    audits = {audit["module"]: audit for audit in json.loads(done.stdout)}
    return [_module(module.module, audits[module.module]) if module.module in audits else module for module in modules]


def required(modules: Sequence[ModuleResult], *, wants_peermem: bool) -> list[ModuleResult]:
    """The modules that decide about a stack; an untried nvidia-peermem or a stub does only with ``wants_peermem``."""
    return [module for module in modules if wants_peermem or not _is_idle_peermem(module)]


def _is_idle_peermem(module: ModuleResult) -> bool:
    return _is_stub(module) or (module.module == PEERMEM and module.builds is Answer.NOT_TRIED)


def _is_stub(module: ModuleResult) -> bool:
    return any(finding["id"] == StubError.id for finding in module.findings)


def _keep_logs(throwaway: Root, candidate: StackCandidate) -> tuple[str, ...]:
    folder = paths.state() / "preflight" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9.+~-]+", "-", f"{candidate.kernel}-{candidate.driver_package}")
    logs = sorted((throwaway.build / "modules").glob("*.log"))
    return tuple(str(shutil.copyfile(path, folder / f"{stem}-{path.name}")) for path in logs)


@dataclass(frozen=True)
class Cell:
    """One stack of the table and its record; None: its packages cannot be installed together."""

    candidate: StackCandidate
    record: PreflightRecord | None
    #: whether the record is an earlier run's
    is_earlier: bool


def preflight(
    fleet: Fleet,
    lock: Lock | None,
    profiles: Sequence[str],
    choices: StackChoices,
    *,
    again: bool,
    fetcher: Fetcher,
    now: datetime | None = None,
) -> list[Cell]:
    """Try every stack in ``choices`` for every profile.

    again: ignore the records of earlier runs.  now: as for read_repositories.
    Raises NoSolution for versions that the repositories don't have, MissingProgram, GdsError for a profile that
    this machine can't try, and what reading repositories raises.
    """
    cells: list[Cell] = []
    rules = rules_of(fleet)
    for name in profiles:
        profile = fleet.profiles[name]
        if options.is_packaged(profile):
            raise GdsError(
                f"profile {name} takes its modules from packages: there is nothing to build",
                hint="`gdsdeploy lock` has read kernel, versions, flavour and signer in the packages. Hosts audit"
                " symbol versions and signatures before they boot the kernel; only that boot proves that they load",
            )
        platform = stack_platform_for(profile.os)
        require(platform.kind)
        repositories = repo_settings.repositories(fleet, name, platform)
        with console.step(f"Reading {', '.join(map(str, repositories))}"):
            universe, indices = read_repositories(fetcher, repositories, platform.architecture(profile.arch), now=now)
        locked = lock.targets.get(name) if lock else None
        sources = PackageReader(fetcher, indices, console.step).source_tree
        cells += (
            _cell(candidate, platform, universe, again=again, fetcher=fetcher)
            for candidate in candidates(name, profile, platform, universe, indices, sources, locked, choices, rules)
        )
    return cells


def _cell(
    candidate: StackCandidate,
    platform: StackPlatform,
    universe: Universe,
    *,
    again: bool,
    fetcher: Fetcher,
) -> Cell:
    target = candidate.target
    if target is None:
        return Cell(candidate, None, is_earlier=False)
    require_machine(target)
    earlier = None if again else find(target)
    if earlier is not None:
        return Cell(candidate, earlier, is_earlier=True)
    below = layers(target, platform, universe, fetcher)
    with console.step(f"Trying {candidate.label}") as step:
        new = trial(candidate, below, step)
        step.failure = "" if new.ok else "failed" if new.failed else "undecided"
    if new.builds is not Answer.UNKNOWN:
        keep(new)
    return Cell(candidate, new, is_earlier=False)
