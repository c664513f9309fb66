//! Configuration with policies, as users write it.

use std::fmt::Write as _;

/// Rules of the list.
const RULES: u32 = 1000;

/// A list of 1,000 rules about single ports of sender or receiver, which tell nearly all connections apart.
/// What no rule is about passes.
pub fn policies() -> String {
    let mut text = String::from("[[acl]]\nname = \"office\"\ndefault = \"allow\"\nrule = [\n");
    for number in 0..RULES {
        // Spread over all ports but those on which somebody listens.
        let port = 1024 + number * 61 % 64_000;
        let side = ["source-port", "destination-port"][(number % 2) as usize];
        let protocol = ["tcp", "udp"][(number / 2 % 2) as usize];
        let network = format!("192.0.{}.0/24", number % 256);
        writeln!(
            text,
            "  {{ action = \"drop\", protocol = \"{protocol}\", {side} = {port}, destination = \"{network}\" }},"
        )
        .expect("strings grow");
    }
    text + "]\n"
}

/// Lines of a port with the list in both directions, and with guards.
pub const PORT: &str =
    "acl-from = \"office\"\nacl-to = \"office\"\nguards = [\"dhcp\", \"router\", \"bpdu\"]\n";
