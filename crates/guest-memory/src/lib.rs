//! Mapped guest regions, translation, copies.
