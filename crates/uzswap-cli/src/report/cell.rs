//! Cells of a CSV: fields of the JSON document, by their names.

use serde_json::Value;

/// A name and its cell.
pub(super) type Field = (String, String);

/// A field that the document has in another form.
pub(super) fn one(name: &str, value: String) -> Field {
    (name.to_owned(), value)
}

/// A cell: times and shares with six decimals.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            format!("{:.6}", number.as_f64().unwrap_or(f64::NAN))
        }
        other => other.to_string(),
    }
}

/// Fields of a document; of lists with an element a run, those of this run.
pub(super) fn named(document: &Value, run: usize, names: &str) -> Vec<Field> {
    let of = |name: &str| {
        let value = &document[name];
        one(name, cell(value.get(run).unwrap_or(value)))
    };
    names.split(',').map(of).collect()
}
