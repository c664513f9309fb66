//! Compiles the table of calls to BPF programs.
//!
//! A `seccompiler` filter knows two outcomes, the table has more. The kernel runs all installed filters and
//! takes the most severe outcome, so there is one filter per error number, which refuses its calls and allows
//! all others, and one that allows listed calls (refused ones included) and ends the process at any other.

use crate::calls::{
    COMMON, Calls, Check, LEGACY_COMMON, Rule, control, data_plane, driver, forwarder, ovs, p4runtime, view,
};
use crate::isolation::Violation;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::{BTreeMap, BTreeSet};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A process that gets a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filtered {
    DataPlane,
    /// A data plane that sends by queues of devices.
    SendingDataPlane,
    Control,
    Driver,
    Forwarder,
    Ovs,
    View,
    P4Runtime,
}

impl Filtered {
    /// All that is allowed or refused with an error, in any order.
    fn calls(self) -> impl Iterator<Item = (i64, Rule)> {
        let (own, legacy): (Calls, Calls) = match self {
            Filtered::DataPlane | Filtered::SendingDataPlane => (data_plane::CALLS, data_plane::LEGACY),
            Filtered::Control => (control::CALLS, control::LEGACY),
            Filtered::Driver => (driver::CALLS, driver::LEGACY),
            Filtered::Forwarder => (forwarder::CALLS, forwarder::LEGACY),
            Filtered::Ovs => (ovs::CALLS, ovs::LEGACY),
            Filtered::View => (view::CALLS, view::LEGACY),
            Filtered::P4Runtime => (p4runtime::CALLS, p4runtime::LEGACY),
        };
        let sends: Calls = match self {
            Filtered::SendingDataPlane => data_plane::SENDING,
            _ => &[],
        };
        [COMMON, LEGACY_COMMON, own, legacy, sends]
            .into_iter()
            .flatten()
            .copied()
    }
}

/// The programs, in the order in which they must be installed: the last one forbids installing more.
pub(crate) fn programs(
    process: Filtered,
    violation: Violation,
    pid: u32,
) -> Result<Vec<BpfProgram>, BackendError> {
    let mut allowed = Rules::new();
    let mut refused: BTreeMap<u32, Rules> = BTreeMap::new();
    let mut always = BTreeSet::new();
    for (number, rule) in process.calls() {
        let alternatives = match rule {
            Rule::Always => {
                always.insert(number);
                Vec::new()
            }
            Rule::If(checks) => alternatives(checks, pid)?,
            Rule::Errno(error) => {
                let rules = refused.entry(error.cast_unsigned()).or_default();
                rules.insert(number, Vec::new());
                always.insert(number);
                Vec::new()
            }
        };
        allowed.entry(number).or_default().extend(alternatives);
    }
    // A call without conditions is allowed whatever its arguments, and says so by having no rule.
    always.iter().for_each(|number| {
        allowed.insert(*number, Vec::new());
    });
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

    const ALL: [Filtered; 8] = [
        Filtered::DataPlane,
        Filtered::SendingDataPlane,
        Filtered::Control,
        Filtered::Driver,
        Filtered::Forwarder,
        Filtered::Ovs,
        Filtered::View,
        Filtered::P4Runtime,
    ];

    /// Alternatives add up, so a call must not be both free and conditional, nor both allowed and refused.
    #[test]
    fn no_rule_makes_another_one_void_and_the_programs_compile() {
        for process in ALL {
            let mut seen: BTreeMap<i64, bool> = BTreeMap::new();
            for (number, rule) in process.calls() {
                let conditional = matches!(rule, Rule::If(_));
                let reads_files = matches!(process, Filtered::Control | Filtered::Ovs);
                let newfstatat = reads_files && number == libc::SYS_newfstatat;
                if let Some(earlier) = seen.insert(number, conditional) {
                    assert!(earlier && conditional || newfstatat, "{process:?}: call {number}");
                }
            }
            for violation in [Violation::Kill, Violation::Report] {
                // The last one ends the process, those before it refuse.
                assert!(programs(process, violation, 1).unwrap().len() >= 3, "{process:?}");
            }
        }
    }

    #[test]
    fn what_nobody_may_do_is_in_no_list() {
        for process in ALL {
            let numbers: BTreeSet<i64> = process.calls().map(|(number, _)| number).collect();
            for forbidden in [
                libc::SYS_execve,
                libc::SYS_execveat,
                libc::SYS_kill,
                libc::SYS_tkill,
                libc::SYS_pidfd_send_signal,
                libc::SYS_ptrace,
                libc::SYS_process_vm_readv,
                libc::SYS_process_vm_writev,
                libc::SYS_pidfd_getfd,
                libc::SYS_mount,
                libc::SYS_seccomp,
                libc::SYS_init_module,
                libc::SYS_setresuid,
                libc::SYS_capset,
                libc::SYS_chown,
                libc::SYS_io_uring_setup,
                libc::SYS_userfaultfd,
                libc::SYS_keyctl,
            ] {
                assert!(
                    !numbers.contains(&forbidden),
                    "{process:?} may make call {forbidden}"
                );
            }
            // The broker makes and ends links of programs that it was given, puts sockets into a map, and has
            // no other command.
            let bpf: Vec<_> = process
                .calls()
                .filter(|(number, _)| *number == libc::SYS_bpf)
                .collect();
            match process {
                Filtered::Driver => assert!(
                    matches!(bpf[..], [(_, Rule::If([Check::OneOf(0, [2, 28, 34])]))]),
                    "{bpf:?}"
                ),
                _ => assert!(bpf.is_empty(), "{process:?}: {bpf:?}"),
            }
        }
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
