//! Forwarding threads as others see them: how they are woken, their messages, and whether they are awake.
//!
//! An [`Executor`] collects the reasons to wake up of one worker - that of a core, or of a vNIC - or of
//! several floating workers together, when nothing is known that would help to choose among them. There are
//! three: kicks, by guests' eventfds; rings posted by threads that are no workers; and messages of other
//! workers, through a fixed circular buffer (Hyper-Switch, 3.4). When the buffer is full, the sender does the
//! work itself.
//!
//! No message is lost when the worker falls asleep: see [`Mailbox`].

use crate::ring_id::RingId;
pub(crate) use lock_free::Activity;
use lock_free::{Mailbox, Receiver};
use parking_lot::Mutex;
use placement::Cpu;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Messages that an executor's buffer holds.
const MESSAGES: usize = 64;

/// Most wake-ups that are fetched at a time.
const WAKEUPS: usize = 32;

/// Most wake-ups that a thread fetches after it has slept: few, so that the kernel wakes other idle workers
/// for the others.
pub(crate) const FEW_WAKEUPS: usize = 4;

/// A ring to serve.
pub(crate) type Message = RingId;

/// See the module's description.
pub struct Executor {
    /// The core that its thread is bound to.
    pub(crate) cpu: Option<Cpu>,
    polling: Option<Arc<PollingCores>>,
    /// Whether its core is listed among the cores that poll. Only its own thread changes that.
    listed: AtomicBool,
    epoll: OwnedFd,
    doorbell: OwnedFd,
    posted: Mutex<BTreeSet<RingId>>,
    mailbox: Mailbox<Message>,
    /// The reading end, until a thread takes it. No thread does if several serve this executor.
    inbox: Mutex<Option<Receiver<Message>>>,
    contended: AtomicBool,
    /// Whether its thread was handed a ring and has not noticed.
    handed: AtomicBool,
}

/// The cores whose workers look for work, a bit each: a thread that needs a helper finds one without asking
/// all of them. A core's bit is written by its own thread only.
pub(crate) struct PollingCores(Vec<Word>);

/// 64 cores, on a cache line of their own, since the word changes whenever one of them begins or ends
/// polling.
#[repr(align(64))]
#[derive(Default)]
struct Word(AtomicU64);

impl PollingCores {
    /// The set for these cores, none of which polls.
    pub fn new(cpus: impl Iterator<Item = Cpu>) -> PollingCores {
        let words = cpus.map(|cpu| usize::from(cpu.0) / 64 + 1).max();
        PollingCores((0..words.unwrap_or(0)).map(|_| Word::default()).collect())
    }

    /// Of the cores from `64 * word` on, a bit for each that polls.
    #[inline]
    pub fn bits(&self, word: usize) -> u64 {
        self.0.get(word).map_or(0, |word| word.0.load(Ordering::Relaxed))
    }

    fn set(&self, cpu: Cpu, polls: bool) {
        let (bit, word) = (1 << (cpu.0 % 64), self.0.get(usize::from(cpu.0) / 64));
        match word {
            Some(word) if polls => drop(word.0.fetch_or(bit, Ordering::Relaxed)),
            Some(word) => drop(word.0.fetch_and(!bit, Ordering::Relaxed)),
            None => {}
        }
    }
}

/// A reason to wake up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// The ring's guest kicked.
    Kick(RingId),
    /// Other threads posted rings or sent messages.
    Doorbell,
}

const DOORBELL: u64 = u64::MAX;

impl Executor {
    /// An executor whose thread the operating system places.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new() -> std::io::Result<Executor> {
        Executor::make(None)
    }

    /// The executor of a core, which is listed while its thread polls.
    pub(crate) fn on(cpu: Cpu, polling: Arc<PollingCores>) -> std::io::Result<Executor> {
        Executor::make(Some((cpu, polling)))
    }

    fn make(core: Option<(Cpu, Arc<PollingCores>)>) -> std::io::Result<Executor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered: each signal wakes one worker, and nobody has to read the counters.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &doorbell, epoll::EventData::new_u64(DOORBELL), flags)?;
        let (mailbox, inbox) = Mailbox::new(MESSAGES);
        let (cpu, polling) = core.unzip();
        Ok(Executor {
            cpu,
            polling,
            listed: AtomicBool::new(false),
            epoll,
            doorbell,
            posted: Mutex::default(),
            mailbox,
            inbox: Mutex::new(Some(inbox)),
            contended: AtomicBool::new(false),
            handed: AtomicBool::new(false),
        })
    }

    /// The reading end of its buffer, for the one thread that serves it.
    pub(crate) fn take_inbox(&self) -> Option<Receiver<Message>> {
        self.inbox.lock().take()
    }

    /// Sends a message; false if the buffer is full. Whether it is read is up to the thread that takes the
    /// inbox.
    pub(crate) fn send(&self, message: Message) -> bool {
        let sent = self.mailbox.send(message);
        if sent == Ok(true) {
            ring_bell(&self.doorbell);
        }
        sent.is_ok()
    }

    /// As [`send`](Self::send), of a ring to which more will come soon: its thread is to wait for that.
    pub(crate) fn hand(&self, ring: RingId) -> bool {
        self.handed.store(true, Ordering::Relaxed);
        self.send(ring)
    }

    /// Takes note that its thread was handed a ring; false if it was not since the last call. To be called by
    /// that thread.
    pub(crate) fn take_handed(&self) -> bool {
        self.handed.load(Ordering::Relaxed) && self.handed.swap(false, Ordering::Relaxed)
    }

    /// Takes the oldest message.
    pub(crate) fn receive(&self, inbox: &mut Receiver<Message>) -> Option<Message> {
        self.mailbox.receive(inbox)
    }

    /// The number of messages that wait.
    pub(crate) fn depth(&self) -> u16 {
        self.mailbox.depth()
    }

    /// The activity of its thread.
    pub(crate) fn activity(&self) -> Activity {
        self.mailbox.activity()
    }

    /// Publishes the activity of the calling thread, which serves the executor. After `Asleep` it must look
    /// at its inbox once more.
    pub(crate) fn set_activity(&self, activity: Activity) {
        let polls = activity == Activity::Polling;
        if let (Some(cpu), Some(polling)) = (self.cpu, &self.polling)
            && self.listed.load(Ordering::Relaxed) != polls
        {
            self.listed.store(polls, Ordering::Relaxed);
            polling.set(cpu, polls);
        }
        self.mailbox.set_activity(activity);
    }

    /// Notes that its thread was woken and does not know yet for what. To be called by that thread.
    pub(crate) fn set_awake(&self) {
        self.mailbox.set_activity(Activity::Polling);
    }

    /// Whether its thread found its core contended: the task there does not block.
    pub(crate) fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    /// To be called by its thread.
    pub(crate) fn set_contended(&self, yes: bool) {
        self.contended.store(yes, Ordering::Relaxed);
    }

    /// Receives a ring's kicks.
    pub(crate) fn watch(&self, ring: RingId, kick: BorrowedFd<'_>) -> std::io::Result<()> {
        let data = u64::from(ring.0);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            kick,
            epoll::EventData::new_u64(data),
            flags,
        )?)
    }

    /// Receives a watched ring's kicks, or not for a while. If it does again, it is told at once that there
    /// was one, whether there was or not. Touches nothing that belongs to the descriptor.
    pub(crate) fn receive_kicks(&self, ring: RingId, kick: BorrowedFd<'_>, receives: bool) {
        let flags = if receives {
            epoll::EventFlags::IN | epoll::EventFlags::ET
        } else {
            epoll::EventFlags::empty()
        };
        let data = epoll::EventData::new_u64(u64::from(ring.0));
        // Fails only if it is not watched.
        let _ = epoll::modify(&self.epoll, kick, data, flags);
    }

    /// Receives a ring's kicks no longer.
    pub(crate) fn unwatch(&self, kick: BorrowedFd<'_>) {
        // Fails only if it was not watched.
        let _ = epoll::delete(&self.epoll, kick);
    }

    /// Has a worker serve these rings soon.
    pub(crate) fn post(&self, rings: impl IntoIterator<Item = RingId>) {
        let mut any = false;
        {
            let mut posted = self.posted.lock();
            for ring in rings {
                any |= posted.insert(ring);
            }
        }
        if any {
            ring_bell(&self.doorbell);
        }
    }

    /// Wakes its thread without work, so that it notices that it is to end.
    pub(crate) fn wake(&self) {
        ring_bell(&self.doorbell);
    }

    /// The rings posted since the last call.
    pub(crate) fn take_posted(&self) -> BTreeSet<RingId> {
        std::mem::take(&mut self.posted.lock())
    }

    /// Waits for wake-ups, at most `timeout` (for ever if `None`), and passes them to `f`; true if there were
    /// any.
    pub(crate) fn wait(&self, timeout: Option<Duration>, mut f: impl FnMut(Wakeup)) -> std::io::Result<bool> {
        let mut events: [std::mem::MaybeUninit<epoll::Event>; WAKEUPS] =
            [const { std::mem::MaybeUninit::uninit() }; WAKEUPS];
        let most = if timeout == Some(Duration::ZERO) {
            WAKEUPS
        } else {
            FEW_WAKEUPS
        };
        // What is longer than a `Timespec` can say is for ever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let (ready, _) = match epoll::wait(&self.epoll, &mut events[..most], timeout.as_ref()) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let woken = !ready.is_empty();
        for event in ready {
            let data = event.data.u64();
            if data == DOORBELL {
                f(Wakeup::Doorbell);
            } else {
                f(Wakeup::Kick(RingId(data as u32)));
            }
        }
        Ok(woken)
    }
}

/// Signals an eventfd.
pub fn ring_bell(bell: &OwnedFd) {
    // Fails only when the counter is full, and then it is signalled.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
