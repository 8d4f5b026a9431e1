"""Audited kernel modules for the locked kernel: built here with DKMS, received from a machine, or of locked packages.

Modules are changed together, after the last change was announced: DKMS builds packages in the order in which they
depend on each other, and received modules are one folder that is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence

from ..archive import key, pack, provenance
from ..audit.audit import Result, audit, audit_packaged, stack_files
from ..build import dkms
from ..build.dkms import TIMEOUT
from ..errors import ApplyError, CannotTellError, HostError, KernelError, PackError
from ..io import atomic
from ..kmod import driver as drivers, files
from ..kmod.driver import Expected
from ..kmod.kernel import Kernel, run_depmod
from ..kmod.module import ERROR, UNKNOWN, outcome_of
from ..kmod.packaged import FOLDER, STALE, dkms_version, installed_manifest, problems, received_parts, shadows
from ..kmod.packaged_file import PackagedFile
from ..model.schema import LINES
from ..rootdir import inside
from ..secure_boot import signing as signatures
from ..secure_boot.signature import signer_of
from .host import ManagedHost
from .model import INSTALLS, Change, Flavour, Resource, Source, Words, with_kind

#: Kinds of changes: DKMS's build for this kernel leaves; modules.dep is written again.
UNBUILD, INDEX = "unbuild", "index"
#: Reason of what leaves.
SHADOWS = "shadows"


def observe_packaged(kernel: Kernel, expected: Expected, files: Sequence[PackagedFile]) -> Dict[str, Any]:
    """Plain data: ``shadows``, as ``packaged.shadows``; ``stale``: whether depmod has to run; ``objections``."""
    return {
        "shadows": shadows(kernel, files),
        "stale": any(problem.id == STALE for problem in problems(kernel, files)),
        "objections": packaged_objections(kernel, expected, files),
    }


def packaged_objections(kernel: Kernel, expected: Expected, files: Sequence[PackagedFile]) -> List[Dict[str, str]]:
    """``{"module", "id", "message", "hint"}`` of what is wrong or undecided, each module's file first."""
    wrong = problems(kernel, files)
    names = sorted({file.module for file in files} - {problem.file.module for problem in wrong})
    listed = [{"module": one.file.module, "id": one.id, "message": one.message, "hint": one.hint} for one in wrong]
    return listed + _listed(audit_packaged(kernel, names, expected, files) if names else ())


def _listed(results: Sequence[Result]) -> List[Dict[str, str]]:
    """The same of what an audit finds."""
    return [
        {"module": result["module"] or result["file"], **{key: finding[key] for key in ("id", "message", "hint")}}
        for result in results
        for finding in result["findings"]
        if outcome_of(finding) in (ERROR, UNKNOWN)
    ]


def _require_none(objections: Sequence[Mapping[str, str]], modules: str, hint: str) -> None:
    if objections:
        listed = "; ".join("{module}: [{id}] {message}".format(**entry) for entry in objections)
        raise ApplyError(f"the {modules} do not pass their audit: {listed}", hint, "modules")


def packaged_changes(release: str, observed: Dict[str, Any], pending: Sequence[Change]) -> List[Change]:
    """What leaves or is written again; without that, the objections.

    observed: its answer ``packaged`` is of :func:`observe_packaged`.  Raises CannotTellError.
    """
    awaits = any(change.kind in INSTALLS and change.resource.startswith("packages.") for change in pending)
    if observed["packaged"]["error"] and awaits:
        # The kernel is to come.
        return []
    state = _require_answer(observed, "packaged")
    removals = [
        Change("delete", f"/lib/modules/{release}/{FOLDER}", "", "", SHADOWS)
        if name == FOLDER
        else Change(UNBUILD, name, release, "", SHADOWS)
        for name in state["shadows"]
    ]
    if state["stale"]:
        removals.append(Change(INDEX, f"/lib/modules/{release}/modules.dep", "", "", STALE))
    if removals or awaits:
        return removals
    return [Change("audit", entry["module"], "", "", entry["id"]) for entry in state["objections"]]


def settle_packaged(
    host: ManagedHost, release: str, expected: Expected, files: Sequence[PackagedFile], changes: Sequence[Change]
) -> None:
    """Make the changes, then audit; raises ApplyError of kind ``modules`` with every objection."""
    for change in changes:
        if change.kind == "delete":
            pack.remove_from(release, host.root)
        elif change.kind == UNBUILD:
            host.run(["dkms", "uninstall", change.subject, "-k", release], TIMEOUT)
            again = f"DKMS still has {change.subject}, and may install it again"
            host.notes.append(f"{again}; to prevent that: dkms remove {change.subject} --all")
    run_depmod(host.root, release, ApplyError, "run it by hand, and see what it says")
    host.forget()
    wrong = packaged_objections(Kernel(release, host.root), expected, files)
    hint = next((entry["hint"] for entry in wrong if entry["hint"]), "gdsdeploy-host.pyz guard status shows more")
    _require_none(wrong, f"packaged modules for kernel {release}", hint)


BUILD, RECEIVE, PACKAGED = "build", "receive", "packaged"
#: ``archive_sha256`` of a machine whose builder hasn't delivered yet.
NOT_DELIVERED = "none"
#: Where a machine keeps the archive of its modules.
ARCHIVE = "/var/lib/gdsdeploy/modules-{}.tar"
_NO_SETTINGS = f"{signatures.SETTINGS} is missing: it names the key that signs the modules"
#: Reasons of builds, by what DKMS has to do.
_REASONS = {"install": "not-installed", "rebuild": "stale"}


@dataclass(frozen=True)
class Desired:
    """The kernel modules of the driver, and of nvidia-fs, as DKMS and the lock name them."""

    #: Build the modules on this machine, receive them, or have them from packages.
    source: Source
    #: Release of the kernel that the modules are for, running or not.
    kernel_release: str
    #: Upstream version of the driver.
    driver_version: str
    #: Flavour of the driver's kernel modules.
    driver_flavour: Flavour
    #: The driver's source tree to build against; empty with packaged modules.
    driver_tree: str
    #: Name of the driver in DKMS; empty with packaged modules.
    driver_dkms_name: str
    #: Upstream version of nvidia-fs; empty if nvidia-fs isn't built.
    nvidia_fs_version: str = ""
    #: Source tree of nvidia-fs.
    nvidia_fs_tree: str = ""
    #: Name of nvidia-fs in DKMS.
    nvidia_fs_dkms_name: str = "nvidia-fs"
    #: Modules that the host loads.
    names: List[str] = field(default_factory=list)
    #: Whether the modules have to be signed, as ``/etc/gdsdeploy/signing.json`` says.
    signed: bool = False
    #: Whether what was built is packed, for the controller to fetch.
    hand_over: bool = False
    #: The builder's name in its signature: this machine's, or that of the machine whose archive it receives.
    builder: str = ""
    #: Public key (PEM) of the machine that builds, on machines that receive.
    builder_key: str = field(default="", metadata=LINES)
    #: sha256 of the archive to receive, which is brought before.  Empty: what is there stays.  ``none``: a builder has
    #: to deliver it first.
    archive_sha256: str = ""
    #: Module files of locked packages.
    packaged: List[PackagedFile] = field(default_factory=list)
    #: Whether DKMS builds for the locked kernel alone, and not for every kernel that has headers.
    target_only: bool = False


class Modules(Resource[Desired]):
    """The modules of the stack, on this machine."""

    name = "modules"
    desired_type = Desired
    removal_rank = 40
    kinds: ClassVar[Words] = {
        "build": "build {} with DKMS",
        "audit": "audit {}",
        "place": "put {} in place",
        "pack": "hand the audited modules to the controller",
        "receive": "receive {}",
        "delete": "delete {}",
        UNBUILD: "uninstall DKMS's build of {}",
        INDEX: "write {} again",
    }
    reasons: ClassVar[Words] = {
        "not-delivered": "the controller has none",
        "not-installed": "not installed by DKMS",
        "packages": "packages that are to come",
        "stale": "built against something else",
        "signature": "another signature, or none",
        "settings": "another signature, or none",
        "archive": "those of another archive",
        SHADOWS: "modules that have precedence over the packages'",
    }

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        """Plain data; what can't be read of it is an ``error``, which may not matter while packages are to come."""
        release = desired.kernel_release
        archive = host.entry(ARCHIVE.format(release))
        common = {
            "archive": archive.sha256 if archive is not None else "",
            "key": _answer(lambda: local_key(host, release)),
            "received": _answer(lambda: _received_modules(host, release)),
        }
        if desired.source == BUILD:
            return {**common, **_observe_build(host, desired)}
        if desired.source == PACKAGED:
            question = _expected(desired), desired.packaged
            return {
                **common,
                "packaged": _answer(lambda: observe_packaged(host.kernel(release), *question)),
            }
        path = inside(host.root, ARCHIVE.format(release))
        answer = _answer(lambda: [list(pair) for pair in pack.differences(path, host.kernel(release))])
        return {**common, "differences": answer if archive is not None else None}

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        if desired.source == PACKAGED:
            return packaged_changes(desired.kernel_release, observed, pending)
        return (_to_build if desired.source == BUILD else _to_receive)(desired, observed, pending)

    def settle(self, host: ManagedHost, desired: Desired, changes: Sequence[Change]) -> None:
        """Build, sign, audit and pack; or verify, audit and place; or audit.  Raises ApplyError of kind ``modules``."""
        if not changes:
            return
        host.forget()
        with with_kind("modules"):
            if desired.source == BUILD:
                _build(host, desired, pack_them=any(change.kind == "pack" for change in changes))
            elif desired.source == PACKAGED:
                settle_packaged(host, desired.kernel_release, _expected(desired), desired.packaged, changes)
            else:
                _receive(host, desired)
        host.forget()

    def report(self, desired: Desired, observed: Any) -> Mapping[str, Any]:
        """What decides who builds for whom; in it, what couldn't be told is empty."""
        return {
            "dkms": (_value(observed, "dkms") or {}).get("installed", []),
            "audit": _value(observed, "audit"),
            "key": _value(observed, "key") or {},
            "received": _value(observed, "received") or {},
            "archive": observed["archive"],
            "observed": observed,
        }

    def revert(self, host: ManagedHost) -> List[Change]:
        """Remove received modules, of every kernel; what DKMS built goes with its packages."""
        with with_kind("modules"):
            releases = pack.placed_releases(host.root)
            results = [pack.remove_from(release, host.root, check=host.check) for release in releases]
        host.forget()
        return [Change("delete", path, "", "", "restore") for result in results for path in result["changes"]]


# Questions


def local_key(host: ManagedHost, release: str) -> Dict[str, Any]:
    """The ingredients of a build that this machine determines; see :func:`archive.key.told`."""
    try:
        return key.host_ingredients(host.kernel(release), os.uname().machine)
    except KernelError:
        return key.host_ingredients(None, os.uname().machine)


def packages(desired: Desired) -> List[dkms.Package]:
    """What DKMS builds, in the order in which it depends on each other."""
    driver = dkms.Package(desired.driver_dkms_name, desired.driver_version, "driver")
    nvidia_fs = dkms.Package(desired.nvidia_fs_dkms_name, dkms_version(desired.nvidia_fs_tree), "nvidia-fs")
    return [driver, nvidia_fs] if desired.nvidia_fs_version else [driver]


def objections(kernel: Kernel, desired: Desired) -> Dict[str, Any]:
    """``audited`` modules and ``objections`` to them: ``{"module", "id", "message", "hint"}``."""
    digest = files.digest(files.expect(inside(kernel.root, desired.driver_tree)))
    results = audit(kernel, (), drivers.Expected(desired.driver_version, desired.driver_flavour, digest, False))
    return {"audited": [result["module"] for result in results], "objections": _listed(results)}


def _expected(desired: Desired) -> drivers.Expected:
    """The locked versions of packaged modules, which have no source tree."""
    version, flavour = desired.driver_version, desired.driver_flavour
    return drivers.Expected(version, flavour, nvidia_fs_version=desired.nvidia_fs_version)


def unsigned(kernel: Kernel, certificate: str) -> List[str]:
    """Files that don't have the signature of the certificate in this file."""
    parsed = signatures.read_certificate_file(certificate)
    return [path for path in stack_files(kernel) if not signatures.is_signed(path, parsed)]


def _answer(ask: Callable[[], Any]) -> Dict[str, Any]:
    try:
        return {"value": ask(), "error": "", "hint": ""}
    except HostError as error:
        return {"value": None, "error": error.message, "hint": error.hint}
    except OSError as error:
        return {"value": None, "error": f"{error.filename}: {error.strerror}", "hint": ""}


def _value(observed: Mapping[str, Any], question: str) -> Any:
    return (observed.get(question) or {}).get("value")


# Built here


def _observe_build(host: ManagedHost, desired: Desired) -> Dict[str, Any]:
    release = desired.kernel_release
    observed: Dict[str, Any] = {"dkms": _answer(lambda: _dkms(host, desired)), "audit": None, "unsigned": None}
    steps = (observed["dkms"]["value"] or {}).get("steps", [])
    observed["packed"] = False
    if observed["dkms"]["error"] or any(step["kernel_release"] == release for step in steps):
        # The present modules are replaced.
        return observed
    observed["audit"] = _answer(lambda: objections(host.kernel(release), desired))
    if desired.signed:
        observed["unsigned"] = _answer(lambda: unsigned(host.kernel(release), _certificate(host)))
    # Without its key it has packed nothing yet, and a check makes none.
    if desired.hand_over and host.exists(provenance.KEY):
        archive = inside(host.root, ARCHIVE.format(release))
        answer = _answer(lambda: pack.is_current(archive, host.kernel(release), _builder(host, desired)))
        observed["packed"] = answer["value"] is True
    return observed


def _dkms(host: ManagedHost, desired: Desired) -> Dict[str, Any]:
    """``installed``: NAME/VERSION; ``steps``: what DKMS would build, for every kernel with headers."""
    kernel = host.kernel(desired.kernel_release)
    plan = dkms.provide(_dkms_request(host, desired), check=True)
    installed = [str(package) for package in packages(desired) if dkms.is_installed(kernel, package)]
    return {"installed": installed, "steps": plan["done"], "notes": plan["notes"]}


def _dkms_request(host: ManagedHost, desired: Desired) -> dkms.DkmsRequest:
    source = files.expect(inside(host.root, desired.driver_tree), desired.driver_version, desired.driver_flavour)
    peermem = "nvidia-peermem" in desired.names
    return dkms.DkmsRequest(desired.kernel_release, packages(desired), source, peermem, host.root, desired.target_only)


def _certificate(host: ManagedHost) -> str:
    settings = signatures.read_settings(inside(host.root, signatures.SETTINGS))
    if not settings:
        raise HostError(_NO_SETTINGS)
    return inside(host.root, settings.get("certificate", ""))


def _to_build(desired: Desired, observed: Any, pending: Sequence[Change]) -> List[Change]:
    changes = _builds(desired, observed, pending)
    if not any(change.after == desired.kernel_release for change in changes):
        changes += _signatures(observed, pending)
        entries = _require_answer(observed, "audit")["objections"]
        changes += [Change("audit", entry["module"], "", "", entry["id"]) for entry in entries]
    if desired.hand_over and (changes or not observed["packed"]):
        reason = "content" if observed["archive"] else "missing"
        before = f"sha256:{observed['archive']}" if observed["archive"] else ""
        changes.append(Change("pack", ARCHIVE.format(desired.kernel_release), before, "", reason))
    return changes


def _builds(desired: Desired, observed: Any, pending: Sequence[Change]) -> List[Change]:
    if _awaits_packages(pending, observed["dkms"]["error"]):
        return [Change("build", str(package), "", desired.kernel_release, "packages") for package in packages(desired)]
    steps = _require_answer(observed, "dkms")["steps"]
    return [Change("build", step["package"], "", step["kernel_release"], _REASONS[step["action"]]) for step in steps]


def _signatures(observed: Any, pending: Sequence[Change]) -> List[Change]:
    if observed["unsigned"] is None:
        return []
    if observed["unsigned"]["error"] and any(change.resource == "signing" for change in pending):
        audited = _require_answer(observed, "audit")["audited"]
        return [Change("sign", name, "", "signed", "settings") for name in audited]
    return [Change("sign", path, "", "signed", "signature") for path in _require_answer(observed, "unsigned")]


def _require_answer(observed: Any, question: str) -> Any:
    answer = observed[question]
    if answer["error"]:
        raise CannotTellError(f"the modules: {answer['error']}", answer["hint"], "modules")
    return answer["value"]


def _awaits_packages(pending: Sequence[Change], error: str) -> bool:
    """Whether packages come first: the kernel's, or after an error those of any resource."""
    names = [change.resource for change in pending if change.kind in INSTALLS]
    return any(name == "packages.kernel" or (error and name.startswith("packages.")) for name in names)


def _build(host: ManagedHost, desired: Desired, *, pack_them: bool) -> None:
    report = dkms.provide(_dkms_request(host, desired))
    host.notes += report["notes"]
    kernel = Kernel(desired.kernel_release, host.root)
    if desired.signed:
        by = signatures.from_settings(settings=inside(host.root, signatures.SETTINGS))
        if by is None:
            raise HostError(_NO_SETTINGS)
        signatures.sign(kernel, stack_files(kernel), by)
        kernel = Kernel(desired.kernel_release, host.root)
    result = objections(kernel, desired)
    if not result["audited"]:
        raise HostError(f"kernel {kernel.release} has none of NVIDIA's modules", "look at: dkms status")
    hint = "gdsdeploy-host.pyz kmod audit shows all findings"
    _require_none(result["objections"], f"modules for kernel {kernel.release}", hint)
    if pack_them:
        archive = inside(host.root, ARCHIVE.format(kernel.release))
        atomic.make_folder(os.path.dirname(archive))
        pack.pack(kernel, (), archive, _builder(host, desired))


def _builder(host: ManagedHost, desired: Desired) -> provenance.Builder:
    return provenance.Builder(desired.builder, provenance.own_key(host.root), host.run_id)


# Received


def _received_modules(host: ManagedHost, release: str) -> Dict[str, Any]:
    """What is in place of what was received, its ``signers``, and the ``builder`` that its archive names.

    Without the archive, there is no builder.
    """
    kernel = host.kernel(release)
    present, archive = received_parts(kernel), inside(host.root, ARCHIVE.format(release))
    if present:
        signers = [signer_of(path) for path in stack_files(kernel)]
        present["signers"] = sorted({"" if signer is None else signer.identity for signer in signers})
    with contextlib.suppress(PackError):
        if present and pack.read_manifest(archive) == installed_manifest(kernel):
            present["builder"] = provenance.claimed_builder(pack.read_provenance(archive))
    return present


def _to_receive(desired: Desired, observed: Any, pending: Sequence[Change]) -> List[Change]:
    expected, present = desired.archive_sha256, observed["archive"]
    whole = Change("place", f"/lib/modules/{desired.kernel_release}/{FOLDER}", "", desired.kernel_release, "archive")
    if expected and expected != present:
        after = "" if expected == NOT_DELIVERED else f"sha256:{expected}"
        reason = "not-delivered" if expected == NOT_DELIVERED else "content" if present else "missing"
        before = f"sha256:{present}" if present else ""
        return [Change("receive", ARCHIVE.format(desired.kernel_release), before, after, reason), whole]
    if not present:
        # Modules that were received earlier stay.
        return []
    if _awaits_packages(pending, observed["differences"]["error"]):
        return [whole]
    return [Change("place", path, "", "", reason) for path, reason in _require_answer(observed, "differences")]


def _receive(host: ManagedHost, desired: Desired) -> None:
    path = ARCHIVE.format(desired.kernel_release)
    entry, expected = host.entry(path), desired.archive_sha256
    if entry is None or (expected and entry.sha256 != expected):
        message = f"{path} is not the archive of modules that this host has to receive"
        hint = "provision the machine that builds first: run gdsdeploy provision without --limit"
        raise ApplyError(message, hint, "refused")
    archive = inside(host.root, path)
    # Without a digest it is the archive that this host already had.
    origin = provenance.Origin(desired.builder, desired.builder_key) if expected else None
    try:
        _require_locked(archive, desired, origin)
        report = pack.install(archive, Kernel(desired.kernel_release, host.root), origin=origin)
    except HostError:
        # A refused archive must not be taken for one that is in place.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(archive)
        raise
    host.notes += report["notes"]


def _require_locked(archive: str, desired: Desired, origin: Optional[provenance.Origin]) -> None:
    """Raise PackError unless the archive is of the versions that the lock has."""
    names = ("kernel_release", "driver_version", "driver_flavour", "nvidia_fs_version")
    locked = {name: getattr(desired, name) for name in names}
    wrong = provenance.differences(pack.read_manifest(archive, origin), locked) if origin is not None else []
    if wrong:
        raise PackError(f"refusing to install {archive}: {'; '.join(wrong)}", "provision its builder again")
