"""Which Debian archive this machine uses, and what using it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.run import Completed
from gdslab import archive
from gdslab.errors import LabUnavailable


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
