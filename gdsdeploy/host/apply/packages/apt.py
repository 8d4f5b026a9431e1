"""apt: deb822 sources, preferences, holds, and transactions that are simulated first."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ...errors import ApplyError, CannotTellError, NotOfferedError
from ...evidence.recorder import Recorder
from ...kmod.packaged import PREFIX
from ...model import compat
from ...process import Output
from ...rootdir import inside, list_folder
from ...subjects.packages import apt_inputs
from .. import files
from ..file_resource import restore
from ..files import File
from ..host import ManagedHost
from ..model import Change, Refusal
from . import aptsources, state as database
from .aptsources import HEAD, HOOK, PREFERENCES, names_to_deny, preferences, recorded_names, refresh
from .managers import REFRESH_SECONDS, TRANSACTION_SECONDS, Index, Manager, Package, Pin, list_packages, run
from .transaction import CONFLICTS, NEEDS, REPLACED

SOURCES = "/etc/apt/sources.list.d/gdsdeploy.sources"
_FOLDER = "/etc/apt/sources.list.d"
#: A source of packages on their way back.
_OFFER = f"{_FOLDER}/gdsdeploy-restore.sources"
_WAIT = "--option=DPkg::Lock::Timeout=300"
#: Changed configuration files stay as they are.
_CONFFILES = ["--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold"]
#: gdsdeploy holds the packages itself.
_CONFIGURE = ["dpkg", "--force-confdef", "--force-confold", "--configure", "--pending"]
_INSTALL = ["--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages", "install"]
#: Its packages have the same files under other names in NVIDIA's repository than in Ubuntu's archive, without Replaces.
_FIRMWARE = "nvidia-firmware"
_OVERWRITE = ["--option=DPkg::Options::=--force-overwrite"]
_CANDIDATE = re.compile(r"^([a-z0-9][a-z0-9+.-]+)(?::[a-z0-9]+)?:\n  Installed: .*\n  Candidate: (.*)$", re.MULTILINE)
_RECORD = re.compile(r"^(Package|Version|SHA256): (\S+)$", re.MULTILINE)
#: No questions, and no service that needrestart restarts: containerd or slurmd of a host at work.
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "LC_ALL": "C",
    "NEEDRESTART_SUSPEND": "1",
    # For a needrestart that doesn't know the variable above: it lists services.
    "NEEDRESTART_MODE": "l",
}
#: A query must neither wait for a lock nor leave a cache behind.
LOOK = ["--simulate", "--option=Debug::NoLocking=1"]
REMOVED = re.compile(r"^(?:Remv|Purg) (\S+)(?: \[(\S+)\])?", re.MULTILINE)
_INST = re.compile(r"^Inst (\S+) (?:\[(\S+)\] )?\((\S+) ", re.MULTILINE)
_FIELD = re.compile(r"^(Package|Architecture|Version|Replaces|Provides|Conflicts|Breaks|SHA256): (.*)$", re.MULTILINE)
#: The names in a field of relations.
_RELATION = re.compile(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)")
#: What apt prints of packages that can't be installed together, and its errors.
_UNMET = re.compile(r"^ (\S+) : (\S.*)$", re.MULTILINE)
_ERROR = re.compile(r"^E: (.*)$", re.MULTILINE)
_RELATIONS = "${Package}\\t${Architecture}\\t${Provides}\\t${Pre-Depends}, ${Depends}\\n"
_SECONDS = 120.0
_KEYRING_PACKAGES = {
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "/usr/share/keyrings/ubuntu-archive-keyring.gpg": "ubuntu-keyring",
    "/usr/share/keyrings/cuda-archive-keyring.gpg": "cuda-keyring",
}


class Apt(Manager):
    """Debian and Ubuntu."""

    name = "apt"
    kind = database.DPKG
    holds = True
    lists = True
    sources = (SOURCES,)
    keys = ("/etc/apt/keyrings/gdsdeploy-*.gpg",)
    configured = (SOURCES, PREFERENCES, HOOK.path)
    command = "apt-get"
    spare = "apt-get autoremove"
    kernel_hooks = ("/etc/kernel/postinst.d/zzz-gdsdeploy-guard", "/etc/kernel/postrm.d/zzz-gdsdeploy-guard")
    kernel_event = """\
case $0 in
    */postrm.d/*) event=remove ;;
    *) event=install ;;
esac
release=$1
"""

    # Repositories

    def keyring_hint(self, path: str) -> str:
        package = _KEYRING_PACKAGES.get(path)
        command = f": apt-get install {package}" if package else " (on Debian: debian-archive-keyring)"
        return f"install the package that carries it{command}"

    def source_files(self, host: ManagedHost, indices: Sequence[Index], pins: Sequence[Pin]) -> List[File]:
        return [File.of(SOURCES, render_sources(aptsources.missing_sources(existing(host), indices)))]

    def knows(self, host: ManagedHost, pins: Sequence[Pin]) -> bool:
        return not pins or {(pin.package, pin.version) for pin in pins} <= _offered_files(host, pins).keys()

    def refresh(self, host: ManagedHost) -> None:
        _apt_get(host, _WAIT, "--error-on=any", "update", seconds=REFRESH_SECONDS)

    def verify_files(self, host: ManagedHost, pins: Sequence[Pin]) -> None:
        """By the checksums that apt will hold the downloaded files against; what is installed is left alone."""
        offered, installed = _offered_files(host, pins), self.installed(host)
        others = [
            str(pin)
            for pin in pins
            if pin.sha256
            and pin.sha256 not in offered.get((pin.package, pin.version), set())
            and not (pin.package in installed and pin.version in installed[pin.package].versions)
        ]
        if others:
            hint = (
                'Either the repository no longer has them ("gdsdeploy lock FLEET --check" tells, "gdsdeploy lock FLEET"'
                " resolves again), or it serves other files under the same version: don't install them"
            )
            message = f"apt on this host does not offer the locked files of: {', '.join(others)}"
            raise ApplyError(message, hint, "verify")

    # Pins

    def observe_pins(self, host: ManagedHost, desired: Any) -> Any:
        """The preferences as they are and as apt's names for the repositories make them."""
        closed = any(index.exclusive for index in desired.indices)
        lines = targets(host, aptsources.TARGET_FORMAT) if closed else []
        repositories = aptsources.exclusive(lines, desired.indices)
        entry = host.entry(PREFERENCES)
        # Anything but a file there is refused.
        text_before = host.text(PREFERENCES) if entry is not None and entry.kind == files.FILE else ""
        packages = [pin.package for pin in desired.pins]
        names = recorded_names(text_before, desired.deny, packages)
        text = preferences(desired.pins, desired.deny, names, repositories)
        if text != text_before:
            names = names_to_deny(desired.deny, packages, ask(host, ["pkgnames"]).split())
            text = preferences(desired.pins, desired.deny, names, repositories)
        return {
            "file": File.of(PREFERENCES, text),
            "entry": entry,
            "others": [(HOOK, host.entry(HOOK.path))],
            "pinned": host.exists(PREFERENCES),
        }

    def pin_changes(self, desired: Any, observed: Any, pending: Sequence[Change]) -> List[Change]:
        """The file of preferences; its last part names repositories by what their lists say."""
        changes = files.compare(observed["file"], observed["entry"])
        if any(change.resource == "repositories" for change in pending):
            # What the lists say, this host knows when it has read them.
            changes = [replace(change, after="") for change in changes]
        return [*changes, *(change for pair in observed["others"] for change in files.compare(*pair))]

    def pin(self, host: ManagedHost, desired: Any, change: Change) -> None:
        host.write(HOOK if change.subject == HOOK.path else self.observe_pins(host, desired)["file"])

    def refresh_pins(self, host: ManagedHost) -> bool:
        """Pin names that the repositories have had since the file was written; whether there were any."""
        before = host.text(PREFERENCES)
        text = refresh(before, ask(host, ["pkgnames"]).split() if before else ())
        if text != before:
            host.write_unrecorded(File.of(PREFERENCES, text))
        return text != before

    def verify_pins(self, host: ManagedHost, desired: Any) -> None:
        if not desired.pins:
            return
        shown = ask(host, ["policy", "--", *(pin.package for pin in desired.pins)])
        candidates = set(_CANDIDATE.findall(shown))
        moved = [pin for pin in desired.pins if (pin.package, pin.version) not in candidates]
        if moved:
            hint = (
                "Another entry in /etc/apt/preferences.d wins, or the repository no longer has it "
                '("gdsdeploy lock FLEET --check" tells)'
            )
            words = f"apt would not take the locked version of: {', '.join(map(str, moved))}"
            raise ApplyError(words, hint, "verify")

    def unpin(self, host: ManagedHost) -> List[Change]:
        return restore(host, [PREFERENCES, HOOK.path])

    # Packages

    def order(self, version: str) -> Any:
        return compat.version_order(version)

    def simulate(self, host: ManagedHost, install: Sequence[Package], remove: Sequence[str]) -> Optional[List[Change]]:
        """What ``apt-get --simulate`` says; None while packages have to be installed again."""
        if self.broken(host):
            return None
        words = _transaction(install, remove)
        try:
            try:
                return simulate(host, words)
            except CannotTellError:
                # Of holds, apt says only that some package is held: without them, it says which would have to move.
                if not any(package.is_held for package in self.installed(host).values()):
                    raise
                return simulate(host, ["--ignore-hold", *words])
        except CannotTellError:
            if host.check and not self.unfinished(host):
                raise
            # What was interrupted is finished first, and the transaction itself will report why it fails.
            return None

    def install(
        self, host: ManagedHost, install: Sequence[Package], remove: Sequence[str], along: Sequence[str] = ()
    ) -> None:
        # Firmware of two makers: apt unpacks the one that comes before it removes the one that leaves.
        overwrites = _OVERWRITE if any(name.startswith(_FIRMWARE) for name in remove) else []
        # By itself, apt doesn't remove what is held.
        installed = self.installed(host)
        going = [*remove, *(name for name in along if name in installed and installed[name].is_held)]
        _apt_get(host, "--assume-yes", _WAIT, *_CONFFILES, *overwrites, *_transaction(install, going))

    def simulate_purge(self, host: ManagedHost, names: Sequence[str]) -> Optional[List[str]]:
        """The packages that go with them; gdsdeploy releases its holds first, so they don't count."""
        argv = ["apt-get", "--assume-yes", *LOOK, *_purge(names, with_held=True)]
        try:
            return [name for name, _ in REMOVED.findall(host.query(argv, env=ENVIRONMENT))]
        except CannotTellError:
            return None

    def purge(self, host: ManagedHost, names: Sequence[str], *, with_held: bool = False) -> None:
        _apt_get(host, "--assume-yes", _WAIT, *_purge(names, with_held=with_held))

    # Packages that left, on their way back

    def manual(self, host: ManagedHost) -> Set[str]:
        return set(host.query(["apt-mark", "showmanual"]).split())

    def mark_automatic(self, host: ManagedHost, names: Sequence[str]) -> None:
        run(host, ["apt-mark", "auto", *names], REFRESH_SECONDS, ENVIRONMENT)

    def simulate_return(self, host: ManagedHost, install: Sequence[Package], purged: Sequence[str]) -> List[Change]:
        return simulate_return(host, install, _transaction(install, purged))

    def bring_back(self, host: ManagedHost, install: Sequence[Package]) -> None:
        self.install(host, install, [])

    def stays(self, name: str, running: str) -> bool:
        """Packages of a kernel have its release in their names; those with modules need the userland, which leaves."""
        return running in name and not name.startswith(PREFIX)

    def hold(self, host: ManagedHost, names: Sequence[str], *, held: bool = True) -> None:
        run(host, ["apt-mark", "hold" if held else "unhold", *names], REFRESH_SECONDS, ENVIRONMENT)

    # What was interrupted

    def unfinished(self, host: ManagedHost) -> List[str]:
        """Unpacked or half-configured: ``dpkg --configure`` finishes them."""
        return [package.name for package in self.list_packages(host) if package.broken and not _is_lost(package.state)]

    def broken(self, host: ManagedHost) -> List[str]:
        """Half-installed, or marked as to be installed again."""
        return [package.name for package in self.list_packages(host) if _is_lost(package.state)]

    def finish(self, host: ManagedHost) -> None:
        if not _is_interrupted(host) and not self.unfinished(host):
            return
        try:
            run(host, _CONFIGURE, TRANSACTION_SECONDS, ENVIRONMENT)
        except ApplyError as error:
            if error.kind != "failed":
                raise
            names = ", ".join(self.unfinished(host)[:5]) or "packages"
            words = f"{names}: half-installed, and dpkg --configure fails: {error.message}"
            hint = "run: dpkg --configure -a; fix what it says, or take the package away: apt-get purge NAME"
            raise ApplyError(words, hint, "half-installed") from None

    def repair(self, host: ManagedHost, unwanted: Sequence[str]) -> None:
        """``dpkg --configure``, then ``dpkg --purge`` of unwanted packages that it can't finish."""
        if not self.unfinished(host) and not self.broken(host):
            return
        try:
            self.finish(host)
        except ApplyError as error:
            if error.kind in ("package-manager-locked", "no-space"):
                raise
            host.notes.append(error.message)
        names = [name for name in self.unfinished(host) if name in unwanted]
        if names:
            run(host, ["dpkg", "--purge", *names], TRANSACTION_SECONDS, ENVIRONMENT)

    def reinstall(self, host: ManagedHost) -> None:
        """Install packages again whose unpacking was interrupted; apt and dpkg don't do that by themselves."""
        lost = [package for package in self.list_packages(host) if _is_lost(package.state)]
        names = [f"{package.name}={package.version}" if package.version else package.name for package in lost]
        if not names:
            return
        if _is_interrupted(host):
            # apt does nothing before that; what can't be configured now may need what is installed again.
            with contextlib.suppress(ApplyError):
                run(host, _CONFIGURE, TRANSACTION_SECONDS, ENVIRONMENT)
        words = ["--reinstall", *_INSTALL, *names]
        removed = REMOVED.findall(host.look(["apt-get", "--assume-yes", *LOOK, *words], 120.0).stdout)
        if removed:
            message = f"{', '.join(names)}: half-installed; to install them again, apt would remove"
            message += f" {', '.join(name for name, _ in removed)}"
            hint = f"see: apt-get --simulate {' '.join(words)}"
            raise ApplyError(message, hint, "half-installed")
        _apt_get(host, "--assume-yes", _WAIT, *_CONFFILES, *words)

    # Packages on their way back

    def offer_files(self, place: str, keyring: str, key: bytes) -> List[File]:
        text = (
            "# Rendered by gdsdeploy while a rollout takes this host back; it goes when that is done.\n"
            f"Types: deb\nURIs: file:{place}\nSuites: restore\nComponents: stack\nSigned-By: {keyring}\n"
        )
        return [File(keyring, files.FILE, key), File.of(_OFFER, text)]

    def refresh_offer(self, host: ManagedHost) -> None:
        options = [f"Dir::Etc::sourcelist={_OFFER}", "Dir::Etc::sourceparts=-", "APT::Get::List-Cleanup=0"]
        words = [f"--option={option}" for option in options]
        _apt_get(host, _WAIT, *words, "--error-on=any", "update", seconds=REFRESH_SECONDS)

    def half_installed(self, host: ManagedHost) -> List[Refusal]:
        """Those that only a new installation repairs, and that no repository offers in the version that they have."""
        lost = [package for package in self.list_packages(host) if _is_lost(package.state)]
        known = offered(host, [Package(each.name, each.version) for each in lost if each.version])
        names = [each.name for each in lost if f"{each.name}={each.version}" not in known]
        if not names:
            return []
        message = (
            f"packages on this host are half-installed, and no repository offers their versions: {', '.join(names)}"
        )
        hint = f"take them away: dpkg --purge --force-remove-reinstreq {' '.join(names)}; then run this again"
        return [Refusal("half-installed", message, hint)]


def _is_interrupted(host: ManagedHost) -> bool:
    """Whether dpkg was killed at work, and has a journal of it."""
    return any(name.isdigit() for name in list_folder(host.root, "/var/lib/dpkg/updates"))


def _apt_get(host: ManagedHost, *words: str, seconds: float = TRANSACTION_SECONDS) -> None:
    run(host, ["apt-get", "--quiet", *words], seconds, ENVIRONMENT)


def _transaction(install: Sequence[Package], remove: Sequence[str]) -> List[str]:
    return [*_INSTALL, *map(str, install), *(f"{name}-" for name in remove)]


def _purge(names: Sequence[str], *, with_held: bool) -> List[str]:
    return [*(["--allow-change-held-packages"] if with_held else []), "purge", *names]


def existing(host: ManagedHost) -> List[aptsources.Source]:
    """Every enabled source of the host but ours; raises SourcesError, CannotTellError."""
    paths = ["/etc/apt/sources.list"]
    names = list_folder(host.root, _FOLDER)
    paths += [f"{_FOLDER}/{name}" for name in names if name.endswith(aptsources.SUFFIXES)]
    return [
        source
        for path in paths
        if path != SOURCES and not os.path.isdir(inside(host.root, path))
        for source in aptsources.parse_sources(host.text(path), path)
    ]


def render_sources(sources: Sequence[aptsources.Source]) -> str:
    """The text of ``gdsdeploy.sources``."""
    lines = [f"{HEAD} Only what other entries lack stands here."]
    for source in sources:
        lines += ["", "Types: deb", f"URIs: {source.uri}", f"Suites: {source.suite}"]
        if source.components:
            lines.append(f"Components: {' '.join(source.components)}")
        if source.signed_by:
            lines.append(f"Signed-By: {source.signed_by}")
    return "\n".join(lines) + "\n"


def _offered_files(host: ManagedHost, pins: Sequence[Pin]) -> Dict[Any, Set[str]]:
    """(package, version) → sha256 of the files on offer; empty where only dpkg knows the version."""
    if not pins:
        return {}
    shown = show(host, list(map(str, pins)))
    offered: Dict[Any, Set[str]] = {}
    for record in shown.split("\n\n"):
        fields = dict(_RECORD.findall(record))
        if "Package" in fields and "Version" in fields:
            sums = offered.setdefault((fields["Package"], fields["Version"]), set())
            sums.update([fields["SHA256"]] if "SHA256" in fields else [])
    return offered


def _is_lost(state: str) -> bool:
    return state[1:2] == "H" or state[2:3] == "R"


def simulate(host: ManagedHost, words: Sequence[str]) -> List[Change]:
    """What apt says it would change.  Raises CannotTellError."""
    return moves(host, host.query(["apt-get", "--assume-yes", *LOOK, *words], env=ENVIRONMENT))


def moves(host: ManagedHost, shown: str) -> List[Change]:
    """The changes in the output of a simulation, removals first and with their reasons.  Raises CannotTellError."""
    changes = []
    for name, before, after in _INST.findall(shown):
        if before != after:
            newer = not before or compat.version_order(before) < compat.version_order(after)
            kind = ("upgrade" if newer else "downgrade") if before else "install"
            changes.append(Change(kind, name, before, after))
    going: Dict[str, str] = dict(REMOVED.findall(shown))
    reasons = _reasons(host, going, changes) if going else {}
    removals = [replace(Change("remove", name, going[name]), **reasons.get(name, {})) for name in going]
    return [*removals, *changes]


def _reasons(host: ManagedHost, going: Mapping[str, str], coming: Sequence[Change]) -> Dict[str, Dict[str, Any]]:
    """Name → why it leaves, and the package by which, as fields of a change."""
    names = [f"{change.subject}={change.after}" for change in coming]
    shown = show(host, names) if names else ""
    records = [dict(_FIELD.findall(record)) for record in shown.split("\n\n")]
    listed = host.query(["dpkg-query", "--show", "--showformat", _RELATIONS, "--", *going])
    own, moving = _native(host), {name.partition(":")[0] for name in [*going, *(change.subject for change in coming)]}
    return {
        database.full_name(name, architecture, own): {"reason": reason, "by": by}
        for name, architecture, provides, depends in (line.split("\t") for line in listed.splitlines())
        for reason, by in [_reason({name, *_names(provides)}, _names(depends), records, moving)]
    }


def _native(host: ManagedHost) -> str:
    return database.native(list_packages(host, database.DPKG))


def _reason(own: Set[str], needs: Set[str], records: Sequence[Mapping[str, str]], moving: Set[str]) -> Tuple[str, str]:
    """One that comes replaces it: by Replaces, or by a name that both provide; or excludes it; or it needs another."""
    for reason, fields in ((REPLACED, ("Replaces", "Provides")), (CONFLICTS, ("Conflicts", "Breaks"))):
        for record in records:
            if own & {name for field in fields for name in _names(record.get(field, ""))}:
                return reason, record["Package"]
    return next(((NEEDS, name) for name in sorted(needs & moving - own)), ("", ""))


def _names(field: str) -> Set[str]:
    return set(_RELATION.findall(field))


def simulate_return(host: ManagedHost, install: Sequence[Package], words: Sequence[str]) -> List[Change]:
    """What bringing these back would change.

    words: the transaction.  Raises NotOfferedError and CannotTellError, with what apt says.
    """
    on_offer = offered(host, install)
    missing = [package.package for package in install if str(package) not in on_offer]
    if missing:
        raise NotOfferedError(missing)
    output = host.look(["apt-get", "--assume-yes", *LOOK, *words], _SECONDS)
    if output.status != 0 or output.truncated:
        raise CannotTellError(_problem(output), kind="refused")
    return moves(host, output.stdout)


def offered(host: ManagedHost, packages: Sequence[Package]) -> Set[str]:
    """Those of ``packages``, as NAME=VERSION, that a repository offers; raises CannotTellError."""
    if not packages:
        return set()
    shown = show(host, list(map(str, packages)))
    # What dpkg alone knows, of a package that left its configuration, has no checksum.
    records = (dict(_FIELD.findall(record)) for record in shown.split("\n\n"))
    found, own = [one for one in records if "SHA256" in one and "Package" in one], _native(host)
    names = [database.full_name(one["Package"], one.get("Architecture", ""), own) for one in found]
    return {f"{name}={one.get('Version')}" for name, one in zip(names, found)}


def show(host: ManagedHost, names: Sequence[str]) -> str:
    """The records of those ``names`` that apt knows; its status is 100 where it doesn't know all.  As for ask()."""
    return ask(host, ["show", "--", *names], (0, 100))


def ask(host: ManagedHost, words: Sequence[str], statuses: Sequence[int] = (0,)) -> str:
    """What apt-cache prints.  Raises CannotTellError.

    apt 2.6.1 that meets a cache of before an update may say "Cache is out of sync", and makes another one: so
    it did in 4 of 308 runs that followed a killed one.
    """
    return host.query(["apt-cache", *words], statuses, again=True, inputs=_inputs(host))


def targets(host: ManagedHost, form: str) -> List[str]:
    """A line of this form for each list of packages that apt has.  Raises CannotTellError."""
    argv = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    return host.query(argv, inputs=_inputs(host)).splitlines()


def _inputs(host: ManagedHost) -> Any:
    return host.once("apt's inputs", lambda: apt_inputs(Recorder(root=host.root)))


def _problem(output: Output) -> str:
    unmet = [f"{name}: {' '.join(text.split())}" for name, text in _UNMET.findall(output.stdout)]
    return "; ".join(unmet or _ERROR.findall(output.stderr)[-2:]) or output.failure()
