//! A validator of JSON documents by the schemas in docs/reference/schema. The validator knows the
//! keywords of these schemas, and refuses others.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The folder of the schemas.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/schema")
}

/// The file of a schema: `uzswap-bench-map/1` is in `bench-map-1.json`.
pub fn file_name(name: &str) -> String {
    name.strip_prefix("uzswap-").unwrap().replace('/', "-") + ".json"
}

/// The schema of a form, by its name.
pub fn schema(name: &str) -> Value {
    let path = folder().join(file_name(name));
    let contents = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&contents).unwrap()
}

/// Whether the validator knows all keywords, each field has a description, and no object takes
/// fields that are not described.
pub fn check_schema(schema: &Value, root: &Value, at: &str, wrong: &mut Vec<String>) {
    const KNOWN: [&str; 17] = [
        "$schema",
        "$defs",
        "$ref",
        "title",
        "description",
        "type",
        "const",
        "enum",
        "format",
        "minimum",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "anyOf",
    ];
    let keywords = schema.as_object().unwrap();
    for keyword in keywords.keys() {
        if !KNOWN.contains(&keyword.as_str()) {
            wrong.push(format!("{at}: the validator has no {keyword}"));
        }
    }
    if let Some(reference) = keywords.get("$ref")
        && target(root, reference).is_none()
    {
        wrong.push(format!("{at}: {reference} leads nowhere"));
    }
    if schema["type"] == "object" && !keywords.contains_key("additionalProperties") {
        wrong.push(format!("{at}: takes every field"));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        let description = field["description"].as_str().unwrap_or_default();
        if !description.ends_with('.') || !description.is_ascii() {
            wrong.push(format!("{at}: no description"));
        }
        check_schema(field, root, &at, wrong);
    }
    let parts = schema["$defs"].as_object().into_iter().flatten().map(|(_, part)| part);
    let parts = parts.chain(schema["anyOf"].as_array().into_iter().flatten());
    let others = ["items", "additionalProperties"].map(|keyword| &schema[keyword]);
    for part in parts.chain(others.into_iter().filter(|part| part.is_object())) {
        check_schema(part, root, at, wrong);
    }
}

fn target<'a>(root: &'a Value, reference: &Value) -> Option<&'a Value> {
    root.pointer(reference.as_str()?.strip_prefix('#')?)
}

/// Each mistake of a value, by its place.
pub fn validate(value: &Value, schema: &Value, root: &Value, at: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let keywords = schema.as_object().unwrap();
    for (keyword, wanted) in keywords {
        let is_right = match keyword.as_str() {
            "$ref" => {
                wrong.extend(validate(value, target(root, wanted).unwrap(), root, at));
                true
            }
            "anyOf" => {
                let parts = wanted.as_array().unwrap();
                parts.iter().any(|part| validate(value, part, root, at).is_empty())
            }
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|wanted| is_of(value, wanted)),
                _ => is_of(value, wanted),
            },
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "format" => value.as_str().is_none_or(is_date_time),
            "minimum" => value.as_f64().is_none_or(|value| value >= wanted.as_f64().unwrap()),
            "minItems" => {
                value.as_array().is_none_or(|list| list.len() as u64 >= wanted.as_u64().unwrap())
            }
            "maxItems" => {
                value.as_array().is_none_or(|list| list.len() as u64 <= wanted.as_u64().unwrap())
            }
            "items" => {
                for (place, item) in value.as_array().into_iter().flatten().enumerate() {
                    wrong.extend(validate(item, wanted, root, &format!("{at}[{place}]")));
                }
                true
            }
            "properties" => {
                for (name, part) in wanted.as_object().unwrap() {
                    if let Some(field) = value.get(name) {
                        wrong.extend(validate(field, part, root, &format!("{at}.{name}")));
                    }
                }
                true
            }
            "required" => {
                for name in wanted.as_array().unwrap() {
                    if value.is_object() && value.get(name.as_str().unwrap()).is_none() {
                        wrong.push(format!("{at}: no {name}"));
                    }
                }
                true
            }
            "additionalProperties" => {
                let none = Map::new();
                let known = schema["properties"].as_object().unwrap_or(&none);
                for (name, field) in value.as_object().unwrap_or(&none) {
                    match wanted {
                        _ if known.contains_key(name) => {}
                        Value::Bool(false) => wrong.push(format!("{at}: {name} is not described")),
                        part => wrong.extend(validate(field, part, root, &format!("{at}.{name}"))),
                    }
                }
                true
            }
            "$schema" | "$defs" | "title" | "description" => true,
            _ => panic!("{at}: the validator has no {keyword}"),
        };
        if !is_right {
            let value = value.to_string();
            wrong.push(format!("{at}: {keyword} {wanted}: {}", &value[..value.len().min(80)]));
        }
    }
    wrong
}

fn is_of(value: &Value, wanted: &Value) -> bool {
    match wanted.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("no type {other}"),
    }
}

/// `2026-01-31T08:15:00Z`.
fn is_date_time(text: &str) -> bool {
    let like = "0000-00-00T00:00:00Z";
    let fits = |(c, like): (char, char)| if like == '0' { c.is_ascii_digit() } else { c == like };
    text.len() == like.len() && text.chars().zip(like.chars()).all(fits)
}

/// Parses a document.
pub fn document(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Validates a document of the form of this name.
pub fn check(document: &Value, name: &str) {
    assert_eq!(document["schema"], name);
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    let schema = schema(name);
    let wrong = validate(document, &schema, &schema, name);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    runs_are_lists(document, name);
}

/// `runs` means one thing: a list with an element a run.
fn runs_are_lists(value: &Value, at: &str) {
    for (name, field) in value.as_object().into_iter().flatten() {
        assert!(name != "runs" || field.is_array(), "{at}: runs is {field}");
        runs_are_lists(field, at);
    }
    value.as_array().into_iter().flatten().for_each(|item| runs_are_lists(item, at));
}
