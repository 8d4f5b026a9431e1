"""dnf: repositories that offer only the lock, locked versions, module streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set

from ... import process
from ...errors import ApplyError, CannotTellError
from ...process import Output
from ...rootdir import list_folder
from .. import files
from ..file_resource import restore
from ..files import File
from ..host import ManagedHost
from ..model import Change, Refusal
from . import offers, versions
from . import state as database
from .managers import (
    REFRESH_SECONDS,
    RETURNING,
    TRANSACTION_SECONDS,
    Index,
    Manager,
    Package,
    Pin,
    register,
    run,
)

REPOSITORIES = "/etc/yum.repos.d/gdsdeploy.repo"
LOCKS = "/etc/dnf/plugins/versionlock.list"
MODULES = "/etc/dnf/modules.d"
#: Around our lines in dnf's list of locks, which others may have lines in too.
BEGIN, END = "# BEGIN gdsdeploy", "# END gdsdeploy"
#: The plugin that reads the list, and the file by which it is known to be there.
PLUGIN, _PLUGIN_FILE = "python3-dnf-plugin-versionlock", "/etc/dnf/plugins/versionlock.conf"
#: A check of the whole database.
_CHECK_SECONDS = 600.0
_DNF = ["dnf", "--quiet", "--assumeyes"]
#: A transaction takes what was compared with the lock: package lists aren't read again meanwhile.
_INSTALL = ["--setopt=install_weak_deps=False", "--setopt=gdsdeploy-*.metadata_expire=-1", "install"]


class Dnf(Manager):
    """RHEL and its like."""

    name = "dnf"
    kind = database.RPM
    sources = (REPOSITORIES,)
    keys = ("/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-*",)
    configured = (REPOSITORIES, LOCKS)
    spare = "dnf remove --oldinstallonly"
    kernel_hooks = ("/etc/kernel/install.d/99-gdsdeploy-guard.install",)
    kernel_event = """\
case $1 in
    add) event=install ;;
    remove) event=remove ;;
    *) exit 0 ;;
esac
release=$2
"""

    # Repositories

    def keyrings(self, indices: Sequence[Index]) -> List[str]:
        """Those of the repositories and of their packages' makers."""
        return [path for index in indices for path in [index.host_keyring, *index.package_keys]]

    def keyring_hint(self, path: str) -> str:
        return f"install the package that carries it: dnf install {path}"

    def source_files(self, host: ManagedHost, indices: Sequence[Index], pins: Sequence[Pin]) -> List[File]:
        return [File.of(REPOSITORIES, render_repositories(indices, pins))]

    # Pins

    def observe_pins(self, host: ManagedHost, desired: Any) -> Any:
        entry = host.entry(LOCKS)
        # Anything but a file there is refused.
        text = host.text(LOCKS) if entry is not None and entry.kind == files.FILE else ""
        return {
            "plugin": host.exists(_PLUGIN_FILE),
            "streams": [stream for stream in desired.modules if stream not in streams(host)],
            "file": File.of(LOCKS, merge_locks(text, locks(desired.pins, desired.deny))),
            "entry": entry,
            "pinned": BEGIN in text.splitlines(),
        }

    def pin_changes(self, desired: Any, observed: Any, pending: Sequence[Change]) -> List[Change]:
        """The plugin; its list, without which dnf does nothing at all; the streams, which may hide what is locked."""
        plugin = [] if observed["plugin"] else [Change("install", PLUGIN, "", "", "missing")]
        enabled = [Change("stream", stream, "", "enabled", "not-enabled") for stream in observed["streams"]]
        return [*plugin, *files.compare(observed["file"], observed["entry"]), *enabled]

    def pin(self, host: ManagedHost, desired: Any, change: Change) -> None:
        """Make a change; another stream of the same module hides the locked packages, so it is reset first."""
        if change.kind == "install":
            run(host, [*_DNF, "--setopt=install_weak_deps=False", "install", PLUGIN], TRANSACTION_SECONDS)
        elif change.kind == "stream":
            name = change.subject.partition(":")[0]
            host.preserve(f"{MODULES}/{name}.module")
            run(host, [*_DNF, *_away(host), "module", "reset", name], REFRESH_SECONDS)
            run(host, [*_DNF, *_away(host), "module", "enable", change.subject], REFRESH_SECONDS)
        else:
            host.write(self.observe_pins(host, desired)["file"])

    def verify_pins(self, host: ManagedHost, desired: Any) -> None:
        """Every locked package that isn't installed is on offer, and no other version; old lists are read again."""
        if not desired.pins:
            return
        for options in (_away(host), [*_away(host), "--refresh"]):
            offer = offers.ask(host, [pin.package for pin in desired.pins], options)
            objections = self._objections(host, desired.pins, offer)
            rebuilt = self._changed_files(host, desired.pins, offer.digests)
            if not objections and not rebuilt:
                return
        if objections:
            words = f"dnf would not take exactly the locked versions of: {', '.join(sorted(objections))}"
            reasons = sorted(set(objections.values()))
            raise ApplyError(words, " ".join(offers.HINTS[reason] for reason in reasons), "verify")
        hint = (
            'If the vendor built them again, "gdsdeploy lock FLEET" takes the new files, for review; otherwise a'
            " repository serves other files under the same version: don't install them"
        )
        words = f"dnf on this host offers other files than the locked ones: {'; '.join(rebuilt)}"
        raise ApplyError(words, hint, "verify")

    def _objections(self, host: ManagedHost, pins: Iterable[Pin], offer: offers.Offer) -> Dict[str, str]:
        """NAME=VERSION → why dnf wouldn't take exactly that; what is installed needn't be offered."""
        locked = {_name(pin): pin for pin in pins}
        absent = {
            name: offer.hidden.get(name, offers.MISSING)
            for name, pin in locked.items()
            if name not in offer.digests and not self._is_present(host, pin)
        }
        return {**absent, **{name: offers.UNLOCKED for name in offer.digests if name not in locked}}

    def _is_present(self, host: ManagedHost, pin: Pin) -> bool:
        """Whether it is installed, or a rollback has brought its file."""
        present = self.installed(host)
        is_installed = pin.package in present and self.same(pin.version) in present[pin.package].versions
        return is_installed or host.exists(file_of(pin))

    def _changed_files(self, host: ManagedHost, pins: Iterable[Pin], offered: Mapping[str, Set[str]]) -> List[str]:
        """What is offered with another sha256 than the lock's, with both; what is installed is left alone.

        dnf holds the files that it downloads against the digests that it tells here.
        """
        differences = []
        for pin in pins:
            sums = offered.get(_name(pin), set())
            if pin.sha256 and sums != {pin.sha256} and not self._is_present(host, pin):
                others = ", ".join(sorted(sums - {pin.sha256})) or "none for this machine"
                differences.append(f"{_name(pin)} has sha256 {others}, and in the lock {pin.sha256}")
        return differences

    def unpin(self, host: ManagedHost) -> List[Change]:
        """Our locks go, locks of others stay; module streams are as before."""
        changes = []
        text = host.text(LOCKS)
        rest = merge_locks(text, [])
        if rest != text:
            changes.append(Change("write" if rest else "delete", LOCKS, "", "", "ours"))
            if not host.check:
                self._write_rest(host, rest)
        return changes + restore(host, [path for path in host.record.paths if path.startswith(MODULES + "/")])

    def _write_rest(self, host: ManagedHost, rest: str) -> None:
        entry = host.entry(LOCKS)
        file = File.of(LOCKS, rest, entry.mode if entry else 0o644)
        is_new = LOCKS in host.record.paths and host.record.paths[LOCKS] is None
        host.write_unrecorded(file if rest or not is_new else replace(file, kind=files.ABSENT))
        host.record.forget(LOCKS)

    # Packages

    def order(self, version: str) -> Any:
        return versions.rpm(version)

    def same(self, version: str) -> str:
        """Without the epoch 0."""
        return version[2:] if version.startswith("0:") else version

    def install(self, host: ManagedHost, install: Sequence[Package], remove: Sequence[str]) -> None:
        """``dnf install NAME-EPOCH:VERSION-RELEASE…``, which downgrades, too; what conflicts is removed before.

        A rollback has brought files, because a mirror drops old versions; it doesn't need the repositories.
        """
        if remove:
            self.purge(host, remove)
        names = [f"{package.package}-{with_epoch(package.version)}" for package in install]
        returning = [file_of(package) if host.exists(file_of(package)) else "" for package in install]
        words = [file or name for file, name in zip(returning, names)]
        run(host, [*_DNF, *_away(host), *_INSTALL, "--", *words], TRANSACTION_SECONDS)

    def purge(self, host: ManagedHost, names: Sequence[str], *, with_held: bool = False) -> None:
        """``dnf remove``, without what came along."""
        run(host, [*_DNF, "--setopt=clean_requirements_on_remove=False", "remove", "--", *names], TRANSACTION_SECONDS)

    def stays(self, name: str, running: str) -> bool:
        """Kernels are told apart by version, not by name: they stay."""
        return name.startswith("kernel")

    def half_installed(self, host: ManagedHost) -> List[Refusal]:
        """A damaged database, or packages of which an interrupted transaction left the old version, too."""
        output = _look(host, ["rpmdb", "--verifydb"])
        if output.status != 0:
            message = f"the database of rpm is damaged: {output.failure()}"
            return [Refusal("half-installed", message, "save /var/lib/rpm, then run: rpmdb --rebuilddb")]
        output = _look(host, ["dnf", "--quiet", "check", "--duplicates"])
        double = [line.split()[0] for line in output.stdout.splitlines() if " is a duplicate with " in line]
        if double:
            message = f"a transaction of dnf was interrupted; packages are there in two versions: {', '.join(double)}"
            return [Refusal("half-installed", message, "see: dnf history info last; then run: dnf remove --duplicates")]
        if output.status != 0:
            raise CannotTellError(f"dnf check: {output.failure()}")
        return []


def _look(host: ManagedHost, argv: Sequence[str]) -> Output:
    output: Output = host.once(tuple(argv), lambda: process.run(argv, _CHECK_SECONDS))
    return output


def render_repositories(indices: Sequence[Index], pins: Sequence[Pin]) -> str:
    """The text of ``gdsdeploy.repo``."""
    lines = ["# Rendered by gdsdeploy from gdsdeploy.lock; changes here are overwritten."]
    for index in indices:
        keys = " ".join(f"file://{path}" for path in [index.host_keyring, *index.package_keys])
        lines += [
            *("", f"[gdsdeploy-{index.repository}]", f"name=gdsdeploy: {index.repository}", f"baseurl={index.uri}"),
            *("enabled=1", "gpgcheck=1", "repo_gpgcheck=1", f"gpgkey={keys}"),
        ]
        if index.exclusive:
            lines += ["# Nothing else can come from here.", f"includepkgs={' '.join(nevras(pins))}"]
    return "\n".join(lines) + "\n"


def nevras(pins: Iterable[Pin]) -> List[str]:
    """NAME-EPOCH:VERSION-RELEASE.* of every pin, as dnf takes it in its lists."""
    return [f"{pin.package}-{with_epoch(pin.version)}.*" for pin in pins]


def locks(pins: Iterable[Pin], deny: Iterable[str]) -> List[str]:
    """Gdsdeploy's lines in the list of locks; a version that doesn't exist excludes a name."""
    return [*nevras(pins), *(f"{name}-0:0-0.none" for name in deny)]


def merge_locks(text: str, ours: Sequence[str]) -> str:
    """The list of locks with ``ours`` between the marks; without any, the marks go, too."""
    block = [BEGIN, *ours, END] if ours else []
    lines = text.splitlines()
    if BEGIN in lines and END in lines[lines.index(BEGIN) :]:
        first = lines.index(BEGIN)
        last = lines.index(END, first)
        lines[first : last + 1] = block
    else:
        lines += block
    return "\n".join(lines) + "\n" if lines else ""


def streams(host: ManagedHost) -> List[str]:
    """NAME:STREAM of every enabled module."""
    enabled = []
    for file in list_folder(host.root, MODULES):
        if file.endswith(".module"):
            entry = _settings(host.text(f"{MODULES}/{file}"))
            if entry.get("state") == "enabled" and "stream" in entry:
                enabled.append(f"{file[: -len('.module')]}:{entry['stream']}")
    return enabled


def with_epoch(version: str) -> str:
    """A version with the epoch that it has, or 0."""
    return version if ":" in version else f"0:{version}"


def _settings(text: str) -> Mapping[str, str]:
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def file_of(package: Package) -> str:
    """Where a rollback brings its file."""
    return f"{RETURNING}/{package.package}-{with_epoch(package.version)}.rpm"


def _away(host: ManagedHost) -> List[str]:
    """Options while a host is rolled back: repositories may be out of reach."""
    return ["--setopt=*.skip_if_unavailable=1"] if host.exists(RETURNING) else []


def _name(pin: Pin) -> str:
    return f"{pin.package}={with_epoch(pin.version)}"


register(Dnf)
