"""The repositories of a profile: from the fleet file, the platform's presets, and the controller's own apt sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gdsdeploy.errors import FleetInvalid, RepositoryUnusable
from gdsdeploy.host.apply.packages.aptsources import Source
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.repository import Repository as RepositoryEntry
from gdsdeploy.platform.base import Preset, StackPlatform
from gdsdeploy.repo.aptsources import controller_sources
from gdsdeploy.repo.index import Repository
from gdsdeploy.repo.order import Kind


def names(fleet: Fleet, profile: str, platform: StackPlatform) -> tuple[str, ...]:
    """The repositories of a profile, in the order in which equal packages are taken from them."""
    listed = fleet.profiles[profile].repositories
    return tuple(platform.presets()) if listed is None else listed


def repositories(
    fleet: Fleet, profile: str, platform: StackPlatform, sources: Sequence[Source] | None = None
) -> list[Repository]:
    """The repositories of a profile, all of the platform's family.

    sources: the controller's own apt sources; by default read from this machine, if an address is left open.
    Raises FleetInvalid listing everything that is missing, RepositoryUnusable when no address is known.
    """
    presets = platform.presets()
    chosen: list[Repository] = []
    problems: list[str] = []
    if not names(fleet, profile, platform):
        listed = ", ".join(sorted(fleet.repositories)) or "none"
        problems.append(
            f"profiles.{profile}.repositories: {platform.os} has no presets, so list some; the fleet file has {listed}"
        )
    for name in names(fleet, profile, platform):
        entry, preset = fleet.repositories.get(name), presets.get(name)
        if entry is None and preset is None:
            listed = ", ".join(sorted({*presets, *fleet.repositories}))
            problems.append(f"profiles.{profile}.repositories: there is no repository {name!r}; there are {listed}")
            continue
        lacks = _lacks(entry or RepositoryEntry(), preset, platform.kind)
        if lacks:
            problems.append(
                f"repositories.{name}: {platform.os} has no preset of this name, so give {', '.join(lacks)}"
            )
        elif entry is not None and (entry.kind or platform.kind) != platform.kind:
            uses = f"{platform.os} of profile {profile} uses {platform.kind}"
            problems.append(f"repositories.{name}: kind is {entry.kind}, but {uses}")
        elif entry is not None and platform.kind == "apt" and entry.metadata == "unsigned":
            problems.append(f"repositories.{name}: apt packages have no signatures, so their index has to be signed")
        elif entry is not None and platform.kind == "rpm" and (entry.suites or entry.components):
            problems.append(f"repositories.{name}: an rpm repository has neither suites nor components")
        else:
            chosen.append(_repository(name, entry, preset, sources, platform.kind))
    if problems:
        raise FleetInvalid("\n".join(problems), hint="examples/ has fleets to start from")
    return chosen


def controller_uri(preset: Preset, sources: Sequence[Source]) -> str | None:
    """The address that the controller's apt sources have for the archive of ``preset``, of whatever release.

    Other vendors use the same suite names, so an entry signed by another keyring doesn't count, and one that names this
    keyring is preferred; a wrong guess would fail the signature check.
    """
    fitting = [
        source
        for source in sources
        if "deb" in source.types
        and preset.known_as.fullmatch(source.suite)
        and preset.components[0] in source.components
        and source.uri.startswith(("http://", "https://", "file:"))
        and source.signed_by in (None, str(preset.keyring))
    ]
    fitting.sort(key=lambda source: source.signed_by is None)
    return fitting[0].uri.rstrip("/") if fitting else None


def _lacks(entry: RepositoryEntry, preset: Preset | None, kind: Kind) -> list[str]:
    if preset is not None:
        return []
    needed = {"uri": entry.uri, "suites": entry.suites, "keyring": entry.keyring, "fingerprints": entry.fingerprints}
    if kind == "rpm":
        del needed["suites"]
    if entry.metadata == "unsigned":
        del needed["fingerprints"]
        needed["package_keys"] = entry.package_keys
    lacks = [key for key, value in needed.items() if not value]
    flat = all(suite.endswith("/") for suite in entry.suites or ())
    if kind == "apt" and not flat and not entry.components:
        lacks.append("components")
    return lacks


def declared(name: str, entry: RepositoryEntry | None, preset: Preset | None, kind: Kind = "apt") -> Repository:
    """What the fleet file and the preset fix about a repository; ``uri`` may be left open."""
    entry = entry or RepositoryEntry()
    suites = entry.suites or (preset.suites if preset else ())
    flat = bool(suites) and all(suite.endswith("/") for suite in suites)
    keys = entry.fingerprints or (preset.fingerprints if preset else ())
    unsigned = (entry.why or "") if entry.metadata == "unsigned" else ""
    return Repository(
        name=name,
        uri=(entry.uri or "").rstrip("/"),
        suites=suites,
        components=() if flat else entry.components or (preset.components if preset else ()),
        keyring=Path(entry.keyring) if entry.keyring else preset.keyring if preset else Path(),
        fingerprints=() if unsigned else keys,
        unsigned=unsigned,
        package_keys=(entry.package_keys or keys) if unsigned else (),
        host_keyring=_host_keyring(name, entry, preset, kind),
    )


def _repository(
    name: str, entry: RepositoryEntry | None, preset: Preset | None, sources: Sequence[Source] | None, kind: Kind
) -> Repository:
    repository = declared(name, entry, preset, kind)
    uri: str | None = repository.uri
    if not uri and preset is not None:
        uri = controller_uri(preset, controller_sources() if sources is None else sources)
    if not uri:
        raise RepositoryUnusable(
            f"repository {name}: the fleet file gives no uri, and this machine's apt sources name no such archive",
            hint=f"Set `uri` of repositories.{name} in the fleet file to a mirror of it",
        )
    return replace(repository, uri=uri)


def _host_keyring(name: str, entry: RepositoryEntry, preset: Preset | None, kind: Kind) -> str:
    """Where the keyring lies on a host: the platform's own place, or one that provisioning fills."""
    if entry.signed_by:
        return entry.signed_by
    if preset is not None and entry.keyring in (None, str(preset.keyring)):
        return str(preset.keyring)
    return (
        f"/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-{name}" if kind == "rpm" else f"/etc/apt/keyrings/gdsdeploy-{name}.gpg"
    )
