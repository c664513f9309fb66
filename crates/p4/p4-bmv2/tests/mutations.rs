//! Programs with a few bytes changed: whatever comes out, nothing panics, hangs or grows.

#![allow(clippy::unwrap_used)]

use p4_bmv2::load;
use p4_ir::serial;
use proptest::prelude::*;
use std::path::Path;
use std::sync::OnceLock;

type Files = Vec<(Vec<u8>, Vec<u8>, Vec<u8>)>;

/// JSON, P4Info, serialised form of some programs.
fn files() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| {
        let read = |name: &&str| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
            let json = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
            let p4info = std::fs::read(folder.join(format!("{name}.p4info.txtpb"))).unwrap();
            let serialised = serial::encode(&load(&json, Some(&p4info)).unwrap());
            (json, p4info, serialised)
        };
        ["l2_switch", "router", "kitchen_sink"].iter().map(read).collect()
    })
}

/// Places and new bytes; a place is taken modulo the length.
fn changes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((any::<usize>(), any::<u8>()), 1..6)
}

fn apply(bytes: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, byte) in changes {
        let at = at % bytes.len();
        match byte % 5 {
            0 => bytes[at] = *byte,
            // Digits and words for digits and words: what stays JSON gets further.
            1 => bytes[at] = b"0123456789abcdef\"{}[],:"[usize::from(*byte) % 23],
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, *byte),
            _ => bytes[at] ^= 1 << (byte % 8),
        }
    }
    bytes
}

/// One number of the JSON is another.
fn number(json: &[u8], at: usize, value: u32) -> Vec<u8> {
    let text = String::from_utf8(json.to_vec()).unwrap();
    let places = text.match_indices(" : ").map(|(at, _)| at + 3);
    let places = places
        .filter(|at| text.as_bytes()[*at].is_ascii_digit())
        .collect::<Vec<_>>();
    let from = places[at % places.len()];
    let to = from + text[from..].find(|c: char| !c.is_ascii_digit()).unwrap();
    format!("{}{value}{}", &text[..from], &text[to..]).into_bytes()
}

/// One name of the JSON is another that is there.
fn name(json: &[u8], at: usize, other: usize) -> Vec<u8> {
    let text = String::from_utf8(json.to_vec()).unwrap();
    let quotes = text.match_indices('"').map(|(at, _)| at).collect::<Vec<_>>();
    let words = quotes
        .chunks_exact(2)
        .map(|pair| (pair[0] + 1, pair[1]))
        .collect::<Vec<_>>();
    let (from, to) = words[at % words.len()];
    let (a, b) = words[other % words.len()];
    format!("{}{}{}", &text[..from], &text[a..b], &text[to..]).into_bytes()
}

/// As many cases as PROPTEST_CASES says, or a few.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 150;
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn changed_json(which in 0..3usize, changes in changes()) {
        let (json, p4info, _) = &files()[which];
        let _ = load(&apply(json, &changes), Some(p4info));
    }

    #[test]
    fn other_numbers(which in 0..3usize, at in any::<usize>(), value in any::<u32>()) {
        let (json, p4info, _) = &files()[which];
        if let Ok(program) = load(&number(json, at, value), Some(p4info)) {
            let _ = p4_ir::Analysis::of(&program);
        }
    }

    #[test]
    fn other_names(which in 0..3usize, at in any::<usize>(), other in any::<usize>()) {
        let (json, p4info, _) = &files()[which];
        if let Ok(program) = load(&name(json, at, other), Some(p4info)) {
            let _ = p4_ir::Analysis::of(&program);
            prop_assert!(serial::decode(&serial::encode(&program)).is_ok());
        }
    }

    #[test]
    fn changed_p4info(which in 0..3usize, changes in changes()) {
        let (json, p4info, _) = &files()[which];
        let _ = load(json, Some(&apply(p4info, &changes)));
    }

    #[test]
    fn changed_serialised_form(which in 0..3usize, changes in changes()) {
        let (_, _, bytes) = &files()[which];
        if let Ok(program) = serial::decode(&apply(bytes, &changes)) {
            // What passes the checker can be analysed and written again.
            let _ = p4_ir::Analysis::of(&program);
            prop_assert_eq!(serial::decode(&serial::encode(&program)).ok(), Some(program));
        }
    }
}

#[test]
fn serialised_forms_of_other_kinds_are_refused() {
    let (_, _, bytes) = &files()[0];
    assert!(matches!(
        serial::decode(b"ELF"),
        Err(serial::DecodeError::NoProgram)
    ));
    assert!(matches!(
        serial::decode(b"P4IR"),
        Err(serial::DecodeError::NoProgram)
    ));
    let mut other = bytes.clone();
    other[5] = other[5].wrapping_add(1);
    assert!(matches!(
        serial::decode(&other),
        Err(serial::DecodeError::Version(_))
    ));
    for at in 6..bytes.len() {
        assert!(serial::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(matches!(
        serial::decode(&longer),
        Err(serial::DecodeError::Damaged)
    ));
    let huge = vec![0; p4_ir::limits::SERIALISED + 1];
    assert!(matches!(
        serial::decode(&huge),
        Err(serial::DecodeError::TooLong(_))
    ));
}
