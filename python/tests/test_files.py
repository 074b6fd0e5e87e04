"""Page sets and traces: what one side writes, the other reads."""

import os
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import uzswap
from uzswap.documents.capture import Range

try:
    import numpy
except ImportError:
    numpy = None
try:
    import pyarrow
except ImportError:
    pyarrow = None


def pages_of(count):
    return b"".join(bytes([at, *range(255)]) * 16 for at in range(count))


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.path = self.folder / "job.pages"
        self.side = self.folder / "job.pages.json"


class PageSets(InAFolder):
    def test_the_command_reads_what_is_written(self):
        ranges = [
            Range(pid=7, start=4096, pages=30, name="[heap]"),
            Range(pid=7, start=1 << 40, pages=20, name="[stack]"),
        ]
        data = pages_of(50)
        about = uzswap.write_page_set(self.path, data, origin="a test", ranges=ranges, notes=["n"])
        result = uzswap.compare(corpus=self.path, zpool="zsmalloc", compressor="lz4", runs=1)
        self.assertEqual((result.corpus.origin, result.corpus.pages), ("a test", 50))
        self.assertEqual(result.corpus.sha256, about.sha256)
        kinds = {it.kind: it.pages for it in result.compressed_lengths[0].kinds}
        self.assertEqual(kinds, {"heap": 30, "stack": 20})
        page_set = uzswap.read_page_set(self.path)
        self.assertEqual((page_set.about, bytes(page_set.pages)), (about, data))
        self.assertTrue(page_set.pages.readonly)
        for path in (self.path, self.side):
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(sorted(os.listdir(self.folder)), ["job.pages", "job.pages.json"])

    def test_a_file_without_a_side_file(self):
        self.path.write_bytes(pages_of(3))
        about = uzswap.read_page_set(self.path).about
        self.assertEqual((about.page_count, about.ranges, about.origin), (3, [], str(self.path)))

    def test_wrong_files(self):
        for data, words in ((b"", "0 pages and 0 bytes"), (bytes(4097), "1 pages and 1 bytes")):
            self.path.write_bytes(data)
            with self.assertRaisesRegex(uzswap.PageSetError, words):
                uzswap.read_page_set(self.path)
        with self.assertRaisesRegex(uzswap.PageSetError, "cannot read .*: No such file"):
            uzswap.read_page_set(self.folder / "none")
        with self.assertRaises(uzswap.PageSetError):
            uzswap.read_page_set(self.folder)
        with self.assertRaisesRegex(uzswap.PageSetError, "not a regular file"):
            uzswap.read_page_set("/dev/zero")

    def test_side_files_of_others(self):
        uzswap.write_page_set(self.path, pages_of(3), origin="a test")
        good = self.side.read_text()
        for text, words in (
            (good.replace('"page_count": 3', '"page_count": 4'), "page_count is 4"),
            (good.replace('"pages": 3', '"pages": 2'), "sum of the ranges is 2"),
            (good.replace('"format": 1', '"format": 2'), "has format 2"),
            ("[]", "is not the side file"),
            ('{"name": "a package"}', "is not the side file"),
            ("{", "is not the side file"),
        ):
            self.side.write_text(text)
            with self.assertRaisesRegex(uzswap.PageSetError, words):
                uzswap.read_page_set(self.path)
            # The command refuses them, too.
            told = subprocess.run([uzswap.binary_path(), "compare", "--corpus", self.path],
                                  capture_output=True)
            self.assertEqual(told.returncode, 2)
        self.side.write_text(good)
        self.path.write_bytes(pages_of(4)[4096:])
        with self.assertRaisesRegex(uzswap.PageSetError, "sha256"):
            uzswap.read_page_set(self.path)

    def test_writes_that_are_refused(self):
        with self.assertRaisesRegex(ValueError, "whole pages"):
            uzswap.write_page_set(self.path, bytes(5), origin="")
        with self.assertRaisesRegex(ValueError, "the ranges have 1 pages, the buffer 2"):
            one = Range(pid=None, start=0, pages=1, name="")
            uzswap.write_page_set(self.path, bytes(8192), origin="", ranges=[one])
        self.side.write_text('{"name": "a package"}')
        with self.assertRaisesRegex(uzswap.PageSetError, "is not the side file"):
            uzswap.write_page_set(self.path, bytes(4096), origin="")
        with self.assertRaisesRegex(uzswap.PageSetError, "not a regular file"):
            uzswap.write_page_set("/dev/null", bytes(4096), origin="")
        with self.assertRaisesRegex(uzswap.PageSetError, "cannot write .*: No such file"):
            uzswap.write_page_set("/nowhere/at.all", bytes(4096), origin="")
        self.assertEqual(os.listdir(self.folder), ["job.pages.json"])

    @unittest.skipUnless(numpy, "numpy is not installed")
    def test_numpy(self):
        array = numpy.arange(6 * 1024, dtype=numpy.uint32)
        uzswap.write_page_set(self.path, array, origin="an array")
        back = numpy.asarray(uzswap.read_page_set(self.path).pages)
        self.assertEqual(back.shape, (6, 4096))
        self.assertTrue((back.reshape(-1).view(numpy.uint32) == array).all())


class Traces(InAFolder):
    def record(self):
        with uzswap.TraceRecorder(self.path, "a test") as recorder:
            for key in range(100):
                recorder.store(key, pages_of(100)[key * 4096 :][:4096])
            recorder.store(100, b"\x07" * 4096)
            recorder.store(101, pages_of(1))  # the page of key 0
            recorder.load(3)
            recorder.free(3)

    def test_the_columns(self):
        self.record()
        trace = uzswap.read_trace(self.path)
        self.assertEqual((trace.origin, trace.is_complete), ("a test", True))
        self.assertRegex(trace.recorded_at, r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        kinds = [uzswap.EVENT_KINDS[kind] for kind in trace.kinds]
        self.assertEqual(kinds, ["store"] * 100 + ["store-same-filled", "store", "load", "free"])
        self.assertEqual(list(trace.keys), [*range(102), 3, 3])
        self.assertEqual(list(trace.contents), [*range(100), 0x0707070707070707, 0, 0, 0])
        self.assertEqual(list(trace.ns), sorted(trace.ns))
        self.assertEqual(bytes(trace.pages), pages_of(100))
        self.assertEqual(trace.pages.shape, (100, 4096))
        self.assertIsNone(uzswap.read_trace(self.path, pages=False).pages)

    def test_the_command_replays_it(self):
        self.record()
        result = uzswap.compare(trace=self.path, zpool="zbud", compressor="lz4", runs=1)
        self.assertEqual(result.corpus.trace.stores, 102)
        self.assertEqual(result.combinations[0].trace.pages_left, 101)

    def test_cut_and_damaged_files(self):
        self.record()
        whole = self.path.read_bytes()
        self.path.write_bytes(whole[:-1])
        trace = uzswap.read_trace(self.path)
        self.assertFalse(trace.is_complete)
        self.assertEqual(len(trace.kinds), 104)
        self.path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
        with self.assertRaisesRegex(uzswap.TraceError, "is corrupt at byte"):
            uzswap.read_trace(self.path)
        with self.assertRaisesRegex(uzswap.TraceError, "is not a trace"):
            self.path.write_bytes(bytes(100))
            uzswap.read_trace(self.path)
        with self.assertRaisesRegex(uzswap.TraceError, "cannot create"):
            uzswap.TraceRecorder("/nowhere/at.all")

    def test_a_recording_ends_once(self):
        recorder = uzswap.TraceRecorder(self.path)
        recorder.load(1)
        self.assertEqual(recorder.finish(), 1)
        with self.assertRaisesRegex(uzswap.TraceError, "has ended before"):
            recorder.finish()

    def test_threads_share_a_recorder(self):
        with uzswap.TraceRecorder(self.path) as recorder:
            threads = [
                threading.Thread(target=lambda at=at: [recorder.load(at) for _ in range(500)])
                for at in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(sorted(uzswap.read_trace(self.path).keys), sorted([*range(4)] * 500))

    @unittest.skipUnless(pyarrow, "pyarrow is not installed")
    def test_arrow(self):
        self.record()
        trace = uzswap.read_trace(self.path)
        table = trace.to_arrow()
        self.assertEqual(table["key"].to_pylist(), list(trace.keys))
        self.assertEqual(table["kind"].to_pylist()[-3:], ["store", "load", "free"])
        self.assertEqual(table["content"].to_pylist(), list(trace.contents))


if __name__ == "__main__":
    unittest.main()
