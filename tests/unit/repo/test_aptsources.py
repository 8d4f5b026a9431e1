"""Both formats of sources.list(5), as they are found on machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.host.apply.packages.aptsources import Source, SourcesError, parse_sources
from gdsdeploy.repo.repository import controller_sources

DEB822 = """\
# written by the installer
Types: deb deb-src
URIs: https://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://mirror.example/old
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: https://mirror.example/flat
Suites: ./
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEYCQjIxYJKwYBBAHaRw8BAQdAD/P5Nvvnvk66SxBBHDbhRml9ORg1WV5CvzKY
 -----END PGP PUBLIC KEY BLOCK-----
"""


def test_deb822_gives_one_source_for_each_suite() -> None:
    sources = parse_sources(DEB822, "debian.sources")
    assert sources[:2] == [
        Source(
            types=("deb", "deb-src"),
            uri="https://mirror.example/debian",
            suite=suite,
            components=("main", "contrib"),
            signed_by="/usr/share/keyrings/debian-archive-keyring.gpg",
            filename="debian.sources",
        )
        for suite in ("bookworm", "bookworm-updates")
    ]


def test_deb822_leaves_out_what_is_not_enabled() -> None:
    assert [s.uri for s in parse_sources(DEB822, "x.sources")] == [
        "https://mirror.example/debian",
        "https://mirror.example/debian",
        "https://mirror.example/flat",
    ]


def test_deb822_keeps_an_embedded_key() -> None:
    flat = parse_sources(DEB822, "x.sources")[-1]
    assert (flat.suite, flat.components) == ("./", ())
    assert flat.signed_by is not None
    assert flat.signed_by.startswith("-----BEGIN PGP")


def test_one_line_format_with_options_and_comments() -> None:
    text = (
        "# deb https://mirror.example/off stable main\n"
        "deb [arch=amd64,i386 signed-by=/etc/apt/keyrings/x.gpg] https://mirror.example/x stable main extra # why\n"
        "deb-src https://mirror.example/x stable main\n"
        "\n"
        "deb [ trusted=no ] file:///srv/flat ./\n"
    )
    assert parse_sources(text, "x.list") == [
        Source(
            ("deb",), "https://mirror.example/x", "stable", ("main", "extra"), "/etc/apt/keyrings/x.gpg",
            ("amd64", "i386"), "x.list",
        ),
        Source(("deb-src",), "https://mirror.example/x", "stable", ("main",), None, (), "x.list"),
        Source(("deb",), "file:///srv/flat", "./", (), None, (), "x.list"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "filename", "place"),
    [
        ("deb https://mirror.example/x stable main\ndeb https://mirror.example/x\n", "a.list", "a.list:2"),
        ("Types: deb\nURIs: https://mirror.example/x\n", "a.sources", "a.sources: entry 1 has no Suites"),
    ],
)
def test_what_apt_would_refuse_is_refused_by_place(text: str, filename: str, place: str) -> None:
    with pytest.raises(SourcesError, match=place):
        parse_sources(text, filename)


def test_the_controller_says_it_as_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb https://mirror.example/1\n")
    with pytest.raises(RepositoryUnusable, match=r"sources\.list:1: not an apt source"):
        controller_sources(tmp_path)


def test_comments_and_lines_that_go_on_belong_to_no_other_field() -> None:
    text = "Types: deb\n# Types: deb-src\nURIs: https://one.example/\n https://two.example/\nSuites: s\nComponents:\n"
    text += " main\n"
    assert [(s.uri, s.components) for s in parse_sources(text, "x.sources")] == [
        ("https://one.example/", ("main",)),
        ("https://two.example/", ("main",)),
    ]


def test_files_are_read_in_the_order_of_apt_and_others_ignored(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb https://mirror.example/1 s main\n")
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "b.sources").write_text("Types: deb\nURIs: https://mirror.example/3\nSuites: s\nComponents: main\n")
    (parts / "a.list").write_text("deb https://mirror.example/2 s main\n")
    (parts / "c.sources.save").write_text("not a source at all")
    assert [s.uri[-1] for s in controller_sources(tmp_path)] == ["1", "2", "3"]


def test_a_machine_without_apt_has_no_sources(tmp_path: Path) -> None:
    assert controller_sources(tmp_path / "none") == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sources.list").write_text("deb https://mirror.example/1 s main\n")

    def refuse(self: Path, **how: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(RepositoryUnusable, match=r"sources\.list: cannot be read: Permission denied"):
        controller_sources(tmp_path)
