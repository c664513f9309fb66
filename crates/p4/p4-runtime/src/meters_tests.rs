use super::*;
use crate::proto::{
    Entity, FieldMatch, FieldMatchType, Param, TableEntry, TernaryMatch, Update, update_type,
};
use crate::testing::{self, read_as, update};
use tonic::Code;
use tonic::Code::{InvalidArgument, NotFound, OutOfRange, Unimplemented};
use update_type::{DELETE, INSERT, MODIFY};

fn pipeline(name: &str) -> Pipeline {
    Pipeline::load(Some(&testing::program(name).0)).unwrap()
}

fn code(pipeline: &mut Pipeline, verb: i32, kind: Kind) -> Code {
    let done = pipeline.apply(&update(verb, kind), &Scope::Full);
    done.map_or_else(|failure| failure.code, |_| Code::Ok)
}

#[test]
fn meters_have_rates_of_one_cell_or_of_all() {
    let mut limiter = pipeline("rate_limiter");
    let number = limiter
        .program
        .meters
        .iter()
        .position(|meter| meter.table.is_none())
        .unwrap();
    let meter = limiter.program.meters[number].clone();
    let write = |cell: Option<i64>, config: Option<MeterConfig>| {
        Kind::MeterEntry(Box::new(MeterEntry {
            meter_id: meter.identity.id.unwrap(),
            index: cell.map(|index| Index { index }),
            config,
            counter_data: None,
        }))
    };
    let rates = |cir, pir| {
        Some(MeterConfig {
            cir,
            cburst: 10,
            pir,
            pburst: 20,
        })
    };
    assert_eq!(
        code(&mut limiter, MODIFY, write(Some(1), rates(100, 200))),
        Code::Ok
    );
    assert_eq!(
        code(&mut limiter, MODIFY, write(Some(1), rates(100, 300))),
        Code::Ok
    );
    assert_eq!(limiter.setup.meters.len(), 1);
    assert_eq!(limiter.setup.meters[0].peak.per_second, 300);
    assert_eq!(code(&mut limiter, MODIFY, write(Some(1), None)), Code::Ok);
    assert!(limiter.setup.meters.is_empty());
    assert_eq!(code(&mut limiter, MODIFY, write(Some(1), rates(1, 2))), Code::Ok);
    assert_eq!(code(&mut limiter, MODIFY, write(None, rates(5, 6))), Code::Ok);
    assert_eq!(limiter.setup.meters.len(), 1, "one rate for all");
    assert_eq!(code(&mut limiter, MODIFY, write(Some(1), None)), Unimplemented);
    let cases = [
        (write(Some(1), rates(-1, 2)), InvalidArgument),
        (write(Some(1), rates(3, 2)), InvalidArgument),
        (write(Some(meter.size.into()), rates(1, 2)), OutOfRange),
    ];
    for (wrong, expected) in cases {
        assert_eq!(code(&mut limiter, MODIFY, wrong), expected);
    }
    assert_eq!(limiter.setup.meters.len(), 1);
}

fn config(cir: i64, pir: i64) -> MeterConfig {
    MeterConfig {
        cir,
        cburst: 10,
        pir,
        pburst: 20,
    }
}

/// An entry of the limiter's flows: packets of a port.
fn flow(limiter: &Pipeline, port: u8) -> TableEntry {
    let ternary = FieldMatchType::Ternary(TernaryMatch {
        value: vec![port],
        mask: vec![1, 0xff],
    });
    TableEntry {
        table_id: testing::table_id(&limiter.program, "flows"),
        r#match: vec![FieldMatch {
            field_id: 1,
            field_match_type: Some(ternary),
        }],
        action: Some(testing::direct(
            testing::action(&limiter.program, "measure"),
            Vec::<Param>::new(),
        )),
        priority: 10,
        ..TableEntry::default()
    }
}

fn entry(entry: TableEntry) -> Kind {
    Kind::TableEntry(Box::new(entry))
}

fn meter(table_entry: Option<TableEntry>, config: Option<MeterConfig>) -> Kind {
    Kind::DirectMeterEntry(Box::new(DirectMeterEntry {
        table_entry,
        config,
        counter_data: None,
    }))
}

/// Rates that a read finds, by the priority of entries; -1 is the default's.
fn found(pipeline: &Pipeline, request: Kind) -> Vec<(i32, Option<i64>)> {
    let rates = |kind| {
        let (entry, config) = match kind {
            Kind::DirectMeterEntry(found) => (found.table_entry.unwrap(), found.config),
            Kind::TableEntry(found) => (*found.clone(), found.meter_config),
            other => panic!("{other:?}"),
        };
        let priority = if entry.is_default_action {
            -1
        } else {
            entry.priority
        };
        (priority, config.map(|config| config.cir))
    };
    let found = read_as(pipeline, request, &Scope::Full).unwrap();
    found.into_iter().map(rates).collect()
}

#[test]
fn entries_have_rates_that_are_set_with_them_or_alone() {
    let mut limiter = pipeline("rate_limiter");
    let plain = flow(&limiter, 1);
    let with = |config| TableEntry {
        meter_config: config,
        ..plain.clone()
    };
    let (all, one) = (Some(TableEntry::default()), Some(plain.clone()));
    let default = TableEntry {
        is_default_action: true,
        r#match: Vec::new(),
        priority: 0,
        action: None,
        ..plain.clone()
    };
    assert_eq!(code(&mut limiter, MODIFY, meter(one.clone(), None)), NotFound);
    assert_eq!(
        code(&mut limiter, INSERT, entry(with(Some(config(100, 200))))),
        Code::Ok
    );
    assert_eq!(found(&limiter, meter(all.clone(), None)), [(10, Some(100))]);
    // An entry that is modified without rates has none.
    assert_eq!(code(&mut limiter, MODIFY, entry(with(None))), Code::Ok);
    assert_eq!(found(&limiter, meter(one.clone(), None)), [(10, None)]);
    assert_eq!(
        code(&mut limiter, MODIFY, meter(one.clone(), Some(config(7, 8)))),
        Code::Ok
    );
    let asked = |config| entry(with(config));
    assert_eq!(
        found(&limiter, asked(Some(MeterConfig::default()))),
        [(10, Some(7))]
    );
    assert_eq!(found(&limiter, asked(None)), [(10, None)], "not asked for");
    assert_eq!(
        code(
            &mut limiter,
            MODIFY,
            meter(Some(default.clone()), Some(config(5, 6)))
        ),
        Code::Ok
    );
    assert_eq!(
        found(&limiter, meter(Some(default.clone()), None)),
        [(-1, Some(5))]
    );
    limiter.begin_lineage(1);
    let bytes = limiter.encode().unwrap();
    let read = Pipeline::decode(&bytes).unwrap().unwrap();
    assert_eq!(found(&read, meter(all.clone(), None)), [(10, Some(7))]);
    let mut next = pipeline("rate_limiter");
    next.inherit(&read).unwrap();
    assert_eq!(next.program, read.program);
    assert_eq!(code(&mut limiter, MODIFY, meter(one, None)), Code::Ok);
    assert_eq!(
        code(&mut limiter, MODIFY, entry(default)),
        Code::Ok,
        "the program's default"
    );
    assert_eq!(found(&limiter, meter(all, None)), [(10, None)]);
}

#[test]
fn wrong_rates_of_entries_are_refused() {
    let mut limiter = pipeline("rate_limiter");
    let plain = flow(&limiter, 1);
    assert_eq!(code(&mut limiter, INSERT, entry(plain.clone())), Code::Ok);
    let one = |config| meter(Some(plain.clone()), Some(config));
    let too_large = MeterConfig {
        pburst: i64::MAX,
        ..config(1, 2)
    };
    let counting = Kind::DirectMeterEntry(Box::new(DirectMeterEntry {
        table_entry: Some(plain.clone()),
        config: None,
        counter_data: Some(Default::default()),
    }));
    let elsewhere = TableEntry {
        table_id: testing::table_id(&limiter.program, "l2_forward"),
        is_default_action: true,
        ..TableEntry::default()
    };
    let unknown = TableEntry {
        table_id: 7,
        ..plain.clone()
    };
    let mut wrong_key = plain.clone();
    wrong_key.r#match[0].field_id = 9;
    let cases = [
        (INSERT, one(config(1, 2)), InvalidArgument),
        (DELETE, one(config(1, 2)), InvalidArgument),
        (MODIFY, one(config(-1, 2)), InvalidArgument),
        (MODIFY, one(config(3, 2)), InvalidArgument),
        (MODIFY, one(too_large), InvalidArgument),
        (MODIFY, meter(None, None), InvalidArgument),
        (
            MODIFY,
            meter(Some(elsewhere.clone()), Some(config(1, 2))),
            InvalidArgument,
        ),
        (MODIFY, meter(Some(unknown), None), NotFound),
        (MODIFY, meter(Some(wrong_key), None), InvalidArgument),
        (MODIFY, counting, Unimplemented),
        (
            MODIFY,
            entry(TableEntry {
                meter_config: Some(config(1, 2)),
                ..elsewhere
            }),
            InvalidArgument,
        ),
    ];
    let before = limiter.program.clone();
    for (verb, wrong, expected) in cases {
        assert_eq!(code(&mut limiter, verb, wrong.clone()), expected, "{wrong:?}");
    }
    let without = Update {
        r#type: MODIFY,
        entity: Some(Entity {
            kind: Some(Kind::DirectMeterEntry(Box::default())),
        }),
    };
    assert_eq!(
        limiter.apply(&without, &Scope::Full).unwrap_err().code,
        InvalidArgument
    );
    assert_eq!(limiter.program, before);
}
