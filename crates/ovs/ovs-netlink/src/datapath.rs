//! Datapaths: `OVS_DP_CMD_*`, `OVS_DP_ATTR_*`.

use crate::attribute::{AttributeSet, Rule, Table, Writer};
use crate::error::Error;
use crate::family::{self, Family, FamilyMessage};
use crate::message::Header;
use crate::name::{MAX_INTERFACE, Name};
use crate::number::{MAX_SOCKETS, counters, numbers, write_numbers};

/// A command of the families for datapaths, ports and flows; in replies and notifications, the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// Create; it is new.
    New = 1,
    /// Delete; it is gone.
    Delete = 2,
    /// Ask for it; it is unchanged.
    Get = 3,
    /// Change; it has changed.
    Set = 4,
}

impl Command {
    /// The command of a message of one of these families.
    pub(crate) fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        Ok(match message.command {
            1 => Self::New,
            2 => Self::Delete,
            3 => Self::Get,
            4 => Self::Set,
            _ => return Err(message.unknown()),
        })
    }
}

/// Features that a user of the datapath supports (`OVS_DP_F_*`).
pub mod features {
    /// The last attribute need not be aligned.
    pub const UNALIGNED: u32 = 1 << 0;
    /// Ports have several sockets.
    pub const VPORT_PIDS: u32 = 1 << 1;
    /// Hardware shares recirculation.
    pub const TC_RECIRC_SHARING: u32 = 1 << 2;
    /// Sockets are chosen by processor.
    pub const DISPATCH_UPCALL_PER_CPU: u32 = 1 << 3;
    /// All features of Linux 6.1. Others are answered with EOPNOTSUPP, from which ovs-vswitchd learns whether
    /// features are checked.
    pub const ALL: u32 = UNALIGNED | VPORT_PIDS | TC_RECIRC_SHARING | DISPATCH_UPCALL_PER_CPU;
}

const NAME: u16 = 1;
const UPCALL_PID: u16 = 2;
const STATS: u16 = 3;
const MEGAFLOW_STATS: u16 = 4;
const USER_FEATURES: u16 = 5;
const MASKS_CACHE_SIZE: u16 = 7;
const PER_CPU_PIDS: u16 = 8;
const IFINDEX: u16 = 9;

static SET: AttributeSet<10> = AttributeSet {
    name: "OVS_DP_ATTR",
    rules: {
        use Rule::{Between, Exactly, Padding, Unknown};
        [
            Unknown,
            Between(0, 256),
            Exactly(4),
            Exactly(32),
            Exactly(32),
            Exactly(4),
            Padding,
            Exactly(4),
            Between(4, 4 * MAX_SOCKETS),
            Exactly(4),
        ]
    },
};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Makes a datapath.
    New {
        /// Name of its local port.
        name: Name,
        /// Socket for upcalls of its local port.
        upcall_pid: u32,
        /// Interface index that the local port shall have.
        ifindex: Option<u32>,
        /// Settings.
        settings: Settings,
    },
    /// Deletes a datapath.
    Delete(Which),
    /// Asks for a datapath.
    Get(Which),
    /// Changes a datapath.
    Set(Which, Settings),
    /// Asks for all datapaths.
    Dump,
}

/// Selects a datapath by name, else by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Which {
    /// Number.
    pub datapath: u32,
    /// Name.
    pub name: Option<Name>,
    /// Socket for upcalls. ovs-vswitchd sends 0; the kernel looks at it in [`Request::New`] only.
    pub upcall_pid: Option<u32>,
}

/// The settings of a datapath; those that are absent stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Features that the user supports; see [`features`]. The datapath is to refuse unknown bits.
    pub features: Option<u32>,
    /// Size of the kernel's mask cache.
    pub masks_cache_size: Option<u32>,
    /// Sockets for upcalls, by processor.
    pub per_cpu_pids: Option<Vec<u32>>,
}

counters! {
    /// `struct ovs_dp_stats`.
    Stats {
        /// Packets that matched a flow.
        hit,
        /// Packets that matched none.
        missed,
        /// Packets for user space that were lost.
        lost,
        /// Flows.
        flows,
    }
}

/// `struct ovs_dp_megaflow_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MegaflowStats {
    /// Masks tried.
    pub mask_hit: u64,
    /// Masks in use.
    pub masks: u32,
    /// Look-ups that the mask cache answered.
    pub cache_hit: u64,
}

impl MegaflowStats {
    /// 8 bytes, 4 and 4 of padding, 8 and 8 of padding.
    fn from_bytes(bytes: &[u8; 32]) -> Option<Self> {
        Some(Self {
            mask_hit: u64::from_ne_bytes(*bytes.first_chunk()?),
            masks: u32::from_ne_bytes(*bytes[8..].first_chunk()?),
            cache_hit: u64::from_ne_bytes(*bytes[16..].first_chunk()?),
        })
    }

    fn to_bytes(self) -> Vec<u8> {
        let masks = [self.masks.to_ne_bytes(), [0; 4]].concat();
        let cache_hit = self.cache_hit.to_ne_bytes();
        [
            &self.mask_hit.to_ne_bytes(),
            masks.as_slice(),
            &cache_hit,
            &[0; 8],
        ]
        .concat()
    }
}

/// A datapath, as replies, dumps and notifications describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datapath {
    /// The event, or [`Command::Get`].
    pub command: Command,
    /// Number: interface index of the local port.
    pub datapath: u32,
    /// Name of the local port.
    pub name: Name,
    /// Counts of packets.
    pub stats: Option<Stats>,
    /// Counts of masks.
    pub megaflow_stats: Option<MegaflowStats>,
    /// The settings.
    pub settings: Settings,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// The command is unknown, or an attribute is wrong, missing or without a meaning in it.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        let command = Command::read(message)?;
        let table = Table::read(&SET, message.attributes)?;
        if message.dump {
            return match (command, table.kinds().next()) {
                (Command::Get, None) => Ok(Self::Dump),
                (Command::Get, Some(other)) => Err(table.misplaced(other)),
                _ => Err(message.unknown()),
            };
        }
        let allowed: &[u16] = match command {
            Command::New => &[
                NAME,
                UPCALL_PID,
                USER_FEATURES,
                MASKS_CACHE_SIZE,
                PER_CPU_PIDS,
                IFINDEX,
            ],
            Command::Delete | Command::Get => &[NAME, UPCALL_PID],
            Command::Set => &[NAME, UPCALL_PID, USER_FEATURES, MASKS_CACHE_SIZE, PER_CPU_PIDS],
        };
        table.only(allowed)?;
        let name = read_name(&table)?;
        let settings = read_settings(&table);
        if command == Command::New {
            return Ok(Self::New {
                name: table.required(NAME, name)?,
                upcall_pid: table.required(UPCALL_PID, table.u32(UPCALL_PID))?,
                ifindex: table.u32(IFINDEX),
                settings,
            });
        }
        let which = Which {
            datapath: message.datapath,
            name,
            upcall_pid: table.u32(UPCALL_PID),
        };
        Ok(match command {
            Command::Delete => Self::Delete(which),
            Command::Set => Self::Set(which, settings),
            Command::Get | Command::New => Self::Get(which),
        })
    }

    /// Writes the request.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        let (command, which) = match self {
            Self::New { .. } => (Command::New, None),
            Self::Delete(which) => (Command::Delete, Some(which)),
            Self::Get(which) => (Command::Get, Some(which)),
            Self::Set(which, _) => (Command::Set, Some(which)),
            Self::Dump => (Command::Get, None),
        };
        let datapath = which.map_or(0, |which| which.datapath);
        let start = (Family::Datapath, command as u8, datapath);
        family::write(writer, header, start, |writer| {
            if let Some(name) = which.and_then(|which| which.name.as_ref()) {
                writer.attribute(NAME, &name.terminated());
            }
            writer.optional_u32(UPCALL_PID, which.and_then(|which| which.upcall_pid));
            match self {
                Self::New {
                    name,
                    upcall_pid,
                    ifindex,
                    settings,
                } => {
                    writer.attribute(NAME, &name.terminated());
                    writer.u32(UPCALL_PID, *upcall_pid);
                    writer.optional_u32(IFINDEX, *ifindex);
                    write_settings(settings, writer);
                }
                Self::Set(_, settings) => write_settings(settings, writer),
                Self::Delete(_) | Self::Get(_) | Self::Dump => {}
            }
        });
    }
}

impl Datapath {
    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// The message is no reply, or an attribute is wrong or missing.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        let command = Command::read(message)?;
        let table = Table::read(&SET, message.attributes)?;
        Ok(Self {
            command,
            datapath: message.datapath,
            name: table.required(NAME, read_name(&table)?)?,
            stats: table.bytes(STATS).and_then(Stats::from_bytes),
            megaflow_stats: table
                .array(MEGAFLOW_STATS)
                .and_then(|bytes| MegaflowStats::from_bytes(&bytes)),
            settings: read_settings(&table),
        })
    }

    /// Writes the reply.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        let start = (Family::Datapath, self.command as u8, self.datapath);
        family::write(writer, header, start, |writer| {
            writer.attribute(NAME, &self.name.terminated());
            if let Some(stats) = &self.stats {
                writer.attribute(STATS, &stats.to_bytes());
            }
            if let Some(stats) = self.megaflow_stats {
                writer.attribute(MEGAFLOW_STATS, &stats.to_bytes());
            }
            write_settings(&self.settings, writer);
        });
    }
}

fn read_name(table: &Table<'_, 10>) -> Result<Option<Name>, Error> {
    let name = table.bytes(NAME);
    name.map(|name| Name::read(SET.name, NAME, name, MAX_INTERFACE))
        .transpose()
}

fn read_settings(table: &Table<'_, 10>) -> Settings {
    Settings {
        features: table.u32(USER_FEATURES),
        masks_cache_size: table.u32(MASKS_CACHE_SIZE),
        per_cpu_pids: table.bytes(PER_CPU_PIDS).map(numbers),
    }
}

fn write_settings(settings: &Settings, writer: &mut Writer) {
    writer.optional_u32(USER_FEATURES, settings.features);
    writer.optional_u32(MASKS_CACHE_SIZE, settings.masks_cache_size);
    if let Some(pids) = &settings.per_cpu_pids {
        write_numbers(PER_CPU_PIDS, pids, writer);
    }
}
