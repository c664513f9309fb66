//! How code and documents are written, as far as that can be counted: the first words of comments, maps at
//! the heads of modules, lengths of functions, comments, paragraphs and table cells, and files that use each
//! other in a circle.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

#[path = "style/circles.rs"]
mod circles;
#[path = "style/comments.rs"]
mod comments;
#[path = "style/documents.rs"]
mod documents;
#[path = "style/functions.rs"]
mod functions;
#[path = "style/maps.rs"]
mod maps;
#[path = "style/source.rs"]
mod source;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .canonicalize()
        .unwrap()
}

/// Fails with a list of what is wrong.
#[track_caller]
fn assert_none(wrong: &[String], what: &str) {
    assert!(wrong.is_empty(), "{} {what}:\n{}", wrong.len(), wrong.join("\n"));
}
