//! Limits of a program's size and cost. A program beyond a limit is refused with the element that exceeds it.
//!
//! Limits are chosen so that the largest programs known (a data centre switch, a 5G user plane) stay well
//! below, and so that the worst program within them cannot hold up a host: memory of a program without
//! entries stays below 300 MB, the packet header vector fits the level-2 cache of one core.

/// Bits of one field, constant or value.
pub const WIDTH: u32 = 8192;
/// Bytes of the packet header vector.
pub const PHV_BYTES: u32 = 16 * 1024;
/// Bits of all metadata.
pub const METADATA_BITS: u32 = 65_536;
/// Bytes of the packet that the parser may look at.
pub const HEADER_BYTES_READ: u32 = 2048;
/// Bytes by which a packet may grow in one pass.
pub const HEADER_BYTES_GROWN: u32 = 2048;
/// States that the parser may pass through for one packet.
pub const PARSER_STEPS: u32 = 1024;
/// Turns of loops in actions, in ingress and in egress of one pass. Fewer where that many would exceed
/// [`OPERATIONS`].
pub const LOOP_TURNS: u32 = 4096;
/// Operations, nodes of expressions and further 64-bit words of wide ones in one pass.
pub const OPERATIONS: u32 = 1_000_000;
/// Operations of the whole program, counted with the headers that each could mean.
pub const WORK: u64 = 16_000_000;
/// Passes of one packet.
pub const PASSES: u8 = 8;
/// Header instances, fields, states, blocks, tables, actions: each kind.
pub const ELEMENTS: usize = 32_768;
/// Operations of one action or state.
pub const OPS_OF_ACTION: usize = 8192;
/// Nodes of all expressions.
pub const EXPRESSIONS: usize = 1 << 20;
/// Nodes of one expression, counted as often as they are evaluated.
pub const EXPRESSION_NODES: u32 = 16_384;
/// Levels of one expression.
pub const EXPRESSION_DEPTH: u16 = 256;
/// Cases of one select.
pub const SELECT_CASES: usize = 4096;
/// Keys of one table or select.
pub const KEYS: usize = 256;
/// Bits of all keys of one table or select.
pub const KEY_BITS: u32 = 16_384;
/// Parameters of an action.
pub const PARAMETERS: usize = 1024;
/// Actions of one table.
pub const ACTIONS_OF_TABLE: usize = 1024;
/// Entries of one table.
pub const TABLE_SIZE: u32 = 4 * 1024 * 1024;
/// The program's own entries in one table.
pub const CONSTANT_ENTRIES: usize = 65_536;
/// Members of a value set: a look-up compares with all.
pub const VALUE_SET: u32 = 1024;
/// Greatest number of a port that members of groups watch.
pub const WATCHED_PORT: u16 = 511;
/// Cells of a counter, a meter or a register array.
pub const CELLS: u32 = 4 * 1024 * 1024;
/// Bytes of all registers, counters and meters that are arrays.
pub const STATE_BYTES: u64 = 256 * 1024 * 1024;
/// Bytes of a name.
pub const NAME: usize = 1024;
/// Bytes of the serialised form.
pub const SERIALISED: usize = 4 * 1024 * 1024;
