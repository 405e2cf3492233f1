"""libbpf through ctypes: load an object, pin and reopen maps and programs, attach at traffic control.

Only what the emulated optics need, and few imports, as every O-NIC's agent starts with this module. Every
function raises EbpfError with one line.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

BPFFS = Path("/sys/fs/bpf")
_BPFFS_MAGIC = 0xCAFE4A11
_TC_INGRESS, _TC_EGRESS = 1, 2
_TC_REPLACE = 1
_XDP_GENERIC = 2
_MAP_TYPE_HASH, _F_NO_PREALLOC = 1, 1
#: Handle and priority of our one filter, so that a restarted device recognises it.
_FILTER_HANDLE, _FILTER_PRIORITY = 1, 1


class EbpfError(OSError):
    """A call into libbpf or the kernel failed."""


class _TcHook(ctypes.Structure):
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("ifindex", ctypes.c_int),
        ("attach_point", ctypes.c_int),
        ("parent", ctypes.c_uint32),
    )


class _TcOptions(ctypes.Structure):
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("prog_fd", ctypes.c_int),
        ("flags", ctypes.c_uint32),
        ("prog_id", ctypes.c_uint32),
        ("handle", ctypes.c_uint32),
        ("priority", ctypes.c_uint32),
    )


class _MapOptions(ctypes.Structure):
    """The first fields of ``struct bpf_map_create_opts``."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("unused", ctypes.c_uint32 * 5),
        ("map_flags", ctypes.c_uint32),
    )


class _ProgInfoHead(ctypes.Structure):
    """The first fields of ``struct bpf_prog_info``; the kernel fills as many bytes as it is given."""

    _fields_ = (("type", ctypes.c_uint32), ("id", ctypes.c_uint32))


_messages: list[str] = []


def _collect(level: int, text: bytes, arguments: int) -> int:
    """libbpf's log goes into the next error's message, not to standard error."""
    if level == 0:
        buffer = ctypes.create_string_buffer(4096)
        ctypes.CDLL(None).vsnprintf(
            buffer,
            ctypes.c_size_t(len(buffer)),
            ctypes.c_char_p(text),
            ctypes.c_void_p(arguments),
        )
        _messages.append(buffer.value.decode(errors="replace").strip())
        del _messages[:-20]
    return 0


#: Kept here, for libbpf keeps only the address.
_collector = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
)(_collect)


@cache
def _library() -> ctypes.CDLL:
    try:
        lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        raise EbpfError(
            errno.ENOENT, "libbpf.so.1 is not installed (Debian package libbpf1)"
        ) from None
    pointers = (
        "bpf_object__open_file",
        "bpf_object__find_map_by_name",
        "bpf_object__find_program_by_name",
        "bpf_object__next_program",
    )
    for name in pointers:
        getattr(lib, name).restype = ctypes.c_void_p
    lib.libbpf_set_print.restype = ctypes.c_void_p
    lib.libbpf_set_print(_collector)
    return lib


def _fail(code: int, what: str) -> EbpfError:
    detail = _messages[-1].splitlines()[-1] if _messages else ""
    _messages.clear()
    number = abs(code) or errno.EIO
    return EbpfError(
        number, f"{what}: {os.strerror(number)}" + (f" ({detail})" if detail else "")
    )


def _path(path: Path) -> ctypes.c_char_p:
    return ctypes.c_char_p(os.fsencode(path))


class Map:
    """One BPF map, reached by its descriptor. Keys and values are bytes of the map's own sizes."""

    def __init__(
        self, name: str, descriptor: int, key_size: int, value_size: int
    ) -> None:
        self.name, self.descriptor = name, descriptor
        self.key_size, self.value_size = key_size, value_size

    def update(self, key: bytes, value: bytes) -> None:
        if len(key) != self.key_size or len(value) != self.value_size:
            raise ValueError(f"map {self.name}: key or value of the wrong size")
        if _library().bpf_map_update_elem(
            self.descriptor, key, value, ctypes.c_uint64(0)
        ):
            raise _fail(ctypes.get_errno(), f"map {self.name}: update")

    def lookup(self, key: bytes) -> bytes | None:
        value = ctypes.create_string_buffer(self.value_size)
        if _library().bpf_map_lookup_elem(self.descriptor, key, value):
            code = ctypes.get_errno()
            if code == errno.ENOENT:
                return None
            raise _fail(code, f"map {self.name}: lookup")
        return value.raw

    def delete(self, key: bytes) -> bool:
        """Delete an entry. Return False if there was nothing to delete. Raises EbpfError."""
        if _library().bpf_map_delete_elem(self.descriptor, key):
            code = ctypes.get_errno()
            if code == errno.ENOENT:
                return False
            raise _fail(code, f"map {self.name}: delete")
        return True

    def keys(self) -> list[bytes]:
        keys: list[bytes] = []
        key: bytes | None = None
        while True:
            following = ctypes.create_string_buffer(self.key_size)
            if _library().bpf_map_get_next_key(self.descriptor, key, following):
                code = ctypes.get_errno()
                if code == errno.ENOENT:
                    return keys
                raise _fail(code, f"map {self.name}: next key")
            key = following.raw
            keys.append(key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        for key in self.keys():
            value = self.lookup(key)
            if value is not None:
                yield key, value

    def close(self) -> None:
        os.close(self.descriptor)


def load(
    object_file: Path,
    programs: Iterable[str],
    sizes: Mapping[str, tuple[int, int]],
    entries: Mapping[str, int],
    shared: Mapping[str, int] | None = None,
) -> tuple[dict[str, int], dict[str, Map]]:
    """Load some programs of an object. Return their descriptors and the maps, all owned by the caller.

    ``sizes``: key and value size in bytes of each map to return. ``entries``: capacity to give a map instead
    of that in the source. ``shared``: descriptor of an existing map to use instead of a new map. Raises
    EbpfError.
    """
    lib = _library()
    _messages.clear()
    handle = lib.bpf_object__open_file(_path(object_file), None)
    if not handle:
        raise _fail(ctypes.get_errno(), f"{object_file.name}: open")
    obj = ctypes.c_void_p(handle)

    def map_named(name: str) -> ctypes.c_void_p:
        pointer = lib.bpf_object__find_map_by_name(obj, name.encode())
        if not pointer:
            raise _fail(errno.ENOENT, f"{object_file.name}: map {name}")
        return ctypes.c_void_p(pointer)

    try:
        for name, capacity in entries.items():
            if code := lib.bpf_map__set_max_entries(
                map_named(name), ctypes.c_uint32(capacity)
            ):
                raise _fail(code, f"{object_file.name}: map {name}: size")
        for name, descriptor in (shared or {}).items():
            if code := lib.bpf_map__reuse_fd(map_named(name), descriptor):
                raise _fail(code, f"{object_file.name}: map {name}: share")
        pointers = {}
        for name in programs:
            pointer = lib.bpf_object__find_program_by_name(obj, name.encode())
            if not pointer:
                raise _fail(errno.ENOENT, f"{object_file.name}: program {name}")
            pointers[name] = ctypes.c_void_p(pointer)
        pointer = lib.bpf_object__next_program(obj, None)
        while pointer:
            candidate = ctypes.c_void_p(pointer)
            # Addresses tell which: the wrappers are new objects at each call.
            chosen = any(
                candidate.value == program.value for program in pointers.values()
            )
            lib.bpf_program__set_autoload(candidate, ctypes.c_bool(chosen))
            pointer = lib.bpf_object__next_program(obj, candidate)
        if code := lib.bpf_object__load(obj):
            raise _fail(code, f"{object_file.name}: load")
        # Duplicates, because closing the object closes its own descriptors.
        maps = {
            name: Map(name, os.dup(lib.bpf_map__fd(map_named(name))), *sizes[name])
            for name in sizes
        }
        loaded = {
            name: os.dup(lib.bpf_program__fd(program))
            for name, program in pointers.items()
        }
        return loaded, maps
    finally:
        lib.bpf_object__close(obj)


def create_map(name: str, key_size: int, value_size: int, capacity: int) -> Map:
    """Create a hash map whose elements are replaced as a whole, and return it, owned by the caller. Raises
    EbpfError."""
    options = _MapOptions(sz=ctypes.sizeof(_MapOptions), map_flags=_F_NO_PREALLOC)
    descriptor = _library().bpf_map_create(
        _MAP_TYPE_HASH,
        name.encode(),
        key_size,
        value_size,
        capacity,
        ctypes.byref(options),
    )
    if descriptor < 0:
        raise _fail(ctypes.get_errno(), f"map {name}: create")
    return Map(name, int(descriptor), key_size, value_size)


def pin(descriptor: int, path: Path) -> None:
    if _library().bpf_obj_pin(descriptor, _path(path)):
        raise _fail(ctypes.get_errno(), f"{path}: pin")


def open_pinned(path: Path) -> int:
    """Return a descriptor of a pinned map or program, owned by the caller. Raises EbpfError."""
    descriptor = _library().bpf_obj_get(_path(path))
    if descriptor < 0:
        raise _fail(ctypes.get_errno(), f"{path}: open")
    return int(descriptor)


def program_id(descriptor: int) -> int:
    info = _ProgInfoHead()
    size = ctypes.c_uint32(ctypes.sizeof(info))
    if _library().bpf_obj_get_info_by_fd(
        descriptor, ctypes.byref(info), ctypes.byref(size)
    ):
        raise _fail(ctypes.get_errno(), "program information")
    return int(info.id)


def attach_ingress(ifindex: int, descriptor: int) -> bool:
    """Make the program the ingress filter of an interface in the thread's network namespace.

    Return False if it was so already, and then change nothing. Raises EbpfError.
    """
    return _attach(ifindex, _TC_INGRESS, descriptor)


def attach_egress(ifindex: int, descriptor: int) -> bool:
    """Make the program the egress filter of an interface in the thread's network namespace.

    Return False if it was so already, and then change nothing. Raises EbpfError.
    """
    return _attach(ifindex, _TC_EGRESS, descriptor)


def _attach(ifindex: int, where: int, descriptor: int) -> bool:
    lib = _library()
    _messages.clear()
    hook = _TcHook(ctypes.sizeof(_TcHook), ifindex, where, 0)
    options = _TcOptions(
        sz=ctypes.sizeof(_TcOptions), handle=_FILTER_HANDLE, priority=_FILTER_PRIORITY
    )
    attached = lib.bpf_tc_query(ctypes.byref(hook), ctypes.byref(options)) == 0
    if attached and options.prog_id == program_id(descriptor):
        return False
    code = lib.bpf_tc_hook_create(ctypes.byref(hook))
    if code and code != -errno.EEXIST:
        raise _fail(code, f"interface {ifindex}: clsact")
    options = _TcOptions(
        sz=ctypes.sizeof(_TcOptions),
        prog_fd=descriptor,
        flags=_TC_REPLACE,
        handle=_FILTER_HANDLE,
        priority=_FILTER_PRIORITY,
    )
    if code := lib.bpf_tc_attach(ctypes.byref(hook), ctypes.byref(options)):
        raise _fail(code, f"interface {ifindex}: attach")
    _messages.clear()
    return True


def detach_egress(ifindex: int) -> None:
    """Take our filter away from what an interface sends; it must be there."""
    _messages.clear()
    hook = _TcHook(ctypes.sizeof(_TcHook), ifindex, _TC_EGRESS, 0)
    options = _TcOptions(
        sz=ctypes.sizeof(_TcOptions), handle=_FILTER_HANDLE, priority=_FILTER_PRIORITY
    )
    if code := _library().bpf_tc_detach(ctypes.byref(hook), ctypes.byref(options)):
        raise _fail(code, f"interface {ifindex}: detach")
    _messages.clear()


def attach_xdp(ifindex: int, descriptor: int | None) -> None:
    """Makes the program what an interface of the thread's network namespace runs first on what it receives,
    in generic mode, which every interface has; None: no program."""
    _messages.clear()
    program = ctypes.c_int(-1 if descriptor is None else descriptor)
    if code := _library().bpf_xdp_attach(
        ifindex, program, ctypes.c_uint32(_XDP_GENERIC), None
    ):
        raise _fail(code, f"interface {ifindex}: XDP")
    _messages.clear()


class _Statfs(ctypes.Structure):
    _fields_ = (("type", ctypes.c_long), ("rest", ctypes.c_char * 248))


def ensure_bpffs(path: Path = BPFFS) -> None:
    """Mounts the BPF file system where maps are pinned, unless it is there."""
    status = _Statfs()
    if ctypes.CDLL(None, use_errno=True).statfs(_path(path), ctypes.byref(status)):
        raise _fail(ctypes.get_errno(), f"{path}")
    if status.type & 0xFFFFFFFF == _BPFFS_MAGIC:
        return
    result = subprocess.run(
        ["mount", "-t", "bpf", "bpf", str(path)],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    if result.returncode:
        raise EbpfError(
            errno.EIO, f"{path}: cannot mount bpffs: {result.stderr.strip()}"
        )
