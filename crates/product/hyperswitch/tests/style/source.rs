//! Rust source without what is no code, and without tests.

use std::path::{Path, PathBuf};

/// A file of a crate's `src`.
pub struct Source {
    /// The path from the workspace's root.
    pub path: String,
    /// Names of the modules that lead to the file, the crate's own not among them.
    pub module: Vec<String>,
    /// The text as it is.
    pub text: String,
    /// The text with blanks instead of comments, literals, and code that is compiled for tests only. Lines
    /// stay where they are.
    pub code: String,
}

/// The crate's files, without those of tests.
pub struct Crate {
    pub name: String,
    pub files: Vec<Source>,
}

/// All Rust files below a folder.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// All crates, `crates/<folder>/<crate>`.
pub fn crates() -> Vec<Crate> {
    let children = |folder: &Path| {
        std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    let mut found: Vec<Crate> = children(&crate::root().join("crates"))
        .flat_map(|folder| children(&folder).collect::<Vec<_>>())
        .map(|path| read_crate(&path))
        .collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(found.len() > 30, "{} crates", found.len());
    found
}

fn read_crate(path: &Path) -> Crate {
    let src = path.join("src");
    let mut files: Vec<Source> = rust_files(&src).iter().map(|file| read(&src, file)).collect();
    let tests: Vec<Vec<String>> = files.iter().flat_map(test_modules).collect();
    files.retain(|file| !tests.iter().any(|test| file.module.starts_with(test)));
    Crate {
        name: path.file_name().unwrap().to_str().unwrap().to_owned(),
        files,
    }
}

fn read(src: &Path, file: &Path) -> Source {
    let text = std::fs::read_to_string(file).unwrap();
    let inside = file.strip_prefix(src).unwrap().with_extension("");
    let mut module: Vec<String> = inside
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect();
    module.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
    Source {
        path: file
            .strip_prefix(crate::root())
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned(),
        module,
        code: without_tests(&only_code(&text)),
        text,
    }
}

/// The modules in files of their own that a file declares for tests.
fn test_modules(file: &Source) -> Vec<Vec<String>> {
    let code = only_code(&file.text);
    let items = test_items(&code).into_iter();
    let items = items.map(|(from, to)| (code[from..to].to_owned(), &file.text[from..to]));
    items
        .filter_map(|(item, text)| {
            let name = item.strip_suffix(';')?.split_whitespace().next_back()?;
            // A path like that in `#[path = "device_tests.rs"]` begins at the folder of the file.
            let stem = text
                .split_once("path = \"")
                .and_then(|(_, path)| path.split_once(".rs"));
            let module = match stem {
                Some((stem, _)) => [
                    &file.module[..file.module.len().saturating_sub(1)],
                    &[stem.to_owned()],
                ],
                None => [&file.module[..], &[name.to_owned()]],
            };
            item.contains("mod ").then(|| module.concat())
        })
        .collect()
}

/// Places of items with an attribute like `#[cfg(test)]`, from the attribute to the closing brace or
/// semicolon.
fn test_items(code: &str) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for (from, _) in code.match_indices("#[cfg(") {
        let condition = &code[from..from + code[from..].find(']').unwrap()];
        let words = condition
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect::<Vec<_>>();
        let is_inside = found.last().is_some_and(|(_, to)| from < *to);
        if is_inside || !words.contains(&"test") || words.contains(&"not") {
            continue;
        }
        let to = item_end(code, from);
        found.push((from, to));
    }
    found
}

/// The place behind an item, a field or a statement that begins with the attribute at `from`.
fn item_end(code: &str, from: usize) -> usize {
    let what = from + code[from..].find(']').unwrap() + 1;
    let is_item = [
        "pub", "mod", "fn", "impl", "use", "const", "struct", "enum", "type", "trait", "static", "unsafe",
    ];
    let is_item = is_item
        .iter()
        .any(|word| code[what..].trim_start().starts_with(word));
    for (at, byte) in code.bytes().enumerate().skip(what) {
        match byte {
            b'{' => return closing(code, at) + 1,
            b';' => return at + 1,
            b',' | b'}' if !is_item => return at,
            _ => {}
        }
    }
    code.len()
}

fn without_tests(code: &str) -> String {
    let mut rest = code.to_owned();
    for (from, to) in test_items(code) {
        rest.replace_range(from..to, &blanks(&code[from..to]));
    }
    rest
}

/// The place of the brace that closes the one at `from`.
pub fn closing(code: &str, from: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    panic!(
        "no closing brace after {}",
        &code[from..code.len().min(from + 80)]
    );
}

/// As many blanks as there are bytes, and the line ends.
fn blanks(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte == b'\n' { '\n' } else { ' ' })
        .collect()
}

/// The text with blanks instead of comments and of literals of strings and characters.
fn only_code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut after_word = false;
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest, after_word);
        let (piece, blank) = if length == 0 {
            (first.len_utf8(), false)
        } else {
            (length, true)
        };
        if blank {
            code += &blanks(&rest[..piece]);
        } else {
            code += &rest[..piece];
        }
        after_word = first.is_alphanumeric() || first == '_';
        rest = &rest[piece..];
    }
    code
}

/// Bytes of the comment or literal with which `text` begins; 0 if it begins with neither.
fn skipped(text: &str, after_word: bool) -> usize {
    let to = |end: &str, from: usize| {
        text[from..]
            .find(end)
            .map_or(text.len(), |at| from + at + end.len())
    };
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return to("*/", 2);
    }
    if text.starts_with('"') {
        return quoted(text);
    }
    if text.starts_with('\'') {
        return character(text);
    }
    let raw = ["br", "cr", "r"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix));
    if let Some(raw) = raw.filter(|_| !after_word) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let begin = text.len() - raw.len() + hashes + 1;
            return to(&format!("\"{}", "#".repeat(hashes)), begin);
        }
    }
    0
}

/// Bytes of a literal in quotation marks.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Bytes of the literal of a character, 0 for a lifetime.
fn character(text: &str) -> usize {
    let mut inside = text[1..].chars();
    let first = inside.next().unwrap_or(' ');
    if first == '\\' {
        return text[3..].find('\'').map_or(0, |at| at + 4);
    }
    if inside.next() == Some('\'') {
        first.len_utf8() + 2
    } else {
        0
    }
}

/// Text of all kinds of literals and comments is blank, code stays where it was.
#[test]
fn comments_and_literals_are_no_code() {
    let text = "fn f<'a>(x: &'a str) { // {\n let y = ['{', '\\'', '\\u{7b}']; \"{\\\"\"; r#\"\"{\"#; /* { */ }\n#[cfg(test)]\nmod t { }\nfn g() {}";
    let code = only_code(text);
    assert_eq!(code.len(), text.len());
    assert_eq!(code.matches(['{', '\'']).count(), 3 + 2, "{code}");
    assert!(without_tests(&code).ends_with("fn g() {}"));
    assert!(!without_tests(&code).contains("mod"));
}
