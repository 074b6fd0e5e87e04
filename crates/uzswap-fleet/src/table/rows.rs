//! The rows of the four tables. docs/reference/fleet-tables.md has them for readers of the files.

use parquet::errors::Result as ParquetResult;
use serde::Serialize;

use super::column::{ColumnType, Field, Micros};
use super::{Group, GroupReader, NotATable, Table};

/// Declares a row and its table: a field is a column of its name.
macro_rules! table {
    (
        $(#[$attribute:meta])*
        $name:ident in $table:literal { $( $(#[$column:meta])* $field:ident: $type:ty, )* }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize)]
        pub struct $name { $( $(#[$column])* pub $field: $type, )* }

        impl Table for $name {
            const NAME: &'static str = $table;
            const COLUMNS: &'static [(&'static str, ColumnType)] =
                &[ $( (stringify!($field), <$type as Field>::TYPE), )* ];

            fn write(rows: &[$name], group: &mut Group<'_>) -> ParquetResult<()> {
                $( group.column::<$type>(rows.iter().map(|row| &row.$field))?; )*
                Ok(())
            }

            fn read(group: &GroupReader<'_>) -> Result<Vec<$name>, NotATable> {
                $( let mut $field = group.column::<$type>(stringify!($field))?.into_iter(); )*
                let row = |_| Some($name { $( $field: $field.next()?, )* });
                let rows: Option<Vec<$name>> = (0..group.rows()).map(row).collect();
                Ok(rows.expect("each column has as many values as rows"))
            }
        }
    };
}

table! {
    /// A sample: one row, which is written anew at each save.
    RunRow in "runs" {
        /// The sample.
        run: u64,
        /// The machine, hashed.
        host: u64,
        /// Version of uzswap.
        version: String,
        /// When it began.
        started_at: Micros,
        /// What ended it: `plan`, `signal`, `target`; `nothing` while it goes on, or was killed.
        ended_by: String,
        /// `system`, `process` or `tree`.
        target: String,
        /// Time between two readings that was asked for, in seconds.
        interval_seconds: f64,
        /// Readings after the first, up to the last save.
        intervals: u64,
        /// Time that it took up to there, with the pages, in seconds.
        seconds: f64,
        /// Processor time that it took up to there, in microseconds.
        cpu_us: u64,
        /// The most processor time that it may take, in percent of one processor.
        budget_percent: f64,
        /// Processes that were read at least once.
        processes: u64,
        /// Processes that this user may not read.
        unreadable_processes: u64,
        /// Resident anonymous pages when pages were read.
        resident_pages: u64,
        /// Of these, pages in the table `pages`.
        sampled_pages: u64,
        /// How ages were found: `cleared-bits`, or `unknown`.
        age_source: String,
        /// Memory of the machine, in bytes.
        memory_bytes: u64,
        /// What a reader of the figures has to know, a line each.
        notes: String,
    }
}

table! {
    /// A page that was sampled.
    PageRow in "pages" {
        /// The sample.
        run: u64,
        /// The machine, hashed.
        host: u64,
        /// The process, hashed.
        process: u64,
        /// The program's name, hashed.
        job: u64,
        /// Kind of the mapping: `heap`, `stack`, `anonymous`, `file` or `other`.
        kind: String,
        /// Number of the page in its process, from a hidden origin: neighbours have neighbouring
        /// numbers.
        page: u64,
        /// Time since it was touched, in seconds; none where the kernel does not say.
        age_seconds: Option<u64>,
        /// Whether it is one repeated word; it has no lengths then.
        same_filled: bool,
        /// Hash of its contents with the salt: equal pages of one machine have equal hashes.
        hash64: u64,
        /// Length with lz4, in bytes; 4096 of a page that does not shrink.
        lz4_bytes: Option<u64>,
        /// Length with lzo-rle.
        lzo_rle_bytes: Option<u64>,
        /// Length with zstd at level 3.
        zstd_bytes: Option<u64>,
    }
}

table! {
    /// A process in an interval, or the whole machine in it.
    IntervalRow in "intervals" {
        /// The sample.
        run: u64,
        /// The machine, hashed.
        host: u64,
        /// The process, hashed; none for the machine.
        process: Option<u64>,
        /// The program's name, hashed; none for the machine.
        job: Option<u64>,
        /// Number of the interval, from 0.
        interval: u64,
        /// Its end.
        ended_at: Micros,
        /// Its length, in seconds.
        seconds: f64,
        /// Anonymous pages touched in an interval.
        working_set_pages: Option<u64>,
        /// Resident anonymous pages; of the machine, pages that are not available.
        resident_pages: u64,
        /// Pages in swap.
        swapped_pages: u64,
        /// Resident pages not touched for at least 1, 2, 4, 8 and 16 intervals; shorter as far as
        /// that is unknown.
        cold_pages: Vec<u64>,
        /// Pages touched in an interval that were as cold as that before.
        promoted_pages: Vec<u64>,
        /// Memory of the kernel's compressed pool; of the machine alone.
        pool_bytes: Option<u64>,
        /// Faults without a read, in the interval.
        minor_faults: u64,
        /// Faults that waited for a read.
        major_faults: u64,
        /// Time in which some task waited for memory, in microseconds; of the machine alone.
        stall_us: Option<u64>,
        /// Processor time, in microseconds.
        cpu_us: u64,
    }
}

table! {
    /// A machine under one setting of the controller, or the fleet under it.
    ReplayRow in "replays" {
        /// The machine, hashed; none for the fleet.
        host: Option<u64>,
        /// The sample; none for the fleet.
        run: Option<u64>,
        /// Percentile of past thresholds that is kept.
        threshold_percentile: u64,
        /// Time of each job in which nothing is compressed, in seconds.
        warm_up_seconds: u64,
        /// The compressor whose lengths count.
        compressor: String,
        /// Promotions that the objective allows, in millionths of the working set a minute.
        slo_ppm: u64,
        /// Jobs, which are processes.
        jobs: u64,
        /// Readings of a job in which it had compressed pages.
        active_intervals: u64,
        /// Pages colder than one interval, times seconds.
        cold_page_seconds: u64,
        /// Of these, compressed ones.
        far_page_seconds: u64,
        /// Compressed pages over cold pages.
        coverage: f64,
        /// The promotion rate that 98 % of active readings do not pass, in millionths of the
        /// working set a minute.
        p98_promotion_ppm: u64,
        /// Whether that is within the objective.
        within_slo: bool,
        /// Pages that were touched while compressed.
        promoted_pages: u64,
        /// Processor time for compression and decompression, in percent of one processor a
        /// machine.
        cpu_percent: f64,
        /// Memory saved over the time, on average, in bytes; none without sampled pages.
        saved_bytes: Option<u64>,
    }
}
