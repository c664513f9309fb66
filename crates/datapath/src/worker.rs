//! Worker threads: asleep until a ring is kicked or a port is named, and then forwarding until there is nothing
//! left to do. After its last packet a worker polls the rings it served for a short while before it sleeps, giving
//! way to anybody who wants its core; their guests need not kick meanwhile. All workers wait on the same epoll
//! instance, so that a wake-up finds an idle one by itself; which worker serves which ring is settled by claims.

use crate::pipeline::Pipeline;
use crate::state::{Datapath, Side, Wakeup};
use crate::watchdog::{Pulse, Watchdog};
use crate::work::Work;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Things done between looks at new wake-ups, so that a busy port does not hide others' kicks.
const STEPS: usize = 16;

/// How long a worker stays awake and polls after its last packet (Hyper-Switch 3.4, "Hysteresis"). Waking it
/// again would take about 20 us, and 10 us of the waker's time, which is a guest's.
const HYSTERESIS: Duration = Duration::from_micros(50);

/// Starts `count` workers, which end soon after `ending` is set.
pub(crate) fn start(
    datapath: &Arc<Datapath>,
    count: usize,
    watchdog: &Arc<Watchdog>,
    ending: &Arc<AtomicBool>,
) -> std::io::Result<()> {
    for number in 0..count {
        let (datapath, watchdog, ending) = (datapath.clone(), watchdog.clone(), ending.clone());
        let name = format!("worker-{number}");
        std::thread::Builder::new().name(name.clone()).spawn(move || {
            let account = datapath.work.open(&name);
            work(Pipeline::new(datapath), &account, &Pulse::new(&watchdog), &ending);
        })?;
    }
    Ok(())
}

fn work(mut pipeline: Pipeline, account: &Work, pulse: &Pulse, ending: &AtomicBool) {
    while !ending.load(Ordering::Relaxed) {
        let busy = (0..STEPS).all(|_| {
            pulse.beat();
            account.run(&mut pipeline, Pipeline::step) || linger(&mut pipeline, account)
        });
        let timeout = if busy { Some(0) } else { pipeline.next_deadline() };
        if timeout == Some(0) {
            account.awake();
            wait(&mut pipeline, account, timeout);
        } else {
            pipeline.rest();
            account.asleep(|| pulse.asleep(|| wait(&mut pipeline, account, timeout)));
        }
    }
}

/// Polls for a while; true if there is something to do again. Other threads that want this core get it.
fn linger(pipeline: &mut Pipeline, account: &Work) -> bool {
    if !pipeline.is_polling() {
        return false;
    }
    let start = Instant::now();
    while start.elapsed() < HYSTERESIS {
        account.polled();
        if pipeline.poll() {
            return true;
        }
        rustix::thread::sched_yield();
    }
    pipeline.stop_polling()
}

/// Waits for wake-ups and puts them on the to-do list; true if there were any.
fn wait(pipeline: &mut Pipeline, account: &Work, timeout_ms: Option<u64>) -> bool {
    let datapath = pipeline.datapath.clone();
    let result = datapath.wakeups.wait(timeout_ms, |wakeup| match wakeup {
        Wakeup::Kick(id, side) => {
            account.kicked();
            if let Some(port) = datapath.port(id) {
                port.vnic.account.kicks.fetch_add(1, Ordering::Relaxed);
            }
            pipeline.later(id, side);
        }
        Wakeup::Doorbell => look_at_named(pipeline),
    });
    result.unwrap_or_else(|error| {
        // Cannot happen with a valid descriptor; not to spin if it does.
        log::error!("waiting for work: {error}");
        std::thread::sleep(Duration::from_millis(100));
        false
    })
}

fn look_at_named(pipeline: &mut Pipeline) {
    let datapath = pipeline.datapath.clone();
    for id in datapath.wakeups.take_named() {
        if let Some(port) = datapath.port(id) {
            // Cleared before looking: who names the port after this finds it unnamed.
            port.named.store(false, Ordering::Release);
        }
        pipeline.later(id, Side::Transmit);
        pipeline.later(id, Side::Receive);
    }
}
