//! Bits that look-ups behind the first ones compare, for keys of both forms.

use flow::{ExactKey, FlowMask};

/// A mask for exact keys of one form.
pub type Words = [u64; ExactKey::WORDS];

/// Bits that look-ups compare behind those that the mask union covers.
#[derive(Debug)]
pub(crate) struct Behind {
    short: Words,
    long: Words,
    /// Rule lists alone compare them, and no flows.
    of_rules: bool,
}

impl Behind {
    pub fn new(bits: &FlowMask, of_rules: bool) -> Behind {
        Behind {
            short: ExactKey::short_mask(bits),
            long: ExactKey::long_mask(bits),
            of_rules,
        }
    }

    /// Whether packets are looked up further without need: the mask of the first look is this one, and has
    /// all bits since those of rule lists were [promoted](crate::promotion).
    pub fn was_promoted(&self, key: &ExactKey, mask: &Words) -> bool {
        self.of_rules && self.is_within(key, mask)
    }

    /// The bits for keys of this one's form.
    pub fn bits(&self, key: &ExactKey) -> &Words {
        if key.is_short() { &self.short } else { &self.long }
    }

    /// Whether the mask, which is for keys of this one's form, has all of them.
    pub fn is_within(&self, key: &ExactKey, mask: &Words) -> bool {
        let words = if key.is_short() {
            ExactKey::SHORT_WORDS
        } else {
            ExactKey::WORDS
        };
        let pairs = self.bits(key).iter().zip(mask).take(words);
        pairs.fold(0, |missing, (bits, mask)| missing | bits & !mask) == 0
    }

    /// Adds them to the mask.
    pub fn widen(&self, key: &ExactKey, mask: &mut Words) {
        for (mask, bits) in mask.iter_mut().zip(self.bits(key)) {
            *mask |= bits;
        }
    }
}
