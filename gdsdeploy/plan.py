"""Lock × facts → what provision would change on a machine, in the roles' order, each with its reason and disruption.

Pure.  What could not be read is said as unknown: such a machine is never one with nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gdsdeploy.builds import Supply
from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.document import Ran
from gdsdeploy.host.facts.managed import Entry, ManagedFacts
from gdsdeploy.host.facts.packages import Package
from gdsdeploy.repo import dnfpins
from gdsdeploy.repo.order import Order
from gdsdeploy.roletasks import Managed

Disruption = Literal["none", "module reload", "reboot"]
#: From the least to the most.
DISRUPTIONS: Final[tuple[Disruption, ...]] = ("none", "module reload", "reboot")

#: Tasks that change a machine otherwise than by one file, and the action here that stands for them.
#: A test holds the roles against it, so that a new task cannot be forgotten.
COVERED: Final = {
    ("gds_packages", "Install the locked versions"): "packages",
    ("gds_packages", "Write down what was not there before"): "packages",
    ("gds_packages", "Say what would be installed"): "packages",
    ("gds_packages", "Let go of what provision holds and the lock no longer has"): "holds",
    ("gds_packages", "Write down what provision holds"): "holds",
    ("gds_packages", "Hold what is installed"): "holds",
    ("gds_repo", "Have the plugin that locks versions"): "locks",
    ("gds_repo", "Forget which streams were enabled"): "locks",
    ("gds_repo", "Enable the locked module streams"): "locks",
    ("gds_repo", "Have rpm trust the keys"): "files",
    ("gds_repo", "Lock the versions"): "locks",
    ("gds_kernel", "Make it the kernel that boots"): "boot default",
    ("gds_secureboot", "Sign what is not signed yet"): "sign",
    ("gds_secureboot", "Ask the owner to enrol the key"): "enrol",
    ("gds_modules", "Build with DKMS"): "build",
    ("gds_modules", "Audit the modules against this host's kernel and put them in place"): "modules in place",
    ("gds_modules", "Load those that are not"): "load",
    ("gds_peermem", "Have systemd read the condition"): "files",
    ("gds_peermem", "Enable nvidia-peermem as its unit has it now"): "files",
    ("gds_peermem", "Unload nvidia-peermem and forget its unit"): "files",
    ("gds_peermem", "Load nvidia-peermem"): "load",
    ("gds_gate", "Enable the gate as its unit has it now"): "files",
    ("gds_gate", "Disable the gate"): "files",
    ("gds_reboot", "Reboot into the locked kernel"): "reboot",
}

#: Loaded by a unit of its own, so no reboot is for it.
PEERMEM: Final = "nvidia-peermem"
#: Where a machine keeps the archive of its modules.
ARCHIVE: Final = "/var/lib/gdsdeploy/modules-{}.tar"
#: Roles and the variable that names the packages each of them installs.
_PACKAGES: Final = {
    "gds_driver": "gds_driver_packages",
    "gds_kernel": "gds_kernel_packages",
    "gds_cufile": "gds_cufile_packages",
    "gds_modules": "gds_modules_packages",
}
#: Named one by one; the rest is counted.
_NAMED: Final = 3


@dataclass(frozen=True)
class Action:
    """One change: what is done, what was found, what is wanted, and what it does to work that is running."""

    role: str
    what: str
    found: str
    wanted: str
    disruption: Disruption = "none"


@dataclass(frozen=True)
class HostPlan:
    """What provision would do on one machine."""

    host: str
    actions: tuple[Action, ...] = ()
    #: what could not be told, each as a sentence
    unknown: tuple[str, ...] = ()
    #: why preflight would refuse the machine; empty: it would not
    refusal: str = ""
    #: where its modules come from; None where that was not asked
    supply: Supply | None = None

    @property
    def satisfied(self) -> bool:
        """Whether it is proven that there is nothing to do."""
        return not self.actions and not self.unknown and not self.refusal

    @property
    def disruption(self) -> Disruption:
        """The worst of all actions."""
        return max((action.disruption for action in self.actions), key=DISRUPTIONS.index, default="none")


@dataclass(frozen=True)
class Wanted:
    """What a machine has to be: the roles' variables, and the files that their tasks leave with them."""

    #: as the inventory has them
    variables: Mapping[str, Any]
    files: tuple[Managed, ...]
    #: file tasks that could not be judged, each as a sentence
    undecided: tuple[str, ...]
    #: sha256 of the controller's archive of modules; None: there is none
    archive: str | None
    #: where its modules come from; None: as the fleet file says
    supply: Supply | None = None


def plan(host: str, wanted: Wanted, facts: ManagedFacts, order: Order) -> HostPlan:
    """What the roles would change on ``host`` to bring it from ``facts`` to ``wanted``.

    order: of the versions of its package family.
    """
    made = _Plan(wanted, facts, order)
    refusal = made.refusal()
    made.files()
    if wanted.variables["gds_repo_manager"] == "dnf":
        made.locks()
    made.packages()
    made.boot_default()
    if wanted.variables["gds_modules_from"] == "build":
        made.build()
    else:
        made.receive()
    made.signing()
    made.running()
    unknown = [*wanted.undecided, *made.unknown, *(f"the look at the host is incomplete: {gap}" for gap in facts.gaps)]
    roles = ["gds_repo", "gds_host", "gds_secureboot", *_PACKAGES, "gds_peermem", "gds_gate", "gds_reboot"]
    actions = sorted(made.actions, key=lambda action: roles.index(action.role) if action.role in roles else 0)
    return HostPlan(host, tuple(actions), tuple(dict.fromkeys(unknown)), refusal, wanted.supply)


def built_by_dkms(variables: Mapping[str, Any]) -> list[str]:
    """NAME/VERSION of what a machine that builds has DKMS build, as the role names it."""
    names = [f"{variables['gds_modules_driver_dkms_name']}/{variables['gds_modules_driver_version']}"]
    if variables["gds_modules_nvidia_fs_version"]:
        # The name of the source tree ends in the version that DKMS knows.
        version = re.sub(r"^.*-", "", variables["gds_modules_nvidia_fs_tree"])
        names.append(f"{variables['gds_modules_nvidia_fs_dkms_name']}/{version}")
    return names


class _Plan:
    """A plan while it is made."""

    def __init__(self, wanted: Wanted, facts: ManagedFacts, order: Order) -> None:
        self._order = order
        self._wanted, self._variables, self._facts = wanted, wanted.variables, facts
        self.actions: list[Action] = []
        self.unknown: list[str] = []

    def refusal(self) -> str:
        """As gds_preflight compares them: the major version decides."""
        name, machine = self._facts.os.name, self._facts.os.machine
        wanted, arch = self._variables["gds_preflight_os"], self._variables["gds_preflight_arch"]
        for value in (name, machine):
            if isinstance(value, Unknown):
                self.unknown.append(value.reason)
                return ""
        assert isinstance(name, str)
        if (name == wanted or name.startswith(wanted + ".")) and machine == arch:
            return ""
        return f"it runs {name} on {machine}, and its profile was locked for {wanted} on {arch}"

    def files(self) -> None:
        """Files and folders, by content, mode and owner."""
        for item in self._wanted.files:
            found = self._facts.path(item.path)
            if isinstance(found, Unknown):
                self.unknown.append(found.reason)
                continue
            differs = _difference(item, found)
            if differs:
                verb = {"file": "write", "folder": "make the folder", "path": "make", "absent": "remove"}[item.kind]
                wanted = " ".join(
                    part for part in (f"sha256 {item.sha256[:12]}…" if item.sha256 else "", item.mode) if part
                )
                words = f"{verb} {item.path} ({item.step[:1].lower()}{item.step[1:]})"
                self.actions.append(Action(item.role, words, differs, wanted or item.kind))

    def locks(self) -> None:
        """Dnf's list of locks and its module streams."""
        listed, enabled = (self._facts.commands.get(name) for name in dnfpins.QUESTIONS)
        # Neither command ends well where there is nothing to show, which says as much.
        if not isinstance(listed, Ran) or not isinstance(enabled, Ran):
            self.unknown.append("what dnf has locked was not looked at")
            return
        pins, wanted = self._variables["gds_repo_pins"], self._variables["gds_repo_modules"]
        if dnfpins.ours(listed.stdout) != dnfpins.locks(pins, self._variables["gds_repo_deny"]):
            words = f"lock the versions of {len(pins)} packages in {dnfpins.QUESTIONS['dnf-locks'][-1]}"
            self.actions.append(Action("gds_repo", words, "other locks", "those of the lock"))
        for item in dnfpins.missing(wanted, enabled.stdout.splitlines()):
            self.actions.append(Action("gds_repo", f"enable the module stream {item}", "not enabled", item))

    def packages(self) -> None:
        """Packages that are not installed in the locked version."""
        installed = self._facts.packages.installed
        if isinstance(installed, Unknown):
            self.unknown.append(f"the installed packages: {installed.reason}")
            return
        loose = []
        for role, variable in _PACKAGES.items():
            for package in self._variables[variable]:
                name, version = package["package"], package["version"]
                there = [item for item in installed.get(name, ()) if item.status[1:2] == "i"]
                if any(item.version == version for item in there):
                    loose += [name] if not any(item.status.startswith("h") for item in there) else []
                    continue
                found = there[0].version if there else ""
                verb = self._verb(found, version)
                words = f"{verb} {name}"
                self.actions.append(Action(role, words, found or "not installed", version))
        self._leaving(installed)
        # dnf and zypper hold by files, which are judged as such.
        if loose and self._variables.get("gds_packages_manager") == "apt":
            what = f"hold {', '.join(sorted(loose)[:_NAMED])}" + (" …" if len(loose) > _NAMED else "")
            self.actions.append(Action("gds_driver", what, f"{len(loose)} not held", "held"))

    def _leaving(self, installed: Mapping[str, Sequence[Package]]) -> None:
        """Sources of DKMS that go when the driver comes in another version; those that come again are upgraded."""
        if not self._pending("gds_driver"):
            return
        wanted = {item["package"] for item in self._variables["gds_repo_pins"]}
        for package in self._variables["gds_driver_leaving"]:
            name = package["package"]
            there = [item for item in installed.get(name, ()) if item.status[1:2] == "i"]
            if there and name not in wanted and there[0].version != package["version"]:
                words = f"remove {name}, whose driver goes"
                self.actions.append(Action("gds_driver", words, there[0].version, "not installed"))

    def boot_default(self) -> None:
        """The kernel that boots; the host program says what it would change, as the role has it do."""
        if not self._variables["gds_kernel_boot"]:
            return
        release = self._variables["gds_kernel_release"]
        answer = self._facts.answer("boot-default")
        if isinstance(answer, Unknown):
            if self._pending("gds_kernel"):
                words = f"make {release} the kernel that boots"
                self.actions.append(Action("gds_kernel", words, answer.reason, release))
            else:
                self.unknown.append(f"the kernel that boots by default: {answer.reason}")
        elif answer.get("changes"):
            found = f"other: {_some(answer['changes'])}"
            self.actions.append(Action("gds_kernel", f"make {release} the kernel that boots", found, release))

    def build(self) -> None:
        """Modules that DKMS has not built, that the audit refuses, or that a builder has not handed over."""
        release = self._variables["gds_modules_kernel_release"]
        before = len(self.actions)
        lacking = self._unbuilt()
        for item in lacking:
            words = f"build {item} with DKMS for kernel {release}"
            self.actions.append(Action("gds_modules", words, "not installed by DKMS", release))
        audit = self._facts.answer("audit")
        if not lacking and isinstance(audit, Unknown) and not self._pending("gds_modules", "gds_kernel"):
            self.unknown.append(f"the audit of the modules: {audit.reason}")
        elif not isinstance(audit, Unknown) and audit.get("objections"):
            found = _some(audit["objections"])
            self.actions.append(Action("gds_modules", "audit the modules", found, "an audit without objections"))
        if self._variables["gds_modules_archive"]:
            self._handed_over(release, changed=len(self.actions) > before)

    def signing(self) -> None:
        """Modules that are not signed as the fleet wants it, and a key that Secure Boot wants to be enrolled."""
        if not self._variables["gds_secureboot_certificate"]:
            return
        answer = self._facts.answer("signing")
        if isinstance(answer, Unknown):
            coming = any(action.role == "gds_secureboot" for action in self.actions)
            if not coming and not self._pending("gds_modules", "gds_kernel"):
                self.unknown.append(f"the modules' signatures: {answer.reason}")
            return
        for path in answer.get("unsigned", ()):
            self.actions.append(Action("gds_secureboot", f"sign {path}", "another signature, or none", "the fleet's"))
        if answer.get("state") in ("absent", "pending"):
            words = "have the key of the modules enrolled, by a person at the console"
            self.actions.append(Action("gds_secureboot", words, str(answer["state"]), "enrolled", "reboot"))

    def _unbuilt(self) -> list[str]:
        answer = self._facts.answer("dkms")
        if isinstance(answer, Unknown):
            if self._pending("gds_modules", "gds_kernel"):
                return built_by_dkms(self._variables)
            self.unknown.append(f"what DKMS has built: {answer.reason}")
            return []
        return [name for name in built_by_dkms(self._variables) if name not in answer.get("installed", ())]

    def _handed_over(self, release: str, *, changed: bool) -> None:
        """A builder's archive on the controller is the one that it packed last."""
        if self._wanted.supply is not None and self._wanted.archive and not changed:
            # Whoever of those with the same key has built what the controller keeps.
            return
        found = self._facts.path(ARCHIVE.format(release))
        if isinstance(found, Unknown):
            self.unknown.append(found.reason)
        elif changed or found is None or self._wanted.archive != found.sha256:
            words = "the controller has another one" if self._wanted.archive else "the controller has none"
            self.actions.append(Action("gds_modules", "hand the audited modules to the controller", words, release))

    def receive(self) -> None:
        """Modules that a builder built: delivered, brought, and in place."""
        release = self._variables["gds_modules_kernel_release"]
        answer = self._facts.answer("modules")
        if not self._variables["gds_modules_archive"]:
            # What was received stays; where its archive is still there, it says whether it is in place.
            if not isinstance(answer, Unknown) and answer.get("changes"):
                self._in_place(release, _some(answer["changes"]))
            return
        if self._wanted.archive is None:
            self.actions.append(Action("gds_modules", self._to_receive(), "the controller has none", release))
            return
        brought = any(ARCHIVE.format(release) in action.what for action in self.actions)
        if isinstance(answer, Unknown):
            if brought or self._pending("gds_kernel"):
                self._in_place(release, answer.reason)
            else:
                self.unknown.append(f"the modules for kernel {release}: {answer.reason}")
        elif answer.get("changes"):
            self._in_place(release, _some(answer["changes"]))
        elif brought:
            self._in_place(release, "those of another archive")

    def _to_receive(self) -> str:
        supply = self._wanted.supply
        if supply is not None and supply.lack:
            return f"receive the modules, which nobody builds: {supply.lack}"
        builder = supply.builder if supply is not None and supply.builder else "the builder"
        return f"receive the modules of {builder}, which has to deliver them first"

    def _in_place(self, release: str, found: str) -> None:
        words = f"audit the received modules and put them in place for kernel {release}"
        self.actions.append(Action("gds_modules", words, found, "those of the builder's archive"))

    def running(self) -> None:
        """What runs: modules to load, and whether only a reboot brings what is installed."""
        if not self._variables["gds_modules_load"]:
            return
        release = self._variables["gds_reboot_kernel_release"]
        answer = self._facts.answer("reboot")
        if isinstance(answer, Unknown):
            self.unknown.append(f"what runs: {answer.reason}")
            return
        unloaded = [str(name) for name in answer.get("unloaded", ())]
        for name in unloaded:
            role = "gds_peermem" if name == PEERMEM else "gds_modules"
            self.actions.append(Action(role, f"load {name}", "not loaded", "loaded", "module reload"))
        reasons = [str(text) for text in answer.get("reasons", ()) if PEERMEM not in str(text)]
        reasons = [text for text in reasons if not _is_unloaded(text, unloaded)]
        loaded = set(self._variables["gds_reboot_modules"]) - set(unloaded)
        replaced = any(a.role == "gds_modules" and a.disruption == "none" and _modules(a) for a in self.actions)
        if not reasons and replaced and loaded:
            reasons = [f"{', '.join(sorted(loaded))}: loaded from files that are replaced"]
        if reasons:
            allowed = self._variables["gds_reboot_ok"]
            words = "reboot" if allowed else "reboot, which its profile leaves to you"
            self.actions.append(Action("gds_reboot", words, "; ".join(reasons), f"kernel {release}", "reboot"))

    def _verb(self, found: str, wanted: str) -> str:
        if not found:
            return "install"
        return "upgrade" if self._order.key(found) < self._order.key(wanted) else "downgrade"

    def _pending(self, *roles: str) -> bool:
        """Whether packages of these roles are still to come."""
        verbs = ("install ", "upgrade ", "downgrade ")
        return any(action.role in roles and action.what.startswith(verbs) for action in self.actions)


def _modules(action: Action) -> bool:
    """Whether an action of gds_modules puts other module files in place."""
    return action.what.startswith(("build ", "audit the received", "receive the modules"))


def _is_unloaded(reason: str, unloaded: Sequence[str]) -> bool:
    return any(reason == f"the module {name} is not loaded" for name in unloaded)


def _difference(item: Managed, found: Entry | None) -> str:
    """How what is there differs from what is wanted; empty: it does not."""
    if item.kind == "absent":
        return "" if found is None else "it is there"
    if found is None:
        return "missing"
    if found.kind != item.kind and item.kind != "path":
        return f"a {found.kind}"
    if item.kind == "file" and found.sha256 != item.sha256:
        return "other content"
    if item.mode and int(found.mode, 8) != int(item.mode, 8):
        return f"mode {found.mode}"
    if item.mode and (found.uid, found.gid) != (0, 0):
        return f"owner {found.uid}:{found.gid}"
    return ""


def _some(items: Sequence[Any]) -> str:
    rest = len(items) - _NAMED
    return "; ".join(str(item) for item in items[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
