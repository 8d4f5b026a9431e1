"""Documentation of the module gds_watch; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_watch
short_description: Count I/O through cuFile for Prometheus
description:
  - Installs and starts C(gds-watch.service), or stops and removes it.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
options:
  enabled:
    description: Whether this host has the service; V(false) removes it.
    type: bool
    default: true
  every:
    description: Seconds between two looks at the processes.
    type: int
    default: 30
  metrics:
    description: Folder of node_exporter's textfile collector; empty for the usual ones.
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Count I/O through cuFile
  gdsdeploy.gds.gds_watch:
    every: 60
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/systemd/system/gds-watch.service
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: watch
"""
