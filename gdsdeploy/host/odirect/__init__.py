"""Tests on a mount itself whether direct I/O bypasses CPU memory.

A filesystem may silently serve a file opened with O_DIRECT from the page cache: the kernel lets it decide for each file
and each piece of I/O.  The trial does each kind of I/O once in a scratch file, and looks into the page cache before and
after (see trials.py).  It removes the file and touches nothing else on the mount.  The file has 144 KiB at most (1.2
MiB where pages have 64 KiB), and on a local disk the trial takes less than a tenth of a second.

The trial runs in its own process, because a filesystem whose server is gone blocks a program forever.
"""
