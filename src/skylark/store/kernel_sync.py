"""Asynchronous disk syncs by the Linux kernel, without a thread.

A thread that syncs a file needs the interpreter before and after the call. Each time the busy owner
of a store is suspended and resumed, which takes as long as the sync of a fast disk. Linux can sync
in the background instead (``IOCB_CMD_FDSYNC`` of its asynchronous I/O): one system call starts it,
and a descriptor that an event loop can watch becomes readable when it is done::

    owner                                     kernel
      submit(fd, done) ---- io_submit ----->    fdatasync
      ...                                       ...
      loop: fileno() is readable <---eventfd--- done
      reap() ------------- io_getevents ---->
        done(None or OSError)

:func:`open_kernel_syncs` returns None where this is not possible: on systems other than Linux, on
processors whose call numbers are not listed here, and on kernels or sandboxes without these calls.
Then a thread syncs. A file system without support refuses the submission with EINVAL.

If the kernel does not report its syncs (``io_getevents`` fails, as under a sandbox installed
later), all waiting callers get an error, because their sync may have failed, and nothing more is
submitted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import platform
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

logger = logging.getLogger(__name__)

Done: TypeAlias = Callable[[OSError | None], None]

IN_FLIGHT_MAX: Final = 16
_FDSYNC: Final = 3  # IOCB_CMD_FDSYNC
_NOTIFY: Final = 1  # IOCB_FLAG_RESFD
# struct iocb: data, key, rw_flags, opcode, priority, descriptor, buf, nbytes, offset, reserved,
# flags, eventfd. struct io_event: data, iocb, result, result2.
_IOCB: Final = struct.Struct("<QIIHhIQQqQII")
_EVENT: Final = struct.Struct("<QQqq")
# Made once: making arguments takes longer than the calls.
_NONE, _ONE, _MANY = map(ctypes.c_long, (0, 1, IN_FLIGHT_MAX))
_AT_ONCE: Final = ctypes.create_string_buffer(16)  # struct timespec: no time to wait


class _Numbers(NamedTuple):
    setup: int
    destroy: int
    get_events: int
    submit: int


_CALL_NUMBERS: Final[Mapping[str, _Numbers]] = {
    "x86_64": _Numbers(206, 207, 208, 209),
    "aarch64": _Numbers(0, 1, 4, 2),
}


class KernelSyncs:
    """Syncs running in the kernel. ``submit`` and ``reap`` must not run at the same time."""

    def __init__(self, syscall: Callable[..., int], numbers: _Numbers) -> None:
        """Raises OSError if the kernel refuses."""
        self._syscall = syscall
        self._numbers = numbers
        self._context = ctypes.c_ulong()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._call(numbers.setup, ctypes.c_uint(IN_FLIGHT_MAX), ctypes.byref(self._context))
        except OSError:
            os.close(self._eventfd)
            raise
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        self._events = ctypes.create_string_buffer(IN_FLIGHT_MAX * _EVENT.size)
        self._waiting: dict[int, Done] = {}
        self._next = 0
        self._closed = False
        self._broken: OSError | None = None  # why results are no longer available

    def fileno(self) -> int:
        """Descriptor that is readable when a sync is done."""
        return self._eventfd

    @property
    def is_busy(self) -> bool:
        """Whether a sync is running."""
        return bool(self._waiting)

    def submit(self, fd: int, done: Done) -> None:
        """Start a sync of what was written to the file; :meth:`reap` calls ``done``.

        The file may be closed meanwhile. Raises OSError if the sync was not started.
        """
        if self._broken is not None:
            raise self._broken
        token = self._next
        self._next += 1
        _IOCB.pack_into(
            self._iocb, 0, token, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, _NOTIFY, self._eventfd
        )
        self._call(self._numbers.submit, self._context, _ONE, self._iocbs)
        self._waiting[token] = done

    def reap(self, *, wait: bool = False) -> None:
        """Call ``done`` of finished syncs; with ``wait``, block until at least one has finished."""
        try:
            count = self._events_ready(wait)
        except Exception as error:  # noqa: BLE001 - reported to all who wait
            self._fail_all(error if isinstance(error, OSError) else OSError(repr(error)))
            return
        for index in range(count):
            token, _, result, _ = _EVENT.unpack_from(self._events, index * _EVENT.size)
            done = self._waiting.pop(token)
            done(None if result == 0 else OSError(-result, os.strerror(-result)))

    def _events_ready(self, wait: bool) -> int:
        # Read even if no sync is running: otherwise the event loop would spin.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        if not self._waiting:
            return 0
        return self._call(
            self._numbers.get_events,
            self._context,
            _ONE if wait else _NONE,
            _MANY,
            self._events,
            None if wait else _AT_ONCE,
        )

    def _fail_all(self, error: OSError) -> None:
        """Report a failure to all waiting callers: the outcome of their syncs is unknown."""
        self._broken = error
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(error)

    def close(self) -> None:
        """Wait for running syncs without reporting them. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self._call(self._numbers.destroy, self._context)
            os.close(self._eventfd)

    def _call(self, number: int, *arguments: Any) -> int:
        while True:
            result = self._syscall(ctypes.c_long(number), *arguments)
            if result >= 0:
                return result
            error = ctypes.get_errno()
            if error != errno.EINTR:
                raise OSError(error, os.strerror(error))


def open_kernel_syncs() -> KernelSyncs | None:
    """None where the kernel cannot sync in the background."""
    numbers = _CALL_NUMBERS.get(platform.machine())
    if sys.platform != "linux" or numbers is None or sys.byteorder != "little":
        return None
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        syscall.restype = ctypes.c_long
        return KernelSyncs(syscall, numbers)
    except (OSError, AttributeError) as error:
        logger.debug("the kernel cannot sync in the background: %s", error)
        return None
