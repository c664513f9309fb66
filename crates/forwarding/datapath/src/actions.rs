//! What decisions do to packets.
//!
//! Header changes are made in the packet's own slot as long as nobody else refers to it; after an output they
//! are made in a copy of the head that refers to the first slot for the payload. So payload is never copied
//! here. A packet that is set aside is one more reference to its slot.

use classifier::{Branch, FlowEntry, Stack, Start, Subject, Tables, dp_hash, run};
use flow::{Action, Context, DropReason, Edit, FieldId, FlowKey, PortId, Stage, Userspace};
use lock_free::{Shared, Unique};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vnic::{Counters, Packet};

const ETHERNET_HEADER: usize = 14;

/// Where packets go; the pipeline enqueues and counts, a trace only notes.
pub(crate) trait Sink {
    /// To a port.
    fn output(&mut self, port: PortId, packet: Shared<Packet>);
    /// To the controller, with the key and the context that the packet has now.
    fn userspace(&mut self, to: &Userspace, packet: &Packet, now: (&FlowKey, &Context));
    /// To the control process, as no flow of the stage matches.
    fn missed(&mut self, stage: Stage, packet: &Packet, now: (&FlowKey, &Context));
    /// Asks a meter of the controller about the packet. `Err` is the reason for which the meter drops it.
    fn pass_meter(&mut self, meter: u32, packet: &Packet) -> Result<(), DropReason>;
    /// A rule rejects the packet, which `is_alone` if it goes nowhere else. Returns the reason for which it
    /// is [dropped](Self::dropped).
    fn rejected(&mut self, packet: &Packet, is_alone: bool) -> DropReason;
    /// Nowhere.
    fn dropped(&mut self, packet: &Packet, reason: DropReason);
    /// Whether headers of one more packet that lie behind its head may be copied from the guest's memory.
    fn admit_header_copy(&mut self) -> bool;
    /// A slot for a copy of the head, if there is one.
    fn spare(&mut self) -> Option<Unique<Packet>>;
    /// The counters of the port that the packets come from.
    fn account(&self) -> &Counters;
    /// Told of each flow or rule that a look-up finds in a stage, and of the TCP flags of the packet as it
    /// came.
    fn found(&mut self, stage: Stage, entry: &Arc<FlowEntry>, packet: &Packet, tcp_flags: u16);
    /// Whether a rule's log takes a record of a packet now. If not, the packet is counted there.
    fn admit_record(&mut self, log: u32) -> bool;
    /// Notes a packet, with the key that it has now, in a log that admitted it.
    fn log(&mut self, log: u32, stage: Stage, packet: &Packet, key: FlowKey);
    /// Told of each action before it is applied.
    fn applying(&mut self, _action: impl FnOnce() -> Action) {}
}

/// What a thread needs to apply actions.
#[derive(Default)]
pub(crate) struct Means {
    stack: Stack<Aside>,
    /// Places of the meters that dropped the last packet, or copies of it.
    stopped: Vec<usize>,
    random: fastrand::Rng,
}

impl Means {
    /// The places, in the program that was applied last, of the meters that did not let the packet pass.
    pub fn stopped(&self) -> &[usize] {
        &self.stopped
    }
}

/// The packet between actions.
enum Current {
    Own(Unique<Packet>),
    Shared(Shared<Packet>),
}

impl Current {
    fn packet(&self) -> &Packet {
        match self {
            Current::Own(packet) => packet,
            Current::Shared(packet) => packet,
        }
    }
}

/// What actions have said of a packet.
#[derive(Clone, Default)]
struct Metadata {
    /// Fields of the key that are not in the packet.
    marks: FlowKey,
    context: Context,
    /// The key as it is now, if somebody wanted to know.
    key: Option<FlowKey>,
    /// Bytes that the next output may have at most, unless 0.
    truncated: u32,
}

/// A packet that was set aside.
pub(crate) struct Aside {
    packet: Option<Shared<Packet>>,
    metadata: Metadata,
}

/// Runs a packet from `start` on. Every packet and copy ends in exactly one call of the sink; the packet's
/// account is told how many copies there were. `key` is the packet's, if it is known.
pub(crate) fn apply<K: Sink>(
    start: Start<'_>,
    tables: &impl Tables,
    (packet, key): (Unique<Packet>, Option<FlowKey>),
    means: &mut Means,
    sink: &mut K,
) {
    let Means {
        stack,
        stopped,
        random,
    } = means;
    stopped.clear();
    let metadata = Metadata {
        marks: key.unwrap_or_default(),
        key,
        ..Metadata::default()
    };
    let mut subject = OnPacket {
        current: Some(Current::Own(packet)),
        metadata,
        aside: 0,
        was_sent: false,
        tcp_flags: None,
        stopped,
        random,
        sink,
    };
    let outcomes = run(stack, start, tables, &mut subject);
    if outcomes == 0 {
        subject.dropped(DropReason::NoAction);
    }
    if outcomes > 1 {
        subject.sink.account().copies.fetch_add(outcomes - 1, Relaxed);
    }
}

struct OnPacket<'a, K> {
    /// None after the last output.
    current: Option<Current>,
    metadata: Metadata,
    /// Packets that are set aside at present.
    aside: usize,
    /// The packet, or a copy, was sent to a port.
    was_sent: bool,
    /// TCP flags of the packet at its first look-up.
    tcp_flags: Option<u16>,
    stopped: &'a mut Vec<usize>,
    random: &'a mut fastrand::Rng,
    sink: &'a mut K,
}

impl<K: Sink> OnPacket<'_, K> {
    /// The packet in a slot that nobody else refers to.
    fn own(&mut self) -> Result<&mut Unique<Packet>, DropReason> {
        if let Some(Current::Shared(shared)) = &self.current {
            let mut spare = self.sink.spare().ok_or(DropReason::QueueFull)?;
            spare.fill_from(shared);
            self.current = Some(Current::Own(spare));
        }
        match &mut self.current {
            Some(Current::Own(packet)) => Ok(packet),
            _ => Err(DropReason::NoAction),
        }
    }

    /// Whether it begins with an Ethernet header. Otherwise its head has one all the same, with addresses
    /// that are zero.
    fn has_ethernet(&self) -> bool {
        self.metadata.marks.no_ethernet() == 0
    }

    /// Key and context of the packet, as they are now.
    fn now(&mut self) -> Result<(FlowKey, Context), DropReason> {
        let (key, context) = self.key()?;
        Ok((*key, *context))
    }

    /// The key of the packet's bytes, without what actions said. Fields that are unknown are looked for.
    fn whole_key(&mut self) -> Result<FlowKey, DropReason> {
        let Some(current) = &self.current else {
            return Ok(FlowKey::default());
        };
        if let Some(key) = current.packet().key() {
            return Ok(key);
        }
        if !self.sink.admit_header_copy() {
            return Err(DropReason::DeepHeaders);
        }
        self.own()?.whole_key().map(|(key, _)| key)
    }

    /// The packet for others to refer to.
    fn share(&mut self) -> Option<Shared<Packet>> {
        let shared = match self.current.take()? {
            Current::Own(packet) => packet.share(),
            Current::Shared(packet) => packet,
        };
        self.current = Some(Current::Shared(shared.clone()));
        Some(shared)
    }

    /// A copy that is cut to what the next output may have; the limit is gone then.
    fn cut(&mut self) -> Option<Result<Unique<Packet>, DropReason>> {
        let limit = std::mem::take(&mut self.metadata.truncated);
        let len = self
            .current
            .as_ref()
            .map_or(0, |current| current.packet().frame_len());
        if limit == 0 || len <= limit as usize {
            return None;
        }
        let shared = self.share()?;
        let Some(mut spare) = self.sink.spare() else {
            return Some(Err(DropReason::QueueFull));
        };
        spare.fill_from(&shared);
        spare.truncate(limit);
        Some(Ok(spare))
    }
}

impl<K: Sink> Subject for OnPacket<'_, K> {
    type Saved = Aside;

    fn key(&mut self) -> Result<(&FlowKey, &Context), DropReason> {
        if self.metadata.key.is_none() {
            let mut key = self.whole_key()?;
            let marks = &self.metadata.marks;
            key.set_recirc_id(marks.recirc_id());
            key.set_dp_hash(marks.dp_hash());
            key.set_skb_mark(marks.skb_mark());
            key.set_no_ethernet(marks.no_ethernet());
            self.metadata.key = Some(key);
        }
        let Metadata { context, key, .. } = &mut self.metadata;
        Ok((key.get_or_insert_default(), context))
    }

    fn in_port(&self) -> PortId {
        self.current
            .as_ref()
            .map_or(PortId::default(), |current| current.packet().origin)
    }

    fn found(&mut self, stage: Stage, entry: &Arc<FlowEntry>) {
        let Ok((key, _)) = self.now() else { return };
        let tcp_flags = *self.tcp_flags.get_or_insert(key.tcp_flags());
        if let Some(current) = &self.current {
            self.sink.found(stage, entry, current.packet(), tcp_flags);
        }
        if let Some(log) = entry.log() {
            self.log(log, stage);
        }
    }

    #[cold]
    fn log(&mut self, log: u32, stage: Stage) {
        if !self.sink.admit_record(log) {
            return;
        }
        // What cannot be read of a packet is not in its record.
        let key = self.now().map_or(self.metadata.marks, |(key, _)| key);
        if let Some(current) = &self.current {
            self.sink.log(log, stage, current.packet(), key);
        }
    }

    fn missed(&mut self, stage: Stage) {
        let Ok((key, context)) = self.now() else { return };
        if let Some(current) = &self.current {
            self.sink.missed(stage, current.packet(), (&key, &context));
        }
    }

    #[inline]
    fn output(&mut self, port: PortId, last: bool) {
        self.sink.applying(|| Action::Output(port));
        self.was_sent = true;
        if !self.has_ethernet() {
            return self.dropped(DropReason::NoHeader);
        }
        match self.cut() {
            Some(Ok(cut)) => return self.sink.output(port, cut.share()),
            Some(Err(reason)) => return self.dropped(reason),
            None => {}
        }
        let packet = if last {
            self.current.take().map(|current| match current {
                Current::Own(packet) => packet.share(),
                Current::Shared(packet) => packet,
            })
        } else {
            self.share()
        };
        if let Some(packet) = packet {
            self.sink.output(port, packet);
        }
    }

    fn userspace(&mut self, to: &Userspace) {
        self.sink.applying(|| Action::Userspace(to.clone()));
        let (key, context) = match self.now() {
            Ok(now) => now,
            Err(reason) => return self.dropped(reason),
        };
        match self.cut() {
            Some(Ok(cut)) => self.sink.userspace(to, &cut, (&key, &context)),
            Some(Err(reason)) => self.dropped(reason),
            None => {
                if let Some(current) = &self.current {
                    self.sink.userspace(to, current.packet(), (&key, &context));
                }
            }
        }
    }

    fn dropped(&mut self, reason: DropReason) {
        if let Some(current) = &self.current {
            let reason = if reason == DropReason::Rejected {
                let is_alone = self.aside == 0 && !self.was_sent;
                self.sink.rejected(current.packet(), is_alone)
            } else {
                reason
            };
            self.sink.dropped(current.packet(), reason);
        }
    }

    fn edit(&mut self, edit: &Edit) -> Result<(), DropReason> {
        self.sink.applying(|| Action::Edit(*edit));
        self.metadata.key = None;
        if let Edit::Encapsulate(change) = edit {
            let has_ethernet = self.has_ethernet();
            let has_ethernet = self.own()?.encapsulate(change, has_ethernet)?;
            self.metadata.marks.set_no_ethernet(u8::from(!has_ethernet));
            return Ok(());
        }
        if let Edit::Set(set) = edit
            && set.field.field().is_metadata()
        {
            let Metadata { marks, context, .. } = &mut self.metadata;
            let in_context = set.field.field().is_in_context();
            let words = if in_context {
                &mut context.words
            } else {
                &mut marks.words
            };
            set.field.field().set(words, set.value, set.mask);
            return Ok(());
        }
        self.own()?.edit(edit)
    }

    fn recirculate(&mut self, id: u32) {
        self.sink.applying(|| Action::Recirc(id));
        self.metadata.marks.set_recirc_id(id);
        if let Some(key) = &mut self.metadata.key {
            key.set_recirc_id(id);
        }
    }

    fn hash(&mut self, basis: u32) -> Result<(), DropReason> {
        let hash = dp_hash(self.key()?.0, basis);
        self.metadata.marks.set_dp_hash(hash);
        if let Some(key) = &mut self.metadata.key {
            FieldId::DpHash
                .field()
                .set(&mut key.words, hash.into(), u128::MAX);
        }
        Ok(())
    }

    fn truncate(&mut self, len: u32) {
        self.metadata.truncated = len;
    }

    fn branch(&mut self, len: u16) -> Branch<Aside> {
        let current = self.current.as_ref();
        let not_there = if self.has_ethernet() { 0 } else { ETHERNET_HEADER };
        let len_now = current.map_or(0, |current| current.packet().longest_frame());
        if len_now.saturating_sub(not_there) > len.into() {
            Branch::Longer
        } else {
            Branch::Otherwise
        }
    }

    fn pass_meter(&mut self, meter: u32) -> Result<(), DropReason> {
        self.sink.applying(|| Action::Meter(meter));
        match &self.current {
            Some(current) => self.sink.pass_meter(meter, current.packet()),
            None => Ok(()),
        }
    }

    fn stopped(&mut self, at: usize) {
        self.stopped.push(at);
    }

    fn draw_sample(&mut self, probability: u32) -> bool {
        probability > 0 && self.random.u32(..) <= probability
    }

    fn save(&mut self) -> Aside {
        let metadata = self.metadata.clone();
        self.aside += 1;
        Aside {
            packet: self.share(),
            metadata,
        }
    }

    fn restore(&mut self, Aside { packet, metadata }: Aside) {
        self.aside -= 1;
        self.current = packet.map(Current::Shared);
        self.metadata = metadata;
    }
}
