//! Reading a configuration file.
//!
//! Errors of single values carry the parser's span. Contradictions between values are found afterwards, on
//! the typed configuration; their path is then looked up in the file's syntax tree to find the line.

use crate::check::PathSegment;
use crate::schema::Config;
use crate::wanted;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Why a file is not a configuration: `FILE:LINE:COLUMN: what, and what is allowed`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct ConfigError {
    /// The file's name as given.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// Parses and checks a configuration; `file` is for messages only.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse(text: &str, file: &str) -> Result<Config, ConfigError> {
    let at = |offset: usize, message: String| at(text, file, offset, message);
    let of_parser = |error: toml::de::Error| {
        let message = error.message().lines().collect::<Vec<_>>().join("; ");
        (error.span().map_or(0, |span| span.start), message)
    };
    let tree = DeTable::parse(text).map_err(|error| {
        let (offset, message) = of_parser(error);
        at(offset, message)
    })?;
    if let Some(wrong) = wanted::misshapen(tree.get_ref()) {
        return Err(at(wrong.at, wrong.message));
    }
    let config: Config = toml::from_str(text).map_err(|error| {
        let (offset, message) = of_parser(error);
        at(offset, wanted::reworded(&tree, offset, &message))
    })?;
    if let Err(error) = config.check() {
        return Err(at(locate(&tree, &error.path).start, error.message));
    }
    Ok(config)
}

/// An error about a part of a file that [`parse`] has taken.
#[must_use]
pub fn error_at(text: &str, file: &str, path: &[PathSegment], message: String) -> ConfigError {
    let tree = DeTable::parse(text);
    let offset = tree.map_or(0, |tree| locate(&tree, path).start);
    at(text, file, offset, message)
}

fn at(text: &str, file: &str, offset: usize, message: String) -> ConfigError {
    let (line, column) = position(text, offset);
    ConfigError {
        file: file.into(),
        line,
        column,
        message,
    }
}

/// Span of the deepest part of `path` that the file spells out: a default that clashes is reported at the
/// table that has it.
fn locate(tree: &Spanned<DeTable<'_>>, path: &[PathSegment]) -> Range<usize> {
    let mut span = tree.span();
    let mut table = Some(tree.get_ref());
    let mut value: Option<&DeValue<'_>> = None;
    for segment in path {
        let next = match *segment {
            PathSegment::Key(key) => table.and_then(|table| table.get(key)),
            PathSegment::Index(index) => value
                .and_then(DeValue::as_array)
                .and_then(|array| array.get(index)),
        };
        let Some(next) = next else { break };
        span = next.span();
        value = Some(next.get_ref());
        table = next.get_ref().as_table();
    }
    span
}

fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}
