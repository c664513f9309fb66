//! States of devices for users. The driver domain alone knows them, so a user who asks for a port of a device
//! waits until it has answered, and for a bounded time.

use crate::control::Control;
use crate::pending::Listing;
use crate::serve::Served;
use crate::state::Link;
use crate::users::Token;
use control_protocol::driver::InterfaceKind;

/// Milliseconds for which a user waits for the driver domain. What is known from earlier answers is shown
/// then.
const WAIT_MS: u64 = 250;

impl Control {
    /// Lists ports, or everything, once the states of devices among them are known.
    pub fn list_with_devices(&mut self, token: Token, listing: Listing) -> Served {
        let has_device = match &listing {
            Listing::Ports(names) => names.iter().any(|name| self.is_device(name)),
            Listing::Snapshot => self.ports.keys().any(|name| self.is_device(name)),
        };
        if !has_device || !self.driver.ask_for_devices() {
            return self.list(token, listing);
        }
        let due_ms = self.now_ms() + WAIT_MS;
        self.device_queries.due_ms.get_or_insert(due_ms);
        self.device_queries.waiting.push((token, listing));
        Ok(None)
    }

    fn is_device(&self, name: &str) -> bool {
        let link = self.ports.get(name).map(|run| &run.wanted.link);
        matches!(link, Some(Link::Interface(spec)) if matches!(spec.kind, InterfaceKind::Uplink { .. }))
    }

    fn list(&mut self, token: Token, listing: Listing) -> Served {
        match listing {
            Listing::Ports(names) => self.port_list(token, names),
            Listing::Snapshot => self.snapshot(token),
        }
    }

    /// The states of devices have come, or will not come.
    pub fn answer_device_queries(&mut self) {
        let queries = std::mem::take(&mut self.device_queries);
        for (token, listing) in queries.waiting {
            let served = self.list(token, listing);
            self.answer_user(token, served);
        }
    }

    /// As [`Self::answer_device_queries`], if users have waited long enough.
    pub fn answer_late_device_queries(&mut self, now_ms: u64) {
        if self.device_queries.due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
            self.answer_device_queries();
        }
    }
}
