//! Which port sends to which: flows that are installed now, with what they counted.

use management::FlowInfo;
use serde_json::json;
use std::collections::BTreeMap;

/// Pairs that are told, those with most packets.
const MAX_PAIRS: usize = 400;

/// Pairs that are looked at: further ones are left out.
const MAX_SEEN: usize = 100_000;

/// Pairs of ports with packets and bytes, the most packets first, and the number of those left out.
pub fn json(flows: &[FlowInfo]) -> String {
    let mut pairs: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for flow in flows.iter().filter(|flow| flow.packets > 0) {
        let Some(from) = sender(&flow.matches) else {
            continue;
        };
        for to in flow.actions.iter().filter_map(|action| receiver(action)) {
            if pairs.len() < MAX_SEEN || pairs.contains_key(&(from, to)) {
                let (packets, bytes) = pairs.entry((from, to)).or_default();
                *packets = packets.saturating_add(flow.packets);
                *bytes = bytes.saturating_add(flow.bytes);
            }
        }
    }
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_by_key(|(_, (packets, _))| std::cmp::Reverse(*packets));
    let left_out = pairs.len().saturating_sub(MAX_PAIRS);
    let told = pairs.iter().take(MAX_PAIRS);
    let told: Vec<_> = told
        .map(|((from, to), (packets, bytes))| json!([from, to, packets, bytes]))
        .collect();
    json!({ "pairs": told, "left-out": left_out }).to_string()
}

/// The port of `in_port=NAME,...`.
fn sender(matches: &str) -> Option<&str> {
    let mut parts = matches.split(',');
    parts.find_map(|part| part.strip_prefix("in_port="))
}

/// The port of `output(NAME)`.
fn receiver(action: &str) -> Option<&str> {
    action.strip_prefix("output(")?.strip_suffix(')')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(matches: &str, actions: &[&str], packets: u64) -> FlowInfo {
        FlowInfo {
            id: String::new(),
            switch: "s".into(),
            matches: matches.into(),
            actions: actions.iter().map(|action| (*action).to_owned()).collect(),
            packets,
            bytes: packets * 100,
            idle_ms: None,
            way: None,
        }
    }

    #[test]
    fn flows_are_summed_by_pairs() {
        let flows = [
            flow("in_port=a,dl_dst=1", &["output(b)"], 5),
            flow(
                "in_port=a,dl_dst=2",
                &["push_vlan(3)", "output(b)", "output(c)"],
                7,
            ),
            flow("stage=ingress0,in_port=c", &["continue"], 7),
            flow("dl_dst=1", &["output(b)"], 7),
            flow("in_port=b", &["output(a)"], 0),
        ];
        assert_eq!(
            json(&flows),
            r#"{"left-out":0,"pairs":[["a","b",12,1200],["a","c",7,700]]}"#
        );
    }

    #[test]
    fn the_busiest_pairs_are_told() {
        let flows: Vec<FlowInfo> = (1..=500u64)
            .map(|number| flow(&format!("in_port=p{number}"), &["output(x)"], number))
            .collect();
        let told: serde_json::Value = serde_json::from_str(&json(&flows)).unwrap();
        assert_eq!(told["left-out"], 100);
        assert_eq!(told["pairs"][0][0], "p500");
        assert_eq!(told["pairs"].as_array().unwrap().len(), MAX_PAIRS);
    }
}
