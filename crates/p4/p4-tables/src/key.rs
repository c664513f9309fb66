//! Keys, and the patterns that entries match them with.
//!
//! A key is a string of bits, built by the interpreter in scratch words and looked up without allocation. Its
//! [`KeyLayout`] gives every field a [`FieldPlace`]: fields of up to 64 bits are packed, several to a word
//! where they fit, and never straddle two words, so that placing one is a shift and an or. Wider fields start
//! at a word of their own and lie there with the least significant word first. Most keys of real programs
//! (addresses, the usual five fields of a flow) fit in two words, and tables keep such keys beside their
//! values.
//!
//! A [`Pattern`] is an entry's match, in the same layout: for each field a value and a mask, or bounds.
//! [`KeyLayout::pattern`] makes it from one [`Match`] per field, and refuses every match that is wrong for
//! its field. Bits that belong to no field are zero in keys and patterns.

use smallvec::SmallVec;

use crate::error::Error;

/// Most words of a key: 4,096 bits.
pub const MAX_KEY_WORDS: usize = 64;

/// Words of a key, of a value or of arguments; short ones need no allocation.
pub type Words = SmallVec<[u64; 2]>;

/// The way in which a field is matched. The names are those of P4 (P4-16 core library, v1model).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchKind {
    /// All bits.
    Exact,
    /// A prefix; among entries that match, the longest prefix wins.
    Lpm,
    /// A value under a mask; the largest priority wins.
    Ternary,
    /// All bits, or anything; the largest priority wins.
    Optional,
    /// From a low to a high bound, both included; the largest priority wins.
    Range,
}

/// A field of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyField {
    /// How it is matched.
    pub kind: MatchKind,
    /// Width in bits, at least 1.
    pub width: u32,
}

/// Where a field lies in a key's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPlace {
    /// How the field is matched.
    pub kind: MatchKind,
    /// First word; the least significant one of a wide field.
    pub word: usize,
    /// Distance of the field's lowest bit from that of the word; 0 for fields wider than 64 bits.
    pub shift: u32,
    /// Width in bits.
    pub width: u32,
}

impl FieldPlace {
    /// Number of words that a value of the field has.
    pub fn words(&self) -> usize {
        self.width.div_ceil(64) as usize
    }

    /// A mask of the bits that word `index` of a value has; words are counted from the least significant one.
    fn valid_bits(&self, index: usize) -> u64 {
        low_bits(u64::from(self.width).saturating_sub(64 * index as u64).min(64) as u32)
    }

    /// Word `index` of the field's value in a key.
    #[inline]
    pub fn get(&self, key: &[u64], index: usize) -> u64 {
        key[self.word + index] >> self.shift & self.valid_bits(index)
    }

    /// Adds word `index` of the field's value to a key whose bits for the field are still zero. Bits beyond
    /// the field's width are cut off.
    #[inline]
    pub fn put(&self, key: &mut [u64], index: usize, value: u64) {
        key[self.word + index] |= (value & self.valid_bits(index)) << self.shift;
    }

    /// Adds a whole value, least significant word first; missing words are zero.
    pub fn put_all(&self, key: &mut [u64], value: &[u64]) {
        for (index, &word) in value.iter().enumerate().take(self.words()) {
            self.put(key, index, word);
        }
    }

    /// Whether the value has no bits beyond the field's width.
    fn fits(&self, value: &[u64]) -> bool {
        value
            .iter()
            .enumerate()
            .all(|(index, &word)| word & !self.valid_bits(index) == 0)
    }

    /// The mask of the first (most significant) `length` bits, least significant word first.
    fn prefix_mask(&self, length: u32) -> Words {
        let free = self.width - length;
        (0..self.words() as u32)
            .map(|index| self.valid_bits(index as usize) & !low_bits(free.saturating_sub(64 * index).min(64)))
            .collect()
    }

    /// Whether the field's value in `key` lies between its values in `low` and `high`.
    pub(crate) fn within(&self, key: &[u64], low: &[u64], high: &[u64]) -> bool {
        let value = |words| (0..self.words()).rev().map(move |index| self.get(words, index));
        value(low).le(value(key)) && value(key).le(value(high))
    }
}

/// A word whose lowest `count` bits are set; `count` is at most 64.
pub(crate) fn low_bits(count: u32) -> u64 {
    u64::MAX.checked_shr(64 - count).unwrap_or(0)
}

/// The fields of a table's key and their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLayout {
    places: Vec<FieldPlace>,
    words: usize,
}

impl KeyLayout {
    /// Lays out the fields in their order.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyField`], [`Error::KeyTooWide`].
    pub fn new(fields: &[KeyField]) -> Result<KeyLayout, Error> {
        // Bits used of each word.
        let mut used: Vec<u32> = Vec::new();
        let mut places = Vec::new();
        for (number, field) in fields.iter().enumerate() {
            if field.width == 0 {
                return Err(Error::EmptyField { field: number });
            }
            let needed = field.width.div_ceil(64) as usize;
            let too_wide = Error::KeyTooWide {
                words: used.len().saturating_add(needed),
                limit: MAX_KEY_WORDS,
            };
            let room = used
                .iter()
                .position(|&bits| needed == 1 && bits + field.width <= 64);
            let word = room.unwrap_or(used.len());
            let shift = room.map_or(0, |word| used[word]);
            if room.is_some() {
                used[word] += field.width;
            } else if used.len() + needed > MAX_KEY_WORDS {
                return Err(too_wide);
            } else {
                used.resize(word + needed, if needed == 1 { field.width } else { 64 });
            }
            places.push(FieldPlace {
                kind: field.kind,
                word,
                shift,
                width: field.width,
            });
        }
        Ok(KeyLayout {
            places,
            words: used.len(),
        })
    }

    /// Words of a key; 0 if it has no fields.
    pub fn words(&self) -> usize {
        self.words
    }

    /// The fields' places, in the order of the fields.
    pub fn places(&self) -> &[FieldPlace] {
        &self.places
    }

    /// Whether entries have priorities: a field is ternary, optional or a range.
    pub fn has_priorities(&self) -> bool {
        self.places.iter().any(|place| {
            matches!(
                place.kind,
                MatchKind::Ternary | MatchKind::Optional | MatchKind::Range
            )
        })
    }

    /// Whether a field is matched with a range.
    pub fn has_ranges(&self) -> bool {
        self.places.iter().any(|place| place.kind == MatchKind::Range)
    }

    /// Whether all fields are exact.
    pub(crate) fn is_exact(&self) -> bool {
        self.places.iter().all(|place| place.kind == MatchKind::Exact)
    }

    /// The mask of all bits of all fields.
    pub(crate) fn full_mask(&self) -> Words {
        let mut mask: Words = smallvec::smallvec![0; self.words];
        for place in &self.places {
            place.put_all(&mut mask, &place.prefix_mask(place.width));
        }
        mask
    }

    /// A pattern from one match per field, in the order of the fields.
    ///
    /// # Errors
    ///
    /// [`Error::WrongFields`], [`Error::WrongKind`], [`Error::WrongWidth`], [`Error::PrefixTooLong`],
    /// [`Error::BitsOutsideMask`], [`Error::EmptyRange`].
    pub fn pattern(&self, matches: &[Match<'_>]) -> Result<Pattern, Error> {
        if matches.len() != self.places.len() {
            return Err(Error::WrongFields {
                expected: self.places.len(),
                found: matches.len(),
            });
        }
        let zero = || -> Words { smallvec::smallvec![0; self.words] };
        let high = if self.has_ranges() { zero() } else { Words::new() };
        let mut pattern = Pattern {
            value: zero(),
            mask: zero(),
            high,
        };
        for (field, (place, given)) in self.places.iter().zip(matches).enumerate() {
            self.fill(&mut pattern, field, place, given)?;
        }
        Ok(pattern)
    }

    /// A key for tests and tools, from one value per field, least significant word first.
    ///
    /// # Errors
    ///
    /// [`Error::WrongFields`], [`Error::WrongWidth`].
    pub fn key(&self, values: &[&[u64]]) -> Result<Words, Error> {
        if values.len() != self.places.len() {
            return Err(Error::WrongFields {
                expected: self.places.len(),
                found: values.len(),
            });
        }
        let mut key: Words = smallvec::smallvec![0; self.words];
        for (field, (place, value)) in self.places.iter().zip(values).enumerate() {
            if !place.fits(value) {
                return Err(Error::WrongWidth {
                    field,
                    width: place.width,
                });
            }
            place.put_all(&mut key, value);
        }
        Ok(key)
    }

    fn fill(
        &self,
        pattern: &mut Pattern,
        field: usize,
        place: &FieldPlace,
        given: &Match<'_>,
    ) -> Result<(), Error> {
        let width = place.width;
        let checked = |value: &[u64]| {
            if place.fits(value) {
                Ok(())
            } else {
                Err(Error::WrongWidth { field, width })
            }
        };
        let full = place.prefix_mask(width);
        let (value, mask) = match (place.kind, given) {
            (MatchKind::Exact, Match::Exact(value)) => (*value, full),
            (MatchKind::Optional, Match::Optional(Some(value))) => (*value, full),
            (MatchKind::Optional, Match::Optional(None)) => return Ok(()),
            (MatchKind::Lpm, Match::Lpm { length, .. }) if *length > width => {
                return Err(Error::PrefixTooLong {
                    field,
                    length: *length,
                    width,
                });
            }
            (MatchKind::Lpm, Match::Lpm { value, length }) => (*value, place.prefix_mask(*length)),
            (MatchKind::Ternary, Match::Ternary { value, mask }) => {
                checked(mask)?;
                (*value, Words::from_slice(mask))
            }
            (MatchKind::Range, Match::Range { low, high }) => {
                checked(low)?;
                checked(high)?;
                return fill_range(pattern, field, place, (low, high));
            }
            _ => return Err(Error::WrongKind { field }),
        };
        checked(value)?;
        let outside = |(index, &word): (usize, &u64)| word & !mask.get(index).copied().unwrap_or(0) != 0;
        if value.iter().enumerate().any(outside) {
            return Err(Error::BitsOutsideMask { field });
        }
        place.put_all(&mut pattern.value, value);
        place.put_all(&mut pattern.mask, &mask);
        Ok(())
    }
}

/// An entry's match of one field. Values have their least significant word first; missing words are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match<'a> {
    /// For [`MatchKind::Exact`].
    Exact(&'a [u64]),
    /// For [`MatchKind::Lpm`]: the value's bits beyond the prefix are zero.
    Lpm {
        /// The prefix, in the most significant bits of the field.
        value: &'a [u64],
        /// Length of the prefix in bits.
        length: u32,
    },
    /// For [`MatchKind::Ternary`]: the value's bits outside the mask are zero.
    Ternary {
        /// The values of the bits that matter.
        value: &'a [u64],
        /// The bits that matter.
        mask: &'a [u64],
    },
    /// For [`MatchKind::Optional`]: a value, or anything.
    Optional(Option<&'a [u64]>),
    /// For [`MatchKind::Range`]: both bounds are included.
    Range {
        /// The smallest value that matches.
        low: &'a [u64],
        /// The largest value that matches.
        high: &'a [u64],
    },
}

/// An entry's match, in the layout of its key. Ranges have no mask; `value` holds their low bounds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    pub(crate) value: Words,
    pub(crate) mask: Words,
    /// High bounds of ranges; empty if the layout has no ranges.
    pub(crate) high: Words,
}

impl Pattern {
    /// The values of the bits that matter, and the low bounds of ranges.
    pub fn value(&self) -> &[u64] {
        &self.value
    }

    /// The bits that matter; none for ranges.
    pub fn mask(&self) -> &[u64] {
        &self.mask
    }

    /// The high bounds of ranges; empty if the key has no ranges.
    pub fn high(&self) -> &[u64] {
        &self.high
    }

    /// Whether the pattern has the form of the layout's patterns.
    pub(crate) fn belongs_to(&self, layout: &KeyLayout) -> bool {
        let high = if layout.has_ranges() { layout.words } else { 0 };
        self.value.len() == layout.words
            && self.mask.len() == layout.words
            && self.high.len() == high
            && (!layout.is_exact() || layout.places.iter().all(|place| self.is_full(place)))
            && self
                .value
                .iter()
                .zip(&self.mask)
                .all(|(value, mask)| layout.has_ranges() || value & !mask == 0)
    }

    fn is_full(&self, place: &FieldPlace) -> bool {
        (0..place.words()).all(|index| place.get(&self.mask, index) == place.valid_bits(index))
    }

    /// Length in bits of the prefix that this pattern has in a field for longest prefixes.
    pub(crate) fn prefix_length(&self, place: &FieldPlace) -> u32 {
        (0..place.words())
            .map(|index| place.get(&self.mask, index).count_ones())
            .sum()
    }

    /// Whether a key matches: the definition with which all tables are compared in tests.
    pub fn matches(&self, layout: &KeyLayout, key: &[u64]) -> bool {
        let masked = self.value.iter().zip(&self.mask).zip(key);
        let mut ranges = layout
            .places
            .iter()
            .filter(|place| place.kind == MatchKind::Range);
        masked.fold(0, |differing, ((value, mask), key)| {
            differing | (value ^ key) & mask
        }) == 0
            && ranges.all(|place| place.within(key, &self.value, &self.high))
    }
}

/// Fills in the bounds of a range.
fn fill_range(
    pattern: &mut Pattern,
    field: usize,
    place: &FieldPlace,
    (low, high): (&[u64], &[u64]),
) -> Result<(), Error> {
    place.put_all(&mut pattern.value, low);
    place.put_all(&mut pattern.high, high);
    // A range is within itself unless its bounds are crossed.
    let is_ordered = place.within(&pattern.value, &pattern.value, &pattern.high);
    is_ordered.then_some(()).ok_or(Error::EmptyRange { field })
}
