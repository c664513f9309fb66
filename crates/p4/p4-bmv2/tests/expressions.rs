//! Twin of the translation of expressions: BMv2's whole numbers without bounds against bits of fixed width.

#![allow(clippy::unwrap_used)]

use p4_ir::{Binary, ExprId, ExprKind, Op, Place, Program, Type, Unary};
use proptest::prelude::*;

/// An expression as BMv2 means it.
#[derive(Debug, Clone)]
enum Tree {
    Field(usize),
    Constant(i64),
    Operator(&'static str, Box<Tree>, Box<Tree>),
    Complement(Box<Tree>),
    Shift(&'static str, Box<Tree>, u8),
    Cut(&'static str, Box<Tree>, u8),
    Choice(Box<Tree>, &'static str, Box<Tree>),
}

/// Names and widths of the fields; the last is signed.
const FIELDS: [(&str, u32); 4] = [("a", 8), ("b", 13), ("c", 3), ("d", 8)];

fn value(fields: &[u64; 4], at: usize) -> i128 {
    let (_, width) = FIELDS[at];
    let value = i128::from(fields[at] & ((1 << width) - 1));
    if at == 3 && value >= 1 << (width - 1) {
        value - (1 << width)
    } else {
        value
    }
}

/// The number that an expression is.
fn meaning(tree: &Tree, fields: &[u64; 4]) -> i128 {
    let of = |tree: &Tree| meaning(tree, fields);
    match tree {
        Tree::Field(at) => value(fields, *at),
        Tree::Constant(number) => i128::from(*number),
        Tree::Complement(a) => !of(a),
        Tree::Shift("<<", a, by) => of(a) << by,
        Tree::Shift(_, a, by) => of(a) >> by,
        Tree::Cut("two_comp_mod", a, width) => of(a) << (128 - width) >> (128 - width),
        Tree::Cut("usat_cast", a, width) => of(a).clamp(0, (1 << width) - 1),
        Tree::Cut(_, a, width) => of(a).clamp(-(1 << (width - 1)), (1 << (width - 1)) - 1),
        Tree::Choice(a, op, b) => {
            let (a, b) = (of(a), of(b));
            let chosen = match *op {
                "==" => a == b,
                "!=" => a != b,
                "<" => a < b,
                "<=" => a <= b,
                ">" => a > b,
                _ => a >= b,
            };
            if chosen { a } else { b }
        }
        Tree::Operator(op, a, b) => {
            let (a, b) = (of(a), of(b));
            match *op {
                "+" => a + b,
                "-" => a - b,
                "*" => a * b,
                "&" => a & b,
                "|" => a | b,
                "^" => a ^ b,
                "/" => a.checked_div(b).unwrap_or(0),
                _ => a.checked_rem(b).unwrap_or(0),
            }
        }
    }
}

fn json(tree: &Tree) -> String {
    let hex = |number: i128| {
        format!(
            "{}0x{:x}",
            if number < 0 { "-" } else { "" },
            number.unsigned_abs()
        )
    };
    let constant = |number: i128| format!(r#"{{"type": "hexstr", "value": "{}"}}"#, hex(number));
    let node = |op: &str, a: &str, b: &str| {
        format!(r#"{{"type": "expression", "value": {{"op": "{op}", "left": {a}, "right": {b}}}}}"#)
    };
    match tree {
        Tree::Field(at) => format!(r#"{{"type": "field", "value": ["h", "{}"]}}"#, FIELDS[*at].0),
        Tree::Constant(number) => constant(i128::from(*number)),
        Tree::Operator(op, a, b) => node(op, &json(a), &json(b)),
        Tree::Complement(a) => node("~", "null", &json(a)),
        Tree::Shift(op, a, by) | Tree::Cut(op, a, by) => node(op, &json(a), &constant(i128::from(*by))),
        Tree::Choice(a, op, b) => {
            let (a, b) = (json(a), json(b));
            let condition = node(op, &a, &b);
            format!(
                r#"{{"type": "expression", "value": {{"op": "?", "cond": {condition}, "left": {a}, "right": {b}}}}}"#
            )
        }
    }
}

/// A naive machine for expressions of up to 128 bits: bits as an unsigned number, true as 1.
fn run(program: &Program, id: ExprId, fields: &[u64; 4]) -> u128 {
    let expr = program.exprs[id.index()];
    let width_of = |id: ExprId| match program.exprs[id.index()].ty {
        Type::Bits(width) => u32::from(width),
        Type::Bool => 1,
    };
    let width = width_of(id);
    assert!(width <= 128, "{width} bits");
    let cut = |value: u128| {
        if width == 128 {
            value
        } else {
            value & ((1 << width) - 1)
        }
    };
    let of = |id: ExprId| run(program, id, fields);
    let signed = |id: ExprId| (of(id) << (128 - width_of(id))) as i128 >> (128 - width_of(id));
    let bool = u128::from;
    cut(match expr.kind {
        ExprKind::Constant(value) => value.into(),
        ExprKind::WideConstant(id) => program.constants[id.index()]
            .bytes()
            .iter()
            .fold(0, |number, byte| number << 8 | u128::from(*byte)),
        ExprKind::Field(field) => {
            let member = usize::from(program.fields[field.index()].member);
            u128::from(fields[member] & ((1 << FIELDS[member].1) - 1))
        }
        ExprKind::Unary(op, a) => match op {
            Unary::Not => bool(of(a) == 0),
            Unary::Complement => !of(a),
            Unary::Negate => of(a).wrapping_neg(),
            Unary::ZeroExtend | Unary::Truncate | Unary::ToBits => of(a),
            Unary::SignExtend => signed(a) as u128,
            Unary::ToBool => bool(of(a) != 0),
            Unary::SaturateUnsigned => of(a).min((1 << width) - 1),
            Unary::SaturateSignedToUnsigned => signed(a).clamp(0, (1 << width) - 1) as u128,
            Unary::SaturateSigned => signed(a).clamp(-(1 << (width - 1)), (1 << (width - 1)) - 1) as u128,
            Unary::SaturateUnsignedToSigned => of(a).min((1 << (width - 1)) - 1),
        },
        ExprKind::Mux(condition, a, b) => of(if of(condition) != 0 { a } else { b }),
        ExprKind::Binary(op, a, b) => match op {
            Binary::Add => of(a).wrapping_add(of(b)),
            Binary::Sub => of(a).wrapping_sub(of(b)),
            Binary::Mul => of(a).wrapping_mul(of(b)),
            Binary::Div => of(a).checked_div(of(b)).unwrap_or(0),
            Binary::Mod => of(a).checked_rem(of(b)).unwrap_or(0),
            Binary::DivSigned => signed(a).checked_div(signed(b)).unwrap_or(0) as u128,
            Binary::ModSigned => signed(a).checked_rem(signed(b)).unwrap_or(0) as u128,
            Binary::And => of(a) & of(b),
            Binary::Or => of(a) | of(b),
            Binary::Xor => of(a) ^ of(b),
            Binary::ShiftLeft => of(a).checked_shl(of(b) as u32).unwrap_or(0),
            Binary::ShiftRight => of(a).checked_shr(of(b) as u32).unwrap_or(0),
            Binary::ShiftRightSigned => (signed(a) >> of(b).min(127)) as u128,
            Binary::Equal => bool(of(a) == of(b)),
            Binary::NotEqual => bool(of(a) != of(b)),
            Binary::Less => bool(of(a) < of(b)),
            Binary::LessEqual => bool(of(a) <= of(b)),
            Binary::LessSigned => bool(signed(a) < signed(b)),
            Binary::LessEqualSigned => bool(signed(a) <= signed(b)),
            other => panic!("{other:?} is not for BMv2"),
        },
        other => panic!("{other:?} is not for BMv2"),
    })
}

fn program(tree: &Tree, width: u32) -> String {
    format!(
        r#"{{"header_types": [
            {{"name": "h_t", "id": 0, "fields": [["a", 8, false], ["b", 13, false], ["c", 3, false], ["d", 8, true]]}},
            {{"name": "m_t", "id": 1, "fields": [["out", {width}, false]]}}],
        "headers": [{{"name": "m", "id": 0, "header_type": "m_t", "metadata": true}},
            {{"name": "h", "id": 1, "header_type": "h_t", "metadata": false}}],
        "actions": [{{"name": "act", "id": 0, "runtime_data": [], "primitives": [
            {{"op": "assign", "parameters": [{{"type": "field", "value": ["m", "out"]}}, {}]}}]}}],
        "pipelines": [{{"name": "ingress", "id": 0, "init_table": null, "tables": [], "conditionals": []}},
            {{"name": "egress", "id": 1, "init_table": null, "tables": [], "conditionals": []}}]}}"#,
        json(tree)
    )
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        (0..4usize).prop_map(Tree::Field),
        (-300..5000i64).prop_map(Tree::Constant)
    ];
    leaf.prop_recursive(4, 24, 2, |inner| {
        let operator = prop::sample::select(vec!["+", "-", "*", "&", "&", "|", "^", "/", "%"]);
        let comparison = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
        let shift = prop::sample::select(vec!["<<", ">>"]);
        let cast = prop::sample::select(vec!["two_comp_mod", "usat_cast", "sat_cast"]);
        let boxed = inner.prop_map(Box::new);
        prop_oneof![
            (operator, boxed.clone(), boxed.clone()).prop_map(|(op, a, b)| Tree::Operator(op, a, b)),
            (boxed.clone(), comparison, boxed.clone()).prop_map(|(a, op, b)| Tree::Choice(a, op, b)),
            boxed.clone().prop_map(Tree::Complement),
            (shift, boxed.clone(), 0..6u8).prop_map(|(op, a, by)| Tree::Shift(op, a, by)),
            (cast, boxed, 2..20u8).prop_map(|(op, a, width)| Tree::Cut(op, a, width)),
        ]
    })
}

/// Could a value need more bits than the twin has?
fn bits(tree: &Tree) -> u32 {
    match tree {
        Tree::Field(_) | Tree::Constant(_) => 14,
        Tree::Operator("*", a, b) => bits(a) + bits(b) + 1,
        Tree::Operator(_, a, b) | Tree::Choice(a, _, b) => bits(a).max(bits(b)) + 2,
        Tree::Complement(a) => bits(a) + 1,
        Tree::Shift(_, a, by) => bits(a) + u32::from(*by),
        Tree::Cut(_, a, width) => bits(a).max(u32::from(*width)) + 1,
    }
}

/// As many cases as PROPTEST_CASES says, or a few.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 600;
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn bits_of_fixed_width_are_the_low_bits_of_the_number(
        tree in trees(), width in 1..40u32, fields in any::<[u64; 4]>()
    ) {
        prop_assume!(bits(&tree) < 120);
        let checked = p4_bmv2::load(program(&tree, width).as_bytes(), None).unwrap();
        let Op::Assign(Place::Field(_), value) = checked.actions[0].ops[0] else { panic!("no assignment") };
        let expected = meaning(&tree, &fields) as u128 & ((1 << width) - 1);
        prop_assert_eq!(run(&checked, value, &fields), expected, "{:?}", tree);
    }
}

/// What the compiler writes for `bit<8> x = a + b` is one addition of 8 bits.
#[test]
fn a_masked_sum_is_one_addition() {
    let sum = Tree::Operator("+", Box::new(Tree::Field(0)), Box::new(Tree::Field(0)));
    let masked = Tree::Operator("&", Box::new(sum), Box::new(Tree::Constant(0xff)));
    let checked = p4_bmv2::load(program(&masked, 8).as_bytes(), None).unwrap();
    assert_eq!(checked.exprs.len(), 2, "{:?}", checked.exprs);
    assert!(matches!(checked.exprs[1].kind, ExprKind::Binary(Binary::Add, ..)));
}

#[test]
fn a_shift_that_could_give_anything_is_refused() {
    let shift = r#"{"type": "expression", "value": {"op": ">", "left": {"type": "expression", "value": {"op": "<<",
        "left": {"type": "field", "value": ["h", "a"]}, "right": {"type": "field", "value": ["h", "b"]}}},
        "right": {"type": "field", "value": ["h", "a"]}}}"#;
    let json = program(&Tree::Constant(12345), 1).replace(&json(&Tree::Constant(12345)), shift);
    let error = p4_bmv2::load(json.as_bytes(), None).unwrap_err().to_string();
    assert!(error.contains("could be too wide"), "{error}");
}
