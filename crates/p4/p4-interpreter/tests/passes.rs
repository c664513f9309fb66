//! State that is carried from ingress to egress and from pass to pass, with programs of a few operations.

#![allow(clippy::unwrap_used)]

use p4_interpreter::{
    CloneSession, Collected, Context, Engine, NoObserver, Packet, Replica, State, StateLimits,
};
use p4_ir::{
    Action, ActionId, Architecture, Binary, Block, Checked, Control, Emit, Expr, ExprId, ExprKind, FieldId,
    FieldType, Header, HeaderId, HeaderRef, HeaderType, HeaderTypeId, Identity, Next, NextState, Op,
    ParserOp, Place, Program, Role, Select, StateId, Type,
};

const EGRESS_SPEC: FieldId = FieldId(1);
const INSTANCE_TYPE: FieldId = FieldId(2);
const PARSER_ERROR: FieldId = FieldId(3);
/// The byte that the parser takes.
const MARK: FieldId = FieldId(4);
/// Eight bytes that a program may put behind it.
const MORE: HeaderId = HeaderId(2);

fn header_type(name: &str, fields: &[(&str, u16)]) -> HeaderType {
    let fields = fields.iter().map(|(name, width)| FieldType {
        name: (*name).into(),
        width: *width,
        signed: false,
        variable: false,
    });
    HeaderType {
        name: name.into(),
        fields: fields.collect(),
    }
}

/// Takes one byte and sends the packet to port 1; ingress and egress run an action each.
struct Maker(Program);

impl Maker {
    fn new() -> Maker {
        let mut program = Program::empty("passes".into(), Architecture::V1Model);
        program.errors = vec![("NoError".into(), 0), ("PacketTooShort".into(), 1)];
        program.header_types = vec![
            header_type(
                "standard_metadata",
                &[
                    ("ingress_port", 9),
                    ("egress_spec", 9),
                    ("instance_type", 32),
                    ("parser_error", 32),
                ],
            ),
            header_type("mark_t", &[("mark", 8)]),
            header_type("more_t", &[("more", 64)]),
        ];
        program.headers = (0..3)
            .map(|at| Header {
                name: format!("h{at}"),
                ty: HeaderTypeId(at),
                metadata: at == 0,
                first_field: FieldId::default(),
                offset: 0,
            })
            .collect();
        program.place();
        program.standard.roles = vec![
            (Role::IngressPort, FieldId(0)),
            (Role::EgressSpec, EGRESS_SPEC),
            (Role::InstanceType, INSTANCE_TYPE),
            (Role::ParserError, PARSER_ERROR),
        ];
        program.parser.states = vec![p4_ir::State {
            name: "start".into(),
            ops: vec![ParserOp::Extract(HeaderRef::Header(HeaderId(1)))],
            select: Select {
                keys: Vec::new(),
                width: 0,
                cases: Vec::new(),
                default: NextState::Accept,
            },
        }];
        program.parser.start = StateId(0);
        program.deparser.emits = vec![Emit::Header(HeaderId(1)), Emit::Header(MORE)];
        Maker(program)
    }

    fn expr(&mut self, kind: ExprKind, ty: Type) -> ExprId {
        self.0.exprs.push(Expr { kind, ty });
        ExprId::at(self.0.exprs.len() - 1).unwrap()
    }

    fn number(&mut self, value: u64, width: u16) -> ExprId {
        self.expr(ExprKind::Constant(value), Type::Bits(width))
    }

    fn is(&mut self, field: FieldId, value: u64) -> ExprId {
        let width = self.0.fields[field.index()].width;
        let a = self.expr(ExprKind::Field(field), Type::Bits(width));
        let b = self.number(value, width);
        self.expr(ExprKind::Binary(Binary::Equal, a, b), Type::Bool)
    }

    /// An operation that adds one to the mark.
    fn count(&mut self) -> Op {
        let mark = self.expr(ExprKind::Field(MARK), Type::Bits(8));
        let one = self.number(1, 8);
        let sum = self.expr(ExprKind::Binary(Binary::Add, mark, one), Type::Bits(8));
        Op::Assign(Place::Field(MARK), sum)
    }

    fn run(mut self, ingress: Vec<Op>, egress: Vec<Op>, bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let port = self.number(1, 9);
        let out = vec![Op::Assign(Place::Field(EGRESS_SPEC), port)];
        for (name, ops) in [("out", out), ("ingress", ingress), ("egress", egress)] {
            self.0.actions.push(Action {
                identity: Identity {
                    name: name.into(),
                    alias: name.into(),
                    id: None,
                },
                parameters: Vec::new(),
                ops,
            });
        }
        let control = |name: &str, blocks| Control {
            name: name.into(),
            blocks,
        };
        let first = Block::Run(ActionId(0), Next::Block(p4_ir::BlockId(1)));
        self.0.ingress = control("ingress", vec![first, Block::Run(ActionId(1), Next::End)]);
        self.0.egress = control("egress", vec![Block::Run(ActionId(2), Next::End)]);
        let engine = Engine::new(Checked::new(self.0).unwrap()).unwrap();
        let state = State::new(&engine, StateLimits::default()).unwrap();
        let session = CloneSession {
            replicas: [Replica { port: 2, rid: 0 }].into(),
            ..CloneSession::default()
        };
        state.set_session(1, session).unwrap();
        let mut context = Context::new(&engine, 1);
        let mut sink = Collected::default();
        let packet = Packet::whole(5, bytes);
        engine.run(
            &state.read(),
            &mut context,
            &packet,
            0,
            &mut sink,
            &mut NoObserver,
        );
        sink.outputs
    }
}

#[test]
fn ingress_may_ask_for_recirculation() {
    let mut maker = Maker::new();
    let first = maker.is(INSTANCE_TYPE, 0);
    let ingress = vec![maker.count(), Op::JumpUnless(first, 3), Op::Recirculate(None)];
    assert_eq!(maker.run(ingress, Vec::new(), &[0, 7]), [(1, vec![2, 7])]);
}

/// The clone of the packet as it came leaves at once; the packet itself waits behind it and still
/// recirculates.
#[test]
fn a_clone_does_not_recirculate_in_place_of_the_packet() {
    let mut maker = Maker::new();
    let first = maker.is(INSTANCE_TYPE, 0);
    let session = maker.number(1, 32);
    let ingress = vec![
        maker.count(),
        Op::JumpUnless(first, 4),
        Op::Recirculate(None),
        Op::CloneIngress(session, None),
    ];
    let sent = maker.run(ingress, Vec::new(), &[0, 7]);
    assert_eq!(sent, [(2, vec![0, 7]), (1, vec![2, 7])]);
}

/// Recirculation cuts the packet, and nothing more of it in the next pass.
#[test]
fn a_recirculated_packet_may_grow_beyond_what_it_was_cut_to() {
    let mut maker = Maker::new();
    let first = maker.is(MARK, 0);
    let length = maker.number(3, 8);
    let egress = vec![
        Op::JumpUnless(first, 5),
        maker.count(),
        Op::Truncate(length),
        Op::Recirculate(None),
        Op::Jump(6),
        Op::SetValid(HeaderRef::Header(MORE)),
    ];
    let sent = maker.run(Vec::new(), egress, &[0, 7, 8, 9]);
    assert_eq!(sent, [(1, vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 7, 8])]);
}

#[test]
fn of_several_lengths_to_cut_to_the_smallest_counts() {
    let mut maker = Maker::new();
    let (short, long) = (maker.number(2, 8), maker.number(3, 8));
    let sent = maker.run(vec![Op::Truncate(short)], vec![Op::Truncate(long)], &[0, 7, 8, 9]);
    assert_eq!(sent, [(1, vec![0, 7])]);
}

/// A key of a select without cases still looks ahead, here beyond the end of the packet.
#[test]
fn a_select_without_cases_looks_ahead() {
    for width in [16, 100] {
        let mut maker = Maker::new();
        let key = maker.expr(ExprKind::Lookahead { offset: 0 }, Type::Bits(width));
        let select = &mut maker.0.parser.states[0].select;
        (select.keys, select.width) = (vec![key], width);
        let error = maker.is(PARSER_ERROR, 1);
        let ingress = vec![Op::JumpUnless(error, 2), maker.count()];
        assert_eq!(maker.run(ingress, Vec::new(), &[0, 7]), [(1, vec![1, 7])]);
    }
}

/// In a union the other member becomes invalid, but not before it was copied.
#[test]
fn a_member_of_a_union_is_copied_to_another() {
    let mut maker = Maker::new();
    maker.0.headers.truncate(1);
    maker.0.headers.extend((1..3).map(|at| Header {
        name: format!("member{at}"),
        ty: HeaderTypeId(1),
        metadata: false,
        first_field: FieldId::default(),
        offset: 0,
    }));
    maker.0.union_types = vec![p4_ir::UnionType {
        name: "u_t".into(),
        members: vec![("a".into(), HeaderTypeId(1)), ("b".into(), HeaderTypeId(1))],
    }];
    maker.0.unions = vec![p4_ir::Union {
        name: "u".into(),
        ty: p4_ir::UnionTypeId(0),
        first: HeaderId(1),
    }];
    maker.0.place();
    let copy = Op::CopyHeader(HeaderRef::Header(HeaderId(2)), HeaderRef::Header(HeaderId(1)));
    assert_eq!(maker.run(vec![copy], Vec::new(), &[9, 7]), [(1, vec![9, 7])]);
}
