#![allow(missing_docs, clippy::unwrap_used)]
use p4_interpreter::*;
use p4_ir::*;
use p4_tables::{Change, Entry, Match, Target};
use std::collections::BTreeMap;

fn num(s: &str) -> u128 {
    let t = s.replace('*', "0");
    if let Some(h) = t.strip_prefix("0x") {
        u128::from_str_radix(h, 16).unwrap()
    } else if let Some(b) = t.strip_prefix("0b") {
        u128::from_str_radix(b, 2).unwrap()
    } else {
        t.parse().unwrap()
    }
}
fn mask(s: &str, width: u32) -> u128 {
    let (d, bits) = if let Some(h) = s.strip_prefix("0x") {
        (h, 4)
    } else if let Some(b) = s.strip_prefix("0b") {
        (b, 1)
    } else {
        return ones(width);
    };
    let mut m = 0u128;
    for c in d.chars() {
        m = (m << bits) | if c == '*' { 0 } else { (1 << bits) - 1 };
    }
    if !s.contains('*') {
        ones(width)
    } else {
        m & ones(width)
    }
}
fn ones(w: u32) -> u128 {
    if w >= 128 { u128::MAX } else { (1 << w) - 1 }
}
fn w(v: u128) -> Vec<u64> {
    vec![v as u64, (v >> 64) as u64]
}

fn run(dir: &std::path::Path, verbose: bool) -> Result<(), String> {
    let json = std::fs::read(dir.join("program.json"))
        .or_else(|_| std::fs::read(dir.join(format!("{}.json", dir.file_name().unwrap().to_str().unwrap()))))
        .map_err(|e| e.to_string())?;
    let checked = p4_bmv2::load(&json, None).map_err(|e| format!("load: {e}"))?;
    let engine = Engine::new(checked).map_err(|e| format!("engine: {e}"))?;
    let state = State::new(&engine, StateLimits::default()).map_err(|e| format!("state: {e}"))?;
    let mut ctx = Context::new(&engine, 1);
    let p = engine.program();
    let mut expects: BTreeMap<u32, Vec<(String, bool)>> = BTreeMap::new();
    let mut got: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut nodes: Vec<Vec<Replica>> = vec![];
    let mut now = 0;
    let scripts: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "stf"))
        .collect();
    let name = std::env::var("STF").unwrap_or("test.stf".into());
    let script = scripts
        .iter()
        .find(|s| s.file_name().unwrap().to_str() == Some(&name))
        .ok_or("no script")?;
    for line in std::fs::read_to_string(script).unwrap().lines() {
        let line = line.split('#').next().unwrap().trim();
        let mut t: Vec<&str> = line.split_whitespace().collect();
        if t.is_empty() {
            continue;
        }
        if let Some(i) = t.iter().position(|x| *x == "=") {
            if t[0] == "add" {
                t.truncate(i);
            }
        }
        match t[0].to_lowercase().as_str() {
            "packet" => {
                let port: u32 = t[1].parse().unwrap();
                let hex: String = t[2..].concat();
                let bytes: Vec<u8> = (0..hex.len() / 2)
                    .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
                    .collect();
                expects.entry(port).or_default();
                let mut sink = Collected::default();
                now += 1_000_000;
                engine.run(
                    &state.read(),
                    &mut ctx,
                    &Packet::whole(port, &bytes),
                    now,
                    &mut sink,
                    &mut Nobody,
                );
                if verbose {
                    println!(
                        "in {port} {hex} -> {:?} {:?}",
                        sink.outputs
                            .iter()
                            .map(|(p, b)| format!("{p}: {}", hexs(b)))
                            .collect::<Vec<_>>(),
                        sink.drops
                    );
                }
                for (port, b) in sink.outputs {
                    got.entry(port).or_default().push(b);
                }
            }
            "expect" => {
                let port: u32 = t[1].parse().unwrap();
                let mut hex: String = t[2..].concat();
                let exact = hex.ends_with('$');
                if exact {
                    hex.pop();
                }
                expects.entry(port).or_default().push((hex.to_lowercase(), exact));
            }
            "add" | "setdefault" => {
                let tid = p
                    .tables
                    .iter()
                    .position(|x| x.identity.name == t[1])
                    .or_else(|| {
                        p.tables.iter().position(|x| {
                            x.identity.name.ends_with(&format!(".{}", t[1])) || x.identity.alias == t[1]
                        })
                    })
                    .ok_or(format!("no table {}", t[1]))?;
                let table = &p.tables[tid];
                let mut rest = &t[2..];
                let mut prio = 0;
                if let Ok(n) = rest[0].parse::<u32>() {
                    prio = n;
                    rest = &rest[1..];
                }
                let all = rest.join(" ");
                let open = all.find('(').unwrap();
                let head: Vec<&str> = all[..open].split_whitespace().collect();
                let aname = head.last().unwrap();
                let keys = &head[..head.len() - 1];
                let act = table
                    .actions
                    .iter()
                    .find(|a| {
                        let n = &p.actions[a.action.index()].identity;
                        n.name == *aname || n.name.ends_with(&format!(".{aname}")) || n.alias == **aname
                    })
                    .ok_or(format!("no action {aname}"))?;
                let action = &p.actions[act.action.index()];
                let mut args = vec![vec![]; action.parameters.len()];
                for a in all[open + 1..all.rfind(')').unwrap()]
                    .split(',')
                    .filter(|a| !a.trim().is_empty())
                {
                    let (n, v) = a.split_once(':').unwrap();
                    let i = action
                        .parameters
                        .iter()
                        .position(|q| q.name == n.trim())
                        .ok_or(format!("no parameter {n}"))?;
                    let mut words = w(num(v.trim()));
                    words.truncate(action.parameters[i].width.div_ceil(64) as usize);
                    args[i] = words;
                }
                let target = Target::Action {
                    action: act.action.0 as u32,
                    arguments: args.concat().into(),
                };
                if t[0] == "setdefault" {
                    state
                        .tables()
                        .apply(
                            &[Change::SetDefault {
                                table: tid as u32,
                                target: Some(target),
                            }],
                            0,
                        )
                        .map_err(|e| e.to_string())?;
                    continue;
                }
                let mut given: Vec<Option<&str>> = vec![None; table.keys.len()];
                for k in keys {
                    let (n, v) = k.split_once(':').unwrap();
                    let n2 = n.replace('$', "[").replace("].", "].");
                    let i = table
                        .keys
                        .iter()
                        .position(|q| q.name == n)
                        .or_else(|| {
                            table
                                .keys
                                .iter()
                                .position(|q| q.name == format!("{n}$") || q.name == format!("{n}.$valid$"))
                        })
                        .or_else(|| table.keys.iter().position(|q| q.name.ends_with(&format!(".{n}"))))
                        .or_else(|| {
                            table
                                .keys
                                .iter()
                                .position(|q| q.name.replace(']', "").replace('[', "$") == n)
                        })
                        .or_else(|| {
                            n.strip_suffix(".valid").and_then(|n| {
                                table
                                    .keys
                                    .iter()
                                    .position(|q| q.name == n || q.name == format!("{n}.$valid$"))
                            })
                        })
                        .ok_or(format!(
                            "no key {n} {n2} in {:?}",
                            table.keys.iter().map(|k| &k.name).collect::<Vec<_>>()
                        ))?;
                    given[i] = Some(v);
                }
                let vals: Vec<(Vec<u64>, Vec<u64>, u32)> = table
                    .keys
                    .iter()
                    .zip(&given)
                    .map(|(k, g)| match g {
                        Some(v) => {
                            let m = mask(v, k.width as u32);
                            (
                                w(num(v) & if k.kind == MatchKind::Exact { u128::MAX } else { m }),
                                w(m),
                                m.count_ones(),
                            )
                        }
                        None => (w(0), w(0), 0),
                    })
                    .collect();
                let ms: Vec<Match> = table
                    .keys
                    .iter()
                    .zip(&vals)
                    .map(|(k, (v, m, l))| match k.kind {
                        MatchKind::Exact => Match::Exact(v),
                        MatchKind::Lpm => Match::Lpm { value: v, length: *l },
                        MatchKind::Ternary => Match::Ternary { value: v, mask: m },
                        MatchKind::Range => Match::Range { low: v, high: v },
                        MatchKind::Optional => Match::Optional(if *l == 0 { None } else { Some(v) }),
                    })
                    .collect();
                let layout = engine.layout(TableId(tid as u16));
                let pattern = layout.pattern(&ms).map_err(|e| e.to_string())?;
                let priority = if layout.has_priorities() { prio } else { 0 };
                let mut changes = vec![];
                let target = match table.implementation {
                    Implementation::Direct => target,
                    Implementation::Profile(pr) => {
                        static N: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
                        let member = N.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if let Target::Action { action, arguments } = target {
                            changes.push(Change::AddMember {
                                profile: pr.0 as u32,
                                member,
                                action,
                                arguments,
                            });
                        }
                        Target::Member(member)
                    }
                };
                changes.push(Change::Insert {
                    table: tid as u32,
                    entry: Entry {
                        pattern,
                        priority,
                        target,
                        idle_timeout: 0,
                    },
                });
                state.tables().apply(&changes, 0).map_err(|e| e.to_string())?;
            }
            "mirroring_add" => {
                state
                    .set_session(
                        num(t[1]) as u64,
                        Session {
                            replicas: [Replica {
                                port: num(t[2]) as u32,
                                rid: 0,
                            }]
                            .into(),
                            ..Default::default()
                        },
                    )
                    .unwrap();
            }
            "mc_mgrp_create" => {
                groups.insert(num(t[1]) as u64, vec![]);
            }
            "mc_node_create" => {
                nodes.push(
                    t[2..]
                        .iter()
                        .map(|q| Replica {
                            port: num(q) as u32,
                            rid: num(t[1]) as u16,
                        })
                        .collect(),
                );
            }
            "mc_node_associate" => {
                let g = num(t[1]) as u64;
                groups.get_mut(&g).unwrap().push(num(t[2]) as usize);
                let r: Vec<Replica> = groups[&g].iter().flat_map(|n| nodes[*n].clone()).collect();
                state.set_group(g, &r).unwrap();
            }
            "meter_set_rates" => {
                let m = p
                    .meters
                    .iter()
                    .position(|m| m.identity.name.ends_with(t[1]))
                    .unwrap();
                let r: Vec<(f64, u64)> = t[3..]
                    .iter()
                    .map(|x| {
                        let (a, b) = x.split_once(':').unwrap();
                        (a.parse().unwrap(), b.parse().unwrap())
                    })
                    .collect();
                let rates = p4_tables::MeterRates {
                    cir: (r[0].0 * 1e6) as u64,
                    cbs: r[0].1,
                    pir: (r[1].0 * 1e6) as u64,
                    pbs: r[1].1,
                };
                state
                    .set_meter(MeterId(m as u16), num(t[2]) as u64, Some(rates), 0)
                    .map_err(|e| e.to_string())?;
            }
            "wait" => {}
            other => {
                if verbose {
                    println!("skip {other}");
                }
            }
        }
    }
    for (port, want) in &expects {
        let have = got.remove(port).unwrap_or_default();
        for (i, (hex, exact)) in want.iter().enumerate() {
            let Some(b) = have.get(i) else {
                return Err(format!("port {port}: packet {i} missing, want {hex}"));
            };
            let h = hexs(b);
            let fits = h.len() >= hex.len()
                && h.chars().zip(hex.chars()).all(|(a, b)| b == '*' || a == b)
                && (!exact || h.len() == hex.len());
            if !fits {
                return Err(format!(
                    "port {port} packet {i}\n   want {hex}{}\n   have {h}",
                    if *exact { "$" } else { "" }
                ));
            }
        }
        if have.len() > want.len() {
            return Err(format!("port {port}: {} more", have.len() - want.len()));
        }
    }
    Ok(())
}
fn hexs(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (mut good, mut bad) = (0, 0);
    let mut dirs: Vec<_> = std::fs::read_dir(&args[1])
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.is_dir())
        .collect();
    if args.len() > 2 {
        dirs.retain(|d| d.ends_with(&args[2]));
    }
    dirs.sort();
    for d in dirs {
        match std::panic::catch_unwind(|| run(&d, args.len() > 2)) {
            Ok(Ok(())) => good += 1,
            Ok(Err(e)) => {
                bad += 1;
                println!("{}: {e}", d.file_name().unwrap().to_str().unwrap());
            }
            Err(_) => {
                bad += 1;
                println!("{}: PANIC", d.display());
            }
        }
    }
    println!("{good} good, {bad} bad");
}
