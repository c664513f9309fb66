//! Counters, meters, registers, calculations, digests, field lists, value sets, checksums.

use crate::actions::identity;
use crate::error::{Members, Read, Within, unsupported, wrong};
use crate::expr::{Value, constant};
use crate::json::Json;
use crate::load::Loader;
use crate::names::next;
use p4_ir::{
    Algorithm, Calculation, CalculationId, CalculationInput, Checksum, Counter, CounterId, CounterUnit,
    Digest, DigestId, DigestItem, FieldId, FieldList, FieldListId, MatchKind, Meter, MeterId, Place,
    Register, RegisterId, ValueSet, ValueSetId,
};

/// Calls a reader for each element of an array, with the element's name around its errors.
pub(crate) fn each<'a>(
    root: &'a Json,
    kind: &'static str,
    mut read: impl FnMut(&'a Json, &'a str) -> Read<()>,
) -> Read<()> {
    for (at, element) in root.list(kind)?.iter().enumerate() {
        let name = element.string("name").within(|| format!("{kind}[{at}]"))?;
        read(element, name).within(|| format!("{kind} {name:?}"))?;
    }
    Ok(())
}

impl<'a> Loader<'a> {
    /// Reads field lists.
    pub(crate) fn field_lists(&mut self, root: &'a Json) -> Read<()> {
        each(root, "field_lists", |list, name| {
            let number = list.size::<u32>("id")?;
            let mut fields = Vec::new();
            for (at, element) in list.list("elements")?.iter().enumerate() {
                self.kept(element, &mut fields)
                    .within(|| format!("elements[{at}]"))?;
                if fields.len() > p4_ir::limits::ELEMENTS {
                    return wrong("has too many fields");
                }
            }
            let id = next(FieldListId::at(self.program.field_lists.len()), "field list")?;
            self.field_lists.add(number.into(), id)?;
            self.program.field_lists.push(FieldList {
                name: name.to_owned(),
                number,
                fields,
            });
            Ok(())
        })
    }

    /// Fields of an element of a field list. Only metadata is kept, so validity and constants say nothing
    /// here.
    fn kept(&mut self, element: &Json, fields: &mut Vec<FieldId>) -> Read<()> {
        match element.get("type").text() {
            Some("field")
                if element
                    .get("value")
                    .elements()
                    .and_then(|parts| parts.get(1)?.text())
                    == Some("$valid$") => {}
            Some("field") => fields.push(self.field(element.get("value"))?),
            Some("header") => {
                let header = self.header_names.get(element.string("value")?)?;
                let count = self.program.header_type(header).fields.len() as u16;
                fields.extend((0..count).map(|member| self.program.field_of(header, member)));
            }
            Some("hexstr" | "bool") => {}
            other => return unsupported(format!("an element of type {other:?}")),
        }
        Ok(())
    }

    /// Reads all that actions and the parser refer to.
    pub(crate) fn externs(&mut self, root: &'a Json) -> Read<()> {
        if let Some(first) = root.list("extern_instances")?.first() {
            let (name, ty) = (first.string("name")?, first.string("type")?);
            return unsupported(format!("extern type {ty:?}"))
                .within(|| format!("extern_instances {name:?}"));
        }
        each(root, "counter_arrays", |counter, name| {
            self.counter(counter, name)
        })?;
        each(root, "meter_arrays", |meter, name| self.meter(meter, name))?;
        each(root, "register_arrays", |register, name| {
            self.register(register, name)
        })?;
        each(root, "calculations", |calculation, name| {
            let algorithm = algorithm(calculation.string("algo")?)?;
            let id = self.calculation(name, algorithm, calculation)?;
            self.calculations.add(name.to_owned(), id)
        })?;
        each(root, "learn_lists", |list, name| self.digest(list, name))?;
        each(root, "parse_vsets", |set, name| self.value_set(set, name))
    }

    fn counter(&mut self, counter: &'a Json, name: &str) -> Read<()> {
        let direct = counter.flag("is_direct")?;
        let size = if direct { 0 } else { counter.size("size")? };
        let id = next(CounterId::at(self.program.counters.len()), "counter array")?;
        self.counters.add(name.to_owned(), id)?;
        if direct {
            self.direct
                .entry(counter.string("binding")?.to_owned())
                .or_default()
                .0 = Some(id);
        }
        let (identity, unit) = (identity(name), CounterUnit::Both);
        self.program.counters.push(Counter {
            identity,
            unit,
            size,
            table: None,
        });
        Ok(())
    }

    fn meter(&mut self, meter: &'a Json, name: &str) -> Read<()> {
        let direct = meter.flag("is_direct")?;
        let size = if direct { 0 } else { meter.size("size")? };
        let bytes = match meter.string("type")? {
            "bytes" => true,
            "packets" => false,
            _ => return wrong("\"type\" is neither bytes nor packets"),
        };
        if meter.get("rate_count").number().is_some_and(|rates| rates != 2) {
            return unsupported("a meter with other than two rates");
        }
        let id = next(MeterId::at(self.program.meters.len()), "meter array")?;
        self.meters.add(name.to_owned(), id)?;
        if direct {
            self.direct
                .entry(meter.string("binding")?.to_owned())
                .or_default()
                .1 = Some(id);
            self.colours.insert(id, meter.get("result_target"));
        }
        self.program.meters.push(Meter {
            identity: identity(name),
            bytes,
            size,
            table: None,
        });
        Ok(())
    }

    fn register(&mut self, register: &'a Json, name: &str) -> Read<()> {
        let (size, width) = (register.size("size")?, register.size("bitwidth")?);
        let id = next(RegisterId::at(self.program.registers.len()), "register array")?;
        self.registers.add(name.to_owned(), id)?;
        self.program.registers.push(Register {
            identity: identity(name),
            width,
            size,
        });
        Ok(())
    }

    fn digest(&mut self, list: &'a Json, name: &str) -> Read<()> {
        let number = list.size::<u32>("id")?;
        let mut items = Vec::new();
        for (at, element) in list.list("elements")?.iter().enumerate() {
            let value = self.exact(element).within(|| format!("elements[{at}]"))?.id;
            let name = element
                .get("value")
                .elements()
                .and_then(|parts| parts.get(1)?.text())
                .unwrap_or_default();
            items.push(DigestItem {
                name: name.to_owned(),
                value,
            });
        }
        let id = next(DigestId::at(self.program.digests.len()), "learn list")?;
        self.digests.add(number.into(), id)?;
        self.program.digests.push(Digest {
            identity: identity(name),
            list: number,
            items,
        });
        Ok(())
    }

    fn value_set(&mut self, set: &'a Json, name: &str) -> Read<()> {
        let width = set.size::<u16>("compressed_bitwidth")?;
        let size = set
            .get("max_size")
            .number()
            .and_then(|size| u32::try_from(size).ok())
            .unwrap_or(1024);
        let id = next(ValueSetId::at(self.program.value_sets.len()), "value set")?;
        self.value_sets.add(name.to_owned(), id)?;
        let parts = vec![(String::new(), width, MatchKind::Exact)];
        self.program.value_sets.push(ValueSet {
            identity: identity(name),
            parts,
            size,
            members: Vec::new(),
        });
        Ok(())
    }

    /// An algorithm with the inputs of a calculation or a selector.
    pub(crate) fn calculation(
        &mut self,
        name: &str,
        algorithm: Algorithm,
        json: &Json,
    ) -> Read<CalculationId> {
        let mut inputs = Vec::new();
        let mut last = None;
        for (at, input) in json.list("input")?.iter().enumerate() {
            let input = self.input(input, last).within(|| format!("input[{at}]"))?;
            last = match input {
                CalculationInput::Field(field) => Some(self.program.fields[field.index()].header),
                CalculationInput::Header(header) => Some(header),
                _ => last,
            };
            inputs.push(input);
        }
        let id = next(CalculationId::at(self.program.calculations.len()), "calculation")?;
        self.program.calculations.push(Calculation {
            name: name.to_owned(),
            algorithm,
            inputs,
        });
        Ok(id)
    }

    fn input(&mut self, input: &Json, last: Option<p4_ir::HeaderId>) -> Read<CalculationInput> {
        Ok(match input.string("type")? {
            "field" => {
                let pair = input.get("value");
                match pair.elements().and_then(|parts| parts.get(1)?.text()) {
                    Some("$valid$") => CalculationInput::Value(self.exact(input)?.id),
                    _ => CalculationInput::Field(self.field(pair)?),
                }
            }
            "header" => CalculationInput::Header(self.header_names.get(input.string("value")?)?),
            "hexstr" => {
                let width = input.size::<u16>("bitwidth")?;
                if width == 0 {
                    return wrong("a constant without bits");
                }
                let Some(number) = constant(input)? else {
                    return wrong("is no number");
                };
                CalculationInput::Value(self.constant(&number.low(width))?)
            }
            "payload" => CalculationInput::Payload(last),
            "bool" => match self.value(input)? {
                Value::Bool(id) => {
                    let bit = p4_ir::ExprKind::Unary(p4_ir::Unary::ToBits, id);
                    CalculationInput::Value(self.node(bit, p4_ir::Type::Bits(1))?)
                }
                _ => return wrong("is no bool"),
            },
            other => return unsupported(format!("an input of type {other:?}")),
        })
    }

    /// Reads checksums.
    pub(crate) fn checksums(&mut self, root: &'a Json) -> Read<()> {
        each(root, "checksums", |checksum, name| {
            if checksum.get("type").text().is_some_and(|ty| ty != "generic") {
                return unsupported("a checksum that is not generic");
            }
            let flag = |name: &'static str| match checksum.get(name) {
                Json::Null => Ok(true),
                _ => checksum.flag(name),
            };
            let condition = match checksum.get("if_cond") {
                Json::Null => None,
                condition => Some(self.condition(condition).within(|| "if_cond".to_owned())?),
            };
            let target = Place::Field(self.field(checksum.get("target"))?);
            let calculation = self.calculations.get(checksum.string("calculation")?)?;
            let (verify, update) = (flag("verify")?, flag("update")?);
            let name = name.to_owned();
            self.program.checksums.push(Checksum {
                name,
                calculation,
                target,
                condition,
                verify,
                update,
            });
            Ok(())
        })
    }
}

/// An algorithm by BMv2's name.
pub(crate) fn algorithm(name: &str) -> Read<Algorithm> {
    Ok(match name {
        "crc16" => Algorithm::Crc16,
        "crc32" => Algorithm::Crc32,
        "crcCCITT" => Algorithm::CrcCcitt,
        "csum16" | "cksum16" => Algorithm::Csum16,
        "xor16" => Algorithm::Xor16,
        "identity" => Algorithm::Identity,
        "random" => Algorithm::Random,
        "round_robin" => Algorithm::RoundRobin,
        "xxh64" => Algorithm::Xxh64,
        "crc16_custom" => Algorithm::Crc16Custom,
        "crc32_custom" => Algorithm::Crc32Custom,
        _ => return unsupported(format!("the algorithm {name:?}")),
    })
}
