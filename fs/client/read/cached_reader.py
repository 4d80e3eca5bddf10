"""Reading a file through a cache on the local disk."""

import threading

from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.read.disk_cache import BLOCK_BYTES, DiskCache, block_key
from speedwell.fs.client.read.reader import Reader
from speedwell.fs.proto.speedwell_pb2 import Attributes


class CachedReader(Reader):
    """Blocks that are not in the cache come whole, as far as the file goes that is committed."""

    def __init__(self, cache: DiskCache, context: ClientContext, attributes: Attributes, path: bytes) -> None:
        super().__init__(context, attributes, path)
        self._cache = cache
        self._committed = attributes.size
        self._fetching = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        self._check(offset, size)
        cached = bytearray(max(0, min(size, self._committed - offset)))
        self.readinto(offset, cached)
        if len(cached) == size or (cached and self.size <= self._committed):
            return bytes(cached)
        return bytes(cached) + super().read(offset + len(cached), size - len(cached))

    def readinto(self, offset: int, buffer: bytearray | memoryview) -> int:
        view = memoryview(buffer).cast("B")
        self._check(offset, len(view))
        cached = view[:max(0, min(len(view), self._committed - offset))]
        filled = 0
        while filled < len(cached):
            at, rest = offset + filled, cached[filled:]
            count = self._from_cache(at, rest)
            if not count:
                with self._fetching:    # another thread may fetch the very block
                    count = self._from_cache(at, rest) or self._fetch(at, rest)
            filled += count
        if filled < len(view) and (not filled or self.size > self._committed):
            filled += super().readinto(offset + filled, view[filled:])
        return filled

    def grown_to(self, size: int) -> None:
        super().grown_to(size)
        self._committed = max(self._committed, size)

    # ------------------------------------------------------------------ private

    def _key(self, number: int) -> str:
        return block_key(self._attributes.file_id, self._attributes.epoch, number)

    def _from_cache(self, offset: int, view: memoryview) -> int:
        """Fill in what the block at `offset` has of it; 0 if it is not there."""
        number, begin = divmod(offset, BLOCK_BYTES)
        wanted = min(len(view), BLOCK_BYTES - begin)
        key = self._key(number)
        block = self._cache.get(key) if key in self._cache else None
        if block is None or len(block) < begin + wanted:
            return 0
        self._context.metrics.add(cache_hits=1)
        view[:wanted] = block[begin:begin + wanted]
        return wanted

    def _fetch(self, offset: int, view: memoryview) -> int:
        """Fill in what the blocks have that are missing one after the other, and keep them."""
        first, last = offset // BLOCK_BYTES, (offset + len(view) - 1) // BLOCK_BYTES
        after = first + 1
        while after <= last and self._key(after) not in self._cache:
            after += 1
        start, stop = first * BLOCK_BYTES, min(after * BLOCK_BYTES, self._committed)
        fits = start == offset and stop - start <= len(view)
        blocks = view[:stop - start] if fits else memoryview(bytearray(stop - start))
        super().readinto(start, blocks)
        self._context.metrics.add(cache_misses=after - first)
        for number in range(first, after):
            block = blocks[(number - first) * BLOCK_BYTES:][:BLOCK_BYTES]
            self._cache.put(self._key(number), block)
        count = min(stop - offset, len(view))
        if not fits:
            view[:count] = blocks[offset - start:offset - start + count]
        return count
