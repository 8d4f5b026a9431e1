"""Names, versions and paths in the lists of repositories, and the lists themselves: what passes and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given, settings, strategies as st

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.mirror import writing
from gdsdeploy.repo import names, rpm
from gdsdeploy.repo.packages import DEB, RPM, Order, Origin, PackageList, Relation, Universe, relations
from gdsdeploy.repo.rpm import Modules
from tests.fuzz import repositories

HOSTILE = st.text(st.sampled_from("../\\\0\n\r\t :%~^-aZ0é\u202e\x1b$`'\"*{}"), max_size=40)


@settings(max_examples=1000)
@given(text=st.one_of(st.text(max_size=60), HOSTILE))
@example("x/../../../home/.ssh/authorized_keys")
@example("..")
@example("a//b")
@example("a/./b")
@example(".htaccess")
@example("a/b\n")
@example("a b/c d")
@example("a / b")
@example("a  b ")
def test_a_path_that_passes_stays_below_and_is_printable_words(text: str) -> None:
    try:
        place = names.path(text)
    except ValueError as error:
        place, text = "", str(error)
    if not place:
        assert text.isprintable()
        return
    assert os.path.normpath(f"/m/{place}") == f"/m/{place}"
    assert re.fullmatch(r"[!-~]+(?: [!-~]+)*", place)
    assert not re.search(r" /|/ ", place)
    assert "\\" not in place
    assert not any(part.startswith(".") for part in place.split("/"))


@settings(max_examples=500)
@given(text=st.one_of(st.text(max_size=60), HOSTILE))
@example("550.1 x$(id)")
@example("1\n")
@example("\u0663:1")
def test_other_names_have_no_character_of_a_path_a_shell_or_a_line(text: str) -> None:
    for check in (names.package, names.architecture, names.nevra, names.sha256):
        with contextlib.suppress(ValueError):
            assert re.fullmatch(r"[A-Za-z0-9._+~^:-]+", check(text))


@pytest.mark.parametrize("text", ["²", "-1", "", "1_000", "9" * 5000, "99999999999", " 1", "1\n"])
def test_a_size_is_a_number_of_bytes_that_a_package_can_have(text: str) -> None:
    with pytest.raises(ValueError):
        names.size(text)


VERSION = st.text(st.sampled_from("0019az.+~^-:"), min_size=1, max_size=8)


@settings(max_examples=1000)
@given(order=st.sampled_from([DEB, RPM]), texts=st.lists(st.one_of(VERSION, st.text(max_size=8)), max_size=5))
@example(order=DEB, texts=["1" * 200, "a", "~", "1:"])
@example(order=RPM, texts=["1" * 200, "a", "~", "1-", "-"])
def test_every_two_versions_that_pass_have_an_order(order: Order, texts: list[str]) -> None:
    versions = []
    for text in texts:
        with contextlib.suppress(ValueError):
            versions.append(names.version(text, order.kind))
    keys = [order.key(version) for version in versions]
    for one, other in itertools.product(keys, keys):
        assert (one < other) + (one == other) + (one > other) == 1
    for one, two, three in itertools.product(keys, repeat=3):
        assert not (one <= two and two <= three) or one <= three


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Version: 3.2.2-1~deb13u1", "Version: 550.1 x$(id)", "dkms: not a version: '550.1 x$(id)'"),
        ("Version: 3.2.2-1~deb13u1", f"Version: {'9' * 5000}", "dkms: not a version"),
        ("Filename: pool/d.deb", "Filename: x/../../home/.ssh/authorized_keys", "dkms: not a path inside"),
        ("Filename: pool/d.deb", "Filename: /etc/passwd", "dkms: not a path inside"),
        ("Filename: pool/d.deb", "Filename: file:///etc/passwd", "dkms: not a path inside"),
        ("Architecture: all", "Architecture: ../x", "dkms: not an architecture: '../x'"),
        ("Package: dkms", "Package: ../dkms", "not a name: '../dkms'"),
        ("Size: 1\n", "Size: 1_0\n", "dkms: not a number of bytes: '1_0'"),
        ("Size: 1\n", "", "dkms: it has no size"),
        ("Architecture: all", "Architecture: all\nDepends: a (=> 1)", "dkms: not a package relation: 'a (=> 1)'"),
        ("Architecture: all", "Architecture: all\nDepends: a (>= 1:x:$)", "dkms: not a version: '1:x:$'"),
        ("Architecture: all", "Architecture: all\nSource: d (1/2)", "dkms: not a version: '1/2'"),
        ("Architecture: all", "Architecture: all\nPackage: other", "it has package twice"),
        ("Architecture: all", "Architecture: all\nFilename : other", "it has filename twice"),
    ],
)
def test_a_stanza_is_refused_with_its_number(old: str, new: str, words: str) -> None:
    text = repositories.PACKAGES.decode().replace(old, new).encode()
    with pytest.raises(RepositoryUnusable, match=re.escape(f"https://r.example/Packages: stanza 2: {words}")) as error:
        repositories.package_list(text)
    assert error.value.exit_code == 14


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('ver="550.1"', 'ver="550.1 x$(id)"', "nvidia-driver: not a version"),
        ('href="Packages/n.rpm"', 'href="x/../../y"', "nvidia-driver: not a path inside"),
        ("<arch>x86_64", "<arch>../x", "nvidia-driver: not an architecture"),
        ("<name>nvidia-driver", "<name>../nvidia-driver", "not a name: '../nvidia-driver'"),
        ('size package="1"', 'size package="-1"', "nvidia-driver: not a number of bytes"),
    ],
)
def test_a_package_of_rpm_is_refused_with_its_number(old: str, new: str, words: str) -> None:
    text = repositories.LISTS.decode().replace(old, new, 1).encode()
    with pytest.raises(RepositoryUnusable, match=re.escape(f"https://r.example/p: package 1: {words}")):
        repositories.primary(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [("stream: 550-open,", "stream: ../x,"), ("name: nvidia-driver", "name: '../x'"), ("x86_64]", "x86_64, 'a b']"),
     ("module: nvidia-driver", "module: 'a/b'")],
)  # fmt: skip
def test_a_module_is_refused_with_the_number_of_its_document(old: str, new: str) -> None:
    text = repositories.MODULES.decode().replace('.x86_64"]', ".x86_64]").replace('["n', "[n").replace(old, new)
    number = 2 if "module:" in old else 1
    with pytest.raises(RepositoryUnusable, match=f"modules.yaml: document {number}: not module metadata: ValueError"):
        Modules().add(text.encode(), "https://r.example/modules.yaml")


def test_what_repomd_calls_a_list_is_a_name_and_no_address() -> None:
    """A client decodes ``%2e%2e/``, and takes what comes behind ``?`` for no part of a file's name."""
    element = ET.fromstring(
        '<data xmlns="http://linux.duke.edu/metadata/repo"><location href="%2e%2e/a?b#c"/><size>1</size>'
        f'<checksum type="sha256">{"0" * 64}</checksum></data>'
    )
    assert rpm._listed(element, "file:///srv/r/").uri == "file:///srv/r/%252e%252e/a%3Fb%23c"


def test_a_stanza_of_a_mirror_is_one_for_apt_too() -> None:
    """Apt ends a stanza at an empty line with a carriage return, and lets blanks stand before a colon."""
    stanza = "Package: a\nFilename : b\nSHA1\x0b: c\nX: y\n\r\nPriority: low\n\rFilename: d\r"
    text = writing.package_list([writing.MirroredPackage("a", "1", stanza, "pool/a.deb")]).decode()
    assert text == "Package: a\nX: y\n \nPriority: low\n Filename: d \nFilename: pool/a.deb\n\n"


def test_many_names_and_beginnings_take_no_time() -> None:
    """Each was searched back to its package's beginning, or to the end of the list: minutes."""
    many, begin = 200_000, time.process_time()
    stanza = repositories.PACKAGES.decode().split("\n\n")[1]
    texts = [stanza + "Package: dkms\n" * many, stanza + "Depends: " + "a | " * many + "$\n"]
    head, tail = repositories.PRIMARY.split(b"</package>", 1)
    for text in texts:
        with contextlib.suppress(RepositoryUnusable):
            repositories.package_list(text.encode())
    for each in ("<rpm:provides>", "<name>", "<name>dkms</name>", "<rpm:entry name=", "<file ", "<metadata "):
        with contextlib.suppress(RepositoryUnusable):
            repositories.primary(
                head + each.encode() * many + b"</package>" + tail + b"\0\0\0" + repositories.FILELISTS
            )
    assert time.process_time() - begin < 20


# -- Lists that a repository signed and nobody can use.

DIGITS = "9" * 5000


def test_a_count_of_packages_with_thousands_of_digits() -> None:
    text = repositories.PRIMARY.replace(b'packages="1"', f'packages="{DIGITS}"'.encode())
    with pytest.raises(RepositoryUnusable, match=re.escape("https://r.example/p: not a primary list")):
        repositories.primary(text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (" 1234 ", f" {DIGITS} ", "not a number of bytes"),
        (" 1234 ", " ² ", "not a number of bytes"),
        (" 1234 ", " -1 ", "not a number of bytes"),
        (" 1234 ", " 99999999999 ", "more than the 10000000000"),
        ("0" * 64, "../../../../../../tmp/x", "not a sha256"),
        ("main/binary-amd64", "../../binary-amd64", "not a path inside the repository"),
        ("main/binary-amd64", "/main/binary-amd64", "not a path inside the repository"),
    ],
)
def test_a_file_of_a_release_that_is_none(old: str, new: str, words: str) -> None:
    text = repositories.RELEASE.decode().replace(old, new).encode()
    with pytest.raises(RepositoryUnusable, match=rf"^https://r\.example/dists/trixie/InRelease: line 9: .*{words}"):
        repositories.release(text)


@pytest.mark.parametrize(
    "document",
    [
        "{document: modulemd-defaults, data: {module: m, stream: {a: b}}}",
        "{document: modulemd-defaults, data: {module: [m], stream: s}}",
        "{document: modulemd, data: {name: m, stream: []}}",
        "{document: modulemd, data: {name: {}, stream: s}}",
        "{document: modulemd, data: {name: m, stream: s, artifacts: {rpms: [[]]}}}",
    ],
)
def test_a_module_whose_names_have_parts(document: str) -> None:
    with pytest.raises(RepositoryUnusable, match="not module metadata"):
        Modules().add(document.encode(), "https://r.example/modules.yaml")


def test_a_stream_without_quotes_is_text() -> None:
    modules = Modules()
    modules.add(b"{document: modulemd-defaults, data: {module: m, stream: 550}}", "https://r.example/modules.yaml")
    assert modules.defaults == {"m": "550"}


# -- Package lists and the relations in them.

SHA = "0" * 64
TAIL = f"Filename: pool/x.deb\nSize: 7\nSHA256: {SHA}\n"


def listing(text: str, suite: str = "stable") -> PackageList:
    where = Origin("test", suite, "main", "debian", ("amd64", "all"), "https://mirror.example/Packages")
    return PackageList(text.encode(), where)


def stanza(name: str, version: str, rest: str = "", architecture: str = "amd64") -> str:
    return f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n{rest}{TAIL}"


def test_relations_keep_alternatives_and_qualifiers_of_other_architectures() -> None:
    assert relations("a (>= 1:2~), b:any | c (<< 3) [amd64] <!nocheck>,, d:amd64, e:i386, f:native", "amd64") == (
        (Relation("a", ">=", "1:2~"),),
        (Relation("b:any"), Relation("c", "<<", "3")),
        (Relation("d"),),
        (Relation("e:i386"),),
        (Relation("f"),),
    )
    assert relations("x | x", "amd64") == ((Relation("x"),),)


def test_a_stanza_becomes_a_candidate() -> None:
    text = stanza(
        "x", "2-1", "Source: y (2)\nPre-Depends: p\nDepends: d\nConflicts: c\nBreaks: b (<< 1)\nProvides: v (= 2)\n"
    )
    (candidate,) = listing(text).named("x")
    assert (candidate.source, candidate.source_version) == ("y", "2")
    assert (candidate.pre_depends, candidate.depends) == (((Relation("p"),),), ((Relation("d"),),))
    assert candidate.conflicts == (Relation("c"), Relation("b", "<<", "1"))
    assert (candidate.filename, candidate.size, candidate.sha256) == ("pool/x.deb", 7, SHA)


def test_a_stanza_need_not_begin_with_its_name_nor_end_with_a_line() -> None:
    text = "\n".join([stanza("a", "1"), "Version: 3\nPackage: b\nArchitecture: all\n" + TAIL.rstrip()])
    assert [c.version for c in listing(text).named("b")] == ["3"]
    assert [c.version for c in listing(text).named("a")] == ["1"]


def test_other_architectures_are_left_out() -> None:
    text = "\n".join([stanza("x", "1"), stanza("x", "2", architecture="i386"), stanza("x", "3", architecture="all")])
    assert [c.version for c in listing(text).named("x")] == ["1", "3"]


def test_a_name_inside_a_description_is_no_package() -> None:
    text = stanza("x", "1", "Description: see\n Package: y\n")
    assert not listing(text).named("y")
    assert list(listing(text).names()) == ["x"]


def test_versioned_provides_answer_versioned_relations_and_others_do_not() -> None:
    text = "\n".join([stanza("x", "1", "Provides: v (= 550.1), w,\n z\n")])
    universe = Universe([listing(text)])
    assert [c.package for c in universe.answering(Relation("v", ">=", "550"))] == ["x"]
    assert not universe.answering(Relation("v", ">=", "551"))
    assert not universe.answering(Relation("w", ">=", "1"))
    assert universe.answering(Relation("w"))
    assert universe.answering(Relation("z"))


def test_a_real_package_comes_before_its_providers() -> None:
    text = "\n".join([stanza("other", "9", "Provides: x\n"), stanza("x", "1")])
    assert [c.package for c in Universe([listing(text)]).answering(Relation("x"))] == ["x", "other"]


def test_the_same_version_counts_once_and_comes_from_the_first_list() -> None:
    universe = Universe(
        [listing(stanza("x", "1"), "first"), listing("\n".join([stanza("x", "1"), stanza("x", "2")]), "second")]
    )
    assert [(c.version, c.suite) for c in universe.named("x")] == [("1", "first"), ("2", "second")]
