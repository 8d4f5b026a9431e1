"""Whether direct I/O on a mount really bypasses CPU memory, tried on the mount itself.

A file opened with O_DIRECT may be served from the page cache without a word: the kernel lets each filesystem decide,
for each file and each piece of I/O.  So it is tried: in a scratch file that is gone when the trial ends, each kind of
I/O is done once, and the page cache is looked at before and after (see trials.py).  Nothing else on the mount is
touched, the file has 144 KiB at most (1.2 MiB where pages have 64 KiB), and on a local disk the whole takes less than a
tenth of a second.

The trial runs in a process of its own, because a filesystem whose server is gone holds a program for ever.
"""

from __future__ import annotations

from .audit import SECONDS, audit
from .trials import BUFFERED, BYPASSED, FELL_BACK, NOT_PROVEN, REFUSED, WRONG

__all__ = ["BUFFERED", "BYPASSED", "FELL_BACK", "NOT_PROVEN", "REFUSED", "SECONDS", "WRONG", "audit"]
