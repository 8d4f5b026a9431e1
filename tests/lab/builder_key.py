"""The builder's key of every lab that the tests make, so that one lab can receive what another one's builder has built.

Whoever reads this file has it.  So no fleet but a test's accepts it.
"""

from __future__ import annotations

from gdsdeploy.builds.builder_keys import BuilderKeys
from gdsdeploy.host.archive import provenance
from gdsdeploy.lab.state import Lab

_SEED = b"gdsdeploy: a key only for tests."


def give(lab: Lab) -> None:
    """Have the lab's builder sign with it, and the lab's fleet accept it."""
    pem = provenance._pem("PRIVATE KEY", provenance._PRIVATE_DER + _SEED)
    script = f"umask 077 && mkdir -p /var/lib/gdsdeploy && cat >{provenance.KEY} && chmod 0755 /var/lib/gdsdeploy"
    builder = lab.host("build1")
    builder.wait_ssh()
    builder.ssh(["sudo", "sh", "-c", script], input=pem)
    BuilderKeys.of(lab.fleet_path).path("build1").write_text(provenance.public_pem(_SEED))
