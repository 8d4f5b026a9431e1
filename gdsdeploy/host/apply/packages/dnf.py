"""dnf: repositories that offer only the lock, locked versions, module streams."""

from __future__ import annotations

import base64
import json
import os
import pkgutil
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ...errors import ApplyError, CannotTellError, NotOfferedError
from ...process import Output
from ...rootdir import list_folder, read_text
from .. import files
from ..file_resource import restore
from ..files import File
from ..host import ManagedHost
from ..model import INSTALLS, Change, Refusal
from . import state as database, versions
from .managers import REFRESH_SECONDS, RETURNING, TRANSACTION_SECONDS, Index, Manager, Package, Pin, run, wait
from .transaction import CONFLICTS, NEEDS, REPLACED

REPOSITORIES = "/etc/yum.repos.d/gdsdeploy.repo"
LOCKS = "/etc/dnf/plugins/versionlock.list"
MODULES = "/etc/dnf/modules.d"
#: Around our lines in dnf's list of locks, for people: ``dnf versionlock delete`` drops all remarks.
BEGIN, END = "# BEGIN gdsdeploy", "# END gdsdeploy"
#: Our lines in that list, which others may have lines in too.
LOCKED = "/var/lib/gdsdeploy/versionlocks"
#: Keys that rpm trusts because of our transactions, and those that it trusted before the present one.
TRUSTED = "/var/lib/gdsdeploy/rpmkeys"
#: What rpm calls each key, as a package.
_KEY = "gpg-pubkey"
#: A list is smaller.
_LIMIT = 1 << 20
#: The plugin that reads the list, and the file by which it is known to be there.
PLUGIN, _PLUGIN_FILE = "python3-dnf-plugin-versionlock", "/etc/dnf/plugins/versionlock.conf"
#: Files that dnf reads.
_READ = (
    *("/etc/dnf/dnf.conf", "/etc/yum.repos.d/*.repo", "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-*"),
    *("/etc/dnf/plugins/*", f"{MODULES}/*.module"),
)
#: A check of the whole database.
_CHECK_SECONDS = 600.0
_DNF = ["dnf", "--quiet", "--assumeyes"]
#: For questions about what is installed.
_INSTALLED_ONLY = ["--quiet", "--disablerepo=*"]
#: A transaction takes what was compared with the lock: package lists aren't read again meanwhile.
_INSTALL = ["--setopt=install_weak_deps=False", "--setopt=gdsdeploy-*.metadata_expire=-1", "install"]

#: Why a locked package can't be taken: as in dnf_child.py; no repository has it; another version may be taken, too.
EXCLUDED, STREAM, MISSING, UNLOCKED = "excluded", "stream", "missing", "unlocked"
#: Why a transaction has no solution, beside MISSING: packages exclude each other; package lists can't be read.
CONFLICT, METADATA = "conflict", "metadata"
HINTS: Mapping[str, str] = {
    EXCLUDED: "An exclude= in /etc/dnf/dnf.conf, an excludepkgs= in /etc/yum.repos.d or another line of"
    " /etc/dnf/plugins/versionlock.list hides them: take it away.",
    STREAM: "Another module stream hides them: run dnf module list --enabled, then dnf module reset NAME.",
    MISSING: 'The repository no longer has them: "gdsdeploy lock FLEET --check" tells.',
    UNLOCKED: "The plugin versionlock isn't at work: look at plugins= in /etc/dnf/dnf.conf and at"
    " /etc/dnf/plugins/versionlock.conf.",
}
_PROGRAM = "/usr/bin/dnf"
#: What follows the name in NAME-EPOCH:VERSION-RELEASE.
_NEVRA = re.compile(r"-[0-9]+:[^-]+-[^-]+$")
_LOOK = "see what is wrong with dnf: dnf repolist"
#: Why dnf makes no transaction → what to do, and the kind of the error.
_UNSOLVED: Mapping[str, Tuple[str, str]] = {
    MISSING: (HINTS[MISSING], "verify"),
    CONFLICT: (
        "Something on this host excludes them: take it away, or lock other versions",
        "refused",
    ),
    METADATA: ("see which repository of this host doesn't answer: dnf makecache", "failed"),
}


#: For a look, while another dnf may be at work.
_SOLVE_SECONDS = 120.0


class Offer(NamedTuple):
    """NAME=EPOCH:VERSION-RELEASE → sha256 of each file of it that this machine can run, or why dnf may not take it."""

    digests: Mapping[str, Set[str]]
    hidden: Mapping[str, str]


class Solution(NamedTuple):
    """``moves``: everything that changes; that of a removal has a reason of transaction.py, or none.

    ``erases``: dnf needs ``--allowerasing`` for it.
    """

    moves: Tuple[Change, ...]
    erases: bool


class Dnf(Manager):
    """RHEL and its like."""

    name = "dnf"
    kind = database.RPM
    checks_packages = True
    sources = (REPOSITORIES,)
    keys = ("/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-*",)
    configured = (REPOSITORIES, LOCKS)
    command = "dnf"
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

    def distrust(self, host: ManagedHost) -> List[Change]:
        """Keys that rpm trusts because of our repositories go."""
        keys = self._imported(host) if host.exists(TRUSTED) else []
        if keys and not host.check:
            run(host, ["rpm", "--erase", *(f"{_KEY}-{key}" for key in keys)], REFRESH_SECONDS)
        if not host.check:
            host.remove_tree(TRUSTED)
        return [Change("remove", f"{_KEY}-{key}", key, "", "ours") for key in keys]

    def _keys(self, host: ManagedHost) -> List[str]:
        installed = self.installed(host).get(_KEY)
        return list(installed.versions) if installed else []

    def _imported(self, host: ManagedHost) -> List[str]:
        """Keys that rpm trusts by our transactions; one that was stopped has left which rpm trusted before."""
        words = [line.partition(" ") for line in host.text(TRUSTED).splitlines()]
        ours, before = ({key for word, _, key in words if word == kind} for kind in ("ours", "before"))
        return [key for key in self._keys(host) if key in ours or (before and key not in before)]

    # Pins

    def observe_pins(self, host: ManagedHost, desired: Any) -> Any:
        entry = host.entry(LOCKS)
        has_plugin, missing = host.exists(_PLUGIN_FILE), [one for one in desired.modules if one not in streams(host)]
        # Anything but a file there is refused.  Of a file that others have made, mode and owner stay theirs.
        is_file = entry is not None and entry.kind == files.FILE
        text = host.exact_text(LOCKS, _LIMIT) if is_file else ""
        ours = read_lines(host)
        merged = merge_locks(text, locks(desired.pins, desired.deny), ours, _lines_before(host))
        file = File(LOCKS, content=merged.encode("utf-8", "surrogateescape"))
        if entry is not None and is_file:
            file, entry = file._replace(mode=entry.mode), entry._replace(uid=0, gid=0)
        return {
            "plugin": has_plugin,
            "streams": missing,
            "file": file,
            "entry": entry,
            "pinned": bool(ours),
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
            ours = locks(desired.pins, desired.deny)
            exists = host.exists(LOCKS)
            # The records first; until the list is written, ours has the earlier lines, too.
            host.record.remember(host.real(LOCKS) if exists else LOCKS)
            text = host.exact_text(LOCKS, _LIMIT) if exists else ""
            merged = merge_locks(text, ours, read_lines(host), _lines_before(host))
            _write_lines(host, [*read_lines(host), *ours])
            if exists:
                host.rewrite(LOCKS, merged)
            else:
                host.write(File.of(LOCKS, merged))
            _write_lines(host, ours)

    def verify_pins(self, host: ManagedHost, desired: Any) -> None:
        """Every locked package that isn't installed is on offer, and no other version; old lists are read again."""
        if not desired.pins:
            return
        for options in (_away(host), [*_away(host), "--refresh"]):
            offer = ask(host, [pin.package for pin in desired.pins], options)
            objections = self._objections(host, desired.pins, offer)
            rebuilt = self._changed_files(host, desired.pins, offer.digests)
            if not objections and not rebuilt:
                return
        if objections:
            words = f"dnf would not take exactly the locked versions of: {', '.join(sorted(objections))}"
            reasons = sorted(set(objections.values()))
            raise ApplyError(words, " ".join(HINTS[reason] for reason in reasons), "verify")
        hint = (
            'If the vendor built them again, "gdsdeploy lock FLEET" takes the new files, for review; otherwise a'
            " repository serves other files under the same version: don't install them"
        )
        words = f"dnf on this host offers other files than the locked ones: {'; '.join(rebuilt)}"
        raise ApplyError(words, hint, "verify")

    def _objections(self, host: ManagedHost, pins: Iterable[Pin], offer: Offer) -> Dict[str, str]:
        """NAME=VERSION → why dnf wouldn't take exactly that; what is installed needn't be offered."""
        locked = {_name(pin): pin for pin in pins}
        absent = {
            name: offer.hidden.get(name, MISSING)
            for name, pin in locked.items()
            if name not in offer.digests and not self._is_present(host, pin)
        }
        return {**absent, **{name: UNLOCKED for name in offer.digests if name not in locked}}

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
        text = host.exact_text(LOCKS, _LIMIT) if host.exists(LOCKS) else ""
        rest = merge_locks(text, [], read_lines(host), _lines_before(host))
        if rest != text:
            changes.append(Change("write" if rest else "delete", LOCKS, "", "", "ours"))
        target = host.real(LOCKS)
        if host.check:
            # What follows looks at a host that has the rest.
            host.record.paths.pop(target, None)
        else:
            self._write_rest(host, target, rest, differs=rest != text)
            host.remove_tree(LOCKED)
            host.record.forget(target)
        return changes + restore(host, [path for path in host.record.paths if path.startswith(MODULES + "/")])

    def _write_rest(self, host: ManagedHost, target: str, rest: str, *, differs: bool) -> None:
        if differs and target in host.record.paths and rest.rstrip("\n") == _text_before(host).rstrip("\n"):
            # No other program has changed it: then every byte comes back.  What others have, too, is never taken for
            # gdsdeploy's when this is stopped before its lines are forgotten.
            theirs = _lines_before(host)
            _write_lines(host, [line for line in read_lines(host) if line not in theirs])
            host.restore(target)
        elif differs:
            host.rewrite(LOCKS, rest)

    # Packages

    def order(self, version: str) -> Any:
        return versions.rpm(version)

    def same(self, version: str) -> str:
        """Without the epoch 0."""
        return plain(version)

    def simulate(self, host: ManagedHost, install: Sequence[Package], remove: Sequence[str]) -> Optional[List[Change]]:
        """What dnf resolves, as :meth:`install` has it done."""
        return list(_solve(host, install, remove).moves)

    def install(
        self, host: ManagedHost, install: Sequence[Package], remove: Sequence[str], along: Sequence[str] = ()
    ) -> None:
        """``dnf install NAME-EPOCH:VERSION-RELEASE…``, which downgrades, too; what conflicts is removed before.

        By itself, dnf removes what others obsolete, and nothing else that the new packages exclude.
        """
        if remove:
            self.purge(host, remove)
        erasing = ["--allowerasing"] if along and _solve(host, install, ()).erases else []
        ours, before = self._imported(host), self._keys(host)
        _write_keys(host, ours, [*before, "nothing"])
        run(host, [*_DNF, *_away(host), *_INSTALL, *erasing, "--", *_words(host, install)], TRANSACTION_SECONDS)
        self.settle(host)

    def settle(self, host: ManagedHost) -> None:
        if any(line.startswith("before ") for line in host.text(TRUSTED).splitlines()):
            _write_keys(host, self._imported(host))

    def simulate_purge(self, host: ManagedHost, names: Sequence[str]) -> Optional[List[str]]:
        try:
            return [move.subject for move in _solve(host, (), names).moves]
        except CannotTellError:
            return None

    def purge(self, host: ManagedHost, names: Sequence[str], *, with_held: bool = False) -> None:
        """``dnf remove``, without what came along."""
        run(host, [*_DNF, "--setopt=clean_requirements_on_remove=False", "remove", "--", *names], TRANSACTION_SECONDS)

    # Packages that left, on their way back

    def manual(self, host: ManagedHost) -> Set[str]:
        return set(host.query(["dnf", *_INSTALLED_ONLY, "repoquery", "--userinstalled", "--qf", "%{name}\n"]).split())

    def mark_automatic(self, host: ManagedHost, names: Sequence[str]) -> None:
        run(host, [*_DNF, *_INSTALLED_ONLY, "mark", "remove", "--", *names], REFRESH_SECONDS)

    def word(self, package: Package) -> str:
        return f"{package.package}-{with_epoch(package.version)}"

    def simulate_return(self, host: ManagedHost, install: Sequence[Package], purged: Sequence[str]) -> List[Change]:
        return list(_solve(host, install, purged, returns=True).moves)

    def bring_back(self, host: ManagedHost, install: Sequence[Package]) -> None:
        """Others' locks were heeded when it was simulated; ours are those of the lock that stays."""
        words = ["--disableplugin=versionlock"] if read_lines(host) else []
        run(host, [*_DNF, *words, *_away(host), *_INSTALL, "--", *_words(host, install)], TRANSACTION_SECONDS)

    def stays(self, name: str, running: str) -> bool:
        """Kernels are told apart by version, not by name: they stay."""
        return name.startswith("kernel")

    def half_installed(self, host: ManagedHost) -> List[Refusal]:
        """A damaged database, or packages of which an interrupted transaction left the old version, too."""
        output = host.look(["rpmdb", "--verifydb"], _CHECK_SECONDS)
        if output.status != 0:
            message = f"the database of rpm is damaged: {output.failure()}"
            return [Refusal("half-installed", message, "save /var/lib/rpm, then run: rpmdb --rebuilddb")]
        output = host.look(["dnf", "--quiet", "check", "--duplicates"], _CHECK_SECONDS)
        double = [line.split()[0] for line in output.stdout.splitlines() if " is a duplicate with " in line]
        if double:
            message = f"a transaction of dnf was interrupted; packages are there in two versions: {', '.join(double)}"
            hint = "run: dnf remove --duplicates; where no repository has the newer version: rpm --erase --nodeps OLD"
            return [Refusal("half-installed", message, f"see: dnf history info last; then {hint}")]
        if output.status != 0:
            raise CannotTellError(f"dnf check: {output.failure()}")
        return []


def _solve(host: ManagedHost, install: Sequence[Package], remove: Sequence[str], *, returns: bool = False) -> Solution:
    """The transaction that dnf would make, in a check by the lists that it has; raises CannotTellError.

    returns: without gdsdeploy's locks.
    """
    for path in host.glob(_READ):
        entry = host.entry(path)
        if entry is not None and entry.kind != files.FILE:
            # dnf would wait at a pipe.
            raise CannotTellError(f"{path}: is not a file")
    if not host.check:
        wait(host)
    request: Dict[str, Any] = {
        "install": _words(host, install),
        "remove": list(remove),
        "away": bool(_away(host)),
        "cached": host.check,
    }
    if returns and read_lines(host):
        request["locks"] = _lines(merge_locks(host.text(LOCKS), [], read_lines(host)))
    return solve(host, request, returns=returns)


def _words(host: ManagedHost, install: Sequence[Package]) -> List[str]:
    """Packages as dnf takes them.  A rollback has brought files, because a mirror drops old versions."""
    names = [Dnf().word(package) for package in install]
    returning = [file_of(package) if host.exists(file_of(package)) else "" for package in install]
    return [file or name for file, name in zip(returning, names)]


def _lines(text: str) -> List[str]:
    """The lines of a list of locks, without remarks."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def render_repositories(indices: Sequence[Index], pins: Sequence[Pin]) -> str:
    """The text of ``gdsdeploy.repo``."""
    lines = ["# Rendered by gdsdeploy from gdsdeploy.lock; changes here are overwritten."]
    for index in indices:
        keys = " ".join(f"file://{path}" for path in [index.host_keyring, *index.package_keys])
        lines += [
            *("", f"[gdsdeploy-{index.repository}]", f"name=gdsdeploy: {index.repository}", f"baseurl={index.uri}"),
            *("enabled=1", "gpgcheck=1", f"repo_gpgcheck={int(index.metadata != 'unsigned')}", f"gpgkey={keys}"),
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


def merge_locks(text: str, ours: Sequence[str], before: Sequence[str] = (), theirs: Sequence[str] = ()) -> str:
    """The list of locks with ``ours`` between the marks, in place of what was there, and of ``before`` wherever it is.

    theirs: lines that others had before; as many stay.  Of a line that others have later, too, the last one counts as
    ours.
    """
    lines = text.splitlines(keepends=True)
    plain = [line.strip() for line in lines]
    marks = [number for number, line in enumerate(plain) if line in (BEGIN, END)]
    going = set(marks)
    for first, last in zip(marks, marks[1:]):
        # A mark without its other one has nothing between.
        if (plain[first], plain[last]) == (BEGIN, END):
            going |= set(range(first, last))
    left = [number for number in range(len(lines)) if number not in going]
    for line in before:
        # In its place between the marks, it has gone already.
        found = [number for number in left if plain[number] == line]
        if len(found) > theirs.count(line) and line not in {plain[number] for number in going}:
            left.remove(found[-1])
    place = min(set(range(len(lines) + 1)) - set(left))
    rest = "".join(lines[number] for number in left if number < place)
    if ours:
        rest += "" if not rest or rest.endswith("\n") else "\n"
        rest += "".join(f"{line}\n" for line in [BEGIN, *ours, END])
    return rest + "".join(lines[number] for number in left if number > place)


def read_lines(host: ManagedHost) -> List[str]:
    """Our lines in the list of locks, as they were written."""
    return host.text(LOCKED).splitlines()


def _text_before(host: ManagedHost) -> str:
    """The list of locks as it was before gdsdeploy's first line."""
    before = host.record.paths.get(host.real(LOCKS)) or {}
    return base64.b64decode(str(before.get("content", ""))).decode("utf-8", "surrogateescape")


def _lines_before(host: ManagedHost) -> List[str]:
    return [line.strip() for line in _text_before(host).splitlines()]


def _write_lines(host: ManagedHost, lines: Sequence[str]) -> None:
    host.keep_lines(LOCKED, list(dict.fromkeys(lines)))


def _write_keys(host: ManagedHost, ours: Sequence[str], before: Sequence[str] = ()) -> None:
    host.keep_lines(TRUSTED, [*(f"ours {key}" for key in ours), *(f"before {key}" for key in before)])


def streams(host: ManagedHost) -> List[str]:
    """NAME:STREAM of every enabled module."""
    files = [file for file in list_folder(host.root, MODULES) if file.endswith(".module")]
    modules = [(file[: -len(".module")], _settings(host.text(f"{MODULES}/{file}"))) for file in files]
    enabled = [(name, entry.get("stream")) for name, entry in modules if entry.get("state") == "enabled"]
    return [f"{name}:{stream}" for name, stream in enabled if stream is not None]


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


def ask(host: ManagedHost, names: Sequence[str], options: Sequence[str] = ()) -> Offer:
    """Read the package lists that are older than dnf's limit (or with ``--refresh`` all) and ask; raises ApplyError."""
    run(host, ["dnf", "--quiet", "--assumeyes", *options, "makecache"], REFRESH_SECONDS)
    output = host.attempt(_argv(host, {"names": list(names)}), REFRESH_SECONDS)
    try:
        return _parse(_answer(output))
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ApplyError(f"dnf can't be asked what it would install: {output.failure()}", _LOOK) from None


def solve(host: ManagedHost, request: Mapping[str, Any], *, returns: bool = False) -> Solution:
    """The transaction that dnf resolves; request: as dnf_child.py has it.

    returns: it brings back what left.  Raises CannotTellError where dnf finds none, or can't be asked; of packages that
    return NotOfferedError where a repository doesn't offer them.
    """
    output = host.look(_argv(host, request), _SOLVE_SECONDS if request["cached"] else REFRESH_SECONDS)
    try:
        value = _answer(output)
        if "problem" in value:
            words = " ".join(str(value["text"]).split())
            hint, kind = _UNSOLVED[value["problem"]]
            if value["problem"] == MISSING and returns:
                raise NotOfferedError(_NEVRA.sub("", str(word)) for word in value["missing"])
            if returns:
                raise CannotTellError(words, kind=kind)
            raise CannotTellError(f"dnf can't install the locked packages: {words}", hint, kind)
        return Solution(tuple(dict.fromkeys(_move(*row) for row in value["moves"])), value["erases"] is True)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise CannotTellError(f"dnf can't be asked what it would change: {output.failure()}", _LOOK) from None


def _move(kind: str, name: str, before: str, after: str, reason: str, by: str) -> Change:
    if kind not in (*INSTALLS, "remove") or reason not in ("", REPLACED, CONFLICTS, NEEDS):
        raise ValueError(kind, reason)
    return Change(kind, str(name), plain(before), plain(after), reason, by=str(by))


def plain(version: str) -> str:
    """Without the epoch 0, as rpm writes versions."""
    return version[2:] if version.startswith("0:") else version


def _argv(host: ManagedHost, request: Mapping[str, Any]) -> List[str]:
    return [_python(host), "-I", "-c", _source(), json.dumps(request)]


def _answer(output: Output) -> Any:
    return json.loads(output.stdout if output.status == 0 and not output.truncated else "")


def _parse(value: Any) -> Offer:
    digests: Dict[str, Set[str]] = {}
    for name, version, arch, digest in value["offered"]:
        sums = digests.setdefault(f"{name}={version}", set())
        if arch in ("noarch", os.uname().machine):
            sums.add(str(digest))
    reasons = {EXCLUDED: EXCLUDED, STREAM: STREAM}
    hidden = {f"{name}={version}": reasons[reason] for name, version, reason in value["hidden"]}
    return Offer(digests, hidden)


def _python(host: ManagedHost) -> str:
    """The interpreter of dnf's program: others don't have its library."""
    first: List[str] = read_text(host.root, _PROGRAM).partition("\n")[0].lstrip("#!").split()
    return first[0] if first and first[0].startswith("/") else "/usr/bin/python3"


def _source() -> str:
    data = pkgutil.get_data(__package__ or "", "dnf_child.py")
    assert data is not None
    return data.decode("utf-8")
