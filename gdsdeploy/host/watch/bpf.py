"""A counting program for the kernel's probes, assembled here; no compiler and no library.

One hash map has (process and kind, first argument) → (calls, sum of the third argument).  For a return probe it has
(process and kind, 1 if the call failed, else 0) → (calls, sum of the results).  The kernel adds; nothing is read but
between looks.  Instructions and calls are those of linux/bpf.h and linux/perf_event.h.  The kernel removes
probes, program and map with the descriptors of this process, also if it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import resource
import struct
from typing import Any, Dict, List, Tuple

#: Machine → numbers of the system calls bpf and perf_event_open, and where struct pt_regs has arguments 1 and 3 and the
#: result of a call.
_MACHINES = {"x86_64": (321, 298, 112, 96, 80)}
_MAP_CREATE, _MAP_LOOKUP, _MAP_NEXT, _PROG_LOAD = 0, 1, 4, 5
_HASH, _KPROBE = 1, 2
_SET_BPF, _ENABLE, _CLOEXEC = 0x40042408, 0x2400, 8
_KEY, _VALUE = struct.Struct("<IIQ"), struct.Struct("<QQ")
#: Pairs of process and file that are counted; more are not.
ENTRIES = 65536
_UPROBE = "/sys/bus/event_source/devices/uprobe/type"
#: Makes a probe a return probe: bit 0 of ``config``, as ``format/retprobe`` beside that file says.
_RETURN = 1


class Machine:
    """The system calls of this machine; raises OSError (ENOSYS) where they aren't known."""

    def __init__(self) -> None:
        numbers = _MACHINES.get(platform.machine())
        if numbers is None:
            raise OSError(38, f"probes aren't known for {platform.machine()}")
        self.bpf_number, self.perf_number, self.first, self.third, self.result = numbers
        self._libc = ctypes.CDLL(None, use_errno=True)

    def call(self, number: int, *arguments: Any) -> int:
        """The result of a system call; raises OSError."""
        result: int = self._libc.syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result

    def bpf(self, command: int, attributes: bytes) -> int:
        buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
        return self.call(self.bpf_number, ctypes.c_int(command), buffer, ctypes.c_uint(len(buffer)))


def _instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | to, offset, value)


def _arguments(machine: Machine) -> bytes:
    """The first argument of a call becomes the end of the key, the third one the size."""
    return b"".join((
        _instruction(0x79, 1, 6, machine.first),
        _instruction(0x7B, 10, 1, -8),
        _instruction(0x79, 8, 6, machine.third),
    ))  # fmt: skip


def _result(machine: Machine) -> bytes:
    """The end of the key becomes 1 if the call failed, else 0.  The size becomes its result, or 0 if it failed."""
    return b"".join((
        _instruction(0x79, 8, 6, machine.result),
        _instruction(0xBF, 1, 8),
        _instruction(0x77, 1, 0, 0, 63),
        _instruction(0x7B, 10, 1, -8),
        _instruction(0x75, 8, 0, 1, 0),
        _instruction(0xB7, 8, 0, 0, 0),
    ))  # fmt: skip


def _counting(map_number: int, kind: int, inputs: bytes) -> bytes:
    """The program.  Registers: 6 the call's own, 8 the size; the stack has the key at -16 and a value at -32.

    inputs: the instructions that fill the end of the key and the size.
    """
    load_map = _instruction(0x18, 1, 1, 0, map_number) + _instruction(0)
    key = _instruction(0xBF, 2, 10) + _instruction(0x07, 2, 0, 0, -16)
    look_up = load_map + key + _instruction(0x85, value=1)
    insert = b"".join((
        _instruction(0x7A, 10, 0, -32, 0),
        _instruction(0x7A, 10, 0, -24, 0),
        load_map,
        key,
        _instruction(0xBF, 3, 10) + _instruction(0x07, 3, 0, 0, -32),
        _instruction(0xB7, 4, 0, 0, 1),
        _instruction(0x85, value=2),
        look_up,
    ))  # fmt: skip
    add = b"".join((
        _instruction(0xB7, 1, 0, 0, 1),
        _instruction(0xDB, 0, 1, 0, 0),
        _instruction(0xDB, 0, 8, 8, 0),
    ))  # fmt: skip
    return b"".join((
        _instruction(0xBF, 6, 1),
        _instruction(0x85, value=14),
        _instruction(0x77, 0, 0, 0, 32),
        _instruction(0x63, 10, 0, -16),
        _instruction(0x62, 10, 0, -12, kind),
        inputs,
        look_up,
        _instruction(0x55, 0, 0, len(insert) // 8 + 1, 0),
        insert,
        _instruction(0x15, 0, 0, len(add) // 8, 0),
        add,
        _instruction(0xB7, 0),
        _instruction(0x95),
    ))  # fmt: skip


class Counting:
    """The map, and probes that count into it; closing it removes everything.  Raises OSError."""

    def __init__(self) -> None:
        self._machine = Machine()
        # Kernels before 5.11 count maps as locked memory.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with open(_UPROBE, encoding="ascii") as file:
            self._type = int(file.read())
        shape = struct.pack("<IIIII", _HASH, _KEY.size, _VALUE.size, ENTRIES, 0)
        self._map = self._machine.bpf(_MAP_CREATE, shape)
        self._programs: Dict[int, int] = {}
        self._open: List[int] = [self._map]

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the probes, the programs and the map."""
        while self._open:
            os.close(self._open.pop())

    def probe(self, path: str, offset: int, kind: int, *, returns: bool = False) -> None:
        """Count calls of the code at this offset of a file, in every process that maps it; raises OSError.

        returns: count them when they return, by their results.
        """
        name = ctypes.create_string_buffer(os.fsencode(path))
        attributes = bytearray(112)
        struct.pack_into("<IIQ", attributes, 0, self._type, len(attributes), _RETURN * returns)
        struct.pack_into("<QQ", attributes, 56, ctypes.addressof(name), offset)
        buffer = ctypes.create_string_buffer(bytes(attributes), len(attributes))
        everyone, processor, alone = ctypes.c_int(-1), ctypes.c_int(0), ctypes.c_int(-1)
        arguments = (buffer, everyone, processor, alone, ctypes.c_ulong(_CLOEXEC))
        event = self._machine.call(self._machine.perf_number, *arguments)
        self._open.append(event)
        fcntl.ioctl(event, _SET_BPF, self._program(kind, returns))
        fcntl.ioctl(event, _ENABLE, 0)

    def _program(self, kind: int, returns: bool) -> int:
        if kind not in self._programs:
            inputs = _result(self._machine) if returns else _arguments(self._machine)
            code = _counting(self._map, kind, inputs)
            instructions, terms = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
            addresses = (ctypes.addressof(instructions), ctypes.addressof(terms))
            attributes = struct.pack("<IIQQ", _KPROBE, len(code) // 8, *addresses)
            self._programs[kind] = self._machine.bpf(_PROG_LOAD, attributes)
            self._open.append(self._programs[kind])
        return self._programs[kind]

    def counts(self) -> Dict[Tuple[int, int, int], Tuple[int, int]]:
        """(process id, kind, first argument or 1 for failed) → (calls, sum of the third argument or of the results)."""
        result: Dict[Tuple[int, int, int], Tuple[int, int]] = {}
        key, value = ctypes.create_string_buffer(_KEY.size), ctypes.create_string_buffer(_VALUE.size)
        following = ctypes.create_string_buffer(_KEY.size)
        first = True
        while len(result) <= ENTRIES:
            begin = 0 if first else ctypes.addressof(key)
            try:
                self._machine.bpf(_MAP_NEXT, struct.pack("<IIQQ", self._map, 0, begin, ctypes.addressof(following)))
            except FileNotFoundError:
                break
            ctypes.memmove(key, following, _KEY.size)
            first = False
            pair = (ctypes.addressof(key), ctypes.addressof(value))
            self._machine.bpf(_MAP_LOOKUP, struct.pack("<IIQQQ", self._map, 0, *pair, 0))
            pid, kind, argument = _KEY.unpack(key.raw)
            calls, total = _VALUE.unpack(value.raw)
            result[(pid, kind, argument)] = (calls, total)
        return result
