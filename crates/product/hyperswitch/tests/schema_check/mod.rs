//! Values against a JSON Schema, as far as `docs/schema.json` uses it.

use serde_json::Value;
use std::collections::BTreeSet;

/// Whether what a verb printed is as the schema says of it.
pub fn check_output(schema: &Value, verb: &str, output: &Value) -> Result<(), String> {
    let part = &schema["outputs"][verb];
    if !part.is_object() {
        return Err(format!("{verb} has no schema"));
    }
    check(schema, part, output, "").map_err(|fault| format!("{verb}: {fault}\n{output:#}"))
}

/// Whether a value is as a schema says, and has no keys that the schema does not name.
pub fn check(document: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let named = named_keys(document, schema, value, place)?;
    let mut keys = value.as_object().into_iter().flat_map(|object| object.keys());
    match keys.find(|key| !named.is_empty() && !named.contains(*key)) {
        Some(unknown) => Err(format!("{place}/{unknown} is not in the schema")),
        None => Ok(()),
    }
}

/// The keys that a schema and those that it refers to name, if the value is as they say.
fn named_keys(
    document: &Value,
    schema: &Value,
    value: &Value,
    place: &str,
) -> Result<BTreeSet<String>, String> {
    let mut named = BTreeSet::new();
    if let Some(path) = schema["$ref"].as_str() {
        let target = document.pointer(path.trim_start_matches('#')).unwrap();
        named.extend(named_keys(document, target, value, place)?);
    }
    let kinds = schema["type"]
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![schema["type"].clone()]);
    if !kinds.iter().any(|kind| is_of_kind(value, kind.as_str())) {
        return Err(format!("{place} is no {kinds:?}: {value}"));
    }
    let wanted = schema["enum"]
        .as_array()
        .cloned()
        .or_else(|| Some(vec![schema.get("const")?.clone()]));
    if wanted.is_some_and(|wanted| !wanted.contains(value)) {
        return Err(format!("{place} has none of the values of the schema: {value}"));
    }
    for key in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        value
            .get(key)
            .ok_or_else(|| format!("{place}/{key} is missing"))?;
    }
    for (key, part) in value.as_object().into_iter().flatten() {
        let place = format!("{place}/{key}");
        let patterns = schema["patternProperties"]
            .as_object()
            .and_then(|it| it.values().next());
        let others = schema
            .get("additionalProperties")
            .filter(|it| it.is_object())
            .or(patterns);
        if let Some(schema) = schema["properties"].get(key).or(others) {
            check(document, schema, part, &place)?;
            named.insert(key.clone());
        }
    }
    for part in value.as_array().into_iter().flatten() {
        if let Some(schema) = schema.get("items") {
            check(document, schema, part, &format!("{place}[]"))?;
        }
    }
    for cases in ["oneOf", "anyOf"]
        .iter()
        .filter_map(|key| schema[*key].as_array())
    {
        let tried: Vec<_> = cases
            .iter()
            .map(|case| named_keys(document, case, value, place))
            .collect();
        let found = tried.iter().find_map(|case| case.as_ref().ok());
        named.extend(
            found
                .ok_or_else(|| format!("{place} is no case: {tried:?}"))?
                .iter()
                .cloned(),
        );
    }
    Ok(named)
}

fn is_of_kind(value: &Value, kind: Option<&str>) -> bool {
    match kind {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("{other} is new: teach the test"),
        None => true,
    }
}
