"""Replays of far-memory settings over the samples of many machines: on threads, or on Ray.

`uzswap sample` writes the samples; `read_table` reads their tables as Arrow. All replays give the
rows and the bytes of the command `uzswap fleet replay`. Those on Ray need `pip install
"uzswap[ray]"`, and folders that all nodes see under the same path. They use the Ray that the caller
has connected to. Where there is none, they start one on this machine, and stop it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from uzswap import _uzswap
from uzswap.documents import from_json
from uzswap.errors import FleetError

if TYPE_CHECKING:
    import pyarrow

if not hasattr(_uzswap, "Machine"):
    raise ImportError("this uzswap was built without fleets; build it with the cargo feature fleet")

Folder: TypeAlias = str | os.PathLike[str]
#: Is called with the machines or settings that are done, and with the number of all.
Progress: TypeAlias = Callable[[int, int], object]
Compressor: TypeAlias = Literal["lz4", "lzo-rle", "zstd"]
#: The tables of a sample. docs/reference/fleet-tables.md of uzswap explains their columns.
Table: TypeAlias = Literal["pages", "intervals", "runs"]

# Memory for objects of a Ray of our own: outcomes of machines take some KiB each.
_OBJECT_BYTES = 200 << 20
# Memory for machines that a process of `tune` keeps from trial to trial. It reads others again.
_MACHINE_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """A setting of the controller; by default that of Google's paper before it was tuned."""

    #: Percentile of past best ages that is kept, 0 to 100.
    threshold_percentile: int = 98
    #: Time of each process in which nothing is compressed, in seconds.
    warm_up_seconds: int = 600
    #: Promotions that are allowed, in millionths of the working set a minute.
    slo_ppm: int = 2000
    #: The compressor.
    compressor: Compressor = "lz4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting(Parameters):
    """A setting over all machines: a row of the table `replays`, which explains the fields."""

    jobs: int
    active_intervals: int
    cold_page_seconds: int
    far_page_seconds: int
    coverage: float
    p98_promotion_ppm: int
    within_slo: bool
    promoted_pages: int
    cpu_percent: float
    saved_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Replays:
    """Settings over all machines of a folder."""

    #: Machines, one for each sample.
    machines: int
    #: The settings, the best first: those within the objective, by their coverage; then others.
    settings: list[Setting]
    #: The bytes of the file `replays`: for each setting a row of the fleet and of each machine.
    #: `polars.read_parquet(table)` reads it.
    table: bytes

    def write(self, path: Folder) -> None:
        """Writes the table. Raises FleetError."""
        try:
            Path(path).write_bytes(self.table)
        except OSError as error:
            raise FleetError(f"cannot write {path}: {error.strerror}") from error


def grid(
    threshold_percentile: Iterable[int],
    warm_up_seconds: Iterable[int],
    *,
    slo_ppm: int = 2000,
    compressor: Compressor = "lz4",
) -> list[Parameters]:
    """All combinations of these values, for `replay` and `replay_on_ray`.

    >>> from uzswap.fleet import grid
    >>> [(one.threshold_percentile, one.warm_up_seconds) for one in grid([90, 98], [0, 600])]
    [(90, 0), (90, 600), (98, 0), (98, 600)]
    """
    return [
        Parameters(
            threshold_percentile=percentile,
            warm_up_seconds=seconds,
            slo_ppm=slo_ppm,
            compressor=compressor,
        )
        for percentile, seconds in itertools.product(threshold_percentile, warm_up_seconds)
    ]


def read_table(path: Folder, table: Table) -> pyarrow.Table:
    """A table of samples as an Arrow table: of one file, or of all files of a folder in the order
    of their names and parts. `to_pandas()` and `polars.from_arrow` take it further.

    Needs pyarrow. Raises FleetError, which names the file, OptionError, and ImportError without
    pyarrow.

    >>> from uzswap import FleetError
    >>> from uzswap.fleet import read_table
    >>> try:
    ...     runs = read_table("/proc/self/fd", "runs")
    ... except FleetError as error:
    ...     print(error)
    /proc/self/fd has no file runs-*.parquet; `uzswap sample --out` writes them
    """
    columns, files = _uzswap.table_columns(table), _table_files(Path(path), table)
    pyarrow: Any = _import("pyarrow", extra="arrow")
    parquet: Any = _import("pyarrow.parquet", extra="arrow")
    tables = []
    for file in files:
        try:
            read = parquet.ParquetFile(file).read()
        except OSError as error:
            if error.errno is None:  # of Parquet, not of the kernel
                raise FleetError(f"{file} is not a table '{table}' of uzswap: {error}") from error
            raise FleetError(f"cannot read {file}: {os.strerror(error.errno)}") from error
        except pyarrow.ArrowException as error:
            raise FleetError(f"{file} is not a table '{table}' of uzswap: {error}") from error
        if missing := [name for name in columns if name not in read.column_names]:
            raise FleetError(
                f"{file} is not a table '{table}' of uzswap: it has no column '{missing[0]}'"
            )
        tables.append(read.select(columns))
    return pyarrow.concat_tables(tables)


def _table_files(path: Path, table: str) -> list[Path]:
    """The files of a table: the path itself, or those of a folder in their order."""
    if not path.is_dir():
        return [path]
    name = re.compile(rf"{table}-(.+?)(?:-(\d+))?\.parquet")
    try:
        found = [(name.fullmatch(file.name), file) for file in path.iterdir()]
    except OSError as error:
        raise FleetError(f"cannot read {path}: {error.strerror}") from error
    files = sorted((match[1], int(match[2] or 0), file) for match, file in found if match)
    if not files:
        raise FleetError(
            f"{path} has no file {table}-*.parquet; `uzswap sample --out` writes them"
        )
    return [file for _, _, file in files]


def show(done: int, total: int) -> None:
    """Shows progress on standard error: in one line of a terminal, else after each tenth."""
    is_line = sys.stderr.isatty()
    if is_line or done == total or done * 10 // total > (done - 1) * 10 // total:
        end = "\r" if is_line and done < total else "\n"
        print(f"uzswap.fleet: {done} of {total}", end=end, file=sys.stderr, flush=True)


def replay(
    folder: Folder,
    params: Parameters | Iterable[Parameters] = Parameters(),
    *,
    threads: int | None = None,
    progress: Progress | None = show,
) -> Replays:
    """Replays all samples of a folder under each setting, on threads.

    Without `threads` there is one for each processor; any number gives the same. All settings must
    have the same compressor.

    Raises FleetError, which names the first file that cannot be read, and OptionError.
    """
    files, settings = _uzswap.fleet_samples(folder), _tuples(params)
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        # Once closed after an error, it starts no other machine.
        with contextlib.closing(_replayed(pool, files, settings)) as parts:
            return _sum(len(files), settings, _counted(parts, len(files), progress))


def replay_on_ray(
    folder: Folder,
    params: Parameters | Iterable[Parameters] = Parameters(),
    *,
    cpus: int | None = None,
    progress: Progress | None = show,
) -> Replays:
    """As `replay`, with the same result: Ray Data maps over the machines.

    `cpus` is of a Ray that this function starts: its processors, by default all of this machine.

    Raises ImportError without Ray, else as `replay`.
    """
    ray_data: Any = _import("ray.data")
    files, settings = _uzswap.fleet_samples(os.path.abspath(folder)), _tuples(params)
    with _ray(cpus), _quiet(ray_data):
        rows = [
            {"place": place, "files": json.dumps(of_machine, default=os.fspath)}
            for place, of_machine in enumerate(files)
        ]
        # A block is a task of some 50 machines: its start takes more time than one machine.
        blocks = min(len(files), max(16, len(files) // 50))
        machines = ray_data.from_items(rows, override_num_blocks=blocks)
        mapped = machines.map(_replay_row, fn_kwargs={"settings": settings}).iter_rows()
        failed: dict[int, str] = {}

        def parts() -> Iterator[tuple[int, bytes]]:
            for row in _counted(mapped, len(files), progress):
                if row["error"]:
                    failed[row["place"]] = row["error"]
                elif not failed:
                    yield row["place"], row["outcomes"]

        replays = _sum(len(files), settings, parts())
    if failed:
        raise FleetError(failed[min(failed)])
    return replays


def tune(
    folder: Folder,
    *,
    threshold_percentile: Sequence[int] = range(101),
    warm_up_seconds: Sequence[int] = range(0, 1201, 60),
    candidates: int | None = 20,
    seed: int = 0,
    slo_ppm: int = 2000,
    compressor: Compressor = "lz4",
    cpus: int | None = None,
    progress: Progress | None = show,
) -> list[Setting]:
    """Tries settings with Ray Tune. Returns them, the best first.

    Trials take turns in processes, one for each processor. Each process reads the machines once and
    keeps them, as far as they take 256 MiB.

    The best has the largest coverage of those that meet the objective: 98 % of all readings have at
    most `slo_ppm` promotions. So many `candidates` are drawn from the values by `seed`, the same
    for the same seed; None tries all combinations. A candidate may be drawn twice.

    Raises as `replay_on_ray`.
    """
    ray_tune: Any = _import("ray.tune")
    search: Any = _import("ray.tune.search.basic_variant")

    class Count(ray_tune.Callback):  # type: ignore[misc]
        done = 0

        def on_trial_complete(self, iteration: int, trials: list[Any], *_: Any, **__: Any) -> None:
            self.done += 1
            if progress:
                progress(self.done, total)

    files = _uzswap.fleet_samples(os.path.abspath(folder))  # processes of Ray work elsewhere
    if candidates is None:
        total, values = len(threshold_percentile) * len(warm_up_seconds), ray_tune.grid_search
    else:
        total, values = candidates, ray_tune.choice
    space = {
        "threshold_percentile": values(list(threshold_percentile)),
        "warm_up_seconds": values(list(warm_up_seconds)),
    }
    of_all: dict[str, Any] = {"slo_ppm": slo_ppm, "compressor": compressor}
    # A wrong value is an error before the work.
    _uzswap.sum_machines(_tuples(grid(threshold_percentile, warm_up_seconds[:1], **of_all)), ())
    with _ray(cpus), tempfile.TemporaryDirectory(prefix="uzswap-") as storage:
        tuner = ray_tune.Tuner(
            ray_tune.with_parameters(_try, files=files, of_all=of_all, call=uuid.uuid4()),
            param_space=space,
            tune_config=ray_tune.TuneConfig(
                metric="score",
                mode="max",
                num_samples=1 if candidates is None else candidates,
                search_alg=search.BasicVariantGenerator(random_state=seed),
                reuse_actors=True,  # else each trial waits for a process to start
            ),
            run_config=ray_tune.RunConfig(storage_path=storage, verbose=0, callbacks=[Count()]),
        )
        with contextlib.redirect_stdout(sys.stderr):  # Tune prints
            results = list(tuner.fit())
    for result in results:
        if result.error or result.metrics["error"]:
            raise FleetError(str(result.error or result.metrics["error"]))
    found = [result.metrics for result in results]
    # Equal ones have the order of `grid`, as in a replay of it.
    found.sort(
        key=lambda it: (
            -it["score"],
            threshold_percentile.index(it["threshold_percentile"]),
            warm_up_seconds.index(it["warm_up_seconds"]),
        )
    )
    return [from_json(Setting, metrics) for metrics in found]


class _Machines:
    """The machines of a fleet, in a process that replays them again and again."""

    def __init__(self, files: list[_uzswap._Files], compressor: str) -> None:
        self._files = files
        self._compressor = compressor
        # Those that are kept. Each trial takes all in the same order: the first that fit stay.
        self._kept: dict[int, _uzswap.Machine] = {}
        self._room = _MACHINE_BYTES

    def __iter__(self) -> Iterator[_uzswap.Machine]:
        for place, files in enumerate(self._files):
            machine = self._kept.get(place)
            if machine is None:
                machine = _uzswap.Machine(files, self._compressor)
                if machine.memory_bytes <= self._room:
                    self._room -= machine.memory_bytes
                    self._kept[place] = machine
            yield machine


#: The machines that this process has read for a call of `tune`.
_of_call: dict[uuid.UUID, _Machines] = {}


def _try(
    config: dict[str, Any],
    files: list[_uzswap._Files],
    of_all: dict[str, Any],
    call: uuid.UUID,
) -> dict[str, Any]:
    """A trial of Ray Tune: one setting over all machines."""
    if call not in _of_call:
        _of_call.clear()  # of an earlier call: files may have changed since
        _of_call[call] = _Machines(files, of_all["compressor"])
    settings = _tuples(Parameters(**config, **of_all))
    parts = ((place, it.replay(settings)) for place, it in enumerate(_of_call[call]))
    try:
        [setting] = json.loads(_uzswap.sum_machines(settings, parts)[0])
    except FleetError as error:
        return {"error": str(error), "score": 0.0}
    # A setting that misses the objective is below all that meet it, by how far it misses.
    score = setting["coverage"] if setting["within_slo"] else -float(setting["p98_promotion_ppm"])
    return {**setting, "error": "", "score": score}


def _replay_row(row: dict[str, Any], settings: list[_uzswap._Setting]) -> dict[str, Any]:
    """A task of Ray Data: one machine under all settings. The first error of all is told."""
    told = {"place": row["place"], "outcomes": b"", "error": ""}
    try:
        files = tuple(json.loads(row["files"]))
        return {**told, "outcomes": _replay_machine(files, settings)}
    except FleetError as error:
        return {**told, "error": str(error)}


def _replay_machine(files: _uzswap._Files, settings: list[_uzswap._Setting]) -> bytes:
    """Reads a machine and replays it. All settings have the compressor of the first."""
    compressor = settings[0][-1] if settings else "lz4"
    return _uzswap.Machine(files, compressor).replay(settings)


def _tuples(params: Parameters | Iterable[Parameters]) -> list[_uzswap._Setting]:
    """The settings, each once."""
    each = [params] if isinstance(params, Parameters) else params
    settings = (
        (it.threshold_percentile, it.warm_up_seconds, it.slo_ppm, it.compressor) for it in each
    )
    return list(dict.fromkeys(settings))


def _replayed(
    pool: ThreadPoolExecutor, files: list[_uzswap._Files], settings: list[_uzswap._Setting]
) -> Generator[tuple[int, bytes], None, None]:
    yield from enumerate(pool.map(lambda it: _replay_machine(it, settings), files))


def _sum(
    machines: int, settings: list[_uzswap._Setting], parts: Iterable[tuple[int, bytes]]
) -> Replays:
    rows, table = _uzswap.sum_machines(settings, parts)
    tried = [from_json(Setting, row) for row in json.loads(rows)]
    return Replays(machines=machines, settings=tried, table=table)


def _counted(items: Iterable[Any], total: int, progress: Progress | None) -> Iterator[Any]:
    for done, item in enumerate(items, 1):
        yield item
        if progress:
            progress(done, total)


def _import(name: str, *, extra: str = "ray") -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f'{error}: run pip install "uzswap[{extra}]"') from error


@contextlib.contextmanager
def _ray(cpus: int | None) -> Iterator[None]:
    """The Ray that is there, or one that ends with the block."""
    ray: Any = _import("ray")
    if ray.is_initialized():
        yield
        return
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=_OBJECT_BYTES,
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _quiet(ray_data: Any) -> Iterator[None]:
    """Without the bars of Ray Data: progress is that of the caller."""
    context = ray_data.DataContext.get_current()
    before = context.enable_progress_bars
    context.enable_progress_bars = False
    try:
        yield
    finally:
        context.enable_progress_bars = before
