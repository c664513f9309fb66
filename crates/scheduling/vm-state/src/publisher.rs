//! The privileged process loads the programs, and keeps them attached.

use crate::area::Area;
use crate::btf::Btf;
use crate::kernel;
use crate::program::{Kernel, LICENSE, Tracepoint};
use crate::state::{CoreState, Registry};
use ebpf::Purpose;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::io;
use std::time::Duration;

/// Why the states are not published. The text is for users.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The kernel has no BTF, or BTF in a form that is not understood.
    #[error("the kernel has no type information in {path}: {0}", path = kernel::BTF)]
    NoTypes(io::Error),
    /// The kernel has no such field, variable or tracepoint.
    #[error("this kernel is not known: it has no {0}")]
    UnknownKernel(String),
    /// The kernel refuses eBPF to this process.
    #[error("no privilege for eBPF: CAP_BPF and CAP_PERFMON are needed")]
    NoPrivilege,
    /// The kernel refuses a step.
    #[error("cannot {0}: {1}")]
    Refused(&'static str, io::Error),
    /// The programs would run, but count threads by other numbers than this process sees.
    #[error("threads are not seen under the numbers that /proc has for them (a PID name space?)")]
    OtherNumbers,
}

fn refused(what: &'static str) -> impl Fn(io::Error) -> Unavailable {
    move |error| match error.kind() {
        io::ErrorKind::PermissionDenied => Unavailable::NoPrivilege,
        _ => Unavailable::Refused(what, error),
    }
}

/// The programs, attached as long as this exists.
#[derive(Debug)]
pub struct Publisher {
    map: OwnedFd,
    _links: Vec<OwnedFd>,
}

impl Publisher {
    /// Loads and attaches the programs. Takes some 10 ms, and runs for a moment on each core that it may run
    /// on, so that each becomes known.
    ///
    /// # Errors
    /// See [`Unavailable`]; nothing is left behind then.
    pub fn attach() -> Result<Publisher, Unavailable> {
        let types = std::fs::read(kernel::BTF).map_err(Unavailable::NoTypes)?;
        let unreadable = || Unavailable::NoTypes(io::ErrorKind::InvalidData.into());
        let btf = Btf::parse(&types).ok_or_else(unreadable)?;
        let fields = Kernel::of(&btf)?;
        let map =
            ebpf::create_mappable(kernel::NAME, size_of::<Area>()).map_err(refused("create a BPF map"))?;
        let number = rustix::fd::AsRawFd::as_raw_fd(&map);
        let mut links = Vec::new();
        for tracepoint in Tracepoint::ALL {
            let name = tracepoint.type_name();
            let id = btf
                .typedef(name)
                .ok_or_else(|| Unavailable::UnknownKernel(name.into()))?;
            let program = ebpf::load(
                &tracepoint.program(fields, number),
                LICENSE,
                kernel::NAME,
                Purpose::Tracepoint(id),
            )
            .map_err(refused("load an eBPF program"))?;
            links.push(
                ebpf::attach_to_tracepoint(program.as_fd()).map_err(refused("attach an eBPF program"))?,
            );
        }
        let publisher = Publisher { map, _links: links };
        let registry = Registry::map(publisher.area()).map_err(refused("map BPF memory"))?;
        // A thread of its own, whose affinity ends with it.
        let seen = std::thread::spawn(move || visit_cores(&registry)).join();
        match seen {
            Ok(Ok(true)) => Ok(publisher),
            Ok(Ok(false)) | Err(_) => Err(Unavailable::OtherNumbers),
            Ok(Err(error)) => Err(Unavailable::Refused("visit the cores", error)),
        }
    }

    /// The shared memory, for [`VmState`](crate::VmState) and [`Registry`].
    #[must_use]
    pub fn area(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// Most visits to a core: a single switch may go unseen.
const VISITS: usize = 10;

/// Has each core switch to the calling thread; false if that was not seen.
fn visit_cores(registry: &Registry) -> io::Result<bool> {
    let tid = gettid().as_raw_nonzero().get().cast_unsigned();
    let Some(slot) = registry.add(tid) else {
        return Ok(false);
    };
    let cores = sched_getaffinity(None)?;
    let mut seen = true;
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| cores.is_set(*cpu)) {
        let mut only = CpuSet::new();
        only.set(cpu);
        if sched_setaffinity(None, &only).is_err() {
            // Taken offline just now.
            continue;
        }
        let cpu = u32::try_from(cpu).unwrap_or(u32::MAX);
        seen &= (0..VISITS).any(|_| {
            // A thread that is on the core already has to leave it once, so that its coming back is an event.
            std::thread::sleep(Duration::from_micros(1));
            matches!(registry.core(cpu), CoreState::Vcpu(found) if found == slot)
        });
    }
    registry.remove(slot);
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::Kind;
    use crate::kernel::Mapping;
    use crate::state::ThreadState;
    use rustix::event::{EventfdFlags, eventfd};
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::mpsc;
    use std::time::Instant;

    /// Whatever was published of a thread before, it is seen to be blocked when it goes to sleep.
    #[test]
    fn what_went_unseen_is_made_good() {
        // Without the privilege there is nothing to try.
        let Ok(publisher) = Publisher::attach() else {
            return;
        };
        let registry = Registry::map(publisher.area()).unwrap();
        let area = Mapping::new(publisher.area(), true).unwrap();
        let (orders, to_sleeper) = mpsc::channel::<u32>();
        let (answers, from_sleeper) = mpsc::channel();
        std::thread::scope(|scope| {
            let (registry, area) = (&registry, &area);
            scope.spawn(move || {
                let tid = gettid().as_raw_nonzero().get().cast_unsigned();
                let slot = registry.add(tid).unwrap();
                for wrong in to_sleeper {
                    area.thread(slot).unwrap().state.store(wrong, SeqCst);
                    answers.send(slot).unwrap();
                }
            });
            for wrong in [Kind::Runnable, Kind::Blocked, Kind::Dead] {
                // A core on which it is not, whichever it is on.
                orders.send(wrong.word() | 1023).unwrap();
                let slot = from_sleeper.recv().unwrap();
                let end = Instant::now() + Duration::from_secs(10);
                while !matches!(registry.thread(slot), ThreadState::Blocked(core) if core != 1023) {
                    assert!(Instant::now() < end, "{wrong:?} {:?}", registry.thread(slot));
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            drop(orders);
        });
    }

    /// Repeats `cause` until `seen`, or for too long.
    fn until(mut cause: impl FnMut(), seen: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            cause();
            if seen() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn the_thread_that_an_eventfd_wakes_is_published() {
        let Ok(publisher) = Publisher::attach() else {
            return;
        };
        let registry = Registry::map(publisher.area()).unwrap();
        let state = crate::VmState::map(publisher.area()).unwrap();
        let call = Arc::new(eventfd(0, EventfdFlags::empty()).unwrap());
        let (tell, told) = mpsc::channel();
        let receiver = {
            let call = call.clone();
            std::thread::spawn(move || {
                tell.send(gettid().as_raw_nonzero().get().cast_unsigned())
                    .unwrap();
                let mut count = [0; 8];
                // Until it gets the largest count.
                while rustix::io::read(&call, &mut count).is_ok() && u64::from_ne_bytes(count) < 1 << 32 {}
            })
        };
        let slot = registry.add(told.recv().unwrap()).unwrap();
        let allowed = sched_getaffinity(None).unwrap();
        let here = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
        let mut only = CpuSet::new();
        only.set(here);
        sched_setaffinity(None, &only).unwrap();
        let woken = Cell::new(None);
        let wake = || {
            let before = state.woken(here as u32);
            rustix::io::write(&call, &1u64.to_ne_bytes()).unwrap();
            woken.set(state.woken_since(here as u32, before));
        };
        assert!(until(wake, || woken.get() == Some(slot)));
        sched_setaffinity(None, &allowed).unwrap();
        rustix::io::write(&call, &(1u64 << 32).to_ne_bytes()).unwrap();
        receiver.join().unwrap();
    }

    #[test]
    fn who_woke_and_how_long_it_took_is_published() {
        let Ok(publisher) = Publisher::attach() else {
            return;
        };
        let registry = Registry::map(publisher.area()).unwrap();
        let state = crate::VmState::map(publisher.area()).unwrap();
        let me = registry
            .add(gettid().as_raw_nonzero().get().cast_unsigned())
            .unwrap();
        let cores = 0..CpuSet::MAX_CPU as u32;
        // A sleeper on each core: to wake one on an idle core is left to that.
        let allowed = sched_getaffinity(None).unwrap();
        for core in (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)) {
            let (wake, woken) = mpsc::channel::<()>();
            let sleeper = std::thread::spawn(move || {
                let mut only = CpuSet::new();
                only.set(core);
                sched_setaffinity(None, &only).unwrap();
                while woken.recv().is_ok() {}
            });
            let seen = || state.waker(core as u32) == Some(me);
            assert!(until(|| wake.send(()).unwrap(), seen), "who woke on {core}");
            drop(wake);
            sleeper.join().unwrap();
        }
        registry.remove(me);
        assert!(cores.clone().all(|core| state.waker(core).is_none()));

        let sleep = || {
            let mut batch = std::process::Command::new("chrt");
            let status = batch.args(["--batch", "0", "sleep", "0.001"]).status();
            assert!(status.unwrap().success());
        };
        let seen = || cores.clone().any(|core| state.waited_ns(core) > 0);
        assert!(until(sleep, seen), "how long it took");
    }
}
