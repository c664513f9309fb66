//! The manual pages that are no verb's: `hyperswitch.toml(5)` and `hyperswitch-cni(8)`, made from documents,
//! and `hyperswitch(7)`.
//!
//! `HYPERSWITCH_UPDATE=1 cargo test -p hyperswitch --test pages` writes those that are made.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Text of a document as roff: code and emphasis are bold, links are their text.
fn inline(text: &str) -> String {
    let mut result = String::new();
    let mut is_bold = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let mark = ["**", "`"].into_iter().find(|mark| rest.starts_with(mark));
        if let Some(mark) = mark {
            is_bold = !is_bold;
            result += if is_bold { "\\fB" } else { "\\fR" };
            rest = &rest[mark.len()..];
            continue;
        }
        if let Some((link, after)) = link(rest).filter(|_| !is_bold) {
            result += &inline(link);
            rest = after;
            continue;
        }
        match c {
            '\\' => result += "\\e",
            '-' => result += "\\-",
            c => result.push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    // A line that begins so would be a request.
    let guarded = result.lines().map(|line| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    guarded.collect::<Vec<_>>().join("\n")
}

/// The text of `[text](target)` at the beginning, and what follows.
fn link(text: &str) -> Option<(&str, &str)> {
    let (inner, after) = text.strip_prefix('[')?.split_once("](")?;
    let (_, after) = after.split_once(')')?;
    (!inner.contains(['[', ']']) || inner.contains('`')).then_some((inner, after))
}

/// The cells of a row of a table.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_start_matches('|').trim_end_matches('|');
    let line = line.replace("\\|", "\u{0}");
    let cells = line.split('|').map(|cell| cell.trim().replace('\u{0}', "|"));
    cells.collect()
}

/// A row as an entry of a list: the first cell is what it is about.
fn entry(headings: &[String], row: &[String]) -> String {
    let mut text = format!(".TP\n{}\n", inline(&row[0]));
    for (heading, cell) in headings
        .iter()
        .zip(row)
        .skip(1)
        .filter(|(_, cell)| !cell.is_empty())
    {
        let is_last = cell == row.last().unwrap();
        match is_last || heading.is_empty() {
            true => writeln!(text, "{}", inline(cell)).unwrap(),
            false => writeln!(text, "{}: {}.", inline(heading), inline(cell)).unwrap(),
        }
    }
    text
}

/// Whether a line goes on with the paragraph of the line before.
fn goes_on(line: &str) -> bool {
    !(line.is_empty() || ["#", "|", "* ", "```"].iter().any(|mark| line.starts_with(mark)))
}

/// Lines of a document, with each paragraph as one, but for code.
fn paragraphs(document: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let (mut is_code, mut is_text) = (false, false);
    for line in document.lines() {
        is_code ^= line.starts_with("```");
        match lines.last_mut() {
            Some(last) if is_text && !is_code && goes_on(line) => {
                last.push('\n');
                last.push_str(line.trim_start());
            }
            _ => lines.push(line.to_owned()),
        }
        is_text = !is_code && (goes_on(line) || line.starts_with("* "));
    }
    lines
}

/// A document as the body of a manual page.
fn roff(document: &str) -> String {
    let (mut text, mut headings) = (String::new(), Vec::new());
    let mut is_code = false;
    for line in &paragraphs(document) {
        if line.starts_with("```") {
            is_code = !is_code;
            text += if is_code {
                ".PP\n.RS 4\n.nf\n"
            } else {
                ".fi\n.RE\n"
            };
            continue;
        }
        if is_code {
            let line = line.replace('\\', "\\e").replace('-', "\\-");
            let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
            writeln!(text, "{guard}{line}").unwrap();
            continue;
        }
        if !line.starts_with('|') {
            headings.clear();
        }
        match line.as_str() {
            "" => text += ".PP\n",
            line if line.starts_with("# ") => {}
            line if line.starts_with("## ") => {
                writeln!(
                    text,
                    ".SH \"{}\"",
                    inline(&line[3..])
                        .to_uppercase()
                        .replace("\\FB", "")
                        .replace("\\FR", "")
                )
                .unwrap();
            }
            line if line.starts_with("### ") => {
                writeln!(
                    text,
                    ".SS \"{}\"",
                    inline(&line[4..]).replace("\\fB", "").replace("\\fR", "")
                )
                .unwrap();
            }
            line if line.starts_with("|---") => {}
            line if line.starts_with('|') && headings.is_empty() => headings = cells(line),
            line if line.starts_with('|') => text += &entry(&headings, &cells(line)),
            line if line.starts_with("* ") => writeln!(text, ".IP \\(bu 2\n{}", inline(&line[2..])).unwrap(),
            line => writeln!(text, "{}", inline(line.trim_start())).unwrap(),
        }
    }
    while text.contains(".PP\n.PP\n") {
        text = text.replace(".PP\n.PP\n", ".PP\n");
    }
    for follows in [".SH", ".SS", ".TP", ".IP"] {
        text = text.replace(&format!(".PP\n{follows}"), follows);
    }
    text.strip_prefix(".PP\n").unwrap_or(&text).to_owned()
}

/// A page that is made from a document.
struct Page {
    document: &'static str,
    name: &'static str,
    section: u8,
    about: &'static str,
    see_also: &'static str,
}

const PAGES: [Page; 2] = [
    Page {
        document: "configuration.md",
        name: "hyperswitch.toml",
        section: 5,
        about: "configuration of a virtual switch",
        see_also: ".BR hyperswitch (1),\n.BR hyperswitch\\-check (1),\n.BR hyperswitch\\-apply (1),\n.BR hyperswitch (7)\n",
    },
    Page {
        document: "cni.md",
        name: "hyperswitch-cni",
        section: 8,
        about: "containers at a virtual switch, by CNI and netavark",
        see_also: ".BR hyperswitch (1),\n.BR hyperswitch.toml (5),\n.BR hyperswitch (7)\n",
    },
];

impl Page {
    fn file(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    fn text(&self) -> String {
        let Page {
            document,
            name,
            section,
            about,
            see_also,
        } = self;
        let text = std::fs::read_to_string(root().join("docs").join(document)).unwrap();
        let title = name.replace('-', "\\-");
        format!(
            ".\\\" Made from docs/{document} by\n\
             .\\\" HYPERSWITCH_UPDATE=1 cargo test -p hyperswitch --test pages\n\
             .TH {name} {section} \"\" hyperswitch\n.SH NAME\n{title} \\- {about}\n\
             .SH DESCRIPTION\n{}.SH \"SEE ALSO\"\n{see_also}",
            roff(&text)
        )
    }
}

#[test]
fn pages_are_their_documents() {
    for page in PAGES {
        let (file, text) = (page.file(), page.text());
        let path = root().join("packaging/man").join(&file);
        if std::env::var_os("HYPERSWITCH_UPDATE").is_some() {
            std::fs::write(path, text).unwrap();
            continue;
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == text,
            "packaging/man/{file} is out of date; run: HYPERSWITCH_UPDATE=1 cargo test -p hyperswitch --test pages"
        );
    }
}

/// Requests that troff knows, so that no word of a document has become one.
#[test]
fn pages_are_well_formed() {
    for name in ["hyperswitch.toml.5", "hyperswitch.7", "hyperswitch-cni.8"] {
        let text = std::fs::read_to_string(root().join("packaging/man").join(name)).unwrap();
        for line in text.lines().filter(|line| line.starts_with(['.', '\''])) {
            let request = line.split([' ', '\n']).next().unwrap();
            let known = [
                ".TH", ".SH", ".SS", ".TP", ".IP", ".PP", ".RS", ".RE", ".nf", ".fi", ".B", ".I", ".BR",
                ".\\\"",
            ];
            assert!(known.contains(&request), "{name}: {line}");
        }
        let count = |request: &str| text.lines().filter(|line| line.starts_with(request)).count();
        assert_eq!(count(".nf"), count(".fi"), "{name}");
        assert_eq!(count(".RS"), count(".RE"), "{name}");
        assert_eq!(
            text.matches("\\fB").count(),
            text.matches("\\fR").count(),
            "{name}"
        );
        for section in ["NAME", "DESCRIPTION", "\"SEE ALSO\""] {
            assert!(
                text.contains(&format!(".SH {section}\n")),
                "{name} has no {section}"
            );
        }
    }
}

#[test]
fn documents_become_roff() {
    let document = "# T\n\nA `code-x` and [a *link*](b.md#c).\n\n## Part\n\n| key | default | what |\n|---|---|---|\n| `a` | 1 | Is \\| it. |\n\n* one\n  more\n\n```toml\n.x = 1\n```\n";
    assert_eq!(
        roff(document),
        "A \\fBcode\\-x\\fR and a *link*.\n.SH \"PART\"\n.TP\n\\fBa\\fR\ndefault: 1.\nIs | it.\n.IP \\(bu 2\none\nmore\n.PP\n.RS 4\n.nf\n\\&.x = 1\n.fi\n.RE\n"
    );
}
