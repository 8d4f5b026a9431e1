"""Which Debian archive this machine uses, and what using it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.run import Completed
from gdslab import archive
from gdslab.errors import LabUnavailable

DEB822 = """\
# comment
Types: deb
URIs: https://packages.example/vendor
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/vendor.gpg

Types: deb deb-src
URIs: http://mirror.example/debian/
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
ONE_LINE = """\
deb [arch=amd64 signed-by=/usr/share/keyrings/vendor.gpg] http://packages.example/apt bookworm main
deb-src http://sources.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib # the archive
deb http://security.example/debian-security bookworm-security main
"""


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty etc/apt, with apt's settings as the test's ``settings`` file has them."""
    (tmp_path / "sources.list.d").mkdir()
    settings = tmp_path / "settings"
    settings.write_text("")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(archive.run, "run", lambda argv, **_: Completed(tuple(argv), 0, settings.read_text(), ""))
    return tmp_path


def test_deb822_sources(etc: Path) -> None:
    (etc / "sources.list.d/debian.sources").write_text(DEB822)
    assert archive.controller_archive(etc) == archive.Archive(
        uri="http://mirror.example/debian",
        security_uri="http://mirror.example/debian-security",
        keyring=Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
        proxy={},
        options={},
        ca_bundle=None,
    )


def test_one_line_sources_and_no_vendor_of_the_same_suite(etc: Path) -> None:
    (etc / "sources.list").write_text(ONE_LINE)
    debian = archive.controller_archive(etc)
    assert (debian.uri, debian.security_uri) == (
        "http://mirror.example/debian",
        "http://security.example/debian-security",
    )


def test_list_of_mirrors(etc: Path) -> None:
    (etc / "mirrors").write_text(
        "# nearest first\nhttps://near.example/debian/ priority:1\nhttps://far.example/debian\n"
    )
    (etc / "sources.list").write_text(f"deb mirror+file://{etc}/mirrors bookworm main\n")
    assert archive.controller_archive(etc).uri == "https://near.example/debian"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "deb http://ubuntu.example/ubuntu noble main\n",
        "deb http://packages.example/apt trixie main\n",
        "deb cdrom:[Debian]/ bookworm main\n",
        "deb http://mirror.example/debian bookworm contrib\n",
    ],
)
def test_no_debian_archive_is_one_clear_error(etc: Path, text: str) -> None:
    (etc / "sources.list").write_text(text)
    with pytest.raises(LabUnavailable, match="no Debian archive") as caught:
        archive.controller_archive(etc)
    assert caught.value.hint


def test_what_reaching_the_archive_takes_is_carried(etc: Path) -> None:
    (etc / "sources.list").write_text("deb https://mirror.example/debian trixie main\n")
    (etc / "settings").write_text(
        'Acquire "";\n'
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::Proxy::mirror.example "DIRECT";\n'
        'Acquire::https::CaInfo "/etc/ssl/site.pem";\n'
        'Acquire::Check-Valid-Until "false";\n'
        'Acquire::AllowInsecureRepositories "1";\n'
        'Acquire::https::Verify-Peer "false";\n'
        'APT::NeverAutoRemove:: "^linux-image";\n'
    )
    debian = archive.controller_archive(etc)
    assert debian.proxy == {
        "Acquire::http::Proxy": "http://proxy.example:3128",
        "Acquire::https::Proxy::mirror.example": "DIRECT",
    }
    assert debian.options == {"Acquire::Check-Valid-Until": "false"}, "nothing that lowers verification travels"
    assert debian.ca_bundle == Path("/etc/ssl/site.pem")


def test_proxy_of_the_environment_is_made_explicit(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (etc / "sources.list").write_text("deb http://mirror.example/debian trixie main\n")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3142")
    monkeypatch.setenv("https_proxy", "http://unused.example:1")
    assert archive.controller_archive(etc).proxy == {"Acquire::http::Proxy": "http://127.0.0.1:3142"}


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("http://127.0.0.1:3142", 3142),
        ("http://localhost/debian", 80),
        ("https://127.1.2.3/debian", 443),
        ("http://[::1]:8080/debian", 8080),
        ("http://mirror.example/debian", None),
        ("http://127.mirror.example/debian", None),
        ("DIRECT", None),
        ("", None),
    ],
)
def test_loopback_port(address: str, port: int | None) -> None:
    assert archive.loopback_port(address) == port
