"""Every shipped rule as JSON: ``python -m docs.gen.compat_rules > gdsdeploy/host/data/compat.json``.

They are those of compat.yml, those that the releases in cuda.yml, the packages in debian.yml and the builds in rhel.yml
make, and those that kernel_changes.yml and tags.yml make together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib import resources
from typing import Any, Final

from docs.gen import kernel_changes
from docs.gen.kernel_changes import Change, Seen, Tags
from gdsdeploy import lock
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.rules import RuleFile
from gdsdeploy.host.model.compat import Rule, parse_versions

#: Module → (subject that says who made the package, its name for people).
_MODULES: Final = {"driver": ("driver_origin", "driver"), "nvidia_fs": ("nvidia_fs_origin", "nvidia-fs")}

#: Proprietary modules whose sources weren't read: Debian's packages of branches 525 to 555 were.
_PROPRIETARY_UNREAD: Final = {"flavour": "proprietary", "driver": ">=556"}


def load(text: str) -> tuple[Rule, ...]:
    """Read compat.yml; raises ValueError (pydantic's) for a rule that is malformed, and for an id given twice."""
    return _checked(yamlfile.shipped(text)["rules"])


def _checked(blocks: list[dict[str, Any]]) -> tuple[Rule, ...]:
    file = RuleFile.model_validate({"rules": blocks})
    if file.repeated():
        raise ValueError(file.repeated()[0][1])
    return tuple(block.rule() for block in file.rules)


def of_releases(releases: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """The rules that the rows of cuda.yml make; its head describes them."""
    for row in releases:
        if "driver" in row:
            yield _driver_of_cuda(**row)
        if "nvidia_fs" in row:
            yield _nvidia_fs_of_libcufile(**row)
    yield _newer("cuda", releases[-1]["cuda"], "driver")
    yield _newer("libcufile", releases[-1]["libcufile"], "nvidia_fs")


def _driver_of_cuda(cuda: str, driver: str, driver_source: str = "", **_: str) -> dict[str, Any]:
    name = driver if "." in driver else f"branch {driver}"
    return {
        "id": f"cuda-{cuda}-driver",
        "says": f"CUDA {cuda} came with driver {name}; with an older one it works by minor-version compatibility,"
        " without what only the newer driver has.",
        "known": "documentation",
        "source": driver_source or "CUDA release notes, toolkit driver versions",
        "when": {"cuda": cuda},
        "warns": {"driver": f"<{driver}"},
    }


def _nvidia_fs_of_libcufile(
    libcufile: str, nvidia_fs: str, cuda: str = "", nvidia_fs_source: str = "", **_: str
) -> dict[str, Any]:
    of_cuda = f" (CUDA {cuda})" if cuda else ""
    return {
        "id": f"gds-{libcufile}-nvidia-fs",
        "says": f"GDS {libcufile}{of_cuda} came with nvidia-fs {nvidia_fs} or newer; an older one beside libcufile"
        f" {libcufile} was never tested.",
        "known": "documentation" if nvidia_fs_source else "source",
        "source": nvidia_fs_source or f"GDS_VERSION in the sources of nvidia-fs {nvidia_fs}",
        "when": {"libcufile": libcufile},
        "warns": {"nvidia_fs": f"<{nvidia_fs}"},
    }


def _newer(subject: str, newest: str, other: str) -> dict[str, Any]:
    """Nothing is known about releases of ``subject`` after ``newest``, a major and a minor version."""
    major, minor = newest.split(".")
    name = {"cuda": "CUDA"}.get(subject, subject)
    return {
        "id": f"{subject}-newer",
        "says": f"No source about {name} after {newest} was read, so whether this {other.replace('_', '-')} fits"
        " isn't known.",
        "known": "documentation",
        "source": f"gdsdeploy's table of releases ends with {name} {newest}",
        "when": {subject: f">={major}.{int(minor) + 1}"},
        "doubts": {other: ">=0"},
    }


def of_kernel_changes() -> Iterator[dict[str, Any]]:
    """The rules about each change of the kernel: for NVIDIA's packages, and for those that Ubuntu patches."""
    read = kernel_changes.tags()
    for change in kernel_changes.changes():
        tags = read[change.module]
        yield from _of_change(change, tags.changes[change.id], tags)


def _of_change(change: Change, seen: Seen, tags: Tags) -> Iterator[dict[str, Any]]:
    origin, name = _MODULES[change.module]
    common = {
        "known": change.known,
        "source": f"{change.source}; tags of NVIDIA's repository through {tags.newest}, of {tags.date}",
        "fixed": change.fixed or _fixed(name, seen, tags),
    }
    breaks, unknown = list(seen.breaks), list(seen.unknown)
    all_of = {subject: list(texts) for subject, texts in change.when.items()}
    # Distributions patch modules for kernels only.
    of_nvidia = {origin: "!=debian, !=ubuntu"} if change.kernel or change.maybe else {}
    has, maybe = ({"kernel": list(kernels)} if kernels else {} for kernels in (change.kernel, change.maybe))
    #: (whether there is such a rule, end of its id, sentence after the change's, when, effect, releases)
    rules: tuple[tuple[bool, str, str, dict[str, Any], str, list[str]], ...] = (
        (not maybe or bool(has), "", "", {**has, **all_of, **of_nvidia}, "refuses", breaks),
        (
            not maybe or bool(has),
            "-unknown",
            " No source tells whether this release knows it.",
            {**has, **all_of, **of_nvidia},
            "doubts",
            unknown,
        ),
        (
            bool(maybe),
            "-maybe",
            " No source tells whether that concerns this kernel.",
            {**maybe, **all_of, **of_nvidia},
            "doubts",
            [*breaks, *unknown],
        ),
        (
            bool(of_nvidia),
            "-ubuntu",
            " No source tells whether Ubuntu's patches add it; gdsdeploy lock --prove tries it.",
            {"kernel": [*change.kernel, *change.maybe], **all_of, origin: "ubuntu"},
            "doubts",
            [*breaks, *unknown],
        ),
        (
            bool(of_nvidia) and all_of.get("flavour") == ["open"],
            "-proprietary",
            " No source tells whether the proprietary modules of this release do the same.",
            {"kernel": [*change.kernel, *change.maybe], **of_nvidia, **_PROPRIETARY_UNREAD},
            "doubts",
            [*breaks, *unknown],
        ),
    )
    for exists, end, says, when, effect, releases in rules:
        if exists and releases:
            rule = {"id": change.id + end, "says": change.says + says, "when": when, effect: {change.module: releases}}
            yield {**rule, **common}
    if change.others:
        when = {**has, **of_nvidia}
        yield {
            "id": f"{change.id}-others", "says": change.others, "when": when, "warns": {change.module: breaks}, **common
        }  # fmt: skip


def of_debian(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rules about what Debian patches, which the rows of debian.yml make; its head describes them."""
    for row in rows:
        for module in [each for each in _MODULES if each in row]:
            origin, name = _MODULES[module]
            before, packages = row["before"], {origin: "debian", f"{module}_package": row[module]}
            common = {"known": "source", "source": row.get("source", "changelog.Debian.gz of each of these packages")}
            yield {
                "id": f"debian-{name}-kernel-{before}",
                "says": f"Debian patches this package of {name} for kernels before {before}.",
                "when": {**packages, "kernel": f"<{before}"},
                "needs": {module: ">=0"},
                **common,
            }
            yield {
                "id": f"debian-{name}-kernel-{before}-newer",
                "says": f"No changelog of Debian's says that this {name} compiles for kernel {before} or newer, so"
                " prove it (gdsdeploy lock --prove).",
                "when": {**packages, "kernel": f">={before}"},
                "doubts": {module: ">=0"},
                **common,
            }


def of_rhel(kernels: dict[str, str], builds: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rules about what was built for RHEL's kernels, which the rows of rhel.yml make; its head describes them."""
    for row in builds:
        (module,) = [each for each in _MODULES if each in row]
        origin, name = _MODULES[module]
        yield {
            "id": f"{name}-rhel-{row['id']}",
            "says": row["says"],
            "known": "documentation",
            "source": row["source"],
            "when": {
                module: row[module],
                "kernel": [kernels[release] for release in row["releases"]],
                # Neither the real-time build nor Oracle's UEK.
                "kernel_flavour": ["kernel", "64k"],
                origin: "!=debian, !=ubuntu",
                **({"flavour": row["flavour"]} if "flavour" in row else {}),
            },
            "needs": {module: ">=0"},
            "settles": True,
        }


def _fixed(name: str, seen: Seen, tags: Tags) -> str:
    """The first release of each branch that knows it and whose later ones do; the newest branches are one."""
    released = [version for versions in tags.tags.values() for version in versions]
    first = dict[str, str]()
    for expression in seen.knows:
        low, _, high = expression.partition(", ")
        bound = low.lstrip(">=")
        known = filter(parse_versions(expression).admits, released)
        version = bound if low.startswith(">=") and "." in bound else next(known, f"one after {bound}")
        branch = bound.split(".")[0]
        if not high or high == f"<{int(branch) + 1}":
            first.setdefault(branch, version)
    *others, last = first.values() or [""]
    return f"{name} {', '.join(others)} or {last}" if others else f"{name} {last}" if last else ""


def table() -> str:
    """One rule on each line, without empty fields."""
    files = {
        name: yamlfile.shipped(resources.files(lock).joinpath(f"{name}.yml").read_text(encoding="utf-8"))
        for name in ("compat", "cuda", "debian", "rhel")
    }
    made = (*of_releases(files["cuda"]), *of_kernel_changes(), *of_debian(files["debian"]), *of_rhel(**files["rhel"]))
    rules = _checked([*files["compat"]["rules"], *made])
    rows = ({key: value for key, value in asdict(rule).items() if value} for rule in rules)
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


if __name__ == "__main__":
    print(table(), end="")
