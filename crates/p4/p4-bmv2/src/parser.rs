//! Parser states, the deparser.

use crate::actions::named;
use crate::error::{Members, Read, Within, unsupported, wrong};
use crate::expr::constant;
use crate::json::Json;
use crate::load::Loader;
use crate::names::next;
use crate::number::Number;
use p4_ir::{
    Bits, Emit, ExprId, HeaderRef, HeaderTypeId, MatchKind, NextState, ParserOp, Pattern, Select, SelectCase,
    State, StateId, Type, ValueSetId,
};

impl<'a> Loader<'a> {
    /// Reads the parser.
    pub(crate) fn parser(&mut self, root: &'a Json) -> Read<()> {
        let parser = match root.list("parsers")? {
            [] => return Ok(()),
            [parser] => parser,
            _ => return unsupported("more than one parser").within(|| "parsers".to_owned()),
        };
        let states = parser.list("parse_states").within(|| "parsers".to_owned())?;
        for (at, state) in states.iter().enumerate() {
            let name = state
                .string("name")
                .within(|| format!("parsers, parse_states[{at}]"))?;
            let id = next(StateId::at(at), "parser state")?;
            self.states
                .add(name.to_owned(), id)
                .within(|| "parsers".to_owned())?;
        }
        for state in states {
            let name = state.string("name")?;
            let state = self
                .state(state, name)
                .within(|| format!("parsers, parse_states {name:?}"))?;
            self.program.parser.states.push(state);
        }
        if let Some(start) = parser.get("init_state").text() {
            self.program.parser.start = self
                .states
                .get(start)
                .within(|| "parsers, init_state".to_owned())?;
        } else if !states.is_empty() {
            return wrong("is no name").within(|| "parsers, init_state".to_owned());
        }
        Ok(())
    }

    fn state(&mut self, state: &'a Json, name: &str) -> Read<State> {
        let mut ops = Vec::new();
        for (at, op) in state.list("parser_ops")?.iter().enumerate() {
            let name = op.string("op").within(|| format!("parser_ops[{at}]"))?;
            let more = self.parser_op(name, op.list("parameters")?);
            ops.extend(more.within(|| format!("parser_ops[{at}] {name:?}"))?);
        }
        let select = self.select(state)?;
        Ok(State {
            name: name.to_owned(),
            ops,
            select,
        })
    }

    fn parser_op(&mut self, op: &str, parameters: &'a [Json]) -> Read<Vec<ParserOp>> {
        Ok(match (op, parameters) {
            ("extract", [header]) => vec![self.extract(header)?],
            ("extract_VL", [header, length]) => {
                let header = self.extracted(header)?;
                let length = self.small(length)?;
                vec![ParserOp::ExtractVariable(header, length)]
            }
            ("set", [to, from]) => {
                let json = Json::Object(vec![(
                    "parameters".to_owned(),
                    Json::Array(vec![to.clone(), from.clone()]),
                )]);
                self.primitive("assign", &json)?
                    .into_iter()
                    .map(ParserOp::Do)
                    .collect()
            }
            ("verify", [condition, error]) => {
                let (condition, error) = (self.condition(condition)?, self.small(error)?);
                vec![ParserOp::Verify(condition, error)]
            }
            ("advance", [bits]) => vec![ParserOp::Advance(self.small(bits)?)],
            ("shift", [bytes]) => {
                let bytes = match bytes.number() {
                    Some(bytes) => u64::try_from(bytes).unwrap_or(u64::MAX),
                    None => {
                        constant(bytes)?.map_or_else(|| wrong("is no constant"), |bytes| bytes.to_u64())?
                    }
                };
                let bits = Bits::from_u128(32, u128::from(bytes.saturating_mul(8).min(u64::from(u32::MAX))));
                vec![ParserOp::Advance(self.constant(&bits)?)]
            }
            ("primitive", [primitive]) => {
                let op = primitive.string("op")?;
                let ops = self.primitive(op, primitive).within(|| format!("{op:?}"))?;
                ops.into_iter().map(ParserOp::Do).collect()
            }
            _ => return unsupported(format!("with {} parameters, this operation", parameters.len())),
        })
    }

    /// A header to extract into.
    fn extracted(&self, header: &Json) -> Read<HeaderRef> {
        match header.string("type")? {
            "regular" => self.header_names.get(named(header)?).map(HeaderRef::Header),
            "stack" => self.stack_names.get(named(header)?).map(HeaderRef::Next),
            "union_stack" => match header.get("value").elements() {
                Some([Json::Text(stack), Json::Text(member)]) => {
                    let (stack, member, _) = self.union_member(stack, member)?;
                    Ok(HeaderRef::UnionNext(stack, member))
                }
                _ => wrong("no pair of names"),
            },
            other => unsupported(format!("to extract into {other:?}")),
        }
    }

    /// P4_14 writes the length of a variable field into the type, as an expression of the fields before it.
    /// These are not yet read when the length is wanted, so they are looked at where they lie ahead.
    fn extract(&mut self, header: &Json) -> Read<ParserOp> {
        let header = self.extracted(header)?;
        if self.program.type_of(header).variable().is_none() {
            return Ok(ParserOp::Extract(header));
        }
        let ty = self.type_id(header);
        let Some(length) = self.lengths.get(&ty).copied() else {
            return wrong("a variable field whose length nothing says");
        };
        self.ahead = Some(ty);
        let length = self.small(length).within(|| "length_exp".to_owned());
        self.ahead = None;
        Ok(ParserOp::ExtractVariable(header, length?))
    }

    fn type_id(&self, header: HeaderRef) -> HeaderTypeId {
        let of = self.program.type_of(header);
        let at = self
            .program
            .header_types
            .iter()
            .position(|ty| std::ptr::eq(ty, of));
        HeaderTypeId(at.unwrap_or(0) as u16)
    }

    fn select(&mut self, state: &Json) -> Read<Select> {
        let mut keys = Vec::new();
        let mut widths = Vec::new();
        for (at, key) in state.list("transition_key")?.iter().enumerate() {
            let num = self.exact(key).within(|| format!("transition_key[{at}]"))?;
            keys.push(num.id);
            widths.push(num.width);
        }
        let sum = widths.iter().map(|width| u32::from(*width)).sum::<u32>();
        if sum > p4_ir::limits::KEY_BITS {
            return wrong(format!("the keys have {sum} bits")).within(|| "transition_key".to_owned());
        }
        let mut select = Select {
            keys,
            width: sum as u16,
            cases: Vec::new(),
            default: NextState::Reject,
        };
        for (at, transition) in state.list("transitions")?.iter().enumerate() {
            self.transition(transition, &widths, &mut select)
                .within(|| format!("transitions[{at}]"))?;
        }
        Ok(select)
    }

    fn transition(&mut self, transition: &Json, widths: &[u16], select: &mut Select) -> Read<()> {
        let next = match transition.get("next_state") {
            Json::Null => NextState::Accept,
            Json::Text(name) => NextState::State(self.states.get(name.as_str())?),
            _ => return wrong("\"next_state\" is no name"),
        };
        let value = transition.get("value");
        let kind = transition.get("type").text();
        match (kind, value) {
            (Some("default"), _) | (None, Json::Null) => select.default = next,
            (None, Json::Text(word)) if word == "default" => select.default = next,
            (Some("hexstr") | None, Json::Text(value)) => {
                let mask = match transition.get("mask") {
                    Json::Null => None,
                    Json::Text(mask) => Some(Number::parse(mask)?),
                    _ => return wrong("\"mask\" is no number"),
                };
                if let Some(pattern) = pattern(&Number::parse(value)?, mask.as_ref(), widths)? {
                    select.cases.push(SelectCase { pattern, next });
                }
            }
            (Some("parse_vset"), Json::Text(name)) => {
                if !transition.get("mask").is_null() {
                    return unsupported("a mask over a value set");
                }
                let set = self.value_sets.get(name.as_str())?;
                self.fit(set, widths)?;
                select.cases.push(SelectCase {
                    pattern: Pattern::ValueSet(set),
                    next,
                });
            }
            _ => return wrong("neither default, nor a number, nor a value set"),
        }
        Ok(())
    }

    /// The parts of a value set are the keys by which it is asked.
    fn fit(&mut self, set: ValueSetId, widths: &[u16]) -> Read<()> {
        let set = &mut self.program.value_sets[set.index()];
        let wanted = set
            .parts
            .iter()
            .map(|(_, width, _)| u32::from(*width))
            .sum::<u32>();
        let sum = widths.iter().map(|width| u32::from(*width)).sum::<u32>();
        if wanted != sum {
            return wrong(format!(
                "the keys have {sum} bits, value set {:?} has {wanted}",
                set.identity.name
            ));
        }
        if set.parts.len() == 1 {
            set.parts = widths
                .iter()
                .map(|width| (String::new(), *width, MatchKind::Exact))
                .collect();
        }
        Ok(())
    }

    /// Reads the deparser.
    pub(crate) fn deparser(&mut self, root: &Json) -> Read<()> {
        for deparser in root.list("deparsers")? {
            if !deparser
                .list("primitives")
                .within(|| "deparsers".to_owned())?
                .is_empty()
            {
                return unsupported("primitives in a deparser").within(|| "deparsers".to_owned());
            }
            for (at, header) in deparser
                .list("order")
                .within(|| "deparsers".to_owned())?
                .iter()
                .enumerate()
            {
                let place = || format!("deparsers, order[{at}]");
                let name = header
                    .text()
                    .map_or_else(|| wrong("is no name"), Ok)
                    .within(place)?;
                let header = self.header_names.get(name).within(place)?;
                self.program.deparser.emits.push(Emit::Header(header));
            }
        }
        if root.list("deparsers")?.len() > 1 {
            return unsupported("more than one deparser").within(|| "deparsers".to_owned());
        }
        Ok(())
    }

    /// An expression of one bit or more, for keys.
    pub(crate) fn key(&mut self, json: &Json) -> Read<(ExprId, u16)> {
        let num = self.exact(json)?;
        debug_assert_eq!(self.program.exprs[num.id.index()].ty, Type::Bits(num.width));
        Ok((num.id, num.width))
    }
}

/// A case's value and mask. BMv2 fills each key up to whole bytes; a value with a bit where it filled up
/// never matches.
fn pattern(value: &Number, mask: Option<&Number>, widths: &[u16]) -> Read<Option<Pattern>> {
    let len = widths.iter().map(|width| usize::from(*width).div_ceil(8)).sum();
    let sum = widths.iter().map(|width| usize::from(*width)).sum::<usize>();
    let value = value.bytes(len)?;
    let mask = mask.map_or_else(|| Ok(vec![0xff; len]), |mask| mask.bytes(len))?;
    let (mut values, mut masks) = (vec![0u8; sum.div_ceil(8)], vec![0u8; sum.div_ceil(8)]);
    let total = sum.div_ceil(8) * 8;
    let (mut from, mut to) = (0, total - sum);
    for width in widths.iter().map(|width| usize::from(*width)) {
        let bytes = width.div_ceil(8);
        let spare = bytes * 8 - width;
        let bit = |of: &[u8], at: usize| of[at / 8] >> (7 - at % 8) & 1;
        if (from..from + spare).any(|at| bit(&value, at) & bit(&mask, at) == 1) {
            return Ok(None);
        }
        for at in 0..width {
            let source = from + spare + at;
            let bit_of_mask = bit(&mask, source);
            masks[(to + at) / 8] |= bit_of_mask << (7 - (to + at) % 8);
            values[(to + at) / 8] |= (bit(&value, source) & bit_of_mask) << (7 - (to + at) % 8);
        }
        from += bytes * 8;
        to += width;
    }
    let width = sum as u16;
    let (value, mask) = (Bits::from_bytes(width, &values), Bits::from_bytes(width, &masks));
    Ok(Some(Pattern::Masked { value, mask }))
}
