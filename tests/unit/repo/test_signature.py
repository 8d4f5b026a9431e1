"""What gpgv's status lines mean; the whole way is tried with real keys in tests/repos."""

from __future__ import annotations

from gdsdeploy.repo.repository import _judge

PINNED, OTHER = "A" * 40, "B" * 40


def status(*lines: str) -> str:
    return "".join(f"[GNUPG:] {line}\n" for line in lines)


def valid(primary: str, algorithm: str = "8") -> str:
    return f"VALIDSIG {'C' * 40} 2026-11-18 1795040262 0 4 0 1 {algorithm} 01 {primary}"


GOOD = ("NEWSIG", "GOODSIG CCCC someone", valid(PINNED))


def test_a_good_signature_by_a_pinned_key() -> None:
    assert _judge(status(*GOOD), [PINNED]) == ({PINNED}, [])


def test_further_signatures_by_unknown_keys_do_no_harm() -> None:
    """As Debian's archive has them: each index is signed by the keys of two releases."""
    text = status(
        "NEWSIG", "ERRSIG DDDD 1 8 01 1795040262 9", "NO_PUBKEY DDDD", *GOOD, "NEWSIG", "GOODSIG E x", valid(OTHER)
    )
    assert _judge(text, [PINNED]) == ({PINNED}, [])


def test_a_bad_signature_outweighs_a_good_one() -> None:
    good, reasons = _judge(status(*GOOD, "NEWSIG", "BADSIG DDDD someone"), [PINNED])
    assert reasons == ["the text was changed after key DDDD signed it"]
    assert good == {PINNED}


def test_a_signature_is_not_saved_by_the_one_before_it() -> None:
    text = status("NEWSIG", "GOODSIG E x", valid(OTHER), "NEWSIG", "EXPKEYSIG DDDD someone", valid(PINNED))
    good, reasons = _judge(text, [PINNED])
    assert good == set()
    assert "signed by DDDD, but the key has expired" in reasons


def test_weak_hashes_and_revoked_keys_are_refused() -> None:
    for sha1_or_md5 in ("1", "2"):
        text = status("NEWSIG", "GOODSIG CCCC someone", valid(PINNED, sha1_or_md5))
        assert _judge(text, [PINNED]) == (set(), [f"signed by {PINNED} with a hash that is too weak"])
    good, reasons = _judge(status("NEWSIG", "REVKEYSIG DDDD someone", valid(PINNED)), [PINNED])
    assert (good, reasons) == (set(), ["signed by DDDD, but the key was revoked"])


def test_no_signature_is_no_reason_but_nothing_good_either() -> None:
    assert _judge(status("NODATA 3"), [PINNED]) == (set(), [])
