"""Judges a large fleet from a real Prometheus server, which has scraped the series of every host.

    python benchmarks/fleet/prometheus.py [--hosts N] [--fail PERCENT] [--rounds N] [--json FILE]

One exporter on loopback has the series of all hosts, as their gates write them; a share of the hosts fails a check.
The verb runs as a user would start it, with --json, and no host is asked over SSH.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import yaml

from gdsdeploy import console
from gdsdeploy.host import checks
from gdsdeploy.host.gate import gate, metrics
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, Finding
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.validate.prometheus_fleet import NODE_BOOT_TIME
from tests.loopback.loopback_fleet import target
from tests.loopback.loopback_sshd import free_port

BOOT_TIME = int(time.time()) - 86400
#: Of the checks, as on a host with two mounts in the demo.
APPLICABLE = 14
MOUNTS = ("/mnt/nvme", "/mnt/scratch")


class Exporter(BaseHTTPRequestHandler):
    """Has the series of all hosts."""

    text: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        """Answer a scrape."""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def series(host: str, number: int, lock_digest: str, *, fails: bool) -> str:
    """What the exporter of one host says, with its name on each line."""
    idents = [check.id for check in checks.listed() if check.id != "storage.path"]
    findings = [Finding(ident, PASS, "t", "e", "f") for ident in idents[:APPLICABLE]]
    findings += [Finding(ident, NOT_APPLICABLE, "t", "e", "f") for ident in idents[APPLICABLE:]]
    findings += [Finding(f"storage.path:{mount}", PASS, "t", "e", "f", path="p2pdma") for mount in MOUNTS]
    if fails:
        findings[number % APPLICABLE] = Finding(idents[number % APPLICABLE], FAIL, "t", "e", "f")
    state, reason = gate.decide(findings)
    stack = [["os", "debian-13"], ["kernel", "6.12.94+deb13-amd64"], ["driver", "550.163.01 open"]]
    record = gate.Record(
        state, reason, FAIL if fails else PASS, f"00000000-0000-4000-8000-{number:012}",
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BOOT_TIME + 60)), 0.5, host, "gds", lock_digest,
        stack=[*stack, ["nvidia-fs", "2.19.7"], ["libcufile", "1.9.1.3"]], boot_time=BOOT_TIME,
        findings=[finding.as_dict() for finding in findings],
    )  # fmt: skip
    lines = [line for line in metrics.render(record).splitlines() if not line.startswith("#")]
    labelled = []
    for line in [*lines, f"{NODE_BOOT_TIME} {BOOT_TIME}"]:
        name, _, value = line.rpartition(" ")
        name, _, labels = name.partition("{")
        labelled.append(f'{name}{{instance="{host}:9100"{"," if labels else ""}{labels or "}"} {value}\n')
    return "".join(labelled)


def write_fleet(folder: Path, hosts: int) -> tuple[Path, str]:
    """(fleet file, digest of its lock)."""
    value = {
        "version": 1,
        "ssh": {"user": "root"},
        "profiles": {"gds": {"os": "debian-13", "repositories": [], "storage": [{"mount": mount} for mount in MOUNTS]}},
        "hosts": {f"gpu{number:05}": "gds" for number in range(hosts)},
    }
    path = folder / "fleet.yml"
    path.write_text(yaml.safe_dump(value))
    lock = lockfile.build({"gds": target(Fleet.model_validate(value), "gds", "6.12.94+deb13-amd64")})
    lockfile.write(lockfile.beside(path), lock)
    return path, lock.digest


def start_prometheus(folder: Path, exporter: int) -> tuple[subprocess.Popen[bytes], str]:
    """(its process, its address)."""
    job = {
        "job_name": "node", "honor_labels": True, "scrape_interval": "1m", "scrape_timeout": "50s",
        "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}],
    }  # fmt: skip
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [job]}))
    url = f"http://127.0.0.1:{free_port()}"
    argv = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    argv += [f"--web.listen-address={url.removeprefix('http://')}"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log), url


def wait_for(url: str, hosts: int) -> None:
    """Until the server has the series of all hosts."""
    for _ in range(600):
        try:
            query = {"query": f"count({metrics.OPEN})"}
            result = httpx.post(f"{url}/api/v1/query", data=query).json()["data"]["result"]
        except (httpx.HTTPError, ValueError):
            result = []
        if result and result[0]["value"][1] == str(hosts):
            return
        time.sleep(0.5)
    raise SystemExit("the server has not scraped the exporter")


def measure(fleet: Path, url: str, failing: int) -> dict[str, float]:
    """One run of the verb: seconds, CPU seconds of this program, MiB at its peak."""
    argv = [sys.executable, "-m", "gdsdeploy", "validate", str(fleet), "--since-boot", "--prometheus", url, "--json"]
    output, begin = fleet.with_name("report.json"), time.monotonic()
    with output.open("wb") as file, fleet.with_name("stderr").open("wb") as log:
        child = subprocess.Popen(argv, stdout=file, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 30):
        raise SystemExit(fleet.with_name("stderr").read_text())
    counts = json.loads(output.read_text())["counts"]
    if counts["fail"] != failing or counts["unreachable"] or child.returncode != (30 if failing else 0):
        raise SystemExit(f"the verb ended with {child.returncode} and {counts}")
    return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "mib": usage.ru_maxrss / 1024}


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--fail", type=float, default=2.0, help="percent of hosts that fail a check")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    failing = round(arguments.hosts * arguments.fail / 100)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fleet, digest = write_fleet(folder, arguments.hosts)
        texts = [series(f"gpu{i:05}", i, digest, fails=i < failing) for i in range(arguments.hosts)]
        Exporter.text = "".join(texts).encode()
        exporter = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        server, url = start_prometheus(folder, exporter.server_port)
        try:
            wait_for(url, arguments.hosts)
            rounds = [measure(fleet, url, failing) for _ in range(arguments.rounds)]
        finally:
            server.terminate()
            server.wait()
    result: dict[str, Any] = {"hosts": arguments.hosts, "series": Exporter.text.count(b"\n")}
    result |= {key: round(statistics.median(each[key] for each in rounds), 2) for key in rounds[0]}
    line = "{hosts} hosts, {series} series: {seconds} s, {cpu} s of CPU, {mib:.0f} MiB at the peak"
    console.data(line.format(**result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
