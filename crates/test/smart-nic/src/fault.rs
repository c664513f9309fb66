//! What the card can do wrong. Its tests have to see each of these.

/// What the card does wrong, for tests of its tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Buffers are found for every VI.
    AnyOwner,
    /// A transfer goes on with a number that has another page meanwhile.
    StaleBuffer,
    /// Bytes may lie behind the buffer's page.
    NoBounds,
    /// Transfers go on after their VI was closed, and its buffers stay in the table.
    AfterClose,
    /// Filters stay after their VI was closed.
    FiltersStay,
    /// A guest sends from any address.
    AnySource,
    /// A guest sends to others of this host.
    LocalDestination,
    /// VLAN tags are not looked at.
    NoVlan,
    /// Events are written over unread ones.
    EventOverflow,
    /// More descriptors are taken than a ring has.
    AnyIndex,
    /// Registers of the first VI are used for all.
    SharedRegisters,
    /// The first VI sends as long as it has frames.
    Unfair,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 12] = [
        Fault::AnyOwner,
        Fault::StaleBuffer,
        Fault::NoBounds,
        Fault::AfterClose,
        Fault::FiltersStay,
        Fault::AnySource,
        Fault::LocalDestination,
        Fault::NoVlan,
        Fault::EventOverflow,
        Fault::AnyIndex,
        Fault::SharedRegisters,
        Fault::Unfair,
    ];
}
