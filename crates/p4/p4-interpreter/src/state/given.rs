//! What is given to a program beside its entries: multicast groups, clone sessions, and rates of meters.

use super::{CloneSession, MeterRates, Replica, State};
use crate::error::Error;
use p4_ir::setup::{self, Setup};

impl State {
    /// Gives a fresh state its groups, sessions and rates of meters.
    ///
    /// # Errors
    ///
    /// There are too many, or they name what the program does not have.
    pub fn give(&self, given: &Setup) -> Result<(), Error> {
        for group in &given.groups {
            self.set_group(group.number, &replicas(&group.copies))?;
        }
        for session in &given.sessions {
            let made = CloneSession {
                replicas: replicas(&session.copies).into(),
                group: session.group,
                max_length: session.max_length.map(|length| length as usize),
            };
            self.set_session(session.number, made)?;
        }
        for rates in &given.meters {
            let cells = match rates.cell {
                Some(cell) => cell.into()..u64::from(cell) + 1,
                None => 0..self.meter_cells(rates.meter),
            };
            let own = MeterRates {
                cir: rates.committed.per_second,
                cbs: rates.committed.burst,
                pir: rates.peak.per_second,
                pbs: rates.peak.burst,
            };
            for cell in cells {
                self.set_meter(rates.meter, cell, Some(own), 0)?;
            }
        }
        Ok(())
    }
}

fn replicas(copies: &[setup::Copy]) -> Vec<Replica> {
    let replica = |copy: &setup::Copy| Replica {
        port: copy.port,
        rid: copy.rid,
    };
    copies.iter().map(replica).collect()
}
