"""``gdsdeploy prometheus``: what a Prometheus server and Grafana need for the series of the hosts' gates."""

from __future__ import annotations

import click

from gdsdeploy import console, resources
from gdsdeploy.cli.verbs import Verbs


@click.group(cls=Verbs)
def command() -> None:
    """Print files for a monitoring system that reads the series of the hosts' gates.

    docs/prometheus.md lists the series.
    """


@command.command()
def alerts() -> None:
    """Print alert rules for Prometheus.

    \b
    Example:
      gdsdeploy prometheus alerts > /etc/prometheus/rules/gdsdeploy.yml
    """
    _print("alerts.yml")


@command.command()
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON.

    \b
    Example:
      gdsdeploy prometheus dashboard > gdsdeploy.json
    """
    _print("dashboard.json")


def _print(name: str) -> None:
    console.data((resources.templates() / "prometheus" / name).read_text(encoding="utf-8").rstrip("\n"))
