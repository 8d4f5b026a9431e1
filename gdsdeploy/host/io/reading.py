"""Reads files of others, inodes, superblocks and configuration spaces; numbers and switches as the kernel does.

Reading a file neither waits for a writer nor takes more than a bound.  Nothing here changes anything.

Which package manager a system has, by its database.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import stat
import struct
from typing import Dict, Optional

from ..rootdir import inside, open_file


def beginning(path: str, limit: int, pipes: bool = True) -> bytes:
    """The first ``limit`` bytes of a file, and one more where it has more.

    pipes: whether it may be something else than a regular file, whose writer can have the reader wait.  Raises OSError.
    """
    with open_file(path) as file:
        if not pipes and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it isn't a regular file", path)
        return file.read(limit + 1)


def whole(path: str, limit: int, pipes: bool = False) -> bytes:
    """A file of at most ``limit`` bytes; raises OSError, also for a larger one."""
    data = beginning(path, limit, pipes)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", path)
    return data


def look(path: str) -> str:
    """The next command for a file that cannot be read."""
    return f"Look at it with: ls -lL {shlex.quote(path)}"


#: linux/fs.h: _IOR('f', 1, long) on 64 bits; the kernel writes an int there.
_GETFLAGS = 0x80086601
#: linux/ext4 superblock: its place, then the places of its magic number and of the three sets of features within it.
_SUPERBLOCK, _MAGIC, _FEATURES = 1024, 0x38, 0x5C
_EXT4 = 0xEF53
#: PCI Express: extended capabilities begin here; Access Control Services has this id, its control register this place.
_EXTENDED, _ACS, _ACS_CONTROL = 0x100, 0x000D, 6
_CONFIG_SIZE = 4096
#: The list of capabilities, and PCI Express' among them, which begins with the kind of the function (pci_regs.h).
_CAPABILITIES, _EXPRESS, _EXPRESS_FLAGS = 0x34, 0x10, 2
_VPD_SIZE = 4096
#: A function without Access Control Services, and one that isn't PCI Express.
NO_ACS, NO_TYPE = -1, -1
#: In the VPD of ConnectX-7 functions that lead to NVSwitches of the fourth generation, which are no PCI functions
#: themselves: Fabric Manager's own start script looks for it, and so does Bottlerocket's.
SWITCH_MARK = "SW_MNG"


def inode_flags(path: str) -> int:
    """The flags of the inode at ``path`` as in linux/fs.h (FS_COMPR_FL, FS_ENCRYPT_FL, …)."""
    try_open = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return flags_of(try_open)
    finally:
        os.close(try_open)


def flags_of(descriptor: int) -> int:
    """The same of an open file."""
    answer = fcntl.ioctl(descriptor, _GETFLAGS, bytes(8))
    return int(struct.unpack_from("=I", answer)[0])


def ext4_features(device: str) -> Dict[str, int]:
    """The three sets of features in the ext4 superblock of a block device; raises ValueError without a superblock."""
    with open(device, "rb", buffering=0) as file:
        block = os.pread(file.fileno(), 1024, _SUPERBLOCK)
    if len(block) < 1024 or struct.unpack_from("<H", block, _MAGIC)[0] != _EXT4:
        raise ValueError("no ext4 superblock")
    compat, incompat, ro_compat = struct.unpack_from("<III", block, _FEATURES)
    return {"compat": compat, "incompat": incompat, "ro_compat": ro_compat}


def acs_control(config: str) -> int:
    """The control register of Access Control Services in a PCI function's configuration space, or NO_ACS.

    Raises PermissionError where only the first 64 bytes are shown, as they are to all but root.
    """
    space = _config(config)
    at = _EXTENDED
    for _ in range(64):
        if not _EXTENDED <= at <= len(space) - 8:
            break
        header = struct.unpack_from("<I", space, at)[0]
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", space, at + _ACS_CONTROL)[0])
        at = header >> 20
    return NO_ACS


def port_type(config: str) -> int:
    """What PCI Express calls a function: 4 a root port, 5 and 6 a switch's upstream and downstream port; or NO_TYPE.

    Raises PermissionError as acs_control does.
    """
    space = _config(config)
    at = space[_CAPABILITIES]
    for _ in range(48):
        if not 64 <= at <= len(space) - 4:
            break
        if space[at] == _EXPRESS:
            return space[at + _EXPRESS_FLAGS] >> 4
        at = space[at + 1] & ~3
    return NO_TYPE


def _config(path: str) -> bytes:
    with open(path, "rb") as file:
        space = file.read(_CONFIG_SIZE)
    if len(space) <= 64:
        raise PermissionError(errno.EACCES, "only root sees it")
    return space


def switch_mark(vpd: str) -> str:
    """SWITCH_MARK where a function's vital product data has it, else nothing."""
    return SWITCH_MARK if SWITCH_MARK.encode() in beginning(vpd, _VPD_SIZE) else ""


def try_open(path: str) -> str:
    """``ok`` if the file at ``path`` can be opened for reading."""
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    return "ok"


DPKG, RPM = "dpkg", "rpm"
_STATUS = "/var/lib/dpkg/status"
_RPM = ("/var/lib/rpm", "/usr/lib/sysimage/rpm")


def package_manager(root: str = "/") -> str:
    """``dpkg``, ``rpm``, or nothing where neither has a database.

    Each is also a package of the other's systems, where dpkg's database is empty.
    """
    status = inside(root, _STATUS)
    is_rpm = any(os.path.isdir(inside(root, path)) for path in _RPM)
    if os.path.exists(status) and (os.path.getsize(status) or not is_rpm):
        return DPKG
    return RPM if is_rpm else ""


#: As _parse_integer_fixup_radix() and _parse_integer() in lib/kstrtox.c take base 0: no blanks, underscores, 0b or 0o.
_NUMBER = r"([+-]?)(?:0[xX]([0-9a-fA-F]{1,16})|(0[0-7]{0,22})|([1-9][0-9]{0,19}))"


def kernel_number(text: str, *, begins: bool = False) -> Optional[int]:
    """The number that the kernel reads: hexadecimal after 0x, octal after 0, else decimal; None where it refuses.

    begins: as NVIDIA's driver does, whatever follows the number, and without a sign.
    """
    match = re.match(_NUMBER, text) if begins else re.fullmatch(_NUMBER, text)
    if not match or (begins and match.group(1)):
        return None
    sign, hexadecimal, octal, decimal = match.groups()
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return -value if sign == "-" else value


def kernel_switch(text: str) -> Optional[bool]:
    """The boolean that the kernel reads (kstrtobool in lib/kstrtox.c); None where it refuses.

    It looks at the first letter, and the second after an o.  Newer kernels know ``enabled`` and ``disabled``, too.
    """
    word = text.lower()
    if word[:1] in ("y", "t", "1", "e") or word[:2] == "on":
        return True
    return False if word[:1] in ("n", "f", "0", "d") or word[:2] == "of" else None
