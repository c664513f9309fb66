//! Tables, entries, action profiles, externs.

use super::expr::Scope;
use super::structure::name;
use super::{At, CheckError, CheckResult, Checker, get, other, within};
use crate::bits::Bits;
use crate::expr::Type;
use crate::externs::{Calculation, CalculationInput};
use crate::ids::TableId;
use crate::limits;
use crate::program::Checked;
use crate::table::{
    ActionProfile, Entry, EntryAction, EntryTarget, Implementation, Key, KeyMatch, MatchKind, Rates, Share,
    Table,
};
use std::collections::HashSet;

impl Checker<'_> {
    /// Checks tables and profiles.
    pub(super) fn tables(&self) -> Result<(), CheckError> {
        for profile in &self.program.profiles {
            let place = || format!("action profile {:?}", profile.identity.name);
            name(&profile.identity.name).at(place)?;
            within("members", profile.size, limits::TABLE_SIZE).at(place)?;
            within("members of a group", profile.max_group_size, limits::TABLE_SIZE).at(place)?;
            if let Some(selector) = profile.selector {
                get(
                    &self.program.calculations,
                    selector.calculation.index(),
                    "calculation",
                )
                .at(place)?;
            }
            self.members(profile).at(place)?;
        }
        for (number, table) in self.program.tables.iter().enumerate() {
            let place = || format!("table {:?}", table.identity.name);
            self.table(number, table).at(place)?;
            self.entries(table)?;
        }
        Ok(())
    }

    /// Checks members and groups. Tables check that members have actions of theirs.
    fn members(&self, profile: &ActionProfile) -> CheckResult {
        within("members", profile.members.len(), profile.size)?;
        for own in profile.members.values() {
            self.arguments(own)?;
        }
        if profile.selector.is_none() && !profile.groups.is_empty() {
            return other("has groups without a selector");
        }
        within("groups", profile.groups.len(), profile.size)?;
        for (number, group) in &profile.groups {
            for (member, own) in &group.members {
                if !profile.members.contains_key(member) {
                    return other(format!(
                        "group {number} has member {member}, which does not exist"
                    ));
                }
                share(*own)?;
            }
        }
        Ok(())
    }

    fn table(&self, number: usize, table: &Table) -> CheckResult {
        name(&table.identity.name)?;
        within("keys", table.keys.len(), limits::KEYS)?;
        within("entries", table.size, limits::TABLE_SIZE)?;
        let mut width = 0;
        for key in &table.keys {
            name(&key.name)?;
            self.wants("a key", key.value, key.width, Scope::Control)?;
            width += u32::from(key.width);
        }
        within("bits of all keys", width, limits::KEY_BITS)?;
        kind(table)?;
        within("actions", table.actions.len(), limits::ACTIONS_OF_TABLE)?;
        for action in &table.actions {
            get(&self.program.actions, action.action.index(), "action")?;
        }
        if let Some(default) = &table.default {
            self.entry_action(table, &default.entry)?;
            rates(table, default.rates)?;
        }
        if let Implementation::Profile(profile) = table.implementation {
            let profile = get(&self.program.profiles, profile.index(), "action profile")?;
            let mut all = profile.members.values();
            all.try_for_each(|own| self.entry_action(table, own))?;
        }
        let own = TableId::at(number);
        if let Some(counter) = table.counter
            && get(&self.program.counters, counter.index(), "counter")?.table != own
        {
            return other("has a direct counter that is not its own");
        }
        if let Some((meter, place)) = table.meter {
            if get(&self.program.meters, meter.index(), "meter")?.table != own {
                return other("has a direct meter that is not its own");
            }
            self.place(place, false, Scope::Control)?;
        }
        Ok(())
    }

    fn entry_action(&self, table: &Table, entry: &EntryAction) -> CheckResult {
        if !table.actions.iter().any(|action| action.action == entry.action) {
            return other("an entry has an action that the table has not");
        }
        self.arguments(entry)
    }

    fn arguments(&self, entry: &EntryAction) -> CheckResult {
        let action = get(&self.program.actions, entry.action.index(), "action")?;
        let widths = entry
            .arguments
            .iter()
            .map(Bits::width)
            .eq(action.parameters.iter().map(|p| p.width));
        if !widths || !entry.arguments.iter().all(Bits::is_canonical) {
            return other(format!(
                "the arguments do not fit action {:?}",
                action.identity.name
            ));
        }
        Ok(())
    }

    fn target(&self, table: &Table, target: &EntryTarget) -> CheckResult {
        let profile = match (target, table.implementation) {
            (EntryTarget::Action(action), Implementation::Direct) => return self.entry_action(table, action),
            (EntryTarget::Action(_), Implementation::Profile(_)) => {
                return other("has an action where members are");
            }
            (_, Implementation::Direct) => return other("has a member or group without a profile"),
            (_, Implementation::Profile(profile)) => {
                get(&self.program.profiles, profile.index(), "action profile")?
            }
        };
        match target {
            EntryTarget::Member(number) if !profile.members.contains_key(number) => {
                other(format!("has member {number}, which does not exist"))
            }
            EntryTarget::Group(number) if !profile.groups.contains_key(number) => {
                other(format!("has group {number}, which does not exist"))
            }
            EntryTarget::Choices(_) if profile.selector.is_none() => other("has choices without a selector"),
            EntryTarget::Choices(all) => all.iter().try_for_each(|one| {
                share(one.share)?;
                self.entry_action(table, &one.action)
            }),
            _ => Ok(()),
        }
    }

    fn entries(&self, table: &Table) -> Result<(), CheckError> {
        let place = || format!("table {:?}", table.identity.name);
        within(
            "entries of the program",
            table.entries.len(),
            limits::CONSTANT_ENTRIES,
        )
        .at(place)?;
        let mut seen = HashSet::new();
        for (number, entry) in table.entries.iter().enumerate() {
            let place = || format!("table {:?}, entry {number}", table.identity.name);
            self.entry(table, entry).at(place)?;
            let unique = matches!(table.kind, MatchKind::Exact | MatchKind::Lpm);
            if unique && !seen.insert(&entry.keys) {
                return other("has the same keys as one before it").at(place);
            }
        }
        Ok(())
    }

    fn entry(&self, table: &Table, entry: &Entry) -> CheckResult {
        self.target(table, &entry.target)?;
        rates(table, entry.rates)?;
        if entry.idle_timeout_ns > 0 && !table.idle_timeout {
            return other("has an idle time, but its table has none");
        }
        if entry.keys.len() != table.keys.len() {
            return other("has not as many keys as the table");
        }
        let mut keys = entry.keys.iter().zip(&table.keys);
        keys.try_for_each(|(matched, key)| key_match(matched, &key.name, key.width, key.kind))
    }

    /// Checks counters, meters, registers, calculations, checksums, digests, field lists.
    pub(super) fn externs(&self) -> Result<(), CheckError> {
        self.state_of_externs()?;
        for calculation in &self.program.calculations {
            self.calculation(calculation)
                .at(|| format!("calculation {:?}", calculation.name))?;
        }
        for checksum in &self.program.checksums {
            let place = || format!("checksum {:?}", checksum.name);
            name(&checksum.name).at(place)?;
            get(
                &self.program.calculations,
                checksum.calculation.index(),
                "calculation",
            )
            .at(place)?;
            self.place(checksum.target, false, Scope::Control).at(place)?;
            if let Some(condition) = checksum.condition {
                self.bool("the condition", condition, Scope::Control).at(place)?;
            }
        }
        for digest in &self.program.digests {
            let place = || format!("digest {:?}", digest.identity.name);
            name(&digest.identity.name).at(place)?;
            within("items", digest.items.len(), limits::KEYS).at(place)?;
            for item in &digest.items {
                self.bits("an item", item.value, Scope::Control).at(place)?;
            }
        }
        for list in &self.program.field_lists {
            let place = || format!("field list {:?}", list.name);
            name(&list.name).at(place)?;
            within("fields", list.fields.len(), limits::ELEMENTS).at(place)?;
            for field in &list.fields {
                get(&self.program.fields, field.index(), "field").at(place)?;
            }
        }
        for function in &self.program.extern_functions {
            let place = || format!("extern function {:?}", function.name);
            name(&function.name).at(place)?;
            within("arguments", function.arguments.len(), limits::KEYS).at(place)?;
        }
        Ok(())
    }

    /// Sizes of the externs that keep state, and their sum.
    fn state_of_externs(&self) -> Result<(), CheckError> {
        let p = self.program;
        let mut bytes = 0u64;
        let cells = p
            .counters
            .iter()
            .map(|counter| ("counter", &counter.identity, counter.size, 16, counter.table))
            .chain(
                p.meters
                    .iter()
                    .map(|meter| ("meter", &meter.identity, meter.size, 64, meter.table)),
            )
            .chain(p.registers.iter().map(|register| {
                (
                    "register",
                    &register.identity,
                    register.size,
                    register.width.div_ceil(64) * 8,
                    None,
                )
            }));
        for (kind, identity, size, cell, table) in cells {
            let place = || format!("{kind} {:?}", identity.name);
            name(&identity.name).at(place)?;
            within("cells", size, limits::CELLS).at(place)?;
            if let Some(table) = table {
                get(&p.tables, table.index(), "table").at(place)?;
            }
            bytes += u64::from(size) * u64::from(cell);
            within(
                "bytes of all counters, meters and registers",
                bytes,
                limits::STATE_BYTES,
            )
            .at(place)?;
        }
        for register in &p.registers {
            let place = || format!("register {:?}", register.identity.name);
            within("bits of a cell", register.width, limits::WIDTH).at(place)?;
            if register.width == 0 {
                return other("has cells without bits").at(place);
            }
        }
        Ok(())
    }

    fn calculation(&self, calculation: &Calculation) -> CheckResult {
        name(&calculation.name)?;
        within("inputs", calculation.inputs.len(), limits::ELEMENTS)?;
        for input in &calculation.inputs {
            match input {
                CalculationInput::Field(field) => {
                    get(&self.program.fields, field.index(), "field").map(|_| ())?
                }
                CalculationInput::Header(header) | CalculationInput::Payload(Some(header)) => {
                    get(&self.program.headers, header.index(), "header").map(|_| ())?;
                }
                CalculationInput::Value(value) => match self.plain(*value)? {
                    Type::Bits(_) => {}
                    Type::Bool => return other("takes a bool"),
                },
                CalculationInput::Payload(None) => {}
            }
        }
        Ok(())
    }
}

impl Checked {
    /// Checks an entry that the program may get.
    ///
    /// # Errors
    /// There is no such table, or the entry is none of it, and why.
    pub fn check_entry(&self, table: TableId, entry: &Entry) -> Result<(), CheckError> {
        let checker = Checker {
            program: self.program(),
            summaries: Vec::new(),
        };
        let own = get(&checker.program.tables, table.index(), "table").at(|| "a change".into())?;
        let place = || format!("table {:?}, an entry", own.identity.name);
        checker.entry(own, entry).at(place)
    }
}

/// Checks that an entry has rates only if the table has a meter.
fn rates(table: &Table, own: Option<Rates>) -> CheckResult {
    match (own, table.meter) {
        (Some(_), None) => other("has rates, but its table has no meter"),
        _ => Ok(()),
    }
}

/// Checks a member's part of a group.
fn share(share: Share) -> CheckResult {
    if share.weight == 0 {
        return other("a member has no weight");
    }
    within(
        "port that is watched",
        share.watch.unwrap_or(0),
        limits::WATCHED_PORT,
    )
}

/// Checks that the kind of a table follows from its keys.
fn kind(table: &Table) -> CheckResult {
    let prefixes = table.keys.iter().filter(|key| key.kind == MatchKind::Lpm).count();
    let loose = |key: &Key| {
        matches!(
            key.kind,
            MatchKind::Ternary | MatchKind::Range | MatchKind::Optional
        )
    };
    let fits = match table.kind {
        MatchKind::Exact => table.keys.iter().all(|key| key.kind == MatchKind::Exact),
        MatchKind::Lpm => prefixes == 1 && !table.keys.iter().any(loose),
        MatchKind::Ternary | MatchKind::Range | MatchKind::Optional => true,
    };
    if fits {
        Ok(())
    } else {
        other(format!("keys do not make a table of kind {:?}", table.kind))
    }
}

/// Checks that a match fits a key, or a part of a value set.
pub(super) fn key_match(matched: &KeyMatch, name: &str, width: u16, kind: MatchKind) -> CheckResult {
    let sane = |bits: &Bits| bits.width() == width && bits.is_canonical();
    let masked = |value: &Bits, mask: &Bits| {
        value
            .bytes()
            .iter()
            .zip(mask.bytes())
            .all(|(value, mask)| value & !mask == 0)
    };
    let fits = match (matched, kind) {
        (KeyMatch::Exact(value), MatchKind::Exact)
        | (KeyMatch::Optional(Some(value)), MatchKind::Optional) => sane(value),
        (KeyMatch::Optional(None), MatchKind::Optional) => true,
        (KeyMatch::Lpm(value, length), MatchKind::Lpm) => {
            sane(value) && *length <= width && masked(value, &Bits::prefix(width, *length))
        }
        (KeyMatch::Ternary(value, mask), MatchKind::Ternary) => {
            sane(value) && sane(mask) && masked(value, mask)
        }
        (KeyMatch::Range(low, high), MatchKind::Range) => {
            sane(low) && sane(high) && low.bytes() <= high.bytes()
        }
        _ => false,
    };
    if fits {
        Ok(())
    } else {
        other(format!("does not fit key {name:?}"))
    }
}
