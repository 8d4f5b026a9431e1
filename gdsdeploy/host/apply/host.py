"""The host as resources read and change it: programs, files that can be put back, and cached answers."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from .. import derived, process
from ..derived import Thing
from ..errors import ApplyError, CannotTellError, HostError
from ..io import atomic, reading
from ..io.cache import Inputs, stored_run
from ..kmod.kernel import Kernel
from ..process import Output
from ..rootdir import LoopError, inside, list_folder
from . import files
from .model import Change, writing
from .record import Record, beside, look

#: There while the kernel enforces or logs a policy, see selinux(8).
SELINUX = "/sys/fs/selinux/enforce"
#: SELinux's labels of what was written.
LABELS = Thing("labels")
_QUERY_SECONDS = 120.0
#: Lines of a failed program's output that an error quotes.
_TAIL = 12


class ManagedHost:
    """``check``: only look.  ``root``: where the system is; programs always run in the running system.

    ``run_id``: of the run that this is part of; empty: none.
    """

    def __init__(
        self, check: bool = False, root: str = "/", say: Callable[[str], None] = lambda _: None, run_id: str = ""
    ) -> None:
        self.check = check
        self.run_id = run_id
        self.root = root
        self.record = Record(root)
        #: what earlier resources would change, in a check
        self.pending: Sequence[Change] = ()
        #: packages whose removals an earlier set of packages has judged, in a check
        self.judged: Set[str] = set()
        #: notes for a person
        self.notes: List[str] = []
        self.say = say
        self._answers: Dict[Any, Any] = {}
        self._undo: List[Tuple[str, Callable[[], object]]] = []
        #: paths that were written, for their labels
        self.written: Set[str] = set()

    # Looking

    def query(
        self,
        argv: Sequence[str],
        statuses: Sequence[int] = (0,),
        env: Mapping[str, str] = {},
        *,
        again: bool = False,
        inputs: Optional[Inputs] = None,
    ) -> str:
        """The output of a program that changes nothing; cached until a change.  Raises CannotTellError.

        again: whether a run whose exit status isn't 0 is repeated once.
        inputs: all that it reads; while they are the same, later calls needn't run it.
        """

        def run() -> Output:
            output = process.run(argv, _QUERY_SECONDS, env=env)
            return process.run(argv, _QUERY_SECONDS, env=env) if again and output.status != 0 else output

        ask = run if inputs is None else partial(stored_run, " ".join(argv[:2]), argv, inputs, run)
        output: Output = self.once((tuple(argv), tuple(sorted(env.items()))), ask)
        if output.status not in statuses or output.truncated:
            raise CannotTellError(f"{' '.join(argv[:2])}: {output.failure()}")
        return output.stdout

    def look(self, argv: Sequence[str], seconds: float) -> Output:
        """What a program that changes nothing prints, whatever its exit status is; cached until a change."""
        output: Output = self.once(tuple(argv), lambda: process.run(argv, seconds))
        return output

    def once(self, key: Any, ask: Callable[[], Any]) -> Any:
        """The result of ``ask``, cached until a change."""
        if key not in self._answers:
            self._answers[key] = ask()
        return self._answers[key]

    def kernel(self, release: str) -> Kernel:
        """The kernel of this release, walked once for all questions."""
        kernel: Kernel = self.once(("kernel", release), lambda: Kernel(release, self.root))
        return kernel

    def entry(self, path: str) -> Optional[files.PathState]:
        """A file or folder as it is now, links followed; None: nothing.  Raises CannotTellError."""
        try:
            return files.entry(inside(self.root, path), path)
        except LoopError:
            return files.PathState(files.LINK, 0, 0, 0)

    def text(self, path: str) -> str:
        """The text of a file; empty when it isn't there.  Raises CannotTellError."""
        return files.text(inside(self.root, path), path)

    def exact_text(self, path: str, limit: int) -> str:
        """The text of a file, for :meth:`rewrite`.  Raises CannotTellError, also where there is none."""
        try:
            return reading.whole(inside(self.root, path), limit, pipes=True).decode("utf-8", "surrogateescape")
        except OSError as error:
            raise CannotTellError(f"{path}: {error.strerror}") from None

    def exists(self, path: str) -> bool:
        """Whether there is anything at ``path``, links followed."""
        return os.path.exists(inside(self.root, path))

    def has_program(self, name: str) -> bool:
        """Whether an administrator's program is there."""
        return any(self.exists(f"{folder}/{name}") for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin"))

    def target(self, path: str) -> str:
        """Where a link to a folder leads, as a path of this host; anything else is its own."""
        try:
            place = inside(self.root, path)
        except LoopError:
            return path
        return os.path.normpath("/" + os.path.relpath(place, self.root)) if os.path.isdir(place) else path

    def real(self, path: str) -> str:
        """Where the links of ``path`` end, as a path of this host; raises LoopError."""
        return os.path.normpath("/" + os.path.relpath(inside(self.root, path), self.root))

    def glob(self, patterns: Sequence[str]) -> List[str]:
        """The paths of ``patterns`` that exist or that the record knows; patterns only in the last part; sorted."""
        paths = {path for path in self.record.paths for pattern in patterns if fnmatch.fnmatchcase(path, pattern)}
        for pattern in patterns:
            folder, _, last = pattern.rpartition("/")
            names = fnmatch.filter(list_folder(self.root, folder or "/"), last)
            paths.update(f"{folder}/{name}" for name in names)
        return sorted(paths)

    # Changing

    def run(
        self, argv: Sequence[str], seconds: float, env: Mapping[str, str] = {}, statuses: Sequence[int] = (0,)
    ) -> Output:
        """Run a program that changes something; raises ApplyError with the end of what it printed."""
        output = self.attempt(argv, seconds, env)
        if output.status not in statuses:
            raise ApplyError(f"{' '.join(argv[:2])} ended with status {output.status}{tail(output)}")
        return output

    def attempt(self, argv: Sequence[str], seconds: float, env: Mapping[str, str] = {}) -> Output:
        """Run a program that changes something, whatever its exit status is."""
        self.forget()
        output = process.run(argv, seconds, env=env)
        self.forget()
        return output

    def forget(self) -> None:
        """Empty the cache, because something has changed."""
        self._answers.clear()

    def write(self, file: files.File) -> None:
        """Make ``file``; what was there is recorded first, and put back when the resource fails."""
        self.forget()
        refusal = files.in_the_way(file, self.entry(file.path))
        if refusal is not None:
            raise ApplyError(refusal.message, refusal.hint, "refused")
        target = self.target(file.path) if file.kind == files.FOLDER else file.path
        for path in [*self.missing_folders(target), target]:
            self.preserve(path)
            self._note(path)
        with writing(file.path):
            files.bring_about(beside(self.root, target), file)

    def preserve(self, path: str) -> None:
        """Record ``path`` before it changes, and put it back when the resource fails."""
        self.record.remember(path)
        self.undoable(path)

    def undoable(self, path: str) -> None:
        """Put ``path`` back as it is now when the resource fails; nothing is recorded for a removal."""
        before = look(self.root, path)
        self.undo_by(path, lambda: self._put_back(path, before))

    def undo_by(self, subject: str, step: Callable[[], object], *, last: bool = False) -> None:
        """Have ``step`` take back what the resource is about to do to ``subject``, when it doesn't end well.

        last: after all files are what they were, for a program that reads them.
        """
        self._undo.insert(0 if last else len(self._undo), (subject, step))

    def keep(self) -> None:
        """What the resource has done so far stays when it fails now."""
        self._undo = []

    def write_unrecorded(self, file: files.File) -> None:
        """The same for gdsdeploy's own files, which aren't recorded."""
        self.forget()
        for path in [*self.missing_folders(file.path), file.path]:
            self._note(path)
        with writing(file.path):
            files.bring_about(beside(self.root, file.path), file)

    def keep_lines(self, path: str, lines: Sequence[str]) -> None:
        """Have a file of gdsdeploy's own, which isn't recorded, be these lines; without lines there is no file."""
        text = "".join(f"{line}\n" for line in lines)
        if not text:
            self.remove_tree(path)
        elif self.text(path) != text:
            self.write_unrecorded(files.File.of(path, text))

    def rewrite(self, path: str, text: str) -> None:
        """Replace the text of a file that others own; links to it, its mode, owner and attributes stay.

        Nothing is recorded: a removal takes out what is gdsdeploy's.  Bytes that aren't UTF-8 are surrogates.
        """
        self.forget()
        target = self.real(path)
        self.undoable(target)
        state = self.entry(target)
        if state is None:
            raise ApplyError(f"{path}: was deleted meanwhile", "run this again", "io")
        place = inside(self.root, target)
        with writing(path):
            content, owner = text.encode("utf-8", "surrogateescape"), (state.uid, state.gid)
            files.replace(place, content, state.mode, owner, atomic.attributes_of(place))

    def restore(self, path: str, needed: bool = True) -> None:
        """Make ``path`` what the record says it was before, if that is needed, and forget it; raises ApplyError."""
        self.forget()
        if needed:
            self._put_back(path, self.record.paths.get(path))
        else:
            with writing(path):
                atomic.sweep(beside(self.root, path))
        self.record.forget(path)

    def remove_tree(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; links aren't followed.  Raises ApplyError."""
        self.forget()
        place = beside(self.root, path)
        with writing(path):
            if os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place)
            elif os.path.lexists(place):
                os.unlink(place)

    # One resource at a time

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Around one resource: however the block is left but by its end, what it has done is taken back.

        That is so for errors, SystemExit (SIGTERM) and KeyboardInterrupt; signals that arrive meanwhile wait.
        """
        self._undo = []
        try:
            yield
        except BaseException:
            with process.defer_signals():
                self.undo()
            raise

    def undo(self) -> None:
        """The steps of :meth:`undo_by`, the latest first.  One that fails is named in a note; the others run, too."""
        while self._undo:
            subject, step = self._undo.pop()
            try:
                step()
            except Exception as error:  # noqa: BLE001 - what matters is why the resource failed
                words = error.message if isinstance(error, HostError) else f"{subject}: {error}"
                self.notes.append(f"{words}: it couldn't be put back; run this again")
        self.forget()

    def missing_folders(self, path: str) -> List[str]:
        """The folders that have to be made for ``path``, from the outermost on."""
        folders: List[str] = []
        folder = os.path.dirname(path)
        while folder != "/" and not os.path.lexists(beside(self.root, folder)):
            folders.insert(0, folder)
            folder = os.path.dirname(folder)
        return folders

    def _note(self, path: str) -> None:
        """Before the first path is written: from now on, labels are due."""
        if not self.written and self.exists(SELINUX):
            with writing(derived.PATH):
                derived.outdate([LABELS], self.root)
        self.written.add(path)

    def _put_back(self, path: str, before: Any) -> None:
        self._note(path)
        with writing(path):
            files.put_back(beside(self.root, path), before)


def tail(output: Output) -> str:
    """The last lines that a failed program printed, for the end of a message."""
    lines = (output.stderr.strip() or output.stdout.strip()).splitlines()[-_TAIL:]
    return "".join(f"\n  | {line}" for line in lines)
