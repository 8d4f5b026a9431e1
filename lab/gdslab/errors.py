"""The lab's error; its exit code is on gdsdeploy's page of them."""

from __future__ import annotations

from gdsdeploy.errors import GdsError


class LabUnavailable(GdsError, exit_code=40):
    """The lab cannot run here, or one of its hosts did not come up."""
