//! Tables in Parquet files: zstd-compressed, one row type each.
//!
//! ```text
//!  rows --> Encoder --> bytes of a file --> decode --> rows
//!              |                              |
//!              '-- column by column           '-- the columns by their names, their types checked
//! ```
//!
//! - L1: decoding gives the rows that were encoded, or an error. Hostile bytes never cause a panic.
//!   They never take more than [`DECODED_BYTES_MAX`] of memory, whatever sizes they declare.

mod column;
mod pages;
mod rows;

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::reader::get_column_reader;
use parquet::data_type::DataType;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{
    SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter,
};
use parquet::schema::parser::parse_message_type;
use thiserror::Error;

pub use column::{ColumnType, LIST_MAX, Micros};
pub use rows::{IntervalRow, PageRow, ReplayRow, RunRow};

use column::{Budget, Field};
use pages::BoundedPages;

/// Rows of a row group: what an encoder holds until it compresses them.
const GROUP_ROWS: usize = 1 << 16;

/// The most memory for the rows of a file that is read, and for its columns on the way: two million
/// intervals. A part of a sample has some 16,384.
pub const DECODED_BYTES_MAX: usize = 1 << 30;

/// The most bytes of a file's footer: that of 500 row groups.
const FOOTER_BYTES_MAX: usize = 1 << 20;

/// Bytes that are no table, or a table with other columns.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NotATable(pub String);

/// A row type, and so a table.
pub trait Table: Sized {
    /// The name of the table, with which its files begin.
    const NAME: &'static str;
    /// Its columns, in their order.
    const COLUMNS: &'static [(&'static str, ColumnType)];

    #[doc(hidden)]
    fn write(rows: &[Self], group: &mut Group<'_>) -> ParquetResult<()>;

    #[doc(hidden)]
    fn read(group: &GroupReader<'_>) -> Result<Vec<Self>, NotATable>;
}

/// The columns of a row group that is written.
#[expect(missing_debug_implementations, reason = "parquet's writer has none")]
pub struct Group<'a>(SerializedRowGroupWriter<'a, Vec<u8>>);

impl Group<'_> {
    fn column<'r, T: Field + 'r>(
        &mut self,
        values: impl Iterator<Item = &'r T>,
    ) -> ParquetResult<()> {
        let mut column: SerializedColumnWriter<'_> =
            self.0.next_column()?.expect("a file has the columns of its table");
        column::write(values, &mut column)?;
        column.close()
    }
}

/// A row group that is read.
#[expect(missing_debug_implementations, reason = "parquet's reader has none")]
pub struct GroupReader<'a> {
    file: &'a Bytes,
    group: &'a RowGroupMetaData,
    rows: usize,
    budget: &'a Budget,
}

impl GroupReader<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn column<T: Field>(&self, name: &str) -> Result<Vec<T>, NotATable> {
        let wrong = |reason: String| NotATable(format!("column {name}: {reason}"));
        let schema = self.group.schema_descr();
        let is_it = |leaf: &usize| {
            schema.column(*leaf).path().parts().first().is_some_and(|part| part == name)
        };
        let mut leaves = (0..schema.num_columns()).filter(is_it);
        let (Some(leaf), None) = (leaves.next(), leaves.next()) else {
            return Err(wrong("there is none, or it is a group of columns".to_owned()));
        };
        let (about, expected) = (schema.column(leaf), T::TYPE);
        let levels = (about.max_def_level(), about.max_rep_level());
        if about.physical_type() != T::Stored::get_physical_type() || levels != expected.levels {
            let null = if expected.is_optional { "" } else { " NOT NULL" };
            return Err(wrong(format!("its type is not {}{null}", expected.sql)));
        }
        let most =
            if expected.levels.1 > 0 { self.rows.saturating_mul(LIST_MAX) } else { self.rows };
        let pages = BoundedPages::new(self.file.clone(), self.group.column(leaf), most);
        let pages = Box::new(pages.map_err(|error| wrong(error.to_string()))?);
        column::read(get_column_reader(about, pages), self.rows, self.budget).map_err(wrong)
    }
}

/// Makes the bytes of a file from rows.
#[expect(missing_debug_implementations, reason = "parquet's writer has none")]
pub struct Encoder<T> {
    rows: Vec<T>,
    writer: SerializedFileWriter<Vec<u8>>,
}

/// Why rows in memory can always be encoded.
const IN_MEMORY: &str = "a writer to memory takes all";

impl<T: Table> Default for Encoder<T> {
    fn default() -> Encoder<T> {
        Encoder::new()
    }
}

impl<T: Table> Encoder<T> {
    /// One without rows.
    pub fn new() -> Encoder<T> {
        let column = |(name, kind): &(&str, ColumnType)| {
            let (before, after) = kind.message;
            format!("{before} {name} {after} ")
        };
        let columns: String = T::COLUMNS.iter().map(column).collect();
        let schema = parse_message_type(&format!("message {} {{ {columns} }}", T::NAME));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(concat!("uzswap ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let schema = Arc::new(schema.expect("the schemas are constants"));
        let writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties));
        Encoder { rows: Vec::new(), writer: writer.expect(IN_MEMORY) }
    }

    /// Adds a row.
    pub fn push(&mut self, row: T) {
        self.rows.push(row);
        if self.rows.len() == GROUP_ROWS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        let mut group = Group(self.writer.next_row_group().expect(IN_MEMORY));
        T::write(&self.rows, &mut group).expect(IN_MEMORY);
        group.0.close().expect(IN_MEMORY);
        self.rows.clear();
    }

    /// The bytes of the file.
    pub fn finish(mut self) -> Vec<u8> {
        self.flush();
        self.writer.into_inner().expect(IN_MEMORY)
    }
}

/// The bytes of a file with these rows.
pub fn encode<T: Table>(rows: impl IntoIterator<Item = T>) -> Vec<u8> {
    let mut encoder = Encoder::new();
    rows.into_iter().for_each(|row| encoder.push(row));
    encoder.finish()
}

thread_local! {
    static IS_DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread decodes a file: a panic of the reader is an error of [`decode`] then.
fn is_decoding() -> bool {
    IS_DECODING.get()
}

/// Makes the panic hook of the process skip the panics that [`decode`] turns into errors.
pub fn hush_decoding() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !is_decoding() {
            usual(panic);
        }
    }));
}

/// The rows of a file.
///
/// # Errors
///
/// [`NotATable`], whatever the bytes are.
pub fn decode<T: Table>(file: Vec<u8>) -> Result<Vec<T>, NotATable> {
    IS_DECODING.set(true);
    // The reader is made for files of friends: on some damaged ones it panics.
    let rows =
        catch_unwind(AssertUnwindSafe(|| decode_sound(file, &Budget::new(DECODED_BYTES_MAX))));
    IS_DECODING.set(false);
    rows.unwrap_or_else(|panic| Err(NotATable(format!("it is damaged: {}", words(&*panic)))))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("its reader gave up").to_owned()
}

fn decode_sound<T: Table>(file: Vec<u8>, budget: &Budget) -> Result<Vec<T>, NotATable> {
    let failed = |error: parquet::errors::ParquetError| NotATable(error.to_string());
    // The last eight bytes: the length of the footer, and PAR1.
    let footer = file.last_chunk::<8>().and_then(|tail| tail.first_chunk::<4>());
    let footer = footer.map_or(0, |length| u32::from_le_bytes(*length) as usize);
    if footer > FOOTER_BYTES_MAX {
        return Err(NotATable(format!("its footer has over {FOOTER_BYTES_MAX} bytes")));
    }
    let file = Bytes::from(file);
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).map_err(failed)?;
    let mut rows = Vec::new();
    for group in metadata.row_groups() {
        let count = usize::try_from(group.num_rows()).unwrap_or(usize::MAX);
        budget.take(count, size_of::<T>()).map_err(NotATable)?;
        let group = GroupReader { file: &file, group, rows: count, budget };
        rows.append(&mut T::read(&group)?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
