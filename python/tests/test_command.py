"""The command: `python -m uzswap`, and the functions that run it."""

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import uzswap
import uzswap.command
import uzswap.documents.compare_limit
from uzswap.documents import from_json
from uzswap.documents.compare import Compare
from uzswap.documents.compare_limit import CompareLimit

MODULE = [sys.executable, "-m", "uzswap"]
BINARY = [str(uzswap.binary_path())]


def signals(status):
    """The signals that are ignored and blocked, of a file /proc/PID/status."""
    return [line for line in status.splitlines() if line.startswith(("SigIgn", "SigBlk"))]


def without_none(value):
    """A dataclass as its document, in which what is absent is not there."""
    if isinstance(value, dict):
        return {name: without_none(of) for name, of in value.items() if of is not None}
    return [without_none(of) for of in value] if isinstance(value, list) else value


class Module(unittest.TestCase):
    """`python -m uzswap` and the script `uzswap` are the command."""

    def test_output_and_exit_code_are_the_commands(self):
        lines = (
            ["--version"],
            ["classes", "--json"],
            ["compare", "--nonsense"],
            ["stat", b"/no\xff\n'such' file"],
            ["stat", ""],
        )
        script = [str(Path(sys.executable).parent / "uzswap")]
        for line in lines:
            starts = (BINARY, MODULE, script)
            told = [subprocess.run(start + line, capture_output=True) for start in starts]
            for one in told[1:]:
                self.assertEqual(one.returncode, told[0].returncode)
                self.assertEqual(one.stderr, told[0].stderr)
                if "--json" not in line:
                    self.assertEqual(one.stdout, told[0].stdout)

    def test_programs_get_the_signals_of_a_shell(self):
        told = []
        for start in (BINARY, MODULE):
            with tempfile.TemporaryDirectory() as folder:
                line = ["capture", "-o", f"{folder}/pages", "--", "cat", "/proc/self/status"]
                status = subprocess.run(start + line, capture_output=True, text=True, check=True)
            told.append(signals(status.stdout))
        self.assertEqual(told[0], told[1])
        self.assertEqual(len(told[0]), 2)

    def test_the_process_is_the_command(self):
        ignored = []
        for start in (BINARY, MODULE):
            child = subprocess.Popen(
                start + ["workload", "mixed", "--size", "1M", "--hold"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            with child:
                self.assertTrue(any(line.startswith(b"ready") for line in child.stdout))
                self.assertEqual(os.readlink(f"/proc/{child.pid}/exe"), BINARY[0])
                ignored.append(signals(Path(f"/proc/{child.pid}/status").read_text()))
                child.send_signal(signal.SIGTERM)
                self.assertEqual(child.wait(), -signal.SIGTERM)
        self.assertEqual(ignored[0], ignored[1])


class Documents(unittest.TestCase):
    """Each document comes as dataclasses, whole."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.pages = os.path.join(folder.name, "job.pages")
        self.folder = folder.name
        # What the last call read.
        self.read = None
        run = uzswap.command._run

        def noted(*arguments):
            self.read = run(*arguments)
            return self.read

        uzswap.command._run = noted
        self.addCleanup(setattr, uzswap.command, "_run", run)

    def check(self, document):
        """Nothing of the document is lost."""
        self.assertEqual(without_none(dataclasses.asdict(document)), without_none(self.read))

    def test_compare(self):
        result = uzswap.compare(size="2M", zpool=["zsmalloc", "zbud"], compressor="lz4", runs=1)
        self.check(result)
        self.assertEqual([it.zpool for it in result.combinations], ["zsmalloc", "zbud"])
        self.assertEqual(result.combinations[0].pages, result.corpus.pages)
        self.assertLess(result.combinations[0].pool_total_size, 2 << 20)
        limited = uzswap.compare(
            size="2M", compressor="lz4", runs=1, max_pool=["1M", "none"], backing=self.pages,
            exclusive=True, checksum="on", index=None, csv=False,
        )
        self.check(limited)
        self.assertEqual(limited.combinations[0].limit.max_pool.bytes, 1 << 20)
        self.assertEqual(limited.combinations[1].limit.max_pool, "none")

    def test_capture_of_a_command(self):
        command = [sys.executable, "-c", "print(sum(range(10**6)))"]
        about = uzswap.capture(command, output=self.pages)
        self.check(about)
        page_set = uzswap.read_page_set(self.pages)
        self.assertEqual(page_set.about.sha256, about.sha256)
        self.assertEqual(page_set.about.ranges, about.ranges)
        self.assertEqual(page_set.pages.shape, (about.page_count, 4096))

    def test_advise(self):
        advice = uzswap.advise([sys.executable, "-c", "x = list(range(10**6))"])
        self.check(advice)
        self.assertTrue(advice.verdict)

    def test_compare_with_a_limit(self):
        if subprocess.run(BINARY + ["doctor"], capture_output=True).returncode:
            self.skipTest("`uzswap run` does not work here; see `uzswap doctor`")
        result = uzswap.compare(["sleep", "0.1"], limit="64M", zpool="zsmalloc", runs=1)
        self.assertIsInstance(result, CompareLimit)
        self.check(result)

    def test_objects_of_one_field_are_told_apart(self):
        kind = uzswap.documents.compare_limit.Settings
        for limit in ({"bytes": 5}, {"percent": 60.5}):
            made = from_json(kind, {"limit": limit, "limit_bytes": 5, "rounds": 1})
            self.assertEqual(dataclasses.asdict(made.limit), limit)

    def test_fields_of_later_versions_are_left_out(self):
        self.check(uzswap.compare(size="1M", zpool="zbud", compressor="lz4", runs=1))
        later = {**self.read, "news": {"a": [1]}}
        self.assertEqual(from_json(Compare, later), from_json(Compare, self.read))
        del later["corpus"]
        with self.assertRaisesRegex(TypeError, "corpus"):
            from_json(Compare, later)


class Failures(unittest.TestCase):
    def test_messages_and_exit_codes(self):
        with self.assertRaisesRegex(uzswap.CommandError, "^invalid value 'zmalloc'") as caught:
            uzswap.compare(zpool="zmalloc")
        self.assertEqual(caught.exception.exit_code, 2)
        self.assertIn("zmalloc", caught.exception.stderr)
        with self.assertRaisesRegex(uzswap.CommandError, "^cannot read /nowhere") as caught:
            uzswap.compare(corpus=Path("/nowhere/at.all"))
        self.assertEqual(caught.exception.exit_code, 2)
        with self.assertRaisesRegex(TypeError, r"a list of words; pass \['sleep 1'\]"):
            uzswap.compare("sleep 1")

    def test_an_interrupt_ends_the_command_and_its_program(self):
        mark = f"86399.{os.getpid()}"
        program = f"import uzswap; uzswap.capture(['sleep', '{mark}'], output='/dev/shm/{mark}')"
        # A shell starts what runs in the background with SIGINT ignored.
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        with child:
            self.wait_for(lambda: self.running(mark))
            child.send_signal(signal.SIGINT)
            _, stderr = child.communicate(timeout=20)
        self.assertEqual(child.returncode, -signal.SIGINT)
        self.assertIn(b"KeyboardInterrupt", stderr)
        self.wait_for(lambda: not self.running(mark))

    def running(self, mark):
        """Processes that run `sleep` with this argument."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes() == f"sleep\0{mark}\0".encode():
                    found.append(path)
            except OSError:
                pass
        return found

    def wait_for(self, is_so):
        end = time.monotonic() + 20
        while not is_so():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
