//! What the bridge's tables say: flows, groups and meters in the words of `ovs-ofctl`.

/// What the flow table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// Ports are joined in pairs, the first with the second and so on: the least that a switch can do,
    /// without addresses. What it does best.
    Pairs,
    /// A learning switch, the action NORMAL: what it does by default, and what Hyper-Switch does.
    Learning,
    /// A learning switch behind a filter that looks at addresses and ports in separate rules, as tenants'
    /// security groups do. Each rule that does not match leaves its bits in the megaflow's mask (the
    /// tuple-space explosion of CVE-2019-25076).
    Filtered,
    /// As [`Pairs`](Self::Pairs), but UDP packets have their ports copied to registers first. Nobody reads
    /// those, but whoever copies a field looks at all of it: there is a megaflow for each pair of UDP ports.
    /// (A rule on ports that no packet matches would not do: of the fields of such a rule a megaflow has only
    /// the bits that rule it out, which is one or two of them.)
    PairsByPorts,
    /// [`Learning`](Self::Learning), with a megaflow for each pair of UDP ports, as in `PairsByPorts`. So
    /// have all that follow.
    LearningByPorts,
    /// Learning by ports, behind 1,000 rules that forbid something else: by stations, networks, addresses and
    /// ports.
    Filter,
    /// Ten tables, one after the other, of which each looks at a field that the others do not look at.
    TenTables,
    /// A meter that nobody exceeds, and a group that is one bucket.
    IndirectGroup,
    /// A meter that nobody exceeds, and a group that chooses one of two buckets by the packet's addresses and
    /// ports.
    SelectGroup,
    /// Flows of a case, as `ovs-ofctl add-flows` reads them.
    Given(&'static [String]),
}

/// Looks at both UDP ports, and leaves no trace of that in what comes after.
const LOOK_AT_PORTS: &str = "move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],move:NXM_OF_UDP_DST[]->NXM_NX_REG1[0..15],\
                             load:0->NXM_NX_REG0[],load:0->NXM_NX_REG1[]";

/// Fields of the tables in between, and what is in them for each packet of
/// [`Frame::udp`](crate::polling::Frame::udp) between stations 0 and 1.
const FIELDS: [&str; 8] = [
    "dl_src=02:50:00:00:00:00/ff:ff:00:00:00:00",
    "dl_dst=02:50:00:00:00:00/ff:ff:00:00:00:00",
    "nw_src=10.0.0.0/8",
    "nw_dst=10.0.0.0/8",
    "nw_tos=0",
    "nw_ttl=64",
    "nw_ecn=0",
    "ip_frag=no",
];

const FORBIDDEN: usize = 1000;

/// By default flows end that were not used for 10 s, and there are at most 200,000.
const KEPT: &str = "other_config:max-idle=3600000 other_config:flow-limit=1000000";

impl Forwarding {
    /// What Open vSwitch is told besides. Where flows are told apart, they are kept for as long as a
    /// measurement may take, and there may be as many as there are. Elsewhere, and under attack, they end as
    /// they do by default.
    pub(super) fn settings(self) -> &'static str {
        match self {
            Forwarding::Pairs | Forwarding::Learning | Forwarding::Filtered => "",
            _ => KEPT,
        }
    }

    /// As `ovs-ofctl add-flows` reads them.
    pub(super) fn flows(self, ports: usize) -> Vec<String> {
        match self {
            Forwarding::Pairs => joined(ports).map(|(from, to)| pair(from, to)).collect(),
            Forwarding::PairsByPorts => {
                let by_ports = joined(ports).map(|(from, to)| {
                    format!(
                        "priority=40000,udp,in_port={from},actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],\
                         move:NXM_OF_UDP_DST[]->NXM_NX_REG1[0..15],output:{to}"
                    )
                });
                joined(ports)
                    .map(|(from, to)| pair(from, to))
                    .chain(by_ports)
                    .collect()
            }
            Forwarding::Learning => vec!["actions=normal".into()],
            Forwarding::Filtered => [
                "priority=0,actions=normal",
                "priority=40,udp,nw_src=10.0.0.10,actions=normal",
                "priority=30,udp,nw_dst=10.0.0.11,actions=normal",
                "priority=20,udp,tp_src=12345,actions=normal",
                "priority=10,udp,tp_dst=80,actions=normal",
            ]
            .map(str::to_owned)
            .into(),
            Forwarding::LearningByPorts => learning_by_ports(),
            Forwarding::Filter => learning_by_ports()
                .into_iter()
                .chain((0..FORBIDDEN).map(forbidden))
                .collect(),
            Forwarding::TenTables => ten_tables(ports),
            Forwarding::IndirectGroup | Forwarding::SelectGroup => joined(ports)
                .map(|(from, to)| format!("udp,in_port={from},actions=meter:1,{LOOK_AT_PORTS},group:{to}"))
                .collect(),
            Forwarding::Given(flows) => flows.to_vec(),
        }
    }

    /// As `ovs-ofctl add-group` reads them: one for each port that is sent to.
    pub(super) fn groups(self, ports: usize) -> Vec<String> {
        let to_each = |rest: fn(usize) -> String| (1..=ports).map(rest).collect();
        match self {
            Forwarding::IndirectGroup => {
                to_each(|port| format!("group_id={port},type=indirect,bucket=output:{port}"))
            }
            Forwarding::SelectGroup => to_each(|port| {
                format!("group_id={port},type=select,bucket=output:{port},bucket=output:{port}")
            }),
            _ => Vec::new(),
        }
    }

    /// As `ovs-ofctl add-meter` reads them. 4 Tb/s are more than anybody sends.
    pub(super) fn meters(self) -> &'static [&'static str] {
        match self {
            Forwarding::IndirectGroup | Forwarding::SelectGroup => {
                &["meter=1,kbps,band=type=drop,rate=4000000000"]
            }
            _ => &[],
        }
    }
}

/// Each port with the one that it sends to, numbered from 1 on.
fn joined(ports: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..=ports).map(|port| (port, ((port - 1) ^ 1) + 1))
}

fn pair(from: usize, to: usize) -> String {
    format!("in_port={from},actions=output:{to}")
}

/// The flows of [`Forwarding::LearningByPorts`].
pub fn learning_by_ports() -> Vec<String> {
    vec![
        "priority=0,actions=normal".into(),
        format!("priority=1,udp,actions={LOOK_AT_PORTS},normal"),
    ]
}

/// Something that no packet of [`Frame::udp`](crate::polling::Frame::udp) between stations 0 and 1 is.
fn forbidden(number: usize) -> String {
    let (high, low) = (number / 256, number % 256);
    let forbidden = match number % 4 {
        0 => format!("udp,nw_src=10.1.{high}.{low},tp_dst={}", 1024 + number),
        1 => format!("udp,nw_dst=10.2.{low}.0/24,tp_src={}", 1024 + number),
        2 => format!(
            "ip,nw_src=10.{}.{high}.0/24,nw_dst=10.3.{high}.{low}",
            low / 4 + 8
        ),
        _ => format!("udp,dl_src=02:51:00:00:{high:02x}:{low:02x}"),
    };
    format!("priority=100,{forbidden},actions=drop")
}

fn ten_tables(ports: usize) -> Vec<String> {
    let mut flows = vec![format!("table=0,udp,actions={LOOK_AT_PORTS},resubmit(,1)")];
    for (table, field) in (1..).zip(FIELDS) {
        flows.push(format!(
            "table={table},udp,{field},actions=load:{table}->NXM_NX_REG2[],resubmit(,{})",
            table + 1
        ));
    }
    flows.extend(
        joined(ports)
            .map(|(from, to)| format!("table={},in_port={from},actions=output:{to}", FIELDS.len() + 1)),
    );
    flows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ports_are_joined_in_pairs() {
        let flows = Forwarding::Pairs.flows(4);
        assert_eq!(flows[0], "in_port=1,actions=output:2");
        assert_eq!(flows[3], "in_port=4,actions=output:3");
        let by_ports = Forwarding::PairsByPorts.flows(4);
        assert_eq!(by_ports[..4], flows);
        assert!(
            by_ports[4].contains("in_port=1") && by_ports[4].ends_with("output:2"),
            "{by_ports:?}"
        );
    }

    #[test]
    fn a_thousand_different_things_are_forbidden() {
        let flows: BTreeSet<String> = Forwarding::Filter.flows(2).into_iter().collect();
        assert_eq!(flows.iter().filter(|flow| flow.ends_with("=drop")).count(), 1000);
    }

    #[test]
    fn ten_tables_are_passed() {
        let flows = Forwarding::TenTables.flows(2);
        let tables: BTreeSet<&str> = flows
            .iter()
            .filter_map(|flow| Some(flow.split_once(',')?.0))
            .collect();
        assert_eq!(tables.len(), 10);
    }
}
