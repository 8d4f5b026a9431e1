"""Documentation of the module gds_signing; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_signing
short_description: Prepare what signs kernel modules, and enrol its key
description:
  - A machine that builds gets the settings for DKMS and for C(kmod sign).
  - A machine that loads the modules gets the certificate. Where Secure Boot is on, the module asks for the enrolment
    of the key.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
options:
  certificate:
    description: Certificate of the key, on the machine that builds.
    type: str
    default: ''
  key:
    description: Private key on the machine that builds. It is never copied. Empty with a signer.
    type: str
    default: ''
  settings:
    description: What C(kmod sign) reads, as JSON text with certificate, key and signer.
    type: str
    default: ''
  signs:
    description: Whether this machine builds modules, and so signs them.
    type: bool
    default: false
  enrols:
    description: Whether this machine loads modules, so that its firmware has to know the key.
    type: bool
    default: false
  kernel_release:
    description: Release of the kernel whose modules are signed.
    type: str
    default: ''
  shared:
    description: The certificate on the controller. It is fetched from the machine that signs, and copied to the others.
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
  description: Every change that was made, or in check mode would be made.
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
"""
