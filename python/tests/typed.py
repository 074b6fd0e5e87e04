"""What a type checker must accept, and what it must refuse (the comments `type: ignore`)."""

from pathlib import Path

from typing_extensions import assert_type

import uzswap
from uzswap.documents.compare import Compare
from uzswap.documents.compare_limit import CompareLimit

with uzswap.Store(compressor="zstd:3", max_pool_bytes=None, backing=Path("cold")) as store:
    assert_type(store.load(1), bytes | None)
    assert_type(store.load_many(1, bytearray(4096)), list[int])
    assert_type(store.stats().counters.stored_pages, int)
    store.store_many(1, memoryview(bytes(4096)), dense=True)
    store.store("key", bytes(4096))  # type: ignore[arg-type]
    uzswap.Store(zpool="malloc")  # type: ignore[arg-type]
    uzswap.Store(size=1)  # type: ignore[call-arg]

assert_type(uzswap.compare(["make"], runs=1, zpool=["zbud"]), Compare)
assert_type(uzswap.compare(["make"], limit="60%"), CompareLimit)
assert_type(uzswap.compare(preset="usemem"), CompareLimit)
uzswap.capture(["make"])  # type: ignore[call-arg]
