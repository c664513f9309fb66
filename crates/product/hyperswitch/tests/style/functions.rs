//! Lengths of functions.

use crate::assert_none;
use crate::source::{Source, closing, crates};

/// Lines of a function's body, both braces included.
const LONGEST: usize = 70;

/// Lines that all bodies but one in a hundred have at most.
const USUALLY: usize = 45;

/// Longer functions: one `match` over a list of operations, each with an arm of a few lines. Such a table is
/// read arm by arm, and cutting it in two hides that it is complete.
const TABLES: &[&str] = &[
    "crates/control/control/src/serve.rs:serve",
    "crates/forwarding/datapath/src/requests.rs:serve",
    "crates/p4/p4-bmv2/src/expr/arithmetic.rs:arithmetic",
    "crates/p4/p4-bmv2/src/expr/arithmetic.rs:low",
    "crates/p4/p4-bmv2/src/expr.rs:operator",
    "crates/p4/p4-interpreter/src/machine/mod.rs:exec",
    "crates/p4/p4-interpreter/src/machine/wide.rs:wide_values",
    "crates/p4/p4-ir/src/check/expr.rs:type_of",
    "crates/p4/p4-ir/src/text.rs:write_expr",
    "crates/p4/p4-ir/src/text.rs:op_text",
    "crates/p4/p4-twin/src/evaluate/expression.rs:evaluate",
    "crates/p4/p4-twin/src/evaluate/operation.rs:operate",
];

/// Names of a file's functions, with the lines where they begin and the lines of their bodies.
fn functions(file: &Source) -> Vec<(String, usize, usize)> {
    let code = &file.code;
    let begins = code
        .match_indices("fn ")
        .filter(|(at, _)| !code[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_'));
    begins
        .filter_map(|(at, _)| {
            let rest = &code[at + 3..];
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
            let from = body(code, at).filter(|_| !name.is_empty())?;
            let lines = code[from..closing(code, from)].matches('\n').count() + 1;
            Some((name.to_owned(), code[..at].matches('\n').count() + 1, lines))
        })
        .collect()
}

/// Where the body of the function begins that is declared at a place; `None` if it has none.
fn body(code: &str, declared: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(declared) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at),
            b';' | b'}' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

#[test]
fn functions_are_short() {
    let mut lengths = Vec::new();
    let mut wrong = Vec::new();
    for file in crates().iter().flat_map(|found| &found.files) {
        for (name, line, length) in functions(file) {
            lengths.push(length);
            let name = format!("{}:{name}", file.path);
            if length > LONGEST && !TABLES.contains(&name.as_str()) {
                wrong.push(format!("{name} (line {line}): {length} lines"));
            }
        }
    }
    assert_none(&wrong, "functions are too long");
    lengths.sort_unstable();
    assert!(lengths.len() > 5000, "{}", lengths.len());
    let usually = lengths[lengths.len() * 99 / 100];
    assert!(
        usually <= USUALLY,
        "one function in a hundred has {usually} lines or more"
    );
}
