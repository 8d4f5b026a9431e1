"""Debian's prometheus and node_exporter: series of gates, the page's queries, alert rules and the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gdsdeploy import resources
from gdsdeploy.host.gate import gate
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.libcufile.counters import Counters, Direction, Gpu
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, WAIVED, Finding
from gdsdeploy.host.paths import WATCH_METRICS
from gdsdeploy.host.watch import service as watch_metrics
from gdsdeploy.host.watch.look import Entry, Look
from gdsdeploy.host.watch.service import Totals
from gdsdeploy.lock import lockfile
from tests.commandline import Run
from tests.loopback.loopback_fleet import RUNNING, LoopbackFleet
from tests.loopback.loopback_sshd import free_port
from tests.unit.host.programs import running

RIGHT = {"profile": "right"}
RULES = resources.templates() / "prometheus" / "alerts.yml"
PAGE = Path(__file__).parents[3] / "docs" / "prometheus.md"
DASHBOARD = resources.templates() / "prometheus" / "dashboard.json"
#: Of Prometheus and node_exporter themselves.
FOREIGN = {"node_boot_time_seconds", "up"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Start programs, which end with the test."""
    programs: list[subprocess.Popen[bytes]] = []

    def start_program(*argv: object) -> None:
        log = (tmp_path / "programs.log").open("ab")
        programs.append(subprocess.Popen(list(map(str, argv)), stdout=log, stderr=log, cwd=tmp_path))

    yield start_program
    for program in programs:
        program.terminate()
        program.wait(300)


class Site:
    """A Prometheus server that scrapes an exporter for each host."""

    def __init__(self, folder: Path, start_program: Callable[..., None], lock_digest: str) -> None:
        self.folder, self.start_program, self.lock_digest = folder, start_program, lock_digest
        self.url = f"http://127.0.0.1:{free_port()}"
        self.targets: list[dict[str, Any]] = []

    def add(self, host: str, *, waived: float = 0.0, **changes: Any) -> None:
        """An exporter with the record that a host's gate left; waived: days for which a waiver still holds."""
        findings = [
            Finding("kernel.running", PASS, "title", RUNNING, RUNNING).as_dict(),
            Finding("storage.path:/mnt/nvme", PASS, "title", "direct", "p2pdma", path="p2pdma").as_dict(),
            Finding("rdma.link", NOT_APPLICABLE, "title", "", "").as_dict(),
        ]
        if waived:
            until = time.strftime("%Y-%m-%d", time.gmtime(time.time() + waived * 86400))
            waiver = {"until": until, "reason": "a test", "was": FAIL}
            findings.append(Finding("driver.flavour", WAIVED, "title", "this", "that", waiver=waiver).as_dict())
        fields = {
            "state": gate.OPEN, "reason": "fine", "verdict": PASS, "boot_id": f"boot-of-{host}", "host": host,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "seconds": 1.0, "profile": "right",
            "lock_digest": self.lock_digest, "boot_time": gate.boot_time(), "stack": [["kernel", RUNNING]],
            "findings": findings,
        }  # fmt: skip
        folder, port = self.folder / f"textfile-{host}", free_port()
        folder.mkdir()
        (folder / gate.FILE).write_text(gate.render(gate.Record(**{**fields, **changes})))
        listen, textfile = f"--web.listen-address=127.0.0.1:{port}", f"--collector.textfile.directory={folder}"
        collectors = ("--collector.disable-defaults", "--collector.stat", "--collector.textfile")
        self.start_program("prometheus-node-exporter", listen, textfile, *collectors)
        self.targets.append({"targets": [f"127.0.0.1:{port}"], "labels": {"instance": f"{host}:9100"}})

    def open(self, *waited_for: str) -> None:
        """Start the server, and wait until it has the series of these hosts."""
        value = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "node", "static_configs": self.targets}],
        }
        config = self.folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(value))
        listen = f"--web.listen-address={self.url.removeprefix('http://')}"
        storage = f"--storage.tsdb.path={self.folder / 'tsdb'}"
        self.start_program("prometheus", f"--config.file={config}", listen, storage)
        end = time.monotonic() + 300
        while time.monotonic() < end:
            try:
                instances = {entry["metric"]["instance"] for entry in self.ask("gdsdeploy_mount_path")}
            except httpx.HTTPError:
                instances = set()
            if instances == {f"{host}:9100" for host in waited_for}:
                return
            time.sleep(0.2)
        pytest.fail((self.folder / "programs.log").read_text()[-3000:])

    def ask(self, query: str) -> list[Any]:
        answer = httpx.post(f"{self.url}/api/v1/query", data={"query": query})
        answer.raise_for_status()
        value = answer.json()
        assert value["status"] == "success", (query, value)
        return value["data"]["result"]


def watched() -> str:
    """What gds-watch.service writes about a program that reads through CPU memory."""
    gpu = Gpu("GPU-" + "1" * 36, Direction(5, 0, 0, 5, 0, 0, 5000), Direction(0, 0, 0, 0, 0, 0, 0))
    program = running(
        pid=1, name="python", unit="/system.slice/train.service", container=False, libraries={"/x": "1.20.0"},
        variables={}, base_path="/etc/cufile.json", base={}, overlay=None,
        counters=Counters(10, 32256, 5000, 0, (gpu,)),
    )  # fmt: skip
    totals = Totals()
    for programs in ([], [program]):
        totals.add(programs, 1.0, {})
    entry = Entry(program, counters.route(counters.Observed(program.counters)))
    return watch_metrics.render(Look(time.time(), (entry,), None, 0), totals, direct=True)


@pytest.fixture
def fleet(make_fleet: Callable[..., LoopbackFleet]) -> LoopbackFleet:
    return make_fleet(gpu1=RIGHT, gpu2=RIGHT, gpu3=RIGHT)


@pytest.fixture
def site(tmp_path: Path, start: Callable[..., None], fleet: LoopbackFleet) -> Site:
    return Site(tmp_path, start, lockfile.read(lockfile.beside(fleet.path)).digest)


def test_each_query_of_the_page_finds_its_hosts(site: Site) -> None:
    site.add("gpu1", waived=30)
    site.add("gpu2", waived=3, boot_time=gate.boot_time() - 3600)
    failed = Finding("boot.autoload", FAIL, "title", "this", "that", "do").as_dict()
    site.add("gpu3", state=gate.CLOSED, verdict=FAIL, findings=[failed])
    site.add("gpu4")
    (site.folder / "textfile-gpu4" / gate.FILE).unlink()
    mounts = {"gpu1:9100", "gpu2:9100"}
    every = {*mounts, "gpu3:9100"}
    gpu2, gpu3 = {"gpu2:9100"}, {"gpu3:9100"}
    expected = [gpu3, {"gpu1:9100"}, gpu2, gpu2, {"gpu4:9100"}, gpu3, mounts, every, {""}]
    site.open("gpu1", "gpu2")
    pages = page_queries()
    instances: list[set[str]] = []
    end = time.monotonic() + 300
    while instances != expected and time.monotonic() < end:
        # The last exporter may not have been scraped yet.
        instances = [{entry["metric"].get("instance", "") for entry in site.ask(query)} for query in pages]
        time.sleep(0.2)
    assert instances == expected
    counts = {entry["metric"].get("driver", ""): entry["value"][1] for entry in site.ask(pages[-1])}
    assert counts == {"": "3"}, "no record here has a driver"


def test_rules_and_dashboard_work_with_the_series(site: Site) -> None:
    site.add("gpu1")
    failed = Finding("storage.path:/mnt/nvme", FAIL, "title", "direct", "compat", path="compat").as_dict()
    site.add("gpu2", state=gate.CLOSED, verdict=FAIL, findings=[failed])
    (site.folder / "textfile-gpu2" / WATCH_METRICS).write_text(watched())
    site.open("gpu1", "gpu2")
    # The first samples are younger than what a rule looks back at; one evaluation after both is enough.
    end = time.monotonic() + 300
    alerts: dict[str, Any] = {}
    while time.monotonic() < end and not {"GdsGateClosed", "GdsMountWrongPath"} <= alerts.keys():
        answer = httpx.get(f"{site.url}/api/v1/alerts").json()
        alerts = {alert["labels"]["alertname"]: alert for alert in answer["data"]["alerts"]}
        time.sleep(0.2)
    assert set(alerts) == {"GdsGateClosed", "GdsMountWrongPath"}
    assert all(alert["labels"]["instance"] == "gpu2:9100" for alert in alerts.values())
    rules = httpx.get(f"{site.url}/api/v1/rules").json()["data"]["groups"][0]["rules"]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    silent = ["all"]
    while silent and time.monotonic() < end:
        # A rate needs two samples.
        silent = [title for title, query in queries() if not site.ask(query)]
    assert silent == []


def test_rules_are_valid_and_fire_when_they_should() -> None:
    cases = Path(__file__).with_name("alerts_test.yml")
    for argv in (["promtool", "check", "rules", RULES], ["promtool", "test", "rules", cases]):
        ended = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    names = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    tested = {
        case["alertname"]
        for group in yaml.safe_load(cases.read_text())["tests"]
        for case in group["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert names == tested


def test_series_keep_to_the_conventions(tmp_path: Path) -> None:
    finding = Finding("storage.path:/mnt/nvme", PASS, "title", "direct", "p2pdma", path="p2pdma").as_dict()
    record = gate.Record(
        gate.OPEN, "fine", PASS, "b", "2026-11-21T08:00:00Z", 1.0, stack=[["kernel", RUNNING]], findings=[finding]
    )
    text = gate.render(record) + watched()
    ended = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    assert set(re.findall(r"^# TYPE (\S+)", gate.render(record), re.MULTILINE)) == set(gate.HELP)


def page_queries() -> list[str]:
    return re.findall(r"^```promql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def queries() -> Iterator[tuple[str, str]]:
    """(title, query) of each panel of the dashboard, for all hosts."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$host", ".*")


def test_rules_and_dashboard_name_only_series_that_hosts_export() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    texts = [*(rule["expr"] for rule in rules), DASHBOARD.read_text(), *page_queries()]
    names = {name for text in texts for name in re.findall(r"\b(?:gdsdeploy|node)_\w+\b|\bup\b", text)}
    assert names - FOREIGN == {*gate.HELP, *watch_metrics.HELP}


@pytest.mark.parametrize(("verb", "file"), [("alerts", RULES), ("dashboard", DASHBOARD)])
def test_a_verb_prints_them(run: Run, verb: str, file: Path) -> None:
    assert run("prometheus", verb) == (0, file.read_text(), "")
