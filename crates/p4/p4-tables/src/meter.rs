//! Meters: the two-rate three-colour marker of RFC 2698, colour-blind and colour-aware.
//!
//! A meter has two token buckets: the committed one (CIR, CBS) and the peak one (PIR, PBS). A packet that
//! finds too few peak tokens is red and takes none; else one that finds too few committed tokens is yellow
//! and takes peak ones; else it is green and takes both. Tokens are packets or bytes, as the program says.
//! Without rates every packet is green, as P4Runtime requires.
//!
//! Tokens are counted in billionths, so that rates per second and times in nanoseconds need no division.

use parking_lot::Mutex;

use crate::error::Error;

/// A meter's colour for a packet. The numbers are those of v1model's `MeterColor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Colour {
    /// Within the committed rate.
    #[default]
    Green = 0,
    /// Beyond the committed rate, within the peak rate.
    Yellow = 1,
    /// Beyond the peak rate.
    Red = 2,
}

/// Rates in tokens per second and bursts in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterRates {
    /// Committed information rate, tokens a second.
    pub cir: u64,
    /// Committed burst size, tokens.
    pub cbs: u64,
    /// Peak information rate, tokens a second.
    pub pir: u64,
    /// Peak burst size, tokens.
    pub pbs: u64,
}

/// Parts in a token.
const PART: u64 = 1_000_000_000;
/// Largest burst: its parts must fit in 64 bits.
const MAX_BURST: u64 = u64::MAX / PART;

impl MeterRates {
    /// # Errors
    ///
    /// [`Error::MeterRate`] if a burst exceeds 18,446,744,073 tokens or the committed rate the peak rate.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            MeterRates { cbs, .. } if *cbs > MAX_BURST => Err(Error::MeterRate {
                what: "committed burst",
            }),
            MeterRates { pbs, .. } if *pbs > MAX_BURST => Err(Error::MeterRate { what: "peak burst" }),
            MeterRates { cir, pir, .. } if cir > pir => Err(Error::MeterRate {
                what: "committed rate",
            }),
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
struct State {
    rates: MeterRates,
    committed: u64,
    peak: u64,
    /// Nanoseconds.
    last: u64,
}

/// A meter cell. Any number of workers may use it at once.
#[derive(Debug, Default)]
pub struct Meter {
    state: Mutex<Option<State>>,
}

impl Meter {
    /// Sets rates, with full buckets; `None` makes every packet green again. `now` is in nanoseconds.
    ///
    /// # Errors
    ///
    /// See [`MeterRates::check`].
    pub fn set(&self, rates: Option<MeterRates>, now: u64) -> Result<(), Error> {
        rates.as_ref().map_or(Ok(()), MeterRates::check)?;
        let state = |rates: MeterRates| State {
            rates,
            committed: rates.cbs * PART,
            peak: rates.pbs * PART,
            last: now,
        };
        *self.state.lock() = rates.map(state);
        Ok(())
    }

    /// The rates that are set.
    pub fn rates(&self) -> Option<MeterRates> {
        self.state.lock().as_ref().map(|state| state.rates)
    }

    /// Marks a packet of `tokens` that has the colour `before` already ([`Colour::Green`]: colour-blind).
    /// `now` is in nanoseconds; if it is before that of an earlier packet, no tokens are added.
    pub fn execute(&self, tokens: u64, now: u64, before: Colour) -> Colour {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else {
            return before;
        };
        state.refill(now);
        let cost = tokens.saturating_mul(PART);
        if before == Colour::Red || state.peak < cost {
            return Colour::Red;
        }
        state.peak -= cost;
        if before == Colour::Yellow || state.committed < cost {
            return Colour::Yellow;
        }
        state.committed -= cost;
        Colour::Green
    }
}

impl State {
    fn refill(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.last);
        self.last += elapsed;
        let add = |tokens: u64, rate: u64, burst: u64| {
            let sum = u128::from(tokens) + u128::from(rate) * u128::from(elapsed);
            u64::try_from(sum).unwrap_or(u64::MAX).min(burst * PART)
        };
        self.committed = add(self.committed, self.rates.cir, self.rates.cbs);
        self.peak = add(self.peak, self.rates.pir, self.rates.pbs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: MeterRates = MeterRates {
        cir: 1000,
        cbs: 2,
        pir: 2000,
        pbs: 3,
    };

    #[test]
    fn bursts_then_yellow_then_red_then_rates() {
        let meter = Meter::default();
        meter.set(Some(RATES), 0).unwrap();
        let mark = |now| meter.execute(1, now, Colour::Green);
        assert_eq!(
            [mark(0), mark(0), mark(0), mark(0)],
            [Colour::Green, Colour::Green, Colour::Yellow, Colour::Red]
        );
        // Half a millisecond brings one peak token and half a committed one.
        assert_eq!(mark(500_000), Colour::Yellow);
        assert_eq!(mark(1_000_000), Colour::Green);
        assert_eq!(mark(0), Colour::Red, "a clock that goes back brings nothing");
    }

    #[test]
    fn colours_never_improve_and_red_takes_nothing() {
        let meter = Meter::default();
        meter.set(Some(RATES), 0).unwrap();
        assert_eq!(meter.execute(1, 0, Colour::Red), Colour::Red);
        assert_eq!(meter.execute(1, 0, Colour::Yellow), Colour::Yellow);
        assert_eq!(meter.execute(2, 0, Colour::Green), Colour::Green);
    }

    #[test]
    fn rates_out_of_range_are_refused_and_huge_packets_are_red() {
        let meter = Meter::default();
        assert_eq!(meter.execute(u64::MAX, 0, Colour::Green), Colour::Green);
        let wrong = [
            (
                MeterRates {
                    cbs: u64::MAX,
                    ..RATES
                },
                "committed burst",
            ),
            (
                MeterRates {
                    pbs: u64::MAX,
                    ..RATES
                },
                "peak burst",
            ),
            (MeterRates { cir: 2001, ..RATES }, "committed rate"),
        ];
        for (rates, what) in wrong {
            assert_eq!(meter.set(Some(rates), 0), Err(Error::MeterRate { what }));
        }
        let largest = MeterRates {
            cir: u64::MAX,
            cbs: MAX_BURST,
            pir: u64::MAX,
            pbs: MAX_BURST,
        };
        meter.set(Some(largest), 0).unwrap();
        assert_eq!(meter.execute(u64::MAX, u64::MAX, Colour::Green), Colour::Red);
    }
}
