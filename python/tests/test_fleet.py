"""Replays of many machines: on threads and on Ray as the command does it; the notebook on Polars.

The machines are made of a sample of this process. Blind to: Ray on more than one node.
"""

import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import uzswap
from uzswap import _uzswap, fleet

ROOT = Path(__file__).parent.parent.parent
MACHINES = 12
# Of two warm-ups nothing is ever compressed: these settings are equally good.
PERCENTILES, WARM_UPS = [0, 90, 98], [0, 1000, 2000]
GRID = fleet.grid(PERCENTILES, WARM_UPS)


def misses(*names):
    """Why a test is skipped that needs these packages; empty where they are there."""
    missing = [name for name in names if not importlib.util.find_spec(name)]
    return f"not installed: {', '.join(missing)}" if missing else ""


def command(*arguments):
    """Runs the command. Its exit code may say that no setting meets the objective."""
    told = subprocess.run([uzswap.binary_path(), *arguments], capture_output=True, text=True)
    assert told.returncode in (0, 1), told.stderr
    return told.stdout


def sample(folder):
    """Samples this process, which touches some of its memory at times."""
    memory, end = bytearray(16 << 20), threading.Event()

    def touch():
        at = 0
        while not end.wait(0.12):
            memory[at << 18 :: 4096] = bytes(len(memory[at << 18 :: 4096]))
            at = (at + 7) % 64

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        options = ["--budget=100%", "--interval=50ms", "--intervals=40"]
        command("sample", f"--pid={os.getpid()}", f"--out={folder}", *options)
    finally:
        end.set()
        thread.join()


def setUpModule():
    global folder
    made = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(made.cleanup)
    sample(f"{made.name}/sampled")
    folder = Path(made.name, "fleet")
    machines = f"--machines={MACHINES}"
    command("fleet", "simulate", f"{made.name}/sampled", f"--out={folder}", machines)


class Case(unittest.TestCase):
    def damaged(self):
        """A copy of the folder with two damaged files; the name of the first."""
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        copy = shutil.copytree(folder, Path(made.name, "copy"))
        intervals = sorted(copy.glob("intervals-*"))
        for path in (intervals[9], intervals[4]):
            path.write_bytes(path.read_bytes()[:200])
        return copy, intervals[4].name


class Threads(Case):
    def test_bytes_are_those_of_the_command(self):
        with tempfile.TemporaryDirectory() as out:
            grid = ["--params", "threshold-percentile=0,90,98,warm-up=0s,1000s,2000s"]
            arguments = [f"--out={out}/replays.parquet", "--threads=1", "--json"]
            document = json.loads(command("fleet", "replay", folder, *grid, *arguments))
            told = Path(out, "replays.parquet").read_bytes()
            for threads in (1, 2, 7, None):
                found = fleet.replay(folder, GRID + GRID, threads=threads, progress=None)
                self.assertEqual(found.table, told)
                self.assertEqual(found.machines, MACHINES)
                self.assertEqual(len(found.settings), len(GRID))
                for setting, row in zip(found.settings, document["settings"], strict=True):
                    for name in row.keys() & fleet.Setting.__slots__:
                        self.assertEqual(getattr(setting, name), row[name])
            self.assertGreater(sum(setting.coverage for setting in found.settings), 0)
            found.write(f"{out}/written.parquet")
            self.assertEqual(Path(out, "written.parquet").read_bytes(), told)
            with self.assertRaisesRegex(uzswap.FleetError, "none/replays.*No such file"):
                found.write(f"{out}/none/replays.parquet")

    def test_progress_is_told_and_shown(self):
        calls = []
        fleet.replay(folder, progress=lambda *call: calls.append(call))
        self.assertEqual(calls, [(done, MACHINES) for done in range(1, MACHINES + 1)])
        with contextlib.redirect_stderr(io.StringIO()) as told:
            for done in range(1, 1001):
                fleet.show(done, 1000)
        self.assertEqual(len(told.getvalue().splitlines()), 10)
        self.assertTrue(told.getvalue().endswith("uzswap.fleet: 1000 of 1000\n"))

    def test_errors_name_the_file_or_the_option(self):
        copy, name = self.damaged()
        for threads in (1, 5):
            with self.assertRaisesRegex(uzswap.FleetError, f"{name} is not a table 'intervals'"):
                fleet.replay(copy, threads=threads, progress=None)
        with self.assertRaisesRegex(uzswap.FleetError, "/nowhere.*No such file"):
            fleet.replay("/nowhere")
        with tempfile.TemporaryDirectory() as empty:
            with self.assertRaisesRegex(uzswap.FleetError, "has no file intervals"):
                fleet.replay(empty)
        mixed = [fleet.Parameters(compressor="lz4"), fleet.Parameters(compressor="zstd")]
        for params, words in [
            (fleet.Parameters(threshold_percentile=101), "must be 0 to 100, got 101"),
            (fleet.Parameters(compressor="gzip"), "unknown compressor 'gzip'"),
            (mixed, "must have the same compressor"),
            ([], "no setting"),
        ]:
            with self.assertRaisesRegex(uzswap.OptionError, words):
                fleet.replay(folder, params)

    def test_machines_are_read_once_as_far_as_there_is_room(self):
        files = _uzswap.fleet_samples(folder)
        taken = [_uzswap.Machine(it, "lz4").memory_bytes for it in files]
        twice = 2 * MACHINES
        for room, reads in ((sum(taken), MACHINES), (taken[0], twice - 1), (0, twice)):
            made = []

            def read(*arguments):
                made.append(arguments)
                return _uzswap.Machine(*arguments)

            with (
                mock.patch.object(fleet, "_MACHINE_BYTES", room),
                mock.patch.object(fleet, "_uzswap", mock.Mock(wraps=_uzswap, Machine=read)),
            ):
                machines = fleet._Machines(files, "lz4")
                setting = [(90, 0, 2000, "lz4")]
                first, second = ([it.replay(setting) for it in machines] for _ in range(2))
            self.assertEqual(first, second)
            self.assertEqual(first, [_uzswap.Machine(it, "lz4").replay(setting) for it in files])
            self.assertEqual(len(made), reads)
        with self.assertRaisesRegex(uzswap.OptionError, "must have the same compressor"):
            _uzswap.Machine(files[0], "zstd").replay(setting)

    def test_damaged_outcomes_are_refused(self):
        settings = [(98, 0, 2000, "lz4")]
        [files, *_] = _uzswap.fleet_samples(folder)
        outcome = _uzswap.Machine(files, "lz4").replay(settings)
        far = outcome.replace(b'pm":[', b'pm":[[9999999999999,1],')
        for bad in (b"", outcome[:-9], b"{}", far):
            with self.assertRaises(ValueError):
                _uzswap.sum_machines(settings, [(0, bad)])

    def test_without_ray_the_error_says_what_to_install(self):
        with mock.patch.dict("sys.modules", {"ray": None, "ray.data": None, "ray.tune": None}):
            for call in (fleet.replay_on_ray, fleet.tune):
                with self.assertRaisesRegex(ImportError, r'pip install "uzswap\[ray\]"'):
                    call(folder)


@unittest.skipIf(misses("pyarrow"), misses("pyarrow"))
class Tables(Case):
    def test_a_folder_is_all_of_its_files_in_their_order(self):
        from pyarrow import parquet

        runs = fleet.read_table(folder, "runs")
        self.assertEqual((len(runs), len(set(runs["run"].to_pylist()))), (MACHINES, MACHINES))
        intervals = fleet.read_table(str(folder), "intervals")
        numbers = sorted(runs["run"].to_pylist())
        self.assertEqual(intervals["run"].unique().to_pylist(), numbers)
        self.assertTrue(intervals["cold_pages"].to_pylist()[-1])
        pages = fleet.read_table(folder, "pages")
        self.assertGreater(len(pages), 100)
        self.assertEqual(set(pages["run"].to_pylist()), set(numbers))
        [first, *_] = sorted(folder.glob("pages-*"))
        alone = fleet.read_table(first, "pages")
        self.assertEqual(alone, parquet.read_table(first))
        # The tenth part of a sample comes after the second.
        with tempfile.TemporaryDirectory() as parts:
            for number, part in zip(numbers, ("", "-10", "-2")):
                source = folder / f"intervals-{number:016x}.parquet"
                shutil.copy(source, f"{parts}/intervals-7{part}.parquet")
            Path(parts, ".intervals-8.parquet.x.part").write_bytes(b"half")
            found = fleet.read_table(parts, "intervals")["run"].unique().to_pylist()
            self.assertEqual(found, [numbers[0], numbers[2], numbers[1]])

    def test_errors_name_the_file(self):
        copy, name = self.damaged()
        [run, *_] = copy.glob("runs-*")
        for path, table, told in [
            (copy, "intervals", f"{name} is not a table 'intervals' of uzswap: "),
            (run, "pages", f"{run.name} is not a table 'pages' of uzswap: it has no column"),
            ("/nowhere", "runs", "cannot read /nowhere: No such file"),
            (Path(uzswap.__file__).parent, "runs", "has no file runs-.*; `uzswap sample --out`"),
        ]:
            with self.assertRaisesRegex(uzswap.FleetError, told):
                fleet.read_table(path, table)
        with self.assertRaisesRegex(uzswap.OptionError, "unknown table 'page'; one of: pages"):
            fleet.read_table(copy, "page")

    def test_without_pyarrow_the_error_says_what_to_install(self):
        with mock.patch.dict("sys.modules", {"pyarrow": None}):
            with self.assertRaisesRegex(ImportError, r'pip install "uzswap\[arrow\]"'):
                fleet.read_table(folder, "runs")


@unittest.skipIf(misses("ray"), misses("ray"))
class OnRay(Case):
    def test_a_replay_is_that_of_one_thread(self):
        import ray

        calls = []
        found = fleet.replay_on_ray(folder, GRID, cpus=2, progress=lambda *it: calls.append(it))
        self.assertEqual(found, fleet.replay(folder, GRID, threads=1, progress=None))
        self.assertEqual(calls, [(done, MACHINES) for done in range(1, MACHINES + 1)])
        self.assertFalse(ray.is_initialized(), "it stops what it starts")

    def test_settings_tried_are_those_of_a_grid_on_one_thread(self):
        import ray

        # Where the caller has a Ray, it is used and left.
        ray.init(
            num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False
        )
        self.addCleanup(ray.shutdown)
        values = {"threshold_percentile": PERCENTILES, "warm_up_seconds": WARM_UPS}
        with contextlib.chdir(folder.parent):
            grid = fleet.tune(folder.name, **values, candidates=None, progress=None)
        self.assertEqual(grid, fleet.replay(folder, GRID, threads=1, progress=None).settings)
        drawn = [fleet.tune(folder, candidates=6, seed=seed, progress=None) for seed in (3, 3, 4)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        alone = fleet.replay(folder, drawn[0], threads=1, progress=None)
        self.assertEqual(alone.settings, list(dict.fromkeys(drawn[0])))
        copy, name = self.damaged()
        for call in (fleet.replay_on_ray, fleet.tune):
            more = {"candidates": 2} if call is fleet.tune else {}
            with self.assertRaisesRegex(uzswap.FleetError, f"{name} is not a table 'intervals'"):
                call(copy, progress=None, **more)
        with self.assertRaisesRegex(uzswap.OptionError, "101"):
            fleet.tune(folder, threshold_percentile=[90, 101])
        self.assertTrue(ray.is_initialized())


@unittest.skipIf(misses("polars"), misses("polars"))
class Notebook(Case):
    @classmethod
    def setUpClass(cls):
        notebook = json.loads((ROOT / "python/examples/fleet.ipynb").read_text())
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        cls.names = {"__name__": "__main__"}
        with contextlib.chdir(folder.parent), contextlib.redirect_stdout(io.StringIO()):
            for number, cell in enumerate(cells):
                assert cell["outputs"] == [], "outputs are left out of the repository"
                code = compile("".join(cell["source"]), f"fleet.ipynb[{number}]", "exec")
                exec(code, cls.names)

    def test_it_answers_for_all_machines_and_settings(self):
        self.assertEqual(len(self.names["machines"]), MACHINES)
        self.assertEqual(len(self.names["settings"]), len(self.names["replays"].settings))
        self.assertGreater(len(self.names["jobs"]), 0)

    @unittest.skipIf(misses("duckdb"), misses("duckdb"))
    def test_its_answers_are_those_of_the_sql_files(self):
        import duckdb

        self.names["replays"].write(folder / "replays.parquet")
        self.addCleanup(os.unlink, folder / "replays.parquet")
        for answer, query in [
            ("machines", "machines"), ("settings", "settings"), ("jobs", "suffering-jobs")
        ]:
            sql = (ROOT / f"docs/how-to/fleet/{query}.sql").read_text()
            with contextlib.chdir(folder.parent):
                rows = duckdb.sql(sql).fetchall()
            self.assertTrue(rows)
            found = self.names[answer].rows()
            self.assertEqual(len(found), len(rows))
            for one, other in zip(found, rows):
                for value, twin in zip(one, other, strict=True):
                    self.assertAlmostEqual(value, twin, delta=0.1) if isinstance(
                        value, float
                    ) else self.assertEqual(value, twin)


if __name__ == "__main__":
    unittest.main()
