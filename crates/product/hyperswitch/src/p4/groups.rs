//! `hyperswitch p4 group`: members and groups of a running program's action profiles.
//!
//! Members and groups are part of a version, like entries: a change is another version, which the data plane
//! puts in force at once. What something leads to is not removed.

use super::commands;
use super::running::{Running, show};
use crate::cli::{P4GroupArgs, P4GroupVerb, P4MemberArgs, P4ProfileArgs};
use crate::verbs::Session;
use anyhow::{Result, ensure};
use p4_ir::{ActionProfile, Program, Share};
use p4_stf::script::Leads;
use p4_stf::{EntryVerb, ProfileEdit};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// A member or a group.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Group")]
pub struct ProfileRow {
    /// Of the action profile.
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    /// Of a member: its action with arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<String>,
    /// Of a group: members as `p4 group add` reads them.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<String>,
}

/// Runs a verb.
///
/// # Errors
/// There is no such program, profile, member or group, or the instance refuses.
pub fn run(session: &mut Session<'_>, verb: &P4GroupVerb) -> Result<()> {
    match verb {
        P4GroupVerb::List { name, profile } => list(session, name, profile.as_deref()),
        P4GroupVerb::Add(args) => put_group(session, EntryVerb::Add, args),
        P4GroupVerb::Set(args) => put_group(session, EntryVerb::Set, args),
        P4GroupVerb::AddMember(args) => put_member(session, EntryVerb::Add, args),
        P4GroupVerb::SetMember(args) => put_member(session, EntryVerb::Set, args),
        P4GroupVerb::Remove(args) => remove(session, args, Leads::Group(args.number)),
        P4GroupVerb::RemoveMember(args) => remove(session, args, Leads::Member(args.number)),
    }
}

fn list(session: &mut Session<'_>, name: &str, wanted: Option<&str>) -> Result<()> {
    let running = Running::fetch(session, name)?;
    let program = running.program();
    let is_meant = |profile: &&ActionProfile| {
        wanted.is_none_or(|wanted| commands::is_meant(&profile.identity.name, wanted))
    };
    let meant = program.profiles.iter().filter(is_meant);
    let rows: Vec<ProfileRow> = meant.flat_map(|profile| rows(program, profile)).collect();
    ensure!(
        wanted.is_none() || program.profiles.iter().any(|profile| is_meant(&profile)),
        "there is no action profile {}",
        wanted.unwrap_or_default()
    );
    show(session, &rows)
}

fn rows<'a>(program: &'a Program, profile: &'a ActionProfile) -> impl Iterator<Item = ProfileRow> + 'a {
    let row = || ProfileRow {
        name: profile.identity.name.clone(),
        member: None,
        group: None,
        action: None,
        members: None,
    };
    let members = profile.members.iter().map(move |(number, own)| {
        let name = [program.actions[own.action.index()].identity.name.clone()];
        let arguments = own.arguments.iter().map(ToString::to_string);
        let words: Vec<String> = name.into_iter().chain(arguments).collect();
        ProfileRow {
            member: Some(*number),
            action: Some(words.join(" ")),
            ..row()
        }
    });
    let groups = profile.groups.iter().map(move |(number, group)| {
        let all = group.members.iter().map(|(member, share)| choice(*member, share));
        ProfileRow {
            group: Some(*number),
            members: Some(all.collect::<Vec<_>>().join(" ")),
            ..row()
        }
    });
    members.chain(groups)
}

/// A group's member as `p4 group add` reads it.
fn choice(member: u32, share: &Share) -> String {
    let weight = match share.weight {
        1 => String::new(),
        weight => format!(":{weight}"),
    };
    let watch = share.watch.map(|port| format!("@{port}")).unwrap_or_default();
    format!("{member}{weight}{watch}")
}

fn put_group(session: &mut Session<'_>, verb: EntryVerb, args: &P4GroupArgs) -> Result<()> {
    let mut members = BTreeMap::new();
    for choice in &args.members {
        let share = Share {
            weight: choice.weight,
            watch: choice.watch,
        };
        let is_new = members.insert(choice.member, share).is_none();
        ensure!(is_new, "member {} is there twice", choice.member);
    }
    let group = args.group.number;
    let edit = ProfileEdit::PutGroup { verb, group, members };
    Running::fetch(session, &args.group.name)?.edit_profile(session, &args.group.profile, &edit)
}

fn put_member(session: &mut Session<'_>, verb: EntryVerb, args: &P4MemberArgs) -> Result<()> {
    let running = Running::fetch(session, &args.member.name)?;
    let edit = ProfileEdit::PutMember {
        verb,
        member: args.member.number,
        action: args.action.clone(),
        arguments: commands::member_arguments(running.program(), &args.action, &args.arguments)?,
    };
    running.edit_profile(session, &args.member.profile, &edit)
}

fn remove(session: &mut Session<'_>, args: &P4ProfileArgs, leads: Leads) -> Result<()> {
    let running = Running::fetch(session, &args.name)?;
    running.edit_profile(session, &args.profile, &ProfileEdit::Remove(leads))
}
