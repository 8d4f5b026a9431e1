"""Documentation of the module gds_signing; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_signing
short_description: Configure the signing of kernel modules and enrol the key
description:
  - A builder gets the settings for DKMS and for C(kmod sign).
  - A host that loads the modules gets the certificate. Where Secure Boot is on, the task requests the key's enrolment.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
options:
  certificate:
    description: The key's certificate on the builder.
    type: str
    default: ''
  key:
    description: Private key on the builder, never copied. Empty with a signer.
    type: str
    default: ''
  settings:
    description: Settings of C(kmod sign), as JSON text with certificate, key and signer.
    type: str
    default: ''
  signs:
    description: Whether this machine builds and signs modules.
    type: bool
    default: false
  enrols:
    description: Whether this machine loads modules and needs the key in its firmware.
    type: bool
    default: false
  kernel_release:
    description: Release of the kernel whose modules are signed.
    type: str
    default: ''
  shared:
    description: The certificate on the controller, fetched from the builder and copied to the others.
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: Prepare signing
  gdsdeploy.gds.gds_signing:
    certificate: /etc/gdsdeploy/keys/modules.der
    key: /etc/gdsdeploy/keys/modules.key
    settings: "{{ lookup('ansible.builtin.file', 'signing.json') }}"
    signs: true
    enrols: true
    kernel_release: 6.12.94+deb13-amd64
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/gdsdeploy/signing.json
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: signing
report:
  description: The host's certificate, and whether its firmware has the key.
  returned: success
  type: dict
  contains:
    certificate:
      description: The certificate in base64; empty if there is none.
      returned: success
      type: str
      sample: ''
    enrolment:
      description: State of the key in the firmware.
      returned: success
      type: dict
"""
