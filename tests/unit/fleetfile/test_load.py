"""Fleet files: all problems at once, each at its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdsdeploy.errors import FleetInvalid, NameUnknown
from gdsdeploy.fleetfile.load import load_fleet, secret_keys
from gdsdeploy.fleetfile.selection import select
from gdsdeploy.model.fleet import Fleet

SMALL = 'version: 1\nprofiles:\n  gds: {os: debian-13, driver: "550"}\nhosts:\n  gpu1: gds\n'


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "fleet.yml"
    path.write_text(text)
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    return caught.value.message.replace(str(path), "fleet.yml").splitlines()


def loaded(tmp_path: Path, text: str) -> Fleet:
    path = tmp_path / "fleet.yml"
    path.write_text(text)
    return load_fleet(path)


def test_every_problem_is_reported_with_its_place(tmp_path: Path) -> None:
    text = """version: 1
profiles:
  gds:
    os: debian-13
    driver: 550
    bilder: build1
    storage:
      - {mount: /mnt/a, path: compat}
      - {mount: nvme, path: fast}
    cufile: {properties: {d: 1.5}}
hosts:
  gpu1: {profile: gds, port: 220110}
  gpu1: gds
"""
    assert problems(tmp_path, text) == [
        'fleet.yml:5:13: profiles.gds.driver: a version is text: write it in quotes, "550" (found 550)',
        "fleet.yml:6:5: profiles.gds.bilder: unknown key; did you mean 'builder'?",
        "fleet.yml:9:17: profiles.gds.storage.1.mount: write an absolute path, one that begins with / (found 'nvme')",
        (
            "fleet.yml:9:29: profiles.gds.storage.1.path: input should be 'direct', 'nvidia-fs', 'p2pdma' or 'compat'"
            " (found 'fast')"
        ),
        "fleet.yml:10:13: profiles.gds.cufile: properties.d: cufile.json has no value like 1.5",
        "fleet.yml:13:3: the key 'gpu1' is given twice",
    ]


def test_wrong_values_hide_no_wrong_names(tmp_path: Path) -> None:
    text = """version: 1
profiles:
  gds:
    os: debian-14
    mode: direct
    builder: none
hosts:
  gpu1: gsd
  gpu2: {profile: gds, port: high}
"""
    places = [line.partition(": ")[2].partition(":")[0] for line in problems(tmp_path, text)]
    names = ["profiles.gds.os", "profiles.gds.mode", "profiles.gds.builder", "hosts.gpu1.profile", "hosts.gpu2.port"]
    assert places == names
    # Without its only profile, the rest isn't a fleet: only what is certain is reported.
    assert len(problems(tmp_path, "version: 1\nprofiles: {gds: 1}\nhosts: {gpu1: gsd}\n")) == 1


def test_names_that_point_nowhere(tmp_path: Path) -> None:
    text = SMALL.replace('driver: "550"', "builder: b2") + "  gpu2: gdx\n"
    assert problems(tmp_path, text) == [
        "fleet.yml:3:33: profiles.gds.builder: there is no builder 'b2'",
        "fleet.yml:6:9: hosts.gpu2.profile: there is no profile 'gdx'",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "fleet.yml: the file is empty"),
        ("version: 1\nhosts: [\n", "fleet.yml:3:1: not valid YAML"),
        ("version: 2\n" + SMALL.split("\n", 1)[1], "fleet.yml:1:10: version: input should be 1 (found 2)"),
        ("hosts: {}\n", "fleet.yml:1:1: version: this key is required"),
        (SMALL.partition("hosts")[0], "fleet.yml:1:1: hosts: this key is required, with a host or more; or an invent"),
        (SMALL.replace("hosts:\n  gpu1: gds", "hosts: {}"), "fleet.yml:4:8: hosts: this key is required, with a host"),
        (SMALL + "hots: {}\n", "fleet.yml:6:1: hots: unknown key; did you mean 'hosts'?"),
        (SMALL.replace('"550"', '"fresh"'), "fleet.yml:3:32: profiles.gds.driver: a version pin is"),
        (SMALL.replace('driver: "550"', "kernel: 6.8"), "fleet.yml:3:32: profiles.gds.kernel: a version is text"),
        (
            SMALL.replace('driver: "550"', "kernel: {flavour: 64K}"),
            "fleet.yml:3:42: profiles.gds.kernel.flavour: write the name of a kernel flavour",
        ),
        (
            SMALL.replace('driver: "550"', "kernel: {version: fresh}"),
            "fleet.yml:3:42: profiles.gds.kernel.version: a version pin is",
        ),
        (
            SMALL.replace('driver: "550"', "kernel: {flavor: aws}"),
            "fleet.yml:3:33: profiles.gds.kernel.flavor: unknown key; did you mean 'flavour'?",
        ),
        (
            SMALL.replace('driver: "550"', "kernel: {flavour: rt-amd46}"),
            (
                "fleet.yml:3:42: profiles.gds.kernel.flavour: debian-13 has no kernel flavour 'rt-amd46' for x86_64; "
                "did you mean 'rt-amd64'?"
            ),
        ),
        (
            SMALL.replace('driver: "550"', 'driver: ">=3:580.65.06"'),
            (
                "fleet.yml:3:32: profiles.gds.driver.version: no version is written like '3:580.65.06' here; they are "
                "written like 580.95.05, 580.95.05-0ubuntu1"
            ),
        ),
        (
            SMALL.replace('driver: "550"', "kernel: {version: '<5.14.0-503.15.1.el9_5'}"),
            "fleet.yml:3:42: profiles.gds.kernel.version: no version is written like '5.14.0-503.15.1.el9_5' here",
        ),
        (
            SMALL.replace('driver: "550"', "driver: '>=580.65.06-'"),
            "fleet.yml:3:32: profiles.gds.driver.version: not a version that others can be compared with: '580.65.06-'",
        ),
        ("version: !!python/object/apply:os.getcwd []\n", "fleet.yml:1:10: not valid YAML"),
        # Aliases can't hide it.
        (SMALL + "x: &x {a: 1, a: 2}\ny: *x\n", "fleet.yml:6:14: the key 'a' is given twice"),
        ("- a\n", "fleet.yml:1:1: the file: a mapping is needed here, lines of KEY: VALUE"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    assert any(line.startswith(message) for line in problems(tmp_path, text)), problems(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        ('"6.14"', "6.14", None),
        ("{flavour: cloud-amd64}", "newest", "cloud-amd64"),
        ('{version: ">=6.14", flavour: rt-amd64}', ">=6.14", "rt-amd64"),
        ("{}", "newest", None),
    ],
)
def test_a_kernel_is_a_pin_or_a_pin_with_a_flavour(
    tmp_path: Path, text: str, version: str, flavour: str | None
) -> None:
    kernel = loaded(tmp_path, SMALL.replace('driver: "550"', f"kernel: {text}")).profiles["gds"].kernel
    assert (kernel.version, kernel.flavour) == (version, flavour)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            "companions: [nscq]",
            "profiles.gds.companions.0: input should be 'persistenced', 'fabricmanager', 'imex' or 'nvlink5'",
        ),
        ("companions: [imex, imex]", "profiles.gds.companions: imex is listed twice"),
        ("cuda: ['cuda-toolkit-12-4 = 1']", "profiles.gds.cuda.0: write the name of a package, without a version"),
        ("gpu: h100", "profiles.gds.gpu: input should be 'maxwell', "),
        ("gpus: true", "profiles.gds.gpus: a mapping is needed here"),
        ("gpus: -1", "profiles.gds.gpus: input should be greater than or equal to 0"),
        (
            "watch: {slurm: true}",
            "profiles.gds.watch.slurm: this key was removed; leave it out, and see a job's path",
        ),
        ("gpus: {count: 8, driver: nvidia}", "profiles.gds.gpus.driver: this key does not belong here"),
        ("nics: {driver: mlx5_core}", "profiles.gds.nics.count: this key is required"),
        ("nics: {count: 8, link: 400 Gbit/s}", "profiles.gds.nics.link: a whole number is needed here"),
        ("nvme: {count: 4, model: ''}", "profiles.gds.nvme.model: write part of a model's name"),
    ],
)
def test_what_it_may_not_ask_for_is_named_by_place(tmp_path: Path, keys: str, words: str) -> None:
    (problem,) = problems(tmp_path, SMALL.replace('"550"}', f'"550", {keys}}}'))
    assert problem.startswith("fleet.yml:3:")
    assert words in problem


IMEX = """\
version: 1
profiles:
  rack: {os: ubuntu-24.04, arch: aarch64, companions: [imex]}
  other: {os: ubuntu-24.04, arch: aarch64, companions: [imex]}
  plain: {os: ubuntu-24.04}
hosts:
  a: {profile: rack, address: 10.0.0.1, imex: one}
  b: {profile: rack, imex: {domain: one, address: "FD00::2"}}
  c: {profile: rack, imex: {domain: two, address: 10.0.0.1}}
  d: rack
"""


def test_hosts_of_an_imex_domain_know_each_other(tmp_path: Path) -> None:
    fleet = loaded(tmp_path, IMEX)
    assert fleet.imex_nodes("a") == fleet.imex_nodes("b") == ("10.0.0.1", "fd00::2")
    assert fleet.alone("b").imex_nodes("b") == ("10.0.0.1", "fd00::2"), "a rollout works on one host at a time"
    assert (fleet.imex_nodes("c"), fleet.imex_nodes("d")) == (("10.0.0.1",), ())


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("e: {profile: rack, imex: one}", "hosts.e.imex: e isn't an IP address; write imex: {domain: one"),
        ("e: {profile: rack, imex: {domain: one, address: node5}}", "hosts.e.imex.address: write an IP address"),
        ("e: {profile: rack, imex: {domain: one, address: 10.0.0.1}}", "hosts.e.imex: a of domain one has the same"),
        ("e: {profile: other, address: 10.0.0.9, imex: one}", "hosts.e.imex: a is in domain one, too, and has another"),
        ("e: {profile: plain, address: 10.0.0.9, imex: x}", "hosts.e.imex: profile plain doesn't have imex among"),
    ],
)
def test_a_domain_that_cannot_work_is_named_by_place(tmp_path: Path, host: str, words: str) -> None:
    (problem,) = problems(tmp_path, f"{IMEX}  {host}\n")
    assert problem.startswith("fleet.yml:11:")
    assert words in problem


def test_a_builder_is_in_no_domain(tmp_path: Path) -> None:
    builder = "builders:\n  e: {profile: rack, address: 10.0.0.9, imex: one}\nhosts:"
    (problem,) = problems(tmp_path, IMEX.replace("hosts:", builder))
    assert "builders.e.imex: only hosts are in an IMEX domain" in problem


def test_the_fabric_manager_of_blackwell_comes_with_nvlsm(tmp_path: Path) -> None:
    keys = "gpu: blackwell, companions: [fabricmanager]"
    (problem,) = problems(tmp_path, SMALL.replace('"550"}', f'"550", {keys}}}'))
    assert "write nvlink5" in problem
    loaded(tmp_path, SMALL.replace('"550"}', '"550", gpu: blackwell, companions: [nvlink5]}'))


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("https://someone:hunter2@mirror.example/x", "leave user, password and parameters out"),
        ("https://hunter2@mirror.example/x", "leave user, password and parameters out"),
        ("https://mirror.example/x?token=hunter2", "leave user, password and parameters out"),
        ("https://mirror.example/x#hunter2", "leave user, password and parameters out"),
        ("https://mirror.example/x;token=hunter2", "leave user, password and parameters out"),
        ("https://mirror.example/x&sig=hunter2", "leave user, password and parameters out"),
        ("https://mirror.example/x%3FX-Amz-Signature%3Dhunter2", "leave user, password and parameters out"),
        ("https://hunter2%40mirror.example/", "leave user, password and parameters out"),
        ("https://hunter2\uff20mirror.example/", "its machine or its port is none"),
        ("https:///someone:hunter2@mirror.example/", "its machine or its port is none"),
        ("https://someone:hunter2/", "its machine or its port is none"),
        ("htps://someone:hunter2@mirror.example/x", "write an address that begins with https://"),
        ("someone:hunter2@mirror.example", "write an address that begins with https://"),
        ("5", "write an address"),
    ],
)
@pytest.mark.parametrize("where", ["repositories: {own: {uri: URI}}", "mirror: {uri: URI, keyring: k}"])
def test_an_address_has_no_login_and_is_never_quoted(uri: str, words: str, where: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text(
        f"version: 1\n{where.replace('URI', json.dumps(uri))}\nprofiles: {{g: {{os: debian-13}}}}\nhosts: {{a: g}}\n"
    )
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    assert caught.value.message.startswith(f"{path}:2:")
    assert words in caught.value.message
    assert "hunter2" not in caught.value.message
    if "leave" in words:
        assert "`credentials`" in caught.value.message
        assert "/etc/apt/auth.conf.d" in caught.value.message


#: A value of another kind than the key has, for each key that the schema marks as secret.
MISTYPED = """\
version: 1
credentials: [hunter2]
repositories: {own: {uri: hunter2}}
mirror: {uri: hunter2, keyring: k}
profiles:
  gds: {os: debian-13, signing: {key: hunter2, signer: hunter2}}
hosts: {a: gds}
rollout:
  power_cycle: hunter2
  drain: {program: hunter2, out: hunter2, back: [[hunter2]], idle: hunter2}
  notify: {webhook: hooks.example/hunter2, token_file: [hunter2], command: hunter2 --token hunter2}
"""


def test_a_mistyped_secret_is_never_quoted(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text(MISTYPED)
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    assert "hunter2" not in caught.value.message
    named = {key for line in caught.value.message.splitlines() for key in line.split(": ")[1].split(".")}
    assert secret_keys(Fleet) <= named, "each of them is wrong here, and is reported"


# -- --limit: names and patterns; a typing error is an error.

HOSTS = ["gpu1", "gpu2", "build1"]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, HOSTS),
        ("gpu2", ["gpu2"]),
        ("build1,gpu1", ["gpu1", "build1"]),
        ("gpu*", ["gpu1", "gpu2"]),
        ("gpu1, gpu1", ["gpu1"]),
        ("gpu[12]", ["gpu1", "gpu2"]),
        ("gpu[2-40],build1", ["gpu2", "build1"]),
        ("*[1,2]", HOSTS),
    ],
)
def test_selection(limit: str | None, expected: list[str]) -> None:
    assert select(limit, HOSTS, Path("fleet.yml")) == expected


@pytest.mark.parametrize("limit", ["gpu3", "", "gpu1,", "*9", "gpu[5-7]", "gpu[0-9999999]"])
def test_what_selects_nothing_is_an_error(limit: str) -> None:
    with pytest.raises(NameUnknown, match=r"--limit: fleet.yml has no host") as caught:
        select(limit, HOSTS, Path("fleet.yml"))
    assert caught.value.hint == "It has: build1, gpu[1-2]"
