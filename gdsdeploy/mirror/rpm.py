"""The rpm repositories of a mirror, one per system and architecture: metadata by createrepo_c, with module streams.

The packages keep their makers' signatures; the user's key signs repomd.xml.  A package of a repository whose own index
isn't signed is checked by its own signature first.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from gdsdeploy.errors import LockStale, RepositoryUnusable
from gdsdeploy.files import yamlfile
from gdsdeploy.mirror import choice, openpgp
from gdsdeploy.mirror.aptrepo import write
from gdsdeploy.mirror.choice import File, Suite
from gdsdeploy.mirror.host_vars import rpm_folder
from gdsdeploy.model.lock import Target
from gdsdeploy.platform import StackPlatform, stack_platform_for
from gdsdeploy.repo import packagefile, rpm
from gdsdeploy.repo.fetch import Fetcher, address
from gdsdeploy.repo.packages import Candidate, Key
from gdsdeploy.repo.repository import Repository
from gdsdeploy.repo.rpm import ModularUniverse, Modules, nevra
from gdsdeploy.run import run, which

_HINT: Final = "Install createrepo_c (Debian and Ubuntu: createrepo-c), which writes the metadata of rpm repositories"
#: What the roles bring to hosts beside the lock; a repository need not have them.
_TOOLS: Final = ("python3-dnf-plugin-versionlock",)
_TIMESTAMP: Final = re.compile(rb"(<timestamp>)[^<]*(</timestamp>)")
#: A line that begins with three hyphens begins a document, and nothing inside one can look so (YAML 1.2, 9.1.2).
_DOCUMENT: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_END: Final = re.compile(r"^\.\.\.(?:\s|$)", re.MULTILINE)


@dataclass(frozen=True)
class Content:
    """One repository before it is written."""

    suite: Suite
    #: below the mirror
    folder: str
    files: list[File]
    #: text of modules.yaml; empty where nothing belongs to a module
    modules: str
    date: datetime

    def publish(self, directory: Path, fingerprint: str, keyring: Path) -> None:
        """Write and sign the metadata, unless what is there is the same; the packages are all there."""
        with tempfile.TemporaryDirectory(dir=directory, prefix=".repodata-") as scratch:
            metadata = self._metadata(directory, Path(scratch))
            _put(metadata, directory / self.folder / "repodata", fingerprint, keyring)

    def _metadata(self, directory: Path, scratch: Path) -> Path:
        """The unsigned metadata of exactly these files; the same files give the same bytes."""
        names = scratch / "files"
        names.write_text("".join(f"{file.place.removeprefix(self.folder + '/')}\n" for file in self.files))
        stamp = str(int(self.date.timestamp()))
        argv: list[str | Path] = [
            which("createrepo_c", hint=_HINT), "--quiet", "--no-database", "--general-compress-type=gz",
            f"--revision={stamp}", "--set-timestamp-to-revision",
            "--pkglist", names, "--outputdir", scratch, directory / self.folder,
        ]  # fmt: skip
        run(argv, doing=f"write the metadata of {self.folder}", timeout=3600)
        metadata = scratch / "repodata"
        if self.modules:
            (scratch / "modules.yaml").write_text(self.modules)
            argv = [
                which("modifyrepo_c", hint=_HINT),
                "--mdtype=modules",
                "--compress-type=gz",
                scratch / "modules.yaml",
                metadata,
            ]
            run(argv, doing=f"add the module streams of {self.folder}", timeout=600)
        index = metadata / "repomd.xml"
        # modifyrepo_c has no way to be given a time.
        index.write_bytes(_TIMESTAMP.sub(rb"\g<1>" + stamp.encode() + rb"\g<2>", index.read_bytes()))
        return metadata


def content(
    name: str, arch: str, targets: Sequence[Target], fetcher: Fetcher, keyrings: Sequence[Path], *, dependencies: bool
) -> Content:
    """What the mirror has to have for the profiles ``targets`` of one system; raises as ``mirror`` does."""
    for program in ("createrepo_c", "modifyrepo_c"):
        which(program, hint=_HINT)
    platform = stack_platform_for(name)
    architecture = platform.architecture(arch)
    indices = {(index.repository, index.uri): index for target in targets for index in target.indices}
    repositories = [choice.repository(index, keyrings) for index in indices.values()]
    contents = rpm.contents(fetcher, repositories, architecture)
    modules = Modules()
    texts = {each.repomd.files["modules"].uri: each.modules for each in contents if each.modules is not None}
    for uri, text in texts.items():
        modules.add(text, uri)
    lists = [each.primary for each in contents]
    stack: dict[Key, Candidate] = {}
    system: dict[Key, Candidate] = {}
    streams: set[tuple[str, str]] = set()
    for target in targets:
        modular = ModularUniverse(lists, modules).with_streams(_streams(target))
        own = choice.locked(target.packages, lists)
        _visible(own, modular, target)
        tools = _tools(modular, platform) if dependencies else []
        needed = [*tools, *choice.dependencies([*own, *tools], modular, platform, name)] if dependencies else []
        stack |= {c.key: c for c in own}
        system |= {c.key: c for c in needed}
        streams |= _active(modules, _streams(target), [*own, *needed])
    system = {each: c for each, c in system.items() if each not in stack}
    folder = rpm_folder(name, arch)
    origins = {repository.name: repository for repository in repositories}
    files = [_file(c, folder, origins[c.repository]) for c in (*stack.values(), *system.values())]
    return Content(
        Suite(name, architecture, len(stack), len(system)),
        folder,
        files,
        "".join(_documents(texts, streams)),
        max(each.repomd.date for each in contents),
    )


def _streams(target: Target) -> dict[str, str]:
    """Module → stream that a host of this profile enables."""
    return dict(stream.split(":", 1) for stream in target.modules)


def _tools(modular: ModularUniverse, platform: StackPlatform) -> list[Candidate]:
    """The newest of each that is on offer."""
    offered = filter(None, map(modular.named, _TOOLS))
    return [max(each, key=lambda candidate: platform.order.key(candidate.version)) for each in offered]


def _visible(stack: Iterable[Candidate], modular: ModularUniverse, target: Target) -> None:
    """Raise LockStale naming what a host would not see any more with the profile's streams enabled."""
    hidden = [c for c in stack if c.key not in {other.key for other in modular.named(c.package)}]
    if hidden:
        raise LockStale(
            "\n".join([f"outside of {', '.join(target.modules) or 'every active module stream'} now:",
                       *(f"  - {c} ({c.repository})" for c in hidden)]),
            hint="Run `gdsdeploy lock` on the fleet file, review the change list, and mirror the new lock",
        )  # fmt: skip


def _active(modules: Modules, enabled: Mapping[str, str], carried: Iterable[Candidate]) -> set[tuple[str, str]]:
    """The streams (module, stream) that hosts need to know of: those they enable, and defaults that are carried."""
    names = {nevra(candidate) for candidate in carried}
    defaults = {
        (name, stream)
        for name, stream in modules.defaults.items()
        if name not in enabled and names & modules.artifacts.get(name, {}).get(stream, set())
    }
    return {(name, stream) for name, stream in enabled.items() if name in modules.artifacts} | defaults


def _documents(texts: Mapping[str, bytes], streams: set[tuple[str, str]]) -> Iterable[str]:
    """The documents about ``streams`` in modules.yaml files (address → text), as they are written there."""
    for uri, text in texts.items():
        for piece in _DOCUMENT.split(text.decode("utf-8", "replace")):
            document = _END.split(piece, maxsplit=1)[0].strip("\n")
            try:
                read = next(yamlfile.documents(document.encode()), None) or {}
            except yaml.YAMLError as error:
                raise RepositoryUnusable(f"{uri}: not module metadata: {error!r}") from error
            if _is_about(read, streams):
                yield f"---\n{document}\n...\n"


def _is_about(document: Mapping[str, Any], streams: set[tuple[str, str]]) -> bool:
    data = document.get("data") or {}
    if document.get("document") == "modulemd":
        return (data.get("name"), data.get("stream")) in streams
    # A default that points to a stream that is left out would be none.
    return document.get("document") == "modulemd-defaults" and (data.get("module"), data.get("stream")) in streams


def _file(candidate: Candidate, folder: str, origin: Repository) -> File:
    place = f"{folder}/packages/{candidate.repository}/{candidate.filename.removeprefix('Packages/')}"
    uri = address(origin.uri, candidate.filename)
    expected = packagefile.Expected(candidate.package, candidate.version, candidate.architecture)
    check = partial(
        packagefile.check_signature,
        expected=expected,
        keyring=origin.keyring,
        fingerprints=origin.package_keys,
        name=uri,
    )
    return File(uri, candidate.sha256, candidate.size, place, check if origin.unsigned else None)


def _put(metadata: Path, repodata: Path, fingerprint: str, keyring: Path) -> None:
    """Move metadata into place: lists first, then the index with its signature, then what neither names goes."""
    new_index, index = metadata / "repomd.xml", repodata / "repomd.xml"
    for path in metadata.iterdir():
        if path != new_index:
            write(repodata / path.name, path.read_bytes())
    signature = repodata / "repomd.xml.asc"
    text = new_index.read_bytes()
    same = index.is_file() and index.read_bytes() == text
    if not same or not openpgp.has_signature(text, signature, fingerprint, keyring):
        fresh = metadata / "repomd.xml.asc"
        openpgp.sign(fingerprint, new_index, fresh, clear=False)
        write(index, text)
        write(signature, fresh.read_bytes())
    names = {path.name for path in metadata.iterdir()} | {signature.name}
    for path in repodata.iterdir():
        if path.name not in names:
            path.unlink()
