"""``modules.yaml``: which packages belong to which module stream, and which a host sees with some streams enabled.

The filter is dnf's: it hides packages of inactive streams, and where an active stream has a package, all packages of
that name from outside the stream.  A test compares it with the real dnf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from gdsdeploy.errors import NoSolution, RepositoryUnusable
from gdsdeploy.files import yamlfile
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.packages import Universe
from gdsdeploy.repo.rpmprimary import Primary


@dataclass
class Modules:
    """The module streams of some repositories."""

    #: module → stream → packages as ``NAME-EPOCH:VERSION-RELEASE.ARCH``
    artifacts: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    #: module → the stream that is active by default
    defaults: dict[str, str] = field(default_factory=dict)

    def add(self, text: bytes, uri: str) -> None:
        """Add one modules.yaml; raises RepositoryUnusable naming ``uri`` if it cannot be read."""
        try:
            for document in yamlfile.documents(text):
                self._document(document or {})
        except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
            raise RepositoryUnusable(f"{uri}: not module metadata: {error!r}") from error

    def _document(self, document: Mapping[str, Any]) -> None:
        data = document.get("data") or {}
        if document.get("document") == "modulemd":
            streams = self.artifacts.setdefault(_text(data["name"]), {})
            rpms = (data.get("artifacts") or {}).get("rpms") or ()
            streams.setdefault(_text(data["stream"]), set()).update(map(_text, rpms))
        elif document.get("document") == "modulemd-defaults" and data.get("stream"):
            self.defaults[_text(data["module"])] = _text(data["stream"])

    def enable(self, streams: Mapping[str, str]) -> Callable[[Candidate], bool]:
        """The filter with ``streams`` enabled: whether dnf would see a package.

        A module that no repository has is ignored.  Raises NoSolution for a stream that its module doesn't have.
        """
        active = {name: stream for name, stream in self.defaults.items() if stream in self.artifacts.get(name, ())}
        for name, stream in streams.items():
            artifacts = self.artifacts.get(name)
            if artifacts is None:
                continue
            if stream not in artifacts:
                raise NoSolution(
                    f"the repositories have no module stream {name}:{stream}; there are {', '.join(sorted(artifacts))}",
                    hint="Pin a driver branch that has a stream, or add a repository that has this one",
                )
            active[name] = stream
        active_rpms: set[str] = set()
        for name, stream in active.items():
            active_rpms |= self.artifacts[name][stream]
        hidden = {rpm for each in self.artifacts.values() for rpms in each.values() for rpm in rpms} - active_rpms
        names = {rpm.rsplit("-", 2)[0] for rpm in active_rpms if not rpm.endswith((".src", ".nosrc"))}

        def visible(candidate: Candidate) -> bool:
            rpm = nevra(candidate)
            if rpm in active_rpms:
                return True
            # Every package provides its own name.
            return rpm not in hidden and not any(offer.package in names for offer in candidate.provides)

        return visible


def _text(value: object) -> str:
    """A name or a stream; raises TypeError for a list or mapping.  An unquoted stream may look like a number."""
    if isinstance(value, (str, int, float)):
        return str(value)
    raise TypeError(f"a name or a stream, rather than {type(value).__name__}")


def nevra(candidate: Candidate) -> str:
    """A package as module metadata names it."""
    version = candidate.version if ":" in candidate.version else f"0:{candidate.version}"
    return f"{candidate.package}-{version}.{candidate.architecture}"


class ModularUniverse(Universe):
    """Package lists with module streams; before ``with_streams``, all streams are visible."""

    def __init__(
        self,
        lists: Sequence[Primary],
        modules: Modules,
        visible: Callable[[Candidate], bool] | None = None,
        enabled: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(lists)
        self._primaries = lists
        self._modules = modules
        self._visible = visible
        self._enabled = dict(enabled or {})

    def with_streams(self, streams: Mapping[str, str]) -> ModularUniverse:
        enabled = {name: stream for name, stream in streams.items() if name in self._modules.artifacts}
        return ModularUniverse(self._primaries, self._modules, self._modules.enable(streams), enabled)

    def streams(self) -> tuple[str, ...]:
        return tuple(sorted(f"{name}:{stream}" for name, stream in self._enabled.items()))

    def named(self, name: str) -> list[Candidate]:
        return self._only_visible(super().named(name))

    def providing(self, name: str) -> list[Candidate]:
        return self._only_visible(super().providing(name))

    def _only_visible(self, candidates: list[Candidate]) -> list[Candidate]:
        return candidates if self._visible is None else [c for c in candidates if self._visible(c)]
