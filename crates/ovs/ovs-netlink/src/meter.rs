//! Meters: `OVS_METER_CMD_*`, `OVS_METER_ATTR_*`.

use crate::attribute::{AttributeSet, Rule, Table, Writer, attributes};
use crate::error::Error;
use crate::family::{self, Family, FamilyMessage};
use crate::flow::Stats;
use crate::message::Header;

/// Most bands of a meter (`DP_MAX_BANDS`).
pub const MAX_BANDS: usize = 1;

const FEATURES: u8 = 1;
const SET_COMMAND: u8 = 2;
const DELETE: u8 = 3;
const GET: u8 = 4;

const ID: u16 = 1;
const KBPS: u16 = 2;
const STATS: u16 = 3;
const BANDS: u16 = 4;
const USED: u16 = 5;
const CLEAR: u16 = 6;
const MAX_METERS: u16 = 7;
const MAX_BANDS_ATTRIBUTE: u16 = 8;

static SET: AttributeSet<10> = AttributeSet {
    name: "OVS_METER_ATTR",
    rules: {
        use Rule::{Any, Exactly, Padding, Unknown};
        [
            Unknown,
            Exactly(4),
            Exactly(0),
            Exactly(16),
            Any,
            Exactly(8),
            Exactly(0),
            Exactly(4),
            Exactly(4),
            Padding,
        ]
    },
};

/// Bands are an array: their own attributes are of kind `OVS_BAND_ATTR_UNSPEC`.
const BAND: u16 = 0;
const TYPE: u16 = 1;
const RATE: u16 = 2;
const BURST: u16 = 3;
const BAND_STATS: u16 = 4;
/// `OVS_METER_BAND_TYPE_DROP`, the only type.
const DROP: u32 = 1;

static BAND_SET: AttributeSet<5> = AttributeSet {
    name: "OVS_BAND_ATTR",
    rules: [
        Rule::Unknown,
        Rule::Exactly(4),
        Rule::Exactly(4),
        Rule::Exactly(4),
        Rule::Exactly(16),
    ],
};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for the features of meters.
    Features,
    /// Makes or replaces a meter.
    Set {
        /// Number.
        id: u32,
        /// Rates are in kilobits per second, else in packets per second.
        kilobits: bool,
        /// Resets the counters.
        clear: bool,
        /// Initial values of the counters.
        stats: Option<Stats>,
        /// Bands, at most [`MAX_BANDS`].
        bands: Vec<Band>,
    },
    /// Deletes a meter, and asks for its counters.
    Delete(u32),
    /// Asks for a meter's counters.
    Get(u32),
}

/// A band: packets beyond its rate are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// Kilobits or packets per second, not 0.
    pub rate: u32,
    /// Kilobits or packets.
    pub burst: u32,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Features of meters; the only type of band is "drop".
    Features {
        /// Most meters.
        max_meters: u32,
        /// Most bands of a meter.
        max_bands: u32,
    },
    /// A meter's counters.
    Meter {
        /// The command that was carried out.
        command: Command,
        /// Number.
        id: u32,
        /// Packets and bytes that reached it; absent for a new meter.
        stats: Option<Stats>,
        /// When it was last used, in milliseconds of the monotonic clock.
        used: Option<u64>,
        /// Packets and bytes that each band dropped.
        bands: Vec<Stats>,
    },
}

/// The command that a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// The meter was made or replaced; the counters are those of the replaced one.
    Set = SET_COMMAND,
    /// The meter was deleted.
    Delete = DELETE,
    /// The meter's counters were asked for.
    Get = GET,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// The command is unknown, or an attribute is wrong, missing or without a meaning in it.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        if message.dump {
            return Err(message.unknown());
        }
        let table = Table::read(&SET, message.attributes)?;
        let id = table.required(ID, table.u32(ID));
        match message.command {
            FEATURES => table.only(&[]).map(|()| Self::Features),
            SET_COMMAND => {
                table.only(&[ID, KBPS, CLEAR, STATS, BANDS])?;
                Ok(Self::Set {
                    id: id?,
                    kilobits: table.has(KBPS),
                    clear: table.has(CLEAR),
                    stats: table.bytes(STATS).and_then(Stats::from_bytes),
                    bands: array(table.required(BANDS, table.bytes(BANDS))?, Band::read)?,
                })
            }
            DELETE => {
                table.only(&[ID])?;
                Ok(Self::Delete(id?))
            }
            GET => {
                table.only(&[ID])?;
                Ok(Self::Get(id?))
            }
            _ => Err(message.unknown()),
        }
    }

    /// Writes the request to this datapath.
    pub fn write(&self, header: Header, datapath: u32, writer: &mut Writer) {
        let command = match self {
            Self::Features => FEATURES,
            Self::Set { .. } => SET_COMMAND,
            Self::Delete(_) => DELETE,
            Self::Get(_) => GET,
        };
        family::write(
            writer,
            header,
            (Family::Meter, command, datapath),
            |writer| match self {
                Self::Features => {}
                Self::Delete(id) | Self::Get(id) => writer.u32(ID, *id),
                Self::Set {
                    id,
                    kilobits,
                    clear,
                    stats,
                    bands,
                } => {
                    writer.u32(ID, *id);
                    writer.flag(KBPS, *kilobits);
                    writer.flag(CLEAR, *clear);
                    write_stats(STATS, *stats, writer);
                    writer.nested(BANDS, |writer| bands.iter().for_each(|band| band.write(writer)));
                }
            },
        );
    }
}

impl Band {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        let table = Table::read(&BAND_SET, bytes)?;
        table.only(&[TYPE, RATE, BURST, BAND_STATS])?;
        let kind = table.required(TYPE, table.u32(TYPE))?;
        let rate = table.required(RATE, table.u32(RATE))?;
        if kind != DROP {
            return Err(Error::Value {
                what: "OVS_BAND_ATTR_TYPE",
                value: u64::from(kind),
            });
        }
        if rate == 0 {
            return Err(Error::Value {
                what: "OVS_BAND_ATTR_RATE",
                value: 0,
            });
        }
        Ok(Self {
            rate,
            burst: table.required(BURST, table.u32(BURST))?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.nested(BAND, |writer| {
            writer.u32(TYPE, DROP);
            writer.u32(RATE, self.rate);
            writer.u32(BURST, self.burst);
        });
    }
}

impl Reply {
    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// The message is no reply, or an attribute is wrong, missing or without a meaning in it.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        let table = Table::read(&SET, message.attributes)?;
        let command = match message.command {
            FEATURES => {
                table.only(&[MAX_METERS, MAX_BANDS_ATTRIBUTE, BANDS])?;
                return Ok(Self::Features {
                    max_meters: table.required(MAX_METERS, table.u32(MAX_METERS))?,
                    max_bands: table.required(MAX_BANDS_ATTRIBUTE, table.u32(MAX_BANDS_ATTRIBUTE))?,
                });
            }
            SET_COMMAND => Command::Set,
            DELETE => Command::Delete,
            GET => Command::Get,
            _ => return Err(message.unknown()),
        };
        table.only(&[ID, STATS, USED, BANDS])?;
        let bands = table
            .bytes(BANDS)
            .map(|bands| array(bands, read_band_stats))
            .transpose()?;
        Ok(Self::Meter {
            command,
            id: table.required(ID, table.u32(ID))?,
            stats: table.bytes(STATS).and_then(Stats::from_bytes),
            used: table.u64(USED),
            bands: bands.unwrap_or_default(),
        })
    }

    /// Writes the reply of this datapath.
    pub fn write(&self, header: Header, datapath: u32, writer: &mut Writer) {
        let command = match self {
            Self::Features { .. } => FEATURES,
            Self::Meter { command, .. } => *command as u8,
        };
        family::write(
            writer,
            header,
            (Family::Meter, command, datapath),
            |writer| match self {
                Self::Features {
                    max_meters,
                    max_bands,
                } => {
                    writer.u32(MAX_METERS, *max_meters);
                    writer.u32(MAX_BANDS_ATTRIBUTE, *max_bands);
                    writer.nested(BANDS, |writer| {
                        writer.nested(BAND, |writer| writer.u32(TYPE, DROP));
                    });
                }
                Self::Meter {
                    id,
                    stats,
                    used,
                    bands,
                    ..
                } => {
                    writer.u32(ID, *id);
                    write_stats(STATS, *stats, writer);
                    if let Some(used) = used {
                        writer.u64(USED, *used);
                    }
                    if !bands.is_empty() {
                        writer.nested(BANDS, |writer| {
                            bands.iter().for_each(|band| write_band_stats(*band, writer))
                        });
                    }
                }
            },
        );
    }
}

fn read_band_stats(bytes: &[u8]) -> Result<Stats, Error> {
    let table = Table::read(&BAND_SET, bytes)?;
    table.required(BAND_STATS, table.bytes(BAND_STATS).and_then(Stats::from_bytes))
}

fn write_band_stats(stats: Stats, writer: &mut Writer) {
    writer.nested(BAND, |writer| write_stats(BAND_STATS, Some(stats), writer));
}

fn write_stats(kind: u16, stats: Option<Stats>, writer: &mut Writer) {
    if let Some(stats) = stats {
        writer.attribute(kind, &stats.to_bytes());
    }
}

/// Reads an array of bands; the kinds of its attributes have no meaning.
fn array<T>(bytes: &[u8], read: impl Fn(&[u8]) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    let mut elements = Vec::new();
    for attribute in attributes(bytes) {
        if elements.len() == MAX_BANDS {
            return Err(Error::TooMany {
                what: "bands",
                limit: MAX_BANDS,
            });
        }
        elements.push(read(attribute?.value)?);
    }
    Ok(elements)
}
