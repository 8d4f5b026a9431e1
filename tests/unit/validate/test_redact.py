"""What is taken out of a bundle; bundles that are damaged."""

from __future__ import annotations

import gzip
import io
import ipaddress
import itertools
import json
import re
import tarfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gdsdeploy.errors import GdsError
from gdsdeploy.files.secret import REDACTED
from gdsdeploy.host import checks
from gdsdeploy.host.facts import document, facts_from
from gdsdeploy.host.facts.document import EvidenceFileError
from gdsdeploy.host.io import tarball
from gdsdeploy.host.model.expectation import Expectation, from_json
from gdsdeploy.host.model.finding import FAIL, Waiver
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import reply_schema
from gdsdeploy.validate import support_bundle
from gdsdeploy.validate.redact import HOST, USER, Redactor
from gdsdeploy.validate.support_bundle import Bundle, BundleHost, judge, learn_host, redactor_for
from tests.unit.host import cases
from tests.unit.host.facts.test_evidence_file import EVIDENCE, expected

HOSTS = Path(__file__).parents[2] / "evidence" / "hosts"
EXPECTATION = from_json((HOSTS / "lab-vm.expectation.json").read_text())


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("10.1.2.3:/export", r"198\.18\.\d+\.\d+:/export"),
        ("addr=10.1.2.3,proto=rdma", r"addr=198\.18\.\d+\.\d+,proto=rdma"),
        ("inet6 fe80::9a03:9bff:fe12:3456/64", r"inet6 fe80::1/64"),
        ("2a02:810d:8c0:1::5", r"2001:db8::1"),
        ("ether 98:03:9B:12:34:56", r"ether 02:00:00:00:00:01"),
        ("3c-EC-ef-12-34-56", r"02-00-00-00-00-01"),
        ("3cec.ef12.3456", r"0200\.0000\.0001"),
        ("98:03:9b:12:34:56 9803.9b12.3456", r"02:00:00:00:00:01 0200\.0000\.0001"),
        ("x10.1.2.3 10.1.2.3_x", r"x198\.18\.0\.1 198\.18\.0\.1_x"),
        ("SN: S64GNE0R123456", r"SN: serial-1"),
        ("/users/jdoe /Users/jdoe /home/jdoe", r"/users/user1 /Users/user1 /home/user1"),
        ("from jane@corp.example, x@lists.debian.org", r"from mail-address-1, x@lists\.debian\.org"),
        ("node_guid: 9803:9b03:0012:3456", r"node_guid: 0200:0000:0000:0001"),
        ("GPU-5f2c1b9e-9d0a-4c2e-8f6b-0d6f5a4c3b2a", r"GPU-00000000-0000-4000-8000-000000000001"),
        ("root=UUID=5f2c1b9e-9d0a-4c2e-8f6b-0d6f5a4c3b2a ro", r"root=UUID=00000000-0000-4000-8000-000000000001 ro"),
        ("Serial Number : 1650123456789", r"Serial Number : serial-1"),
        ("/home/joe/data", r"/home/user1/data"),
        ("nqn.2014-08.org.nvmexpress:uuid:abc", r"device-1"),
        ("wwid eui.0025385b71b0e3b8", r"wwid device-1"),
        ("loader/entries/0123456789abcdef0123456789abcdef-6.12.conf", r"loader/entries/0{31}1-6.12.conf"),
    ],
)
def test_what_identifies_is_replaced_by_something_of_its_kind(text: str, pattern: str) -> None:
    redactor = Redactor()
    redacted_text = redactor.text(text)
    assert re.fullmatch(pattern, redacted_text), redacted_text
    assert redactor.text(text) == redacted_text, "the same word for the same thing"


@pytest.mark.parametrize(
    "text",
    [
        "libcufile.so.1.9.1.3",
        "driver 550.163.01, kernel 6.12.94+deb13-amd64",
        "0000:3b:00.0 0000:00:01.1",
        "12:34:56",
        "127.0.0.1 and ::1 and 0.0.0.0/0",
        "00:00:00:00:00:00",
        "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
        "a" * 64,
        "nvidia_p2p_get_pages 0x1234abcd",
        "/dev/nvme0n1p1 /mnt/nvme ext4 rw,relatime 0 0",
        "300.1.2.3",
        "1234.5678.9012",
        "c1:00.0 c1: [redacted]",
    ],
)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_versions_that_look_like_addresses_stay_where_they_are_known() -> None:
    redactor = Redactor()
    redactor.keep(versions=["1.9.1.3"])
    assert redactor.text("is 1.9.1.3 (10.9.1.3)") == "is 1.9.1.3 (198.18.0.1)"


def test_names_are_whole_words() -> None:
    redactor = learned("gpu1", "gpu10")
    assert redactor.text("gpu1 gpu10 gpu11 /gpu1.lan gpu1:") == "host-1 host-2 gpu11 /host-1.lan host-1:"


def learned(*names: str) -> Redactor:
    redactor = Redactor()
    for name in names:
        redactor.learn(HOST, name)
    return redactor


def test_nothing_that_stands_for_a_name_is_replaced_again_or_is_a_name() -> None:
    redactor = learned("head7", "host-1", "host-3", "host-2")
    assert redactor.text("head7 host-1 host-3 host-2 host-1") == "host-4 host-5 host-6 host-7 host-5"


def test_words_of_every_host_stay_in_texts_and_hosts_get_other_names() -> None:
    redactor = learned("boot", "eth7", "head7")
    redactor.keep(paths=["/sys/class/net/eth7/mtu"])
    assert redactor.text("boot of head7 by eth7") == "boot of host-1 by eth7"
    assert redactor.kept(HOST) == ["boot", "eth7"]
    assert [redactor.name(name) for name in ("boot", "eth7", "head7")] == ["host-2", "host-3", "host-1"]


def test_machines_that_a_log_names() -> None:
    redactor = Redactor()
    log = """Nov 30 01:00:00 node9 sshd[1]: session of ops@desk7
mount nas:/export from nas.corp.example by gpu1.corp.example, see docs.nvidia.com and gds@x.service"""
    redactor.learn_log(log, ["gpu1"])
    assert (
        redactor.text(log)
        == """Nov 30 01:00:00 other-host-1 sshd[1]: session of ops@other-host-2
mount other-host-3:/export from other-host-4 by gpu1.corp.example, see docs.nvidia.com and gds@x.service"""
    )


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2,rw",
        'export AWS_SECRET_ACCESS_KEY="hunter2"',
        "api_key: hunter2",
        '{"auth_token": "hunter2"}',
        "https://joe:hunter2@mirror.example/debian",
        "Authorization: Bearer hunter2hunter2",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----",
        "mount -o username=joe,passwd=hunter2",
    ],
)
def test_secrets_are_gone(text: str) -> None:
    redactor = Redactor()
    redacted_text = redactor.text(text)
    assert "hunter2" not in redacted_text
    assert REDACTED in redacted_text
    assert redactor.summary()["secret"] >= 1
    assert redactor.text(redacted_text) == redacted_text


# --- whole bundles ---------------------------------------------------------------------------------------------------


def planted() -> tuple[dict[str, Any], list[str]]:
    """A real host's evidence with things in it that must not leave; and those."""
    evidence = json.loads((HOSTS / "lab-vm-provisioned.json").read_text())
    files = evidence["files"]
    words = [
        "10.77.8.9",
        "S64DNE0R123456",
        "hunter2",
        "joedoe",
        "9d1c2b7a-5a0e-4a0c-9e0e-1f6b3f6f0002",
        "98:03:9b:77:88:99",
    ]
    files["/sys/class/nvme/nvme9/device/serial"] = "S64DNE0R123456\n"
    evidence["links"]["/dev/disk/by-id/nvme-Disk_S64DNE0R123456"] = "../../nvme9n1"
    files["/etc/environment"] = "TOKEN=hunter2\nDATA=/home/joedoe/data\n"
    files["/proc/cmdline"] = (
        str(files.get("/proc/cmdline", "")) + " ip=10.77.8.9 uuid=9d1c2b7a-5a0e-4a0c-9e0e-1f6b3f6f0002"
    )
    files["/etc/cufile.json"] = files["/etc/cufile.json"].replace("{", "{\n  // 98:03:9b:77:88:99", 1)
    return evidence, words


def whole(evidence: dict[str, Any], expectation: Expectation = EXPECTATION) -> Bundle:
    return Bundle("fleet.yml", "sha256:0", "2026-11-21T08:00:00Z", {"gpu1": BundleHost(expectation, evidence)})


def redactor_of(bundle: Bundle, fleet: Fleet | None = None, *, hide_names: bool = True) -> Redactor:
    redactor = redactor_for(fleet, list(bundle.hosts), hide_names=hide_names)
    for host in bundle.hosts.values():
        learn_host(redactor, host, hide_names=hide_names)
    return redactor


def test_nothing_planted_is_left_and_no_verdict_changes(tmp_path: Path) -> None:
    import hashlib

    evidence, words = planted()
    digest = hashlib.sha256(evidence["files"]["/etc/cufile.json"].encode()).hexdigest()
    original = whole(evidence, replace(EXPECTATION, cufile_sha256=digest))
    waiver = Waiver("gate.installed", "2026-12-31", "as joedoe says")
    original = replace(original, hosts={"gpu1": replace(original.hosts["gpu1"], waivers=(waiver,))})
    redactor = redactor_of(original)
    redactor.learn(USER, "joedoe")
    redacted = support_bundle.redact_bundle(original, redactor)
    data = support_bundle.pack(redacted, redactor.summary())
    (tmp_path / "b.tar.gz").write_bytes(data)
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        text = "".join(archive.extractfile(entry).read().decode() for entry in archive)  # type: ignore[union-attr]
        assert {(entry.mtime, entry.uid, entry.uname) for entry in archive} == {(0, 0, "")}
    for word in [*words, '"gpu1"']:
        assert word.lower() not in text.lower(), word
    assert document.bundle(str(tmp_path / "b.tar.gz"))[0]["redacted"] == redactor.summary()
    again = support_bundle.read(tmp_path / "b.tar.gz")
    assert [asdict(host) for host in again.hosts.values()] == [asdict(host) for host in redacted.hosts.values()]
    assert next(iter(again.hosts.values())).waivers == (replace(waiver, reason="as user1 says"),)
    before = checks.run(facts_from(evidence), original.hosts["gpu1"].expectation)
    judged = judge(again, progress=lambda _: None)
    assert [(use.check, use.until, use.reason) for use in judged.waivers] == [
        ("gate.installed", "2026-12-31", "as user1 says")
    ]
    (report,) = judged.hosts
    assert [(entry.check, entry.verdict) for entry in report.findings] == [
        (entry.check, entry.verdict) for entry in before
    ]
    rendered = {entry.check: entry.verdict for entry in report.findings}
    assert rendered["cufile.rendered"] == "pass", "the digest of the redacted file is expected"


def test_the_same_content_gives_the_same_bytes() -> None:
    evidence, _ = planted()
    packed = []
    for _ in range(2):
        redactor = redactor_of(whole(evidence), hide_names=False)
        packed.append(support_bundle.pack(support_bundle.redact_bundle(whole(evidence), redactor), redactor.summary()))
    assert packed[0] == packed[1]


def test_addresses_stay_addresses() -> None:
    redactor = Redactor()
    for number in range(300):
        ipaddress.ip_address(redactor.text(f"10.0.{number // 250}.{number % 250 + 1}"))
    assert redactor.summary() == {"IPv4 address": 300}


def a_fleet(**hosts: str) -> Fleet:
    shared = {"version": 1, "profiles": {"p": {"os": "debian-13"}}}
    return Fleet.model_validate(
        {**shared, "hosts": {name: {"profile": "p", "user": user} for name, user in hosts.items()}}
    )


def test_domains_of_hosts_and_login_names_go_even_where_host_names_stay() -> None:
    fleet = a_fleet(**{"gpu1.rz.corp.example": "bob", "gpu2": "ubuntu"})
    original = whole({"host": {"name": "gpu2.lab.other.example"}})
    redactor = redactor_of(original, fleet, hide_names=False)
    text = "bob@gpu1.rz.corp.example: from mirror.corp.example, lab.other.example; bobsled, bob-tools, ID=ubuntu (bob)."
    redacted_text = redactor.text(text)
    for word in ("corp", "other.example", "bob@", "(bob)"):
        assert word not in redacted_text, word
    assert redacted_text.startswith("user1@gpu1.domain-")
    assert "bobsled, bob-tools, ID=ubuntu (user1)." in redacted_text
    hidden = redactor_of(original, fleet).text(text)
    assert hidden.startswith("user1@host-1:")


@pytest.mark.parametrize("name", ["h100-libcufile-1.20.0", "h100-libcufile-1.15.1", "light-pinned", "lab-vm-bare"])
def test_no_verdict_of_a_real_host_changes(name: str) -> None:
    evidence = json.loads((HOSTS / f"{name}.json").read_text())
    redacted = support_bundle.redact_bundle(whole(evidence), redactor_of(whole(evidence)))
    (host,) = redacted.hosts.values()
    before = checks.run(facts_from(evidence), EXPECTATION)
    after = checks.run(facts_from(host.evidence), host.expectation)
    assert [(entry.check, entry.verdict) for entry in after] == [(entry.check, entry.verdict) for entry in before]
    assert "secret" not in redactor_of(whole(evidence)).summary()


MIB = 1024 * 1024
ZEROS = gzip.compress(bytes(MIB))


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def member(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(content), kind) + content + bytes(-len(content) % 512)


def record(key: str, value: str) -> bytes:
    """A record of a pax header; its length counts its own digits."""
    text = f" {key}={value}\n".encode()
    length = next(n for n in range(len(text), len(text) + 9) if n == len(text) + len(str(n)))
    return str(length).encode() + text


def pax(*records: bytes) -> bytes:
    return member("x", b"".join(records), tarfile.XHDTYPE)


def zeros(name: str, mib: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A packed member of ``mib`` MiB."""
    return gzip.compress(header(name, mib * MIB, kind)) + ZEROS * mib


@pytest.fixture
def sparing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test may unpack as much as a bundle may have, and needs no memory to speak of."""
    unpacked, read = [0], gzip.GzipFile.read

    def count(file: gzip.GzipFile, size: int | None = -1) -> bytes:
        data = read(file, size)
        unpacked[0] += len(data)
        return data

    monkeypatch.setattr(gzip.GzipFile, "read", count)
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * MIB
    assert unpacked[0] <= tarball.UNPACKED


@pytest.mark.usefixtures("sparing")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"".join(zeros(f"hosts/h{n}/evidence.json", 63) for n in range(100)), "hosts/h0/evidence.json is too large"),
        (b"".join(zeros(f"logs/{n}", 63) for n in range(100)), "it unpacks to more than 128 MiB"),
        (gzip.compress(header("x", 3 << 30, tarfile.XHDTYPE)) + ZEROS * 300, "a header of a member is too large"),
        (gzip.compress(header("x", 65537, tarfile.GNUTYPE_LONGNAME)) + ZEROS, "a header of a member is too large"),
        (gzip.compress(pax(record("comment", "a" * 60_000)) * 100), "a header of a member is too large"),
        (gzip.compress(pax(record("mtime", "1")) * (tarball.MEMBERS + 1)), "it has more than 50000 members"),
        (gzip.compress(header("x", kind=tarfile.SYMTYPE)), "x is neither a file nor a folder"),
        (gzip.compress(header("x", kind=tarfile.LNKTYPE)), "x is neither a file nor a folder"),
        (gzip.compress(header("x", kind=tarfile.CHRTYPE)), "x is neither a file nor a folder"),
        (gzip.compress(header("x", kind=tarfile.GNUTYPE_SPARSE)), "x is neither a file nor a folder"),
        (gzip.compress(header("x", kind=tarfile.XGLTYPE)), "x is neither a file nor a folder"),
        (gzip.compress(member("x", bytes(512), tarfile.DIRTYPE)), "x is a folder with content"),
        (gzip.compress(pax(record("path", "a")) * 2), "a member has two names"),
        (gzip.compress(pax(record("path", "a")) + member("x", b"b", b"L")), "a member has two names"),
        (gzip.compress(pax(record("size", "1"))), "a header gives a member another size or content"),
        (gzip.compress(pax(record("GNU.sparse.name", "a"))), "a header gives a member another size or content"),
        (gzip.compress(pax(b"8 path=a\n")), "a header of a member is damaged"),
        (gzip.compress(pax(b"0 path=a\n")), "a header of a member is damaged"),
        (gzip.compress(pax(b"99 path=a\n")), "a header of a member is damaged"),
        (gzip.compress(pax(b"path=a\n")), "a header of a member is damaged"),
        (gzip.compress(header("x", -1)), "a member has a size below 0"),
        (gzip.compress(member("manifest.json", b"{}") * 2), "manifest.json is in it twice"),
        (gzip.compress(header("manifest.json", 9)), "it ends too early"),
        (gzip.compress(bytes(1024) + member("x", b"")), "something follows its end"),
        (gzip.compress(b"x" * 512), "no header of a member"),
        (gzip.compress(bytes(1024)), "it has no manifest.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_archives_that_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "case.tar.gz"
    file.write_bytes(content)
    with pytest.raises(EvidenceFileError) as caught:
        document.bundle(str(file))
    assert caught.value.message.startswith(f"{file}: isn't a support bundle, or is a damaged one ({words}")
    assert caught.value.hint


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_other_programs_pack_is_read(tmp_path: Path, form: int) -> None:
    """With folders, and with names that need a header."""
    file, name = tmp_path / "case.tar", f"{'x/' * 60}y"
    with tarfile.open(file, "w", format=form) as archive:
        for path, content in (("hosts", None), (name, b"1"), ("hosts/a/evidence.json", b"{}")):
            info = tarfile.TarInfo(path)
            info.type, info.mtime = (tarfile.REGTYPE if content else tarfile.DIRTYPE), 1.5
            info.size = len(content or b"")
            archive.addfile(info, io.BytesIO(content or b""))
    everything = tarball.files(str(file), lambda _: 100)
    assert dict(everything) == {name: b"1", "hosts/a/evidence.json": b"{}"}


@pytest.mark.parametrize(
    "records",
    [
        [record("comment", "a\n15 path=hidden\n")],
        [record("path", "first"), record("path", "last")],
        [record("mtime", "1.5"), record("path", "a" * 200)],
    ],
)
def test_names_are_those_that_other_programs_see(tmp_path: Path, records: list[bytes]) -> None:
    file = tmp_path / "case.tar"
    file.write_bytes(pax(*records) + member("plain", b"1") + bytes(1024))
    with tarfile.open(file) as archive:
        assert list(tarball.files(str(file), lambda _: 1000)) == archive.getnames()


def packed(path: Path, change: Any) -> Path:
    """A bundle whose files ``change`` has changed: name → JSON."""
    host = support_bundle.BundleHost(expected("g"), EVIDENCE)
    data = support_bundle.pack(support_bundle.Bundle("f.yml", "0", "2026-11-22T00:00:00Z", {"g": host}), {})
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    values = {name.partition("/")[2]: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    change(values)
    members = (member(f"gdsdeploy-support/{name}", json.dumps(value).encode()) for name, value in values.items())
    path.write_bytes(b"".join(members) + bytes(1024))
    return path


MANIFEST, EXPECTED = "manifest.json", "hosts/g/expectation.json"


@pytest.mark.parametrize(
    ("file", "keys", "value"),
    [
        (MANIFEST, ["when"], "yesterday"), (MANIFEST, ["when"], 1), (MANIFEST, ["hosts"], []),
        (MANIFEST, ["fleet"], {}), (EXPECTED, ["topology"], None),
        (MANIFEST, ["hosts", "g", "seconds"], "1"), (MANIFEST, ["hosts", "g", "waivers"], [{"check": "a"}]),
        (MANIFEST, ["hosts", "g", "error"], {"kind": 1}), (MANIFEST, ["hosts", "h"], {}),
        (EXPECTED, ["kernel_release"], 6), (EXPECTED, ["packages"], {"a": 1}), (EXPECTED, ["storage"], ["x"]),
        (EXPECTED, ["storage"], [{"mount": ["/"]}]),
        (EXPECTED, ["storage"], [{"mount": "/", "load": {"read": "1"}}]),
    ],
)  # fmt: skip
def test_files_of_another_kind_are_refused(tmp_path: Path, file: str, keys: list[str], value: object) -> None:
    def change(values: dict[str, Any]) -> None:
        inner = values[file]
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    assert judge(support_bundle.read(packed(tmp_path / "good.tar", lambda _: None)), progress=lambda _: None).hosts
    with pytest.raises(GdsError, match="isn't a support bundle, or is a damaged one") as caught:
        support_bundle.read(packed(tmp_path / "case.tar", change))
    assert str(caught.value.hint).endswith(f"-o {tmp_path / 'case.tar'}")
    assert len(caught.value.message) < 400


def test_ten_thousand_hosts_are_read_again(tmp_path: Path) -> None:
    """Of small hosts with the report of large ones; benchmarks/fleet/round_trip.py has both of the usual size."""
    evidence = {"version": 1, "files": {"/etc/fstab": "nas:/export /mnt/nvme nfs4 rw 0 0"}}
    hosts = {f"gpu{number:05}": BundleHost(EXPECTATION, evidence) for number in range(10_000)}
    file, texts = tmp_path / "case.tar.gz", {"report.json": itertools.repeat("x" * 2**20, 300)}
    file.write_bytes(support_bundle.pack(Bundle("f.yml", "sha256:0", "2026-11-21T08:00:00Z", hosts, texts), {}))
    again = support_bundle.read(file).hosts
    assert list(again) == list(hosts)
    assert again["gpu09999"] == hosts["gpu09999"]
    assert document.one(str(file), "gpu09999") == evidence


def test_a_bundle_that_no_reader_takes_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {f"gpu{number}": BundleHost(EXPECTATION, {"files": {"/a": "b" * 9000}}) for number in range(9)}
    bundle = Bundle("f.yml", "sha256:0", "2026-11-21T08:00:00Z", hosts)
    monkeypatch.setattr(tarball, "UNPACKED", 20_000)
    monkeypatch.setattr(tarball, "EACH", 2000)
    with pytest.raises(GdsError, match=r"hosts/gpu\d/evidence.json has 9,0\d\d bytes; the limit is ") as caught:
        support_bundle.pack(bundle, {})
    assert "--limit" in str(caught.value.hint)


#: Words of recorded hosts and of an expectation; as names of hosts, logins and domains, they are as odd as can be.
RECORDED = {
    name: json.loads((HOSTS / f"{name}.json").read_text())
    for name in ("h100-libcufile-1.20.0", "light-pinned", "lab-vm-provisioned")
}
ODD = sorted(set(re.findall(r"\w(?:[\w.-]{0,40}\w)?", json.dumps([*RECORDED.values(), asdict(EXPECTATION)]), re.ASCII)))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(RECORDED)), st.lists(st.sampled_from(ODD), min_size=5, max_size=5, unique=True))
def test_names_out_of_odd_words_change_no_verdict(name: str, words: list[str]) -> None:
    """And no host is lost."""
    host, other, login, *domain = words
    expectation = replace(EXPECTATION, host=host)
    bundle = Bundle("fleet.yml", "sha256:0", "2026-11-21T08:00:00Z", {
        host: BundleHost(expectation, RECORDED[name]),
        **dict.fromkeys([other, "host-1"], BundleHost(EXPECTATION, None)),
    })  # fmt: skip
    redactor = redactor_of(bundle)
    redactor.learn(USER, login)
    redactor.learn("domain", ".".join(domain))
    redacted = support_bundle.redact_bundle(bundle, redactor)
    assert len(redacted.hosts) == len(bundle.hosts)
    first = next(iter(redacted.hosts.values()))
    before = checks.run(facts_from(RECORDED[name]), expectation)
    after = checks.run(facts_from(first.evidence), first.expectation)
    assert [entry.verdict for entry in after] == [entry.verdict for entry in before]


def test_the_variables_of_a_boot_loader_are_texts_and_their_names_the_same_everywhere() -> None:
    document = cases.read("truth/boot")["systemd-boot, another kernel for one boot"].document()
    text = json.dumps(document)
    for encode in (str, lambda word: word.encode("utf-16-le").hex()):
        text = text.replace(encode("m-6.12.9"), encode("0123456789abcdef0123456789abcdef-6.12.9"))
    original = whole(json.loads(text))
    redacted = support_bundle.redact_bundle(original, redactor_of(original)).hosts["host-1"]
    assert "0123456789abcdef".encode("utf-16-le").hex() not in json.dumps(redacted.evidence)
    before, after = (
        {entry.check: entry.verdict for entry in checks.run(facts_from(each.evidence), each.expectation)}
        for each in (original.hosts["gpu1"], redacted)
    )
    assert after == before
    assert before["kernel.boot-default"] == FAIL


def test_sections_that_are_not_declared_are_left_out_and_said() -> None:
    original = whole({**RECORDED["light-pinned"], "secrets": {"/etc/shadow": "root:x"}})
    redacted = support_bundle.redact_bundle(original, redactor_of(original))
    assert "secrets" not in redacted.hosts["host-1"].evidence  # type: ignore[operator]
    assert redacted.left_out == ("secrets",)
    assert b"secrets" in gzip.decompress(support_bundle.pack(redacted, {}))
    assert set(reply_schema.Evidence.model_fields) == support_bundle.SECTIONS, "what hosts are asked for is packed"
