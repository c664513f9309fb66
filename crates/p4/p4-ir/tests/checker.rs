//! The checker: a sound program passes; each fault is found, with its element.

#![allow(clippy::unwrap_used)]

use p4_ir::*;

fn identity(name: &str) -> Identity {
    Identity {
        name: name.to_owned(),
        alias: name.to_owned(),
        id: None,
    }
}

/// Types and instances: one bit of metadata beside the port, Ethernet, a stack of four tags.
fn headers(p: &mut Program) {
    let field = |name: &str, width| FieldType {
        name: name.to_owned(),
        width,
        signed: false,
        variable: false,
    };
    let ty = |name: &str, fields| HeaderType {
        name: name.to_owned(),
        fields,
    };
    p.header_types = vec![
        ty(
            "standard_metadata_t",
            vec![field("egress_spec", 9), field("seen", 1)],
        ),
        ty(
            "ethernet_t",
            vec![field("dst", 48), field("src", 48), field("kind", 16)],
        ),
        ty("tag_t", vec![field("value", 15), field("last", 1)]),
    ];
    let header = |name: &str, ty, metadata| Header {
        name: name.to_owned(),
        ty: HeaderTypeId(ty),
        metadata,
        first_field: FieldId(0),
        offset: 0,
    };
    p.headers = vec![header("standard_metadata", 0, true), header("ethernet", 1, false)];
    p.headers
        .extend((0..4).map(|i| header(&format!("tags[{i}]"), 2, false)));
    p.stacks = vec![Stack {
        name: "tags".to_owned(),
        ty: HeaderTypeId(2),
        first: HeaderId(2),
        size: 4,
    }];
    assert!(p.place());
    p.standard.roles = vec![(Role::EgressSpec, FieldId(0))];
}

/// Ethernet, then tags up to the last one.
fn parser(p: &mut Program) {
    let again = SelectCase {
        pattern: Pattern::Masked {
            value: Bits::zero(1),
            mask: Bits::ones(1),
        },
        next: NextState::State(StateId(1)),
    };
    let state = |name: &str, op, select| State {
        name: name.to_owned(),
        ops: vec![op],
        select,
    };
    let next = NextState::State(StateId(1));
    p.parser.states = vec![
        state(
            "start",
            ParserOp::Extract(HeaderRef::Header(HeaderId(1))),
            Select {
                keys: vec![],
                width: 0,
                cases: vec![],
                default: next,
            },
        ),
        state(
            "tags",
            ParserOp::Extract(HeaderRef::Next(StackId(0))),
            Select {
                keys: vec![ExprId(3)],
                width: 1,
                cases: vec![again],
                default: NextState::Accept,
            },
        ),
    ];
}

/// A table by destination that chooses the port.
fn program() -> Program {
    let mut p = Program::empty("test".to_owned(), Architecture::V1Model);
    headers(&mut p);
    parser(&mut p);
    let expr = |kind, ty| Expr { kind, ty };
    p.exprs = vec![
        expr(ExprKind::Field(FieldId(2)), Type::Bits(48)),
        expr(ExprKind::Parameter(0), Type::Bits(9)),
        expr(ExprKind::Valid(HeaderRef::Header(HeaderId(1))), Type::Bool),
        expr(ExprKind::Member(HeaderRef::Last(StackId(0)), 1), Type::Bits(1)),
    ];
    p.actions = vec![
        Action {
            identity: identity("forward"),
            parameters: vec![Parameter {
                name: "port".to_owned(),
                id: 1,
                width: 9,
            }],
            ops: vec![Op::Assign(Place::Field(FieldId(0)), ExprId(1))],
        },
        Action {
            identity: identity("discard"),
            parameters: vec![],
            ops: vec![Op::MarkToDrop],
        },
    ];
    let action = |id| TableAction {
        action: ActionId(id),
        default_only: false,
        table_only: false,
    };
    let discard = EntryAction {
        action: ActionId(1),
        arguments: vec![],
    };
    p.tables = vec![Table {
        identity: identity("dmac"),
        keys: vec![Key {
            name: "dst".to_owned(),
            id: 1,
            kind: MatchKind::Exact,
            value: ExprId(0),
            width: 48,
        }],
        kind: MatchKind::Exact,
        size: 16,
        actions: vec![action(0), action(1)],
        default: Some(DefaultEntry {
            entry: discard,
            constant_action: false,
            constant_arguments: false,
            rates: None,
        }),
        entries: vec![Entry {
            keys: vec![KeyMatch::Exact(Bits::from_u128(48, 5))],
            target: EntryTarget::Action(EntryAction {
                action: ActionId(0),
                arguments: vec![Bits::from_u128(9, 3)],
            }),
            rates: None,
            idle_timeout_ns: 0,
            priority: 0,
        }],
        constant: false,
        implementation: Implementation::Direct,
        counter: None,
        meter: None,
        idle_timeout: false,
        hidden: false,
    }];
    p.ingress.name = "ingress".to_owned();
    p.ingress.blocks = vec![condition(ExprId(2)), apply(Next::End)];
    p.deparser.emits = vec![Emit::Header(HeaderId(1)), Emit::Stack(StackId(0))];
    p
}

fn condition(condition: ExprId) -> Block {
    let (then, otherwise) = (Next::Block(BlockId(1)), Next::End);
    Block::If {
        name: "is_ethernet".to_owned(),
        condition,
        then,
        otherwise,
    }
}

fn apply(next: Next) -> Block {
    Block::Apply(TableId(0), Apply::Always(next))
}

/// Checks that the program with one change is refused with these words.
fn refused(words: &str, change: impl FnOnce(&mut Program)) {
    let mut program = program();
    change(&mut program);
    match Checked::new(program) {
        Ok(_) => panic!("accepted in spite of: {words}"),
        Err(error) => assert!(error.to_string().contains(words), "{error}, not {words}"),
    }
}

/// Checks that a further expression is refused.
fn refused_expr(words: &str, kind: ExprKind, ty: Type) {
    refused(words, |p| p.exprs.push(Expr { kind, ty }));
}

/// Checks that a further operation is refused.
fn refused_op(words: &str, op: Op) {
    refused(words, |p| p.actions[1].ops.push(op));
}

#[test]
fn a_sound_program_passes_with_its_bounds() {
    let checked = Checked::new(program()).unwrap();
    let bounds = checked.bounds();
    assert_eq!(bounds.header_bytes_read, 14 + 4 * 2);
    assert_eq!(bounds.header_bytes_grown, 0);
    assert_eq!(bounds.parser_steps, 1 + 5);
    assert_eq!(bounds.passes, 1);
    assert_eq!(bounds.metadata_bits, 10);
    assert_eq!(checked.membership(HeaderId(3)), Membership::Stack(StackId(0), 1));
    assert_eq!(checked.membership(HeaderId(1)), Membership::None);
}

#[test]
fn bounds_grow_with_what_the_program_does() {
    let mut p = program();
    p.actions[1].ops.push(Op::Push(StackId(0), 1));
    p.actions[1].ops.push(Op::Recirculate(None));
    let more = *Checked::new(p).unwrap().bounds();
    let less = *Checked::new(program()).unwrap().bounds();
    assert_eq!(more.header_bytes_grown, 8);
    assert_eq!(more.passes, limits::PASSES);
    assert!(more.operations > less.operations);
}

#[test]
fn places_are_as_promised() {
    let p = program();
    // Metadata ends where its cell ends; headers lie as on the wire.
    assert_eq!((p.fields[0].offset, p.fields[1].offset), (7, 23));
    assert_eq!(p.headers[1].offset, p.phv.metadata_bytes);
    assert_eq!(p.fields[3].offset, p.fields[2].offset + 48);
    assert_eq!(p.headers[3].offset, p.headers[2].offset + 2);
}

#[test]
fn what_decides_is_known() {
    let analysis = Analysis::of(&Checked::new(program()).unwrap());
    assert!(analysis.is_cacheable());
    // The destination, and the last bit of each tag.
    let looked = analysis.looked_at.keys().map(|field| field.0).collect::<Vec<_>>();
    assert_eq!(looked, [2, 6, 8, 10, 12]);
    assert!(analysis.changed.is_empty());
    // Through metadata, and of a field only the bits under a mask.
    let mut p = program();
    p.exprs.push(Expr {
        kind: ExprKind::Field(FieldId(4)),
        ty: Type::Bits(16),
    });
    p.exprs.push(Expr {
        kind: ExprKind::Constant(0x0f00),
        ty: Type::Bits(16),
    });
    p.exprs.push(Expr {
        kind: ExprKind::Binary(Binary::And, ExprId(4), ExprId(5)),
        ty: Type::Bits(16),
    });
    p.exprs.push(Expr {
        kind: ExprKind::Unary(Unary::ToBool, ExprId(6)),
        ty: Type::Bool,
    });
    p.exprs.push(Expr {
        kind: ExprKind::Unary(Unary::ToBits, ExprId(7)),
        ty: Type::Bits(1),
    });
    p.exprs.push(Expr {
        kind: ExprKind::Field(FieldId(1)),
        ty: Type::Bits(1),
    });
    p.exprs.push(Expr {
        kind: ExprKind::Unary(Unary::ToBool, ExprId(9)),
        ty: Type::Bool,
    });
    p.actions[1]
        .ops
        .push(Op::Assign(Place::Field(FieldId(1)), ExprId(8)));
    p.ingress.blocks[0] = condition(ExprId(10));
    let analysis = Analysis::of(&Checked::new(p).unwrap());
    assert_eq!(analysis.looked_at[&FieldId(4)].to_u64(), Some(0x0f00));
    assert!(
        !analysis.looked_at.contains_key(&FieldId(3)),
        "the source decides nothing"
    );
}

/// Two stacks of two unions each, whose only member is a tag, after the stack of tags.
fn union_stacks(p: &mut Program) {
    let member = ("tag".to_owned(), HeaderTypeId(2));
    p.union_types = vec![UnionType {
        name: "any_tag_t".to_owned(),
        members: vec![member],
    }];
    for number in 0..4 {
        let first = HeaderId(p.headers.len() as u16);
        p.unions.push(Union {
            name: format!("union {number}"),
            ty: UnionTypeId(0),
            first,
        });
        p.headers.push(Header {
            name: format!("union {number}.tag"),
            ty: HeaderTypeId(2),
            metadata: false,
            first_field: FieldId(0),
            offset: 0,
        });
    }
    p.union_stacks = ["outer", "inner"]
        .into_iter()
        .zip([0, 2])
        .map(|(name, first)| UnionStack {
            name: name.to_owned(),
            ty: UnionTypeId(0),
            first: UnionId(first),
            size: 2,
        })
        .collect();
    assert!(p.place());
}

#[test]
fn what_decides_is_followed_through_stacks_of_unions() {
    let mut p = program();
    union_stacks(&mut p);
    let last_of = |header: HeaderId| Place::Field(FieldId(u32::from(header.0) * 2 + 2));
    let Place::Field(outer) = last_of(HeaderId(6)) else {
        unreachable!()
    };
    p.exprs.push(Expr {
        kind: ExprKind::Field(outer),
        ty: Type::Bits(1),
    });
    p.exprs.push(Expr {
        kind: ExprKind::Unary(Unary::ToBool, ExprId(4)),
        ty: Type::Bool,
    });
    p.ingress.blocks[0] = condition(ExprId(5));
    let looked_at = |p: &Program| {
        let analysis = Analysis::of(&Checked::new(p.clone()).unwrap());
        let is_in = |header| {
            let Place::Field(field) = last_of(HeaderId(header)) else {
                unreachable!()
            };
            analysis.looked_at.contains_key(&field)
        };
        ([6, 7, 8, 9].map(is_in), analysis.validity)
    };
    assert_eq!(looked_at(&p).0, [true, false, false, false]);
    p.actions[1].ops = vec![Op::PopUnion(UnionStackId(0), 1)];
    assert_eq!(looked_at(&p).0, [true, true, false, false]);
    p.actions[1].ops = vec![Op::CopyUnionStack(UnionStackId(0), UnionStackId(1))];
    let (fields, validity) = looked_at(&p);
    assert_eq!(fields, [true, false, true, true]);
    // Validity is copied as well.
    assert!(validity.contains(&HeaderId(8)) && validity.contains(&HeaderId(9)));
}

#[test]
fn indices_out_of_range_are_found() {
    refused("layout: is not the one", |p| p.fields[0].offset = 6);
    refused("header type 7", |p| p.headers[0].ty = HeaderTypeId(7));
    refused("expression 0: refers to field 99", |p| {
        p.exprs[0].kind = ExprKind::Field(FieldId(99))
    });
    refused("which does not exist", |p| {
        p.exprs[2].kind = ExprKind::Unary(Unary::Not, ExprId(2))
    });
    refused(r#"action "forward", operation 0: refers to field 99"#, |p| {
        p.actions[0].ops[0] = Op::Assign(Place::Field(FieldId(99)), ExprId(1));
    });
    refused_op("refers to stack 3", Op::Push(StackId(3), 1));
    refused_op(
        "refers to register 0",
        Op::RegisterRead(Place::Field(FieldId(0)), RegisterId(0), ExprId(0)),
    );
    refused("refers to table 5", |p| {
        p.ingress.blocks[1] = Block::Apply(TableId(5), Apply::Always(Next::End))
    });
    refused("refers to block 9", |p| {
        p.ingress.blocks[1] = apply(Next::Block(BlockId(9)))
    });
    refused("refers to parser state 9", |p| {
        p.parser.states[0].select.default = NextState::State(StateId(9))
    });
    refused("deparser, emit 0: refers to header 50", |p| {
        p.deparser.emits[0] = Emit::Header(HeaderId(50))
    });
    refused("stacks and unions", |p| p.stacks[0].size = 9);
    refused("stacks and unions", |p| {
        let again = p.stacks[0].clone();
        p.stacks.push(again);
    });
}

#[test]
fn types_that_do_not_fit_are_found() {
    let bits = Type::Bits;
    refused("the value is 9 bits instead of 48 bits", |p| {
        p.actions[0].ops[0] = Op::Assign(Place::Field(FieldId(2)), ExprId(1));
    });
    refused("the value is 47 bits instead of 48 bits", |p| {
        p.exprs[0].ty = bits(47)
    });
    refused("the condition is 48 bits instead of a bool", |p| {
        p.ingress.blocks[0] = condition(ExprId(0))
    });
    refused("outside of actions", |p| p.tables[0].keys[0].value = ExprId(1));
    refused("a parameter is 9 bits instead of 8 bits", |p| {
        p.actions[0].parameters[0].width = 8
    });
    refused("looks ahead outside of the parser", |p| {
        p.exprs.push(Expr {
            kind: ExprKind::Lookahead { offset: 0 },
            ty: bits(48),
        });
        p.tables[0].keys[0].value = ExprId(4);
    });
    let (ethernet, tag) = (HeaderRef::Header(HeaderId(1)), HeaderRef::Header(HeaderId(2)));
    refused_op(
        "next element of a stack outside",
        Op::SetValid(HeaderRef::Next(StackId(0))),
    );
    refused_op(
        "wants a header, not metadata",
        Op::SetInvalid(HeaderRef::Header(HeaderId(0))),
    );
    refused_op(
        "copies between headers of different types",
        Op::CopyHeader(ethernet, tag),
    );
    refused_expr(
        "compares headers of different types",
        ExprKind::HeadersEqual(ethernet, tag),
        Type::Bool,
    );
    refused_expr("a slice reaches beyond", ExprKind::Slice(ExprId(0), 40), bits(9));
    refused_expr("does not fit its width", ExprKind::Constant(8), bits(3));
    refused_expr(
        "Add does not take",
        ExprKind::Binary(Binary::Add, ExprId(0), ExprId(1)),
        bits(48),
    );
    refused_expr("has no bits", ExprKind::Parameter(0), bits(0));
    refused_expr(
        "Truncate cannot make",
        ExprKind::Unary(Unary::Truncate, ExprId(1)),
        bits(48),
    );
}

#[test]
fn tables_that_do_not_fit_are_found() {
    refused(r#"table "dmac", entry 0: does not fit key "dst""#, |p| {
        p.tables[0].entries[0].keys[0] = KeyMatch::Exact(Bits::from_u128(47, 5));
    });
    refused("the arguments do not fit", |p| {
        let EntryTarget::Action(action) = &mut p.tables[0].entries[0].target else {
            panic!("the entry has an action");
        };
        action.arguments.clear();
    });
    refused("has rates, but its table has no meter", |p| {
        let rate = Rate {
            per_second: 1,
            burst: 1,
        };
        p.tables[0].entries[0].rates = Some(Rates {
            committed: rate,
            peak: rate,
        });
    });
    refused("has an idle time, but its table has none", |p| {
        p.tables[0].entries[0].idle_timeout_ns = 1;
    });
    refused("the same keys as one before it", |p| {
        let again = p.tables[0].entries[0].clone();
        p.tables[0].entries.push(again);
    });
    refused("an action that the table has not", |p| {
        p.tables[0].actions.truncate(1)
    });
    refused("keys do not make a table", |p| p.tables[0].kind = MatchKind::Lpm);
    refused("for each action where to go", |p| {
        p.ingress.blocks[1] = Block::Apply(TableId(0), Apply::ByAction(vec![Next::End], Next::End));
    });
}

#[test]
fn what_could_run_for_ever_is_found() {
    refused("ingress, table \"dmac\": block 1 goes back to block 0", |p| {
        p.ingress.blocks[1] = apply(Next::Block(BlockId(0)));
    });
    refused("block 1 goes back to block 1", |p| {
        p.ingress.blocks[1] = apply(Next::Block(BlockId(1)))
    });
    refused_op("jumps to operation 9 of 2", Op::Jump(9));
    refused("the parser loops for ever", |p| p.parser.states[1].ops.clear());
    // Setting a field to a constant each time changes nothing either.
    refused("the parser loops for ever", |p| {
        p.exprs.push(Expr {
            kind: ExprKind::Constant(1),
            ty: Type::Bits(1),
        });
        p.parser.states[1].ops = vec![ParserOp::Do(Op::Assign(Place::Field(FieldId(1)), ExprId(4)))];
    });
    // A loop that counts may end; the engine's bound ends it if it does not.
    let mut counting = program();
    counting.exprs.push(Expr {
        kind: ExprKind::Field(FieldId(1)),
        ty: Type::Bits(1),
    });
    counting.exprs.push(Expr {
        kind: ExprKind::Unary(Unary::Complement, ExprId(4)),
        ty: Type::Bits(1),
    });
    counting.parser.states[1].ops = vec![ParserOp::Do(Op::Assign(Place::Field(FieldId(1)), ExprId(5)))];
    assert_eq!(
        Checked::new(counting).unwrap().bounds().parser_steps,
        limits::PARSER_STEPS
    );
}

#[test]
fn what_is_too_large_is_found() {
    refused(r#"table "dmac": entries: 5000000 is more than 4194304"#, |p| {
        p.tables[0].size = 5_000_000
    });
    let register = |width, size| Register {
        identity: Identity::default(),
        width,
        size,
    };
    refused("cells", |p| p.registers.push(register(8, u32::MAX)));
    refused("bytes of all counters, meters and registers", |p| {
        p.registers = vec![register(512, 4_000_000); 2];
    });
    refused("bits of a field: 9000 is more than 8192", |p| {
        p.header_types[1].fields[0].width = 9000
    });
    refused("bytes of the packet header vector", |p| {
        let field = FieldType {
            name: "wide".to_owned(),
            width: 8192,
            signed: false,
            variable: false,
        };
        p.header_types[1].fields = vec![field; 17];
        assert!(p.place());
    });
    refused("bytes of a name", |p| {
        p.actions[1].identity.name = "x".repeat(2000)
    });
    refused("bytes read from here on", |p| {
        p.parser.states[0].ops = vec![ParserOp::Extract(HeaderRef::Header(HeaderId(1))); 200];
    });
    refused("bytes added to a packet", |p| {
        p.actions[1]
            .ops
            .push(Op::SetValid(HeaderRef::Header(HeaderId(1))));
        p.deparser.emits = vec![Emit::Header(HeaderId(1)); 200];
    });
    refused("operations", |p| p.actions[1].ops = vec![Op::MarkToDrop; 9000]);
}

#[test]
fn expressions_that_cost_too_much_are_found() {
    let push = |p: &mut Program, kind| {
        p.exprs.push(Expr {
            kind,
            ty: Type::Bits(48),
        })
    };
    // A tree that shares its branches: 20 nodes in the arena, 2^20 when evaluated.
    refused("nodes of an expression", |p| {
        push(p, ExprKind::Binary(Binary::Xor, ExprId(0), ExprId(0)));
        (4..24).for_each(|below| push(p, ExprKind::Binary(Binary::Xor, ExprId(below), ExprId(below))));
    });
    // A tree of 8191 nodes that stands in 4000 places.
    refused("nodes of all expressions where they stand", |p| {
        push(p, ExprKind::Binary(Binary::Xor, ExprId(0), ExprId(0)));
        (4..15).for_each(|below| push(p, ExprKind::Binary(Binary::Xor, ExprId(below), ExprId(below))));
        p.actions[1].ops = vec![Op::Assign(Place::Field(FieldId(2)), ExprId(15)); 4000];
    });
    refused("levels of an expression", |p| {
        push(p, ExprKind::Unary(Unary::Negate, ExprId(0)));
        (4..300).for_each(|below| push(p, ExprKind::Unary(Unary::Negate, ExprId(below))));
    });
}

#[test]
fn bits_are_what_they_say() {
    assert_eq!(Bits::from_u128(9, 0xffff).to_u64(), Some(0x1ff));
    assert_eq!(Bits::ones(9).to_string(), "0x01ff");
    assert_eq!(Bits::prefix(9, 3).to_u64(), Some(0b1_1100_0000));
    assert_eq!(Bits::prefix(32, 24).prefix_length(), Some(24));
    assert_eq!(Bits::from_u128(8, 0b1010_0000).prefix_length(), None);
    assert_eq!(Bits::ones(72).to_u64(), None);
    assert_eq!(Bits::zero(0).prefix_length(), Some(0));
    assert!(Bits::from_bytes(12, &[1, 2, 3]).is_canonical());
}

/// Gives table 0 a profile with a selector, member 7 and group 8 of it; its entry leads to the group.
fn with_profile(p: &mut Program) {
    let EntryTarget::Action(action) = p.tables[0].entries[0].target.clone() else {
        panic!("the entry has an action");
    };
    let share = Share {
        weight: 2,
        watch: Some(511),
    };
    let group = ActionGroup {
        members: [(7, share)].into(),
        max_size: 4,
    };
    p.calculations.push(Calculation {
        name: "choice".to_owned(),
        algorithm: Algorithm::Crc32,
        inputs: Vec::new(),
    });
    p.profiles.push(ActionProfile {
        identity: identity("profile"),
        size: 4,
        max_group_size: 0,
        selector: Some(Selector {
            calculation: CalculationId::at(p.calculations.len() - 1).unwrap(),
        }),
        members: [(7, action)].into(),
        groups: [(8, group)].into(),
    });
    p.tables[0].implementation = Implementation::Profile(ProfileId::at(0).unwrap());
    p.tables[0].entries[0].target = EntryTarget::Group(8);
}

#[test]
fn members_and_groups_that_do_not_fit_are_found() {
    let mut right = program();
    with_profile(&mut right);
    assert_eq!(right.watched_ports(), [511].into());
    Checked::new(right).unwrap();
    let refused = |expected: &str, change: &dyn Fn(&mut Program)| {
        refused(expected, |p| {
            with_profile(p);
            change(p);
        });
    };
    let target = |target: EntryTarget| move |p: &mut Program| p.tables[0].entries[0].target = target.clone();
    refused(
        "has member 8, which does not exist",
        &target(EntryTarget::Member(8)),
    );
    refused(
        "has group 7, which does not exist",
        &target(EntryTarget::Group(7)),
    );
    refused("a member or group without a profile", &|p| {
        p.tables[0].implementation = Implementation::Direct;
    });
    refused("has an action where members are", &|p| {
        p.tables[0].entries[0].target = EntryTarget::Action(p.profiles[0].members[&7].clone());
    });
    refused("the arguments do not fit", &|p| {
        p.profiles[0].members.get_mut(&7).unwrap().arguments.clear();
    });
    refused("an action that the table has not", &|p| {
        p.tables[0].actions.truncate(1);
        p.tables[0].default = None;
        let discard = EntryAction {
            action: ActionId(1),
            arguments: Vec::new(),
        };
        p.profiles[0].members.insert(7, discard);
    });
    refused("has groups without a selector", &|p| {
        p.profiles[0].selector = None
    });
    refused("members: 1 is more than 0", &|p| p.profiles[0].size = 0);
    refused("group 8 has member 7, which does not exist", &|p| {
        p.profiles[0].members.clear()
    });
    let share = |weight, watch| {
        move |p: &mut Program| {
            let group = p.profiles[0].groups.get_mut(&8).unwrap();
            *group.members.get_mut(&7).unwrap() = Share { weight, watch };
        }
    };
    refused("a member has no weight", &share(0, None));
    refused("port that is watched: 512 is more than 511", &share(1, Some(512)));
    refused("a member has no weight", &|p| {
        let action = p.profiles[0].members[&7].clone();
        let share = Share {
            weight: 0,
            watch: None,
        };
        p.tables[0].entries[0].target = EntryTarget::Choices(vec![Choice { action, share }]);
    });
}
