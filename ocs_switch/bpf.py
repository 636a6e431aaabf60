"""The little of bpf(2) that the shutter needs: an array that processes share by mapping it, and a program loaded from words.

No compiler and no library: a program of twenty instructions is written as instructions. Source: Linux's
Documentation/bpf/standardization/instruction-set.rst and include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Mapping

_SYSCALL = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _PROG_LOAD, _OBJ_GET_INFO_BY_FD = 0, 5, 15
_ARRAY, _PROG_TYPE_XDP = 2, 6
_F_MMAPABLE = 1 << 10
F_XDP_HAS_FRAGS = 1 << 5
"""The program takes frames in several pieces: Linux 5.18 and later."""

_LOG_SIZE = 1 << 16
_INSTRUCTION = struct.Struct("=BBhi")

_libc = ctypes.CDLL(None, use_errno=True)


class BpfError(OSError):
    """The kernel refused; for a program the message ends with the verifier's words."""


def instruction(code: int, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    """One instruction of eight bytes."""
    return _INSTRUCTION.pack(code, src << 4 | dst, offset, immediate)


def load_map(register: int, fd: int) -> bytes:
    """The double instruction that puts a map into a register."""
    return instruction(0x18, register, 1, 0, fd) + instruction(0)


def assemble(lines: Iterable[bytes | str | tuple[str, int, int, int, int]]) -> bytes:
    """A program from instructions, labels (text), and jumps (label, opcode, register, other register, immediate)."""
    listed = list(lines)
    places: dict[str, int] = {}
    at = 0
    for line in listed:
        if isinstance(line, str):
            places[line] = at
        else:
            at += len(line) // 8 if isinstance(line, bytes) else 1
    code = b""
    for line in listed:
        if isinstance(line, bytes):
            code += line
        elif not isinstance(line, str):
            label, opcode, register, other, immediate = line
            code += instruction(opcode, register, other, places[label] - len(code) // 8 - 1, immediate)
    return code


def _bpf(command: int, attributes: bytes, what: str) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise BpfError(0, f"{what}: the number of bpf(2) on {platform.machine()} is not known")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = int(_libc.syscall(number, command, buffer, len(attributes)))
    if result < 0:
        code = ctypes.get_errno()
        raise BpfError(code, f"{what}: {os.strerror(code)}")
    return result


def create_array(entries: int, value_size: int, name: str) -> int:
    """The descriptor of a new array of ``entries`` zeroed values, which can be mapped and inherited. Raises BpfError."""
    head = struct.pack("=IIIIIII16s", _ARRAY, 4, value_size, entries, _F_MMAPABLE, 0, 0, name.encode())
    return _bpf(_MAP_CREATE, head, f"bpf array {name}")


def load_xdp(code: bytes, name: str, *, flags: int = 0, license_name: str = "Apache-2.0") -> int:
    """The descriptor of a verified XDP program. Raises BpfError."""
    instructions = ctypes.create_string_buffer(code, len(code))
    words = ctypes.create_string_buffer(license_name.encode())
    log = ctypes.create_string_buffer(_LOG_SIZE)

    def attempt(level: int) -> int:
        place, size = (ctypes.addressof(log), _LOG_SIZE) if level else (0, 0)
        attributes = struct.pack(
            "=IIQQIIQII16sI", _PROG_TYPE_XDP, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(words),
            level, size, place, 0, flags, name.encode(), 0,
        )  # fmt: skip
        return _bpf(_PROG_LOAD, attributes, f"bpf program {name}")

    try:
        return attempt(0)
    except BpfError as error:
        first = error
    try:
        return attempt(1)
    except BpfError as error:
        said = " | ".join(log.value.decode(errors="replace").strip().splitlines()[-4:])
        raise BpfError(error.errno, f"{first.strerror}{': ' + said if said else ''}") from None


def program_id(fd: int) -> int:
    """The kernel's number of a loaded program. Raises BpfError."""
    info = ctypes.create_string_buffer(64)
    _bpf(_OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)), "bpf program info")
    return int(struct.unpack_from("=I", info.raw, 4)[0])


def map_facts(fd: int) -> Mapping[str, int]:
    """Type, sizes and entries of a map, from its descriptor. Raises OSError for what is no map."""
    facts: dict[str, int] = {}
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as listing:
        for line in listing:
            name, _, value = line.partition(":")
            if name in ("map_type", "key_size", "value_size", "max_entries"):
                facts[name] = int(value.split()[0], 0)
    if "max_entries" not in facts:
        raise BpfError(0, f"descriptor {fd} is no bpf map")
    return facts
