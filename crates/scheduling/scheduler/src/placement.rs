//! The placement policy on this machine: the executors that it chooses from, and its view of cores and vCPUs.
//!
//! Without knowledge of cores and vCPUs there is nothing to choose from: then workers float, as the operating
//! system likes, and share one executor. With it, or in a mode that assigns work to threads, each worker has
//! its core and its executor, and each vNIC a home: the executor that receives its guest's kicks.

use crate::executor::{Activity, Executor, PollingCores};
use crate::home::{Home, Homes};
use crate::idle_core::IdleCore;
use parking_lot::Mutex;
use placement::{CoreState, Cpu, Mode, Policy, VcpuState, View, VnicId};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vm_state::{Slot, ThreadState, VmState};

/// See the module's description.
pub struct Placement {
    /// The policy.
    pub policy: Policy,
    facts: Option<VmState>,
    /// The executors: one per worker, or one for all if workers float.
    workers: Vec<Arc<Executor>>,
    /// The worker of each core.
    by_cpu: Vec<Option<Arc<Executor>>>,
    polling: Arc<PollingCores>,
    /// Constraints on the resume latency of cores, until their workers take them.
    constraints: Mutex<BTreeMap<Cpu, OwnedFd>>,
    start: Instant,
}

impl Placement {
    /// Executors for the cores on which the policy may work. `facts` is the published state of cores and
    /// threads.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new(policy: Policy, facts: Option<VmState>) -> std::io::Result<Placement> {
        let cpus = match policy.config().mode {
            Mode::Hyperswitch if facts.is_some() && policy.config().vm_state => policy.cpus().to_vec(),
            Mode::Poll | Mode::DriverDomain => policy.dedicated().to_vec(),
            Mode::Hyperswitch | Mode::ThreadPerVnic => Vec::new(),
        };
        let mut by_cpu: Vec<Option<Arc<Executor>>> = Vec::new();
        let mut workers = Vec::new();
        let polling = Arc::new(PollingCores::new(cpus.iter().copied()));
        for cpu in cpus {
            let executor = Arc::new(Executor::on(cpu, polling.clone())?);
            let index = usize::from(cpu.0);
            by_cpu.resize(by_cpu.len().max(index + 1), None);
            by_cpu[index] = Some(executor.clone());
            workers.push(executor);
        }
        if workers.is_empty() {
            workers.push(Arc::new(Executor::new()?));
        }
        Ok(Placement {
            policy,
            facts,
            workers,
            by_cpu,
            polling,
            constraints: Mutex::default(),
            start: Instant::now(),
        })
    }

    /// Lends the files with the constraints on cores' resume latency.
    #[must_use]
    pub fn with_constraints(self, files: impl IntoIterator<Item = (Cpu, OwnedFd)>) -> Placement {
        self.constraints.lock().extend(files);
        self
    }

    /// The idle core of a worker, if it may be kept from halting. To be called by one thread.
    pub(crate) fn take_idle_core(&self, cpu: Cpu) -> Option<IdleCore> {
        let file = self.constraints.lock().remove(&cpu)?;
        let config = self.policy.config();
        let bound = Duration::from_micros(config.idle_poll_us.into());
        (self.knows_vcpus() && config.may_idle_poll()).then(|| IdleCore::new(file, bound))
    }

    /// The executors of workers. Each has one thread; an executor without a core may have any number.
    pub(crate) fn workers(&self) -> &[Arc<Executor>] {
        &self.workers
    }

    /// Whether workers float: the one that was woken does the work.
    pub(crate) fn floats(&self) -> bool {
        self.by_cpu.is_empty() && !self.has_threads()
    }

    /// Whether each vNIC has a thread of its own.
    pub fn has_threads(&self) -> bool {
        self.policy.config().mode == Mode::ThreadPerVnic
    }

    /// Whether the states of vCPUs are known.
    pub(crate) fn knows_vcpus(&self) -> bool {
        self.facts.is_some() && !self.by_cpu.is_empty() && self.policy.config().mode == Mode::Hyperswitch
    }

    /// The states of cores and vCPUs, if workers that are woken wait for vCPUs.
    pub(crate) fn waits_for_vcpus(&self) -> Option<&VmState> {
        let waits = self.knows_vcpus() && self.policy.serves_on_block();
        self.facts.as_ref().filter(|_| waits)
    }

    /// The state of a vNIC's guest, if anything is known of it.
    pub fn guest(&self, home: &Home) -> Option<ThreadState> {
        let facts = self.facts.as_ref()?;
        Some(home.with_threads(|threads| facts.guest(threads)))
    }

    /// The state of one of a guest's threads.
    fn thread(&self, slot: Slot) -> Option<ThreadState> {
        let state = self.facts.as_ref()?.thread(slot);
        Some(state).filter(|state| !matches!(state, ThreadState::Dead | ThreadState::Unknown))
    }

    /// Remembers which thread of a vNIC's guest kicked: the kick has just woken the worker of this core.
    pub(crate) fn note_kicker(&self, home: &Home, here: Cpu) {
        if let Some(slot) = self.facts.as_ref().and_then(|facts| facts.waker(here.0.into())) {
            home.kicked_by(slot);
        }
    }

    /// Calls a vNIC's driver, on this core, and remembers which of its guest's threads was woken by that.
    pub(crate) fn interrupt(&self, home: &Home, here: Cpu, call: impl FnOnce()) {
        let Some(facts) = self.facts.as_ref().filter(|_| home.is_of_several()) else {
            return call();
        };
        let cpu = here.0.into();
        let before = facts.woken(cpu);
        call();
        if let Some(slot) = facts.woken_since(cpu, before) {
            home.interrupted(slot);
        }
    }

    /// The executor that receives the kicks of a vNIC.
    pub fn executor_of(&self, home: &Home) -> Arc<Executor> {
        if self.floats() {
            return self.workers[0].clone();
        }
        let wanted = self.policy.switcher(&self.view(home), home.vnic());
        self.find(wanted, home)
            .or_else(|| home.own().cloned())
            .unwrap_or_else(|| self.workers[0].clone())
    }

    /// The executor of a worker that the policy names.
    pub(crate) fn find(&self, executor: placement::WorkerId, homes: &impl Homes) -> Option<Arc<Executor>> {
        match executor {
            placement::WorkerId::Core(cpu) => self.by_cpu.get(usize::from(cpu.0))?.clone(),
            placement::WorkerId::Thread(vnic) => homes.home(vnic)?.own().cloned(),
        }
    }

    /// The policy's view.
    pub(crate) fn view<'a, H: Homes>(&'a self, homes: &'a H) -> MachineView<'a, H> {
        MachineView {
            placement: self,
            homes,
        }
    }

    /// Nanoseconds since start: the clock of placement and timers.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The view of the machine: plain loads.
pub(crate) struct MachineView<'a, H> {
    placement: &'a Placement,
    homes: &'a H,
}

impl<H: Homes> MachineView<'_, H> {
    /// The state of one of the guest's threads, or of the guest if that thread is not known.
    fn one_of(&self, vnic: VnicId, which: impl Fn(&Home) -> Option<Slot>) -> VcpuState {
        let known = self.homes.home(vnic).and_then(which);
        match known.and_then(|slot| self.placement.thread(slot)) {
            None => self.vcpu(vnic),
            state => vcpu_state(state),
        }
    }
}

impl<H: Homes> View for MachineView<'_, H> {
    fn now_ns(&self) -> u64 {
        self.placement.now_ns()
    }

    fn core(&self, cpu: Cpu) -> CoreState {
        let executor = self
            .placement
            .by_cpu
            .get(usize::from(cpu.0))
            .and_then(Option::as_ref);
        if let Some(executor) = executor
            && executor.activity() != Activity::Asleep
        {
            return CoreState::Worker {
                depth: executor.depth(),
                polling: executor.activity() == Activity::Polling,
            };
        }
        let state = self
            .placement
            .facts
            .as_ref()
            .map(|facts| facts.core(cpu.0.into()));
        match state {
            Some(vm_state::CoreState::Idle) => CoreState::Idle,
            Some(vm_state::CoreState::Vcpu(_)) => CoreState::Guest,
            Some(vm_state::CoreState::Task(_) | vm_state::CoreState::Unknown) | None => CoreState::Other,
        }
    }

    fn idle(&self, word: usize, among: u64) -> u64 {
        let facts = self.placement.facts.as_ref();
        facts.map_or(0, |facts| facts.idle(word, among))
    }

    fn polling(&self, word: usize, among: u64) -> u64 {
        self.placement.polling.bits(word) & among
    }

    fn wanted(&self, cpu: Cpu) -> bool {
        let facts = self.placement.facts.as_ref();
        facts.is_some_and(|facts| facts.wanted(cpu.0.into()))
    }

    fn is_contended(&self, cpu: Cpu) -> bool {
        let executor = self.placement.by_cpu.get(usize::from(cpu.0));
        executor
            .and_then(Option::as_ref)
            .is_some_and(|executor| executor.is_contended())
    }

    fn expects_vcpu(&self, cpu: Cpu) -> bool {
        let facts = self.placement.facts.as_ref();
        facts.is_some_and(|facts| facts.expects(cpu.0.into()))
    }

    fn vcpu(&self, vnic: VnicId) -> VcpuState {
        let guest = self.homes.home(vnic).and_then(|home| self.placement.guest(home));
        vcpu_state(guest)
    }

    fn sender(&self, vnic: VnicId) -> VcpuState {
        self.one_of(vnic, Home::kicker)
    }

    fn receiver(&self, vnic: VnicId) -> VcpuState {
        self.one_of(vnic, Home::interrupted_thread)
    }

    fn copying(&self, vnic: VnicId) -> Option<Cpu> {
        self.homes.home(vnic)?.copier()
    }
}

fn vcpu_state(thread: Option<ThreadState>) -> VcpuState {
    let cpu = |cpu: u32| u16::try_from(cpu).map_or(Cpu(u16::MAX), Cpu);
    match thread {
        Some(ThreadState::Running(on)) => VcpuState::Running(cpu(on)),
        Some(ThreadState::Runnable(on)) => VcpuState::Runnable(cpu(on)),
        Some(ThreadState::Blocked(on)) => VcpuState::Blocked(cpu(on)),
        Some(ThreadState::Dead | ThreadState::Unknown) | None => VcpuState::Unknown,
    }
}
