//! Placeholder.
/// Notes.
#[derive(Debug, Default)]
pub struct Notes;
