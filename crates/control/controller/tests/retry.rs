//! When a port is connected again.

use control_protocol::data_plane::PortState;
use controller::Retry;

/// When attempts are made until that time, if none comes to anything.
fn attempts(retry: &mut Retry, until_ms: u64, attempt: impl Fn(&mut Retry, u64)) -> Vec<u64> {
    let due = |now_ms: &u64| {
        let is_due = retry.take_due(*now_ms);
        if is_due {
            attempt(retry, *now_ms);
        }
        is_due
    };
    (0..until_ms).filter(due).collect()
}

#[test]
fn delays_double_up_to_a_bound_until_the_port_works() {
    let mut retry = Retry::at_once(0);
    let failed = attempts(&mut retry, 20_000, Retry::failed);
    assert_eq!(failed, [0, 100, 300, 700, 1500, 3100, 6300, 11_300, 16_300]);
    assert!(!retry.is_first());
    // One that can be made has a second to come to something.
    let mut retry = Retry::at_once(0);
    let made = attempts(&mut retry, 8_000, Retry::attempted);
    assert_eq!(made, [0, 1000, 2000, 3000, 4000, 5600]);
    retry.on_port_state(&PortState::Running, 8_000);
    assert!(retry.is_first());
}

#[test]
fn an_end_is_not_answered_in_the_event_that_reports_it() {
    let mut retry = Retry::default();
    assert_eq!(retry.due_ms(), None);
    retry.on_port_state(&PortState::Disconnected, 5);
    assert_eq!(retry.due_ms(), Some(105));
    // What is due already stays.
    retry.on_port_state(&PortState::Disconnected, 50);
    retry.ensure_due(50);
    assert_eq!(retry.due_ms(), Some(105));
    assert!(!retry.take_due(104) && retry.take_due(105));
    retry.ensure_due(200);
    assert_eq!(retry.due_ms(), Some(200));
    retry.try_now(150);
    assert_eq!(retry.due_ms(), Some(150));
}
