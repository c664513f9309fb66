//! Offsets of fields in the running kernel, from its own type information (BTF; Linux
//! `Documentation/bpf/btf.rst`).
//!
//! Kernels differ in the layout of their structures, by version and by configuration; each describes its own
//! in `/sys/kernel/btf/vmlinux`. Only the parts that the programs need are read: numbers of types and offsets
//! of members. The bytes come from the kernel, but nothing here relies on their being well-formed: every read
//! is checked.

/// Kinds of types.
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const TYPEDEF: u32 = 8;

/// Structures within structures that are looked into.
const DEPTH: u32 = 8;

/// A parsed BTF blob.
pub(crate) struct Btf<'a> {
    strings: &'a [u8],
    types: &'a [u8],
    /// Where each type begins in `types`; type numbers begin at 1.
    starts: Vec<usize>,
}

/// A type's common head.
struct Head {
    name: u32,
    kind: u32,
    members: usize,
    /// Offsets of members have bit-field sizes in their upper byte.
    bit_fields: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn size(word: u32) -> Option<usize> {
    usize::try_from(word).ok()
}

/// Bytes that follow the head of a type of this kind.
fn rest(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        1 | 14 | 17 => 4,                         // integer, variable, declaration tag
        3 => 12,                                  // array
        STRUCT | UNION | 15 | 19 => 12 * members, // data section, 64-bit enumeration
        6 | 13 => 8 * members,                    // enumeration, function prototype
        2 | 7..=12 | 16 | 18 => 0,                // pointer, forward, qualifiers, function, float, type tag
        _ => return None,
    })
}

impl<'a> Btf<'a> {
    /// Finds where types begin; `None` if these bytes are no BTF of a version that is understood.
    pub fn parse(bytes: &'a [u8]) -> Option<Btf<'a>> {
        if bytes.get(..3)? != [0xeb9f_u16.to_ne_bytes().as_slice(), &[1]].concat() {
            return None;
        }
        let part = |field: usize| {
            let begin = size(word(bytes, 4)?)?.checked_add(size(word(bytes, field)?)?)?;
            bytes.get(begin..begin.checked_add(size(word(bytes, field + 4)?)?)?)
        };
        let mut btf = Btf {
            types: part(8)?,
            strings: part(16)?,
            starts: Vec::new(),
        };
        let mut at = 0;
        while at < btf.types.len() {
            btf.starts.push(at);
            let head = btf.head_at(at)?;
            at += 12 + rest(head.kind, head.members)?;
        }
        Some(btf)
    }

    fn head_at(&self, at: usize) -> Option<Head> {
        let info = word(self.types, at + 4)?;
        Some(Head {
            name: word(self.types, at)?,
            kind: info >> 24 & 0x1f,
            members: size(info & 0xffff)?,
            bit_fields: info >> 31 == 1,
        })
    }

    fn start(&self, id: u32) -> Option<usize> {
        self.starts.get(size(id)?.checked_sub(1)?).copied()
    }

    fn is_named(&self, name: u32, expected: &str) -> bool {
        let text = size(name).and_then(|at| self.strings.get(at..));
        let rest = text.and_then(|text| text.strip_prefix(expected.as_bytes()));
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }

    fn find(&self, kind: u32, name: &str) -> impl Iterator<Item = u32> {
        let found = self.starts.iter().zip(1u32..).filter(move |(at, _)| {
            self.head_at(**at)
                .is_some_and(|head| head.kind == kind && self.is_named(head.name, name))
        });
        found.map(|(_, id)| id)
    }

    /// Number of a type definition.
    pub fn typedef(&self, name: &str) -> Option<u32> {
        self.find(TYPEDEF, name).next()
    }

    /// Offset in bytes of a member, reached over the members before it: `["thread_info", "cpu"]`.
    pub fn member(&self, structure: &str, path: &[&str]) -> Option<usize> {
        self.find(STRUCT, structure)
            .find_map(|id| self.member_of(id, path, DEPTH))
    }

    fn member_of(&self, id: u32, path: &[&str], depth: u32) -> Option<usize> {
        let (first, further) = path.split_first()?;
        let depth = depth.checked_sub(1)?;
        let start = self.start(id)?;
        let head = self.head_at(start)?;
        if !matches!(head.kind, STRUCT | UNION) {
            return None;
        }
        (0..head.members).find_map(|index| {
            let at = start + 12 + 12 * index;
            let (name, of_type) = (word(self.types, at)?, word(self.types, at + 4)?);
            let bits = word(self.types, at + 8)? & if head.bit_fields { 0xff_ffff } else { u32::MAX };
            let offset = size(bits / 8)?;
            if self.is_named(name, first) {
                let inner = if further.is_empty() {
                    0
                } else {
                    self.member_of(of_type, further, depth)?
                };
                return Some(offset + inner);
            }
            // Members of a structure without a name count as the outer one's.
            let nameless = self.is_named(name, "");
            nameless
                .then(|| self.member_of(of_type, path, depth))
                .flatten()
                .map(|inner| offset + inner)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes BTF, the other way round.
    #[derive(Default)]
    struct Writer {
        strings: Vec<u8>,
        types: Vec<u32>,
        count: u32,
    }

    impl Writer {
        fn string(&mut self, text: &str) -> u32 {
            if text.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32 + 1;
            self.strings.extend(text.as_bytes());
            self.strings.push(0);
            at
        }

        fn add(&mut self, name: &str, kind: u32, members: u32, words: &[u32]) -> u32 {
            let name = self.string(name);
            self.types.extend([name, kind << 24 | members, 0]);
            self.types.extend(words);
            self.count += 1;
            self.count
        }

        fn finish(&self) -> Vec<u8> {
            let types: Vec<u8> = self.types.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let strings = [&[0], self.strings.as_slice()].concat();
            let (types_len, strings_len) = (types.len() as u32, strings.len() as u32);
            let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
            bytes.extend([1, 0]);
            for word in [24, 0, types_len, types_len, strings_len] {
                bytes.extend(u32::to_ne_bytes(word));
            }
            [bytes, types, strings].concat()
        }
    }

    fn sample() -> Vec<u8> {
        let mut writer = Writer::default();
        let int = writer.add("int", 1, 0, &[32]);
        let cpu = writer.string("cpu");
        let info = writer.add("thread_info", STRUCT, 1, &[cpu, int, 64]);
        let state = writer.string("__state");
        let inner = writer.add("", STRUCT, 1, &[state, int, 32]);
        let (own, pid) = (writer.string("thread_info"), writer.string("pid"));
        // Flags of bit-fields: the upper byte of the offset is not part of it.
        writer.add(
            "task_struct",
            STRUCT | 0x80,
            3,
            &[own, info, 0, 0, inner, 128, pid, int, 7 << 24 | 256],
        );
        writer.add("btf_trace_sched_switch", TYPEDEF, 0, &[]);
        writer.add("runqueues", 14, 0, &[1]);
        writer.finish()
    }

    #[test]
    fn finds_types_and_members() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.member("task_struct", &["thread_info", "cpu"]), Some(8));
        assert_eq!(
            btf.member("task_struct", &["__state"]),
            Some(20),
            "in a nameless structure"
        );
        assert_eq!(btf.member("task_struct", &["pid"]), Some(32));
        assert_eq!(
            btf.member("task_struct", &["pid", "cpu"]),
            None,
            "an integer has no members"
        );
        assert_eq!(btf.member("task_struct", &["state"]), None);
        assert_eq!(btf.member("rq", &["nr_running"]), None);
        assert_eq!(btf.typedef("btf_trace_sched_switch"), Some(5));
    }

    #[test]
    fn anything_cut_off_or_changed_is_survived() {
        let bytes = sample();
        for length in 0..bytes.len() {
            if let Some(btf) = Btf::parse(&bytes[..length]) {
                btf.member("task_struct", &["thread_info", "cpu"]);
            }
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                if let Some(btf) = Btf::parse(&bytes) {
                    btf.member("task_struct", &["thread_info", "cpu"]);
                    btf.typedef("btf_trace_sched_switch");
                }
            }
        }
    }

    #[test]
    fn a_structure_that_contains_itself_ends() {
        let mut writer = Writer::default();
        writer.add("loop", STRUCT, 1, &[0, 1, 0]);
        let bytes = writer.finish();
        assert_eq!(Btf::parse(&bytes).unwrap().member("loop", &["x"]), None);
    }
}
