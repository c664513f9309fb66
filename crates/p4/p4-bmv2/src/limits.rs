//! Limits of the input. Those of programs are in [`p4_ir::limits`].

/// Bytes of a program or of P4Info. The largest known programs have 1.4 MB.
pub const TEXT: usize = 16 * 1024 * 1024;
