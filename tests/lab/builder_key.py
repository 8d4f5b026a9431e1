"""One builder's key for all labs of the tests, so that each lab accepts another builder's modules.

The key is public, so only the tests' fleets accept it.
"""

from __future__ import annotations

from gdsdeploy.builds.cache import BuilderKeys
from gdsdeploy.host.archive import provenance
from gdslab.state import Lab

_SEED = b"gdsdeploy: a key only for tests."


def give(lab: Lab) -> None:
    """Install the key on the lab's builder and in the lab's fleet."""
    pem = provenance.private_pem(_SEED)
    script = f"umask 077 && mkdir -p /var/lib/gdsdeploy && cat >{provenance.KEY} && chmod 0755 /var/lib/gdsdeploy"
    builder = lab.host("build1")
    builder.wait_ssh()
    builder.ssh(["sudo", "sh", "-c", script], input=pem)
    BuilderKeys.of(lab.fleet_path).path("build1").write_text(provenance.public_pem(_SEED))
