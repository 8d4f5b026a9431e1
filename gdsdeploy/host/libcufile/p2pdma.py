"""Keys of cufile.json that enable PCI P2PDMA.

``properties.use_pci_p2pdma`` enables the mode.  From 1.16 on, each kind of storage also has a separate key, which is
false by default: without it that storage stays in compat mode.  The table is ``data/p2pdma_keys.json``, from the keys
that libcufile 1.4 to 1.20 read.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

from .. import data

#: The key that enables the mode, in releases from 1.13 on.
GLOBAL = "properties.use_pci_p2pdma"
#: The release from which each kind of storage needs its own key, besides ``GLOBAL``.
OWN_KEYS_SINCE = (1, 16)


class StorageKey(NamedTuple):
    """The key of one kind of storage."""

    #: the block device's kind or the filesystem, as cufile.json names it
    storage: str
    #: ``block.…`` or ``fs.…``
    section: str
    #: its name in ``section``
    key: str
    #: first release (major, minor) that reads it
    since: Tuple[int, int]
    #: False: the library reads the key, but NVIDIA (gds-diag) lists no P2PDMA route to this storage
    route: bool = True

    @property
    def name(self) -> str:
        """The dotted name in cufile.json."""
        return f"{self.section}.{self.key}"


def storage_keys() -> Tuple[StorageKey, ...]:
    """The keys of all kinds of storage, in every release."""
    return data.rows("p2pdma_keys", StorageKey)


def keys_for(release: Tuple[int, int]) -> Tuple[StorageKey, ...]:
    """The keys that a release (major, minor) reads; empty before ``OWN_KEYS_SINCE``."""
    return tuple(row for row in storage_keys() if row.since <= release)
