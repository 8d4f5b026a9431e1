"""Menus: entries of the Boot Loader Specification, as on RHEL, and grub.cfg.  Pure, but for files that are read.

GRUB sorts entries of the specification newest first and takes the first one where no name matches (blscfg in GRUB's own
source).

GRUB's menu in grub.cfg: entries, the kernels that they start, and what a choice means.

Entries are named by ids, joined with ``>`` below submenus, as grub-set-default(8) takes them; positions and titles
change with every installed kernel.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ..paths import GRUB2_FILES
from ..rootdir import Files, read_text

_KERNEL_FILE = re.compile(r"(?:vmlinuz|vmlinux|linux|kernel|Image)-(\S+)")
#: Words of a command line with which a person gets a shell in place of the system.
_RESCUE = re.compile(
    r"(single|[sS1]|recovery|emergency|rescue|-[bs]|rd\.break(=.*)?|systemd\.unit=(rescue|emergency)\..*)\Z"
)
_INIT = re.compile(r"(?:rd)?init=(?!\S*/(?:init|systemd)\Z)")


class MenuEntry(NamedTuple):
    """A menu entry that can be booted."""

    #: ids (titles where there is no id) from the outermost submenu on, joined with ``>``
    path: str
    title: str
    #: of the Linux kernel it starts; empty for anything else
    release: str
    recovery: bool
    #: position at each level, as GRUB counts
    numbers: Tuple[int, ...]
    titles: Tuple[str, ...]
    #: the arguments of its kernel
    words: Tuple[str, ...] = ()

    @property
    def is_made(self) -> bool:
        """Whether update-grub made it of this system's kernels, with the arguments of /etc/default/grub."""
        return self.path.split(">")[-1].startswith("gnulinux-")


@dataclass
class _Block:
    """An open brace: ``kind`` is menuentry, submenu, or empty for something else such as a function."""

    kind: str = ""
    ids: Tuple[str, ...] = ()
    titles: Tuple[str, ...] = ()
    numbers: Tuple[int, ...] = ()
    #: words after ``linux``
    kernel: List[str] = field(default_factory=list)
    #: entries and submenus of a submenu so far
    count: int = 0


# Hosts of a fleet may have the same menu, and a host's is read for several questions.
@functools.lru_cache(maxsize=16)
def menu_entries(text: str) -> Sequence[MenuEntry]:
    """Every menu entry of a grub.cfg, in its order."""
    listed: List[MenuEntry] = []
    root = _Block("submenu")
    blocks: List[_Block] = []
    for words in filter(None, map(_words, text.splitlines())):
        if words[0] in ("menuentry", "submenu") and len(words) > 1:
            menu = next((block for block in reversed(blocks) if block.kind == "submenu"), root)
            place = (*menu.ids, _id(words)), (*menu.titles, words[1]), (*menu.numbers, menu.count)
            blocks.append(_Block(words[0], *place))
            menu.count += 1
        elif words[-1] == "{":
            blocks.append(_Block())
        elif words[0].startswith("linux") and blocks and blocks[-1].kind == "menuentry" and not blocks[-1].kernel:
            blocks[-1].kernel = words[1:]
        if words[-1] == "}" and blocks:
            block = blocks.pop()
            if block.kind == "menuentry":
                listed.append(_entry(block))
    return listed


def menu_choice(menu: Sequence[MenuEntry], choice: str) -> Optional[MenuEntry]:
    """The entry that GRUB takes for ``choice``: numbers, ids or titles joined with ``>``; None when there is none."""
    parts = choice.split(">")
    for entry in menu:
        # A submenu alone means its first entry.
        if len(entry.numbers) >= len(parts) and not any(entry.numbers[len(parts) :]):
            ids = entry.path.split(">")
            levels = zip(parts, entry.numbers, ids, entry.titles)
            if all(part in (str(number), name, title) for part, number, name, title in levels):
                return entry
    return None


def environment(text: str) -> Dict[str, str]:
    """The variables of a grubenv file."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _entry(block: _Block) -> MenuEntry:
    match = _KERNEL_FILE.fullmatch(os.path.basename(block.kernel[0])) if block.kernel else None
    words = tuple(block.kernel[1:])
    recovery = {"single", "recovery"} & set(words) or "-recovery-" in block.ids[-1]
    release = match.group(1) if match else ""
    return MenuEntry(">".join(block.ids), block.titles[-1], release, bool(recovery), block.numbers, block.titles, words)


def of_this_system(words: Sequence[str], own: Iterable[Sequence[str]]) -> bool:
    """Whether a kernel with this command line brings up this system: no shell, and no other root.

    own: command lines that do.  Roots that are named in different ways, such as by label and by UUID, may be one.
    """
    if any(_RESCUE.match(word) or _INIT.match(word) for word in words):
        return False
    roots, mine = [root for root in map(_root, own) if root[1]], _root(words)
    return not roots or not mine[1] or any(mine == root or mine[0] != root[0] for root in roots)


def _root(words: Sequence[str]) -> Tuple[str, str, str]:
    """How the root is named, its name, and its flags, which tell subvolumes apart; empty where nothing is said."""
    values = {name: value for name, _, value in (word.partition("=") for word in words)}
    kind, _, name = values.get("root", "").rpartition("=")
    return kind, name, values.get("rootflags", "")


def _id(words: List[str]) -> str:
    options = (option for option in ("$menuentry_id_option", "--id") if option in words[:-1])
    return next((words[words.index(option) + 1] for option in options), words[1])


def _words(line: str) -> List[str]:
    """A line as GRUB's shell splits it, roughly; commands that end with ``;`` on one line don't matter here."""
    text = line.strip()
    # Only these have quotes that matter, and shlex takes ten times as long.
    if text.startswith(("menuentry", "submenu", "linux")):
        # An open quote is one of text that goes over several lines, in a custom entry.
        with contextlib.suppress(ValueError):
            return shlex.split(text)
    return [] if text.startswith("#") else text.split()


ENTRIES = "/boot/loader/entries"
#: On RHEL, /boot/grub2/grubenv may be a link into the EFI system partition; it is followed.
ENVIRONMENT = "/boot/grub2/grubenv"
_MACHINE = "/etc/machine-id"


class BlsEntry(NamedTuple):
    """``ident``: the file's name without ``.conf``; ``release``: the entry's kernel release."""

    ident: str
    release: str
    title: str = ""
    words: Tuple[str, ...] = ()


def config(files: Files) -> str:
    """The text of grub.cfg; empty where it can't be read."""
    texts = map(files.text, GRUB2_FILES)
    return next((text for text in texts if text), "")


def entries(files: Files, folder: str = ENTRIES) -> List[BlsEntry]:
    """Every entry that starts a kernel other than the rescue image, newest first as GRUB sorts them."""
    return parse((name, files.text(f"{folder}/{name}")) for name in files.names(folder))


def parse(texts: Iterable[Tuple[str, str]]) -> List[BlsEntry]:
    """The same, of names and texts of files."""
    listed = []
    for name, text in texts:
        if not name.endswith(".conf") or "-0-rescue" in name:
            continue
        lines = re.findall(r"^(title|version|linux|options)[ \t]+(\S.*?)[ \t\r]*$", text, re.MULTILINE)
        fields = dict(lines)
        image = os.path.basename(fields.get("linux", "")).partition("-")[2]
        # A version is a word for people; the image is what boots, where its name has a release.
        release = image if image[:1].isdigit() else fields.get("version") or image
        words = [word for key, value in lines if key == "options" for word in value.split()]
        if release:
            listed.append(BlsEntry(name[: -len(".conf")], release, fields.get("title", ""), tuple(words)))
    return sorted(listed, key=lambda entry: _order(entry.release), reverse=True)


def best(menu: Sequence[BlsEntry], release: str, root: str) -> Optional[BlsEntry]:
    """Of the entries that bring up this system with kernel ``release``, the one that the kernel's package made."""
    machine = read_text(root, _MACHINE).strip()
    # An image that was cloned may have entries of the machine that it was made on, too.
    order = (f"{machine}-{release}", f"{machine}-") if machine else ()
    return min(
        (entry for entry in _of_this_system(menu) if entry.release == release),
        key=lambda entry: (
            not entry.ident.endswith(f"-{release}"),
            [entry.ident != order[0], not entry.ident.startswith(order[1])] if order else [],
        ),
        default=None,
    )


def kept(menu: Sequence[BlsEntry], ident: str, release: str) -> Optional[BlsEntry]:
    """The entry of this name, if it brings up this system with kernel ``release``: an administrator's choice stays."""
    fitting = (entry for entry in _of_this_system(menu) if entry.ident == ident and entry.release == release)
    return next(fitting, None)


def _of_this_system(menu: Sequence[BlsEntry]) -> List[BlsEntry]:
    own = [entry.words for entry in menu if entry.ident.endswith(f"-{entry.release}")]
    own = [words for words in own if of_this_system(words, ())]
    return [entry for entry in menu if of_this_system(entry.words, own)]


def arguments(menu: Sequence[BlsEntry], release: str) -> List[List[str]]:
    """The arguments of each entry that starts kernel ``release``; without such, of every one."""
    return [list(one.words) for one in menu if one.release == release] or [list(one.words) for one in menu]


def resolve(menu: Sequence[BlsEntry], choice: str) -> Optional[BlsEntry]:
    """The entry that GRUB takes for a number, a name or a title: the first one where none fits; None without any."""
    if re.fullmatch(r"\d{1,4}", choice) and int(choice) < len(menu):
        return menu[int(choice)]
    fitting = (entry for entry in menu if choice and choice in (entry.ident, entry.title))
    return next(fitting, menu[0] if menu else None)


def _order(release: str) -> List[Any]:
    """A key that puts numbers by value and before words, as version comparisons do."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[A-Za-z]+", release)]
