//! `hyperswitch policy explain`: what the rule lists in force say about a packet between two ports.
//!
//! The packet is made up and traced, so the answer comes from the lists that the data plane has.

use super::{Reply, Request, Session, trace};
use crate::cli::{AnyMac, ExplainArgs, IpPair, TraceArgs};
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use management::{MacAddr, PortInfo, TraceReport, TraceStep};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;
use std::net::IpAddr;

/// What rule lists say, as JSON.
#[derive(Serialize, JsonSchema)]
pub struct Explained<'a> {
    steps: Vec<&'a TraceStep>,
    /// `FILE:LINE` by the origins of rules.
    lines: HashMap<String, String>,
}

/// Carries out the verb.
///
/// # Errors
/// When a port does not exist or has no addresses, or there is no instance.
pub fn run(session: &mut Session, args: &ExplainArgs) -> Result<()> {
    let (from, to) = (port(session, &args.in_port)?, port(session, &args.to)?);
    ensure!(
        from.switch == to.switch,
        "ports {} and {} are of different switches",
        from.name,
        to.name
    );
    let src = match args.src {
        Some(src) => src,
        None => mac(&from).with_context(|| no_mac(&from, "--src"))?,
    };
    let dst = mac(&to).with_context(|| no_mac(&to, "`mac` in the configuration"))?;
    let traced = TraceArgs {
        in_port: args.in_port.clone(),
        src: Some(src),
        dst: Some(AnyMac(dst.bytes())),
        vlan: None,
        ip: Some(match args.ip {
            Some(pair) => pair,
            None => addresses(&from, &to)
                .context("the ports have no addresses of one family: state them by --ip")?,
        }),
        proto: Some(args.proto),
        sport: args.sport,
        dport: args.dport,
        pcap: None,
        index: 1,
    };
    let Reply::Trace(report) = session.call(&trace::request(&traced, trace::frame(&traced)?))? else {
        bail!("the running instance gave another answer than asked for: is it of another version?");
    };
    let lines = lines(session)?;
    if session.json {
        return output::json(&Explained {
            steps: steps(&report),
            lines,
        });
    }
    output::print(&text(&report, &lines))
}

fn no_mac(port: &PortInfo, instead: &str) -> String {
    format!(
        "the MAC address of port {} is not known: state it by {instead}",
        port.name
    )
}

fn port(session: &mut Session, name: &str) -> Result<PortInfo> {
    let request = Request::PortShow { port: name.into() };
    match session.call(&request)? {
        Reply::Ports(ports) if ports.len() == 1 => Ok(ports.into_iter().next().expect("there is one")),
        _ => bail!("there is no port {name}"),
    }
}

fn mac(port: &PortInfo) -> Option<MacAddr> {
    let configured = port.config.as_ref().and_then(|config| config.mac);
    configured.or_else(|| port.mac.as_ref()?.parse().ok())
}

/// Addresses of both ports, of one family.
fn addresses(from: &PortInfo, to: &PortInfo) -> Option<IpPair> {
    let of = |port: &PortInfo| -> Vec<IpAddr> {
        let configured = port.config.iter().flat_map(|config| &config.addresses);
        let all = configured.map(ToString::to_string).chain(port.addresses.clone());
        all.filter_map(|text| text.split('/').next()?.parse().ok())
            .collect()
    };
    let (from, to) = (of(from), of(to));
    let mut pairs = from.iter().flat_map(|src| to.iter().map(|dst| (*src, *dst)));
    let (src, dst) = pairs.find(|(src, dst)| src.is_ipv4() == dst.is_ipv4())?;
    Some(IpPair { src, dst })
}

/// Lines of the instance's file that state rules, by the rules' origins; none if it has no file or that has
/// become unreadable.
fn lines(session: &mut Session) -> Result<HashMap<String, String>> {
    let Reply::Status(status) = session.call(&Request::Status)? else {
        return Ok(HashMap::new());
    };
    let Some(path) = status.config else {
        return Ok(HashMap::new());
    };
    let name = path.display().to_string();
    let found = std::fs::read_to_string(&path).ok().and_then(|text| {
        let config = ::policy::parse(&text, &name).ok()?;
        let policies = ::policy::compile(&config).ok()?;
        Some(::policy::lines(&config, &policies, &text))
    });
    let lines = found.unwrap_or_default().into_iter();
    Ok(lines
        .map(|(origin, line)| (origin, format!("{name}:{line}")))
        .collect())
}

/// Steps about policies, and what became of the packet.
fn steps(report: &TraceReport) -> Vec<&TraceStep> {
    let is_shown = |step: &&TraceStep| {
        matches!(
            step,
            TraceStep::Rule { .. } | TraceStep::Delivered { .. } | TraceStep::Dropped { .. }
        )
    };
    report.steps.iter().filter(is_shown).collect()
}

fn text(report: &TraceReport, lines: &HashMap<String, String>) -> String {
    let mut text = String::new();
    for step in steps(report) {
        let line = match step {
            TraceStep::Rule { rule: Some(rule), .. } => rule.split(": ").next().and_then(|it| lines.get(it)),
            _ => None,
        };
        let at = line.map_or(String::new(), |line| format!(" ({line})"));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}{at}", trace::step(step));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_named_with_their_lines() {
        let rule = |name: &str| TraceStep::Rule {
            stage: "ingress filter 2".into(),
            list: "from: acl office".into(),
            rule: Some(name.into()),
            verdict: Some("drop".into()),
            trial: false,
        };
        let report = TraceReport {
            switch: "lan".into(),
            port: "web".into(),
            steps: vec![
                TraceStep::Miss,
                rule("guard spoof: any packet"),
                rule("acl office rule 2: protocol tcp"),
            ],
        };
        let lines = HashMap::from([("acl office rule 2".into(), "a.toml:7".into())]);
        let expected = "\
policy      ingress filter 2, from: acl office: drop by guard spoof: any packet
policy      ingress filter 2, from: acl office: drop by acl office rule 2: protocol tcp (a.toml:7)
";
        assert_eq!(text(&report, &lines), expected);
    }
}
