"""The program that asks dnf; dnf.py starts it with dnf's own Python and never imports it.

It has one argument: a JSON object with ``names`` or with ``install``.  Its output is a JSON object.

For ``names``, a list of package names, it answers ``offered``, with ``[NAME, EPOCH:VERSION-RELEASE, ARCH, SHA256]`` of
every package that dnf may install, and ``hidden``, with ``[NAME, EPOCH:VERSION-RELEASE, REASON]`` of those that it may
not.  It reads cached metadata only.

For ``install``, a list of NAME-EPOCH:VERSION-RELEASE and of paths, it answers what ``dnf install`` would change, after
``dnf remove`` of the names in ``remove``: ``moves``, with ``[KIND, NAME, BEFORE, AFTER, REASON, BY]``, and ``erases``:
whether that takes ``--allowerasing``.  Or it answers ``problem``, a kind of problem, ``text``, what dnf says, and
``missing``, what it doesn't find.

``cached``: for a look, which takes metadata from the host's cache, however old they are, and loads none.  Otherwise
dnf's own rules, as for ``dnf install``.  ``locks``: lines that take the place of those in the list of locks.
``away``: repositories may be out of reach.  Other keys are not read.

The plugin versionlock applies its locks to programs that use dnf's interface, and not to ``dnf repoquery``.
"""

import json
import os
import sys
import tempfile
from typing import Any, Dict, List, Sequence, Set

#: Reasons: a setting or a lock hides the package, or a module stream does.
EXCLUDED, STREAM = "excluded", "stream"
#: Kinds of problems: no such package, no solution, no metadata.
MISSING, CONFLICT, METADATA = "missing", "conflict", "metadata"
#: Why a package leaves: one that comes replaces or excludes it, or it needs another version of one that moves.
REPLACED, CONFLICTS, NEEDS = "replaced-by", "conflicts", "needs"


def prepare(base: Any, request: Dict[str, Any]) -> None:
    """Configuration, plugins and repositories of the host."""
    base.conf.read()
    base.conf.substitutions.update_from_etc(base.conf.installroot)
    if base.conf.substitutions.get("releasever") is None:
        # dnf's own command leaves out what it can't detect.
        base.conf.substitutions.pop("releasever", None)
    # These locks take the place of those that the plugin reads.
    base.init_plugins(disabled_glob=["versionlock"] if request.get("locks") is not None else [])
    base.pre_configure_plugins()
    base.read_all_repos()
    base.configure_plugins()


def offers(base: Any, names: List[str]) -> Dict[str, Any]:
    """What dnf may install of ``names``, and what it may not."""
    import hawkey

    for repository in base.repos.iter_enabled():
        # dnf has read all that it needs; without any lists a repository offers nothing.
        repository.skip_if_unavailable = True
    sack = base.fill_sack_from_repos_in_cache()

    def packages(flags: int) -> Dict[str, Any]:
        matches = sack.query(flags=flags).available().filter(name=names)
        return {f"{package} {package.reponame}": package for package in matches}

    offered = packages(hawkey.APPLY_EXCLUDES)
    # Hidden by a stream only: without modular excludes it would be offered.
    by_stream = packages(hawkey.IGNORE_MODULAR_EXCLUDES)
    hidden = {key: package for key, package in packages(hawkey.IGNORE_EXCLUDES).items() if key not in offered}
    return {
        "offered": [
            [package.name, version(package), package.arch, package.returnIdSum()[1]] for package in offered.values()
        ],
        "hidden": [
            [package.name, version(package), STREAM if key in by_stream else EXCLUDED]
            for key, package in hidden.items()
        ],
    }


def transaction(request: Dict[str, Any]) -> Dict[str, Any]:
    """What a transaction changes, or why there is none."""
    import dnf

    with dnf.Base() as base, tempfile.TemporaryDirectory() as empty:
        prepare(base, request)
        base.conf.install_weak_deps = False
        base.conf.clean_requirements_on_remove = False
        for repository in base.repos.iter_enabled() if request["away"] else ():
            repository.skip_if_unavailable = True
        if request["cached"]:
            base.conf.logdir = empty
        try:
            going = erased(request["remove"], empty) if request["remove"] else set()
            if request["cached"] and request["install"]:
                base.fill_sack_from_repos_in_cache()
            else:
                base.fill_sack(load_available_repos=bool(request["install"]))
            # Hooks of plugins may change the host, and so would the history of transactions.
            base._plugins = dnf.plugin.Plugins()
            base.conf.persistdir = empty
            apply_locks(base, request.get("locks") or ())
            missing = mark(base, request["install"], going)
        except dnf.exceptions.RepoError as error:
            return {"problem": METADATA, "text": str(error)}
        except dnf.exceptions.Error as error:
            return {"problem": CONFLICT, "text": str(error)}
        if missing:
            return {"problem": MISSING, "text": ", ".join(missing), "missing": missing}
        for erases in (False, True):
            try:
                base.resolve(allow_erasing=erases)
            except dnf.exceptions.Error as error:
                problem = str(error)
            else:
                return {"moves": moves(base), "erases": erases}
        return {"problem": CONFLICT, "text": problem}


def apply_locks(base: Any, lines: Sequence[str]) -> None:
    """Apply the lines of a list of locks as the plugin versionlock does."""
    import dnf.subject

    sack, names = base.sack, set()
    locked, excluded = sack.query().filter(empty=True), sack.query().filter(empty=True)
    for line in lines:
        for nevra in dnf.subject.Subject(line.lstrip("!")).get_nevra_possibilities():
            if line.startswith("!"):
                excluded = excluded.union(nevra.to_query(sack))
            else:
                names.add(nevra.name)
                locked = locked.union(nevra.to_query(sack))
    if names:
        excluded = excluded.union(sack.query().filter(name__glob=sorted(names)).difference(locked))
    sack.add_excludes(excluded.available())


def erased(names: List[str], empty: str) -> Set[str]:
    """The installed packages that ``dnf remove`` takes away, which reads no repository: ``names`` and what needs them.

    empty: a folder for what dnf writes.
    """
    import dnf

    with dnf.Base() as base:
        base.conf.read()
        base.conf.logdir = base.conf.persistdir = base.conf.cachedir = empty
        base.fill_sack(load_available_repos=False)
        for package in base.sack.query().installed().filter(name=names):
            base.goal.erase(package, clean_deps=False)
        base.resolve(allow_erasing=True)
        return {str(package) for package in base.goal.list_erasures()}


def mark(base: Any, install: List[str], going: Set[str]) -> List[str]:
    """Ask for a transaction; those of ``install`` that dnf doesn't find."""
    import dnf

    missing = []
    for package in base.add_remote_rpms([word for word in install if word.startswith("/")]):
        base.package_install(package)
    for package in base.sack.query().installed():
        if str(package) in going:
            base.goal.erase(package, clean_deps=False)
    for word in (word for word in install if not word.startswith("/")):
        try:
            base.install(word)
        except dnf.exceptions.MarkingError:
            missing.append(word)
    return missing


def moves(base: Any) -> List[List[Any]]:
    """``[KIND, NAME, BEFORE, AFTER, REASON, BY]`` of everything that dnf has resolved."""
    goal = base.goal
    newer, older = goal.list_upgrades(), goal.list_downgrades()
    coming = [*goal.list_installs(), *newer, *older]
    going = [*goal.list_obsoleted(), *goal.list_erasures()]
    before = {package: goal.obsoleted_by_package(package) for package in coming}
    same = {package: [one for one in before[package] if one.name == package.name] for package in coming}
    moving = [*going, *(one for ones in same.values() for one in ones)]
    rows = []
    for package in going:
        reason, by = why(base, package, before, moving)
        rows.append(["remove", package.name, version(package), "", reason, by])
    for package in coming:
        kind = "upgrade" if package in newer else "downgrade" if package in older else "install"
        first = version(same[package][0]) if same[package] else ""
        rows.append([kind, package.name, first, version(package), "", ""])
    return rows


def why(base: Any, package: Any, coming: Dict[Any, List[Any]], moving: List[Any]) -> List[str]:
    """The reason for which a package leaves, and the name of the package by which; empty: it was asked for.

    coming: packages, with those that each obsoletes.  moving: packages that leave or move.
    """
    own = provides(package)
    for one, obsoleted in coming.items():
        # Each package provides its own name, so a newer kernel replaces an older one.
        if package in obsoleted or own & provides(one):
            return [REPLACED, one.name]
    query = base.sack.query()
    for one in coming:
        if query.filter(pkg=[package], provides=one.conflicts) or query.filter(pkg=[one], provides=package.conflicts):
            return [CONFLICTS, one.name]
    needed = query.filter(pkg=[one for one in moving if one != package], provides=package.requires)
    return [NEEDS, needed[0].name] if needed else ["", ""]


def provides(package: Any) -> Set[str]:
    """The names that a package provides for others to choose; not its libraries, files and capabilities."""
    words = (str(provide).split()[0] for provide in package.provides)
    return {word for word in words if "(" not in word and not word.startswith("/")}


def version(package: Any) -> str:
    """EPOCH:VERSION-RELEASE of dnf's package."""
    return f"{package.epoch}:{package.version}-{package.release}"


def main() -> None:
    """Plugins may print: that goes to standard error."""
    import dnf  # of dnf's own Python

    request = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        if "install" in request:
            answer = transaction(request)
        else:
            with dnf.Base() as base:
                prepare(base, request)
                answer = offers(base, request["names"])
        json.dump(answer, output)


if __name__ == "__main__":
    main()
