//! Giving up a peer, and asking the supervisor for another; `trust` has the bounds.

use crate::control::Control;
use crate::peer::Lost;
use control_protocol::supervisor::{FromChild, Role};

impl Control {
    /// Gives up the channel to the data plane.
    pub fn detach_data_plane(&mut self, lost: Lost) {
        self.lose_data_plane();
        self.data_plane.absent_since(self.now_ms());
        match lost {
            Lost::Gone => log::warn!("the data plane is gone"),
            Lost::Malformed => self.replace(Role::DataPlane, "does not keep to the protocol"),
            Lost::Unresponsive => self.replace(Role::DataPlane, "does not read or answer what it is told"),
        }
    }

    /// Gives up the channel to the driver domain.
    pub fn detach_driver(&mut self, lost: Lost) {
        self.driver = None;
        match lost {
            Lost::Gone => log::warn!("the driver domain is gone"),
            Lost::Malformed => self.replace(Role::Driver, "does not keep to the protocol"),
            Lost::Unresponsive => self.replace(Role::Driver, "does not read what it is told"),
        }
    }

    fn replace(&mut self, role: Role, why: &str) {
        telemetry::limited!(log::Level::Error, "{role} {why}; asking for another");
        self.supervisor.send(FromChild::Replace(role), Vec::new());
    }

    /// Has the supervisor look at peers that owe answers.
    pub fn tell_of_debts(&mut self, now_ms: u64) {
        if self.data_plane.take_overdue(now_ms) {
            self.supervisor.send(FromChild::Owes(Role::DataPlane), Vec::new());
        }
        if self
            .driver
            .as_mut()
            .is_some_and(|driver| driver.take_overdue(now_ms))
        {
            self.supervisor.send(FromChild::Owes(Role::Driver), Vec::new());
        }
    }

    /// Has the data plane replaced when that time has come.
    pub fn replace_overdue(&mut self, now_ms: u64) {
        let deadline_ms = self.data_plane.overdue_deadline_ms();
        if deadline_ms.is_none_or(|deadline_ms| deadline_ms > now_ms) {
            return;
        }
        if self.data_plane.is_connected() {
            self.detach_data_plane(Lost::Unresponsive);
        } else {
            self.data_plane.absent_since(now_ms);
            self.replace(Role::DataPlane, "does not come back");
        }
    }
}
