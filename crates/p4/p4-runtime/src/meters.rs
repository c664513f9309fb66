//! Rates of meters: of cells, which travel beside the program, and of entries, which have direct meters.
//!
//! Rates are part of the version. A cell or entry whose rates stay goes on with its buckets in the next one.

use crate::arbitration::Scope;
use crate::failure::{Done, Failure};
use crate::pipeline::{Changed, Pipeline, find};
use crate::proto::{DirectMeterEntry, Index, Kind, MeterConfig, MeterEntry};
use crate::rates::{no_meter, read_rates, write_rates};
use crate::read::Reader;
use crate::write::{cells, position};
use p4_ir::setup::MeterRates;
use p4_ir::{MeterId, Rates};
use std::collections::HashMap;

impl Pipeline {
    /// Sets rates of a cell, or of all.
    pub(crate) fn write_meter(&mut self, given: &MeterEntry) -> Done<()> {
        let meters = self.program.meters.iter();
        let number = find("meter", meters.map(|meter| &meter.identity), given.meter_id)?;
        let meter = MeterId(position(number)?);
        if self.program.meters[number].table.is_some() {
            return Err(Failure::invalid(
                "rates of a table's meter are those of its entries",
            ));
        }
        if given.counter_data.is_some() {
            return Err(Failure::unimplemented("meters do not count"));
        }
        cells(given.index, self.program.meters[number].size)?;
        let cell = given.index.and_then(|index| u32::try_from(index.index).ok());
        let rates = given.config.map(read_rates).transpose()?;
        let rates = rates.map(|rates| MeterRates {
            meter,
            cell,
            committed: rates.committed,
            peak: rates.peak,
        });
        let (own, others): (Vec<_>, Vec<_>) = self
            .setup
            .meters
            .iter()
            .copied()
            .partition(|rates| rates.meter == meter);
        let is_for_all = own.iter().any(|rates| rates.cell.is_none());
        if rates.is_none() && cell.is_some() && is_for_all {
            return Err(Failure::unimplemented(
                "all cells have rates; one of them cannot be without",
            ));
        }
        let kept = own
            .into_iter()
            .filter(|rates| cell.is_some() && rates.cell != cell);
        self.setup.meters = others.into_iter().chain(kept).chain(rates).collect();
        self.changed = Changed::All;
        Ok(())
    }

    /// Sets rates of an entry, or of a table's default.
    pub(crate) fn write_direct_meter(&mut self, given: &DirectMeterEntry) -> Done<()> {
        let row = self.row_of(given.table_entry.as_ref())?;
        let at = self.cell_of(&row)? as usize;
        let table = &mut self.program.tables[row.table];
        if table.meter.is_none() {
            return Err(no_meter());
        }
        if given.counter_data.is_some() {
            return Err(Failure::unimplemented("meters do not count"));
        }
        let rates = given.config.map(read_rates).transpose()?;
        match (table.entries.get_mut(at), &mut table.default) {
            (Some(entry), _) => entry.rates = rates,
            (None, Some(default)) => default.rates = rates,
            (None, None) => return Err(Failure::missing("the table has no default")),
        }
        self.changed = Changed::All;
        Ok(())
    }

    /// Finds rates of cells.
    pub(crate) fn read_meters(&self, given: &MeterEntry, scope: &Scope, reader: &mut dyn Reader) -> Done<()> {
        if given.counter_data.is_some() {
            return Err(Failure::unimplemented("meters do not count"));
        }
        let meters = &self.program.meters;
        let all = meters.iter().map(|meter| &meter.identity);
        for number in self.meant("meter", all, given.meter_id, scope)? {
            let meter = &meters[number];
            if meter.table.is_some() {
                continue;
            }
            let own = self
                .setup
                .meters
                .iter()
                .filter(|rates| rates.meter.index() == number);
            let (mut all, mut by_cell) = (None, HashMap::new());
            for rates in own {
                match rates.cell {
                    Some(cell) => drop(by_cell.insert(cell, rates)),
                    None => all = Some(rates),
                }
            }
            for cell in cells(given.index, meter.size)? {
                let own = by_cell.get(&cell).copied().or(all);
                let config = own.map(|own| {
                    write_rates(Rates {
                        committed: own.committed,
                        peak: own.peak,
                    })
                });
                reader.found(Kind::MeterEntry(Box::new(MeterEntry {
                    meter_id: meter.identity.id.unwrap_or(0),
                    index: Some(Index { index: cell.into() }),
                    config,
                    counter_data: None,
                })))?;
            }
        }
        Ok(())
    }

    /// Finds rates of entries.
    pub(crate) fn read_direct_meters(
        &self,
        given: &DirectMeterEntry,
        scope: &Scope,
        reader: &mut dyn Reader,
    ) -> Done<()> {
        if given.counter_data.is_some() {
            return Err(Failure::unimplemented("meters do not count"));
        }
        let wanted = given.table_entry.as_ref();
        let wanted = wanted.ok_or_else(|| Failure::invalid("table_entry is missing"))?;
        for number in self.tables(wanted.table_id, scope)? {
            let table = &self.program.tables[number];
            if table.meter.is_none() {
                continue;
            }
            let rows = match wanted.is_default_action {
                true => vec![table.entries.len()],
                false => self.rows(number, wanted)?,
            };
            for at in rows {
                let config = match table.entries.get(at) {
                    Some(entry) => entry.rates.map(write_rates),
                    None => self.default_rates(number),
                };
                let table_entry = Some(self.name_of(number, at));
                reader.found(Kind::DirectMeterEntry(Box::new(DirectMeterEntry {
                    table_entry,
                    config,
                    counter_data: None,
                })))?;
            }
        }
        Ok(())
    }

    /// Rates of a table's default.
    pub(crate) fn default_rates(&self, number: usize) -> Option<MeterConfig> {
        let default = self.program.tables[number].default.as_ref()?;
        default.rates.map(write_rates)
    }
}

#[cfg(test)]
#[path = "meters_tests.rs"]
mod tests;
