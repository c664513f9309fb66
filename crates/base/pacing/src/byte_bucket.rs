//! A bucket of bytes that may go into debt: a bound on a bandwidth, whose owner waits instead of dropping.
//!
//! The bucket is one moment, [`paid_ns`](ByteBucket::paid_ns): until then, the rate pays for what has passed.
//! Bytes may pass once that moment is over, as many as there are, and each moves it on by what it costs. So a
//! frame of any length passes when the debt of those before is paid, and over any time no more passes than
//! the rate, the burst and one batch. A moment that lies longer ago than the burst counts as that long ago:
//! this much is saved. What does not make a whole nanosecond is kept, so no rate is rounded.
//!
//! Times are in nanoseconds of the caller's clock. A reading older than the last one pays nothing.

/// Bits times nanoseconds per second in a byte.
const COST: u64 = 8 * 1_000_000_000;

/// A bound on the bytes per second that pass.
#[derive(Clone, Debug)]
pub struct ByteBucket {
    bits_per_second: u64,
    /// Time in which the rate pays for the burst.
    burst_ns: u64,
    paid_ns: u64,
    /// Part of a nanosecond that is owed besides, in units of one per `bits_per_second`.
    rest: u64,
}

impl ByteBucket {
    /// A full bucket, as of `now_ns`, for `burst` bytes at once and for a rate, which is at least 1.
    pub fn new(bits_per_second: u64, burst: u32, now_ns: u64) -> ByteBucket {
        let mut bucket = ByteBucket {
            bits_per_second,
            burst_ns: 0,
            paid_ns: 0,
            rest: 0,
        };
        bucket.set(bits_per_second, burst);
        bucket.paid_ns = now_ns.saturating_sub(bucket.burst_ns);
        bucket
    }

    /// Sets another rate and burst. Time that is owed stays, and so does what was saved, up to the new burst.
    pub fn set(&mut self, bits_per_second: u64, burst: u32) {
        self.bits_per_second = bits_per_second.max(1);
        self.burst_ns = u64::from(burst) * COST / self.bits_per_second;
        self.rest = 0;
    }

    /// The time until which the rate pays for what has passed.
    pub fn paid_ns(&self) -> u64 {
        self.paid_ns
    }

    /// Time in which the rate pays for the burst.
    pub fn burst_ns(&self) -> u64 {
        self.burst_ns
    }

    /// The bytes that may pass now; 0 while there is a debt. One packet more may begin within them.
    pub fn available(&self, now_ns: u64) -> u64 {
        if self.paid_ns > now_ns {
            return 0;
        }
        let saved_ns = (now_ns - self.paid_ns).min(self.burst_ns);
        let saved = u128::from(saved_ns) * u128::from(self.bits_per_second) / u128::from(COST);
        u64::try_from(saved).unwrap_or(u64::MAX).max(1)
    }

    /// So many bytes have passed.
    pub fn charge(&mut self, bytes: u64, now_ns: u64) {
        let from_ns = self.paid_ns.max(now_ns.saturating_sub(self.burst_ns));
        let cost = u128::from(bytes) * u128::from(COST) + u128::from(self.rest);
        let rate = u128::from(self.bits_per_second);
        self.paid_ns = from_ns.saturating_add(u64::try_from(cost / rate).unwrap_or(u64::MAX));
        self.rest = (cost % rate) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    /// Bits and nanoseconds as fractions of a second that do not overflow.
    struct Twin {
        rate: u128,
        burst: u128,
        /// Bit-nanoseconds that are there; a debt is below zero.
        saved: i128,
        then_ns: u64,
    }

    impl Twin {
        fn fill(&mut self, now_ns: u64) {
            let passed = now_ns.saturating_sub(self.then_ns);
            self.then_ns = self.then_ns.max(now_ns);
            self.saved += i128::from(passed) * self.rate as i128;
            self.saved = self.saved.min(self.burst as i128);
        }
    }

    proptest! {
        /// Beside a count of bits that are saved: bytes pass if and only if none are owed, to a nanosecond.
        #[test]
        fn a_bucket_is_a_count_of_saved_bits(
            rate in prop_oneof![1000..2_000_000u64, 1_000_000..100_000_000_000u64],
            burst in 1600..10_000_000u32,
            steps in prop::collection::vec((0..200_000_000u64, 0..2_000_000u64), 1..100),
        ) {
            // A clock that has gone for longer than the burst takes.
            let mut now_ns = u64::MAX / 4;
            let mut bucket = ByteBucket::new(rate, burst, now_ns);
            let full = u128::from(burst) * u128::from(COST);
            let mut twin = Twin { rate: rate.into(), burst: full, saved: full as i128, then_ns: now_ns };
            // The time of the burst is rounded to a nanosecond, and so is the time that is paid.
            let exact = 2 * i128::from(rate);
            for (pause_ns, bytes) in steps {
                now_ns += pause_ns;
                twin.fill(now_ns);
                let available = bucket.available(now_ns);
                if twin.saved > exact {
                    prop_assert!(available > 0);
                    let saved = (twin.saved / i128::from(COST)) as u64;
                    prop_assert!(available.abs_diff(saved.max(1)) <= 1 + rate.div_ceil(COST) * 2);
                } else if twin.saved < -exact {
                    prop_assert_eq!(available, 0);
                }
                if available > 0 {
                    bucket.charge(bytes, now_ns);
                    twin.saved -= (u128::from(bytes) * u128::from(COST)) as i128;
                }
            }
        }
    }

    /// How many bytes pass in a second after the burst, in packets of that length, if the owner waits as long
    /// as it must and `late_ns` longer.
    fn passed(bucket: &mut ByteBucket, packet: u64, late_ns: u64) -> u64 {
        let (mut now_ns, mut bytes) = (SECOND, 0);
        bucket.charge(bucket.available(now_ns), now_ns);
        while now_ns < 2 * SECOND {
            while bucket.available(now_ns) > 0 {
                bucket.charge(packet, now_ns);
                bytes += packet;
            }
            now_ns = bucket.paid_ns() + late_ns;
        }
        bytes
    }

    #[test]
    fn a_second_brings_the_rate_whatever_packets_and_waits_are() {
        for rate in [1_000_000, 100_000_000, 5_000_000_000_u64] {
            let per_second = rate / 8;
            for (packet, late_ns) in [(60, 0), (1514, 1_000_000), (1514, 9_000_000), (65_550, 50_000)] {
                let mut bucket = ByteBucket::new(rate, (per_second / 100) as u32, SECOND);
                let bytes = passed(&mut bucket, packet, late_ns);
                // The last packet of the second may be begun just before its end.
                let most = per_second * 1001 / 1000 + packet;
                let least = per_second * 989 / 1000;
                assert!(
                    (least..=most).contains(&bytes),
                    "{rate} {packet} {late_ns}: {bytes}"
                );
            }
        }
    }

    /// 64 KiB at 1 Mb/s take half a second.
    #[test]
    fn a_long_frame_passes_and_is_paid_for_later() {
        let mut bucket = ByteBucket::new(1_000_000, 1600, 0);
        bucket.charge(65_536, SECOND);
        assert_eq!(bucket.available(SECOND), 0);
        let paid_ns = SECOND + (65_536 - 1600) * 8000;
        assert_eq!(bucket.paid_ns(), paid_ns);
        assert_eq!(bucket.available(paid_ns - 1), 0);
        assert_eq!(bucket.available(paid_ns), 1);
    }

    #[test]
    fn what_is_owed_stays_when_the_rate_changes() {
        let mut bucket = ByteBucket::new(8_000_000, 1_000_000, SECOND);
        bucket.charge(2_000_000, SECOND);
        bucket.set(80_000_000, 2000);
        assert_eq!(bucket.paid_ns(), 2 * SECOND);
        assert_eq!(
            bucket.available(2 * SECOND + 1_000_000_000),
            2000,
            "no more is saved than the burst"
        );
    }
}
