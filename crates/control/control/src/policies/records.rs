//! Packets that rules noted, as they come from the data plane: each is kept for users, and a line of the log.
//!
//! Records about rules that are not wanted are left out: a data plane that was taken over cannot make some up
//! without end.

use crate::control::Control;
use crate::serve::mac_text;
use flow::{FlowKey, PortId, Stage};
use management::PolicyRecord;
use rule_list::LogRecord;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

impl Control {
    /// The data plane has sent packets that rules noted.
    pub fn on_rule_records(&mut self, records: Vec<LogRecord>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        for record in records {
            let Some(told) = self.told_record(&record) else {
                continue;
            };
            log::info!("policy: {}", line(&told));
            self.rule_log.keep((record.list, record.rule), told, now_us);
        }
    }

    /// A record as users see it; `None` if there is no such rule.
    fn told_record(&self, record: &LogRecord) -> Option<PolicyRecord> {
        let list = self.state.policies.lists.get(&record.list)?;
        let rule = list.rules.iter().find(|rule| rule.rule.number == record.rule)?;
        let key = &record.packet.key;
        let sender = PortId(key.in_port());
        let (port, direction) = match record.packet.stage {
            Stage::Egress(port, _) => (port, "to"),
            Stage::Ingress(_) | Stage::Forward => (sender, "from"),
        };
        let mut fields = *key;
        fields.set_in_port(0);
        let [source, destination] = addresses(key);
        Some(PolicyRecord {
            number: 0,
            time_ms: record.packet.time_ns / 1_000_000,
            policy: list.name.clone(),
            origin: rule.origin.to_string(),
            action: record.verdict.to_string(),
            trial: record.trial,
            port: self.port_name(port),
            direction: direction.into(),
            sender: self.port_name(sender),
            source,
            destination,
            packet: fields.to_string(),
            bytes: record.packet.bytes,
            skipped: record.skipped,
        })
    }
}

/// A record in the log.
fn line(record: &PolicyRecord) -> String {
    let trial = if record.trial { " (trial)" } else { "" };
    let skipped = match record.skipped {
        0 => String::new(),
        skipped => format!("; {skipped} more before it"),
    };
    let PolicyRecord {
        action,
        origin,
        direction,
        port,
        sender,
        packet,
        ..
    } = record;
    format!("{action}{trial} {direction} {port}: {origin}: sender={sender},{packet}{skipped}")
}

/// Source and destination of a packet, as users write them.
fn addresses(key: &FlowKey) -> [String; 2] {
    let kind = key.eth_type();
    let ip = |address: u128| match kind {
        IPV6 => IpAddr::V6(Ipv6Addr::from_bits(address)),
        // The low bits have it.
        _ => IpAddr::V4(Ipv4Addr::from_bits(address as u32)),
    };
    let has_ports = matches!(key.ip_proto(), 6 | 17 | 132) && key.tp_src() | key.tp_dst() != 0;
    let both = [
        (key.ip_src(), key.eth_src(), key.tp_src()),
        (key.ip_dst(), key.eth_dst(), key.tp_dst()),
    ];
    both.map(|(address, mac, port)| match kind {
        IPV4 | IPV6 if has_ports => SocketAddr::new(ip(address), port).to_string(),
        IPV4 | IPV6 | ARP => ip(address).to_string(),
        _ => mac_text(mac),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A record about that rule.
    pub fn record(origin: &str) -> PolicyRecord {
        PolicyRecord {
            number: 0,
            time_ms: 1,
            policy: "to: acl office".into(),
            origin: origin.into(),
            action: "drop".into(),
            trial: true,
            port: "web".into(),
            direction: "to".into(),
            sender: "client".into(),
            source: "10.0.0.2:4000".into(),
            destination: "10.0.0.1:23".into(),
            packet: "eth_type=0x0800".into(),
            bytes: 60,
            skipped: 3,
        }
    }

    #[test]
    fn a_line_says_who_what_and_how_many() {
        let expected =
            "drop (trial) to web: acl office rule 1: sender=client,eth_type=0x0800; 3 more before it";
        assert_eq!(line(&record("acl office rule 1")), expected);
    }

    #[test]
    fn addresses_are_those_that_the_packet_has() {
        let mut key = FlowKey::default();
        key.set_eth_src(0x5254_0000_0001);
        assert_eq!(addresses(&key), ["52:54:00:00:00:01", "00:00:00:00:00:00"]);
        key.set_eth_type(IPV4);
        key.set_ip_src(0x0a00_0001);
        key.set_ip_proto(1);
        key.set_tp_src(8);
        assert_eq!(addresses(&key), ["10.0.0.1", "0.0.0.0"]);
        key.set_ip_proto(17);
        assert_eq!(addresses(&key), ["10.0.0.1:8", "0.0.0.0:0"]);
        key.set_eth_type(IPV6);
        assert_eq!(addresses(&key)[1], "[::]:0");
    }
}
