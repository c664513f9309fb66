use super::*;
use crate::proto::{ExactMatch, FieldMatch, FieldMatchType, TernaryMatch, update_type};
use crate::testing::{self, read_as, update};
use tonic::Code::{AlreadyExists, InvalidArgument, NotFound, PermissionDenied, ResourceExhausted};
use update_type::{DELETE, INSERT, MODIFY};

fn pipeline() -> Pipeline {
    Pipeline::load(Some(&testing::program("kitchen_sink").0)).unwrap()
}

fn exact(field_id: u32, value: &[u8]) -> ValueSetMember {
    let value = value.to_vec();
    ValueSetMember {
        r#match: vec![FieldMatch {
            field_id,
            field_match_type: Some(FieldMatchType::Exact(ExactMatch { value })),
        }],
    }
}

fn set(pipeline: &Pipeline, members: &[ValueSetMember]) -> Kind {
    Kind::ValueSet(Box::new(ValueSetEntry {
        value_set_id: pipeline.program.value_sets[0].identity.id.unwrap(),
        members: members.to_vec(),
    }))
}

fn read(pipeline: &Pipeline, value_set_id: u32) -> Vec<Kind> {
    let entry = ValueSetEntry {
        value_set_id,
        members: Vec::new(),
    };
    read_as(pipeline, Kind::ValueSet(Box::new(entry)), &Scope::Full).unwrap()
}

#[test]
fn value_sets_are_replaced_and_read_as_they_were_written() {
    let mut sink = pipeline();
    let id = sink.program.value_sets[0].identity.id.unwrap();
    let empty = set(&sink, &[]);
    assert_eq!(read(&sink, 0), std::slice::from_ref(&empty));
    let two = set(&sink, &[exact(1, &[0x22, 0xf3]), exact(1, &[0])]);
    sink.apply(&update(MODIFY, two.clone()), &Scope::Full).unwrap();
    assert_eq!(sink.changed, Changed::All);
    assert_eq!(
        (read(&sink, 0), read(&sink, id)),
        (vec![two.clone()], vec![two.clone()])
    );
    let bytes = sink.encode().unwrap();
    let mut next = pipeline();
    next.inherit(&Pipeline::decode(&bytes).unwrap().unwrap()).unwrap();
    assert_eq!(read(&next, 0), [two]);
    next.program.value_sets[0].parts[0].1 = 8;
    assert!(next.inherit(&sink).unwrap_err().text.contains("skipped_kinds"));
    sink.apply(&update(MODIFY, empty.clone()), &Scope::Full).unwrap();
    assert_eq!(read(&sink, id), [empty]);
}

#[test]
fn wrong_value_sets_are_refused_and_change_nothing() {
    let mut sink = pipeline();
    let right = set(&sink, &[exact(1, &[7])]);
    sink.apply(&update(MODIFY, right.clone()), &Scope::Full).unwrap();
    let ternary = ValueSetMember {
        r#match: vec![FieldMatch {
            field_id: 1,
            field_match_type: Some(FieldMatchType::Ternary(TernaryMatch {
                value: vec![1],
                mask: vec![1],
            })),
        }],
    };
    let many: Vec<_> = (1..=5).map(|value| exact(1, &[value])).collect();
    let unknown = Kind::ValueSet(Box::new(ValueSetEntry {
        value_set_id: 7,
        members: Vec::new(),
    }));
    let cases = [
        (INSERT, right.clone(), InvalidArgument),
        (DELETE, right.clone(), InvalidArgument),
        (MODIFY, unknown, NotFound),
        (MODIFY, set(&sink, &[exact(2, &[1])]), InvalidArgument),
        (MODIFY, set(&sink, &[exact(1, &[])]), InvalidArgument),
        (MODIFY, set(&sink, &[exact(1, &[1, 0, 0])]), InvalidArgument),
        (MODIFY, set(&sink, &[ValueSetMember::default()]), InvalidArgument),
        (MODIFY, set(&sink, &[ternary]), InvalidArgument),
        (
            MODIFY,
            set(&sink, &[exact(1, &[1]), exact(1, &[0, 1])]),
            AlreadyExists,
        ),
        (MODIFY, set(&sink, &many), ResourceExhausted),
    ];
    for (verb, wrong, expected) in cases {
        let refused = sink
            .apply(&update(verb, wrong.clone()), &Scope::Full)
            .unwrap_err();
        assert_eq!(refused.code, expected, "{wrong:?}");
        assert_eq!(read(&sink, 0), std::slice::from_ref(&right));
    }
    let other = Scope::Part {
        writes: [1].into(),
        reads: Default::default(),
        replicates: true,
        sets_pipeline: true,
        has_packets: true,
    };
    let denied = sink.apply(&update(MODIFY, right), &other).unwrap_err();
    assert_eq!(denied.code, PermissionDenied);
}
