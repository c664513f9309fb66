//! From the table of calls to BPF programs.
//!
//! A `seccompiler` filter knows two outcomes, the table has more. The kernel runs all installed filters and
//! takes the most severe outcome, so there is one filter per error number, which refuses its calls and allows
//! all others, and one that allows what is listed (refused calls included) and ends the process otherwise.

use crate::calls::{CALLS, Check, LEGACY_CALLS, Rule};
use crate::data_plane::Violation;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The programs, in the order in which they must be installed: the last one forbids installing more.
pub(crate) fn programs(violation: Violation, pid: u32) -> Result<Vec<BpfProgram>, BackendError> {
    let mut allowed = Rules::new();
    let mut refused: BTreeMap<u32, Rules> = BTreeMap::new();
    for &(number, rule) in CALLS.iter().chain(LEGACY_CALLS) {
        let rules = match rule {
            Rule::Always => Vec::new(),
            Rule::If(checks) => alternatives(checks, pid)?,
            Rule::Errno(error) => {
                refused
                    .entry(error.cast_unsigned())
                    .or_default()
                    .insert(number, Vec::new());
                Vec::new()
            }
        };
        let earlier = allowed.insert(number, rules);
        debug_assert!(earlier.is_none(), "call {number} is listed twice");
    }
    let otherwise = match violation {
        Violation::Kill => SeccompAction::KillProcess,
        Violation::Report => SeccompAction::Trap,
    };
    let mut programs = Vec::new();
    for (error, rules) in refused {
        programs.push(compile(rules, SeccompAction::Allow, SeccompAction::Errno(error))?);
    }
    programs.push(compile(allowed, otherwise, SeccompAction::Allow)?);
    Ok(programs)
}

fn compile(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()
}

/// The rules of a call are alternatives, the conditions of a rule must all hold: multiply out.
fn alternatives(checks: &[Check], pid: u32) -> Result<Vec<SeccompRule>, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    let mut rules: Vec<Vec<SeccompCondition>> = vec![Vec::new()];
    for check in checks {
        let choices: Vec<SeccompCondition> = match *check {
            Check::OneOf(argument, values) => values
                .iter()
                .map(|&value| SeccompCondition::new(argument, Dword, SeccompCmpOp::Eq, value.into()))
                .collect::<Result<_, _>>()?,
            Check::Bits(argument, mask, value) => {
                let equal = SeccompCmpOp::MaskedEq(mask.into());
                vec![SeccompCondition::new(argument, Dword, equal, value.into())?]
            }
            Check::OwnPid(argument) => {
                vec![SeccompCondition::new(
                    argument,
                    Dword,
                    SeccompCmpOp::Eq,
                    pid.into(),
                )?]
            }
            Check::Null(argument) => vec![SeccompCondition::new(argument, Qword, SeccompCmpOp::Eq, 0)?],
        };
        rules = rules
            .iter()
            .flat_map(|rule| {
                choices
                    .iter()
                    .map(|choice| rule.iter().cloned().chain([choice.clone()]).collect())
            })
            .collect();
    }
    rules.into_iter().map(SeccompRule::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_listed_once_and_the_programs_compile() {
        let mut seen = std::collections::BTreeSet::new();
        for (number, _) in CALLS.iter().chain(LEGACY_CALLS) {
            assert!(seen.insert(number), "call {number} is listed twice");
        }
        // One for ENOSYS, one for EACCES, one for the rest.
        assert_eq!(programs(Violation::Kill, 1).unwrap().len(), 3);
        assert_eq!(programs(Violation::Report, 1).unwrap().len(), 3);
    }

    #[test]
    fn conditions_multiply() {
        let checks = [
            Check::OneOf(0, &[1, 2]),
            Check::OneOf(1, &[3, 4, 5]),
            Check::Null(2),
        ];
        assert_eq!(alternatives(&checks, 1).unwrap().len(), 6);
    }
}
