"""The driver's probes of the kernel (conftest.sh), many in one run of the compiler.

A probe is a small file that the kernel's headers let compile, or not; three quarters of its time go into the headers.
Probes that begin with the same headers are compiled as one file here, and the compiler's errors name their lines.  The
script itself stays in charge: it runs once to collect its files, and once more with the answers.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from typing import Dict, Iterator, List, Sequence, Set, Tuple

from .conftests import listed
from .kbuild import Log

#: In place of the compiler: answers what is known, and keeps a file that isn't; the second time it compiles that.
_COMPILER = """\
#!/bin/sh
for file; do :; done
case " $* " in *" -c "*) ;; *) exec {compiler} "$@" ;; esac
sum=$(sha256sum <"$file") && sum={store}/${{sum%% *}}
if [ -f "$sum.yes" ]; then : >"${{file%.c}}.o"; exit 0; fi
if [ -f "$sum.no" ]; then exit 1; fi
if [ -f {store}/answered ]; then exec {compiler} "$@"; fi
cp "$file" "$sum.c"
exit 1
"""
_INCLUDE = re.compile(r"^\s*#\s*include\b")
_CONDITION, _END = re.compile(r"^\s*#\s*if"), re.compile(r"^\s*#\s*endif\b")
_WORD, _DECLARED = re.compile(r"\b[A-Za-z_]\w*"), re.compile(r"\b([A-Za-z_]\w*)\s*[(;=\[]")
_ERROR = re.compile(r"^(.*?):(?:\d+:)*\s*(?:fatal )?error: ", re.MULTILINE)
_DIRECTIVE, _OPERATORS = re.compile(r"^\s*#.*$", re.MULTILINE), {"typeof", "__typeof__", "sizeof", "__attribute__"}
#: An error in what a macro stands for is one where the macro is used.
_AT_USE = "-ftrack-macro-expansion=0"
#: Variable of Kbuild → the header that has its answers.
_HEADERS = {
    f"NV_CONFTEST_{kind}_COMPILE_TESTS": f"{name}.h"
    for kind, name in (
        ("FUNCTION", "functions"), ("GENERIC", "generic"), ("MACRO", "macros"), ("SYMBOL", "symbols"), ("TYPE", "types")
    )
}  # fmt: skip
#: Its answer depends on the host's OFED, for which ``script`` has its own.
_ALONE = "ib_peer_memory_symbols"


def unlisted() -> List[str]:
    """``NAME=`` for make, so that kbuild itself probes nothing."""
    return [f"{name}=" for name in (*_HEADERS, "NV_HEADER_PRESENCE_TESTS")]


def answer(log: Log, tree: str, script: str, words: Sequence[str], cflags: str, headers: Sequence[str]) -> None:
    """Write ``tree``/conftest/*.h, the answers to every probe that the tree's modules list.

    script: conftest.sh, or what stands for it.  words: its first four, compiler first.  headers: to look for.
    """
    store, place = os.path.join(tree, ".gdsdeploy-probes"), os.path.join(tree, "conftest")
    os.makedirs(store)
    os.makedirs(place, exist_ok=True)
    compiler, *others = words
    _write(os.path.join(place, "headers.h"), _present(log, compiler, cflags, headers, store))
    wrapper = os.path.join(store, "cc")
    _write(wrapper, _COMPILER.format(compiler=compiler, store=shlex.quote(store)))
    start = ["sh", script, f"/bin/sh {wrapper}", *others]
    _write(os.path.join(place, "patches.h"), log.run([*start, "patch_check"], store).stdout)
    question = [*start, "compile_tests", cflags]
    probes = listed(tree)
    everything = [name for variable in _HEADERS for name in probes.get(variable, []) if name != _ALONE]
    log.run([*question, *everything], store)
    for text, compiles in _compile(log, [*shlex.split(compiler), *cflags.split()], store):
        _write(os.path.join(store, hashlib.sha256(text.encode()).hexdigest() + (".yes" if compiles else ".no")), "")
    _write(os.path.join(store, "answered"), "")
    for variable, header in _HEADERS.items():
        names = probes.get(variable, [])
        text = log.run([*question, *(name for name in names if name != _ALONE)], store).stdout
        text += log.run([*question, _ALONE], store).stdout if _ALONE in names else ""
        _write(os.path.join(place, header), text)


def _present(log: Log, compiler: str, cflags: str, headers: Sequence[str], store: str) -> str:
    """Lines that define or undefine the macro of each header."""
    lines = []
    for header in headers:
        macro = "NV_" + re.sub(r"[/.-]", "_", header).upper() + "_PRESENT"
        lines += [f"#if __has_include(<{header}>)", f"define {macro}", "#else", f"undef {macro}", "#endif"]
    path = os.path.join(store, "headers.c")
    _write(path, "\n".join(lines) + "\n")
    done = log.run([*shlex.split(compiler), *cflags.split(), "-E", "-P", path], store)
    words = re.findall(r"^(define|undef) (NV_\w+)$", done.stdout, re.MULTILINE)
    return "".join(f"#{word} {macro}\n" for word, macro in words)


def _compile(log: Log, command: Sequence[str], store: str) -> Iterator[Tuple[str, bool]]:
    """(text, whether it compiles) of each file in ``store`` that could be told."""
    groups: Dict[str, List[Tuple[str, str]]] = {}
    for name in sorted(os.listdir(store)):
        if name.endswith(".c") and len(name) == 66:
            with open(os.path.join(store, name), encoding="utf-8") as file:
                text = file.read()
            head, body = _cut(text)
            groups.setdefault(head, []).append((text, body))
    for head, members in groups.items():
        for batch in _batches(members):
            parts = [f'#line 1 "probe-{number}"\n{body}\n' for number, (_text, body) in enumerate(batch)]
            path = os.path.join(store, "batch.c")
            _write(path, f'#line 1 "head"\n{head}\n' + "".join(parts))
            done = log.run([*command, _AT_USE, "-c", path, "-o", os.path.join(store, "batch.o")], store)
            blamed = set(_ERROR.findall(done.stderr)) - {"cc1"}
            numbers = {f"probe-{number}" for number in range(len(batch))}
            if bool(blamed) == (done.status == 0) or (not blamed <= numbers and len(batch) > 1):
                # The compiler didn't say which; each is compiled alone.
                continue
            for number, (text, _body) in enumerate(batch):
                yield text, done.status == 0 if len(batch) == 1 else f"probe-{number}" not in blamed


def _cut(text: str) -> Tuple[str, str]:
    """Everything up to the last #include, with the conditions around it, and the rest."""
    lines = text.splitlines()
    end, depth, last = 0, 0, 0
    for number, line in enumerate(lines, start=1):
        depth += bool(_CONDITION.match(line)) - bool(_END.match(line))
        if _INCLUDE.match(line):
            end = number
        if depth == 0 and last < end:
            last = number
    return "\n".join(lines[:last]), "\n".join(lines[last:])


def _batches(members: Sequence[Tuple[str, str]]) -> Iterator[List[Tuple[str, str]]]:
    """The probes of one head, so that none of a batch declares what another one names."""
    todo = list(members)
    while todo:
        declared: Set[str] = set()
        named: Set[str] = set()
        batch: List[Tuple[str, str]] = []
        rest: List[Tuple[str, str]] = []
        for member in todo:
            text = _DIRECTIVE.sub("", member[1])
            own, words = set(_DECLARED.findall(_outside(text))) - _OPERATORS, set(_WORD.findall(text))
            if own & named or words & declared:
                rest.append(member)
                continue
            batch.append(member)
            declared |= own
            named |= words
        yield batch
        todo = rest


def _outside(body: str) -> str:
    """What of a file of C is outside of braces."""
    parts, depth = [], 0
    for part in re.split(r"([{}])", body):
        if part == "{":
            depth += 1
        elif part == "}":
            depth -= 1
        elif depth == 0:
            parts.append(part)
    return ";".join(parts)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
