"""The store: a dictionary of pages as its twin, threads, refusals, snapshots, tenants."""

import _thread
import os
import pickle
import random
import tempfile
import signal
import threading
import time
import unittest

import uzswap
from uzswap import PAGE_SIZE, Store

try:
    import numpy
except ImportError:
    numpy = None


def page_of(seed):
    """A page that compresses to about half; of one word for every seventh seed."""
    if seed % 7 == 0:
        return bytes([seed % 256]) * PAGE_SIZE
    return bytes(range(256)) * (PAGE_SIZE // 512) + random.Random(seed).randbytes(PAGE_SIZE // 2)


def random_page(seed):
    """A page that does not compress."""
    return random.Random(seed).randbytes(PAGE_SIZE)


class Model(unittest.TestCase):
    """Random histories give what a dictionary gives."""

    SETTINGS = (
        {},
        {"records": False, "zpool": "zbud", "index": "btree", "incompressible": "store-as-is"},
        {"unit_pages": 16, "zpool": "packed", "compressor": "zstd:1", "filter": "auto"},
        {"dense": "zstd:9", "compressor": "lzo-rle", "zpool": "zblock", "shards": 4},
        {"compressor": "deflate", "object_header_bytes": 8, "zpool": "z3fold", "index": "xarray"},
    )

    def test_histories(self):
        for number, options in enumerate(self.SETTINGS):
            with self.subTest(options=options):
                self.history(random.Random(number), options)

    def history(self, generator, options):
        twin = {}
        with Store(**options) as store:
            for _ in range(400):
                self.step(generator, store, twin, has_dense="dense" in options)
                self.assertEqual(len(store), len(twin))
            self.assertEqual(sorted(store.keys()), sorted(twin))
            self.assertEqual(store.compact() >= 0, True)
            for key, page in twin.items():
                self.assertEqual(store.load(key), page)

    def step(self, generator, store, twin, has_dense):
        key = generator.randrange(300)
        action = generator.randrange(8)
        count = generator.randrange(1, 150)
        if action == 0:
            page = page_of(generator.randrange(1000))
            store.store(key, page, dense=generator.random() < 0.5)
            twin[key] = page
        elif action in (1, 2):
            pages = [page_of(generator.randrange(1000)) for _ in range(count)]
            store.store_many(key, b"".join(pages), dense=generator.random() < 0.2)
            twin.update((key + at, page) for at, page in enumerate(pages))
        elif action == 3:
            buffer = bytearray(b"?" * (count * PAGE_SIZE))
            missing = store.load_many(key, memoryview(buffer))
            self.assertEqual(missing, [at for at in range(key, key + count) if at not in twin])
            for at in range(count):
                page = bytes(buffer[at * PAGE_SIZE : (at + 1) * PAGE_SIZE])
                self.assertEqual(page, twin.get(key + at, b"?" * PAGE_SIZE))
        elif action == 4:
            self.assertEqual(store.load_exclusive(key), twin.pop(key, None))
        elif action == 5:
            self.assertEqual(store.invalidate(key), twin.pop(key, None) is not None)
        elif action == 6:
            gone = [at for at in range(key, key + count // 8) if twin.pop(at, None)]
            self.assertEqual(store.invalidate_many(key, count // 8), len(gone))
        else:
            buffer = bytearray(PAGE_SIZE)
            self.assertEqual(store.load_into(key, buffer), key in twin)
            self.assertEqual(bytes(buffer), twin.get(key, bytes(PAGE_SIZE)))
            self.assertEqual(key in store, key in twin)
            saved = store.recompress(key)
            self.assertTrue(saved >= 0 if has_dense else saved == 0)


class Buffers(unittest.TestCase):
    """Which bytes-like objects are taken, and what is said of the others."""

    def setUp(self):
        self.store = Store()

    def test_lengths(self):
        for length in (0, 1, PAGE_SIZE - 1, PAGE_SIZE + 1):
            with self.assertRaisesRegex(ValueError, f"has {length} bytes"):
                self.store.store_many(0, bytes(length))
            with self.assertRaisesRegex(ValueError, f"has {length} bytes"):
                self.store.load_into(0, bytearray(length))
        with self.assertRaisesRegex(ValueError, "2 pages instead of one"):
            self.store.store(0, bytes(2 * PAGE_SIZE))
        self.assertEqual(len(self.store), 0)

    def test_read_only_and_gaps(self):
        self.store.store(0, bytes(PAGE_SIZE))
        with self.assertRaisesRegex(BufferError, "read-only"):
            self.store.load_into(0, bytes(PAGE_SIZE))
        with self.assertRaisesRegex(BufferError, "not contiguous"):
            self.store.store_many(0, memoryview(bytes(2 * PAGE_SIZE))[::2])
        with self.assertRaises(TypeError):
            self.store.store(0, "a string")

    def test_keys(self):
        last = 2**64 - 1
        self.store.store_many(last - 1, bytes(2 * PAGE_SIZE))
        self.assertEqual(sorted(self.store.keys()), [last - 1, last])
        with self.assertRaisesRegex(OverflowError, "exceed"):
            self.store.store_many(last, bytes(2 * PAGE_SIZE))
        for key in (-1, 2**64):
            with self.assertRaises(OverflowError):
                self.store.load(key)

    def test_wider_items(self):
        words = memoryview(bytearray(page_of(1) * 2)).cast("Q")
        self.store.store_many(0, words)
        back = memoryview(bytearray(2 * PAGE_SIZE)).cast("d")
        self.assertEqual(self.store.load_many(0, back), [])
        self.assertEqual(back.cast("B"), words.cast("B"))

    @unittest.skipUnless(numpy, "numpy is not installed")
    def test_numpy(self):
        array = numpy.arange(8 * 1024, dtype=numpy.float64).reshape(16, 16, 32)
        self.store.store_many(0, array)
        back = numpy.zeros_like(array)
        self.assertEqual(self.store.load_many(0, back), [])
        self.assertTrue((array == back).all())
        with self.assertRaisesRegex(BufferError, "not contiguous"):
            self.store.store_many(0, array.T)
        with self.assertRaisesRegex(BufferError, "not contiguous"):
            self.store.store_many(0, numpy.asfortranarray(array))

    def test_a_buffer_can_be_resized_afterwards(self):
        buffer = bytearray(PAGE_SIZE)
        self.store.store_many(0, buffer)
        self.store.load_many(0, buffer)
        buffer.extend(b"more")


class Threads(unittest.TestCase):
    """Threads share a store, and it releases the GIL."""

    def test_each_has_its_keys(self):
        store = Store(compressor="zstd:1", max_pool_bytes=64 << 20)
        failures = []

        def work(thread):
            try:
                for turn in range(20):
                    data = b"".join(page_of(thread * 1000 + turn + at) for at in range(70))
                    store.store_many(thread * 1000, data)
                    back = bytearray(len(data))
                    if store.load_many(thread * 1000, back) or back != data:
                        failures.append((thread, turn))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(store), 8 * 70)

    def test_a_buffer_that_changes(self):
        """Each stored byte is one that was there; no page is corrupt."""
        store = Store(unit_pages=4, zpool="packed")
        buffer = bytearray(256 * PAGE_SIZE)
        is_over = threading.Event()

        def change():
            number = 0
            while not is_over.is_set():
                number += 1
                buffer[:] = bytes([number % 2]) * len(buffer)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(50):
                store.store_many(0, buffer)
                back = bytearray(len(buffer))
                self.assertEqual(store.load_many(0, back), [])
                self.assertLessEqual(set(back), {0, 1})
                # And into a buffer that another thread writes to.
                store.load_many(0, buffer)
        finally:
            is_over.set()
            thread.join()

    def test_the_gil_is_released(self):
        data = page_of(1) * 512
        store = Store(compressor="zstd:15")
        times = []
        ticks = []

        def work():
            times.append(time.monotonic())
            store.store_many(0, data)
            times.append(time.monotonic())

        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            ticks.append(time.monotonic())
            time.sleep(0.001)
        start, end = times
        self.assertGreater(sum(start < tick < end for tick in ticks), 5)

    def test_an_interrupt_ends_a_batch(self):
        # A shell starts what runs in the background with SIGINT ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        store = Store(compressor="zstd:19")
        data = b"".join(map(page_of, range(200))) * 40
        timer = threading.Timer(0.2, _thread.interrupt_main)
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            store.store_many(0, data)
        timer.join()
        self.assertLess(len(store), 8000)
        self.assertEqual(store.load(0), page_of(0))

    def test_close_waits_for_calls(self):
        data = b"".join(map(page_of, range(100))) * 4
        for make, call in (
            (Store, lambda store: store.store_many(0, data)),
            (uzswap.Values, lambda values: values.store(0, data[: 1 << 20])),
        ):
            store = make(compressor="zstd:15", incompressible="store-as-is")
            ends, is_in_call = [], threading.Event()

            def work():
                while True:
                    is_in_call.set()
                    try:
                        call(store)
                    except ValueError:
                        break
                    ends.append(time.monotonic())

            threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            is_in_call.wait()
            time.sleep(0.1)
            store.close()
            closed = time.monotonic()
            for thread in threads:
                thread.join()
            # A thread may note its time a little after its call.
            self.assertLess(max(ends) - 0.005, closed)

    def test_a_thread_in_a_call_cannot_close(self):
        store, told = Store(compressor="zstd:15"), []

        def close(*_):
            with self.assertRaisesRegex(RuntimeError, "in the middle of one of its own calls"):
                store.close()
            told.append(True)

        before = signal.signal(signal.SIGALRM, close)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        data = b"".join(map(page_of, range(200)))
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        while not told:
            store.store_many(0, data)
        self.assertEqual(store.load(3), page_of(3))
        store.close()

    def test_an_interrupt_ends_the_wait_of_close(self):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        store, is_in_call = Store(compressor="zstd:19"), threading.Event()
        data, ends = b"".join(map(page_of, range(200))) * 15, []

        def work():
            is_in_call.set()
            store.store_many(0, data)
            ends.append(time.monotonic())

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        is_in_call.wait()
        time.sleep(0.05)
        timer = threading.Timer(0.1, _thread.interrupt_main)
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            store.close()
        interrupted = time.monotonic()
        with self.assertRaisesRegex(ValueError, "closed"):
            store.load(0)
        store.close()  # waits again
        closed = time.monotonic()
        timer.join()
        thread.join()
        self.assertLess(interrupted, ends[0])
        self.assertLess(ends[0] - 0.01, closed)


class Refusals(unittest.TestCase):
    """Exceptions have the library's message, and change nothing else."""

    def test_a_page_that_does_not_compress(self):
        store = Store()
        store.store(5, page_of(1))
        with self.assertRaisesRegex(uzswap.StoreError, "page 0x5 does not compress") as caught:
            store.store(5, random_page(5))
        self.assertEqual(caught.exception.key, 5)
        self.assertNotIsInstance(caught.exception, uzswap.PoolLimitError)
        self.assertIsNone(store.load(5))
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((str(again), again.key), (str(caught.exception), 5))

    def test_a_limit(self):
        store = Store(max_pool_bytes=1 << 20)
        data = b"".join(page_of(7 * at + 1) for at in range(2000))
        with self.assertRaises(uzswap.RefusedPagesError) as caught:
            store.store_many(100, data)
        errors = caught.exception.errors
        refused = {error.key for error in errors}
        self.assertTrue(all(isinstance(error, uzswap.PoolLimitError) for error in errors))
        self.assertIn(f"{len(refused)} of 2000 pages are refused", str(caught.exception))
        self.assertEqual(set(store.keys()), set(range(100, 2100)) - refused)
        self.assertLessEqual(store.stats().memory.pool_bytes, 1 << 20)
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual(str(again), str(caught.exception))

    def test_options(self):
        with self.assertRaisesRegex(uzswap.OptionError, "unknown zpool 'malloc'; one of: zsmalloc"):
            Store(zpool="malloc")
        with self.assertRaisesRegex(ValueError, "shards must be a power of two, got 3"):
            Store(shards=3)
        with self.assertRaisesRegex(TypeError, "no option 'size'"):
            Store(size=3)
        with self.assertRaisesRegex(TypeError, "option 'shards': 'str'"):
            Store(shards="many")
        with self.assertRaisesRegex(OverflowError, "option 'max_pool_bytes': .* negative"):
            Store(max_pool_bytes=-1)
        with self.assertRaises(uzswap.BackingError):
            Store(backing="/nowhere/at/all", backing_bytes=1 << 20)

    def test_options_that_would_be_ignored(self):
        for options, told in (
            ({"backing_bytes": 5}, "backing_bytes has no effect without backing='PATH'; set that"),
            ({"keep_backing": True, "backing": None}, "keep_backing .* without backing='PATH'"),
            ({"written_as": "objects"}, "written_as .* without backing='PATH'"),
            ({"lru": "plain", "records": False}, "lru .* without records=True"),
            ({"checksum": False, "records": False}, "checksum .* without records=True"),
            ({"chain_size": 4, "zpool": "zbud"}, "chain_size .* without zpool zsmalloc"),
            ({"mapping": "copy", "zpool": "packed"}, "mapping .* without zpool zsmalloc"),
            ({"same_filled": "off", "same_filled_zero_only": True}, "without a check for same"),
            ({"when_full": "bypass"}, "when_full .* without max_pool_bytes"),
            ({"accept_threshold_percent": 5}, "accept_threshold_.* without max_pool_bytes"),
        ):
            for make in (Store, uzswap.Values, lambda **it: Store.from_snapshot("none", **it)):
                with self.assertRaisesRegex(uzswap.OptionError, told):
                    make(**options)
        # Defaults ask for nothing.
        Store(zpool="zbud", chain_size=8, records=False, checksum=True, keep_backing=False)

    def test_every_option_is_taken(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        options = dict(
            compressor="zstd:7", dense=None, filter="none", unit_pages=2, zpool="zsmalloc",
            chain_size=4, chain_rule="used-percent", handle_header="beside", mapping="copy",
            index="rbtree", shards=2, incompressible="store-as-is", object_header_bytes=8,
            max_pool_bytes=1 << 30, counted="pool", accept_threshold_percent=80, when_full="bypass",
            host_pages="small", same_filled="forward", same_filled_zero_only=True, records=True,
            lru="frequency", checksum=False, written_as="objects", latencies=False,
            backing=os.path.join(folder.name, "cold"), backing_bytes=1 << 20, keep_backing=True,
        )
        for name in options:
            self.assertIn(name, Store.__doc__)
        told = Store(**options).stats().options
        self.assertEqual(
            (told.compressor, told.index, told.shards, told.object_header_bytes, told.lru),
            ("zstd:7", "rbtree", 2, 8, "frequency"),
        )
        self.assertEqual((told.when_full, told.max_pool_bytes), ("bypass", 1 << 30))
        self.assertIsNone(Store(max_pool_bytes=None).stats().options.max_pool_bytes)

    def test_closed(self):
        with Store() as store:
            store.store(1, bytes(PAGE_SIZE))
        store.close()
        for call in (lambda: store.load(1), lambda: len(store), store.stats, store.keys):
            with self.assertRaisesRegex(ValueError, "the store is closed"):
                call()
        self.assertIn("closed", repr(store))


class Files(unittest.TestCase):
    """Backings and snapshots."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_a_backing_takes_cold_pages(self):
        path = os.path.join(self.folder, "cold")
        with Store(max_pool_bytes=1 << 20, backing=path, backing_bytes=16 << 20) as store:
            data = b"".join(page_of(7 * at + 1) for at in range(1500))
            store.store_many(0, data)
            back = bytearray(len(data))
            self.assertEqual(store.load_many(0, back), [])
            self.assertEqual(back, data)
            self.assertGreater(store.stats().counters.written_back_pages, 500)
            self.assertGreater(store.stats().backing.used_blocks, 0)
            self.assertGreater(store.shrink(10), 0)
        self.assertFalse(os.path.exists(path))

    def test_snapshots(self):
        path = os.path.join(self.folder, "store.snapshot")
        store = Store()
        store.store_many(10, page_of(1) + page_of(7) + page_of(2))
        tenant = store.add_tenant("mail")
        store.store_for(tenant, 99, page_of(3))
        self.assertEqual(store.snapshot(path), 4)
        again = Store.from_snapshot(path, compressor="zstd", zpool="zbud")
        for key in (10, 11, 12, 99):
            self.assertEqual(again.load(key), store.load(key))
        self.assertEqual([it.name for it in again.stats().tenants], ["root", "mail"])
        with open(path, "r+b") as file:
            file.truncate(200)
        with self.assertRaises(uzswap.SnapshotError):
            Store.from_snapshot(path)
        with self.assertRaisesRegex(uzswap.SnapshotError, "/nowhere"):
            store.snapshot("/nowhere/at/all")


class Values(unittest.TestCase):
    """Values of any length, with a dictionary as their twin."""

    def test_histories(self):
        settings = (
            {"incompressible": "store-as-is"},
            {"unit_pages": 4, "zpool": "packed", "compressor": "zstd:1", "dense": "zstd:9"},
        )
        for number, options in enumerate(settings):
            generator = random.Random(number)
            twin = {}
            with self.subTest(options=options), uzswap.Values(**options) as values:
                for _ in range(600):
                    self.step(generator, values, twin)
                for key, value in twin.items():
                    self.assertEqual(values.load(key), value)
                stats = values.stats()
                told = (stats.values, stats.value_bytes, len(values))
                self.assertEqual(told, (len(twin), sum(map(len, twin.values())), len(twin)))

    def step(self, generator, values, twin):
        key = generator.choice([generator.randrange(50), 2**64 - 1 - generator.randrange(3)])
        action = generator.randrange(4)
        if action == 0:
            length = generator.choice([1, 4095, 4096, 4097, generator.randrange(1, 100_000)])
            value = (page_of(key) * (length // PAGE_SIZE + 1))[:length]
            values.store(key, memoryview(value), dense=generator.random() < 0.2)
            twin[key] = value
        elif action == 1:
            self.assertEqual(values.load(key), twin.get(key))
        elif action == 2:
            self.assertEqual(values.load_exclusive(key), twin.pop(key, None))
        else:
            self.assertEqual(values.value_len(key), len(twin[key]) if key in twin else None)
            self.assertEqual(key in values, key in twin)
            self.assertEqual(values.invalidate(key), twin.pop(key, None) is not None)

    def test_lengths_and_limits(self):
        values = uzswap.Values(max_pool_bytes=4 << 20, incompressible="store-as-is")
        values.store(1, bytes(1 << 20))
        for length in (0, (1 << 20) + 1):
            values.store(1, b"before")
            with self.assertRaisesRegex(
                uzswap.StoreError, f"value 1 is refused: it has {length} bytes, of 1 to 1048576"
            ):
                values.store(1, bytes(length))
            self.assertNotIn(1, values)
        with self.assertRaises(uzswap.PoolLimitError) as caught:
            for key in range(10):
                values.store(key, random.Random(key).randbytes(1 << 20))
        self.assertEqual(caught.exception.key, len(values))
        tenant = values.add_tenant(max_bytes=100)
        with self.assertRaisesRegex(uzswap.StoreError, "exceed the limit of tenant"):
            values.store_for(tenant, 99, random_page(1))
        values.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            values.load(1)


class Tenants(unittest.TestCase):
    def test_limits_and_removal(self):
        store = Store()
        above = store.add_tenant("above", max_bytes=3000)
        below = store.add_tenant("below", parent=above)
        store.store_for(below, 1, page_of(1))
        with self.assertRaisesRegex(uzswap.StoreError, "page 0x2 is refused: .* exceed the limit"):
            store.store_for(below, 2, page_of(2))
        with self.assertRaisesRegex(uzswap.TenantError, "before the tenants below it"):
            store.remove_tenant(above)
        store.remove_tenant(below)
        store.remove_tenant(above)
        self.assertEqual(store.load(1), page_of(1))
        with self.assertRaisesRegex(uzswap.TenantError, "does not exist or was removed"):
            store.remove_tenant(below)
        with self.assertRaises(uzswap.StoreError):
            Store().store_for(below, 1, page_of(1))
        with self.assertRaises(uzswap.TenantError):
            Store(records=False).add_tenant()


if __name__ == "__main__":
    unittest.main()
