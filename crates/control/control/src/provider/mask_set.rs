//! The few masks that the flows of a port have.
//!
//! Each different mask costs a look-up of packets without a cache entry. A filter may read other fields for
//! each packet, and guests choose the packets. So a set has [`MAX_MASKS`] masks at most: bits that none of
//! them covers widen the one that grows least. Each time that happens, bits are added to the set for good; so
//! it happens a bounded number of times.

use flow::FlowMask;

/// Most masks of a filter's flows for one port.
pub const MAX_MASKS: usize = 4;

/// The masks of a port's flows.
#[derive(Clone, Debug, Default)]
pub struct MaskSet(Vec<FlowMask>);

/// The mask for a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    /// The mask that covers what was read.
    pub mask: FlowMask,
    /// The mask whose place it took, and whose flows have to go.
    pub replaced: Option<FlowMask>,
}

fn bits(mask: &FlowMask) -> u32 {
    mask.0.words.iter().map(|word| word.count_ones()).sum()
}

/// Whether `mask` has all bits of `seen`.
pub fn covers(mask: &FlowMask, seen: &FlowMask) -> bool {
    mask.union(seen) == *mask
}

impl MaskSet {
    /// The mask for a verdict that read these bits.
    pub fn cover(&mut self, seen: &FlowMask) -> Cover {
        let covering = self.0.iter().filter(|mask| covers(mask, seen));
        if let Some(mask) = covering.min_by_key(|mask| bits(mask)) {
            return Cover {
                mask: *mask,
                replaced: None,
            };
        }
        let grown = |mask: &&mut FlowMask| bits(&mask.union(seen)) - bits(mask);
        let is_full = self.0.len() == MAX_MASKS;
        let nearest = self.0.iter_mut().min_by_key(grown);
        match nearest {
            Some(nearest) if is_full => {
                let mask = nearest.union(seen);
                Cover {
                    mask,
                    replaced: Some(std::mem::replace(nearest, mask)),
                }
            }
            _ => {
                self.0.push(*seen);
                Cover {
                    mask: *seen,
                    replaced: None,
                }
            }
        }
    }

    /// Takes up the mask of a flow that exists. False if there are other masks enough.
    pub fn adopt(&mut self, mask: &FlowMask) -> bool {
        let known = self.0.contains(mask);
        if !known && self.0.len() < MAX_MASKS {
            self.0.push(*mask);
        }
        self.0.contains(mask)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::FieldId;

    fn mask(fields: &[FieldId]) -> FlowMask {
        let mut mask = FlowMask::ANY;
        for field in fields {
            field.field().set(&mut mask.0.words, u128::MAX, u128::MAX);
        }
        mask
    }

    #[test]
    fn what_is_covered_makes_no_mask() {
        let mut set = MaskSet::default();
        let wide = mask(&[FieldId::EthType, FieldId::IpProto, FieldId::TpSrc]);
        let narrow = mask(&[FieldId::EthType]);
        assert_eq!(set.cover(&wide).mask, wide);
        assert_eq!(set.cover(&narrow).mask, wide, "one mask is better than two");
        assert_eq!(set.len(), 1);
    }

    #[test]
    fn a_full_set_widens_the_nearest_mask() {
        let mut set = MaskSet::default();
        use FieldId::{EthDst, EthSrc, IpDst, IpSrc, IpTtl, TpDst};
        for field in [EthSrc, EthDst, IpSrc, IpDst] {
            assert_eq!(set.cover(&mask(&[field])).replaced, None);
        }
        let seen = mask(&[EthDst, TpDst]);
        let cover = set.cover(&seen);
        assert_eq!((cover.mask, cover.replaced), (seen, Some(mask(&[EthDst]))));
        assert_eq!(set.cover(&mask(&[EthDst])).mask, seen);
        assert!(set.cover(&mask(&[IpTtl])).replaced.is_some());
        assert_eq!(set.len(), MAX_MASKS);
    }

    /// However many different masks are asked for, places are taken a bounded number of times.
    #[test]
    fn widening_ends() {
        let mut set = MaskSet::default();
        let mut random = 1u64;
        let mut replaced = 0;
        for _ in 0..100_000 {
            let mut seen = FlowMask::ANY;
            for word in &mut seen.0.words {
                random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ 7;
                *word = 1 << (random >> 58);
            }
            replaced += usize::from(set.cover(&seen).replaced.is_some());
        }
        assert!(replaced > 0 && replaced <= MAX_MASKS * 64 * flow::KEY_WORDS);
        assert_eq!(set.len(), MAX_MASKS);
    }
}
