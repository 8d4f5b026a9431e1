"""gdsdeploy in test suites of a site: fixtures for pytest, also beside testinfra's.  docs/validate.md has examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdsdeploy.testing.hosts import Gds, GdsHost, Mount

__all__ = ["Gds", "GdsHost", "Mount"]


def __getattr__(name: str) -> Any:
    """One of ``__all__``, imported now: every run of pytest imports this package for its plugin."""
    from gdsdeploy.testing import hosts

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(hosts, name)
