"""How often Python starts on a host while it is provisioned, and how many logins that takes.

On a light host, python3 is for a while a script that writes down its arguments and then is python3; sshd's log has the
commands that were run.  Prints one JSON object: for each command, all starts, those of gdsdeploy's host program as
the controller sends it, those of Ansible's own modules, and what others ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from small import fleet

from gdsdeploy import console
from gdslab.host import LabHost

sys.path.insert(0, str(Path(__file__).parents[1]))
from lights import command

LOG = "/srv/starts"
#: python3 is a link on Debian; what it leads to, which Ansible finds for itself, is replaced.
COUNT = f"""set -eu
real=$(readlink -f /usr/bin/python3)
mv $real $real.counted
cat >$real <<END
#!/bin/sh
printf '%s\\n' "start \\$*" | tr '\\n' ' ' >>{LOG}
echo >>{LOG}
exec $real.counted "\\$@"
END
chmod +x $real
: >{LOG}; chmod 0666 {LOG}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", default="starts", help="name of the lab that is made (default: %(default)s)")
    options = parser.parse_args()
    with fleet(options.lab, 1) as (path, lab):
        host = lab.hosts()[0]
        host.ssh(["sudo", "sh", "-c", COUNT])
        results = {
            "provision, everything": count_starts(host, "provision", path),
            "plan": count_starts(host, "plan", path),
            "provision, nothing": count_starts(host, "provision", path),
            "provision --force-roles, nothing": count_starts(host, "provision", path, "--force-roles"),
        }
    console.data(json.dumps(results, indent=2))


def count_starts(host: LabHost, *arguments: str | Path) -> dict[str, object]:
    """Starts of Python on the host while a command of gdsdeploy's runs."""
    host.ssh(["sudo", "truncate", "--size=0", LOG])
    command(*arguments)
    lines = [line.strip() for line in host.ssh(["cat", LOG]).stdout.splitlines() if line.startswith("start")]
    ours = [line for line in lines if "closefd=False" in line]
    # Ansible runs a module from standard input, or from a file that it has sent.
    modules = [line for line in lines if line == "start" or "AnsiballZ_" in line]
    others = [line.removeprefix("start ")[:100] for line in lines if line not in (*ours, *modules)]
    return {"all": len(lines), "host program": len(ours), "Ansible's modules": len(modules), "others": others}


if __name__ == "__main__":
    main()
