//! Paths through ingress on which nothing says where the packet goes.
//!
//! On such a path the wanted egress port keeps the 0 that it begins with, so the packet leaves by port 0:
//! hardly what the program's author meant. An action counts as one that says where if any of its operations
//! does, and a condition may be true or false for every packet. So the path that is found is a warning, not
//! a proof.

use crate::action::Op;
use crate::control::{Apply, Block, Next};
use crate::expr::Place;
use crate::header::Role;
use crate::ids::{ActionId, FieldId};
use crate::parser::ParserOp;
use crate::program::Program;
use crate::table::Table;

/// The choices along the first such path, each as `place: choice`; `None` if there is no such path.
#[must_use]
pub fn undirected_path(program: &Program) -> Option<Vec<String>> {
    let standard = [Role::EgressSpec, Role::McastGrp].map(|role| program.standard.get(role));
    let search = Search {
        program,
        fields: standard.into_iter().flatten().collect(),
    };
    search.path()
}

struct Search<'a> {
    program: &'a Program,
    /// Fields that say where the packet goes.
    fields: Vec<FieldId>,
}

impl Search<'_> {
    fn path(&self) -> Option<Vec<String>> {
        let parser_ops = self.program.parser.states.iter().flat_map(|state| &state.ops);
        let mut in_parser =
            parser_ops.filter_map(|op| if let ParserOp::Do(op) = op { Some(op) } else { None });
        if in_parser.any(|op| self.directs(op)) {
            return None;
        }
        let blocks = &self.program.ingress.blocks;
        if blocks.is_empty() {
            return Some(Vec::new());
        }
        // For each block that such a path reaches: the block before and the choice made there. Successors
        // have higher numbers, so the blocks before one are done when its turn comes.
        let mut before: Vec<Option<Option<(usize, String)>>> = vec![None; blocks.len()];
        before[0] = Some(None);
        for (number, block) in blocks.iter().enumerate() {
            if before[number].is_none() {
                continue;
            }
            for (next, choice) in self.silent_ways(block) {
                match next {
                    Next::End => return Some(back(&before, number, choice)),
                    Next::Block(next) => {
                        before[next.index()].get_or_insert(Some((number, choice)));
                    }
                }
            }
        }
        None
    }

    /// Ways out of a block on which nothing says where the packet goes. The choice is empty if there is no
    /// other.
    fn silent_ways(&self, block: &Block) -> Vec<(Next, String)> {
        match block {
            Block::If {
                condition,
                then,
                otherwise,
                ..
            } => {
                let text = self.program.expr_text(*condition);
                vec![
                    (*otherwise, format!("{text}: false")),
                    (*then, format!("{text}: true")),
                ]
            }
            Block::Run(action, next) => {
                let ways = (!self.action_directs(*action)).then(|| (*next, String::new()));
                ways.into_iter().collect()
            }
            Block::Apply(table, apply) => self.silent_ways_of(&self.program.tables[table.index()], apply),
        }
    }

    fn silent_ways_of(&self, table: &Table, apply: &Apply) -> Vec<(Next, String)> {
        let only = table.keys.is_empty() && table.actions.len() == 1;
        let mut ways = Vec::new();
        let mut add = |hit: bool, action: Option<ActionId>| {
            let position = action.and_then(|id| table.actions.iter().position(|one| one.action == id));
            let next = match apply {
                Apply::Always(next) => *next,
                Apply::ByHit { hit: yes, .. } if hit => *yes,
                Apply::ByHit { miss, .. } => *miss,
                Apply::ByAction(each, none) => position.and_then(|at| each.get(at)).copied().unwrap_or(*none),
            };
            let name = action.map_or("no entry", |id| {
                self.program.actions[id.index()].identity.alias.as_str()
            });
            let choice = if only {
                String::new()
            } else {
                format!("{}: {name}", table.identity.name)
            };
            ways.push((next, choice));
        };
        let silent = |action: ActionId| !self.action_directs(action);
        // A miss comes first: before there are entries, that is what happens.
        match &table.default {
            None => add(false, None),
            Some(default) if silent(default.entry.action) => add(false, Some(default.entry.action)),
            Some(_) => {}
        }
        let own = |action: ActionId| table.runs(&self.program.profiles, action);
        for one in table.actions.iter().filter(|one| silent(one.action)) {
            if !table.keys.is_empty() && !one.default_only && (!table.constant || own(one.action)) {
                add(true, Some(one.action));
            }
        }
        ways
    }

    fn action_directs(&self, action: ActionId) -> bool {
        self.program.actions[action.index()]
            .ops
            .iter()
            .any(|op| self.directs(op))
    }

    /// Whether an operation says where the packet goes, or that it runs again.
    fn directs(&self, op: &Op) -> bool {
        let written = match op.written() {
            Some(Place::Field(field)) => self.fields.contains(&field),
            _ => false,
        };
        written || matches!(op, Op::MarkToDrop | Op::Resubmit(_))
    }
}

/// The choices from the first block to the end of this one.
fn back(before: &[Option<Option<(usize, String)>>], mut number: usize, last: String) -> Vec<String> {
    let mut choices = vec![last];
    while let Some(Some(Some((from, choice)))) = before.get(number) {
        choices.push(choice.clone());
        number = *from;
    }
    choices.reverse();
    choices.retain(|choice| !choice.is_empty());
    choices
}
