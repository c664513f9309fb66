//! Exact keys: an extendible hash table whose buckets are cache lines.
//!
//! A key of one or two words lies beside its value in a bucket of 64 bytes, so that a look-up reads one cache
//! line and rarely a second one: an entry that does not fit in its first bucket goes to its second, and the
//! first one counts such entries. Longer keys are represented by their 64-bit hash; the caller compares the
//! key itself, which it stores anyway. Two different long keys with one hash cannot both be stored.
//!
//! Buckets are in segments of at most 256 (16 KiB). A full segment is split by one more bit of the hash, and
//! a directory finds the segment from the hash's first bits (Fagin et al., *Extendible Hashing*, TODS 1979).
//! So growth costs a segment at a time and never a copy of the whole table. Copies of a map share the
//! segments in which they do not differ. A look-up reads two buckets at most, for any set of entries.
//! Segments are not joined again before the map is empty: memory follows the largest number of entries.

use std::sync::Arc;

use crate::error::Error;
use crate::hash::hash;

/// Buckets of a full-grown segment.
const SEGMENT: usize = 256;
/// Bits of the hash that the directory may use beyond those that an even distribution needs.
const SPARE_DEPTH: u32 = 6;

/// A map from keys of one length to handles.
#[derive(Clone, Debug)]
pub(crate) enum Map {
    One(Directory<1, 5>),
    Two(Directory<2, 3>),
    Long(Directory<1, 5>),
}

impl Map {
    /// For keys of `words` words.
    pub(crate) fn new(words: usize) -> Map {
        match words {
            0 | 1 => Map::One(Directory::new()),
            2 => Map::Two(Directory::new()),
            _ => Map::Long(Directory::new()),
        }
    }

    /// The handle for a key. For long keys, `same` tells whether the key of a handle is this one.
    #[inline]
    pub(crate) fn get(&self, key: &[u64], same: impl FnOnce(u32) -> bool) -> Option<u32> {
        match self {
            Map::One(map) => {
                let key = one(key);
                map.get(hash(&key), &key)
            }
            Map::Two(map) => {
                let key = two(key);
                map.get(hash(&key), &key)
            }
            Map::Long(map) => {
                let print = [hash(key)];
                map.get(hash(&print), &print).filter(|&handle| same(handle))
            }
        }
    }

    /// Brings a key's bucket into the cache. The result only keeps the compiler from leaving the read out.
    #[inline]
    pub(crate) fn touch(&self, key: &[u64]) -> u64 {
        match self {
            Map::One(map) => map.touch(hash(&one(key))),
            Map::Long(map) => map.touch(hash(&[hash(key)])),
            Map::Two(map) => map.touch(hash(&two(key))),
        }
    }

    /// Adds a key that is not in the map. A long key is refused if its hash is in the map.
    pub(crate) fn insert(&mut self, key: &[u64], handle: u32) -> Result<(), Error> {
        match self {
            Map::One(map) => map.insert(hash(&one(key)), one(key), handle),
            Map::Two(map) => map.insert(hash(&two(key)), two(key), handle),
            Map::Long(map) => {
                let print = [hash(key)];
                let free = map.get(hash(&print), &print).is_none();
                if free {
                    map.insert(hash(&print), print, handle)
                } else {
                    Err(Error::Crowded)
                }
            }
        }
    }

    /// Gives a key that is in the map another handle.
    pub(crate) fn replace(&mut self, key: &[u64], handle: u32) {
        match self {
            Map::One(map) => map.replace(hash(&one(key)), &one(key), handle),
            Map::Two(map) => map.replace(hash(&two(key)), &two(key), handle),
            Map::Long(map) => {
                let print = [hash(key)];
                map.replace(hash(&print), &print, handle);
            }
        }
    }

    /// Removes a key that is in the map.
    pub(crate) fn remove(&mut self, key: &[u64]) {
        match self {
            Map::One(map) => map.remove(hash(&one(key)), &one(key)),
            Map::Two(map) => map.remove(hash(&two(key)), &two(key)),
            Map::Long(map) => {
                let print = [hash(key)];
                map.remove(hash(&print), &print);
            }
        }
    }

    /// Bytes in use.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Map::One(map) | Map::Long(map) => map.memory(),
            Map::Two(map) => map.memory(),
        }
    }
}

/// Keys without words are not looked up, but must not end the program either.
#[inline]
fn one(key: &[u64]) -> [u64; 1] {
    [key.first().copied().unwrap_or(0)]
}

#[inline]
fn two(key: &[u64]) -> [u64; 2] {
    [key[0], key[1]]
}

/// One cache line. Bit `i` of `used` is set if slot `i` holds an entry.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket<const WORDS: usize, const SLOTS: usize> {
    keys: [[u64; WORDS]; SLOTS],
    handles: [u32; SLOTS],
    /// Number of entries whose first bucket this is and which lie in their second.
    elsewhere: u16,
    used: u8,
}

const _: () = assert!(size_of::<Bucket<1, 5>>() == 64 && size_of::<Bucket<2, 3>>() == 64);

impl<const WORDS: usize, const SLOTS: usize> Bucket<WORDS, SLOTS> {
    const EMPTY: Self = Bucket {
        keys: [[0; WORDS]; SLOTS],
        handles: [0; SLOTS],
        elsewhere: 0,
        used: 0,
    };

    /// Compares all slots and branches once: which slot it is cannot be predicted, and a wrong guess would
    /// make the processor wait for this line before it begins to fetch the next look-up's.
    #[inline]
    fn find(&self, key: &[u64; WORDS]) -> Option<usize> {
        let differing =
            |slot: usize| (0..WORDS).fold(0, |sum, word| sum | (self.keys[slot][word] ^ key[word]));
        let equal = (0..SLOTS).fold(0u8, |found, slot| found | u8::from(differing(slot) == 0) << slot);
        let found = equal & self.used;
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.used >> slot & 1 == 0)
    }

    fn put(&mut self, slot: usize, key: [u64; WORDS], handle: u32) {
        self.keys[slot] = key;
        self.handles[slot] = handle;
        self.used |= 1 << slot;
    }
}

/// The two buckets of a hash among `count`, a power of two; they differ unless there is but one.
#[inline]
fn places(hash: u64, count: usize) -> (usize, usize) {
    let first = hash as usize & (count - 1);
    let step = (hash >> 8) as usize & (count - 1) | usize::from(count > 1);
    (first, first ^ step)
}

#[derive(Clone, Debug)]
struct Segment<const WORDS: usize, const SLOTS: usize> {
    /// Copies of the map share them until they change.
    buckets: Arc<[Bucket<WORDS, SLOTS>]>,
    /// Number of first bits of the hash that all its entries share.
    depth: u32,
}

impl<const WORDS: usize, const SLOTS: usize> Segment<WORDS, SLOTS> {
    fn new(count: usize, depth: u32) -> Self {
        Segment {
            buckets: vec![Bucket::EMPTY; count].into(),
            depth,
        }
    }

    /// A bucket to change, in a segment that no copy has.
    fn bucket_mut(&mut self, bucket: usize) -> &mut Bucket<WORDS, SLOTS> {
        &mut Arc::make_mut(&mut self.buckets)[bucket]
    }

    #[inline]
    fn find(&self, hash: u64, key: &[u64; WORDS]) -> Option<(usize, usize)> {
        let (first, second) = places(hash, self.buckets.len());
        let bucket = &self.buckets[first];
        match bucket.find(key) {
            Some(slot) => Some((first, slot)),
            None if bucket.elsewhere > 0 => Some((second, self.buckets[second].find(key)?)),
            None => None,
        }
    }

    /// Adds an entry; false if there is no room.
    fn insert(&mut self, hash: u64, key: [u64; WORDS], handle: u32) -> bool {
        let (first, second) = places(hash, self.buckets.len());
        if let Some(slot) = self.buckets[first].free_slot() {
            self.bucket_mut(first).put(slot, key, handle);
            return true;
        }
        let slot = self.buckets[second]
            .free_slot()
            .or_else(|| self.make_room(second));
        if let Some(slot) = slot {
            self.bucket_mut(second).put(slot, key, handle);
            self.bucket_mut(first).elsewhere += 1;
        }
        slot.is_some()
    }

    /// Moves an entry of a full bucket to its other one, and returns the slot that became free.
    fn make_room(&mut self, from: usize) -> Option<usize> {
        let count = self.buckets.len();
        for slot in 0..SLOTS {
            let (key, handle) = (self.buckets[from].keys[slot], self.buckets[from].handles[slot]);
            let (first, second) = places(hash(&key), count);
            let to = if from == first { second } else { first };
            if to == from {
                continue;
            }
            if let Some(free) = self.buckets[to].free_slot() {
                self.bucket_mut(to).put(free, key, handle);
                self.bucket_mut(from).used &= !(1 << slot);
                let elsewhere = &mut self.bucket_mut(first).elsewhere;
                *elsewhere = if from == first {
                    *elsewhere + 1
                } else {
                    *elsewhere - 1
                };
                return Some(slot);
            }
        }
        None
    }

    fn entries(&self) -> impl Iterator<Item = (usize, usize, [u64; WORDS], u32)> + '_ {
        self.buckets.iter().enumerate().flat_map(|(at, bucket)| {
            let used = (0..SLOTS).filter(|slot| bucket.used >> slot & 1 == 1);
            used.map(move |slot| (at, slot, bucket.keys[slot], bucket.handles[slot]))
        })
    }

    /// A copy of the map with more buckets.
    fn grown(&self) -> Option<Self> {
        let mut count = self.buckets.len() * 2;
        while count <= SEGMENT {
            let mut segment = Segment::new(count, self.depth);
            if self
                .entries()
                .all(|(_, _, key, handle)| segment.insert(hash(&key), key, handle))
            {
                return Some(segment);
            }
            count *= 2;
        }
        None
    }

    /// The segment in two: entries in whose hashes the next bit is zero, and those in whose it is one. All
    /// keep their buckets.
    fn split(&self) -> (Self, Self) {
        let mut halves = [
            Segment::new(SEGMENT, self.depth + 1),
            Segment::new(SEGMENT, self.depth + 1),
        ];
        for (at, slot, key, handle) in self.entries() {
            let hash = hash(&key);
            let half = &mut halves[(hash << self.depth >> 63) as usize];
            half.bucket_mut(at).put(slot, key, handle);
            let (first, _) = places(hash, SEGMENT);
            half.bucket_mut(first).elsewhere += u16::from(first != at);
        }
        let [zero, one] = halves;
        (zero, one)
    }
}

/// Segments, and the mapping from hashes to segments.
#[derive(Clone, Debug)]
pub(crate) struct Directory<const WORDS: usize, const SLOTS: usize> {
    /// Number of the segment, by the first `depth` bits of the hash.
    segments_of: Vec<u32>,
    segments: Vec<Segment<WORDS, SLOTS>>,
    depth: u32,
    len: usize,
}

impl<const WORDS: usize, const SLOTS: usize> Directory<WORDS, SLOTS> {
    fn new() -> Self {
        Directory {
            segments_of: vec![0],
            segments: vec![Segment::new(1, 0)],
            depth: 0,
            len: 0,
        }
    }

    #[inline]
    fn segment(&self, hash: u64) -> usize {
        // A shift by 64 is none in Rust: with one segment all hashes are its own.
        let index = hash.checked_shr(64 - self.depth).unwrap_or(0);
        self.segments_of[index as usize] as usize
    }

    #[inline]
    fn get(&self, hash: u64, key: &[u64; WORDS]) -> Option<u32> {
        let segment = &self.segments[self.segment(hash)];
        let (bucket, slot) = segment.find(hash, key)?;
        Some(segment.buckets[bucket].handles[slot])
    }

    #[inline]
    fn touch(&self, hash: u64) -> u64 {
        let segment = &self.segments[self.segment(hash)];
        u64::from(segment.buckets[places(hash, segment.buckets.len()).0].used)
    }

    fn insert(&mut self, hash: u64, key: [u64; WORDS], handle: u32) -> Result<(), Error> {
        loop {
            let number = self.segment(hash);
            let segment = &mut self.segments[number];
            if segment.insert(hash, key, handle) {
                self.len += 1;
                return Ok(());
            }
            if segment.buckets.len() < SEGMENT {
                *segment = segment.grown().ok_or(Error::Crowded)?;
            } else {
                self.split(number, hash)?;
            }
        }
    }

    fn split(&mut self, number: usize, hash: u64) -> Result<(), Error> {
        let depth = self.segments[number].depth;
        let needed = (self.len / SEGMENT).max(1).ilog2();
        if depth > needed + SPARE_DEPTH {
            return Err(Error::Crowded);
        }
        if depth == self.depth {
            self.segments_of = self
                .segments_of
                .iter()
                .flat_map(|&segment| [segment, segment])
                .collect();
            self.depth += 1;
        }
        let (zero, one) = self.segments[number].split();
        let new = u32::try_from(self.segments.len()).map_err(|_| Error::Crowded)?;
        self.segments[number] = zero;
        self.segments.push(one);
        // The segment's part of the directory: all indices that begin with its bits. The later half is the
        // new one's.
        let part = 1usize << (self.depth - depth);
        let index = hash.checked_shr(64 - self.depth).unwrap_or(0) as usize;
        let start = index & !(part - 1);
        self.segments_of[start + part / 2..start + part].fill(new);
        Ok(())
    }

    fn replace(&mut self, hash: u64, key: &[u64; WORDS], handle: u32) {
        let number = self.segment(hash);
        let segment = &mut self.segments[number];
        if let Some((bucket, slot)) = segment.find(hash, key) {
            segment.bucket_mut(bucket).handles[slot] = handle;
        }
    }

    fn remove(&mut self, hash: u64, key: &[u64; WORDS]) {
        let number = self.segment(hash);
        let segment = &mut self.segments[number];
        let Some((bucket, slot)) = segment.find(hash, key) else {
            return;
        };
        let (first, _) = places(hash, segment.buckets.len());
        segment.bucket_mut(bucket).used &= !(1 << slot);
        segment.bucket_mut(first).elsewhere -= u16::from(first != bucket);
        self.len -= 1;
        if self.len == 0 {
            *self = Directory::new();
        }
    }

    fn memory(&self) -> usize {
        let buckets: usize = self.segments.iter().map(|segment| segment.buckets.len()).sum();
        buckets * size_of::<Bucket<WORDS, SLOTS>>()
            + self.segments.capacity() * size_of::<Segment<WORDS, SLOTS>>()
            + self.segments_of.capacity() * size_of::<u32>()
    }
}
