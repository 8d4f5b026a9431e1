"""Package lists and the relations in them."""

from __future__ import annotations

import pytest

from gdsdeploy.repo.packages import Origin, PackageList, Relation, Universe, relations

SHA = "0" * 64
TAIL = f"Filename: pool/x.deb\nSize: 7\nSHA256: {SHA}\n"


def listing(text: str, suite: str = "stable", prefix: str = "") -> PackageList:
    where = Origin("test", suite, "main", "debian", ("amd64", "all"), "https://mirror.example/Packages", prefix)
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


def test_an_alternative_that_is_repeated_counts_once() -> None:
    assert relations("nvidia-alternative-550 | nvidia-alternative-550", "amd64") == (
        (Relation("nvidia-alternative-550"),),
    )


@pytest.mark.parametrize("field", ["a (>= )", "a (1)", "a b", "(>= 1)", "a (>= 1"])
def test_what_is_no_relation_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="not a package relation"):
        relations(field, "amd64")


def test_a_stanza_becomes_a_candidate() -> None:
    text = stanza(
        "x", "2-1", "Source: y (2)\nPre-Depends: p\nDepends: d\nConflicts: c\nBreaks: b (<< 1)\nProvides: v (= 2)\n"
    )
    (candidate,) = listing(text, prefix="flat/").named("x")
    assert (candidate.source, candidate.source_version) == ("y", "2")
    assert (candidate.pre_depends, candidate.depends) == (((Relation("p"),),), ((Relation("d"),),))
    assert candidate.conflicts == (Relation("c"), Relation("b", "<<", "1"))
    assert (candidate.filename, candidate.size, candidate.sha256) == ("flat/pool/x.deb", 7, SHA)


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
