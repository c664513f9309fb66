//! The control driver: the half of the card's driver that has rights, as an [`Accelerator`].

use crate::device::{Device, INTERFACES};
use crate::filters::{FILTERS, KINDS, Sources};
use crate::memory::make;
use accelerator::{Accelerator, Filter, FilterId, MatchKinds, Room};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// Pages of the memory of a queue of the data plane: rings and events, and 192 with buffers.
const PAGES: u32 = 196;

/// The control of a card. Others may hold the card as well, as the hardware works beside its driver.
#[derive(Debug)]
pub struct Control {
    device: Arc<Mutex<Device>>,
}

impl Control {
    /// Of a card.
    pub fn new(device: &Arc<Mutex<Device>>) -> Control {
        Control {
            device: Arc::clone(device),
        }
    }

    /// Opens a VI for a guest, in the guest's memory, of which the last `unregistered` pages are not for the
    /// card. What the guest sends must come from its addresses. Returns the page of registers and the eventfd
    /// of its interrupts, which are the guest's.
    ///
    /// # Errors
    ///
    /// There is no room, or the memory is none.
    pub fn open_for_guest(
        &mut self,
        vi: u32,
        memory: impl AsFd,
        sources: Sources,
        unregistered: u32,
    ) -> io::Result<[OwnedFd; 2]> {
        self.device.lock().open(vi, memory, sources, unregistered)
    }
}

impl Accelerator for Control {
    fn kinds(&self) -> MatchKinds {
        KINDS
    }

    fn room(&self) -> Room {
        Room {
            filters: FILTERS,
            queues: INTERFACES,
        }
    }

    /// Memory, registers and interrupt: what [`Driver::new`](crate::Driver::new) takes.
    fn open(&mut self, queue: u32) -> io::Result<Vec<OwnedFd>> {
        let memory = make(PAGES)?;
        let [registers, interrupt] = self.device.lock().open(queue, &memory, Sources::Any, 0)?;
        Ok(vec![memory, registers, interrupt])
    }

    fn program(&mut self, filter: &Filter) -> io::Result<FilterId> {
        let programmed = self.device.lock().program(filter);
        programmed.ok_or_else(|| io::ErrorKind::QuotaExceeded.into())
    }

    fn remove(&mut self, filter: FilterId) -> io::Result<()> {
        self.device.lock().remove(filter);
        Ok(())
    }

    fn close(&mut self, queue: u32) {
        self.device.lock().close(queue);
    }
}
