"""What a type checker must accept, and what it must refuse (the comments `type: ignore`)."""

from pathlib import Path
from typing import Any

from typing_extensions import assert_type

import uzswap
from uzswap import fleet
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

assert_type(fleet.read_table(Path("fleet"), "pages"), Any)  # pyarrow has no types
fleet.read_table("fleet", "page")  # type: ignore[arg-type]
settings = fleet.grid([90, 98], range(0, 601, 60), compressor="zstd")
assert_type(settings, list[fleet.Parameters])
replays = fleet.replay("fleet", settings, threads=2, progress=lambda done, total: None)
assert_type(replays, fleet.Replays)
assert_type(replays.settings[0].saved_bytes, int | None)
assert_type(replays.table, bytes)
replays.write("replays.parquet")
assert_type(fleet.replay_on_ray(Path("fleet"), fleet.Parameters(slo_ppm=500), cpus=2), fleet.Replays)
assert_type(fleet.tune("fleet", candidates=None, progress=fleet.show), list[fleet.Setting])
fleet.grid(90, [0])  # type: ignore[arg-type]
fleet.Parameters(98)  # type: ignore[call-arg]
fleet.Parameters(compressor="gzip")  # type: ignore[arg-type]
fleet.replay("fleet", progress=print)
fleet.replay("fleet", progress=lambda done: None)  # type: ignore[arg-type,misc]
fleet.tune("fleet", seed="0")  # type: ignore[arg-type]
