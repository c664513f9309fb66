//! Bounds on the harm that a data plane or driver domain can do to the control process.
//!
//! Both handle guests' data, so a guest may have taken over either. It may then lie about its ports; it must not make us grow,
//! loop, block or write to a user's terminal:
//!
//! | behaviour | bound |
//! |---|---|
//! | sends malformed messages | a few messages, then it is replaced ([`peer`](crate::peer)) |
//! | does not read, or does not answer | messages and answers that wait, then it is replaced |
//! | never lists its ports and flows, or never ends a list | [`SYNC_MS`], then it is replaced |
//! | lists more entries than can exist, or none and \"more\" | it is replaced ([`Listed`]) |
//! | sends packets and does not read our answers | answers are made without the packet, which is lost |
//! | closes the channel and lives on | it is replaced [`ABSENCE_MS`] later |
//! | sends text that would control a terminal | the text is cleaned ([`clean`](crate::clean)) |
//! | reports changes of ports all the time | they are handled at a [pace](crate::pace) |
//!
//! *Replacing* is the supervisor's task: we ask it to end the process and start another (`replace`).

use flow::Flow;

/// Time until a data plane must have listed its ports and flows, in milliseconds. A loaded machine takes a second.
pub(crate) const SYNC_MS: u64 = 30_000;

/// Time without a data plane after which the supervisor is asked for another, in milliseconds. The supervisor knows earlier if
/// the old one has ended.
pub(crate) const ABSENCE_MS: u64 = 10_000;

/// Flows in lists under way, and the number that each port adds. More than `apply` allows to be installed.
const MAX_FLOWS: usize = 65_536;
const FLOWS_PER_PORT: usize = 128;

/// Requests that are not answered.
pub(crate) const MAX_PENDING: usize = 1 << 18;

/// Packets that wait for being decided about, and their bytes.
pub(crate) const MAX_HELD: usize = 4096;
pub(crate) const MAX_HELD_BYTES: usize = 32 << 20;

/// Bytes of packets that wait to be sent back.
pub(crate) const MAX_RETURNING: usize = 32 << 20;

/// Lists of flows, and of ports, that users may have asked for at the same time.
pub(crate) const MAX_USER_LISTS: usize = 8;

/// Number of entries received so far, in lists of which parts are still to come.
#[derive(Debug, Default)]
pub(crate) struct Listed(usize);

impl Listed {
    /// Another part of a list has arrived; false if it is not plausible.
    pub fn part(&mut self, entries: usize, more: bool, ports: usize) -> bool {
        self.0 += entries;
        let most = (MAX_FLOWS + FLOWS_PER_PORT * ports) * (1 + MAX_USER_LISTS);
        self.0 <= most && (entries > 0 || !more)
    }

    /// A list is complete, or given up.
    pub fn end(&mut self, entries: usize) {
        self.0 = self.0.saturating_sub(entries);
    }
}

/// Whether flows have no more actions than any of ours has.
pub(crate) fn are_plausible<'a>(mut flows: impl Iterator<Item = &'a Flow>, ports: usize) -> bool {
    flows.all(|flow| flow.actions.len() <= ports + 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_end_or_are_refused() {
        let mut listed = Listed::default();
        assert!(!listed.part(0, true, 2), "nothing, and more to come");
        assert!(listed.part(0, false, 2));
        let mut entries = 0;
        while listed.part(64, true, 2) {
            entries += 64;
            assert!(entries < 1 << 20);
        }
        assert!(entries > 65_536, "as many as there may be");
        listed.end(entries);
        assert!(listed.part(64, true, 2), "what is done does not count");
    }
}
