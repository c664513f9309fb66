//! Programs: the project's own, and others where they lie beside the repository.

#![allow(clippy::unwrap_used)]

use p4_bmv2::load;
use p4_ir::{Analysis, Checked, serial};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// All programs in the folders of a folder: name, JSON, P4Info.
fn programs(folder: &Path) -> Vec<(String, Vec<u8>, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !path.is_dir() {
            continue;
        }
        let read = |file: String| std::fs::read(path.join(file)).ok();
        let json = read(format!("{name}.json")).or_else(|| read("program.json".to_owned()));
        let p4info = read(format!("{name}.p4info.txtpb")).or_else(|| read("program.p4info.txtpb".to_owned()));
        if let Some(json) = json {
            found.push((name, json, p4info));
        }
    }
    found.sort();
    found
}

/// What holds of every program that is loaded.
fn sound(name: &str, program: &Checked) {
    let bytes = serial::encode(program);
    assert!(
        serial::decode(&bytes).unwrap() == *program,
        "{name} is another after a round trip"
    );
    let analysis = Analysis::of(program);
    for (field, mask) in &analysis.looked_at {
        assert_eq!(mask.width(), program.fields[field.index()].width, "{name}");
    }
    let bounds = program.bounds();
    assert!(
        bounds.parser_steps >= 1 || program.parser.states.is_empty(),
        "{name}: {bounds:?}"
    );
}

#[test]
fn own_programs_load_with_p4info_and_without() {
    let programs = programs(&own());
    assert_eq!(programs.len(), 15);
    for (name, json, p4info) in &programs {
        let p4info = p4info.as_ref().unwrap();
        let with = load(json, Some(p4info)).unwrap_or_else(|error| panic!("{name}: {error}"));
        sound(name, &with);
        let without = load(json, None).unwrap();
        assert_eq!(with.bounds(), without.bounds(), "{name}");
        assert!(
            with.tables
                .iter()
                .all(|table| table.identity.id.is_some() != table.hidden),
            "{name}"
        );
    }
}

#[test]
fn what_is_known_of_own_programs() {
    let load_own = |name: &str| {
        let folder = own().join(name);
        let json = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let p4info = std::fs::read(folder.join(format!("{name}.p4info.txtpb"))).unwrap();
        load(&json, Some(&p4info)).unwrap()
    };
    let router = load_own("router");
    let analysis = Analysis::of(&router);
    assert!(analysis.is_cacheable(), "{:?}", analysis.obstacles);
    let looked = analysis
        .looked_at
        .keys()
        .map(|field| router.field_name(*field))
        .collect::<Vec<_>>();
    for field in ["ethernet.dst", "ethernet.kind", "ipv4.dst", "ipv4.ttl"] {
        assert!(
            looked.iter().any(|name| name.ends_with(field)),
            "{field} is not in {looked:?}"
        );
    }
    // It is moved, and decides nothing.
    assert!(
        !looked.iter().any(|name| name.ends_with("ethernet.src")),
        "{looked:?}"
    );

    let stateful = Analysis::of(&load_own("stateful_firewall"));
    assert!(
        stateful
            .obstacles
            .iter()
            .any(|(obstacle, _)| *obstacle == p4_ir::analysis::Obstacle::Register)
    );

    let sink = load_own("kitchen_sink");
    assert_eq!(sink.bounds().passes, p4_ir::limits::PASSES);
    let tags = sink
        .tables
        .iter()
        .find(|table| table.identity.alias == "tags")
        .unwrap();
    assert!(tags.keys.iter().all(|key| key.kind == p4_ir::MatchKind::Optional));
    let first = &tags.entries[0];
    let last = tags.entries.last().unwrap();
    assert!(first.priority > last.priority, "the first entry wins");
}

/// Programs written to hurt: refused with the place, or accepted with bounds that say what they can do.
#[test]
fn malicious_programs_are_refused_or_bounded() {
    let mut seen = Vec::new();
    for (name, json, p4info) in programs(&own().join("malicious")) {
        let result = load(&json, p4info.as_deref());
        let refused = match name.as_str() {
            "parser_spin" => Some(r#"parser state "spin": the parser loops for ever"#),
            "huge_tables" => {
                Some(r#"table "TestIngress.huge_exact": entries: 10000000 is more than 4194304"#)
            }
            "huge_arrays" => Some("cells: 10000000 is more than 4194304"),
            _ => None,
        };
        match refused {
            Some(words) => {
                let error = result.expect_err(&name).to_string();
                assert!(error.contains(words), "{name}: {error}");
            }
            None => {
                let program = result.unwrap_or_else(|error| panic!("{name}: {error}"));
                sound(&name, &program);
                let bounds = *program.bounds();
                let fits = match name.as_str() {
                    "parser_stack_loop" => bounds.parser_steps <= 300 && bounds.header_bytes_read == 270,
                    "growing_packet" => {
                        bounds.header_bytes_grown == 64 && bounds.passes == p4_ir::limits::PASSES
                    }
                    "resubmit_always" | "recirculate_always" | "clone_doubling" | "multicast_storm"
                    | "digest_per_packet" => bounds.passes == p4_ir::limits::PASSES,
                    "clone_to_itself" | "register_out_of_range" => bounds.passes == 1,
                    "table_chain" => bounds.operations < 10_000,
                    "metadata_4k" => bounds.metadata_bits > 32_768 && bounds.operations < 50_000,
                    _ => panic!("{name} is new: say what is expected of it"),
                };
                assert!(fits, "{name}: {bounds:?}");
            }
        }
        seen.push(name);
    }
    assert_eq!(seen.len(), 14, "{seen:?}");
}

/// Other people's programs, if they lie beside the repository. Those that are refused are refused for these
/// reasons.
#[test]
fn programs_of_others() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/p4");
    let refused = [
        (
            "bmv2-pna-shipped_pna-demo-L2-one-table",
            "architecture PNA is not supported",
        ),
        ("bmv2-unit-shipped_config_options", "no program for v1model"),
        ("bmv2-unit-shipped_empty_config", "no program for v1model"),
        ("bmv2-unit-shipped_logging", "no program for v1model"),
        ("bmv2-unit-shipped_one_header", "no program for v1model"),
        (
            "bmv2-unit-shipped_one_extern",
            r#"extern type "DummyExtern" is not supported"#,
        ),
        (
            "bmv2_custom_extern_example",
            r#"extern type "CustomCounter" is not supported"#,
        ),
    ];
    for folder in ["stf", "programs", "large"].map(|folder| shared.join(folder)) {
        if !folder.exists() {
            continue;
        }
        for (name, json, p4info) in programs(&folder) {
            let begin = Instant::now();
            let result = load(&json, p4info.as_deref());
            let took = begin.elapsed();
            match (result, refused.iter().find(|(other, _)| *other == name)) {
                (Ok(program), None) => sound(&name, &program),
                (Err(error), Some((_, words))) => {
                    assert!(error.to_string().contains(words), "{name}: {error}")
                }
                (Ok(_), Some(_)) => panic!("{name} was loaded"),
                (Err(error), None) => panic!("{name}: {error}"),
            }
            if std::env::var_os("HYPERSWITCH_ATTACK").is_some() {
                assert!(took < Duration::from_millis(300), "{name} took {took:?}");
            }
        }
    }
}
