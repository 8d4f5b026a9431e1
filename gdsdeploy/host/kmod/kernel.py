"""One kernel release inside a root folder: its modules, its headers, what it expects of a module."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from functools import lru_cache
from itertools import islice
from typing import Callable, Dict, Iterator, List, Mapping, Optional

from ..errors import HostError, KernelError
from ..io import cache
from ..rootdir import inside, list_folder
from .depmod import Choice, read_dependencies, read_order, read_renames
from .files import SUFFIXES
from .inputs import Inputs
from .module import Module, name_of, read_module, read_once
from .symvers import Export, Exports, read_symvers

#: In-tree modules read to learn the symbol versions of a kernel whose headers are not installed; 300 cost about 1 s.
OBSERVED_LIMIT = 300
#: The large ones first, because they import most, but not the giants among the graphics drivers.
_OBSERVED_SIZE = 256 << 10
_OBSERVED_FIRST = (
    "kernel/drivers/gpu/drm/",
    "kernel/fs/",
    "kernel/drivers/nvme/",
    "kernel/drivers/infiniband/",
    "kernel/net/",
)
#: Modules that can't be read before the rest isn't tried: the reason is the same for thousands.
_UNREAD_LIMIT = 10
_SYMVERS_HINT = "reinstall the kernel's headers"
_ENDINGS = tuple(".ko" + suffix for suffix in SUFFIXES)


class Kernel:
    """A kernel release; every path it takes and gives is relative to /lib/modules/<release> unless said otherwise.

    Raises KernelError when the root has no such release.
    """

    def __init__(self, release: str, root: str = "/") -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+~-]*", release):
            raise KernelError(f"{release!r} is not a kernel release", "give it as uname -r shows it")
        self.release = release
        self.root = root
        self.folder = inside(root, "/lib/modules/" + release)
        if not os.path.isdir(self.folder):
            others = ", ".join(list_folder(root, "/lib/modules")) or "none is installed"
            message = f"kernel {release} has no modules in {os.path.join(root, 'lib/modules')}"
            raise KernelError(message, f"install it, or choose from: {others}")
        #: what can't be read of all that decides about this kernel's modules
        self.inputs = Inputs(root)
        self.by_name: Dict[str, List[str]] = {}
        for file in self._walk():
            self.by_name.setdefault(name_of(file), []).append(file)
        self.order = read_order(self.inputs, release)
        self.renames = read_renames(self.inputs)
        self.dependencies = read_dependencies(self.inputs.text(f"/lib/modules/{release}/modules.dep"))
        #: name → the file that modules.dep has first under it
        self._present: Dict[str, str] = {}
        self._modules: Dict[str, Module] = {}
        self._own: List[Optional[Module]] = []
        self._has_unread = False
        self._config: Optional[Dict[str, str]] = None

    def path(self, file: str) -> str:
        """Where ``file`` is on this machine; links, as in weak-updates, are followed inside the root."""
        path = os.path.join(self.folder, file)
        return inside(self.root, f"/lib/modules/{self.release}/{file}") if os.path.islink(path) else path

    def read(self, file: str) -> Module:
        """The module in ``file``; raises ElfError."""
        if file not in self._modules:
            self._modules[file] = read_once(self.path(file))
        return self._modules[file]

    def choose(self, name: str) -> Optional[Choice]:
        """The file that depmod takes for the file name ``name``, or None when there is none."""
        files = self.by_name.get(name)
        if not files:
            return None
        if not self._present and self.dependencies:
            for file in self.dependencies:
                self._present.setdefault(name_of(file), file)
        return self.order.choose(files, self._present.get(name, ""))

    @property
    def config(self) -> Dict[str, str]:
        """The kernel's configuration (``CONFIG_…`` → value) from its headers or /boot; empty when neither is there."""
        if self._config is None:
            places = ("/lib/modules/{}/build/.config", "/boot/config-{}", "/lib/modules/{}/config")
            texts = (self.inputs.text(place.format(self.release)) for place in places)
            text = next(filter(None, texts), "")
            self._config = dict(re.findall(r"^(CONFIG_\w+)=(.*)$", text, re.MULTILINE))
        return self._config

    def vermagic(self) -> str:
        """What the kernel expects in every module; empty when neither its own modules nor its headers say.

        Without modules of its own, it is composed from the headers as include/linux/vermagic.h does.
        """
        module = self.own_module()
        if module is not None:
            return module.vermagic
        header = f"/lib/modules/{self.release}/build/include/generated/utsrelease.h"
        release = re.search(r'UTS_RELEASE "([^"]+)"', self.inputs.text(header))
        if release is None or not self.config:
            return ""
        preempt = "preempt_rt" if "CONFIG_PREEMPT_RT" in self.config else "preempt"
        options = (
            ("SMP", "CONFIG_SMP"),
            (preempt, "CONFIG_PREEMPT_RT", "CONFIG_PREEMPT_BUILD", "CONFIG_PREEMPT"),
            ("mod_unload", "CONFIG_MODULE_UNLOAD"),
            ("modversions", "CONFIG_MODVERSIONS"),
            ("aarch64", "CONFIG_ARM64"),
        )
        words = [word for word, *names in options if any(name in self.config for name in names)]
        return " ".join([release.group(1), *words]) + " "

    @property
    def versioned(self) -> bool:
        """Whether the kernel compares symbol versions; Debian's does up to 6.12 and no longer in 7.2."""
        return "modversions" in self.vermagic().split()

    def own_module(self) -> Optional[Module]:
        """The first in-tree module that can be read; None: see :attr:`is_headers_only`."""
        if not self._own:
            self._own = [next(iter(self._own_modules(read_once)), None)]
        return self._own[0]

    @property
    def is_headers_only(self) -> bool:
        """Whether the kernel has no modules of its own, as on a machine that only builds; unreadable ones count."""
        return self.own_module() is None and not self._has_unread

    def symvers(self) -> Mapping[str, Export]:
        """What the kernel and its own modules export, by Module.symvers; empty when that is not installed."""
        path = self._symvers_path()
        return _symvers_of(path, os.path.getmtime(path)) if path else {}

    def symvers_digest(self) -> str:
        """``sha256:…`` of Module.symvers as it is stored, or nothing."""
        path = self._symvers_path()
        if not path:
            return ""
        try:
            with open(path, "rb") as file:
                return "sha256:" + hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            raise KernelError(f"{path}: cannot be read: {error.strerror}", _SYMVERS_HINT) from None

    def observed(self) -> Iterator[Module]:
        """The kernel's own modules, read one by one: for hosts without headers, their imports have its versions."""
        return islice(self._own_modules(), OBSERVED_LIMIT)

    def headers(self) -> str:
        """The build folder on this machine; raises KernelError when the headers are not installed."""
        path = inside(self.root, f"/lib/modules/{self.release}/build")
        if not os.path.isfile(os.path.join(path, "Makefile")):
            raise KernelError(
                f"the headers of kernel {self.release} are not installed: {path} has no Makefile",
                f"install linux-headers-{self.release} (kernel-devel-{self.release} on RHEL)",
            )
        return path

    def _own_modules(self, read: Callable[[str], Module] = read_module) -> Iterator[Module]:
        own = [file for files in self.by_name.values() for file in files if file.startswith("kernel/")]
        sizes = {file: os.lstat(self.folder + "/" + file).st_size for file in own}
        small = [file for file in own if sizes[file] < _OBSERVED_SIZE]
        unread = 0
        for file in sorted(small, key=lambda file: (not file.startswith(_OBSERVED_FIRST), -sizes[file], file)):
            try:
                module = read(self.path(file))
            except HostError as error:
                self.inputs.skip(error)
                self._has_unread = True
                unread += 1
                if unread == _UNREAD_LIMIT:
                    return
                continue
            # Out-of-tree packages install below kernel/, too.
            if module.intree:
                yield module

    def _symvers_path(self) -> str:
        places = [f"/lib/modules/{self.release}/build/Module.symvers"]
        for suffix in SUFFIXES:
            places += [f"/lib/modules/{self.release}/symvers{suffix}", f"/boot/symvers-{self.release}{suffix}"]
        paths = (inside(self.root, place) for place in places)
        return next((path for path in paths if os.path.exists(path)), "")

    def _walk(self) -> Iterator[str]:
        for folder, folders, names in os.walk(self.folder, onerror=self._skip_folder):
            folders[:] = sorted(name for name in folders if name not in ("build", "source"))
            # Thousands of files, so no more than this is done for each.
            below = folder[len(self.folder) :].lstrip("/")
            for name in filter(lambda name: name.endswith(_ENDINGS), folders):
                self._skip_folder(IsADirectoryError(errno.EISDIR, "is a folder", os.path.join(folder, name)))
            for name in sorted(names):
                if name.endswith(_ENDINGS):
                    yield below + "/" + name if below else name

    def _skip_folder(self, error: OSError) -> None:
        self.inputs.skip_path(str(error.filename), error)


def releases(root: str = "/") -> List[str]:
    """The kernel releases that have modules inside ``root``."""
    return [name for name in list_folder(root, "/lib/modules") if list_folder(root, f"/lib/modules/{name}/kernel")]


@lru_cache(maxsize=2)
def _symvers_of(path: str, _changed: float) -> Mapping[str, Export]:
    try:
        return Exports(cache.of_file("symvers", path, lambda: read_symvers(path)))
    except HostError as error:
        raise KernelError(error.message, error.hint or _SYMVERS_HINT) from None
