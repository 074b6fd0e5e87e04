//! The document inside of a page: whole, or thinned where it would make the page too large.

use std::io::{self, ErrorKind, Write};

use serde_json::{Map, Value};

use super::charts::lines::thinned;
use super::escape::for_script;

/// The most bytes of a document in a page.
const BYTES_MAX: usize = 250_000;

/// The text of a document for a script element, and a remark if something is left out of it.
pub(super) fn embedded(document: &Value) -> (String, Option<String>) {
    if let Some(text) = small_text(document) {
        return (text, None);
    }
    let mut document = document.clone();
    for samples in [256, 128, 64, 32, 16] {
        thin(&mut document, samples);
        if let Some(text) = small_text(&document) {
            let remark = format!(
                "The document in this page has at most {samples} samples of a timeline. \
                 --json=FILE writes all of them."
            );
            return (text, Some(remark));
        }
    }
    clear_buckets_of_runs(&mut document);
    if let Some(text) = small_text(&document) {
        let remark = "The document in this page has 16 samples of a timeline, and no buckets of \
                      single runs. --json=FILE writes all of them.";
        return (text, Some(remark.to_owned()));
    }
    let remark = "The document is too large for this page, which has its first fields alone. \
                  --json=FILE writes all of it.";
    (for_script(&envelope(&document).to_string()), Some(remark.to_owned()))
}

/// The text of a document for a script element, unless it would make the page too large.
fn small_text(document: &Value) -> Option<String> {
    let mut plain = Bounded(Vec::new());
    serde_json::to_writer(&mut plain, document).ok()?;
    let plain = String::from_utf8(plain.0).ok()?;
    Some(for_script(&plain)).filter(|text| text.len() <= BYTES_MAX)
}

/// Refuses bytes once they are too many for a page: escapes only make a text longer.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > BYTES_MAX {
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Leaves at most so many samples in each timeline.
fn thin(value: &mut Value, samples: usize) {
    each_field(value, &mut |name, field| {
        if let ("timeline", Value::Array(all)) = (name, field) {
            *all = thinned(all, samples);
        }
    });
}

/// Leaves no buckets in what each run has.
fn clear_buckets_of_runs(value: &mut Value) {
    each_field(value, &mut |name, field| {
        if name == "runs" {
            each_field(field, &mut |name, field| {
                if let ("buckets", Value::Array(all)) = (name, field) {
                    all.clear();
                }
            });
        }
    });
}

/// Calls `act` with each field of each object inside of a value.
fn each_field(value: &mut Value, act: &mut dyn FnMut(&str, &mut Value)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each_field(item, act)),
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                act(name, field);
                each_field(field, act);
            }
        }
        _ => {}
    }
}

/// The fields that every document begins with.
fn envelope(document: &Value) -> Value {
    let names = ["schema", "version", "command", "created_at", "machine"];
    let fields = names.map(|name| (name.to_owned(), document[name].clone()));
    Value::Object(Map::from_iter(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(samples: usize, buckets: usize) -> Value {
        let run = json!({
            "timeline": vec![json!({ "ms": 1, "pool_bytes": 123_456_789 }); samples],
            "store_ns": { "buckets": vec![json!({ "below_ns": 2, "count": 1 }); buckets] },
        });
        json!({ "schema": "x/1", "combinations": [{ "runs": vec![run; 10] }] })
    }

    #[test]
    fn a_small_document_is_whole() {
        let small = document(5, 5);
        let (text, remark) = embedded(&small);
        assert_eq!((serde_json::from_str::<Value>(&text).unwrap(), remark), (small, None));
    }

    #[test]
    fn a_large_document_is_thinned_and_says_so() {
        for (samples, buckets, words) in [
            (1000, 5, "at most 256 samples"),
            (2000, 750, "at most 128 samples"),
            (9, 3000, "no buckets of single runs"),
        ] {
            let (text, remark) = embedded(&document(samples, buckets));
            let remark = remark.unwrap();
            assert!(remark.contains(words), "{remark}");
            assert!(text.len() <= BYTES_MAX);
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["schema"], "x/1");
        }
        let huge = json!({ "schema": "x/1", "notes": "x".repeat(BYTES_MAX) });
        let (text, remark) = embedded(&huge);
        assert!(text.len() < 200 && remark.unwrap().contains("first fields alone"));
    }
}
