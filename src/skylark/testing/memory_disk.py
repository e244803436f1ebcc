"""A disk in memory that knows what was synced, and what a power loss may leave of the rest.

Every file has two images: ``content``, which the process sees, and ``durable``, which the platters
hold. Directories likewise have the entries that the process sees and those that are durable, and
between them the list of name changes not yet synced. A power loss computes a third state from the
two, within the limits of what real file systems do:

* bytes: each 4 KiB page that differs is old, new, or torn into a mixture of old and new 512-byte
  sectors. Pages are independent: a later page may survive where an earlier one did not.
* length: the synced one or the current one.
* names: creates, renames and removes survive either in order up to some point (a journal) or each
  by itself (no journal). A rename is atomic: it never leaves both names, nor neither.
* blocks: only those synced count as allocated afterwards.

How much survives is drawn per power loss (:class:`Odds`): runs in which everything is lost and runs
in which almost everything survives both find bugs that the middle does not.

A failed sync is modelled as Linux does it: the pages count as clean, so a later sync succeeds
without writing them, unless they changed or were marked dirty again.
"""

from __future__ import annotations

import errno
import random
from typing import NamedTuple, TypeAlias

from skylark.store.file_system import PAGE_SIZE

SECTOR_SIZE = 512
SECTORS_PER_PAGE = PAGE_SIZE // SECTOR_SIZE


class Odds(NamedTuple):
    """How kind one power loss is."""

    kept: float  # share of changed pages that survive whole
    torn: float  # share of the others that survive in part
    named: float  # share of unsynced name changes that survive
    journal: bool  # names survive in order up to a point

    @classmethod
    def draw(cls, stream: random.Random) -> Odds:
        shares = (0.0, 0.1, 0.5, 0.9, 1.0)
        return cls(
            kept=stream.choice(shares),
            torn=stream.choice(shares),
            named=stream.choice(shares),
            journal=stream.random() < 0.5,
        )


def page_count(length: int) -> int:
    return -(-length // PAGE_SIZE)


class UnallocatedWriteError(AssertionError):
    """The code under test wrote to a mapped page without a block: SIGBUS on a full disk."""


class FileNode:
    """The bytes of one file, independent of its names."""

    def __init__(self, size: int = 0) -> None:
        self.content = bytearray(size)
        self.durable = b""
        self.blocks = bytearray(page_count(size))  # per page: 1 if it has a block
        self.durable_blocks = b""
        self.mapped_count = 0
        self._clean: dict[int, bytes] = {}  # page -> content at the sync that failed to write it

    @classmethod
    def synced(cls, content: bytes, blocks: bytes | None = None) -> FileNode:
        """A file as a machine that just started finds it."""
        node = cls()
        node.content = bytearray(content)
        node.durable = content
        node.blocks = bytearray(blocks or b"\1" * page_count(len(content)))
        node.durable_blocks = bytes(node.blocks)
        return node

    def copy(self) -> FileNode:
        """The same state, unsynced part included, for a process that starts after a crash."""
        node = FileNode()
        node.content = bytearray(self.content)
        node.durable = self.durable
        node.blocks = bytearray(self.blocks)
        node.durable_blocks = self.durable_blocks
        node._clean = dict(self._clean)
        return node

    def resize(self, size: int) -> None:
        """Truncate, or extend by a hole; the caller has made sure that it is not mapped."""
        if size < len(self.content):
            del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))
        self.blocks = self.blocks[: page_count(size)].ljust(page_count(size), b"\0")

    def replace(self, content: bytes) -> None:
        """Overwrite everything, as a write to a truncated file does."""
        self.content = bytearray(content)
        self.blocks = bytearray(b"\1" * page_count(len(content)))

    def missing_blocks(self, start: int, end: int) -> int:
        """How many pages of the range have no block yet."""
        return self.blocks.count(0, start // PAGE_SIZE, page_count(end))

    def add_blocks(self, start: int, end: int) -> None:
        first, last = start // PAGE_SIZE, page_count(end)
        self.blocks[first:last] = b"\1" * (last - first)

    def write(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """Overwrite a part that has blocks; its pages are dirty even if the bytes are the same."""
        self.content[start : start + len(data)] = data
        self.mark_dirty(start, start + len(data))

    def zero(self, start: int, end: int) -> None:
        """Clear what has blocks; a hole is zero already."""
        for first, last in self._block_runs(1):
            low, high = max(start, first * PAGE_SIZE), min(end, last * PAGE_SIZE)
            if low < high:
                self.content[low:high] = bytes(high - low)

    def check_holes(self) -> None:
        for first, last in self._block_runs(0):
            low, high = first * PAGE_SIZE, min(last * PAGE_SIZE, len(self.content))
            if self.content[low:high] != bytes(high - low):
                raise UnallocatedWriteError(f"bytes were written to the hole at {low}..{high}")

    def sync(self, snapshot: bytes) -> None:
        """Make ``snapshot`` durable but for the pages that an earlier failed sync left clean."""
        if self._clean:
            merged = bytearray(snapshot)
            for page, then in list(self._clean.items()):
                start, end = page * PAGE_SIZE, min((page + 1) * PAGE_SIZE, len(snapshot))
                if snapshot[start:end] == then:
                    merged[start:end] = self.durable[start:end].ljust(end - start, b"\0")
                else:
                    del self._clean[page]
            snapshot = bytes(merged)
        self.durable = snapshot
        self.durable_blocks = bytes(self.blocks)

    def fail_sync(self, snapshot: bytes) -> None:
        """Count the pages that ``snapshot`` should have written as clean."""
        old = self.durable.ljust(len(snapshot), b"\0")
        for page in changed_pages(old[: len(snapshot)], snapshot):
            self._clean[page] = snapshot[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]

    def mark_dirty(self, start: int, end: int) -> None:
        for page in range(start // PAGE_SIZE, page_count(end)):
            self._clean.pop(page, None)

    def write_back(self, stream: random.Random) -> None:
        """Let the kernel write some changed pages early, as it may at any time."""
        old = bytearray(self.durable.ljust(len(self.content), b"\0"))
        blocks = bytearray(self.durable_blocks)
        for page in changed_pages(bytes(old[: len(self.content)]), bytes(self.content)):
            if page not in self._clean and stream.random() < 0.5:
                start, end = page * PAGE_SIZE, min((page + 1) * PAGE_SIZE, len(self.content))
                old[start:end] = self.content[start:end]
                blocks[page : page + 1] = b"\1"[: len(blocks) - page]
        self.durable = bytes(old[: len(self.durable)])  # the length waits for its sync
        self.durable_blocks = bytes(blocks)

    def survive(self, odds: Odds, stream: random.Random) -> FileNode:
        """What a power loss leaves of the file."""
        lengths = {len(self.durable), len(self.content)}
        length = stream.choice(sorted(lengths))
        old = self.durable[:length].ljust(length, b"\0")
        new = bytes(self.content[:length]).ljust(length, b"\0")
        blocks = self.durable_blocks[: page_count(length)].ljust(page_count(length), b"\0")
        if old == new:
            return FileNode.synced(old, blocks)
        content, survivors = mix_pages(old, new, odds, stream)
        flags = bytearray(blocks)
        for page in survivors:
            flags[page] = 1  # a page that reached the disk has its block
        return FileNode.synced(content, bytes(flags))

    def _block_runs(self, flag: int) -> list[tuple[int, int]]:
        """Runs of pages with (1) or without (0) blocks, as [first, last)."""
        runs: list[tuple[int, int]] = []
        first = self.blocks.find(flag)
        while first >= 0:
            last = self.blocks.find(1 - flag, first)
            last = len(self.blocks) if last < 0 else last
            runs.append((first, last))
            first = self.blocks.find(flag, last)
        return runs


def changed_pages(old: bytes, new: bytes) -> list[int]:
    """Indexes of the pages in which two images of one length differ."""
    import numpy as np

    if old == new:
        return []
    whole = len(new) // PAGE_SIZE * PAGE_SIZE
    left = np.frombuffer(old, np.uint64, whole // 8).reshape(-1, PAGE_SIZE // 8)
    right = np.frombuffer(new, np.uint64, whole // 8).reshape(-1, PAGE_SIZE // 8)
    pages: list[int] = np.flatnonzero((left != right).any(axis=1)).tolist()
    if old[whole:] != new[whole:]:
        pages.append(whole // PAGE_SIZE)
    return pages


def mix_pages(old: bytes, new: bytes, odds: Odds, stream: random.Random) -> tuple[bytes, list[int]]:
    """Choose old, new or torn for each page that differs; also the pages not left old."""
    import numpy as np

    changed = np.asarray(changed_pages(old, new))
    rng = np.random.default_rng(stream.getrandbits(64))
    kept = rng.random(len(changed)) < odds.kept
    torn = ~kept & (rng.random(len(changed)) < odds.torn)
    sectors = rng.random((len(changed), SECTORS_PER_PAGE)) < 0.5
    take_new = kept[:, None] | (torn[:, None] & sectors)

    padded = page_count(len(new)) * PAGE_SIZE
    shape = (-1, SECTORS_PER_PAGE, SECTOR_SIZE)
    image = np.frombuffer(bytearray(old.ljust(padded, b"\0")), np.uint8).reshape(shape)
    source = np.frombuffer(new.ljust(padded, b"\0"), np.uint8).reshape(shape)
    image[changed] = np.where(take_new[:, :, None], source[changed], image[changed])
    return image.tobytes()[: len(new)], changed[take_new.any(axis=1)].tolist()


class NameChange(NamedTuple):
    """An unsynced change of a directory: ``node`` leaves ``removed`` and appears as ``added``.

    Applied without the changes before it, it removes the node from its current name: a file never
    has two names here, also if only the rename survives.
    """

    node: Node
    removed: str | None
    added: str | None

    def apply(self, entries: dict[str, Node]) -> None:
        if self.removed is not None:
            for name in [name for name, node in entries.items() if node is self.node]:
                del entries[name]
        if self.added is not None:
            entries[self.added] = self.node


class DirectoryNode:
    """The names in one directory."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[NameChange] = []

    def change(self, node: Node, *, removed: str | None = None, added: str | None = None) -> None:
        change = NameChange(node, removed, added)
        change.apply(self.entries)
        self.pending.append(change)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def files(self, *, removed: bool = False) -> list[FileNode]:
        """All files below, each once; ``removed``: also those whose removal is not yet synced."""
        nodes = [node for _, node in sorted(self.entries.items())]
        if removed:
            nodes += [node for _, node in sorted(self.durable.items())]
            nodes += [change.node for change in self.pending]
        found: dict[int, FileNode] = {}
        for node in nodes:
            for file in [node] if isinstance(node, FileNode) else node.files(removed=removed):
                found[id(file)] = file
        return list(found.values())

    def copy(self, copies: dict[int, Node] | None = None) -> DirectoryNode:
        """The same names over copies of the same nodes: what another process finds."""
        copies = {} if copies is None else copies
        left = DirectoryNode()

        def copied(node: Node) -> Node:
            if id(node) not in copies:
                copies[id(node)] = node.copy() if isinstance(node, FileNode) else node.copy(copies)
            return copies[id(node)]

        left.entries = {name: copied(node) for name, node in self.entries.items()}
        left.durable = {name: copied(node) for name, node in self.durable.items()}
        left.pending = [change._replace(node=copied(change.node)) for change in self.pending]
        return left

    def survive(self, odds: Odds, stream: random.Random) -> DirectoryNode:
        """What a power loss leaves of the directory and everything below it."""
        entries = dict(self.durable)
        ordered_count = stream.randint(0, len(self.pending))
        for index, change in enumerate(self.pending):
            survives = stream.random() < odds.named
            if (index < ordered_count) if odds.journal else survives:
                change.apply(entries)
        left = DirectoryNode()
        left.entries = {name: node.survive(odds, stream) for name, node in sorted(entries.items())}
        left.durable = dict(left.entries)
        return left


Node: TypeAlias = FileNode | DirectoryNode


def obstacle(node: Node, replaced: Node | None) -> int:
    """Why one node may not be renamed over another, as an errno; 0 if it may."""
    if replaced is None or replaced is node:
        return 0
    if isinstance(node, FileNode):
        return errno.EISDIR if isinstance(replaced, DirectoryNode) else 0
    if isinstance(replaced, FileNode):
        return errno.ENOTDIR
    return errno.ENOTEMPTY if replaced.entries else 0
