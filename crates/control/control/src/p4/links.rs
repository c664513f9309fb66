//! Port maps of P4 switches as commands change them, and their links as the data plane has them.

use crate::control::Control;
use crate::p4_map::{free, links};
use crate::refusal::Refusal;
use control_protocol::data_plane::Request;
use control_protocol::p4::P4Request;
use management::{P4Place, Reply};

impl Control {
    /// Changes the port map of a P4 switch: numbers to free, then ports to bind or link.
    ///
    /// # Errors
    /// There is no such P4 switch, port or program, nothing has such a number, a program is being loaded, or
    /// ports contradict others.
    pub fn p4_ports(&mut self, name: &str, set: &[P4Place], remove: &[u16]) -> Result<Reply, Refusal> {
        self.no_trial()?;
        let set = self.places(name, set)?;
        let mut intent = self.intent.clone();
        for number in remove {
            free(&mut intent.p4, name, *number)?;
        }
        let own = intent.p4.get_mut(name);
        let own = own.ok_or_else(|| Refusal::NoP4(name.into()))?;
        own.ports.extend(set);
        self.adopt(intent)?;
        Ok(Reply::Done)
    }

    /// Has the data plane join and part ports of P4 switches as they should be.
    pub fn join_links(&mut self) {
        let links = links(&self.intent.p4);
        let is_told = match &self.p4.links {
            Some(told) => *told == links,
            // A data plane that outlived this process may have some.
            None => self.intent.p4.is_empty(),
        };
        if is_told || !self.data_plane.is_numbered() {
            return;
        }
        self.p4.links = Some(links.clone());
        let request = Request::P4(P4Request::Link { links });
        self.data_plane.client.tell(request);
    }
}
