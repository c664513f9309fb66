//! A controller's requests about rule lists and sets.
//!
//! Requests that change something are served in their order, one piece of work after the other, in the time
//! that is left in the controller's turns: large lists take several. Requests behind them wait in a bounded
//! queue; when it is full, nothing is read from the controller. Decisions that a change has to end are ended
//! even if the controller's process dies meanwhile.

use crate::refusal::Refusal;
use classifier::{Ending, Rules};
use control_protocol::data_plane::Answer;
use control_protocol::encoded_len;
use control_protocol::rules::{
    Base, ListInfo, MAX_DRAFTS, MAX_JUDGED, MAX_MEMBERS_PER_REQUEST, MAX_RULES_PER_REQUEST, RuleAnswer,
    RuleRequest, SetInfo,
};
use cpu::Deadline;
use flow::{ControllerId, ListId};
use rule_list::{Builder, Compiler, Member, Refused, Rule, SetId};
use std::collections::{BTreeMap, VecDeque};

/// Requests that wait; with more, nothing is read from the controller.
const MAX_WAITING: usize = 64;
/// Rules that are put into a list at a time.
const RULES_PER_STEP: usize = 32;
/// Members of a removed set that go at a time.
const MEMBERS_PER_STEP: usize = 256;
/// Lists, or sets, per page.
const PER_PAGE: usize = 512;
/// Bytes of a page of rules, so that it fits a message.
const PAGE_BYTES: usize = control_protocol::MAX_MESSAGE / 2;

/// A controller's drafts, and the work on its lists and sets.
#[derive(Default)]
pub(crate) struct RuleWork {
    drafts: BTreeMap<ListId, Builder>,
    /// Work that was begun, with the serial number of the request.
    begun: Option<(Option<u32>, Work)>,
    waiting: VecDeque<(u32, RuleRequest)>,
}

/// Work in pieces.
enum Work {
    Compile {
        list: ListId,
        tag: u64,
        compiler: Box<Compiler>,
    },
    End(Ending),
    RemoveSet(SetId),
}

/// An answer to the request with that serial number.
pub(crate) type RuleResult = (u32, Result<Answer, Refusal>);

impl RuleWork {
    /// Whether there is work left.
    pub fn is_busy(&self) -> bool {
        self.begun.is_some() || !self.waiting.is_empty()
    }

    /// Whether no further request can wait.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
    }

    /// The controller's process has gone. What was published is finished, and nothing else.
    pub fn lose(&mut self) {
        self.drafts.clear();
        self.waiting.clear();
        self.begun = self.begun.take().and_then(|(_, work)| match work {
            Work::Compile { .. } => None,
            work => Some((None, work)),
        });
    }

    /// Has a request that changes something served when those before it are.
    pub fn push(&mut self, serial: u32, request: RuleRequest) {
        self.waiting.push_back((serial, request));
    }

    /// Works for a while. Returns the answers to requests that are done.
    pub fn work(&mut self, owner: ControllerId, rules: &Rules, ends: &Deadline) -> Vec<RuleResult> {
        let mut done = Vec::new();
        loop {
            let (serial, result) = if let Some((serial, work)) = self.begun.take() {
                (serial, step(work, owner, rules))
            } else if let Some((serial, request)) = self.waiting.pop_front() {
                (Some(serial), self.begin(owner, rules, request))
            } else {
                break;
            };
            match result {
                Ok(Some(work)) => self.begun = Some((serial, work)),
                Ok(None) => done.extend(serial.map(|serial| (serial, Ok(Answer::Done)))),
                Err(refusal) => done.extend(serial.map(|serial| (serial, Err(refusal)))),
            }
            if ends.has_passed() {
                break;
            }
        }
        done
    }

    /// Serves a request, or begins with it.
    fn begin(
        &mut self,
        owner: ControllerId,
        rules: &Rules,
        request: RuleRequest,
    ) -> Result<Option<Work>, Refusal> {
        match request {
            RuleRequest::Begin { list, base, default } => self
                .begin_draft(own(owner, list)?, base, default, rules)
                .map(|()| None),
            RuleRequest::Add { list, rules } => self.add(own(owner, list)?, rules).map(|()| None),
            RuleRequest::Remove { list, rules } => self.remove(own(owner, list)?, &rules).map(|()| None),
            RuleRequest::Commit { list, tag } => {
                let list = own(owner, list)?;
                let draft = self.drafts.remove(&list).ok_or(Refusal::NoDraft(list))?;
                let compiler = Box::new(draft.compile());
                Ok(Some(Work::Compile { list, tag, compiler }))
            }
            RuleRequest::Discard { list } => {
                self.drafts.remove(&own(owner, list)?);
                Ok(None)
            }
            RuleRequest::Delete { list } => Ok(Some(Work::End(rules.remove(own(owner, list)?)))),
            RuleRequest::SetAdd { set, kind } => {
                rules.create_set(owner, set, kind)?;
                Ok(None)
            }
            RuleRequest::SetChange { set, remove, add } => {
                check_count(remove.len() + add.len(), MAX_MEMBERS_PER_REQUEST)?;
                Ok(Some(Work::End(rules.change_set(owner, set, &remove, &add)?)))
            }
            RuleRequest::SetDel { set } => Ok(Some(Work::RemoveSet(set))),
            RuleRequest::Lists { .. }
            | RuleRequest::Rules { .. }
            | RuleRequest::Judged { .. }
            | RuleRequest::Sets { .. }
            | RuleRequest::Members { .. } => Ok(None),
        }
    }

    fn begin_draft(
        &mut self,
        list: ListId,
        base: Base,
        default: rule_list::Verdict,
        rules: &Rules,
    ) -> Result<(), Refusal> {
        if self.drafts.len() >= MAX_DRAFTS && !self.drafts.contains_key(&list) {
            return Err(Refusal::Drafts);
        }
        let draft = match base {
            Base::Empty => Builder::new(default),
            Base::Present => {
                let present = rules.get(list).ok_or(Refused::NoSuchList(list))?;
                let mut draft = Builder::from_list(present);
                draft.set_default(default);
                draft
            }
        };
        self.drafts.insert(list, draft);
        Ok(())
    }

    fn add(&mut self, list: ListId, rules: Vec<Rule>) -> Result<(), Refusal> {
        let mut draft = self.drafts.remove(&list).ok_or(Refusal::NoDraft(list))?;
        check_count(rules.len(), MAX_RULES_PER_REQUEST)?;
        for rule in rules {
            let number = rule.number;
            draft
                .add(rule)
                .map_err(|refused| Refusal::Rule(number, refused))?;
        }
        self.drafts.insert(list, draft);
        Ok(())
    }

    fn remove(&mut self, list: ListId, numbers: &[u32]) -> Result<(), Refusal> {
        let mut draft = self.drafts.remove(&list).ok_or(Refusal::NoDraft(list))?;
        check_count(numbers.len(), MAX_RULES_PER_REQUEST)?;
        for &number in numbers {
            if !draft.remove(number) {
                return Err(Refusal::NoRule(number));
            }
        }
        self.drafts.insert(list, draft);
        Ok(())
    }
}

/// Does a piece of work. `None` when it is done.
fn step(work: Work, owner: ControllerId, rules: &Rules) -> Result<Option<Work>, Refusal> {
    match work {
        Work::Compile {
            list,
            tag,
            mut compiler,
        } => {
            if !compiler.step(RULES_PER_STEP)? {
                return Ok(Some(Work::Compile { list, tag, compiler }));
            }
            let (made, change) = compiler.finish()?;
            Ok(Some(Work::End(rules.put(list, made, tag, Some(change))?)))
        }
        Work::End(mut ending) => Ok(ending.step().then_some(Work::End(ending))),
        Work::RemoveSet(set) => match rules.remove_set(owner, set, MEMBERS_PER_STEP) {
            Ok(true) | Err(Refused::NoSuchSet(_)) => Ok(None),
            Ok(false) => Ok(Some(Work::RemoveSet(set))),
            Err(refused) => Err(refused.into()),
        },
    }
}

/// The list, if it is the controller's own.
fn own(owner: ControllerId, list: ListId) -> Result<ListId, Refusal> {
    if list.controller() == owner {
        Ok(list)
    } else {
        Err(Refusal::ForeignList(list))
    }
}

fn check_count(count: usize, most: usize) -> Result<(), Refusal> {
    if count > most {
        return Err(Refusal::TooMany(count, most));
    }
    Ok(())
}

/// The answer to a request that changes nothing; `None` for others.
pub(crate) fn page(
    owner: ControllerId,
    rules: &Rules,
    request: &RuleRequest,
    now_ms: u64,
) -> Option<Result<Answer, Refusal>> {
    let answer = match request {
        RuleRequest::Lists { after } => Ok(lists_page(owner, rules, *after)),
        RuleRequest::Rules { list, from } => rules_page(rules, *list, *from, now_ms),
        RuleRequest::Judged { list, from } => judged_page(owner, rules, *list, *from),
        RuleRequest::Sets { after } => Ok(sets_page(owner, rules, *after)),
        RuleRequest::Members { set, after } => members_page(owner, rules, *set, *after),
        _ => return None,
    };
    Some(answer.map(Answer::Rules))
}

/// A page, and whether there is more than fits.
fn cut<T>(mut page: Vec<T>, most: usize) -> (Vec<T>, bool) {
    let more = page.len() > most;
    page.truncate(most);
    (page, more)
}

fn lists_page(owner: ControllerId, rules: &Rules, after: Option<ListId>) -> RuleAnswer {
    let (page, more) = cut(rules.lists(owner, after, PER_PAGE + 1), PER_PAGE);
    let info = |(list, tag, there): (ListId, u64, std::sync::Arc<rule_list::RuleList>)| ListInfo {
        list,
        tag,
        default: there.default_verdict(),
        rules: count(there.rules().len()),
    };
    let lists = page.into_iter().map(info).collect();
    RuleAnswer::Lists { lists, more }
}

fn rules_page(rules: &Rules, list: ListId, from: u32, now_ms: u64) -> Result<RuleAnswer, Refusal> {
    let page = rules.rules(list, from as usize, MAX_RULES_PER_REQUEST + 1, now_ms);
    let (default, found) = page.ok_or(Refused::NoSuchList(list))?;
    let (mut found, mut more) = cut(found, MAX_RULES_PER_REQUEST);
    let mut bytes = 0;
    let fits = found.iter().take_while(|rule| {
        bytes += encoded_len(rule);
        bytes <= PAGE_BYTES
    });
    let fits = fits.count();
    more |= fits < found.len();
    found.truncate(fits);
    Ok(RuleAnswer::Rules {
        default,
        rules: found,
        more,
    })
}

fn judged_page(owner: ControllerId, rules: &Rules, list: ListId, from: u32) -> Result<RuleAnswer, Refusal> {
    let found = rules.judged(own(owner, list)?, from as usize, MAX_JUDGED);
    let found = found.ok_or(Refused::NoSuchList(list))?;
    Ok(RuleAnswer::Judged {
        packets: found.packets,
        further: count(found.further),
        next: found.next.map(count),
    })
}

fn sets_page(owner: ControllerId, rules: &Rules, after: Option<SetId>) -> RuleAnswer {
    let (page, more) = cut(rules.sets(owner, after, PER_PAGE + 1), PER_PAGE);
    let info = |state: rule_list::SetState| SetInfo {
        set: state.set,
        kind: state.kind,
        members: count(state.members),
        lists: count(state.lists),
    };
    let sets = page.into_iter().map(info).collect();
    RuleAnswer::Sets { sets, more }
}

fn members_page(
    owner: ControllerId,
    rules: &Rules,
    set: SetId,
    after: Option<Member>,
) -> Result<RuleAnswer, Refusal> {
    let page = rules.members(owner, set, after, MAX_MEMBERS_PER_REQUEST + 1)?;
    let (members, more) = cut(page, MAX_MEMBERS_PER_REQUEST);
    Ok(RuleAnswer::Members { members, more })
}

/// Numbers of lists, rules and members are bounded far below.
fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
