"""What gds_repo adds to the sources that a host has already."""

from __future__ import annotations

from gdsdeploy.repo.lacking import Stanza, lacking, sources_from_grep

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
URI = "http://mirror.example/debian"
WANTED = {"uri": URI, "suite": "trixie", "components": ["main", "contrib"], "host_keyring": KEYRING}

DEB822 = """/etc/apt/sources.list.d/debian.sources:Types: deb
/etc/apt/sources.list.d/debian.sources:URIs: http://mirror.example/debian/
/etc/apt/sources.list.d/debian.sources:Suites: trixie trixie-updates
/etc/apt/sources.list.d/debian.sources:Components: main
/etc/apt/sources.list.d/debian.sources:Signed-By: /etc/apt/keyrings/own.gpg
""".splitlines()


def test_a_host_without_sources_gets_the_whole_entry() -> None:
    assert lacking([], [WANTED]) == [Stanza("http://mirror.example/debian", "trixie", ("main", "contrib"), KEYRING)]


def test_only_lacking_components_are_added_and_the_hosts_keyring_stays() -> None:
    found = lacking(sources_from_grep(DEB822), [WANTED])
    assert found == [Stanza("http://mirror.example/debian", "trixie", ("contrib",), "/etc/apt/keyrings/own.gpg")]


def test_an_entry_without_signed_by_gets_no_second_opinion() -> None:
    have = sources_from_grep(["/etc/apt/sources.list:deb http://mirror.example/debian trixie main"])
    assert lacking(have, [WANTED]) == [Stanza("http://mirror.example/debian", "trixie", ("contrib",), None)]


def test_nothing_is_added_where_everything_is_there() -> None:
    have = sources_from_grep(["/etc/apt/sources.list:deb http://mirror.example/debian trixie main contrib non-free"])
    assert lacking(have, [WANTED]) == []


def test_another_mirror_source_packages_and_disabled_entries_do_not_count() -> None:
    have = sources_from_grep(
        [
            "/etc/apt/sources.list:deb http://other.example/debian trixie main contrib",
            "/etc/apt/sources.list:deb-src http://mirror.example/debian trixie main contrib",
            "/etc/apt/sources.list:# deb http://mirror.example/debian trixie main contrib",
        ]
    )
    assert [stanza.components for stanza in lacking(have, [WANTED])] == [("main", "contrib")]


def test_a_flat_repository_is_there_or_not() -> None:
    flat = {"uri": "https://mirror.example/cuda", "suite": "/", "components": [], "host_keyring": KEYRING}
    assert [s.components for s in lacking([], [flat])] == [()]
    have = sources_from_grep(["/etc/apt/sources.list.d/cuda.list:deb https://mirror.example/cuda /"])
    assert lacking(have, [flat]) == []
