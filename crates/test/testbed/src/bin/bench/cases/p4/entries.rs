//! Entries of programs for frames from one station to another, as lines of BMv2's command line.

use std::fmt::Write as _;

/// Prefixes of the router unless more are wanted.
pub const PREFIXES: u32 = 1_000;

/// The address of a station, as [`testbed::polling::Frame`] has it.
pub fn mac(station: u32) -> String {
    let [a, b, c, d] = station.to_be_bytes();
    format!("02:50:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Of a switch with a station at each of its ports 1 and 2.
pub fn switch([one, other]: [u32; 2]) -> String {
    let mut text = String::new();
    for (port, station) in [(1, one), (2, other)] {
        let mac = mac(station);
        writeln!(text, "table_add smac NoAction {mac} {port} =>").expect("strings grow");
        writeln!(text, "table_add dmac forward {mac} => {port}").expect("strings grow");
    }
    text
}

/// Of a firewall that lets all pass but some TCP connections, by 16 rules.
pub fn firewall() -> String {
    let mut text = String::from("table_set_default l2_forward forward 1\n");
    for rule in 0..16 {
        let (network, port) = (format!("192.168.{rule}.0&&&255.255.255.0"), 8 * rule);
        writeln!(
            text,
            "table_add rules rule_deny {network} 0.0.0.0&&&0.0.0.0 6&&&0xff 0&&&0 {port}&&&0xffff => {}",
            rule + 1
        )
        .expect("strings grow");
    }
    text
}

/// Of a router that takes what is sent to `station` by port 1 and hands it to `next` at port 2, with so many
/// prefixes, of which the first has the addresses of all stations below 256.
pub fn router(station: u32, next: u32, prefixes: u32) -> String {
    let mut text = format!(
        "table_add router_mac take 1 {} =>\ntable_add next_hops send 1 => 2 {}\n",
        mac(station),
        mac(next)
    );
    for prefix in 0..prefixes {
        let [_, a, b, c] = (prefix << 8).to_be_bytes();
        writeln!(text, "table_add routes via 10.{a}.{b}.{c}/24 => 1").expect("strings grow");
    }
    text
}

/// So many routes of the router to single addresses, without any of [`router`]'s prefixes.
pub fn hosts(count: u32) -> String {
    let mut text = String::new();
    for host in 0..count {
        let [_, a, b, c] = (host | 0x80_0000).to_be_bytes();
        writeln!(text, "routes via 10.{a}.{b}.{c}/32 => 1").expect("strings grow");
    }
    text
}

/// Keys of the routes of [`hosts`].
pub fn keys_of_hosts(count: u32) -> String {
    hosts(count).replace("via ", "").replace(" => 1", "")
}
