//! Runs folders of packet tests and reports: `cargo run --release -p p4-stf --example conformance -- FOLDER
//! ...`.
//!
//! Ends with 1 if a test failed, and with 2 if a folder could not be read or had no tests.

use std::path::Path;
use std::process::ExitCode;

use p4_stf::folder;

fn main() -> ExitCode {
    let folders: Vec<String> = std::env::args().skip(1).collect();
    if folders.is_empty() {
        eprintln!("usage: conformance FOLDER ...");
        return ExitCode::from(2);
    }
    let mut code = 0;
    for name in &folders {
        let tests = match folder::find(Path::new(name)) {
            Ok(tests) if !tests.is_empty() => tests,
            Ok(_) => {
                eprintln!("{name}: no tests");
                code = 2;
                continue;
            }
            Err(error) => {
                eprintln!("{error}");
                code = 2;
                continue;
            }
        };
        let outcomes: Vec<folder::Outcome> = tests
            .into_iter()
            .map(|test| {
                let result = folder::run(&test);
                (test, result)
            })
            .collect();
        if outcomes.iter().any(|(_, result)| result.is_err()) {
            code = code.max(1);
        }
        print!("{}", folder::report(name, &outcomes));
    }
    ExitCode::from(code)
}
