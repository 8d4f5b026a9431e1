"""``gdsdeploy kmod enrol``."""

from __future__ import annotations

from gdsdeploy.cli.kmod import local

command = local.command("enrol")
