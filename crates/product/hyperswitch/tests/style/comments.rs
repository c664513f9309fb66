//! Comments: what they begin with, and how wide they are.

use crate::source::rust_files;
use crate::{assert_none, root};

/// Words that mean something only to a reader of what stands before. Whoever looks up one item has not read
/// that.
const PRONOUNS: [&str; 15] = [
    "It",
    "Its",
    "They",
    "Their",
    "Them",
    "That",
    "Those",
    "These",
    "This",
    "He",
    "She",
    "Such",
    "Whoever",
    "The same",
    "The other",
];

/// Columns of a comment's line, like those of code.
const WIDTH: usize = 110;

/// Lines of all Rust files, with their places.
fn files() -> Vec<(String, Vec<String>)> {
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        (
            name,
            text.lines().map(|line| line.trim_end().to_owned()).collect(),
        )
    };
    rust_files(&root().join("crates")).into_iter().map(read).collect()
}

/// The mark of a documentation comment with which a line begins, and the text behind it.
fn doc_comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let is_doc = !line.starts_with("////") && (line.starts_with("///") || line.starts_with("//!"));
    is_doc.then(|| (&line[..3], line[3..].trim_start()))
}

/// Whether a comment begins with a pronoun that has no noun.
fn begins_with_pronoun(text: &str) -> bool {
    PRONOUNS.iter().any(|pronoun| {
        let rest = text.strip_prefix(pronoun);
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
    })
}

/// Whether a line with this mark begins a comment, or a paragraph of one, if that line was before.
fn begins_paragraph(mark: &str, before: Option<(&str, &str)>) -> bool {
    before.is_none_or(|(above, text)| above != mark || text.is_empty() || text.starts_with('#'))
}

#[test]
fn no_documentation_begins_with_a_pronoun() {
    let mut wrong = Vec::new();
    for (name, lines) in files() {
        let mut before = None;
        for (at, line) in lines.iter().enumerate() {
            let comment = doc_comment(line);
            if let Some((mark, text)) = comment
                && begins_paragraph(mark, before)
                && begins_with_pronoun(text)
            {
                wrong.push(format!("{name}:{}: {text}", at + 1));
            }
            before = comment;
        }
    }
    assert_none(&wrong, "comments begin with a pronoun");
}

/// Tables, which cannot be broken, may be wider, and so may a single long word.
#[test]
fn comments_are_as_wide_as_code() {
    let mut wrong = Vec::new();
    for (name, lines) in files() {
        for (at, line) in lines.iter().enumerate() {
            let Some(text) = line.trim_start().strip_prefix("//") else {
                continue;
            };
            let text = text.trim_start_matches(['/', '!']).trim_start();
            if line.chars().count() > WIDTH && !text.starts_with('|') && text.contains(' ') {
                wrong.push(format!("{name}:{}", at + 1));
            }
        }
    }
    assert_none(&wrong, "comments are too wide");
}

#[test]
fn pronouns_are_found() {
    assert!(begins_with_pronoun("It is."));
    assert!(begins_with_pronoun("The same, but"));
    assert!(begins_with_pronoun("Those"));
    assert!(!begins_with_pronoun("Item of a list."));
    assert!(!begins_with_pronoun("The sameness of"));
    assert_eq!(doc_comment("    /// Text"), Some(("///", "Text")));
    assert_eq!(doc_comment("    // Text"), None);
    for before in [
        None,
        Some(("//!", "Text")),
        Some(("///", "")),
        Some(("///", "# Errors")),
    ] {
        assert!(begins_paragraph("///", before), "{before:?}");
    }
    assert!(!begins_paragraph("///", Some(("///", "Text"))));
}
