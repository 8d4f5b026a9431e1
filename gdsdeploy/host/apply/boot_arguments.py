"""Arguments of the kernel, where this host's boot loader has them; those of other writers stay.

On Debian and Ubuntu a drop-in of /etc/default/grub.d adds them, and update-grub puts them into grub.cfg.  Elsewhere
each entry of the Boot Loader Specification gets them, and /etc/kernel/cmdline for later kernels; see boot/loader.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..boot import arguments
from ..boot.arguments import ArgumentRecord, Left
from ..boot.grub import GRUB_CFG, MenuGrub
from ..boot.loader import ENTRIES, GRUB, UNKNOWN, Arguments, loader
from ..boot.present import boot_id
from ..errors import ApplyError, DesiredError
from ..io import atomic
from ..rootdir import inside, read_text
from . import files
from .file_resource import FileResource, restore
from .files import ABSENT, File
from .host import ManagedHost
from .model import Change, Refusal, Words, writing

#: The last of its folder: a file that sets GRUB_CMDLINE_LINUX as a whole would drop what an earlier one added.
DROP_IN = "/etc/default/grub.d/zz-gdsdeploy-boot.cfg"
_VARIABLE = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX '
_UPDATE = ["update-grub"]
_SECONDS = 600.0
#: Entries are smaller.
_LIMIT = 1 << 20


@dataclass(frozen=True)
class Desired:
    """Arguments of the kernel for the next boot."""

    #: Release of the locked kernel, as ``uname -r`` prints it.  Its boot entry is judged.
    kernel_release: str
    #: Arguments of the kernel, each ``name=value`` or ``name``.  An empty list takes out those of earlier runs.
    arguments: List[str] = field(default_factory=list)


class _Place(NamedTuple):
    """A file with arguments: its text, all of its arguments, and those that gdsdeploy has set there."""

    path: str
    text: str
    words: List[str]
    ours: List[str]

    @property
    def others(self) -> List[str]:
        """The arguments of other writers."""
        return arguments.without(self.words, self.ours)


class BootArguments(FileResource[Desired]):
    """Sets ``arguments`` for the next boot, and takes out only what it has set."""

    name = "boot_arguments"
    desired_type = Desired
    removal_rank = 52
    kinds: ClassVar[Words] = {"arguments": "set the kernel arguments in {}"}
    reverts = (DROP_IN,)

    def __init__(self) -> None:
        self._files: List[File] = []

    def desired_files(self, desired: Desired) -> List[File]:
        """The files of the latest look at a host, which has other arguments in them."""
        return self._files

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        """What the boot loader has.  Raises DesiredError, CannotTellError, and ApplyError for a damaged record."""
        _check(desired.arguments)
        record = arguments.read(host.root)
        observed: Dict[str, Any] = {"record": record, "way": Arguments(UNKNOWN), "idle": False}
        if not desired.arguments and not record.arguments and host.entry(DROP_IN) is None:
            # Nothing is desired, and nothing is to be taken back: the boot loader doesn't matter.
            self._files = []
            return {**observed, "idle": True}
        way = loader(host.root).arguments()
        observed["way"] = way
        if way.kind == GRUB:
            # A run that was killed has recorded its arguments and may have left the drop-in behind.
            ours = list(dict.fromkeys([*record.arguments, *drop_in_words(host.text(DROP_IN))]))
            lines = arguments.grub_lines(read_text(host.root, GRUB_CFG), desired.kernel_release)
            observed["places"] = [_Place(GRUB_CFG, "", words, [w for w in ours if w in words]) for words in lines]
            mine = _mine(desired, observed)
            self._files = [_drop_in(mine)]
            observed["drop_in"] = host.entry(DROP_IN)
            observed["chosen"] = _chosen(host, desired)
        else:
            observed["places"] = [_read(host, path, record) for path in way.places]
            edits = _edits(desired, observed)
            self._files = [
                File(place.path, content=text.encode("utf-8", "surrogateescape")) for place, _, text in edits
            ]
        return observed

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        """No boot loader that is known, an entry without arguments, or another value by another writer."""
        if observed["idle"]:
            return []
        way = observed["way"]
        if way.kind == UNKNOWN:
            return [Refusal("boot-loader", f"kernel arguments can't be set: {way.problem}", way.hint)]
        entries = observed["places"] if way.kind == ENTRIES else []
        broken = [place for place in entries if arguments.insert(place.path, place.text, []) is None]
        if broken:
            words = f"{broken[0].path}: there is no line with arguments"
            return [Refusal("boot-loader", words, "repair it, or delete it if its kernel is gone")]
        conflicts = {
            f"{place.path}: {word}": argument
            for argument in desired.arguments
            for place in observed["places"]
            for word in [arguments.conflict(place.others, argument)]
            if word
        }
        if observed.get("chosen"):
            return [observed["chosen"]]
        pairs = [(self._files[0], observed["drop_in"])] if way.kind == GRUB else []
        return [*files.refusals(pairs), *(_conflict(*entry) for entry in conflicts.items())]

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """One for each file that differs; a kernel that is installed later gets its entry with these arguments."""
        way = observed["way"]
        if observed["idle"] or way.kind == UNKNOWN:
            return []
        if way.kind == ENTRIES:
            edits = _edits(desired, observed)
            return [_change(place.path, place.ours, after) for place, after, _ in edits]
        mine = _mine(desired, observed)
        changes = files.compare(_drop_in(mine), observed["drop_in"])
        stale = [place for place in observed["places"] if _differs(place, mine)]
        if changes or stale:
            before = stale[0].ours if stale else observed["record"].arguments
            changes.append(_change(GRUB_CFG, before, mine))
        return changes

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        """Write one file, or grub.cfg.  The record comes first, so that an interrupted run can be taken back."""
        observed = self.observe(host, desired)
        before, mine = observed["record"], _mine(desired, observed)
        together = list(dict.fromkeys([*before.arguments, *mine]))
        interim = ArgumentRecord(together, _exceptions(observed, together), before.left)
        if interim != before:
            _write_record(host, interim)
        if change.subject == DROP_IN:
            host.write(_drop_in(mine))
        elif observed["way"].kind == GRUB:
            # The drop-in is put back; what was made of it has to follow.
            host.undo_by(GRUB_CFG, lambda: host.run(_UPDATE, _SECONDS), last=True)
            host.run(_UPDATE, _SECONDS)
            self._verify(host, desired)
        else:
            for place, _, text in _edits(desired, observed):
                if place.path == change.subject:
                    host.rewrite(place.path, text)

    def settle(self, host: ManagedHost, desired: Desired, changes: Sequence[Change]) -> None:
        """Record what is set now, and what was taken out while the running kernel still has it."""
        observed = self.observe(host, desired)
        if observed["idle"] or observed["way"].kind == UNKNOWN:
            return
        before = observed["record"]
        # grub.cfg alone doesn't show whose an argument is, once the drop-in is gone.
        is_grub = observed["way"].kind == GRUB
        ours = drop_in_words(host.text(DROP_IN)) if is_grub else _mine(desired, observed)
        running = read_text(host.root, "/proc/cmdline").split()
        boot = boot_id(host.root)
        earlier = before.left.arguments if before.left.boot_id == boot else []
        earlier_words = dict.fromkeys([*earlier, *before.arguments])
        left = [word for word in earlier_words if word in running and word not in desired.arguments]
        record = ArgumentRecord(ours, _exceptions(observed, ours), Left(boot, left) if left else Left())
        if record != before:
            _write_record(host, record)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Take out what gdsdeploy has set, and leave all else as it is now."""
        nothing = Desired("")
        observed = self.observe(host, nothing)
        changes = self.changes(nothing, observed)
        if observed["way"].kind == UNKNOWN and not observed["idle"]:
            host.notes.append(f"kernel arguments that gdsdeploy set stay: {observed['way'].problem}")
        for change in changes if not host.check else []:
            self.apply(host, nothing, change)
        # A folder that was made for the drop-in, and a drop-in on a host that has no update-grub any more.
        subjects = {change.subject for change in changes}
        changes += [change for change in restore(host, self.reverts) if change.subject not in subjects]
        if not host.check:
            host.remove_tree(arguments.PATH)
        return changes

    def _verify(self, host: ManagedHost, desired: Desired) -> None:
        lines = arguments.grub_lines(read_text(host.root, GRUB_CFG), desired.kernel_release)
        missing = [word for words in lines for word in arguments.unmet(words, desired.arguments)]
        if missing:
            message = f"update-grub left {missing[0]} out of {GRUB_CFG}"
            hint = "look for a line that sets GRUB_CMDLINE_LINUX: grep -r GRUB_CMDLINE_LINUX /etc/default"
            raise ApplyError(message, hint, "verify")


def _chosen(host: ManagedHost, desired: Desired) -> Optional[Refusal]:
    """The refusal where an entry that update-grub doesn't make boots by default, and lacks an argument."""
    entry = MenuGrub(host.root).chosen(desired.kernel_release)
    missing = arguments.unmet(entry.words, desired.arguments) if entry is not None and not entry.is_made else []
    if entry is None or not missing:
        return None
    words = f"the entry {entry.title!r} boots by default, lacks {missing[0]}, and isn't made of /etc/default/grub"
    hint = "write its arguments in /etc/grub.d, or choose another entry: grub-set-default"
    return Refusal("boot-loader", words, hint)


def drop_in_words(text: str) -> List[str]:
    """The arguments in the text of the drop-in."""
    lines = [line for line in text.splitlines() if line.startswith(_VARIABLE)]
    return [word for line in lines for word in line[len(_VARIABLE) :].rstrip('"').split()]


def _drop_in(words: Sequence[str]) -> File:
    if not words:
        return File(DROP_IN, ABSENT)
    head = f"# {files.MARK}; changes here are overwritten.\n# Kernel arguments of the fleet file, for update-grub.\n"
    return File.of(DROP_IN, f'{head}{_VARIABLE}{" ".join(words)}"\n')


def _check(words: Sequence[str]) -> None:
    for word in words:
        objection = arguments.objection(word)
        if objection:
            raise DesiredError(f"boot_arguments.arguments: {word!r}: {objection}")
    names = [arguments.name(word) for word in words if arguments.name(word) not in arguments.REPEATABLE]
    for name in names:
        if names.count(name) > 1:
            raise DesiredError(f"boot_arguments.arguments: {name} is listed twice")


def _mine(desired: Desired, observed: Any) -> List[str]:
    """The arguments that gdsdeploy has to set, because not every place has them from another writer."""
    places = observed["places"]
    return [
        argument
        for argument in desired.arguments
        if not places or not all(arguments.holds(place.others, argument) for place in places)
    ]


def _edits(desired: Desired, observed: Any) -> List[Tuple[_Place, List[str], str]]:
    """(file, its arguments of gdsdeploy afterwards, its text afterwards) of each entry that differs."""
    edits = []
    for place in observed["places"]:
        after = [argument for argument in desired.arguments if not arguments.holds(place.others, argument)]
        new = [word for word in after if word not in place.ours]
        old = [word for word in place.ours if word not in after]
        text = arguments.insert(place.path, arguments.take_out(place.path, place.text, old), new)
        if (new or old) and text is not None:
            edits.append((place, after, text))
    return edits


def _exceptions(observed: Any, words: Sequence[str]) -> Dict[str, List[str]]:
    """Of each entry, those of ``words`` that it has from another writer: an argument that is new was there before."""
    before: ArgumentRecord = observed["record"]
    exceptions: Dict[str, List[str]] = {}
    for place in observed["places"] if observed["way"].kind == ENTRIES else []:
        path = arguments.key(place.path)
        own = [
            w for w in words if w in place.words and (w not in before.arguments or w in before.exceptions.get(path, ()))
        ]
        if own:
            exceptions[path] = own
    return exceptions


def _differs(place: _Place, mine: Sequence[str]) -> bool:
    """Whether grub.cfg isn't what update-grub would make of the drop-in."""
    missing = [word for word in mine if not arguments.holds(place.words, word)]
    return bool(missing) or any(word not in mine for word in place.ours)


def _change(path: str, before: Sequence[str], after: Sequence[str]) -> Change:
    return Change("arguments", path, " ".join(before) or "none", " ".join(after) or "none", "arguments")


def _conflict(conflicts: str, argument: str) -> Refusal:
    hint = "remove it where it is set, or write the same value in the fleet file: grep -rs {} /etc/default /etc/kernel"
    name = argument.partition("=")[0]
    return Refusal("other-value", f"{conflicts} isn't gdsdeploy's, and {argument} is expected", hint.format(name))


def _read(host: ManagedHost, path: str, record: ArgumentRecord) -> _Place:
    text = host.exact_text(path, _LIMIT)
    words = arguments.words_of(path, text)
    return _Place(path, text, words, record.ours(path, words))


def _write_record(host: ManagedHost, record: ArgumentRecord) -> None:
    host.forget()
    with writing(arguments.PATH):
        if record == ArgumentRecord():
            atomic.remove(inside(host.root, arguments.PATH))
        else:
            place = inside(host.root, arguments.PATH)
            files.replace(place, record.to_json().encode("utf-8", "surrogateescape"), 0o600)
