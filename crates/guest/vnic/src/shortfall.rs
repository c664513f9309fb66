//! What a VMM wants and its port does not have.
//!
//! A VMM that is refused something often says nothing to its user: it asks again for ever, or goes on without
//! a network. So the port says what the VMM wanted, and what to do. A text stays while the VMM connects again
//! and again, and goes when the VMM wants what the port has.

use std::sync::{Mutex, PoisonError};

/// Kinds of wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// More queues.
    Queues,
    /// A receive ring of another size.
    ReceiveRing,
    /// A transmit ring of another size.
    TransmitRing,
    /// A larger MTU.
    Mtu,
}

/// The wishes of a port's VMM that were refused. Any thread may use it.
#[derive(Debug, Default)]
pub(crate) struct Shortfalls(Mutex<[Option<String>; 4]>);

impl Shortfalls {
    /// Notes that a wish was refused, and why, or that there is none any more. Returns whether that is news.
    pub fn set(&self, wish: Wish, text: Option<String>) -> bool {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut texts[wish as usize];
        let is_news = *known != text;
        *known = text;
        is_news
    }

    /// All of them, for users.
    pub fn text(&self) -> Option<String> {
        let texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let texts: Vec<_> = texts.iter().flatten().map(String::as_str).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wish_has_a_text_of_its_own() {
        let shortfalls = Shortfalls::default();
        assert_eq!(shortfalls.text(), None);
        assert!(shortfalls.set(Wish::Mtu, Some("mtu".into())));
        assert!(!shortfalls.set(Wish::Mtu, Some("mtu".into())));
        assert!(shortfalls.set(Wish::Queues, Some("queues".into())));
        assert_eq!(shortfalls.text().as_deref(), Some("queues; mtu"));
        assert!(shortfalls.set(Wish::Queues, None));
        assert!(!shortfalls.set(Wish::TransmitRing, None));
        assert_eq!(shortfalls.text().as_deref(), Some("mtu"));
    }
}
