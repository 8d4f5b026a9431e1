"""What UEFI and Secure Boot cost a VM host of the lab: boots by BIOS, UEFI and Secure Boot, in turn.

    .venv/bin/python benchmarks/firmware/run.py          # --rounds N, --os SYSTEM

Each boot is of a host that was shut down; the first boot, which makes a host of the base system, isn't counted.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import time
from pathlib import Path

import gdslab as labs
from gdslab import LabHost, systems
from gdslab.firmware import Firmware

KINDS = {
    "bios": Firmware(),
    "uefi": Firmware(uefi=True),
    "secure boot": Firmware(uefi=True, secure_boot=True),
}
#: What a boot is measured at, in seconds since the start of QEMU.
FIGURES = ("kernel_wall", "kernel_cpu", "ssh_wall", "ssh_cpu")
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 900.0


def processor_time(host: LabHost) -> float:
    """Seconds that the host's QEMU has used."""
    process = host.process()
    assert process is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def boot(host: LabHost) -> dict[str, float]:
    """Start the host until it answers."""
    old, begin = host.log.stat().st_size, time.monotonic()
    host.start()
    while b"Linux version" not in host.log.read_bytes()[old:]:
        assert time.monotonic() < begin + PATIENCE, f"no kernel: {host.log}"
        time.sleep(0.05)
    kernel = time.monotonic() - begin, processor_time(host)
    host.wait_ssh(PATIENCE)
    return dict(zip(FIGURES, (*kernel, time.monotonic() - begin, processor_time(host)), strict=True))


def shut_down(host: LabHost) -> None:
    """Shut the host down; its QEMU ends."""
    host.ssh(["sudo", "systemctl", "poweroff"], ok=range(256))
    end = time.monotonic() + PATIENCE
    while host.running():
        assert time.monotonic() < end, f"{host.name} still runs"
        time.sleep(0.2)


def main() -> None:
    """Print a line of JSON for each boot, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--os", choices=list(systems.SYSTEMS), default=systems.DEFAULT_OS)
    arguments = parser.parse_args()
    run = f"firmware-{secrets.token_hex(2)}"
    names = {kind: f"{run}-{kind.replace(' ', '-')}" for kind in KINDS}
    results: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    try:
        hosts = {}
        for kind, firmware in KINDS.items():
            hosts[kind] = labs.up(names[kind], vms=1, lights=0, os=arguments.os, firmware=firmware).host("gpu1")
            shut_down(hosts[kind])
        for number in range(arguments.rounds):
            # Who comes first changes, because the machine's other work does, too.
            kinds = list(KINDS)
            for kind in kinds[number % 3 :] + kinds[: number % 3]:
                figures = boot(hosts[kind])
                shut_down(hosts[kind])
                results[kind].append(figures)
                show({"boot": kind, **figures})
    finally:
        for name in names.values():
            labs.down(labs.Lab(name))
    for kind, figures_of_all in results.items():
        show({"median": kind, **{name: statistics.median(each[name] for each in figures_of_all) for name in FIGURES}})


def show(values: dict[str, str | float]) -> None:
    """One line of JSON."""
    rounded = {name: round(value, 1) if isinstance(value, float) else value for name, value in values.items()}
    sys.stdout.write(json.dumps(rounded) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
