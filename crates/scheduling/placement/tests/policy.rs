//! The policy against a brute-force twin and against its invariants, on random machines in random states.

#![allow(clippy::unwrap_used)]

use placement::{
    Backlog, Config, Copier, CopyPlan, CoreState, Costs, Cpu, Duty, Kicks, Mode, Notify, Policy, Rank, Reach,
    Shape, Topology, VcpuState, View, VnicId, Work, WorkerId,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A state of the machine, spelled out.
#[derive(Clone, Debug)]
struct Still {
    cores: Vec<CoreState>,
    wanted: Vec<bool>,
    vcpus: Vec<VcpuState>,
    copying: Option<Cpu>,
    expects: Vec<Cpu>,
    contended: Vec<Cpu>,
}

impl View for Still {
    fn now_ns(&self) -> u64 {
        1_000_000
    }

    fn core(&self, cpu: Cpu) -> CoreState {
        self.cores
            .get(usize::from(cpu.0))
            .copied()
            .unwrap_or(CoreState::Other)
    }

    fn wanted(&self, cpu: Cpu) -> bool {
        self.wanted.get(usize::from(cpu.0)).copied().unwrap_or(true)
    }

    fn is_contended(&self, cpu: Cpu) -> bool {
        self.contended.contains(&cpu)
    }

    fn expects_vcpu(&self, cpu: Cpu) -> bool {
        self.expects.contains(&cpu)
    }

    fn vcpu(&self, vnic: VnicId) -> VcpuState {
        self.vcpus
            .get(vnic.0 as usize)
            .copied()
            .unwrap_or(VcpuState::Unknown)
    }

    fn copying(&self, _: VnicId) -> Option<Cpu> {
        self.copying
    }
}

const OPTERON: Shape = Shape {
    nodes: 4,
    llcs: 1,
    modules: 4,
    cpus: 2,
};
const IDLE: CoreState = CoreState::Idle;
const POLLING: CoreState = CoreState::Worker {
    depth: 0,
    polling: true,
};
const WORTH_IT: Backlog = Backlog {
    packets: 64,
    bytes: 64 << 10,
};

/// The Opteron with all cores idle and two vCPUs: of vNIC 0 on CPU 0, of vNIC 1 on CPU 2.
fn opteron(sender: VcpuState, receiver: VcpuState) -> Still {
    Still {
        cores: vec![IDLE; 32],
        wanted: vec![false; 32],
        vcpus: vec![sender, receiver],
        copying: None,
        expects: Vec::new(),
        contended: Vec::new(),
    }
}

fn policy(config: Config) -> Policy {
    Policy::new(config, Topology::regular(OPTERON), Costs::default())
}

fn core(id: WorkerId) -> Cpu {
    match id {
        WorkerId::Core(cpu) => cpu,
        WorkerId::Thread(vnic) => panic!("a thread of {vnic:?}"),
    }
}

fn running_pair() -> Still {
    let mut still = opteron(VcpuState::Running(Cpu(0)), VcpuState::Running(Cpu(2)));
    still.cores[0] = CoreState::Guest;
    still.cores[2] = CoreState::Guest;
    still
}

/// The core to which copying for vNIC 1 is offloaded.
fn offloaded(policy: &Policy, still: &Still, queued: Backlog) -> Option<u16> {
    let plan = policy.copier(still, Cpu(0), VnicId(1), queued);
    assert_eq!(plan.now, 0);
    match plan.copier {
        Copier::Here => None,
        Copier::Offload(id) => Some(core(id).0),
        Copier::LeaveTo(cpu) => panic!("left to {cpu:?}"),
    }
}

#[test]
fn helpers_are_asked_from_the_best_to_the_last_resort() {
    let mut still = running_pair();
    let policy = policy(Config::default());
    let mut next = || {
        let cpu = offloaded(&policy, &still, WORTH_IT);
        still.cores[usize::from(cpu.unwrap_or(31))] = CoreState::Guest;
        cpu
    };
    // Idle modules, then idle cores beside busy ones, the receiver's sibling last; no other node.
    let modules = [next().unwrap(), next().unwrap()];
    assert!(modules.contains(&4) && modules.contains(&6), "{modules:?}");
    let beside_busy = [next().unwrap(), next().unwrap(), next().unwrap()];
    assert_eq!(beside_busy.iter().sum::<u16>(), 1 + 5 + 7, "{beside_busy:?}");
    assert_eq!(next(), Some(3));
    assert_eq!(next(), None);
}

fn papers_criteria() -> Config {
    Config {
        busy_modules: false,
        other_nodes: true,
        ..Config::default()
    }
}

#[test]
fn the_papers_criteria_take_idle_modules_only_on_other_nodes_if_need_be() {
    let policy = policy(papers_criteria());
    let mut still = running_pair();
    assert!((4..8).contains(&offloaded(&policy, &still, WORTH_IT).unwrap()));
    still.cores[4] = CoreState::Other;
    still.expects = vec![Cpu(7)];
    assert!(offloaded(&policy, &still, WORTH_IT).unwrap() >= 8);
    // A worker that looks for work beside a busy core is no helper either.
    still.cores[5] = POLLING;
    assert!(offloaded(&policy, &still, WORTH_IT).unwrap() >= 8);
}

#[test]
fn with_the_papers_criteria_no_core_copies_that_is_not_to_help() {
    let policy = policy(papers_criteria());
    let mut still = running_pair();
    let working = CoreState::Worker {
        depth: 0,
        polling: false,
    };
    // The other idle module of the receiver's node works as well, so this helper goes on instead of asking
    // another node.
    still.cores[4] = working;
    still.cores[6] = working;
    let copier = |still: &Still, here| policy.copier(still, Cpu(here), VnicId(1), WORTH_IT).copier;
    assert_eq!(copier(&still, 4), Copier::Here);
    // Without idle modules, the receiver's core copies rather than one of another node that found the
    // packets.
    still.cores.fill(CoreState::Guest);
    still.cores[8] = working;
    assert_eq!(copier(&still, 8), Copier::Offload(WorkerId::Core(Cpu(2))));
    still.cores[9] = IDLE;
    assert_eq!(copier(&still, 8), Copier::Here);
}

#[test]
fn a_guest_may_run_where_workers_may_not() {
    let topology = Topology::regular(OPTERON).restricted(|cpu| ![0, 2, 4].contains(&cpu.0));
    let policy = Policy::new(Config::default(), topology, Costs::default());
    let helper = offloaded(&policy, &running_pair(), WORTH_IT);
    assert!(helper.is_some_and(|cpu| (5..8).contains(&cpu)), "{helper:?}");
    let home = core(policy.successor(&running_pair(), Cpu(6), VnicId(1), Backlog::default()));
    assert!(![0, 2, 4].contains(&home.0), "{home:?}");
}

#[test]
fn a_core_to_which_a_vcpu_is_expected_back_comes_last() {
    let policy = policy(Config::default());
    let mut still = running_pair();
    still.cores.fill(CoreState::Guest);
    still.cores[5] = IDLE;
    still.expects = vec![Cpu(5)];
    assert_eq!(offloaded(&policy, &still, WORTH_IT), Some(5));
    still.cores[7] = IDLE;
    assert_eq!(offloaded(&policy, &still, WORTH_IT), Some(7));
}

#[test]
fn an_awake_helper_is_taken_where_waking_one_would_not_pay() {
    let little = Backlog {
        packets: 2,
        bytes: 16_384,
    };
    let mut still = running_pair();
    let policy = policy(Config::default());
    assert_eq!(offloaded(&policy, &still, little), None);
    still.cores[5] = POLLING;
    assert_eq!(offloaded(&policy, &still, little), Some(5));
    let too_little = Backlog {
        packets: 2,
        bytes: 128,
    };
    assert_eq!(offloaded(&policy, &still, too_little), None);
    still.wanted[5] = true;
    assert_eq!(offloaded(&policy, &still, little), None);
    still.wanted[5] = false;
    still.cores[5] = CoreState::Worker {
        depth: 0,
        polling: false,
    };
    assert_eq!(offloaded(&policy, &still, little), None, "it has something to do");
}

#[test]
fn a_running_receivers_packets_are_sent_to_another_worker_from_8_kib_on() {
    let mut still = running_pair();
    still.cores[5] = POLLING;
    let policy = policy(Config::default());
    let queued = |bytes| Backlog { packets: 6, bytes };
    assert_eq!(offloaded(&policy, &still, queued(8191)), None);
    assert_eq!(offloaded(&policy, &still, queued(8192)), Some(5));
}

#[test]
fn waking_a_helper_has_to_pay_for_the_packets_that_remain() {
    let mut still = running_pair();
    still.vcpus[1] = VcpuState::Blocked(Cpu(2));
    let config = Config {
        copy_limit: 5,
        ..Config::default()
    };
    // Of six packets one remains, which takes as long as copying a sixth of the bytes and one packet.
    let queued = Backlog {
        packets: 6,
        bytes: 60 << 10,
    };
    let costs = Costs::default();
    let rest_ns = costs.copy_packet_ns + 10 * costs.copy_kib_ns;
    for (wake_waker_ns, pays) in [(rest_ns - 1, true), (rest_ns, false)] {
        let costs = Costs {
            wake_waker_ns,
            ..costs
        };
        let policy = Policy::new(config.clone(), Topology::regular(OPTERON), costs);
        let plan = policy.copier(&still, Cpu(0), VnicId(1), queued);
        assert_eq!(plan.now, 5);
        assert_eq!(matches!(plan.copier, Copier::Offload(_)), pays, "{plan:?}");
    }
}

#[test]
fn a_blocked_receiver_gets_some_at_once() {
    let mut still = running_pair();
    still.vcpus[1] = VcpuState::Blocked(Cpu(2));
    let policy = policy(Config {
        copy_limit: 5,
        ..Config::default()
    });
    let plan = policy.copier(&still, Cpu(0), VnicId(1), WORTH_IT);
    assert!(
        matches!(
            plan,
            CopyPlan {
                now: 5,
                copier: Copier::Offload(_)
            }
        ),
        "{plan:?}"
    );
    let few = Backlog {
        packets: 3,
        bytes: 300,
    };
    assert_eq!(
        policy.copier(&still, Cpu(0), VnicId(1), few),
        CopyPlan {
            now: 3,
            copier: Copier::Here
        }
    );
}

#[test]
fn one_core_copies_to_a_receiver() {
    let mut still = running_pair();
    still.copying = Some(Cpu(6));
    let policy = policy(Config::default());
    let rest_for = |here| policy.copier(&still, Cpu(here), VnicId(1), WORTH_IT);
    assert_eq!(
        rest_for(0),
        CopyPlan {
            now: 0,
            copier: Copier::LeaveTo(Cpu(6))
        }
    );
    assert_eq!(
        rest_for(6),
        CopyPlan {
            now: 0,
            copier: Copier::Here
        }
    );
}

#[test]
fn without_preemptive_copy_the_receivers_side_copies() {
    let policy = policy(Config {
        preemptive_copy: false,
        ..Config::default()
    });
    let plan = policy.copier(&running_pair(), Cpu(0), VnicId(1), WORTH_IT);
    assert_eq!(
        plan,
        CopyPlan {
            now: 0,
            copier: Copier::Offload(WorkerId::Core(Cpu(2)))
        }
    );
}

#[test]
fn a_ring_is_served_where_its_sender_blocked() {
    let mut still = opteron(VcpuState::Blocked(Cpu(0)), VcpuState::Unknown);
    let policy = policy(Config::default());
    assert_eq!(policy.switcher(&still, VnicId(0)), WorkerId::Core(Cpu(0)));
    assert_eq!(policy.on_block(&still, Cpu(0)), Some(WorkerId::Core(Cpu(0))));
    // Another guest got the core meanwhile.
    still.cores[0] = CoreState::Guest;
    assert_ne!(policy.switcher(&still, VnicId(0)), WorkerId::Core(Cpu(0)));
    assert_eq!(policy.on_block(&still, Cpu(0)), None);
}

#[test]
fn a_sender_that_runs_is_served_on_its_core_even_if_others_are_idle() {
    assert_eq!(
        policy(Config::default()).switcher(&running_pair(), VnicId(0)),
        WorkerId::Core(Cpu(0))
    );
}

#[test]
fn a_sender_that_keeps_its_core_is_served_elsewhere_if_others_are_idle() {
    let mut still = running_pair();
    still.contended = vec![Cpu(0)];
    let policy = policy(Config::default());
    let helper = core(policy.switcher(&still, VnicId(0)));
    assert_eq!(still.core(helper), IDLE);
    assert_eq!(
        policy.hand_off(&still, Cpu(0), VnicId(0), 1),
        Some(WorkerId::Core(helper))
    );
    // The helper that was woken for the ring keeps it.
    still.cores.fill(CoreState::Guest);
    still.cores[usize::from(helper.0)] = POLLING;
    assert_eq!(core(policy.switcher(&still, VnicId(0))), helper);
    still.cores.fill(CoreState::Guest);
    assert_eq!(core(policy.switcher(&still, VnicId(0))), Cpu(0));
    assert_eq!(policy.hand_off(&still, Cpu(0), VnicId(0), 1), None);
}

#[test]
fn a_sender_that_waits_for_its_core_time_and_again_is_handed_off() {
    let still = running_pair();
    let policy = policy(Config::default());
    let hand_off = |still: &Still, here, times| policy.hand_off(still, Cpu(here), VnicId(0), times).map(core);
    let costs = Costs::default();
    let enough = u32::try_from(costs.wake_waker_ns / costs.take_core_ns).unwrap() + 1;
    assert_eq!(hand_off(&still, 0, enough - 1), None);
    let helper = hand_off(&still, 0, enough).unwrap();
    assert_eq!(still.core(helper), IDLE);
    // An awake helper costs nothing.
    let mut awake = still.clone();
    awake.cores[6] = POLLING;
    assert_eq!(hand_off(&awake, 0, 1), Some(Cpu(6)));
    // The vCPU waits for no core, or for another one, or no core could help.
    let blocked = opteron(VcpuState::Blocked(Cpu(0)), VcpuState::Unknown);
    assert_eq!(hand_off(&blocked, 0, 100), None);
    assert_eq!(hand_off(&still, 4, 100), None);
    let mut busy = still.clone();
    busy.cores.fill(CoreState::Guest);
    assert_eq!(hand_off(&busy, 0, 100), None);
}

#[test]
fn a_sender_that_blocked_on_a_core_that_another_task_keeps_is_handed_off() {
    let hand_off = |vcpu, mode| {
        let mut still = opteron(vcpu, VcpuState::Unknown);
        still.contended = vec![Cpu(0)];
        let policy = policy(Config {
            mode,
            ..Config::default()
        });
        policy.hand_off(&still, Cpu(0), VnicId(0), 1)
    };
    let here = VcpuState::Blocked(Cpu(0));
    assert!(hand_off(here, Mode::Hyperswitch).is_some());
    assert_eq!(hand_off(here, Mode::DriverDomain), None);
    for other in [VcpuState::Blocked(Cpu(4)), VcpuState::Unknown] {
        assert_eq!(hand_off(other, Mode::Hyperswitch), None);
    }
}

#[test]
fn on_a_busy_machine_the_sender_serves_itself() {
    let mut still = running_pair();
    still.cores.fill(CoreState::Guest);
    let policy = policy(Config::default());
    assert_eq!(policy.switcher(&still, VnicId(0)), WorkerId::Core(Cpu(0)));
    assert_eq!(
        policy.copier(&still, Cpu(0), VnicId(1), WORTH_IT).copier,
        Copier::Here
    );
    assert_eq!(
        policy.successor(&still, Cpu(9), VnicId(1), WORTH_IT),
        WorkerId::Core(Cpu(2))
    );
}

#[test]
fn only_a_running_receiver_waits_for_its_notification() {
    let mut still = running_pair();
    let policy = policy(Config {
        notify_interval_us: 100,
        ..Config::default()
    });
    assert_eq!(policy.notify(&still, VnicId(1), 950_000), Notify::At(1_050_000));
    assert_eq!(policy.notify(&still, VnicId(1), 900_000), Notify::Now);
    still.vcpus[1] = VcpuState::Blocked(Cpu(2));
    assert_eq!(policy.notify(&still, VnicId(1), 950_000), Notify::Now);
    still.vcpus[1] = VcpuState::Unknown;
    assert_eq!(policy.notify(&still, VnicId(1), 950_000), Notify::Now);
}

#[test]
fn only_a_running_sender_waits_for_its_completions() {
    let mut still = running_pair();
    let config = Config {
        completion_interval_us: 300,
        ..Config::default()
    };
    let interval_ns =
        |still: &Still, config: &Config| policy(config.clone()).completion_interval_ns(still, VnicId(0));
    for (state, expected) in [
        (VcpuState::Running(Cpu(0)), 300_000),
        (VcpuState::Runnable(Cpu(0)), 300_000),
        (VcpuState::Blocked(Cpu(0)), 0),
        (VcpuState::Unknown, 0),
    ] {
        still.vcpus[0] = state;
        assert_eq!(interval_ns(&still, &config), expected, "{state:?}");
    }
    still.vcpus[0] = VcpuState::Running(Cpu(0));
    let batching_off = Config {
        state_aware_batching: false,
        ..config.clone()
    };
    let polling = Config {
        mode: Mode::Poll,
        ..config
    };
    assert_eq!(interval_ns(&still, &batching_off), 0);
    assert_eq!(interval_ns(&still, &polling), 0);
}

#[test]
fn only_a_sender_that_blocked_has_to_kick_at_once() {
    let mut still = running_pair();
    let batching = policy(Config {
        kick_interval_us: 70,
        ..Config::default()
    });
    assert_eq!(batching.leave(&still, VnicId(0)), Kicks::OffUntil(1_070_000));
    still.vcpus[0] = VcpuState::Blocked(Cpu(0));
    assert_eq!(batching.leave(&still, VnicId(0)), Kicks::On);
    still.vcpus[0] = VcpuState::Unknown;
    assert_eq!(batching.leave(&still, VnicId(0)), Kicks::On);
    let eager = policy(Config {
        kick_interval_us: 0,
        ..Config::default()
    });
    assert_eq!(eager.leave(&running_pair(), VnicId(0)), Kicks::On);
}

#[test]
fn helpers_poll_the_rings_of_their_node() {
    let still = running_pair();
    let near = policy(Config::default());
    assert!(near.polls(&still, Cpu(7), VnicId(0)));
    assert!(!near.polls(&still, Cpu(8), VnicId(0)));
    let far = policy(Config {
        other_nodes: true,
        ..Config::default()
    });
    assert!(far.polls(&still, Cpu(8), VnicId(0)));
    let never = policy(Config {
        poll_transmit: false,
        ..Config::default()
    });
    assert!(!never.polls(&still, Cpu(7), VnicId(0)));
}

#[test]
fn helpers_give_way_and_owners_finish() {
    let mut still = running_pair();
    let eager = policy(Config::default());
    assert!(!eager.must_give_way(&still, Cpu(6), Duty::Helping));
    still.wanted[6] = true;
    assert!(eager.must_give_way(&still, Cpu(6), Duty::Helping));
    assert!(!eager.must_give_way(&still, Cpu(6), Duty::Own));
    let stubborn = policy(Config {
        give_way: false,
        ..Config::default()
    });
    assert!(!stubborn.must_give_way(&still, Cpu(6), Duty::Helping));
}

#[test]
fn copying_comes_before_switching_and_blocked_senders_first() {
    let still = opteron(VcpuState::Blocked(Cpu(0)), VcpuState::Running(Cpu(2)));
    let rank = |work| policy(Config::default()).rank(&still, work);
    assert_eq!(rank(Work::Switch(VnicId(0))), Rank::Blocked);
    assert!(rank(Work::Switch(VnicId(0))) < rank(Work::Copy(VnicId(1))));
    assert!(rank(Work::Copy(VnicId(1))) < rank(Work::Switch(VnicId(1))));
    assert_eq!(rank(Work::Copy(VnicId(0))), Rank::Copy);
}

#[test]
fn rings_are_served_when_vcpus_block_only_where_states_are_known_and_if_wanted() {
    let mut still = opteron(VcpuState::Blocked(Cpu(0)), VcpuState::Unknown);
    still.cores[0] = POLLING;
    let serves = |config| {
        let policy = policy(config);
        let serves = policy.serves_on_block();
        assert_eq!(policy.on_block(&still, Cpu(0)).is_some(), serves);
        assert_eq!(
            policy.rank(&still, Work::Switch(VnicId(0))) == Rank::Blocked,
            serves
        );
        serves
    };
    assert!(serves(Config::default()));
    assert!(!serves(Config {
        mode: Mode::Poll,
        ..Config::default()
    }));
    assert!(!serves(Config {
        serve_on_block: false,
        ..Config::default()
    }));
    assert!(!serves(Config {
        vm_state: false,
        ..Config::default()
    }));
}

#[test]
fn modes_for_comparison_do_not_choose() {
    let still = running_pair();
    for (mode, linger) in [(Mode::Poll, None), (Mode::DriverDomain, Some(0))] {
        let policy = policy(Config {
            mode,
            dedicated_cores: vec![3, 5, 11, 99],
            ..Config::default()
        });
        assert_eq!(policy.dedicated(), [Cpu(3), Cpu(5), Cpu(11)]);
        assert_eq!(policy.switcher(&still, VnicId(0)), WorkerId::Core(Cpu(3)));
        let copier_at = |here| policy.copier(&still, Cpu(here), VnicId(1), WORTH_IT).copier;
        let elsewhere = if mode == Mode::Poll {
            Copier::Here
        } else {
            Copier::Offload(WorkerId::Core(Cpu(5)))
        };
        assert_eq!(copier_at(3), elsewhere);
        assert_eq!(copier_at(5), Copier::Here);
        assert_eq!(policy.linger_ns(), linger);
        assert_eq!(policy.copies_twice(), mode == Mode::DriverDomain);
    }
    let threads = policy(Config {
        mode: Mode::ThreadPerVnic,
        ..Config::default()
    });
    assert_eq!(threads.switcher(&still, VnicId(0)), WorkerId::Thread(VnicId(0)));
    let copier = threads.copier(&still, Cpu(0), VnicId(1), WORTH_IT).copier;
    assert_eq!(copier, Copier::Offload(WorkerId::Thread(VnicId(1))));
    assert!(threads.dedicated().is_empty());
}

#[test]
fn without_dedicated_cores_it_is_the_last_of_each_node() {
    let policy = policy(Config {
        mode: Mode::Poll,
        ..Config::default()
    });
    assert_eq!(policy.dedicated(), [Cpu(7), Cpu(15), Cpu(23), Cpu(31)]);
}

#[test]
fn dedicated_cores_are_dealt_out_in_turn() {
    let policy = policy(Config {
        mode: Mode::Poll,
        dedicated_cores: vec![6, 7, 14, 15, 22, 23, 30, 31],
        ..Config::default()
    });
    let dealt = |vcpu| {
        let mut still = running_pair();
        still.vcpus = vec![vcpu; 10];
        (0..10)
            .map(|vnic| core(policy.switcher(&still, VnicId(vnic))).0)
            .collect::<Vec<_>>()
    };
    // Four nodes get vNICs in turn, so that every fourth is this one's.
    assert_eq!(
        dealt(VcpuState::Running(Cpu(8))),
        [14, 14, 14, 14, 15, 15, 15, 15, 14, 14]
    );
    assert_eq!(dealt(VcpuState::Unknown), [6, 7, 14, 15, 22, 23, 30, 31, 6, 7]);
}

#[test]
fn a_worker_that_polls_on_the_receivers_core_serves_it() {
    let mut still = opteron(VcpuState::Running(Cpu(0)), VcpuState::Blocked(Cpu(2)));
    still.cores[0] = CoreState::Guest;
    still.cores[2] = POLLING;
    let policy = policy(Config::default());
    let one = Backlog {
        packets: 1,
        bytes: 64,
    };
    let plan = policy.copier(&still, Cpu(0), VnicId(1), one);
    let there = Copier::Offload(WorkerId::Core(Cpu(2)));
    assert_eq!(
        plan,
        CopyPlan {
            now: 0,
            copier: there
        }
    );
    // A stream, or the worker's own packet, or without offloading.
    let stream = |bytes| {
        let queued = Backlog { packets: 1, bytes };
        policy.copier(&still, Cpu(0), VnicId(1), queued).now
    };
    assert_eq!([8191, 8192].map(stream), [0, 1]);
    assert_eq!(policy.copier(&still, Cpu(2), VnicId(1), one).now, 1);
    let alone = self::policy(Config {
        offload: false,
        ..Config::default()
    });
    assert_eq!(alone.copier(&still, Cpu(0), VnicId(1), one).now, 1);
    // It would have to give way.
    still.wanted[2] = true;
    assert_eq!(policy.copier(&still, Cpu(0), VnicId(1), one).now, 1);
}

#[test]
fn a_worker_that_expects_no_packet_soon_sleeps_at_once() {
    let policy = policy(Config::default());
    assert_eq!(policy.linger_for_ns(0), Some(50_000));
    assert_eq!(policy.linger_for_ns(50_000), Some(50_000));
    let slow = Costs {
        wake_waker_ns: 200_000,
        ..Costs::default()
    };
    let slow = Policy::new(Config::default(), Topology::regular(OPTERON), slow);
    assert_eq!(slow.linger_for_ns(100_000), Some(0));
    assert_eq!(slow.linger_for_ns(75_001), Some(0));
    assert_eq!(slow.linger_for_ns(75_000), Some(50_000));
    // 10,000 and 1,000 packets per second.
    assert_eq!(policy.linger_for_ns(100_000), Some(0));
    assert_eq!(policy.linger_for_ns(1_000_000), Some(0));
    let poll = self::policy(Config {
        mode: Mode::Poll,
        ..Config::default()
    });
    assert_eq!(poll.linger_for_ns(1_000_000), None);
}

#[test]
fn vnics_are_spread_over_equally_good_helpers() {
    let topology = Topology::regular(Shape {
        nodes: 1,
        llcs: 1,
        modules: 33,
        cpus: 1,
    });
    let policy = Policy::new(Config::default(), topology, Costs::default());
    let mut chosen = std::collections::BTreeSet::new();
    for vnic in 0..64 {
        let mut still = opteron(VcpuState::Unknown, VcpuState::Unknown);
        still.cores = vec![IDLE; 33];
        still.wanted = vec![false; 33];
        still.vcpus = vec![VcpuState::Running(Cpu(0)); 64];
        still.cores[0] = CoreState::Guest;
        let plan = policy.copier(&still, Cpu(0), VnicId(vnic), WORTH_IT);
        let Copier::Offload(id) = plan.copier else {
            panic!("{plan:?}")
        };
        chosen.insert(core(id));
    }
    assert!(chosen.len() >= 30, "{} of 32", chosen.len());
}

#[test]
fn choosing_allocates_nothing_and_is_quick() {
    let topology = Topology::regular(Shape {
        nodes: 1,
        llcs: 8,
        modules: 8,
        cpus: 1,
    });
    let policy = Policy::new(Config::default(), topology, Costs::default());
    let mut still = opteron(VcpuState::Running(Cpu(0)), VcpuState::Running(Cpu(1)));
    // The worst case: no helper anywhere, so that every core is looked at.
    still.cores = vec![CoreState::Guest; 64];
    still.wanted = vec![false; 64];
    let mut times: Vec<u128> = Vec::with_capacity(1000);
    let allocated = allocation_counter::measure(|| {
        for _ in 0..1000 {
            let start = std::time::Instant::now();
            std::hint::black_box(policy.copier(&still, Cpu(0), VnicId(1), WORTH_IT));
            times.push(start.elapsed().as_nanos());
        }
    });
    assert_eq!(allocated.count_total, 0);
    times.sort_unstable();
    println!("median of choosing among 64 CPUs: {} ns", times[500]);
    // An unoptimised build takes several times longer than the product's.
    let limit = if cfg!(debug_assertions) { 20_000 } else { 1_000 };
    assert!(times[500] < limit, "{} ns", times[500]);
}

fn cpu_below(count: u16) -> impl Strategy<Value = Cpu> {
    (0..count).prop_map(Cpu)
}

fn core_state() -> impl Strategy<Value = CoreState> {
    prop_oneof![
        3 => Just(CoreState::Idle),
        2 => (0..4u16, any::<bool>()).prop_map(|(depth, polling)| CoreState::Worker { depth, polling }),
        1 => Just(CoreState::Guest),
        1 => Just(CoreState::Other),
    ]
}

fn vcpu_state(count: u16) -> impl Strategy<Value = VcpuState> {
    prop_oneof![
        cpu_below(count).prop_map(VcpuState::Running),
        cpu_below(count).prop_map(VcpuState::Runnable),
        cpu_below(count).prop_map(VcpuState::Blocked),
        Just(VcpuState::Unknown),
    ]
}

prop_compose! {
    fn config()(switches in any::<[bool; 6]>(), copy_limit in 1..20u32) -> Config {
        let [vm_state, offload, busy_modules, other_nodes, preemptive_copy, serve_on_block] = switches;
        let default = Config::default();
        Config { vm_state, offload, busy_modules, other_nodes, preemptive_copy, serve_on_block, copy_limit, ..default }
    }
}

#[derive(Clone, Debug)]
struct Scene {
    shape: Shape,
    allowed: Vec<bool>,
    still: Still,
    config: Config,
    here: Cpu,
    queued: Backlog,
}

fn scene() -> impl Strategy<Value = Scene> {
    let shape = (1..4u16, 1..3u16, 1..4u16, 1..3u16).prop_map(|(nodes, llcs, modules, cpus)| Shape {
        nodes,
        llcs,
        modules,
        cpus,
    });
    shape.prop_flat_map(|shape| {
        let count = shape.nodes * shape.llcs * shape.modules * shape.cpus;
        let of_each = usize::from(count);
        (
            proptest::collection::vec(core_state(), of_each),
            proptest::collection::vec(any::<bool>(), of_each),
            proptest::collection::vec(proptest::bool::weighted(0.8), of_each),
            proptest::collection::vec(vcpu_state(count), 6),
            proptest::option::weighted(0.2, cpu_below(count)),
            proptest::collection::vec(cpu_below(count), 0..3),
            proptest::collection::vec(cpu_below(count), 0..3),
            cpu_below(count),
            (0..100u32, 0..200_000u64),
            config(),
        )
            .prop_map(
                move |(
                    cores,
                    wanted,
                    allowed,
                    vcpus,
                    copying,
                    expects,
                    contended,
                    here,
                    (packets, bytes),
                    config,
                )| {
                    Scene {
                        shape,
                        allowed,
                        still: Still {
                            cores,
                            wanted,
                            vcpus,
                            copying,
                            expects,
                            contended,
                        },
                        config,
                        here,
                        queued: Backlog { packets, bytes },
                    }
                },
            )
    })
}

impl Scene {
    fn topology(&self) -> Topology {
        Topology::regular(self.shape).restricted(|cpu| self.allowed[usize::from(cpu.0)])
    }

    fn policy(&self) -> Policy {
        Policy::new(self.config.clone(), self.topology(), Costs::default())
    }

    /// The state as far as the policy may know it.
    fn core(&self, cpu: Cpu) -> CoreState {
        match self.still.core(cpu) {
            CoreState::Worker { depth, polling } => CoreState::Worker { depth, polling },
            state if self.config.vm_state => state,
            _ => CoreState::Other,
        }
    }

    /// The helper by its definition: all cores, sorted by how good they are.
    fn twin_of_helper(&self, near: Cpu, vnic: VnicId, saved_ns: u64) -> Option<Cpu> {
        let Shape {
            nodes,
            llcs,
            modules,
            cpus,
        } = self.shape;
        let full = Topology::regular(self.shape);
        let hash = u64::from(vnic.0.wrapping_mul(0x9E37_79B9));
        let module_of = |cpu: Cpu| cpu.0 / cpus;
        let llc_of = |cpu: Cpu| module_of(cpu) / modules;
        let node_of = |cpu: Cpu| llc_of(cpu) / llcs;
        let tier = |cpu: Cpu| match () {
            () if module_of(cpu) == module_of(near) => 1,
            () if llc_of(cpu) == llc_of(near) => 0,
            () if node_of(cpu) == node_of(near) => 2,
            () => 3,
        };
        let place = |cpu: Cpu| {
            let all = 0..nodes * llcs * modules;
            let tier_of: Vec<u16> = all
                .filter(|module| tier(Cpu(module * cpus)) == tier(cpu))
                .collect();
            let own = tier_of
                .iter()
                .position(|number| *number == module_of(cpu))
                .unwrap();
            let start = (hash * tier_of.len() as u64 / (1 << 32)) as usize;
            (tier(cpu), (own + tier_of.len() - start) % tier_of.len(), cpu)
        };
        let may_wake = saved_ns > Costs::default().wake_waker_ns;
        let rests = |cpu: &Cpu| self.core(*cpu) == IDLE && !self.still.expects.contains(cpu);
        let has_idle_module = |cpu: Cpu| {
            let others = full.module(cpu).iter().filter(|other| **other != cpu);
            !self.still.expects.contains(&cpu) && others.into_iter().all(rests)
        };
        let kind = |cpu: Cpu| match self.core(cpu) {
            CoreState::Idle if !may_wake => None,
            CoreState::Idle if full.module(cpu).iter().all(rests) => Some(2),
            CoreState::Idle if !self.config.busy_modules => None,
            CoreState::Idle if rests(&cpu) => Some(3),
            CoreState::Idle => Some(5),
            POLLING if !self.still.wanted(cpu) && (self.config.busy_modules || has_idle_module(cpu)) => {
                Some(1)
            }
            CoreState::Worker { .. } | CoreState::Guest | CoreState::Other => None,
        };
        let reach = |cpu: Cpu| full.reach(cpu, near);
        let all = (0..nodes * llcs * modules * cpus).map(Cpu);
        let able = all.filter(|cpu| *cpu != self.here && *cpu != near && self.allowed[usize::from(cpu.0)]);
        let here = self.here;
        let works = matches!(self.core(here), CoreState::Worker { .. });
        let helps = works && here != near && !self.still.wanted(here) && has_idle_module(here);
        let far_too = self.config.other_nodes && !(helps && reach(here) != Reach::OtherNode);
        let near_enough = able.filter(|cpu| far_too || reach(*cpu) != Reach::OtherNode);
        let mut in_order: Vec<Cpu> = near_enough.filter(|_| self.config.offload).collect();
        in_order.sort_by_key(|cpu| (reach(*cpu), place(*cpu)));
        // Only the first few that poll, and the first few that are idle, are looked at in each reach.
        let mut looks: BTreeMap<(Reach, bool), u32> = BTreeMap::new();
        in_order.retain(|cpu| {
            let polls = matches!(self.core(*cpu), CoreState::Worker { polling: true, .. });
            if !polls && self.core(*cpu) != IDLE {
                return false;
            }
            let looked = looks.entry((reach(*cpu), polls)).or_default();
            *looked += 1;
            *looked <= 8
        });
        let helpers = in_order
            .into_iter()
            .filter_map(|cpu| Some((reach(cpu), kind(cpu)?, place(cpu))));
        helpers.min().map(|(.., (.., cpu))| cpu)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn helpers_are_those_of_the_twin(scene in scene(), vnic in 0..6u32) {
        let vnic = VnicId(vnic);
        let near = match scene.still.vcpu(vnic) {
            _ if !scene.config.vm_state => return Ok(()),
            VcpuState::Running(cpu) | VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu) => cpu,
            VcpuState::Unknown => return Ok(()),
        };
        let costs = Costs::default();
        let saved = u64::from(scene.queued.packets) * costs.copy_packet_ns + scene.queued.bytes / 1024 * costs.copy_kib_ns;
        let successor = core(scene.policy().successor(&scene.still, scene.here, vnic, scene.queued));
        match scene.twin_of_helper(near, vnic, saved) {
            Some(helper) => prop_assert_eq!(successor, helper),
            None if scene.allowed[usize::from(near.0)] => prop_assert_eq!(successor, near),
            None => {}
        }
    }

    #[test]
    fn work_goes_to_allowed_cores_that_nobody_uses(scene in scene(), vnic in 0..6u32) {
        let (vnic, policy) = (VnicId(vnic), scene.policy());
        let allowed: Vec<Cpu> = scene.topology().usable().collect();
        let free = |cpu: Cpu| match scene.core(cpu) {
            CoreState::Idle => true,
            POLLING => !scene.still.wanted(cpu),
            CoreState::Worker { .. } => false,
            CoreState::Guest | CoreState::Other => false,
        };
        let own = |vnic| match scene.still.vcpu(vnic) {
            VcpuState::Running(cpu) | VcpuState::Runnable(cpu) | VcpuState::Blocked(cpu) => Some(cpu),
            VcpuState::Unknown => None,
        };
        let plan = policy.copier(&scene.still, scene.here, vnic, scene.queued);
        prop_assert!(plan.now <= scene.queued.packets);
        if let Copier::Offload(id) = plan.copier {
            let cpu = core(id);
            prop_assert!(cpu != scene.here);
            prop_assert!(allowed.is_empty() || allowed.contains(&cpu));
            let receivers = scene.config.other_nodes && own(vnic).is_none_or(|own| own == cpu || !allowed.contains(&own));
            prop_assert!(free(cpu) || !scene.config.preemptive_copy || receivers);
        }
        let switcher = core(policy.switcher(&scene.still, vnic));
        prop_assert!(allowed.is_empty() || allowed.contains(&switcher));
        let home = own(vnic).filter(|cpu| allowed.contains(cpu));
        if scene.config.vm_state && home.is_some_and(|cpu| cpu != switcher) {
            prop_assert!(free(switcher), "{switcher:?} is {:?}", scene.core(switcher));
        }
    }

    #[test]
    fn notifications_are_delayed_by_an_interval_at_most(scene in scene(), vnic in 0..6u32, last in 0..2_000_000u64) {
        let policy = scene.policy();
        let interval = u64::from(scene.config.notify_interval_us) * 1000;
        if let Notify::At(due) = policy.notify(&scene.still, VnicId(vnic), last) {
            prop_assert!(scene.still.now_ns() < due && due <= last + interval);
            prop_assert!(matches!(scene.still.vcpu(VnicId(vnic)), VcpuState::Running(_)));
        }
    }
}
