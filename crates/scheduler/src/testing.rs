//! What tests share.

use crate::home::{Home, Homes};
use placement::Vnic;

/// vNICs from 0 on.
#[derive(Default)]
pub(crate) struct Table(pub Vec<Home>);

impl Homes for Table {
    fn home(&self, vnic: Vnic) -> Option<&Home> {
        self.0.get(vnic.0 as usize)
    }

    fn limit(&self) -> u32 {
        self.0.len() as u32
    }
}
