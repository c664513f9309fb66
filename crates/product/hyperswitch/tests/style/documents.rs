//! Lengths of paragraphs and of table cells in documents, and figures on the first page of performance.

use crate::{assert_none, root};

/// The most words and sentences of a document's paragraph or item of a list, and the most words of a table's
/// cell.
struct Limits {
    document: &'static str,
    words: usize,
    sentences: usize,
    cell: usize,
}

const fn limits(document: &'static str, words: usize, sentences: usize, cell: usize) -> Limits {
    Limits {
        document,
        words,
        sentences,
        cell,
    }
}

/// Documents that people read from top to bottom. 90, 5 and 25 are wanted; greater numbers may only shrink.
const DOCUMENTS: &[Limits] = &[
    limits("ARCHITECTURE.md", 90, 5, 25),
    limits("CONTRIBUTING.md", 90, 5, 25),
    limits("README.md", 90, 5, 25),
    limits("SECURITY.md", 135, 6, 27),
    limits("SPECIFICATION.md", 90, 5, 61),
    limits("docs/performance.md", 90, 5, 25),
    limits("docs/performance/history.md", 90, 5, 25),
];

fn read(document: &str) -> String {
    std::fs::read_to_string(root().join(document)).unwrap()
}

/// Paragraphs and items of lists, each as one line, without code, tables, pictures and headings.
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
        let is_prose = !is_code && !["|", "#", "!", "```"].iter().any(|mark| line.starts_with(mark));
        if is_item || line.is_empty() || !is_prose {
            found.push(String::new());
        }
        if is_prose {
            let paragraph = found.last_mut().unwrap();
            *paragraph += if paragraph.is_empty() { "" } else { " " };
            *paragraph += line;
        }
    }
    found
}

/// Cells of each row of each table, without the lines between heads and bodies.
fn tables(text: &str) -> Vec<Vec<Vec<&str>>> {
    let mut found = vec![Vec::new()];
    for line in text.lines().map(str::trim) {
        if !line.starts_with('|') {
            found.push(Vec::new());
        } else if !line.starts_with("|---") {
            let row = line.strip_prefix('|').unwrap();
            let row = row.strip_suffix('|').unwrap_or(row);
            found
                .last_mut()
                .unwrap()
                .push(row.split('|').map(str::trim).collect());
        }
    }
    found.retain(|table| !table.is_empty());
    found
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

fn sentences(text: &str) -> usize {
    text.split_whitespace()
        .map(|word| word.trim_end_matches([')', '*', '"']))
        .filter(|word| word.ends_with(['.', '!', '?']))
        .count()
}

/// The first words of a text, to find it by.
fn begin(text: &str) -> String {
    text.split_whitespace().take(8).collect::<Vec<_>>().join(" ")
}

#[test]
fn paragraphs_are_short() {
    let mut wrong = Vec::new();
    for limits in DOCUMENTS {
        let long = paragraphs(&read(limits.document))
            .into_iter()
            .map(|text| (words(&text), sentences(&text), begin(&text)))
            .filter(|&(words, sentences, _)| words > limits.words || sentences > limits.sentences);
        wrong.extend(long.map(|(words, sentences, begin)| {
            format!(
                "{}: {words} words, {sentences} sentences: {begin}",
                limits.document
            )
        }));
    }
    assert_none(&wrong, "paragraphs are too long");
}

#[test]
fn cells_are_short() {
    let mut wrong = Vec::new();
    for limits in DOCUMENTS {
        let text = read(limits.document);
        let cells = tables(&text).into_iter().flatten().flatten();
        let long = cells.filter(|cell| words(cell) > limits.cell);
        wrong.extend(long.map(|cell| format!("{}: {} words: {}", limits.document, words(cell), begin(cell))));
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
    assert_eq!(
        sentences("One. Two (of 3.5 GHz, commit 1a052c0.) *Three?* four"),
        3
    );
}

#[test]
fn tables_are_found() {
    let text = "text\n| a | b |\n|---|---|\n| 1 | |\n\n| c |\n|---|\n";
    assert_eq!(
        tables(text),
        [vec![vec!["a", "b"], vec!["1", ""]], vec![vec!["c"]]]
    );
}

/// A number, or the two numbers of a range, and whether it is bold; `None` for anything else.
fn figure(cell: &str) -> Option<(Vec<&str>, bool)> {
    let plain = cell.trim_matches('*');
    let ends: Vec<&str> = plain.split(" to ").collect();
    let are_numbers = ends.iter().all(|end| end.parse::<f64>().is_ok());
    (are_numbers && ends.len() <= 2).then_some((ends, plain != cell))
}

/// The page of results holds one figure per cell, bold where a peer is better, in tables that are scanned
/// quickly; and no figure that the published tables do not have.
#[test]
fn results_are_one_page_of_published_figures() {
    let text = read("docs/performance.md");
    let page = text.split("\n## How it is measured\n").next().unwrap();
    assert!(
        page.len() < text.len() && words(page) <= 1_600,
        "{} words",
        words(page)
    );
    let published: String = [
        "latest.md",
        "small-bursts/latest.md",
        "instructions.md",
        "attack.txt",
    ]
    .map(|name| read(&format!("docs/performance/{name}")))
    .concat();
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let published: std::collections::BTreeSet<&str> = published
        .split(|c| !is_number(c))
        .map(|number| number.trim_matches('.'))
        .collect();
    let tables = tables(page);
    assert!(tables.len() >= 6, "the page has lost its tables");
    let mut wrong = Vec::new();
    for table in &tables {
        let (head, rows) = table.split_first().unwrap();
        if rows.len() > 10 {
            wrong.push(format!("{} rows: {}", rows.len(), head[0]));
        }
        let mut is_ratio = false;
        for column in 1..head.len() {
            // "times better than A | than B | B's own figure": what is better than 1 is ours.
            is_ratio = head[column].contains("times better") || is_ratio && head[column].starts_with("than ");
            for row in rows.iter().filter(|row| !row[column].is_empty()) {
                let Some((ends, is_bold)) = figure(row[column]) else {
                    wrong.push(format!("no figure: {}: {}", row[0], row[column]));
                    continue;
                };
                let is_worse = ends[0].parse::<f64>().unwrap() < 1.0;
                if is_ratio && is_bold != is_worse {
                    wrong.push(format!("bold or not: {}: {}", row[0], row[column]));
                }
                for end in ends.iter().filter(|end| !published.contains(**end)) {
                    wrong.push(format!("not published: {}: {end}", row[0]));
                }
            }
        }
    }
    assert_none(&wrong, "cells of the page of results");
}
