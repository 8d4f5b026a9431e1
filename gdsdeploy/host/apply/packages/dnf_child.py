"""The program that asks dnf what it would choose from; dnf.py starts it with dnf's own Python and never imports it.

It has one argument: a JSON list of package names.  Its output is a JSON object: ``offered`` has ``[NAME,
EPOCH:VERSION-RELEASE, ARCH, SHA256]`` of every package that dnf may install, ``hidden`` has ``[NAME,
EPOCH:VERSION-RELEASE, REASON]`` of those that it may not.

It reads cached metadata only.  The plugin versionlock applies its locks to programs that use dnf's interface, and not
to ``dnf repoquery``.
"""

import json
import os
import sys
from typing import Any, Dict, List

#: Reasons: a setting or a lock hides the package, or a module stream does.
EXCLUDED, STREAM = "excluded", "stream"


def answer(names: List[str]) -> Dict[str, Any]:
    """The object that the program prints."""
    import dnf  # of dnf's own Python
    import hawkey

    with dnf.Base() as base:
        base.conf.read()
        base.conf.substitutions.update_from_etc(base.conf.installroot)
        if base.conf.substitutions.get("releasever") is None:
            # dnf's own command leaves out what it can't detect.
            base.conf.substitutions.pop("releasever", None)
        base.init_plugins()
        base.pre_configure_plugins()
        base.read_all_repos()
        base.configure_plugins()
        for repository in base.repos.iter_enabled():
            # dnf has read all that it needs; without any lists a repository offers nothing.
            repository.skip_if_unavailable = True
        sack = base.fill_sack_from_repos_in_cache()

        def packages(flags: int) -> Dict[str, Any]:
            found = sack.query(flags=flags).available().filter(name=names)
            return {f"{package} {package.reponame}": package for package in found}

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


def version(package: Any) -> str:
    """EPOCH:VERSION-RELEASE of dnf's package."""
    return f"{package.epoch}:{package.version}-{package.release}"


def main() -> None:
    """Plugins may print: that goes to standard error."""
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        json.dump(answer(json.loads(sys.argv[1])), output)


if __name__ == "__main__":
    main()
