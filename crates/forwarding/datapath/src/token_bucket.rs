//! A token bucket that holds one second's worth.
//!
//! Time is in milliseconds of any clock that does not go back; tokens come in thousandths, so that no rate is rounded.

/// How often something may happen.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    per_second: u32,
    /// Thousandths of what may happen at once.
    left: u64,
    /// When `left` was right.
    then_ms: u64,
}

impl TokenBucket {
    /// A full one.
    pub fn new(per_second: u32) -> TokenBucket {
        TokenBucket {
            per_second,
            left: u64::from(per_second) * 1000,
            then_ms: 0,
        }
    }

    /// Another rate from now on. What was saved up stays, as far as it fits.
    pub fn set_rate(&mut self, per_second: u32) {
        self.per_second = per_second;
        self.left = self.left.min(u64::from(per_second) * 1000);
    }

    /// Takes one; false if there is none.
    pub fn take(&mut self, now_ms: u64) -> bool {
        let rate = u64::from(self.per_second);
        let passed = now_ms.saturating_sub(self.then_ms).min(1000);
        self.left = (self.left + passed * rate).min(rate * 1000);
        self.then_ms = self.then_ms.max(now_ms);
        let taken = self.left >= 1000;
        if taken {
            self.left -= 1000;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of many attempts at a time are granted.
    fn granted(bucket: &mut TokenBucket, now_ms: u64) -> usize {
        (0..5000).filter(|_| bucket.take(now_ms)).count()
    }

    #[test]
    fn a_second_s_worth_at_once_and_then_the_rate() {
        let mut bucket = TokenBucket::new(300);
        assert_eq!(granted(&mut bucket, 5), 300);
        assert_eq!(granted(&mut bucket, 5), 0);
        let later: usize = (0..=1000).map(|ms| granted(&mut bucket, 5 + ms)).sum();
        assert_eq!(later, 300, "tokens come one by one, every 3.3 ms");
        assert_eq!(granted(&mut bucket, 1_000_000), 300);
        // A clock reading older than the last one gives nothing.
        assert_eq!(granted(&mut bucket, 10), 0);
    }

    #[test]
    fn a_lower_rate_forfeits_what_was_saved() {
        let mut bucket = TokenBucket::new(1000);
        bucket.set_rate(10);
        assert_eq!(granted(&mut bucket, 0), 10);
        bucket.set_rate(1000);
        assert_eq!(granted(&mut bucket, 0), 0);
        assert_eq!(granted(&mut bucket, 100), 100);
    }
}
