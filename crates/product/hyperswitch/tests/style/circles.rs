//! Files of a crate that use each other in a circle: rooms without walls between them.

use crate::assert_none;
use crate::source::{Crate, Source, crates};
use std::collections::{BTreeMap, BTreeSet};

/// Files in a circle.
const LARGEST: usize = 3;

type Path = Vec<String>;

/// What the `use` items of a file name, each as a path from the crate's root, and whether an item passes the
/// name on.
fn used(file: &Source, modules: &BTreeSet<Path>) -> Vec<(Path, bool)> {
    let mut found = Vec::new();
    let mut rest = file.code.as_str();
    while let Some(at) = rest.find("use ") {
        let line = &rest[rest[..at].rfind('\n').map_or(0, |end| end + 1)..at];
        rest = &rest[at + 4..];
        let is_item = line.trim().is_empty() || line.trim().starts_with("pub") && !line.contains('=');
        if !is_item {
            continue;
        }
        let tree: String = rest[..rest.find(';').unwrap()]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        let mut paths = Vec::new();
        expand("", &tree, &mut paths);
        let absolute = paths
            .iter()
            .filter_map(|path| absolute(path, &file.module, modules));
        found.extend(absolute.map(|path| (path, !line.trim().is_empty())));
    }
    found
}

/// The paths of a tree of `use`.
fn expand(before: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, inner)) = tree.split_once('{') else {
        let name = tree.split(" as ").next().unwrap_or(tree);
        paths.push(format!("{before}{}", name.trim()));
        return;
    };
    let before = format!("{before}{}", head.trim());
    let inner = &inner[..inner.rfind('}').unwrap()];
    let mut depth = 0;
    let mut from = 0;
    for (at, byte) in inner.bytes().chain([b',']).enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                if !inner[from..at].trim().is_empty() {
                    expand(&before, &inner[from..at], paths);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// A path from the crate's root; `None` for one that leads out of the crate.
fn absolute(path: &str, module: &Path, modules: &BTreeSet<Path>) -> Option<Path> {
    let mut parts: Vec<&str> = path.split("::").filter(|part| *part != "*").collect();
    parts.pop_if(|last| *last == "self");
    let mut base = match *parts.first()? {
        "crate" => Vec::new(),
        "self" | "super" => module.clone(),
        name => {
            let child = [&module[..], &[name.to_owned()]].concat();
            return modules
                .contains(&child)
                .then(|| [&module[..], &owned(&parts)].concat());
        }
    };
    let ups = parts.iter().take_while(|part| **part == "super").count();
    base.truncate(base.len().saturating_sub(ups));
    Some([base, owned(&parts[ups.max(1)..])].concat())
}

fn owned(parts: &[&str]) -> Path {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

/// The module in which the thing at a path is defined: names that are passed on are followed.
fn defined(path: &Path, modules: &BTreeSet<Path>, passed_on: &BTreeMap<Path, Path>) -> Path {
    let mut path = path.clone();
    for _ in 0..5 {
        let Some(next) = passed_on.get(&path) else { break };
        path.clone_from(next);
    }
    while !modules.contains(&path) {
        path.pop();
    }
    path
}

/// Which file of a crate uses which. A part may use what the whole defines to which it belongs, so arrows to
/// the module that a file lies in do not count.
fn arrows(found: &Crate) -> BTreeMap<Path, BTreeSet<Path>> {
    let modules: BTreeSet<Path> = found
        .files
        .iter()
        .map(|file| file.module.clone())
        .chain([Vec::new()])
        .collect();
    let uses: Vec<_> = found
        .files
        .iter()
        .map(|file| (&file.module, used(file, &modules)))
        .collect();
    let mut passed_on = BTreeMap::new();
    for (module, paths) in &uses {
        for (path, _) in paths
            .iter()
            .filter(|(path, is_passed_on)| *is_passed_on && !path.is_empty())
        {
            let here = [&module[..], &path[path.len() - 1..]].concat();
            if here != *path {
                passed_on.insert(here, path.clone());
            }
        }
    }
    let mut arrows: BTreeMap<Path, BTreeSet<Path>> = BTreeMap::new();
    for (module, paths) in uses {
        let targets = paths.iter().filter(|(_, is_passed_on)| !is_passed_on);
        let targets = targets.map(|(path, _)| defined(path, &modules, &passed_on));
        let targets = targets.filter(|target| !module.starts_with(target));
        arrows.entry(module.clone()).or_default().extend(targets);
    }
    arrows
}

/// Modules that can be reached from one.
fn reached(from: &Path, arrows: &BTreeMap<Path, BTreeSet<Path>>) -> BTreeSet<Path> {
    let mut found = BTreeSet::new();
    let mut left = vec![from];
    while let Some(module) = left.pop() {
        for next in arrows.get(module).into_iter().flatten() {
            if found.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    found
}

/// Sets of modules each of which reaches each other one.
fn circles(arrows: &BTreeMap<Path, BTreeSet<Path>>) -> BTreeSet<BTreeSet<Path>> {
    let reached: BTreeMap<&Path, BTreeSet<Path>> = arrows
        .keys()
        .map(|module| (module, reached(module, arrows)))
        .collect();
    let circle = |module: &&Path| {
        let there = reached[*module].iter();
        there
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(*module)))
            .cloned()
            .collect()
    };
    reached.keys().map(circle).collect()
}

#[test]
fn files_do_not_use_each_other_in_large_circles() {
    let mut wrong = Vec::new();
    for found in crates() {
        let large = circles(&arrows(&found))
            .into_iter()
            .filter(|circle| circle.len() > LARGEST);
        for circle in large {
            let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
            wrong.push(format!("{}: {}", found.name, names.join(", ")));
        }
    }
    assert_none(&wrong, "circles are too large");
}

#[test]
fn a_circle_is_found() {
    let source = |name: &str, code: &str| Source {
        path: String::new(),
        module: name
            .split('/')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect(),
        text: String::new(),
        code: code.to_owned(),
    };
    let found = Crate {
        name: String::new(),
        files: vec![
            source("", "mod a;\npub use b::{B, c};\n"),
            source("a", "use crate::{B, other::X};\nuse std::io;\n"),
            source("b", "pub(crate) mod c;\nuse c::C as D;\n"),
            source("b/c", "use super::B;\nuse crate::a::*;\n"),
        ],
    };
    let path = |name: &str| -> Path { name.split('/').map(str::to_owned).collect() };
    let expected = BTreeSet::from([path("a"), path("b"), path("b/c")]);
    let circles = circles(&arrows(&found));
    assert!(circles.contains(&expected), "{circles:?}");
}
