//! Ingress and egress: tables, conditions, and the way through them.

use crate::actions::identity;
use crate::error::{Members, Read, Within, unsupported, wrong};
use crate::externs::{algorithm, each};
use crate::json::Json;
use crate::load::Loader;
use crate::names::next;
use crate::number::Number;
use p4_ir::{
    ActionId, ActionProfile, Apply, Binary, Block, BlockId, Control, Counter, CounterId, CounterUnit,
    DefaultEntry, Entry, EntryAction, EntryTarget, ExprKind, Implementation, Key, KeyMatch, MatchKind, Next,
    Place, ProfileId, Selector, Table, TableAction, TableId, Type,
};
use std::collections::{BTreeMap, HashMap};

/// A place of a pipeline.
#[derive(Clone, Copy)]
enum Node<'a> {
    Table(TableId, &'a Json),
    Condition(&'a Json),
    Call(&'a Json),
}

impl<'a> Loader<'a> {
    /// Reads both pipelines.
    pub(crate) fn pipelines(&mut self, root: &'a Json) -> Read<()> {
        let mut seen = Vec::new();
        each(root, "pipelines", |pipeline, name| {
            if seen.contains(&name) {
                return wrong("there are two of this name");
            }
            seen.push(name);
            let control = self.pipeline(pipeline, name)?;
            match name {
                "ingress" => self.program.ingress = control,
                _ => self.program.egress = control,
            }
            Ok(())
        })?;
        if seen.is_empty() {
            return wrong("there are none: this is no program for v1model").within(|| "pipelines".to_owned());
        }
        for name in ["ingress", "egress"] {
            if !seen.contains(&name) {
                return wrong(format!("there is no pipeline {name:?}")).within(|| "pipelines".to_owned());
            }
        }
        Ok(())
    }

    fn profiles(&mut self, pipeline: &'a Json) -> Read<()> {
        each(pipeline, "action_profiles", |profile, name| {
            let selector = match profile.get("selector") {
                Json::Null => None,
                selector => Some(self.selector(name, selector).within(|| "selector".to_owned())?),
            };
            let size = profile
                .get("max_size")
                .number()
                .map_or(Ok(1024), |_| profile.size("max_size"))?;
            self.profile(name, size, selector).map(|_| ())
        })
    }

    fn pipeline(&mut self, pipeline: &'a Json, name: &str) -> Read<Control> {
        self.profiles(pipeline)?;
        let mut nodes = HashMap::new();
        let mut add = |name: &'a str, node: Node<'a>| {
            if nodes.insert(name, node).is_some() {
                wrong("there are two of this name")
            } else {
                Ok(())
            }
        };
        each(pipeline, "tables", |table, name| {
            let id = self.table(table, name)?;
            add(name, Node::Table(id, table))
        })?;
        each(pipeline, "conditionals", |condition, name| {
            add(name, Node::Condition(condition))
        })?;
        each(pipeline, "action_calls", |call, name| add(name, Node::Call(call)))?;
        let mut control = Control {
            name: name.to_owned(),
            blocks: Vec::new(),
        };
        let first = match pipeline.get("init_table") {
            Json::Null => return Ok(control),
            first => first
                .text()
                .map_or_else(|| wrong("\"init_table\" is no name"), Ok)?,
        };
        let order = self.order(first, &nodes)?;
        let numbers = order
            .iter()
            .enumerate()
            .map(|(at, name)| (*name, at))
            .collect::<HashMap<_, _>>();
        for name in &order {
            let block = self
                .block(name, nodes[name], &numbers)
                .within(|| format!("{name:?}"))?;
            control.blocks.push(block);
        }
        Ok(control)
    }

    fn selector(&mut self, name: &str, selector: &Json) -> Read<Selector> {
        let algorithm = algorithm(selector.string("algo")?)?;
        Ok(Selector {
            calculation: self.calculation(name, algorithm, selector)?,
        })
    }

    fn profile(&mut self, name: &str, size: u32, selector: Option<Selector>) -> Read<ProfileId> {
        let id = next(ProfileId::at(self.program.profiles.len()), "action profile")?;
        self.profiles.add(name.to_owned(), id)?;
        let identity = identity(name);
        self.program.profiles.push(ActionProfile {
            identity,
            size,
            max_group_size: 0,
            selector,
            members: BTreeMap::new(),
            groups: BTreeMap::new(),
        });
        Ok(id)
    }

    /// The names of all nodes that can be reached, each before its successors. A node that can come back to
    /// itself is an error.
    fn order(&self, first: &'a str, nodes: &HashMap<&'a str, Node<'a>>) -> Read<Vec<&'a str>> {
        #[derive(PartialEq)]
        enum Mark {
            Open,
            Done,
        }
        let mut marks = HashMap::new();
        let mut order = Vec::new();
        let mut work = vec![(first, 0, Vec::new())];
        while let Some((name, child, mut successors)) = work.pop() {
            if child == 0 {
                let Some(node) = nodes.get(name) else {
                    return wrong(format!("there is no table or condition {name:?}"));
                };
                successors = self.successors(*node).within(|| format!("{name:?}"))?;
                marks.insert(name, Mark::Open);
            }
            let Some(next) = successors.get(child).copied() else {
                marks.insert(name, Mark::Done);
                order.push(name);
                continue;
            };
            work.push((name, child + 1, successors));
            match marks.get(next) {
                None => work.push((next, 0, Vec::new())),
                Some(Mark::Open) => {
                    return wrong(format!("{name:?} goes back to {next:?}: the control has a cycle"));
                }
                Some(Mark::Done) => {}
            }
        }
        order.reverse();
        Ok(order)
    }

    fn successors(&self, node: Node<'a>) -> Read<Vec<&'a str>> {
        let mut names = Vec::new();
        let mut add = |next: &'a Json| match next {
            Json::Null => Ok(()),
            Json::Text(name) => {
                if !names.contains(&name.as_str()) {
                    names.push(name.as_str());
                }
                Ok(())
            }
            _ => wrong("a successor is no name"),
        };
        match node {
            Node::Table(_, table) => {
                if let Json::Object(members) = table.get("next_tables") {
                    members.iter().try_for_each(|(_, next)| add(next))?;
                }
                add(table.get("base_default_next"))?;
            }
            Node::Condition(condition) => {
                add(condition.get("true_next"))?;
                add(condition.get("false_next"))?;
            }
            Node::Call(call) => add(call.get("next_node"))?,
        }
        Ok(names)
    }

    /// Where packets go from a table.
    fn apply(&self, id: TableId, table: &Json, to: impl Fn(&Json) -> Read<Next>) -> Read<Apply> {
        let (nexts, none) = (table.get("next_tables"), to(table.get("base_default_next"))?);
        let Json::Object(members) = nexts else {
            return Ok(Apply::Always(none));
        };
        let side = |name: &str| {
            let next = members.iter().find(|(other, _)| other == name);
            next.map(|(_, next)| to(next)).transpose()
        };
        let (hit, miss) = (side("__HIT__")?, side("__MISS__")?);
        if hit.is_some() || miss.is_some() {
            let (hit, miss) = (hit.unwrap_or(none), miss.unwrap_or(none));
            return Ok(Apply::ByHit { hit, miss });
        }
        let mut each = Vec::new();
        for action in &self.program.tables[id.index()].actions {
            let name = &self.program.actions[action.action.index()].identity.name;
            each.push(side(name)?.unwrap_or(none));
        }
        if each.iter().all(|next| *next == none) {
            return Ok(Apply::Always(none));
        }
        Ok(Apply::ByAction(each, none))
    }

    fn block(&mut self, name: &str, node: Node<'a>, numbers: &HashMap<&'a str, usize>) -> Read<Block> {
        let to = |next: &Json| -> Read<Next> {
            let Some(name) = next.text() else {
                return Ok(Next::End);
            };
            match numbers.get(name).and_then(|at| BlockId::at(*at)) {
                Some(block) => Ok(Next::Block(block)),
                None => wrong(format!("there is no table or condition {name:?}")),
            }
        };
        match node {
            Node::Condition(condition) => Ok(Block::If {
                name: name.to_owned(),
                condition: self
                    .condition(condition.get("expression"))
                    .within(|| "expression".to_owned())?,
                then: to(condition.get("true_next"))?,
                otherwise: to(condition.get("false_next"))?,
            }),
            Node::Call(call) => {
                let action = self.actions.get(&call.size::<i64>("action_id")?)?;
                Ok(Block::Run(action, to(call.get("next_node"))?))
            }
            Node::Table(id, table) => Ok(Block::Apply(id, self.apply(id, table, to)?)),
        }
    }

    fn table(&mut self, table: &'a Json, name: &'a str) -> Read<TableId> {
        let id = next(TableId::at(self.program.tables.len()), "table")?;
        self.tables.add(name.to_owned(), id)?;
        let mut keys = Vec::new();
        for (at, key) in table.list("key")?.iter().enumerate() {
            keys.push(self.table_key(key, at).within(|| format!("key[{at}]"))?);
        }
        let kind = match match_kind(table.string("match_type")?)? {
            _ if keys.is_empty() => MatchKind::Exact,
            MatchKind::Range | MatchKind::Optional => MatchKind::Ternary,
            kind => kind,
        };
        let actions = self.table_actions(table)?;
        let implementation = self.implementation(table, name)?;
        let default = self
            .default_entry(table, &actions)
            .within(|| "default_entry".to_owned())?;
        let (counter, meter) = self.direct_of(table, name, id)?;
        let constant = !table.get("entries").is_null();
        let hidden = keys.is_empty()
            && name
                .rsplit('.')
                .next()
                .is_some_and(|last| last.starts_with("tbl_"));
        let mut made = Table {
            identity: identity(name),
            keys,
            kind,
            size: table.size("max_size")?,
            actions,
            default,
            entries: Vec::new(),
            constant,
            implementation,
            counter,
            meter,
            idle_timeout: table.flag("support_timeout")?,
            hidden,
        };
        self.entries(table, &mut made)?;
        self.program.tables.push(made);
        Ok(id)
    }

    fn table_key(&mut self, key: &Json, at: usize) -> Read<Key> {
        let word = key.string("match_type")?;
        let target = key.get("target");
        let (mut value, width, own) = if word == "valid" {
            let name = target
                .text()
                .map_or_else(|| wrong("\"target\" is no header"), Ok)?;
            let pair = Json::Array(vec![
                Json::Text(name.to_owned()),
                Json::Text("$valid$".to_owned()),
            ]);
            let (value, width) = self.key(&reference(pair))?;
            (value, width, format!("{name}.$valid$"))
        } else {
            let (value, width) = self.key(&reference(target.clone()))?;
            let parts = target
                .elements()
                .unwrap_or_default()
                .iter()
                .filter_map(Json::text)
                .collect::<Vec<_>>();
            (value, width, parts.join("."))
        };
        if let Json::Text(mask) = key.get("mask") {
            let mask = Number::parse(mask)?.exact(width)?;
            let mask = self.constant(&mask)?;
            value = self.node(ExprKind::Binary(Binary::And, value, mask), Type::Bits(width))?;
        }
        let kind = if word == "valid" {
            MatchKind::Exact
        } else {
            match_kind(word)?
        };
        let name = key.get("name").text().map_or(own, str::to_owned);
        Ok(Key {
            name,
            id: at as u32 + 1,
            kind,
            value,
            width,
        })
    }

    /// Actions by number where there are numbers, else by name.
    fn table_actions(&self, table: &Json) -> Read<Vec<TableAction>> {
        let mut actions = Vec::new();
        let numbers = table.list("action_ids")?;
        let names = table.list("actions")?;
        if numbers.len().max(names.len()) > p4_ir::limits::ACTIONS_OF_TABLE {
            return wrong("has too many actions");
        }
        if numbers.is_empty() {
            for name in names {
                let name = name.text().unwrap_or_default();
                let all = self.program.actions.iter();
                let Some(at) = all.clone().position(|action| action.identity.name == name) else {
                    return wrong(format!("there is no action {name:?}"));
                };
                actions.push(next(ActionId::at(at), "action")?);
            }
        }
        for number in numbers {
            actions.push(
                self.actions
                    .get(&number.number().unwrap_or(-1))
                    .within(|| "action_ids".to_owned())?,
            );
        }
        let plain = |action| TableAction {
            action,
            default_only: false,
            table_only: false,
        };
        Ok(actions.into_iter().map(plain).collect())
    }

    fn implementation(&mut self, table: &Json, name: &str) -> Read<Implementation> {
        if table.get("type").text().is_none_or(|ty| ty == "simple") {
            return Ok(Implementation::Direct);
        }
        if let Some(profile) = table.get("action_profile").text() {
            return self.profiles.get(profile).map(Implementation::Profile);
        }
        // Before 2.0 the table itself described its profile.
        let Some(profile) = table.get("act_prof_name").text() else {
            return wrong("an indirect table without an action profile");
        };
        if let Some(known) = self.profiles.find(profile) {
            return Ok(Implementation::Profile(known));
        }
        let selector = match table.get("selector") {
            Json::Null => None,
            selector => Some(self.selector(name, selector).within(|| "selector".to_owned())?),
        };
        let size = table.size("max_size")?;
        self.profile(profile, size, selector).map(Implementation::Profile)
    }

    fn default_entry(&self, table: &Json, actions: &[TableAction]) -> Read<Option<DefaultEntry>> {
        let default = table.get("default_entry");
        if default.is_null() {
            return Ok(None);
        }
        let number = default.get("action_id");
        if number.is_null() {
            return Ok(None);
        }
        let action = self.actions.get(&default.size::<i64>("action_id")?)?;
        if !actions.iter().any(|other| other.action == action) {
            return wrong("its action is none of the table's");
        }
        let data = default.get("action_data");
        if data.is_null() && !self.program.actions[action.index()].parameters.is_empty() {
            return Ok(None);
        }
        let entry = self.entry_action(action, default)?;
        let (constant_action, constant_arguments) =
            (default.flag("action_const")?, default.flag("action_entry_const")?);
        Ok(Some(DefaultEntry {
            entry,
            constant_action,
            constant_arguments,
            rates: None,
        }))
    }

    fn entry_action(&self, action: ActionId, json: &Json) -> Read<EntryAction> {
        let data = json.list("action_data")?;
        let of = &self.program.actions[action.index()];
        if data.len() != of.parameters.len() {
            let name = &of.identity.name;
            return wrong(format!(
                "{} arguments for the {} of {name:?}",
                data.len(),
                of.parameters.len()
            ));
        }
        let mut arguments = Vec::new();
        for (at, (value, parameter)) in data.iter().zip(&of.parameters).enumerate() {
            let read = || {
                let text = value.text().map_or_else(|| wrong("is no number"), Ok)?;
                Number::parse(text)?.exact(parameter.width)
            };
            arguments.push(read().within(|| format!("action_data[{at}]"))?);
        }
        Ok(EntryAction { action, arguments })
    }

    /// The direct counter and meter of a table.
    #[allow(clippy::type_complexity)]
    fn direct_of(
        &mut self,
        table: &'a Json,
        name: &str,
        id: TableId,
    ) -> Read<(Option<CounterId>, Option<(p4_ir::MeterId, Place)>)> {
        let (mut counter, _) = self.direct.get(name).copied().unwrap_or_default();
        if table.flag("with_counters")? && counter.is_none() {
            // Old files say that there are counters, and no more.
            let id = next(CounterId::at(self.program.counters.len()), "counter array")?;
            let (identity, unit) = (identity(name), CounterUnit::Both);
            self.program.counters.push(Counter {
                identity,
                unit,
                size: 0,
                table: None,
            });
            counter = Some(id);
        }
        if let Some(counter) = counter {
            self.program.counters[counter.index()].table = Some(id);
        }
        let meter = match table.get("direct_meters") {
            Json::Text(meter) => self
                .meters
                .get(meter.as_str())
                .within(|| "direct_meters".to_owned())?,
            _ => return Ok((counter, None)),
        };
        let Some(target) = self.colours.get(&meter) else {
            return wrong("its direct meter is not direct");
        };
        let place = Place::Field(
            self.field(target)
                .within(|| "result_target of its meter".to_owned())?,
        );
        self.program.meters[meter.index()].table = Some(id);
        Ok((counter, Some((meter, place))))
    }

    /// Entries of the program. In the file the smallest priority wins; here the greatest.
    fn entries(&self, table: &Json, made: &mut Table) -> Read<()> {
        let entries = table.list("entries")?;
        let highest = entries
            .iter()
            .filter_map(|entry| entry.get("priority").number())
            .max()
            .unwrap_or(0);
        for (at, entry) in entries.iter().enumerate() {
            let entry = self.entry(entry, made, highest);
            made.entries.push(entry.within(|| format!("entries[{at}]"))?);
        }
        Ok(())
    }

    /// An entry of the program itself. BMv2's lowest number is the highest priority; `highest` is the highest
    /// number.
    fn entry(&self, entry: &Json, made: &Table, highest: i64) -> Read<Entry> {
        let keys = entry.list("match_key")?;
        if keys.len() != made.keys.len() {
            return wrong(format!(
                "{} keys for the {} of the table",
                keys.len(),
                made.keys.len()
            ));
        }
        let mut matches = Vec::new();
        for (at, (key, of)) in keys.iter().zip(&made.keys).enumerate() {
            matches.push(key_match(key, of).within(|| format!("match_key[{at}]"))?);
        }
        let action = entry.get("action_entry");
        let id = self.actions.get(&action.size::<i64>("action_id")?)?;
        let action = self
            .entry_action(id, action)
            .within(|| "action_entry".to_owned())?;
        let order = entry.get("priority").number().unwrap_or(highest);
        let prioritised = !matches!(made.kind, MatchKind::Exact | MatchKind::Lpm);
        let priority = if prioritised {
            highest.saturating_sub(order).saturating_add(1)
        } else {
            0
        };
        let Ok(priority) = u32::try_from(priority) else {
            return wrong("the priority is out of range");
        };
        Ok(Entry {
            keys: matches,
            target: EntryTarget::Action(action),
            rates: None,
            idle_timeout_ns: 0,
            priority,
        })
    }
}

/// A field as expressions refer to it.
fn reference(pair: Json) -> Json {
    Json::Object(vec![
        ("type".to_owned(), Json::Text("field".to_owned())),
        ("value".to_owned(), pair),
    ])
}

fn match_kind(word: &str) -> Read<MatchKind> {
    Ok(match word {
        "exact" => MatchKind::Exact,
        "lpm" => MatchKind::Lpm,
        "ternary" => MatchKind::Ternary,
        "range" => MatchKind::Range,
        "optional" => MatchKind::Optional,
        _ => return unsupported(format!("to match by {word:?}")),
    })
}

fn key_match(json: &Json, key: &Key) -> Read<KeyMatch> {
    let bits = |name: &'static str| match json.get(name) {
        Json::Text(text) => Number::parse(text)?.exact(key.width),
        Json::Bool(value) if key.width == 1 => Ok(p4_ir::Bits::from_u128(1, u128::from(*value))),
        _ => wrong(format!("{name:?} is no number")),
    };
    let and = |value: &p4_ir::Bits, mask: &p4_ir::Bits| {
        let bytes = value
            .bytes()
            .iter()
            .zip(mask.bytes())
            .map(|(value, mask)| value & mask);
        p4_ir::Bits::from_bytes(key.width, &bytes.collect::<Vec<_>>())
    };
    let ones = || p4_ir::Bits::ones(key.width);
    let word = json.get("match_type").text();
    match key.kind {
        MatchKind::Exact => bits("key").map(KeyMatch::Exact),
        MatchKind::Lpm => {
            let length = json.size::<u16>("prefix_length")?;
            if length > key.width {
                return wrong(format!("a prefix of {length} bits of {}", key.width));
            }
            Ok(KeyMatch::Lpm(
                and(&bits("key")?, &p4_ir::Bits::prefix(key.width, length)),
                length,
            ))
        }
        MatchKind::Ternary if word == Some("exact") => Ok(KeyMatch::Ternary(bits("key")?, ones())),
        MatchKind::Ternary => {
            let mask = bits("mask")?;
            Ok(KeyMatch::Ternary(and(&bits("key")?, &mask), mask))
        }
        MatchKind::Range => Ok(KeyMatch::Range(bits("start")?, bits("end")?)),
        MatchKind::Optional => {
            let any = json
                .get("mask")
                .text()
                .map(Number::parse)
                .transpose()?
                .is_some_and(|mask| mask.bits() == 0);
            Ok(KeyMatch::Optional(if any { None } else { Some(bits("key")?) }))
        }
    }
}
