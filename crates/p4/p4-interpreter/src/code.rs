//! The flat form in which programs run.
//!
//! [`crate::compile`] turns a program's parser, controls, actions, calculations and digests into one list of
//! [`Op`]s of 16 bytes each. Values of up to 64 bits are in numbered scratch registers, wider ones in scratch
//! words (see [`WideOp`]); both are allocated at compile time, as the expressions' trees need them. Every
//! access to the packet header vector (PHV) has its place resolved: whole bytes are loaded as such, other
//! fields by a window of eight bytes and two shifts.
//!
//! Operations that are rare or touch many bytes are [`Slow`] ones in a list of their own.
//!
//! Registers hold values with zeros beyond their width, bools as 0 and 1, and references to headers as their
//! number or [`NO_HEADER`].

use p4_ir::{
    DigestId, FieldListId, HeaderId, MeterId, RegisterId, StackId, UnionId, UnionStackId, ValueSetId,
};

/// A scratch register.
pub(crate) type Reg = u8;

/// A position in the code.
pub(crate) type Pc = u32;

/// In a register: a reference to an element that its stack does not have.
pub(crate) const NO_HEADER: u64 = u64::MAX;

/// Bytes accessed as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    One,
    Two,
    Four,
    Eight,
}

/// An operation. `to` is written; `at` is a byte of the PHV, `bit` a bit of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Const {
        to: Reg,
        value: u64,
    },
    Load8 {
        to: Reg,
        at: u32,
    },
    Load16 {
        to: Reg,
        at: u32,
    },
    Load32 {
        to: Reg,
        at: u32,
    },
    Load64 {
        to: Reg,
        at: u32,
    },
    /// The window at `at`, shifted left, then right.
    LoadBits {
        to: Reg,
        left: u8,
        right: u8,
        at: u32,
    },
    /// A field that spans nine bytes.
    LoadSplit {
        to: Reg,
        width: u8,
        bit: u32,
    },
    Parameter {
        to: Reg,
        word: u16,
    },
    Store8 {
        from: Reg,
        at: u32,
    },
    Store16 {
        from: Reg,
        at: u32,
    },
    Store32 {
        from: Reg,
        at: u32,
    },
    Store64 {
        from: Reg,
        at: u32,
    },
    /// Into the window at `at`: `width` bits, `shift` from its lower end.
    StoreBits {
        from: Reg,
        shift: u8,
        width: u8,
        at: u32,
    },
    StoreSplit {
        from: Reg,
        width: u8,
        bit: u32,
    },
    /// A constant to whole bytes.
    Set {
        size: Size,
        at: u32,
        value: u64,
    },
    /// Whole bytes to whole bytes.
    Move {
        size: Size,
        from: u32,
        at: u32,
    },

    Add {
        to: Reg,
        a: Reg,
        b: Reg,
        width: u8,
    },
    AddConst {
        to: Reg,
        a: Reg,
        width: u8,
        value: u64,
    },
    Sub {
        to: Reg,
        a: Reg,
        b: Reg,
        width: u8,
    },
    Mul {
        to: Reg,
        a: Reg,
        b: Reg,
        width: u8,
    },
    And {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    AndConst {
        to: Reg,
        a: Reg,
        value: u64,
    },
    Or {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    Xor {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    ShiftLeft {
        to: Reg,
        a: Reg,
        b: Reg,
        width: u8,
    },
    ShiftRight {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    ShiftRightSigned {
        to: Reg,
        a: Reg,
        b: Reg,
        width: u8,
    },
    Divide {
        to: Reg,
        a: Reg,
        b: Reg,
        width: u8,
        signed: bool,
        remainder: bool,
    },
    /// `a` in front of the lowest `low` bits, which are `b`.
    Concat {
        to: Reg,
        a: Reg,
        b: Reg,
        low: u8,
    },
    Slice {
        to: Reg,
        a: Reg,
        low: u8,
        width: u8,
    },
    SignExtend {
        to: Reg,
        a: Reg,
        from: u8,
        width: u8,
    },
    Saturate {
        to: Reg,
        a: Reg,
        from: u8,
        width: u8,
        cast: Cast,
    },
    Complement {
        to: Reg,
        a: Reg,
        width: u8,
    },
    Negate {
        to: Reg,
        a: Reg,
        width: u8,
    },
    Not {
        to: Reg,
        a: Reg,
    },
    ToBool {
        to: Reg,
        a: Reg,
    },
    Equal {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    NotEqual {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    EqualConst {
        to: Reg,
        a: Reg,
        value: u64,
    },
    Less {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    LessEqual {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    LessSigned {
        to: Reg,
        a: Reg,
        b: Reg,
        width: u8,
    },
    LessEqualSigned {
        to: Reg,
        a: Reg,
        b: Reg,
        width: u8,
    },
    Valid {
        to: Reg,
        header: HeaderId,
    },

    /// Begins a further turn of a loop in an action.
    Turn,
    Jump {
        pc: Pc,
    },
    JumpIf {
        a: Reg,
        pc: Pc,
    },
    JumpUnless {
        a: Reg,
        pc: Pc,
    },
    JumpIfEqual {
        a: Reg,
        pc: Pc,
        value: u64,
    },
    JumpUnlessEqual {
        a: Reg,
        pc: Pc,
        value: u64,
    },
    JumpUnlessValid {
        header: HeaderId,
        pc: Pc,
    },
    /// Runs an action that ends with [`Op::Return`].
    Call {
        pc: Pc,
        back: Pc,
    },
    Return,
    /// Ends a control, or a routine.
    End,
    Exit,

    /// Puts a value into an empty word of the look-up key.
    KeySet {
        from: Reg,
        word: u8,
        shift: u8,
    },
    /// Adds a value to a word of the look-up key.
    KeyAdd {
        from: Reg,
        word: u8,
        shift: u8,
    },
    /// Looks up, then goes on in the action found.
    Apply {
        apply: u16,
    },

    /// A parser state begins.
    State {
        state: u16,
    },
    /// A header without a variable field, in no union.
    Extract {
        header: HeaderId,
        bytes: u16,
        at: u32,
    },
    Lookahead {
        to: Reg,
        width: u8,
        offset: u16,
    },
    Advance {
        a: Reg,
    },
    Select {
        a: Reg,
        select: u16,
    },
    Accept,
    Fail {
        error: u32,
    },
    FailWith {
        a: Reg,
    },

    SetValid {
        header: HeaderId,
    },
    SetInvalid {
        header: HeaderId,
    },
    MarkToDrop,
    /// Empties the gathered bytes.
    Gather,
    /// Adds bits of the PHV to the gathered bytes.
    GatherField {
        bit: u32,
        width: u16,
    },
    /// Adds a register to the gathered bytes.
    GatherValue {
        from: Reg,
        width: u8,
    },
    /// Hash of the gathered bytes.
    Hash {
        to: Reg,
        calculation: u16,
    },
    Slow {
        slow: u32,
    },
}

/// How a number is saturated to a width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cast {
    Unsigned,
    SignedToUnsigned,
    Signed,
    UnsignedToSigned,
}

/// Scratch words of a wide value: the first one, and the width in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wide {
    pub at: u32,
    pub width: u32,
}

impl Wide {
    pub fn range(self) -> std::ops::Range<usize> {
        let at = self.at as usize;
        at..at + crate::wide::words(self.width)
    }
}

/// Arithmetic on wide values. All operands and the result have a width of more than 64 bits unless they are
/// registers.
#[derive(Clone, Debug)]
pub(crate) enum WideOp {
    Const {
        to: Wide,
        words: Box<[u64]>,
    },
    Load {
        to: Wide,
        bit: u32,
    },
    Store {
        from: Wide,
        bit: u32,
    },
    Parameter {
        to: Wide,
        word: u16,
    },
    Lookahead {
        to: Wide,
        offset: u16,
    },
    LoadMember {
        to: Wide,
        header: Reg,
        member: u16,
    },
    StoreMember {
        from: Wide,
        header: Reg,
        member: u16,
    },
    /// A register, zeros above it.
    From {
        to: Wide,
        a: Reg,
    },
    /// A register of that width, its sign above it.
    FromSigned {
        to: Wide,
        a: Reg,
        width: u8,
    },
    /// Cut or extended with zeros.
    Resize {
        to: Wide,
        a: Wide,
    },
    ResizeSigned {
        to: Wide,
        a: Wide,
    },
    Saturate {
        to: Wide,
        a: Wide,
        cast: Cast,
    },
    SaturateTo {
        to: Reg,
        width: u8,
        a: Wide,
        cast: Cast,
    },
    Binary {
        op: WideBinary,
        to: Wide,
        a: Wide,
        b: Wide,
    },
    Shift {
        to: Wide,
        a: Wide,
        by: Reg,
        left: bool,
        signed: bool,
    },
    Complement {
        to: Wide,
        a: Wide,
    },
    Negate {
        to: Wide,
        a: Wide,
    },
    /// Bits of a wide value, from `low` on.
    Slice {
        to: Wide,
        a: Wide,
        low: u32,
    },
    SliceTo {
        to: Reg,
        width: u8,
        a: Wide,
        low: u32,
    },
    /// `to |= a << by`, where `to` has zeros.
    Insert {
        to: Wide,
        a: Wide,
        by: u32,
    },
    Compare {
        to: Reg,
        a: Wide,
        b: Wide,
        how: WideCompare,
    },
    IsZero {
        to: Reg,
        a: Wide,
    },
    /// The number, or the largest one of 64 bits if it is larger.
    Narrow {
        to: Reg,
        a: Wide,
    },
    Copy {
        to: Wide,
        a: Wide,
    },
    Key {
        a: Wide,
        word: u8,
    },
    Gather {
        a: Wide,
    },
    RegisterRead {
        to: Wide,
        register: RegisterId,
        index: Reg,
    },
    RegisterWrite {
        from: Wide,
        register: RegisterId,
        index: Reg,
    },
}

/// Operators on wide values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WideBinary {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    DivSigned,
    ModSigned,
    And,
    Or,
    Xor,
}

/// Comparisons of wide values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WideCompare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    LessSigned,
    LessEqualSigned,
}

/// How a reference to a header is resolved at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolve {
    Next(StackId),
    Last(StackId),
    /// By the number in the register.
    Element(StackId),
    UnionNext(UnionStackId, u16),
    UnionLast(UnionStackId, u16),
    /// By the number in the register.
    UnionElement(UnionStackId, u16),
}

/// Rare operations.
#[derive(Clone, Debug)]
pub(crate) enum Slow {
    Wide(WideOp),
    Header(HeaderOp),
    Extern(ExternOp),
    /// `strict`: a reference to an element that does not exist ends the parser.
    Resolve {
        to: Reg,
        how: Resolve,
        strict: bool,
    },
    /// First member of a union, or [`NO_HEADER`], from the number in the register.
    ResolveUnion {
        to: Reg,
        stack: UnionStackId,
    },
    LoadMember {
        to: Reg,
        header: Reg,
        member: u16,
    },
    StoreMember {
        from: Reg,
        header: Reg,
        member: u16,
    },
    /// Into the header whose number is in the register; a full stack's "next" ends the parser.
    ExtractRef {
        header: Reg,
        advance: Option<Resolve>,
    },
    ExtractVariable {
        header: Reg,
        bits: Reg,
        advance: Option<Resolve>,
    },
    /// The variable field of a header, or all its fields, at the present width.
    GatherHeader {
        header: HeaderId,
    },
    GatherVariable {
        header: HeaderId,
        bit: u32,
    },
    /// Marks that the payload belongs to the gathered bytes: the headers emitted after this one, and the
    /// bytes behind all headers.
    GatherPayload {
        after: Option<HeaderId>,
    },
    /// `to = base + hash % max`.
    Scale {
        to: Reg,
        base: Reg,
        max: Option<Reg>,
        width: u8,
    },
    Truncate {
        length: Reg,
    },
    Assert {
        a: Reg,
    },
    Log {
        text: Box<str>,
        arguments: Box<[Reg]>,
    },
    /// Compares the gathered bytes' hash with a field.
    ChecksumError,
}

impl From<WideOp> for Slow {
    fn from(op: WideOp) -> Slow {
        Slow::Wide(op)
    }
}

impl From<HeaderOp> for Slow {
    fn from(op: HeaderOp) -> Slow {
        Slow::Header(op)
    }
}

impl From<ExternOp> for Slow {
    fn from(op: ExternOp) -> Slow {
        Slow::Extern(op)
    }
}

/// Rare operations on headers, unions and stacks.
#[derive(Clone, Debug)]
pub(crate) enum HeaderOp {
    ValidRef {
        to: Reg,
        header: Reg,
    },
    SetValidRef {
        header: Reg,
    },
    SetInvalidRef {
        header: Reg,
    },
    /// Is one of the union's members valid? The first one's number is in the register.
    UnionValid {
        to: Reg,
        first: Reg,
        members: u16,
    },
    HeadersEqual {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    /// Of the variable fields of two headers.
    VariablesEqual {
        to: Reg,
        a: Reg,
        b: Reg,
    },
    UnionsEqual {
        to: Reg,
        a: Reg,
        b: Reg,
        members: u16,
    },
    StacksEqual {
        to: Reg,
        a: StackId,
        b: StackId,
    },
    LastIndex {
        to: Reg,
        stack: StackId,
    },
    NextIndex {
        to: Reg,
        stack: StackId,
    },
    CopyVariable {
        to: Reg,
        to_member: u16,
        from: Reg,
        from_member: u16,
    },
    CopyHeader {
        to: Reg,
        from: Reg,
    },
    CopyUnion {
        to: UnionId,
        from: UnionId,
    },
    CopyStack {
        to: StackId,
        from: StackId,
    },
    CopyUnionStack {
        to: UnionStackId,
        from: UnionStackId,
    },
    Push {
        stack: StackId,
        count: u16,
    },
    Pop {
        stack: StackId,
        count: u16,
    },
    PushUnion {
        stack: UnionStackId,
        count: u16,
    },
    PopUnion {
        stack: UnionStackId,
        count: u16,
    },
}

/// Operations that use an extern.
#[derive(Clone, Debug)]
pub(crate) enum ExternOp {
    Count {
        counter: u16,
        index: Reg,
    },
    Meter {
        meter: MeterId,
        index: Reg,
        colour: Option<Reg>,
        to: Reg,
    },
    RegisterRead {
        to: Reg,
        register: RegisterId,
        index: Reg,
    },
    RegisterWrite {
        from: Reg,
        register: RegisterId,
        index: Reg,
    },
    Random {
        to: Reg,
        low: Reg,
        high: Reg,
    },
    Digest {
        digest: DigestId,
    },
    CloneIngress {
        session: Reg,
        list: Option<FieldListId>,
    },
    CloneEgress {
        session: Reg,
        list: Option<FieldListId>,
    },
    Resubmit {
        list: Option<FieldListId>,
    },
    Recirculate {
        list: Option<FieldListId>,
    },
}

/// How a parser state's select goes on.
#[derive(Clone, Debug)]
pub(crate) struct SelectTable {
    pub cases: Box<[SelectCode]>,
    pub default: Pc,
}

/// A case of a select.
#[derive(Clone, Debug)]
pub(crate) enum SelectCode {
    Masked {
        value: u64,
        mask: u64,
        pc: Pc,
    },
    WideMasked {
        value: Box<[u8]>,
        mask: Box<[u8]>,
        pc: Pc,
    },
    Set {
        set: ValueSetId,
        pc: Pc,
    },
}
