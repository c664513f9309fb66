//! Kinds of packets that cached decisions of a list are about, for users: nothing here is on a packet's way.

use crate::decision::Decision;
use crate::dependents::SharedDependents;
use rule_list::JudgedPackets;

/// Output ports that are told of a decision.
const MAX_OUTPUTS: usize = 8;

/// Some of a list's decisions.
#[derive(Debug, Default)]
pub struct Judged {
    /// What they are about.
    pub packets: Vec<JudgedPackets>,
    /// How many decisions there are besides in the parts that were looked at.
    pub further: usize,
    /// The part to go on with.
    pub next: Option<usize>,
}

/// What decisions that stand on a list are about: of parts from one on, until there are `most`.
pub(crate) fn from_part(list: &SharedDependents, from: usize, most: usize) -> Judged {
    let mut judged = Judged::default();
    for part in from.. {
        let Some(decisions) = list.of_part(part) else {
            break;
        };
        if !judged.packets.is_empty() && judged.packets.len() + decisions.len() > most {
            judged.next = Some(part);
            break;
        }
        let told = decisions.iter().take(most);
        judged
            .packets
            .extend(told.filter_map(|decision| packets(decision, list)));
        judged.further += decisions.len().saturating_sub(most);
    }
    judged
}

/// The packets that a decision is about. Rules on trial come before the one that decides.
fn packets(decision: &Decision, list: &SharedDependents) -> Option<JudgedPackets> {
    let class = decision.class()?;
    let (key, noted) = class.key();
    let parts = decision.parts().iter();
    let mut rules = parts.filter_map(|part| part.flow.rule_of(list));
    let decides = rules.find(|rule| !rule.trial)?;
    Some(JudgedPackets {
        in_port: flow::PortId(class.in_port),
        key,
        noted,
        was_changed: class.was_changed,
        rule: decides.number,
        verdict: decides.verdict,
        outputs: decision.program().outputs().take(MAX_OUTPUTS).collect(),
    })
}
