"""A file system in memory that fills up, fails, hangs and loses power, by seed.

:class:`FaultyFileSystem` implements the contract of :mod:`skylark.store.file_system` in the least
favourable way. Writes are visible at once and durable only after ``sync``; names are durable only
after ``sync_directory`` (the model is in :mod:`skylark.testing.memory_disk`)::

    disk = FaultyFileSystem(FaultPlan(seed))
    store = MessageStore(config, files=disk)
    ...
    disk = disk.power_loss()                     # a new machine with what survived
    store = MessageStore(config, files=disk)     # what was acknowledged must be there

``kill`` is the gentler crash: the process dies, the page cache stays. After either, the old object
is dead: its handles and hanging calls fail, and late writes to its buffers change nothing.

Fault points and what they can do (:class:`skylark.testing.fault_plan.FaultAction`):

=======================  ==========================================================================
files.sync               ERROR (the kernel forgets the dirty pages), HANG at a gate, DROP (the drive
                         lies: success, but nothing is durable)
files.sync_directory     ERROR, HANG, DROP
files.allocate, .create, .open, .read, .rename, .remove, .list, .lock
                         ERROR, HANG
files.write              ERROR (leaves half of the content), HANG
=======================  ==========================================================================

CUT at any of them stops the machine at this very operation, before its effect: it and everything
after it fail, and the state is frozen for ``power_loss`` or ``kill``. ``plan.at("files.*", nth=n,
action=FaultAction.CUT)`` for n = 1, 2, 3... stops at every line that touches the disk.

Writing to a mapped page that was never allocated raises
:class:`~skylark.testing.memory_disk.UnallocatedWriteError` at the next sync, close or crash.

Files live in memory: use small ones. Windows in time between operations are the plan's business;
what the kernel writes back early by itself is drawn at each sync (``write_back_probability``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from skylark.store.errors import (
    StoreFileBusyError,
    StoreFileClosedError,
    StoreFileError,
    StoreLockedError,
    StoreSyncError,
    store_file_error,
)
from skylark.store.file_system import (
    PAGE_SIZE,
    READ_FILE_SIZE_MAX,
    Advice,
    DirectoryEntry,
    DiskUsage,
    FileHandle,
    FileLock,
    FileSystem,
)
from skylark.testing.fault_plan import FaultAction, FaultPlan, Gate
from skylark.testing.memory_disk import (
    DirectoryNode,
    FileNode,
    Node,
    Odds,
    UnallocatedWriteError,
    obstacle,
    page_count,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LOCK_TEXT = b"lock"


class FaultyFile:
    """A :class:`~skylark.store.file_system.FileHandle` over a :class:`FileNode`."""

    def __init__(
        self, disk: FaultyFileSystem, path: Path, node: FileNode, *, writable: bool
    ) -> None:
        self._disk = disk
        self.path = path
        self._node = node
        self.size = len(node.content)
        self._writable = writable
        self._exporter: NDArray[np.uint8] | None = None  # every view of this handle refers to it
        self._view: memoryview | None = None
        self._allocated: tuple[int, int] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<FaultyFile {self.path} size={self.size}{' closed' if self._closed else ''}>"

    @property
    def buffer(self) -> memoryview:
        return self._map_now() if self._view is None else self._view

    @property
    def allocated_until(self) -> int:
        return 0 if self._allocated is None else self._allocated[1]

    def allocate(self, offset: int, length: int) -> None:
        action = f"allocate {length} bytes"
        self._check_range(offset, length)
        self._disk.visit("files.allocate", action, self.path)
        with self._disk.state_lock:
            self._check_usable(action, writes=True)
            start, end = self._allocated or (offset, offset)
            start, end = min(start, offset), max(end, offset + length)
            self._disk.take_blocks(self._node, start, end, action, self.path)
            self._allocated = (start, end)

    def sync(self) -> None:
        with self._disk.state_lock:
            self._check_usable("sync")
            self._check_holes()
            snapshot = bytes(self._node.content)  # what is written from here on is not covered
            self._disk.write_back_by_chance()
        try:
            fault = self._disk.visit("files.sync", "sync", self.path, StoreSyncError)
        except StoreSyncError:
            with self._disk.state_lock:
                self._node.fail_sync(snapshot)
            raise
        if fault is not FaultAction.DROP:
            with self._disk.state_lock:
                self._disk.check_alive(self.path)
                self._node.sync(snapshot)

    def descriptor(self) -> None:
        return None

    def mark_dirty(self, offset: int, length: int) -> None:
        self._check_range(offset, length)
        with self._disk.state_lock:
            self._check_usable("mark as dirty", writes=True)
            self._node.mark_dirty(offset, offset + length)

    def zero(self, offset: int, length: int) -> None:
        self._check_range(offset, length)
        with self._disk.state_lock:
            self._check_usable(f"clear {length} bytes", writes=True)
            self._node.zero(offset, offset + length)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        action = f"write {len(data)} bytes"
        self._check_range(offset, len(data))
        self._check_usable(action, writes=True)
        written = len(data) // 2
        try:
            self._disk.visit("files.write", action, self.path)
            written = len(data)
        finally:
            with self._disk.state_lock:
                if self._disk.alive:
                    self._disk.take_blocks(self._node, offset, offset + written, action, self.path)
                    self._node.write(offset, data[:written])

    def read_into(self, offset: int, buffer: memoryview | bytearray) -> int:
        content = self.read(offset, len(buffer))
        memoryview(buffer)[: len(content)] = content
        return len(content)

    def read(self, offset: int, length: int) -> bytes:
        self._disk.visit("files.read", "read", self.path)
        self._check_usable("read")
        return bytes(self._node.content[offset : offset + length])

    def advise(self, advice: Advice, offset: int = 0, length: int | None = None) -> bool:
        del advice  # nothing to be quicker or slower here
        self._check_range(offset, self.size - offset if length is None else length)
        self._check_usable("advise")
        return True

    def lock_memory(self, offset: int, length: int) -> bool:
        self._check_range(offset, length)
        self._check_usable("lock memory")
        return self._writable

    def unlock_memory(self, offset: int, length: int) -> bool:
        return self.lock_memory(offset, length)

    def close(self) -> None:
        with self._disk.state_lock:
            if self._closed:
                return
            if self._exporter is not None:
                self._unmap()
            self._closed = True
            if self._disk.alive:
                self._check_holes()

    def _check_holes(self) -> None:
        try:
            self._node.check_holes()
        except UnallocatedWriteError as error:
            raise UnallocatedWriteError(f"{self.path}: {error}") from None

    def _check_range(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ValueError(
                f"{self.path}: range {offset}+{length} is not within {self.size} bytes"
            )

    def _check_usable(self, action: str, *, writes: bool = False) -> None:
        self._disk.check_alive(self.path)
        if self._closed:
            raise StoreFileClosedError("the file was closed", path=self.path)
        if writes and not self._writable:
            raise _refusal(errno.EBADF, action, self.path)

    def _map_now(self) -> memoryview:
        import numpy as np

        with self._disk.state_lock:
            self._check_usable("map")
            if self.size == 0:
                raise StoreFileError("a file of length 0 cannot be mapped", path=self.path)
            # An array of its own for each handle: it lives exactly as long as a view of it does.
            self._exporter = np.frombuffer(self._node.content, np.uint8)
            self._node.mapped_count += 1
            self._view = self._new_view(self._exporter)
            return self._view

    def _new_view(self, exporter: NDArray[np.uint8]) -> memoryview:
        return exporter.data if self._writable else exporter.data.toreadonly()

    def _unmap(self) -> None:
        assert self._exporter is not None
        assert self._view is not None
        remains = weakref.ref(self._exporter)
        with contextlib.suppress(BufferError):  # an array made straight from the view
            self._view.release()
        self._view = self._exporter = None
        exporter = remains()
        if exporter is not None:
            self._exporter, self._view = exporter, self._new_view(exporter)
            raise StoreFileBusyError("memory views of the file are still in use", path=self.path)
        self._node.mapped_count -= 1


class FaultyFileLock:
    """Ownership of a directory on one :class:`FaultyFileSystem`."""

    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path
        self._released = False
        held.add(path)

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._held.discard(self._path)


class FaultyFileSystem(FileSystem):
    """A machine's disk. Paths are absolute or relative to its root; only the root exists."""

    def __init__(
        self,
        plan: FaultPlan | None = None,
        *,
        capacity: int = 1 << 30,
        write_back_probability: float = 0.1,
    ) -> None:
        self.plan = plan or FaultPlan(0)
        self.capacity = capacity  # bytes; lower or raise it at any time
        self.alive = True
        self._write_back_probability = write_back_probability
        self._root = DirectoryNode()
        self._locks: set[Path] = set()
        self._gates: list[Gate] = []
        self.state_lock = threading.RLock()

    # Crashes

    def power_loss(self) -> FaultyFileSystem:
        """Stop, and return a machine with what the disk really holds; drawn by the plan's seed."""
        self.stop()
        stream = self.plan.stream("files.power_loss")
        odds = Odds.draw(stream)
        self.plan.note("files.power_loss", FaultAction.CUT, str(odds))
        return self._successor(self._root.survive(odds, stream))

    def kill(self) -> FaultyFileSystem:
        """Stop, and return the machine as the next process finds it: nothing written is lost."""
        self.stop()
        return self._successor(self._root.copy())

    def stop(self) -> None:
        """Freeze the disk as it is now; every operation from here on fails."""
        with self.state_lock:
            if not self.alive:
                return
            self.alive = False
            files = self._root.files(removed=True)
            for node in files:
                node.content = bytearray(node.content)  # views of the dead write elsewhere
            for gate in self._gates:
                gate.open()
        for node in files:
            node.check_holes()

    def _successor(self, root: DirectoryNode) -> FaultyFileSystem:
        disk = FaultyFileSystem(
            self.plan, capacity=self.capacity, write_back_probability=self._write_back_probability
        )
        disk._root = root
        return disk

    # Exchange with real directories

    def install(self, path: Path, content: bytes, *, sparse: bool = False) -> None:
        """Put a durable file here, as if it had always been; ``sparse``: zero pages are holes."""
        node = FileNode.synced(content)
        if sparse:
            for page in range(len(node.blocks)):
                node.blocks[page] = any(content[page * PAGE_SIZE : (page + 1) * PAGE_SIZE])
            node.durable_blocks = bytes(node.blocks)
        directory = self._root
        for name in _parts(path.parent):
            child = directory.entries.setdefault(name, DirectoryNode())
            directory.durable[name] = child
            if isinstance(child, FileNode):
                raise _refusal(errno.ENOTDIR, "install", path)
            directory = child
        directory.entries[path.name] = directory.durable[path.name] = node

    def copy_in(self, source: Path, target: Path) -> None:
        """Copy a real directory tree to ``target``, durable."""
        for file in sorted(source.rglob("*")):
            if file.is_file():
                self.install(target / file.relative_to(source), file.read_bytes(), sparse=True)

    def copy_out(self, source: Path, target: Path) -> None:
        """Copy the tree at ``source``, as processes see it, into a real directory."""
        target.mkdir(parents=True, exist_ok=True)
        for name, node in self._directory(source, "copy").entries.items():
            if isinstance(node, FileNode):
                (target / name).write_bytes(node.content)
            else:
                self.copy_out(source / name, target / name)

    # What handles ask of their disk

    def check_alive(self, path: Path) -> None:
        if not self.alive:
            raise StoreFileClosedError("the machine has stopped", path=path)

    def visit(
        self, point: str, action: str, path: Path, kind: type[StoreFileError] | None = None
    ) -> FaultAction:
        """Let the plan strike: raises for ERROR and CUT, blocks for HANG, returns the action."""
        self.check_alive(path)
        fault = self.plan.draw(point, str(path))
        if fault.action is FaultAction.NONE:
            return fault.action
        self.plan.hit(point, fault.action)
        if fault.action is FaultAction.CUT:
            self.stop()
        elif fault.action is FaultAction.ERROR:
            raise _refusal(fault.error, action, path, kind)
        elif fault.gate is not None:
            with self.state_lock:
                self.check_alive(path)
                self._gates.append(fault.gate)
            fault.gate.pass_through()
        elif fault.action is not FaultAction.DROP or not point.startswith("files.sync"):
            raise ValueError(f"{point} knows nothing of {fault}")
        self.check_alive(path)
        return fault.action

    def take_blocks(self, node: FileNode, start: int, end: int, action: str, path: Path) -> None:
        self._check_room(node.missing_blocks(start, end), action, path)
        node.add_blocks(start, end)

    def write_back_by_chance(self) -> None:
        stream = self.plan.stream("files.write_back")
        if stream.random() < self._write_back_probability:
            for node in self._root.files(removed=True):
                node.write_back(stream)

    # FileSystem

    def create_file(self, path: Path, size: int) -> FileHandle:
        action = f"create a file of {size} bytes"
        self.visit("files.create", action, path)
        with self.state_lock:
            directory = self._parent(path, action)
            if path.name in directory.entries:
                raise _refusal(errno.EEXIST, action, path)
            node = FileNode(size)
            directory.change(node, added=path.name)
        return FaultyFile(self, path, node, writable=True)

    def open_file(self, path: Path, *, writable: bool = True) -> FileHandle:
        self.visit("files.open", "open", path)
        with self.state_lock:
            return FaultyFile(self, path, self._file(path, "open"), writable=writable)

    def read_file(self, path: Path, *, size_max: int = READ_FILE_SIZE_MAX) -> bytes:
        self.visit("files.read", "read", path)
        with self.state_lock:
            content = bytes(self._file(path, "read").content)
        if len(content) > size_max:
            raise StoreFileError(f"longer than the limit of {size_max} bytes", path=path)
        return content

    def write_file(self, path: Path, content: bytes) -> None:
        action = f"write {len(content)} bytes"
        with self.state_lock:
            self.check_alive(path)
            node = self._find(path)
            if node is None:
                node = FileNode()
                self._parent(path, action).change(node, added=path.name)
            elif isinstance(node, DirectoryNode):
                raise _refusal(errno.EISDIR, action, path)
            _check_unmapped(node, path)
            node.replace(b"")
        try:
            self.visit("files.write", action, path)
        except StoreFileError:
            with self.state_lock:
                if self.alive:
                    node.replace(content[: len(content) // 2])
            raise
        with self.state_lock:
            self._check_room(page_count(len(content)), action, path)
            node.replace(content)
        FaultyFile(self, path, node, writable=True).sync()

    def rename(self, source: Path, target: Path) -> None:
        if source.parent != target.parent:
            raise ValueError(f"{source} and {target} are not in one directory")
        action = f"rename to {target.name}"
        self.visit("files.rename", action, source)
        with self.state_lock:
            node = self._existing(source, action)
            number = obstacle(node, self._find(target))
            if number:
                raise _refusal(number, action, source)
            self._parent(source, action).change(node, removed=source.name, added=target.name)

    def remove(self, path: Path) -> None:
        self.visit("files.remove", "remove", path)
        with self.state_lock:
            self._parent(path, "remove").change(self._file(path, "remove"), removed=path.name)

    def truncate(self, path: Path, size: int) -> None:
        action = f"truncate to {size} bytes"
        self.visit("files.write", action, path)
        with self.state_lock:
            node = self._file(path, action)
            _check_unmapped(node, path)
            node.resize(size)

    def exists(self, path: Path) -> bool:
        self.check_alive(path)
        return self._find(path) is not None

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        self.visit("files.list", "list", path)
        with self.state_lock:
            return [
                DirectoryEntry(name, True, 0)
                if isinstance(node, DirectoryNode)
                else DirectoryEntry(name, False, len(node.content))
                for name, node in sorted(self._directory(path, "list").entries.items())
            ]

    def create_directory(self, path: Path) -> None:
        action = "create the directory"
        self.visit("files.create", action, path)
        with self.state_lock:
            if self._find(path) is not None:
                raise _refusal(errno.EEXIST, action, path)
            self._parent(path, action).change(DirectoryNode(), added=path.name)

    def remove_directory(self, path: Path) -> None:
        action = "remove the directory"
        self.visit("files.remove", action, path)
        with self.state_lock:
            directory = self._directory(path, action)
            if directory.entries:
                raise _refusal(errno.ENOTEMPTY, action, path)
            self._parent(path, action).change(directory, removed=path.name)

    def sync_directory(self, path: Path) -> None:
        action = "sync the directory"
        fault = self.visit("files.sync_directory", action, path, StoreSyncError)
        with self.state_lock:
            directory = self._directory(path, action, StoreSyncError)
            if fault is not FaultAction.DROP:
                directory.sync()

    def disk_usage(self, path: Path) -> DiskUsage:
        self.check_alive(path)
        self._existing(path, "ask for free space")
        free = max(0, self.capacity - self._used())
        return DiskUsage(self.capacity, free, free)

    def lock(self, path: Path) -> FileLock:
        self.visit("files.lock", "lock", path)
        with self.state_lock:
            if path in self._locks:
                raise StoreLockedError(
                    "this process has the store open",
                    path=path,
                    hint="use another storePathRootDir or stop the other broker",
                )
            lock = FaultyFileLock(self._locks, path)
        try:
            self.write_file(path, LOCK_TEXT)
        except StoreFileError:
            lock.release()
            raise
        return lock

    # Names

    def _used(self) -> int:
        return sum(node.blocks.count(1) for node in self._root.files()) * PAGE_SIZE

    def _check_room(self, pages: int, action: str, path: Path) -> None:
        if pages * PAGE_SIZE > self.capacity - self._used():
            raise _refusal(errno.ENOSPC, action, path)

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self._root
        for name in _parts(path):
            if not isinstance(node, DirectoryNode):
                return None
            node = node.entries.get(name)
        return node

    def _existing(self, path: Path, action: str, kind: type[StoreFileError] | None = None) -> Node:
        node = self._find(path)
        if node is None:
            below_file = any(isinstance(self._find(parent), FileNode) for parent in path.parents)
            number = errno.ENOTDIR if below_file else errno.ENOENT
            raise _refusal(number, action, path, kind)
        return node

    def _file(self, path: Path, action: str) -> FileNode:
        node = self._existing(path, action)
        if isinstance(node, DirectoryNode):
            raise _refusal(errno.EISDIR, action, path)
        return node

    def _directory(
        self, path: Path, action: str, kind: type[StoreFileError] | None = None
    ) -> DirectoryNode:
        node = self._existing(path, action, kind)
        if isinstance(node, FileNode):
            raise _refusal(errno.ENOTDIR, action, path, kind)
        return node

    def _parent(self, path: Path, action: str) -> DirectoryNode:
        return self._directory(path.parent, action)


def _parts(path: Path) -> tuple[str, ...]:
    return path.parts[1:] if path.is_absolute() else path.parts


def _check_unmapped(node: FileNode, path: Path) -> None:
    if node.mapped_count:
        raise StoreFileBusyError("the file is mapped", path=path)


def _refusal(
    number: int, action: str, path: Path, kind: type[StoreFileError] | None = None
) -> StoreFileError:
    return store_file_error(action, path, OSError(number, os.strerror(number)), kind=kind)
