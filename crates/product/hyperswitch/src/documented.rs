//! Commands in README and `docs/` are understood by the command line of today.

use crate::cli::Cli;
use clap::Parser;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Lines of commands: those of blocks of shell commands, and of sessions behind their prompt. Lines that go
/// on are joined.
fn lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut language = None;
    for line in text.replace("\\\n", " ").lines() {
        match (line.strip_prefix("```"), language.take()) {
            (Some(opened), None) => language = Some(opened.to_owned()),
            (Some(_), Some(_)) | (None, None) => {}
            (None, Some(inside)) => {
                match (inside.as_str(), line.strip_prefix("$ ")) {
                    ("sh", _) => found.push(line.to_owned()),
                    ("" | "console", Some(line)) => found.push(line.to_owned()),
                    _ => {}
                }
                language = Some(inside);
            }
        }
    }
    found
}

/// Words as a shell splits them; quotes and blanks only.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quote, mut is_word) = (vec![String::new()], None, false);
    for character in line.chars() {
        match (character, quote) {
            ('"' | '\'', None) => (quote, is_word) = (Some(character), true),
            (character, Some(open)) if character == open => quote = None,
            (' ', None) => {
                if is_word {
                    words.push(String::new());
                }
                is_word = false;
            }
            _ => {
                words.last_mut().unwrap().push(character);
                is_word = true;
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Commands of `hyperswitch` in a line.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for part in line.split("&& ").flat_map(|part| part.split("; ")) {
        let part = part.trim().trim_start_matches("sudo ");
        if part.starts_with("hyperswitch ") {
            let words = words(part);
            let ends = |word: &String| [">", ">>", "|", "&", "#"].contains(&word.as_str());
            found.push(words.into_iter().take_while(|word| !ends(word)).collect());
        }
    }
    found
}

#[test]
fn commands_of_documents_are_understood() {
    let pages = std::fs::read_dir(root().join("docs")).unwrap();
    let pages = pages.map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let (mut tried, mut wrong) = (0, Vec::new());
    for page in pages.chain([root().join("README.md")]) {
        let text = std::fs::read_to_string(&page).unwrap();
        for command in lines(&text).iter().flat_map(|line| commands(line)) {
            tried += 1;
            if let Err(error) = Cli::try_parse_from(&command) {
                wrong.push(format!("{}: {}: {error}", page.display(), command.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 30, "only {tried} commands found: has the format changed?");
}

#[test]
fn lines_are_split_as_a_shell_does() {
    let line = "printf 'a b' && hyperswitch p4 entry add r \"routes via => 2\"  'x' > file; sudo hyperswitch status # now";
    let expected = [
        vec!["hyperswitch", "p4", "entry", "add", "r", "routes via => 2", "x"],
        vec!["hyperswitch", "status"],
    ];
    assert_eq!(commands(line), expected);
    let text = "```sh\none \\\n  more\n```\n```\n$ two\nsaid\n```\n```toml\n$ three\n```\n";
    assert_eq!(lines(text), ["one    more", "two"]);
}
