//! Maps: tables of modules in the comment at the head of a file.

use crate::assert_none;
use crate::source::{Source, crates};
use std::collections::BTreeSet;

/// A crate with as many modules has a map.
const MODULES: usize = 8;

/// Modules that a file declares, without those for tests.
fn declared(file: &Source) -> BTreeSet<String> {
    let lines = file.code.lines().map(str::trim);
    lines
        .filter_map(|line| {
            let (before, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
            let is_item = before.is_empty() || before.starts_with("pub");
            is_item.then(|| name.to_owned())
        })
        .collect()
}

/// Names in columns titled `module` or `file`, of all tables in a file's head; `None` without such a table.
fn mapped(file: &Source) -> Option<BTreeSet<String>> {
    let mut column = None;
    let mut names = None;
    for line in file.text.lines().map_while(|line| line.strip_prefix("//!")) {
        let cells: Vec<&str> = line.trim().split('|').map(str::trim).collect();
        let title = cells.iter().position(|cell| ["module", "file"].contains(cell));
        column = title.or(column).filter(|_| cells.len() > 2);
        if let Some(cell) = column.and_then(|column| cells.get(column))
            && title.is_none()
        {
            let code = cell
                .split('`')
                .skip(1)
                .step_by(2)
                .map(|name| name.trim_end_matches(".rs"));
            let modules = code.filter(|name| *name != "mod").map(str::to_owned);
            names.get_or_insert_with(BTreeSet::new).extend(modules);
        }
    }
    names
}

#[test]
fn maps_name_all_modules() {
    let mut wrong = Vec::new();
    for found in crates() {
        for file in &found.files {
            let (declared, mapped) = (declared(file), mapped(file));
            let is_head = file.path.ends_with("/src/lib.rs") || file.path.ends_with("/src/main.rs");
            match mapped {
                None if is_head && declared.len() >= MODULES => wrong.push(format!("{}: no map", file.path)),
                Some(mapped) if mapped != declared => {
                    let missing: Vec<_> = declared.difference(&mapped).collect();
                    let unknown: Vec<_> = mapped.difference(&declared).collect();
                    wrong.push(format!("{}: without {missing:?}, with {unknown:?}", file.path));
                }
                _ => {}
            }
        }
    }
    assert_none(&wrong, "maps are not complete");
}
