//! The types that columns have, and how their values go into a column of a file and back.

use std::cell::Cell;

use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::Result as ParquetResult;
use parquet::file::writer::SerializedColumnWriter;

/// The most values in one list: a hostile file must not fill the memory.
pub const LIST_MAX: usize = 64;

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 1 << 10;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnType {
    /// The name of the type in SQL, as DuckDB has it.
    pub sql: &'static str,
    /// Whether a row may have no value.
    pub is_optional: bool,
    /// The column in the language of Parquet's schemas, around its name.
    pub(super) message: (&'static str, &'static str),
    pub(super) physical: Physical,
    /// The highest definition and repetition level.
    pub(super) levels: (i16, i16),
}

/// A type of values that a column may have.
pub(crate) trait Field: Sized {
    const TYPE: ColumnType;

    fn write<'a>(
        values: impl Iterator<Item = &'a Self>,
        column: &mut SerializedColumnWriter<'_>,
    ) -> ParquetResult<()>
    where
        Self: 'a;

    /// As many values as rows; or why there are not.
    fn read(column: ColumnReader, rows: usize, budget: &Budget) -> Result<Vec<Self>, String>;
}

/// The memory that a file may still take.
#[derive(Debug)]
pub(super) struct Budget {
    most: usize,
    left: Cell<usize>,
}

impl Budget {
    pub(super) fn new(most: usize) -> Budget {
        Budget { most, left: Cell::new(most) }
    }

    /// Takes so many times so many bytes; or says that they are too many.
    pub(super) fn take(&self, count: usize, bytes: usize) -> Result<(), String> {
        let left = count.checked_mul(bytes).and_then(|bytes| self.left.get().checked_sub(bytes));
        self.left.set(
            left.ok_or_else(|| format!("its rows take over {} MiB of memory", self.most >> 20))?,
        );
        Ok(())
    }
}

/// A moment: microseconds since 1970, in UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Micros(pub i64);

/// Values of a column, with the levels that place them in rows.
struct Leveled<T> {
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Vec<T>,
}

/// Decodes a column of so many rows.
fn decode<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    rows: usize,
    budget: &Budget,
) -> Result<Leveled<T::T>, String> {
    let mut all = Leveled { definitions: Vec::new(), repetitions: Vec::new(), values: Vec::new() };
    let mut read = 0;
    while read < rows {
        let (records, values, levels) = reader
            .read_records(
                BATCH_ROWS.min(rows - read),
                Some(&mut all.definitions),
                Some(&mut all.repetitions),
                &mut all.values,
            )
            .map_err(|error| error.to_string())?;
        if records == 0 {
            return Err(format!("it ends after {read} of {rows} rows"));
        }
        budget.take(values, size_of::<T::T>())?;
        budget.take(levels, 2 * size_of::<i16>())?;
        read += records;
    }
    Ok(all)
}

/// The reader of a column with this physical type; the caller has checked it.
macro_rules! reader {
    ($column:expr, $variant:ident) => {
        match $column {
            ColumnReader::$variant(reader) => reader,
            _ => return Err("it has another physical type".to_owned()),
        }
    };
}

fn exactly<T>(values: Vec<T>, rows: usize) -> Result<Vec<T>, String> {
    let count = values.len();
    (count == rows).then_some(values).ok_or_else(|| format!("it has {count} of {rows} values"))
}

const UNSIGNED: &str = "(INTEGER(64,false));";

impl Field for u64 {
    const TYPE: ColumnType = ColumnType {
        sql: "UBIGINT",
        is_optional: false,
        message: ("required int64", UNSIGNED),
        physical: Physical::INT64,
        levels: (0, 0),
    };

    fn write<'a>(
        values: impl Iterator<Item = &'a u64>,
        column: &mut SerializedColumnWriter<'_>,
    ) -> ParquetResult<()> {
        let values: Vec<i64> = values.map(|value| value.cast_signed()).collect();
        column.typed::<Int64Type>().write_batch(&values, None, None).map(drop)
    }

    fn read(column: ColumnReader, rows: usize, budget: &Budget) -> Result<Vec<u64>, String> {
        let read = decode(reader!(column, Int64ColumnReader), rows, budget)?;
        exactly(read.values.into_iter().map(i64::cast_unsigned).collect(), rows)
    }
}

impl Field for Option<u64> {
    const TYPE: ColumnType = ColumnType {
        is_optional: true,
        message: ("optional int64", UNSIGNED),
        levels: (1, 0),
        ..<u64 as Field>::TYPE
    };

    fn write<'a>(
        values: impl Iterator<Item = &'a Option<u64>>,
        column: &mut SerializedColumnWriter<'_>,
    ) -> ParquetResult<()> {
        let (mut levels, mut there) = (Vec::new(), Vec::new());
        for value in values {
            levels.push(i16::from(value.is_some()));
            there.extend(value.map(u64::cast_signed));
        }
        column.typed::<Int64Type>().write_batch(&there, Some(&levels), None).map(drop)
    }

    fn read(
        column: ColumnReader,
        rows: usize,
        budget: &Budget,
    ) -> Result<Vec<Option<u64>>, String> {
        let read = decode(reader!(column, Int64ColumnReader), rows, budget)?;
        let mut there = read.values.into_iter();
        let value = |level| match level {
            1 => there.next().map(|value| Some(value.cast_unsigned())),
            _ => Some(None),
        };
        let values: Option<Vec<_>> = read.definitions.into_iter().map(value).collect();
        exactly(values.ok_or("it has fewer values than it says")?, rows)
    }
}

impl Field for Vec<u64> {
    const TYPE: ColumnType = ColumnType {
        sql: "UBIGINT[]",
        is_optional: false,
        message: (
            "required group",
            "(LIST) { repeated group list { required int64 element (INTEGER(64,false)); } }",
        ),
        physical: Physical::INT64,
        levels: (1, 1),
    };

    fn write<'a>(
        values: impl Iterator<Item = &'a Vec<u64>>,
        column: &mut SerializedColumnWriter<'_>,
    ) -> ParquetResult<()> {
        let (mut definitions, mut repetitions, mut elements) = (Vec::new(), Vec::new(), Vec::new());
        for list in values {
            // A list without elements has one entry of levels, and no value.
            definitions.extend(std::iter::repeat_n(i16::from(!list.is_empty()), list.len().max(1)));
            repetitions.push(0);
            repetitions.extend(std::iter::repeat_n(1, list.len().saturating_sub(1)));
            elements.extend(list.iter().map(|element| element.cast_signed()));
        }
        let column = column.typed::<Int64Type>();
        column.write_batch(&elements, Some(&definitions), Some(&repetitions)).map(drop)
    }

    fn read(column: ColumnReader, rows: usize, budget: &Budget) -> Result<Vec<Vec<u64>>, String> {
        let read = decode(reader!(column, Int64ColumnReader), rows, budget)?;
        let mut elements = read.values.into_iter();
        let mut lists: Vec<Vec<u64>> = Vec::new();
        for (definition, repetition) in read.definitions.into_iter().zip(read.repetitions) {
            if repetition == 0 {
                lists.push(Vec::new());
            }
            if definition == 1 {
                let element = elements.next().ok_or("it has fewer elements than it says")?;
                let list = lists.last_mut().ok_or("its first list begins in the middle")?;
                budget.take(1, size_of::<u64>())?;
                list.push(element.cast_unsigned());
                if list.len() > LIST_MAX {
                    return Err(format!("a list has more than {LIST_MAX} elements"));
                }
            }
        }
        exactly(lists, rows)
    }
}

impl Field for f64 {
    const TYPE: ColumnType = ColumnType {
        sql: "DOUBLE",
        is_optional: false,
        message: ("required double", ";"),
        physical: Physical::DOUBLE,
        levels: (0, 0),
    };

    fn write<'a>(
        values: impl Iterator<Item = &'a f64>,
        column: &mut SerializedColumnWriter<'_>,
    ) -> ParquetResult<()> {
        let values: Vec<f64> = values.copied().collect();
        column.typed::<DoubleType>().write_batch(&values, None, None).map(drop)
    }

    fn read(column: ColumnReader, rows: usize, budget: &Budget) -> Result<Vec<f64>, String> {
        exactly(decode(reader!(column, DoubleColumnReader), rows, budget)?.values, rows)
    }
}

impl Field for bool {
    const TYPE: ColumnType = ColumnType {
        sql: "BOOLEAN",
        is_optional: false,
        message: ("required boolean", ";"),
        physical: Physical::BOOLEAN,
        levels: (0, 0),
    };

    fn write<'a>(
        values: impl Iterator<Item = &'a bool>,
        column: &mut SerializedColumnWriter<'_>,
    ) -> ParquetResult<()> {
        let values: Vec<bool> = values.copied().collect();
        column.typed::<BoolType>().write_batch(&values, None, None).map(drop)
    }

    fn read(column: ColumnReader, rows: usize, budget: &Budget) -> Result<Vec<bool>, String> {
        exactly(decode(reader!(column, BoolColumnReader), rows, budget)?.values, rows)
    }
}

impl Field for String {
    const TYPE: ColumnType = ColumnType {
        sql: "VARCHAR",
        is_optional: false,
        message: ("required binary", "(STRING);"),
        physical: Physical::BYTE_ARRAY,
        levels: (0, 0),
    };

    fn write<'a>(
        values: impl Iterator<Item = &'a String>,
        column: &mut SerializedColumnWriter<'_>,
    ) -> ParquetResult<()> {
        let values: Vec<ByteArray> = values.map(|text| text.as_str().into()).collect();
        column.typed::<ByteArrayType>().write_batch(&values, None, None).map(drop)
    }

    fn read(column: ColumnReader, rows: usize, budget: &Budget) -> Result<Vec<String>, String> {
        let read = decode(reader!(column, ByteArrayColumnReader), rows, budget)?;
        let text = |bytes: ByteArray| {
            // A short text may stand in each row, and another byte may become three.
            budget.take(bytes.len(), 3)?;
            Ok(String::from_utf8_lossy(bytes.data()).into_owned())
        };
        exactly(read.values.into_iter().map(text).collect::<Result<_, String>>()?, rows)
    }
}

impl Field for Micros {
    const TYPE: ColumnType = ColumnType {
        sql: "TIMESTAMPTZ",
        message: ("required int64", "(TIMESTAMP(MICROS,true));"),
        ..<u64 as Field>::TYPE
    };

    fn write<'a>(
        values: impl Iterator<Item = &'a Micros>,
        column: &mut SerializedColumnWriter<'_>,
    ) -> ParquetResult<()> {
        let values: Vec<i64> = values.map(|moment| moment.0).collect();
        column.typed::<Int64Type>().write_batch(&values, None, None).map(drop)
    }

    fn read(column: ColumnReader, rows: usize, budget: &Budget) -> Result<Vec<Micros>, String> {
        let read = decode(reader!(column, Int64ColumnReader), rows, budget)?;
        exactly(read.values.into_iter().map(Micros).collect(), rows)
    }
}
