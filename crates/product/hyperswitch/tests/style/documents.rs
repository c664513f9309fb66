//! Lengths of paragraphs and of table cells in documents.

use crate::{assert_none, root};

/// Documents that people read from top to bottom, each with the most words of a paragraph or item of a list,
/// and of a table's cell. 90 and 25 are wanted; greater numbers may only shrink.
const DOCUMENTS: &[(&str, usize, usize)] = &[
    ("ARCHITECTURE.md", 309, 88),
    ("CONTRIBUTING.md", 90, 40),
    ("README.md", 90, 25),
    ("SECURITY.md", 135, 27),
    ("SPECIFICATION.md", 90, 61),
];

/// Paragraphs and items of lists, each as one line, without code, tables and headings.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut is_code = false;
    for line in text.lines() {
        let line = line.trim();
        is_code ^= line.starts_with("```");
        let is_item = ["* ", "- "].iter().any(|mark| line.starts_with(mark))
            || line
                .trim_start_matches(|digit: char| digit.is_ascii_digit())
                .starts_with(". ");
        if is_code
            || is_item
            || line.is_empty()
            || ["|", "#", "```"].iter().any(|mark| line.starts_with(mark))
        {
            found.push(String::new());
        }
        if !is_code && !["|", "#", "```"].iter().any(|mark| line.starts_with(mark)) {
            let paragraph = found.last_mut().unwrap();
            *paragraph += if paragraph.is_empty() { "" } else { " " };
            *paragraph += line;
        }
    }
    found
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// The first words of a text, to find it by.
fn begin(text: &str) -> String {
    text.split_whitespace().take(8).collect::<Vec<_>>().join(" ")
}

#[test]
fn paragraphs_are_short() {
    let mut wrong = Vec::new();
    for (name, most, _) in DOCUMENTS {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        let long = paragraphs(&text)
            .into_iter()
            .filter(|paragraph| words(paragraph) > *most);
        wrong.extend(long.map(|long| format!("{name}: {} words: {}", words(&long), begin(&long))));
    }
    assert_none(&wrong, "paragraphs are too long");
}

#[test]
fn cells_are_short() {
    let mut wrong = Vec::new();
    for (name, _, most) in DOCUMENTS {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        let rows = text.lines().filter(|line| line.starts_with('|'));
        let long = rows
            .flat_map(|row| row.split('|'))
            .filter(|cell| words(cell) > *most);
        wrong.extend(long.map(|long| format!("{name}: {} words: {}", words(long), begin(long))));
    }
    assert_none(&wrong, "cells are too long");
}

#[test]
fn paragraphs_are_found() {
    let text = "# Title\none\ntwo\n* three\n  four\n\n```\ncode\n```\n| cell |\nfive";
    let found: Vec<String> = paragraphs(text)
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    assert_eq!(found, ["one two", "* three four", "five"]);
}
