"""The repositories of a profile: from the fleet file, the platform's presets, and the controller's own apt sources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gdsdeploy.errors import FleetInvalid, RepositoryUnusable
from gdsdeploy.host.apply.packages.aptsources import Source
from gdsdeploy.model.fleet import Fleet, Repository as RepositoryEntry
from gdsdeploy.model.text import has_login
from gdsdeploy.platform.base import Preset, StackPlatform
from gdsdeploy.repo.repository import Repository, controller_sources


@dataclass(frozen=True)
class Setting:
    """What the fleet file and a preset say about one repository of a profile."""

    name: str
    #: without a key where the fleet file has no such repository
    entry: RepositoryEntry
    preset: Preset | None
    platform: StackPlatform
    #: as ``uname -m`` says it
    arch: str

    @property
    def host_keyring(self) -> str:
        """Where the keyring lies on a host: the platform's own place, or one that provisioning fills."""
        own = self.platform.presets().get(self.name)
        if self.entry.signed_by:
            return self.entry.signed_by
        if own is not None and self.entry.keyring in (None, str(own.keyring)):
            return str(own.keyring)
        if self.platform.kind == "rpm":
            return f"/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-{self.name}"
        return f"/etc/apt/keyrings/gdsdeploy-{self.name}.gpg"

    def declared(self) -> Repository:
        """What is fixed about the repository; ``uri`` may be left open."""
        entry, preset = self.entry, self.preset
        suites = entry.suites or (preset.suites if preset else ())
        keys = entry.fingerprints or (preset.fingerprints if preset else ())
        unsigned = (entry.why or "") if entry.metadata == "unsigned" else ""
        keyring = Path(entry.keyring) if entry.keyring else preset.keyring if preset else None
        return Repository(
            name=self.name,
            uri=self._uri(),
            suites=suites,
            components=() if _is_flat(suites) else entry.components or (preset.components if preset else ()),
            keyring=keyring or Path(),
            fingerprints=() if unsigned else keys,
            unsigned=unsigned,
            package_keys=(entry.package_keys or keys) if unsigned else (),
            host_keyring=self.host_keyring,
        )

    def _uri(self) -> str:
        """Empty where the controller's apt sources have to say it."""
        base = (self.entry.uri or "").rstrip("/")
        if self.preset is None or _says_everything(self.entry):
            return base
        if not base and self.preset.known_as is None:
            base = self.preset.uri
        path = self.preset.path_for(self.arch)
        return f"{base}/{path}" if base and path else base

    def problem(self) -> str:
        """Why it can't be used, to be read behind its name; empty if it can."""
        entry, kind, system, fixed = self.entry, self.platform.kind, self.platform.os, self.declared()
        # What the fleet file has to give.
        needed = {
            "uri": fixed.uri or (self.preset is not None and self.preset.known_as is not None),
            "suites": fixed.suites or kind == "rpm",
            "keyring": fixed.keyring != Path(),
            **({"package_keys": fixed.package_keys} if fixed.unsigned else {"fingerprints": fixed.fingerprints}),
            "components": fixed.components or _is_flat(fixed.suites) or kind == "rpm",
        }
        gaps = ", ".join(key for key, value in needed.items() if not value)
        if (entry.kind or kind) != kind:
            return f"kind is {entry.kind}, but {system} uses {kind}"
        if kind == "apt" and entry.metadata == "unsigned":
            return "apt packages have no signatures, so their index has to be signed"
        if kind == "rpm" and (entry.suites or entry.components):
            return "an rpm repository has neither suites nor components"
        if gaps and self.preset is None:
            return f"{system} has no preset of this name, so give {gaps}"
        return f"the preset of {system} leaves {gaps} open, so give {gaps}" if gaps else ""


def presets(platform: StackPlatform) -> dict[str, Preset]:
    """Everything that a profile of this system may use by name, groups by the names of their members."""
    return {**platform.presets(), **platform.vendor_presets()}


def names(fleet: Fleet, profile: str, platform: StackPlatform) -> tuple[str, ...]:
    """The repositories of a profile, in the order in which equal packages are taken from them."""
    listed = fleet.profiles[profile].repositories
    if listed is None:
        return tuple(platform.presets())
    chosen: list[str] = []
    for name in listed:
        own = fleet.repositories.get(name)
        members = [member for member, preset in presets(platform).items() if preset.group == name]
        # An entry that says everything is a repository of its own, whatever its name.
        chosen += members if members and not (own and _says_everything(own)) else [name]
    return tuple(dict.fromkeys(chosen))


def setting(fleet: Fleet, name: str, platform: StackPlatform, arch: str) -> Setting:
    """What is said about one repository; a member of a group has the group's entry unless it has its own."""
    preset = presets(platform).get(name)
    entry = fleet.repositories.get(name)
    if entry is None and preset is not None and preset.group:
        entry = fleet.repositories.get(preset.group)
    return Setting(name, entry or RepositoryEntry(), preset, platform, arch)


def repositories(
    fleet: Fleet, profile: str, platform: StackPlatform, sources: Sequence[Source] | None = None
) -> list[Repository]:
    """The repositories of a profile, all of the platform's family.

    sources: the controller's own apt sources; by default read from this machine, if an address is left open.
    Raises FleetInvalid listing everything that is missing, RepositoryUnusable when no address is known.
    """
    available = presets(platform)
    chosen: list[Repository] = []
    problems: list[str] = []
    if not names(fleet, profile, platform):
        listed = ", ".join(sorted(fleet.repositories)) or "none"
        problems.append(
            f"profiles.{profile}.repositories: {platform.os} has no presets of its own, so list some; there are presets"
            f" {', '.join(sorted(available)) or 'none'}, and the fleet file has {listed}"
        )
    for name in names(fleet, profile, platform):
        wish = setting(fleet, name, platform, fleet.profiles[profile].arch)
        if name not in fleet.repositories and name not in available:
            groups = {preset.group for preset in available.values() if preset.group}
            listed = ", ".join(sorted({*available, *groups, *fleet.repositories}))
            problems.append(f"profiles.{profile}.repositories: there is no repository {name!r}; there are {listed}")
        elif problem := wish.problem():
            problems.append(f"repositories.{name}: {problem}")
        else:
            chosen.append(_repository(wish, sources))
    if problems:
        raise FleetInvalid("\n".join(problems), hint="examples/ has fleets to start from")
    return chosen


def controller_uri(preset: Preset, sources: Sequence[Source], arch: str = "") -> str | None:
    """The address that the controller's apt sources have for the archive of ``preset``, of whatever release.

    Other vendors use the same suite names, so an entry signed by another keyring doesn't count, and one that names this
    keyring is preferred; a wrong guess would fail the signature check.
    arch: of the hosts.  Where a distribution has aarch64 elsewhere, a controller of another architecture has the wrong
    address, unless it says "ports".
    """
    if preset.known_as is None:
        return None
    elsewhere = bool(preset.arm_uri and arch) and arch != os.uname().machine
    fitting = [
        source
        for source in sources
        if "deb" in source.types
        and preset.known_as.fullmatch(source.suite)
        and preset.components[0] in source.components
        and source.uri.startswith(("http://", "https://", "file:"))
        and source.signed_by in (None, str(preset.keyring))
        and (not elsewhere or ("ports" in source.uri) == (arch == "aarch64"))
    ]
    fitting.sort(key=lambda source: source.signed_by is None)
    return fitting[0].uri.rstrip("/") if fitting else None


def _repository(wish: Setting, sources: Sequence[Source] | None) -> Repository:
    repository, preset, name = wish.declared(), wish.preset, wish.name
    uri: str | None = repository.uri
    if not uri and preset is not None:
        here = wish.platform.architecture(wish.arch)
        own = controller_sources() if sources is None else sources
        fitting = [source for source in own if not source.architectures or here in source.architectures]
        uri = controller_uri(preset, fitting, wish.arch)
        uri = uri or (preset.arm_uri if wish.arch == "aarch64" else "")
    if not uri:
        raise RepositoryUnusable(
            f"repository {name}: the fleet file gives no uri, and this machine's apt sources name no such archive",
            hint=f"Set `uri` of repositories.{name} in the fleet file to a mirror of it",
        )
    if has_login(uri):
        # Not of the fleet file, which can't have one: the lock would carry the login.
        words = f"repository {name}: this machine's apt sources have its address with a login or parameters"
        raise RepositoryUnusable(words, hint="Move the login to /etc/apt/auth.conf.d, and to `credentials`")
    return replace(repository, uri=uri)


def _says_everything(entry: RepositoryEntry) -> bool:
    """Whether its address is that of the repository itself: nothing of a preset is needed to check it."""
    return bool(entry.uri and entry.keyring and (entry.fingerprints or entry.package_keys))


def _is_flat(suites: Sequence[str]) -> bool:
    return bool(suites) and all(suite.endswith("/") for suite in suites)
