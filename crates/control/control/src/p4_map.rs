//! Port maps of P4 switches: numbers that programs know, with a port or the end of a link behind each.
//!
//! A link is stated at one of its ends, or at both. Its other program may come later, as ports may.

use crate::intent::P4Intent;
use crate::refusal::Refusal;
use control_protocol::p4::{MAX_P4_JOINED, MAX_P4_LINKS, P4Binding};
use flow::P4Id;
use management::P4End;
use std::collections::{BTreeMap, BTreeSet};

/// Links of P4 switches, each once, those left out whose other program is not there.
pub(crate) fn links(all: &BTreeMap<String, P4Intent>) -> Vec<[P4Binding; 2]> {
    let mut links = BTreeSet::new();
    for (number, port, own) in stated(all) {
        let Some(other) = all.get(port.program.as_str()) else {
            continue;
        };
        let ends = [(own.1.number, number), (other.number, port.number)];
        links.insert([ends[0].min(ends[1]), ends[0].max(ends[1])]);
    }
    let binding = |(switch, port)| P4Binding {
        switch: P4Id(switch),
        port,
    };
    links.into_iter().map(|ends| ends.map(binding)).collect()
}

/// Places that name ports of P4 switches, with the program that states them.
pub(crate) fn stated(
    all: &BTreeMap<String, P4Intent>,
) -> impl Iterator<Item = (u16, P4End, (&String, &P4Intent))> + '_ {
    all.iter().flat_map(|own| {
        let places = own.1.ports.iter();
        places.filter_map(move |(number, port)| Some((*number, P4End::of(port)?, own)))
    })
}

/// Checks that ends of links are no other ports, that links are not too many, and that programs which are
/// joined have ports of one switch.
pub(crate) fn check_links<'a>(
    all: &'a BTreeMap<String, P4Intent>,
    switch_of: impl Fn(&'a str) -> Option<&'a str>,
) -> Result<(), Refusal> {
    for (number, end, (name, _)) in stated(all) {
        let error = |reason: String| {
            Err(Refusal::P4Port {
                name: name.clone(),
                port: end.to_string(),
                reason,
            })
        };
        if end.program.as_str() == name && end.number == number {
            return error("a port cannot be linked with itself".into());
        }
        let taken = all.get(end.program.as_str());
        let taken = taken.and_then(|other| other.ports.get(&end.number));
        let back = format!("{name}:{number}");
        if let Some(port) = taken.filter(|port| **port != back) {
            return error(format!("that is {port} already"));
        }
    }
    if links(all).len() > MAX_P4_LINKS {
        return Err(Refusal::TooManyLinks(MAX_P4_LINKS));
    }
    let mut seen = BTreeSet::new();
    for name in all.keys() {
        if seen.contains(name) {
            continue;
        }
        let joined = joined(all, name);
        if joined.len() > MAX_P4_JOINED {
            return Err(Refusal::TooManyJoined(name.clone(), MAX_P4_JOINED));
        }
        check_home(all, &joined, &switch_of)?;
        seen.extend(joined);
    }
    Ok(())
}

/// Programs that links join with one, it among them.
fn joined(all: &BTreeMap<String, P4Intent>, name: &str) -> BTreeSet<String> {
    let (mut found, mut next) = (BTreeSet::from([name.to_owned()]), vec![name.to_owned()]);
    while let Some(name) = next.pop() {
        for (_, end, (own, _)) in stated(all) {
            let other = match (*own == name, end.program.as_str() == name) {
                (true, _) => end.program.to_string(),
                (false, true) => own.clone(),
                (false, false) => continue,
            };
            if all.contains_key(&other) && found.insert(other.clone()) {
                next.push(other);
            }
        }
    }
    found
}

/// Checks that ports of programs that are joined are at one switch.
fn check_home<'a>(
    all: &'a BTreeMap<String, P4Intent>,
    joined: &BTreeSet<String>,
    switch_of: &impl Fn(&'a str) -> Option<&'a str>,
) -> Result<(), Refusal> {
    let mut home = None;
    let programs = all.iter().filter(|(name, _)| joined.contains(*name));
    for (name, port) in programs.flat_map(|(name, own)| own.ports.values().map(move |port| (name, port))) {
        let Some(switch) = switch_of(port) else {
            continue;
        };
        let home = home.get_or_insert(switch);
        if switch != *home {
            return Err(Refusal::P4Port {
                name: name.clone(),
                port: port.clone(),
                reason: format!("it is at switch {switch}, and others are at {home}"),
            });
        }
    }
    Ok(())
}

/// Frees a number of a P4 switch, also if another one states the link.
pub(crate) fn free(all: &mut BTreeMap<String, P4Intent>, name: &str, number: u16) -> Result<(), Refusal> {
    let own = all.get_mut(name).ok_or_else(|| Refusal::NoP4(name.into()))?;
    let mut is_found = own.ports.remove(&number).is_some();
    let end = format!("{name}:{number}");
    for other in all.values_mut() {
        let before = other.ports.len();
        other.ports.retain(|_, port| *port != end);
        is_found |= other.ports.len() < before;
    }
    if is_found {
        return Ok(());
    }
    Err(Refusal::NoP4Port(name.into(), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(number: u32, ports: &[(u16, &str)]) -> P4Intent {
        let ports = ports.iter().map(|(number, port)| (*number, (*port).to_owned()));
        P4Intent {
            number,
            ports: ports.collect(),
            ..P4Intent::default()
        }
    }

    fn all(programs: &[(&str, P4Intent)]) -> BTreeMap<String, P4Intent> {
        let programs = programs
            .iter()
            .map(|(name, own)| ((*name).to_owned(), own.clone()));
        programs.collect()
    }

    #[test]
    fn links_are_told_once_whichever_end_states_them() {
        let ends = |links: Vec<[P4Binding; 2]>| -> Vec<[(u32, u16); 2]> {
            let end = |end: P4Binding| (end.switch.0, end.port);
            links.into_iter().map(|link| link.map(end)).collect()
        };
        let one = all(&[("a", own(2, &[(1, "vm"), (3, "b:1")])), ("b", own(1, &[]))]);
        let both = all(&[("a", own(2, &[(3, "b:1")])), ("b", own(1, &[(1, "a:3")]))]);
        assert_eq!(ends(links(&one)), [[(1, 1), (2, 3)]]);
        assert_eq!(ends(links(&both)), [[(1, 1), (2, 3)]]);
        let missing = all(&[("a", own(2, &[(3, "b:1"), (4, "a:5")]))]);
        assert_eq!(ends(links(&missing)), [[(2, 4), (2, 5)]], "one may come later");
        assert_eq!(joined(&one, "b").len(), 2);
        assert_eq!(joined(&missing, "a").len(), 1);
    }

    #[test]
    fn a_link_is_freed_at_either_end() {
        let mut programs = all(&[("a", own(2, &[(1, "vm"), (3, "b:1")])), ("b", own(1, &[]))]);
        assert!(matches!(free(&mut programs, "b", 2), Err(Refusal::NoP4Port(..))));
        free(&mut programs, "b", 1).unwrap();
        assert_eq!(programs["a"].ports.len(), 1);
        assert!(matches!(free(&mut programs, "x", 2), Err(Refusal::NoP4(_))));
    }
}
