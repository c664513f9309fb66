//! When the frames of a flow change between the slow path and a queue.
//!
//! The *slow path* is the forwarder's: its socket, its ring to the data plane. Frames of one flow come from
//! one queue of the device, in order, and a filter in the kernel or the device divides them at one moment.
//! What lies before that moment on one way has to be delivered before what lies behind it on the other.
//!
//! | state | filter | frames of the flow are taken from | next |
//! |---|---|---|---|
//! | slow | none | the ring | arming, when a filter was programmed |
//! | arming | programmed | the ring; those in the queue wait | fast, when the ring was taken up to the mark |
//! | fast | programmed | the queue | leaving, when the filter was removed |
//! | leaving | removed | the queue, then what the ring had before | slow, when nothing comes to the queue |
//!
//! *On.* The first frame in the queue shows that all earlier ones of the flow are in the forwarder's socket
//! or behind it. The forwarder is asked for a *mark*: it empties its socket once, publishes, and says how
//! many frames it has ever published. The queue is served when that many were taken from the ring.
//!
//! *Off.* The filter is removed. In each turn the data plane reads how many frames the ring has, then empties
//! the queue, then takes those frames. So what comes on the slow path after the removal is taken after what
//! is in the queue. A flow that is arming has frames on the slow path before those in the queue and would
//! have some behind: its filter stays until the mark is reached.
//!
//! *Out.* A frame that a queue's call has taken is the device's, so there is nothing to wait for when the way
//! leaves the queue. To arm, no frame is given to either way until the forwarder has sent all that it has.
//!
//! Each wait is bounded by [`BOUND_US`]. Then frames of the flow may be overtaken, which is counted. A kernel
//! that publishes frames of a queue at the end of its poll can reorder frames within one poll, as one filter
//! is changed in the midst of it.

/// Longest wait for a change of way, in microseconds.
pub const BOUND_US: u64 = 10_000;

/// Time in microseconds after a filter's removal in which frames may still come to the queue: a poll of the
/// kernel that has read the filter ends long before.
const LINGER_US: u64 = 10_000;

/// The way of a flow, or of what a queue sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The forwarder's.
    #[default]
    Slow,
    /// The queue's soon.
    Arming,
    /// The queue's.
    Fast,
    /// The forwarder's; the queue may still have frames.
    Leaving,
}

/// What a way has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WayCounts {
    /// Times that the queue's turn began.
    pub armed: u64,
    /// Of these, times that the mark was not reached in time: frames may have been overtaken.
    pub overdue: u64,
    /// Times that the queue was left.
    pub left: u64,
    /// The longest wait before the queue's turn, in microseconds.
    pub longest_wait_us: u64,
}

/// The state machine of a way.
#[derive(Clone, Debug, Default)]
pub struct Way {
    state: State,
    /// When the present wait began.
    since_us: u64,
    /// Of [`State::Arming`].
    mark: Mark,
    /// The filter is to be removed as soon as it may be.
    is_unwanted: bool,
    counts: WayCounts,
}

#[derive(Clone, Copy, Debug, Default)]
enum Mark {
    /// Nothing has come to the queue.
    #[default]
    NotNeeded,
    /// The forwarder was asked.
    Asked,
    /// Frames that the ring had.
    At(u64),
}

impl Way {
    /// Where frames of the flow are taken from.
    pub fn state(&self) -> State {
        self.state
    }

    /// What was counted since the beginning.
    pub fn counts(&self) -> WayCounts {
        self.counts
    }

    /// A filter was programmed. False, and nothing has changed, unless the flow is on the slow path: an
    /// earlier filter's frames have to be taken before.
    #[must_use = "the filter must not be programmed otherwise"]
    pub fn attach(&mut self) -> bool {
        let is_slow = self.state == State::Slow;
        if is_slow {
            (self.state, self.mark, self.is_unwanted) = (State::Arming, Mark::NotNeeded, false);
        }
        is_slow
    }

    /// The queue has a frame, or the filter is to be removed. Whether the forwarder is to be asked for a mark
    /// now.
    #[must_use = "the forwarder is to be asked"]
    pub fn ask_for_mark(&mut self, now_us: u64) -> bool {
        let asks = self.state == State::Arming && matches!(self.mark, Mark::NotNeeded);
        if asks {
            (self.mark, self.since_us) = (Mark::Asked, now_us);
        }
        asks
    }

    /// The forwarder has said how many frames it had published when its socket was empty.
    pub fn on_mark(&mut self, published: u64) {
        if self.state == State::Arming && matches!(self.mark, Mark::Asked) {
            self.mark = Mark::At(published);
        }
    }

    /// The forwarder has died, with what it had taken from its socket and what was in its ring. True if its
    /// successor is to be asked for a mark, within the same bound.
    #[must_use = "the successor is to be asked"]
    pub fn on_death(&mut self) -> bool {
        let was_asked = self.state == State::Arming && !matches!(self.mark, Mark::NotNeeded);
        if was_asked {
            self.mark = Mark::Asked;
        }
        was_asked
    }

    /// Whether frames may be taken from the queue, or given to it, if that many frames were taken from the
    /// ring since the beginning.
    pub fn serves_queue(&mut self, taken: u64, now_us: u64) -> bool {
        if self.state != State::Arming {
            return self.state != State::Slow;
        }
        let is_reached = match self.mark {
            Mark::NotNeeded => return false,
            Mark::Asked => false,
            Mark::At(published) => taken >= published,
        };
        if !is_reached && !self.is_overdue(now_us) {
            return false;
        }
        let waited_us = now_us.saturating_sub(self.since_us);
        self.state = State::Fast;
        self.counts.armed += 1;
        self.counts.overdue += u64::from(!is_reached);
        self.counts.longest_wait_us = self.counts.longest_wait_us.max(waited_us);
        true
    }

    /// Whether the mark is waited for longer than [`BOUND_US`].
    pub fn is_overdue(&self, now_us: u64) -> bool {
        let waits = self.state == State::Arming && !matches!(self.mark, Mark::NotNeeded);
        waits && now_us.saturating_sub(self.since_us) >= BOUND_US
    }

    /// Gives up arming a way *out*, for which no frame lies in the queue: those that wait take the slow path.
    pub fn give_up(&mut self) {
        if self.state == State::Arming {
            self.state = State::Slow;
        }
    }

    /// The filter is not wanted any more. Removing it is the caller's, once it
    /// [may be removed](Self::may_remove); until the mark is reached it stays.
    pub fn detach(&mut self) {
        self.is_unwanted |= matches!(self.state, State::Arming | State::Fast);
    }

    /// Whether the filter is to be removed now; then [`removed`](Self::on_removed) says so.
    pub fn may_remove(&self) -> bool {
        self.is_unwanted && self.state == State::Fast
    }

    /// The filter was removed, or the queue is not used any more for what is sent.
    pub fn on_removed(&mut self, now_us: u64) {
        if self.state == State::Fast {
            (self.state, self.since_us) = (State::Leaving, now_us);
            self.counts.left += 1;
        }
    }

    /// A turn that began at this time has found the queue empty, and has then taken what the ring had before.
    pub fn on_drained(&mut self, now_us: u64) {
        if self.state == State::Leaving && now_us.saturating_sub(self.since_us) >= LINGER_US {
            self.state = State::Slow;
        }
    }

    /// A queue that is left has given all that it had: what goes *out* by a queue is the device's at once.
    pub fn on_sent(&mut self) {
        if self.state == State::Leaving {
            self.state = State::Slow;
        }
    }
}
