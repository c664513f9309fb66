//! The shape of the workspace: allowed dependencies between crates, and crates that may contain `unsafe`, as
//! `dependencies.toml` lists them.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(serde::Deserialize)]
struct Allowed {
    r#unsafe: BTreeSet<String>,
    #[serde(rename = "unsafe-tests")]
    unsafe_tests: BTreeSet<String>,
    edges: BTreeMap<String, BTreeSet<String>>,
}

/// A crate of ours, as cargo sees it.
struct Crate {
    directory: PathBuf,
    /// Dependencies on crates of ours, with whether they are for tests only.
    dependencies: BTreeSet<(String, bool)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .canonicalize()
        .unwrap()
}

fn allowed() -> Allowed {
    toml::from_str(&std::fs::read_to_string(root().join("dependencies.toml")).unwrap()).unwrap()
}

fn crates() -> BTreeMap<String, Crate> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version=1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<String> = packages.iter().map(|package| text(&package["name"])).collect();
    let dependencies = |package: &serde_json::Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        all.map(|dependency| (text(&dependency["name"]), dependency["kind"] == "dev"))
            .filter(|(name, _)| ours.contains(name))
            .collect()
    };
    packages
        .iter()
        .map(|package| {
            let manifest = PathBuf::from(text(&package["manifest_path"]));
            let directory = manifest.parent().unwrap().to_owned();
            (
                text(&package["name"]),
                Crate {
                    directory,
                    dependencies: dependencies(package),
                },
            )
        })
        .collect()
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What is wrong with these dependencies, in sentences.
fn wrong_edges(crates: &BTreeMap<String, Crate>, allowed: &Allowed) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, found) in crates {
        let Some(edges) = allowed.edges.get(name) else {
            wrong.push(format!("{name} is not listed"));
            continue;
        };
        for (target, for_tests) in &found.dependencies {
            let in_tests = *for_tests && target == "testbed";
            if !edges.contains(target) && !in_tests {
                wrong.push(format!("{name} may not depend on {target}"));
            }
        }
    }
    for name in allowed
        .edges
        .keys()
        .chain(&allowed.r#unsafe)
        .chain(allowed.edges.values().flatten())
    {
        if !crates.contains_key(name) {
            wrong.push(format!("{name} is listed but does not exist"));
        }
    }
    wrong
}

#[test]
fn dependencies_are_those_allowed() {
    let wrong = wrong_edges(&crates(), &allowed());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_allowed_edges_point_one_way() {
    let allowed = allowed();
    let mut rest = allowed.edges.clone();
    // Crates without dependencies among the remaining ones are removed; a cycle would remain.
    while let Some(leaf) = rest
        .iter()
        .find(|(_, edges)| !edges.iter().any(|edge| rest.contains_key(edge)))
    {
        let leaf = leaf.0.clone();
        rest.remove(&leaf);
    }
    assert!(rest.is_empty(), "in a cycle: {:?}", rest.keys());
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let allowed = allowed();
    let mut wrong = Vec::new();
    for (name, found) in crates() {
        if allowed.r#unsafe.contains(&name) {
            continue;
        }
        let roots = ["src/lib.rs", "src/main.rs"].map(|file| found.directory.join(file));
        for root in roots.iter().filter(|root| root.exists()) {
            if !std::fs::read_to_string(root)
                .unwrap()
                .contains("\n#![forbid(unsafe_code)]")
            {
                wrong.push(format!("{} lacks #![forbid(unsafe_code)]", root.display()));
            }
        }
        let mut files = Vec::new();
        let searched = if allowed.unsafe_tests.contains(&name) {
            "src"
        } else {
            ""
        };
        rust_files(&found.directory.join(searched), &mut files);
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            // Put together, so that this file does not contain what it looks for.
            for thing in ["{", "fn", "impl", "extern"].map(|after| ["unsafe", after].join(" ")) {
                if text.contains(&thing) {
                    wrong.push(format!("{} contains `{thing}`", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Words between backticks.
fn code_words(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// `ARCHITECTURE.md` names no file that does not exist.
#[test]
fn files_that_the_architecture_names_exist() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    // Diagrams have no words between single backticks.
    let prose: String = text.split("```").step_by(2).collect();
    let places = ["crates/", "docs/", "packaging/", "scripts/"];
    let named: Vec<&str> = code_words(&prose)
        .filter(|word| places.iter().any(|place| word.starts_with(place)) || word.ends_with(".toml"))
        .collect();
    assert!(named.len() > 10, "{named:?}");
    let missing: Vec<_> = named.iter().filter(|name| !root().join(name).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The code map of `ARCHITECTURE.md` has every crate in its folder, marked if it may be unsafe, and no other.
#[test]
fn the_code_map_is_complete() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.split("\n| crate | what |\n|---|---|\n").nth(1).unwrap();
    let rows = rows.lines().map_while(|line| line.strip_prefix("| `"));
    let mapped: BTreeMap<String, bool> = rows
        .map(|row| {
            let (name, rest) = row.split_once('`').unwrap();
            (name.to_owned(), rest.starts_with(" u "))
        })
        .collect();
    let allowed = allowed();
    let folder = root().join("crates");
    let expected = crates()
        .into_iter()
        .map(|(name, found)| {
            let place = found.directory.strip_prefix(&folder).unwrap();
            (place.display().to_string(), allowed.r#unsafe.contains(&name))
        })
        .collect();
    assert_eq!(mapped, expected);
}

/// The checks above can fail.
#[test]
fn a_forbidden_edge_is_found() {
    let allowed = Allowed {
        r#unsafe: BTreeSet::new(),
        unsafe_tests: BTreeSet::new(),
        edges: BTreeMap::from([("a".into(), BTreeSet::new()), ("gone".into(), BTreeSet::new())]),
    };
    let krate = |dependencies: &[(&str, bool)]| Crate {
        directory: PathBuf::new(),
        dependencies: dependencies
            .iter()
            .map(|(name, test)| ((*name).to_owned(), *test))
            .collect(),
    };
    let crates = BTreeMap::from([
        (
            "a".to_owned(),
            krate(&[("b", false), ("b", true), ("testbed", true)]),
        ),
        ("b".to_owned(), krate(&[])),
    ]);
    let expected = [
        "a may not depend on b",
        "a may not depend on b",
        "b is not listed",
        "gone is listed but does not exist",
    ];
    assert_eq!(wrong_edges(&crates, &allowed), expected);
}
