//! Rates of meters and idle times: from the form of P4Runtime to that of programs, and back.

use crate::failure::{Done, Failure};
use crate::proto::{MeterConfig, TableEntry};
use p4_ir::{Program, Rate, Rates, Table};

pub(crate) fn no_meter() -> Failure {
    Failure::invalid("its entries have no meter")
}

/// Rates that an entry is given.
pub(crate) fn entry_rates(table: &Table, given: &TableEntry) -> Done<Option<Rates>> {
    match (given.meter_config, table.meter) {
        (None, _) => Ok(None),
        (Some(_), None) => Err(no_meter()),
        (Some(config), Some(_)) => read_rates(config).map(Some),
    }
}

pub(crate) fn read_rates(given: MeterConfig) -> Done<Rates> {
    let number =
        |number: i64| u64::try_from(number).map_err(|_| Failure::invalid("a rate or burst is negative"));
    let rate = |per_second, burst| {
        Ok(Rate {
            per_second: number(per_second)?,
            burst: number(burst)?,
        })
    };
    let rates = Rates {
        committed: rate(given.cir, given.cburst)?,
        peak: rate(given.pir, given.pburst)?,
    };
    p4_interpreter::meter_rates(rates)
        .check()
        .map_err(Failure::invalid)?;
    Ok(rates)
}

pub(crate) fn write_rates(rates: Rates) -> MeterConfig {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    MeterConfig {
        cir: number(rates.committed.per_second),
        cburst: number(rates.committed.burst),
        pir: number(rates.peak.per_second),
        pburst: number(rates.peak.burst),
    }
}

/// Reads the idle time that an entry is given, in nanoseconds.
pub(crate) fn read_timeout(table: &Table, given: &TableEntry) -> Done<u64> {
    if given.time_since_last_hit.is_some() {
        return Err(Failure::invalid("time_since_last_hit is for the server to set"));
    }
    match u64::try_from(given.idle_timeout_ns) {
        Ok(0) => Ok(0),
        Ok(_) if !table.idle_timeout => Err(no_idle_times()),
        Ok(timeout) => Ok(timeout),
        Err(_) => Err(Failure::invalid("the idle time is negative")),
    }
}

pub(crate) fn no_idle_times() -> Failure {
    Failure::invalid("its entries have no idle time")
}

/// Entries of a program that have idle times.
pub(crate) fn timed(program: &Program) -> usize {
    let entries = program.tables.iter().flat_map(|table| &table.entries);
    entries.filter(|entry| entry.idle_timeout_ns > 0).count()
}
