//! The types that columns have, and how their values go into a column of a file and back.

use std::cell::Cell;

use parquet::column::reader::ColumnReader;
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
    /// The highest definition and repetition level.
    pub(super) levels: (i16, i16),
}

impl ColumnType {
    /// One with a value in each row.
    const fn plain(sql: &'static str, message: (&'static str, &'static str)) -> ColumnType {
        ColumnType { sql, is_optional: false, message, levels: (0, 0) }
    }
}

/// A type of values that a column may have.
pub(crate) trait Field: Sized {
    const TYPE: ColumnType;

    /// What a file has of one.
    type Stored: DataType;

    /// Appends the value of a row.
    fn put(&self, column: &mut Leveled<Self::Stored>);

    /// The values of the rows; or why there are none.
    fn rows(column: Leveled<Self::Stored>, budget: &Budget) -> Result<Vec<Self>, String>;
}

/// A type with one stored value a row.
pub(crate) trait Plain: Sized {
    const TYPE: ColumnType;

    type Stored: DataType;

    fn stored(&self) -> <Self::Stored as DataType>::T;

    fn of(stored: <Self::Stored as DataType>::T, budget: &Budget) -> Result<Self, String>;
}

impl<P: Plain> Field for P {
    const TYPE: ColumnType = P::TYPE;

    type Stored = P::Stored;

    fn put(&self, column: &mut Leveled<P::Stored>) {
        column.values.push(self.stored());
    }

    fn rows(column: Leveled<P::Stored>, budget: &Budget) -> Result<Vec<P>, String> {
        column.values.into_iter().map(|stored| P::of(stored, budget)).collect()
    }
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
pub(crate) struct Leveled<D: DataType> {
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Vec<D::T>,
}

impl<D: DataType> Leveled<D> {
    fn new() -> Leveled<D> {
        Leveled { definitions: Vec::new(), repetitions: Vec::new(), values: Vec::new() }
    }
}

/// Writes the values of all rows.
pub(super) fn write<'a, F: Field + 'a>(
    values: impl Iterator<Item = &'a F>,
    column: &mut SerializedColumnWriter<'_>,
) -> ParquetResult<()> {
    let mut all = Leveled::new();
    values.for_each(|value| value.put(&mut all));
    let Leveled { definitions, repetitions, values } = all;
    let definitions = (F::TYPE.levels.0 > 0).then_some(&definitions[..]);
    let repetitions = (F::TYPE.levels.1 > 0).then_some(&repetitions[..]);
    column.typed::<F::Stored>().write_batch(&values, definitions, repetitions).map(drop)
}

/// As many values as rows; or why there are not. The caller has checked the physical type.
pub(super) fn read<F: Field>(
    column: ColumnReader,
    rows: usize,
    budget: &Budget,
) -> Result<Vec<F>, String> {
    let reader = F::Stored::get_column_reader(column);
    let mut reader = reader.ok_or("it has another physical type")?;
    let mut all = Leveled::<F::Stored>::new();
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
        budget.take(values, size_of::<<F::Stored as DataType>::T>())?;
        budget.take(levels, 2 * size_of::<i16>())?;
        read += records;
    }
    let values = F::rows(all, budget)?;
    let count = values.len();
    (count == rows).then_some(values).ok_or_else(|| format!("it has {count} of {rows} values"))
}

const UNSIGNED: &str = "(INTEGER(64,false));";

impl Plain for u64 {
    const TYPE: ColumnType = ColumnType::plain("UBIGINT", ("required int64", UNSIGNED));

    type Stored = Int64Type;

    fn stored(&self) -> i64 {
        self.cast_signed()
    }

    fn of(stored: i64, _: &Budget) -> Result<u64, String> {
        Ok(stored.cast_unsigned())
    }
}

impl Field for Option<u64> {
    const TYPE: ColumnType = ColumnType {
        is_optional: true,
        message: ("optional int64", UNSIGNED),
        levels: (1, 0),
        ..<u64 as Field>::TYPE
    };

    type Stored = Int64Type;

    fn put(&self, column: &mut Leveled<Int64Type>) {
        column.definitions.push(i16::from(self.is_some()));
        column.values.extend(self.map(u64::cast_signed));
    }

    fn rows(column: Leveled<Int64Type>, _: &Budget) -> Result<Vec<Option<u64>>, String> {
        let mut there = column.values.into_iter();
        let value = |level| match level {
            1 => there.next().map(|value| Some(value.cast_unsigned())),
            _ => Some(None),
        };
        let values: Option<Vec<_>> = column.definitions.into_iter().map(value).collect();
        values.ok_or_else(|| "it has fewer values than it says".to_owned())
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
        levels: (1, 1),
    };

    type Stored = Int64Type;

    fn put(&self, column: &mut Leveled<Int64Type>) {
        // A list without elements has one entry of levels, and no value.
        let (definition, levels) = (i16::from(!self.is_empty()), self.len().max(1));
        column.definitions.extend(std::iter::repeat_n(definition, levels));
        column.repetitions.push(0);
        column.repetitions.extend(std::iter::repeat_n(1, levels - 1));
        column.values.extend(self.iter().map(|element| element.cast_signed()));
    }

    fn rows(column: Leveled<Int64Type>, budget: &Budget) -> Result<Vec<Vec<u64>>, String> {
        let mut elements = column.values.into_iter();
        let mut lists: Vec<Vec<u64>> = Vec::new();
        for (definition, repetition) in column.definitions.into_iter().zip(column.repetitions) {
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
        Ok(lists)
    }
}

impl Plain for f64 {
    const TYPE: ColumnType = ColumnType::plain("DOUBLE", ("required double", ";"));

    type Stored = DoubleType;

    fn stored(&self) -> f64 {
        *self
    }

    fn of(stored: f64, _: &Budget) -> Result<f64, String> {
        Ok(stored)
    }
}

impl Plain for bool {
    const TYPE: ColumnType = ColumnType::plain("BOOLEAN", ("required boolean", ";"));

    type Stored = BoolType;

    fn stored(&self) -> bool {
        *self
    }

    fn of(stored: bool, _: &Budget) -> Result<bool, String> {
        Ok(stored)
    }
}

impl Plain for String {
    const TYPE: ColumnType = ColumnType::plain("VARCHAR", ("required binary", "(STRING);"));

    type Stored = ByteArrayType;

    fn stored(&self) -> ByteArray {
        self.as_str().into()
    }

    fn of(stored: ByteArray, budget: &Budget) -> Result<String, String> {
        // A short text may stand in each row, and another byte may become three.
        budget.take(stored.len(), 3)?;
        Ok(String::from_utf8_lossy(stored.data()).into_owned())
    }
}

impl Plain for Micros {
    const TYPE: ColumnType =
        ColumnType::plain("TIMESTAMPTZ", ("required int64", "(TIMESTAMP(MICROS,true));"));

    type Stored = Int64Type;

    fn stored(&self) -> i64 {
        self.0
    }

    fn of(stored: i64, _: &Budget) -> Result<Micros, String> {
        Ok(Micros(stored))
    }
}
