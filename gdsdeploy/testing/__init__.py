"""gdsdeploy in test suites of a site: fixtures for pytest, also beside testinfra's.  docs/validate.md has examples."""

from gdsdeploy.testing.hosts import Gds, GdsHost, Mount

__all__ = ["Gds", "GdsHost", "Mount"]
