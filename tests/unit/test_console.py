"""Whatever is said, a terminal obeys nothing but our own styles: each public function, and what verbs say of mistakes.

What they show of evidence is in test_one_line.py.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from gdsdeploy import console
from gdsdeploy.host import __main__ as host_program
from gdsdeploy.host.io import streams
from gdsdeploy.host.io.streams import Printable
from gdsdeploy.host.io.wording import HIDDEN, line, printable
from tests.commandline import run

PAYLOADS = {
    "title": "\x1b]0;owned\x07",
    "clear": "\x1b[2J\x1b[H",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x1b\\",
    "C1": "\x9b2J\x9d0;owned\x9c",
    "bidi": "a\u202egpj.exe\u2066\u200f\u061c",
    "tags": "\U000e0041\u200b\ufeff",
    "lines": "\u2028\u2029\x0b\x0c\x85",
    "surrogate": "\ud800",
    "delete": "\x7f\x08",
}


def a_table(text: str) -> None:
    rows = Table("host", title=Text(text))
    rows.add_column(Text(text), min_width=200)
    rows.add_row("[bold]gpu1[/]", Text(text, style="red"))
    console.table(rows)


def a_step(text: str) -> None:
    with console.step(text):
        pass


def a_live(text: str) -> None:
    with console.live(lambda columns, rows: [text, f"{columns} {rows}"], lambda: text):
        console.say(text)


def a_beat(text: str) -> None:
    ends = iter([False, True])
    console.keep_beating(lambda: text, lambda _: next(ends))


def an_error(text: str) -> None:
    console.error(text, text)


WRITERS: dict[str, Callable[[str], None]] = {
    "say": console.say,
    "warn": console.warn,
    "error": an_error,
    "usage": console.usage,
    "data": console.data,
    "stream": lambda text: console.stream([text, "\n"]),
    "json": console.json,
    "table": a_table,
    "live": a_live,
    "keep_beating": a_beat,
    "say_each": lambda text: console.say_each(1)(text),
    "step": a_step,
}


def hidden(text: str) -> list[str]:
    return [character for character in text if re.match(HIDDEN, character)]


def test_every_public_function_is_here() -> None:
    public = {name for name, member in vars(console).items() if inspect.isfunction(member) and not name.startswith("_")}
    ours = {name for name in public if getattr(console, name).__module__ == console.__name__}
    assert ours == {*WRITERS, "file", "configure", "is_live"}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_said_is_shown_and_not_obeyed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    WRITERS[name]("|".join(["before", *PAYLOADS.values(), "after"]))
    output = "".join(capsys.readouterr())
    assert hidden(output) == []
    assert "before" in output
    assert "\\u202e" in output


@pytest.mark.parametrize("name", sorted(WRITERS.keys() - {"data"}))
def test_our_own_styles_stay_on_a_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True, raising=False)
    for stream in ("_talk", "_data"):
        drawn = console._Terminal(file=written, force_terminal=True, color_system="standard", width=200)
        monkeypatch.setattr(console, stream, drawn)
    WRITERS[name]("".join(PAYLOADS.values()))
    # Colours and, below a live block, cursor movements are rich's own.
    own = re.findall(r"\x1b\[[0-9;?]*[mAKhlG]", written.getvalue())
    assert hidden(re.sub(r"\x1b\[[0-9;?]*[mAKhlG]|\r", "", written.getvalue())) == []
    assert bool(own) == (name in {"warn", "error", "table", "live", "step"})
    assert not any(code in {"\x1b[2J", "\x1b[H"} for code in own)


def test_json_stays_the_same_document(capsys: pytest.CaptureFixture[str]) -> None:
    value = {key: text + "ok × \n\t" for key, text in PAYLOADS.items()}
    console.data(json.dumps(value, ensure_ascii=False))
    shown = capsys.readouterr().out
    assert json.loads(shown) == value
    assert "ok × " in shown


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_no_encoding_of_a_stream_is_too_small(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"é": "✓ \U0001f600"}
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    with streams.guarded():
        console.json(value)
        console.table(Table("✓"))
        console.say("✓")
        shown = written.getvalue().decode()
        console.file("✓")
        assert written.getvalue().decode() == shown + "✓\n"
        assert streams.end(0) == 0
    assert json.JSONDecoder().raw_decode(shown)[0] == value
    assert shown.isascii() == (encoding != "utf-8")


def test_a_reader_that_has_gone_ends_the_host_program() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    outlet = Printable(os.fdopen(writing, "w"))
    outlet.write("x")
    with pytest.raises(BrokenPipeError):
        outlet.flush()
    assert outlet.code == streams.UNREAD
    outlet.flush()


def test_what_is_closed_is_flushed_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    streams.flush()


@pytest.mark.parametrize(("columns", "lines"), [("0", "0"), ("1", "1"), ("x", "")])
def test_a_terminal_without_a_size_shows_errors(columns: str, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", lines)
    written = io.StringIO()
    monkeypatch.setattr(console, "_talk", console._Terminal(file=written, soft_wrap=True))
    console.error("this is wrong", "do that")
    assert written.getvalue() == "error: this is wrong\nhint: do that\n"


def test_a_file_is_exact_where_it_is_redirected_and_printable_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\ufeffa\r\n\x1b[2Jb"
    console.file(text)
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.file(text)
    assert hidden(capsys.readouterr().out) == []


def test_hidden_is_what_unicode_calls_so() -> None:
    categories = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    named = {chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in categories}
    matched = {chr(code) for code in range(sys.maxunicode + 1) if re.match(HIDDEN, chr(code))}
    assert named - matched == {"\n", "\t"}
    # Letters and marks that have no width, and what a newer Unicode may name.
    blank = {"\u034f", "\u115f", "\u1160", "\u17b4", "\u17b5", "\u3164", "\uffa0"}
    selectors = {chr(code) for code in (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0000, 0xE1000))}
    assert {unicodedata.category(character) for character in matched - named - blank - selectors} <= {"Cn"}
    assert printable("é ✓ 漢字 \u00a0") == "é ✓ 漢字 \u00a0"
    assert line("a\n\tb\x1b") == "a  b\\u001b"


# --- verbs -----------------------------------------------------------------------------------------------------------


def test_errors_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "--n\x1b]0;owned\x07o") == 2
    output = capsys.readouterr().err
    assert hidden(output) == []
    assert "Usage: gdsdeploy validate" in output
    assert "No such option" in output


def test_the_host_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "expectation.json"
    file.write_text('{"\x1b]0;owned\x07\u202e')
    assert host_program.main(["validate", "--expectation", str(tmp_path / "\x1b[2J\x9b")]) == 2
    assert host_program.main(["explain", "--error", "5027"]) == 0
    output = capsys.readouterr()
    assert hidden(output.out + output.err) == []
    assert "\\u001b[2J" in output.err
    with pytest.raises(SystemExit):
        host_program.main(["\x1b]0;owned\x07"])
    assert hidden(capsys.readouterr().err) == []
    written = io.StringIO()
    Printable(written).writelines(["a\x1b", "b\n"])
    assert written.getvalue() == "a\\u001bb\n"
