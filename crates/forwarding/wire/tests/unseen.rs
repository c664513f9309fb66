//! A parser that sees a part of a frame beside one that sees all of it: what the first one says is right, or
//! it says that it does not know.

mod common;

use common::frames::plausible_frames;
use flow::{FIELDS, FieldId, PortId, Unseen};
use proptest::prelude::*;
use wire::{Parsed, exact_key, parse};

/// Compares what is known of each field, by the first `len` bytes, with what the whole frame says.
fn check(frame: &[u8], len: usize, whole: &Parsed) -> Result<(), TestCaseError> {
    let part = parse(&frame[..len], frame.len(), PortId(1));
    for (&id, field) in FieldId::ALL
        .iter()
        .zip(FIELDS)
        .filter(|(_, field)| !field.is_in_context())
    {
        if !part.unseen.hides(id) {
            let [known, expected] = [&part, whole].map(|parsed| field.get(&parsed.key.words));
            prop_assert_eq!(known, expected, "{} at {}", field.name, len);
        }
    }
    let (mut key, mut layers) = Default::default();
    let is_whole = exact_key(&frame[..len], frame.len() - len, PortId(1), &mut key, &mut layers);
    prop_assert_eq!((key.unseen(), is_whole), (part.unseen, part.unseen.is_nothing()));
    prop_assert_eq!(key.flow_key().unwrap_or(part.key), part.key);
    prop_assert!(
        is_whole || !key.is_none(),
        "what is unknown is told by exact keys"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn each_field_at_each_cut_is_right_or_unknown(frame in plausible_frames()) {
        let whole = parse(&frame, frame.len(), PortId(1));
        prop_assert_eq!(whole.unseen, Unseen::Nothing);
        for len in 0..=frame.len() {
            check(&frame, len, &whole)?;
        }
    }
}
