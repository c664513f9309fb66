//! The command line. Help is generated from the comments here; values check themselves with the types of the
//! configuration, so that a file and the command line allow the same.

use clap::{Args, Parser, Subcommand};
use management::{
    AddressLimit, AddressSource, AgeingSeconds, Dscp, Group, Guard, InterfaceName, IpPrefix, ListenAddress,
    MacAddr, MacLimit, MaxBurst, MaxRate, MissRate, Mtu, Name, Netns, P4End, P4Operations, PlacedPort,
    PortKind, PortMode, Priority, SocketMode, StormBits, StormControl, SwitchKind, TableSize, Trunk,
    UplinkBackEnd, UserId, VlanId, VlanPriority, Weight,
};
use std::net::IpAddr;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A virtual switch for hosts that run virtual machines.
#[derive(Debug, Parser)]
#[command(
    name = "hyperswitch",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Run directory: sockets and state of one instance
    #[arg(long, global = true, value_name = "DIR", default_value = "/run/hyperswitch")]
    pub run_dir: PathBuf,

    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub json: bool,

    /// Seconds that an answer may take [5, or 30 for `ovs start`, `stop` and `plug`]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: Option<u32>,

    #[command(subcommand)]
    pub verb: Verb,
}

impl Cli {
    /// Whether standard output is a capture file.
    pub fn writes_packets(&self) -> bool {
        matches!(&self.verb, Verb::User(UserVerb::Capture(args)) if args.write == std::path::Path::new("-"))
    }
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the switch until SIGTERM or SIGINT; SIGHUP reads the configuration again
    Run {
        /// Configuration file (TOML); without one, there is an empty switch sw0
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    #[command(flatten)]
    User(UserVerb),
    /// Understand P4 programs, for which no running instance is needed, and load them
    #[command(subcommand)]
    P4(P4Verb),
    /// Run Open vSwitch on a switch of the running instance
    #[command(subcommand)]
    Ovs(OvsVerb),
    /// Show the schema of what verbs print with --json (JSON Schema 2020-12)
    Schema,
    #[command(name = "data-plane", hide = true)]
    DataPlane,
    #[command(hide = true)]
    Driver,
    #[command(hide = true)]
    Forwarder { number: u8 },
    #[command(name = "ovs-glue", hide = true)]
    OvsGlue {
        #[arg(long)]
        database: Option<PathBuf>,
        #[arg(long)]
        claim_connections: bool,
    },
    #[command(name = "p4runtime", hide = true)]
    P4Runtime {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        certificate: Option<PathBuf>,
        #[arg(long)]
        key: Option<PathBuf>,
        #[arg(long)]
        client_authorities: Option<PathBuf>,
    },
    #[command(hide = true)]
    Control {
        #[arg(long)]
        config: Option<PathBuf>,
    },
    #[command(hide = true)]
    View {
        #[arg(long)]
        listen: ListenAddress,
        #[arg(long)]
        group: Option<Group>,
        #[arg(long)]
        mode: SocketMode,
    },
    /// Answer a container runtime that calls a CNI plugin
    #[command(hide = true)]
    Cni,
    /// Answer netavark, which calls a plugin
    #[command(subcommand, hide = true)]
    Netavark(NetavarkVerb),
    /// Write manual pages into a directory
    #[command(hide = true)]
    Man { directory: PathBuf },
    /// Write shell completions into a directory
    #[command(hide = true)]
    Completions { directory: PathBuf },
}

/// Commands of netavark to a plugin.
#[derive(Debug, Subcommand)]
pub enum NetavarkVerb {
    /// Show versions
    Info,
    /// Check a network that is being made
    Create,
    /// Attach a container
    Setup {
        /// Path of its network namespace
        netns: String,
    },
    /// Detach a container
    Teardown {
        /// Path of its network namespace
        netns: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// Check the policies of a configuration file: contradictions, and rules that can never match; no running
    /// instance is needed
    Check {
        /// Configuration file (TOML)
        file: PathBuf,
    },
    /// List rule lists, the ports that have them, and whether they are in force
    List,
    /// Show the rules of a list, with what they counted
    Show {
        /// Name of the list, or of a port for the list of its guards
        name: String,
    },
    /// Show what the rule lists in force say about a packet from one port to another, with each rule's line
    Explain(ExplainArgs),
    /// Show packets that rules with `log`, and ports with `log-drops`, have noted; some of them, if there
    /// were many
    Log {
        /// Show further ones as they come, until interrupted
        #[arg(long)]
        follow: bool,
        /// Only those of rules that judge packets of this port
        #[arg(long)]
        port: Option<String>,
    },
    /// Show which rules a configuration file would take out and put in, and which cached decisions would be
    /// others, each with its packets
    Diff {
        /// Configuration file (TOML)
        file: PathBuf,
    },
}

/// A packet between two ports.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Port the packet is to come from
    #[arg(long, value_name = "PORT")]
    pub in_port: String,
    /// Port the packet is to go to
    #[arg(long, value_name = "PORT")]
    pub to: String,
    /// Source MAC address [default: that of the port it comes from]
    #[arg(long, value_name = "MAC")]
    pub src: Option<MacAddr>,
    /// IP source and destination address [default: the first ones of the ports]
    #[arg(long, value_name = "SRC,DST")]
    pub ip: Option<IpPair>,
    /// Transport protocol
    #[arg(long, value_name = "tcp|udp|icmp", default_value = "tcp")]
    pub proto: Proto,
    /// TCP or UDP source port
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    pub sport: u16,
    /// TCP or UDP destination port
    #[arg(long, value_name = "N", default_value_t = 80)]
    pub dport: u16,
}

#[derive(Debug, Subcommand)]
pub enum OvsVerb {
    /// Start ovsdb-server and ovs-vswitchd of the distribution in <run dir>/openvswitch, where they are not
    /// running
    ///
    /// For hosts without a system-wide Open vSwitch. The database is made there the first time, and kept by
    /// `ovs stop`.
    Start {
        /// The library put in front of ovs-vswitchd [default: libovs_shim.so of the installation]
        #[arg(long, value_name = "FILE")]
        shim: Option<PathBuf>,
    },
    /// End what `ovs start` started; flows go on forwarding
    Stop,
    /// Show Open vSwitch's processes, bridges and ports: the private ones, or else the system's
    Status,
    /// Add a port for a virtual machine to a bridge, or change how its VMM is reached
    Plug {
        /// Bridge
        bridge: InterfaceName,
        /// Name of the port
        name: InterfaceName,
        /// The VMM listens at this path; without it, the switch does
        #[arg(long, value_name = "PATH")]
        client: Option<PathBuf>,
        /// Number of the VMM's user [default: the user to whom the directories of the socket belong]
        #[arg(long, value_name = "UID", requires = "client")]
        owner: Option<UserId>,
    },
    /// Show what the flows of the data plane do with a packet, and where none matches, what ovs-vswitchd
    /// would decide
    Trace(TraceArgs),
}

#[derive(Debug, Subcommand)]
pub enum P4Verb {
    /// Check a program, and show its tables, bounds, the fields that it reads and whether verdicts can be
    /// cached
    Check {
        /// What p4c wrote for BMv2 (JSON), or the serialised form
        file: PathBuf,
        /// P4Info of the program, text or binary
        #[arg(long, value_name = "FILE")]
        p4info: Option<PathBuf>,
        /// Packets that enter by a port (pcap or pcapng), to see how often a verdict would be found again;
        /// may be given several times [default: packets of a model]
        #[arg(long = "pcap", value_name = "PORT=FILE")]
        pcaps: Vec<PortFile>,
    },
    /// Draw parser, control flow, checksums and deparser as SVG
    Graph {
        /// What p4c wrote for BMv2 (JSON), or the serialised form
        file: PathBuf,
        /// Where to write it [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Run packets from capture files through a program, and write those that leave to DIR/PORT.pcap
    Run(P4RunArgs),
    /// Run packet tests on a copy of a loaded program with its entries, or on a file's program; the loaded
    /// one and its packets are not touched
    Test(P4TestArgs),
    /// Put a program in force as the forwarder of ports, in the place of a program of that name; it lasts
    /// until it is unloaded or `hyperswitch run` ends
    Load(P4LoadArgs),
    /// Show loaded programs, their ports, and what they counted
    Show,
    /// Change or list the entries of a loaded program's tables, while packets flow
    #[command(subcommand)]
    Entry(P4EntryVerb),
    /// List or set the counters of a loaded program
    #[command(subcommand)]
    Counter(P4CounterVerb),
    /// List or set the registers of a loaded program
    #[command(subcommand)]
    Register(P4RegisterVerb),
    /// List or set the rates of a loaded program's meters
    #[command(subcommand)]
    Meter(P4MeterVerb),
    /// Change or list members and groups of a loaded program's action profiles, while packets flow
    #[command(subcommand)]
    Group(P4GroupVerb),
    /// Show or change the ports of loaded programs, which stay
    #[command(subcommand)]
    Port(P4PortVerb),
    /// Show, add or remove links between programs: what one sends by its end comes to the other one by its
    /// end, both ways
    #[command(subcommand)]
    Link(P4LinkVerb),
    /// Show, add, move, replace or remove stages: programs that see packets of ports before their forwarder
    /// does, and pass or drop them
    #[command(subcommand)]
    Stage(P4StageVerb),
    /// Return to the program, with its entries, and to the ports that were there before the last load; once
    /// more undoes that
    Rollback {
        /// Name of the program
        name: String,
    },
    /// Write a loaded program to a file: with its entries, and its counters and registers as they are
    Export {
        /// Name of the program
        name: String,
        /// The file
        file: PathBuf,
    },
    /// Load an exported program with what it had counted and kept; there must be none of that name
    Import(P4ImportArgs),
    /// End a program; its ports are forwarded by their switch again
    Unload {
        /// Name of the program
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum P4PortVerb {
    /// Show ports of programs with their numbers, and links
    Show {
        /// Of this program only
        name: Option<String>,
    },
    /// Bind ports or add links, in the place of what had the number; `reload` restores what the file has
    Set {
        /// Name of the program
        name: String,
        /// A number of the program, and a port of the instance or a port of another program behind it
        #[arg(value_name = "NUMBER=PORT|NUMBER=PROGRAM:NUMBER", required = true)]
        ports: Vec<PlacedPort>,
    },
    /// Free numbers of a program: ports are forwarded by their switch again, links end
    Remove {
        /// Name of the program
        name: String,
        /// Numbers by which the program knows them
        #[arg(value_name = "NUMBER", required = true)]
        numbers: Vec<u16>,
    },
}

#[derive(Debug, Subcommand)]
pub enum P4LinkVerb {
    /// Show all links
    Show,
    /// Add a link, in the place of what the first end was
    Add {
        /// A port of a program, 0 to 510
        #[arg(value_name = "PROGRAM:NUMBER")]
        from: P4End,
        /// A port of another program, or of the same one
        #[arg(value_name = "PROGRAM:NUMBER")]
        to: P4End,
    },
    /// Remove a link
    Remove {
        /// Either end
        #[arg(value_name = "PROGRAM:NUMBER")]
        end: P4End,
    },
}

#[derive(Debug, Subcommand)]
pub enum P4StageVerb {
    /// Show all stages in the order in which packets see them
    Show,
    /// Make a loaded program a stage, or change where it is one; it must have no ports and no links
    Add {
        /// Name of the program
        name: String,
        /// Place in the order, 0 to 65535, lower ones first [default: 0]
        #[arg(long, value_name = "N", default_value_t = 0)]
        at: u16,
        /// All ports of this switch have the stage, present and future ones
        #[arg(long, value_name = "SWITCH", required_unless_present = "ports")]
        switch: Option<Name>,
        /// A port that has the stage, and the number by which the program knows it, 0 to 510; may be given
        /// several times
        #[arg(long = "port", value_name = "NUMBER=PORT")]
        ports: Vec<PlacedPort>,
    },
    /// Give a stage another place in the order
    Move {
        /// Name of the program
        name: String,
        /// Place in the order, lower ones first
        at: u16,
    },
    /// Put a loaded program in the place of a stage, at once
    Replace {
        /// Name of the program that is a stage
        name: String,
        /// Name of the program that becomes one
        with: String,
    },
    /// End a stage; its program stays loaded
    Remove {
        /// Name of the program
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum P4EntryVerb {
    /// Add entries: all appear at once, or none does
    Add(P4EntryArgs),
    /// Give entries that there are another action
    Set(P4EntryArgs),
    /// Delete entries: all disappear at once, or none does
    Delete(P4EntryArgs),
    /// List entries as lines of BMv2, with what they counted
    List {
        /// Name of the program
        name: String,
        /// Of this table only
        table: Option<String>,
    },
}

#[derive(Args, Debug)]
pub struct P4EntryArgs {
    /// Name of the program
    pub name: String,
    /// "TABLE ACTION KEYS => ARGUMENTS PRIORITY", as BMv2's table_add has it; to delete, "TABLE KEYS =>
    /// PRIORITY". Other lines of BMv2's `commands.txt`, for members and groups among them, can be added
    #[arg(value_name = "ENTRY")]
    pub entries: Vec<String>,
    /// Further ones, one in each line
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum P4GroupVerb {
    /// List members and groups
    List {
        /// Name of the program
        name: String,
        /// Of this action profile only
        profile: Option<String>,
    },
    /// Add a group
    Add(P4GroupArgs),
    /// Give a group other members
    Set(P4GroupArgs),
    /// Remove a group to which no entry leads
    Remove(P4ProfileArgs),
    /// Add a member: an action to which entries and groups lead
    AddMember(P4MemberArgs),
    /// Give a member another action
    SetMember(P4MemberArgs),
    /// Remove a member to which no entry and no group leads
    RemoveMember(P4ProfileArgs),
}

/// A member or a group of an action profile.
#[derive(Args, Debug)]
pub struct P4ProfileArgs {
    /// Name of the program
    pub name: String,
    /// Name of the action profile, or its end; or of a table that has it
    pub profile: String,
    /// Number of the member or group
    pub number: u32,
}

#[derive(Args, Debug)]
pub struct P4GroupArgs {
    #[command(flatten)]
    pub group: P4ProfileArgs,
    /// Numbers of members, each with its part of the packets [default: 1] and the port without which it is
    /// not chosen
    #[arg(value_name = "MEMBER[:WEIGHT][@PORT]")]
    pub members: Vec<P4Choice>,
}

#[derive(Args, Debug)]
pub struct P4MemberArgs {
    #[command(flatten)]
    pub member: P4ProfileArgs,
    /// Name of the action, or its end
    pub action: String,
    /// Arguments of the action, as in `p4 entry add`
    #[arg(value_name = "ARGUMENT")]
    pub arguments: Vec<String>,
}

/// A member of a group with its part of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P4Choice {
    /// Number of the member.
    pub member: u32,
    /// Part of the packets, above 0.
    pub weight: u32,
    /// Port without which it is not chosen, below 511.
    pub watch: Option<u16>,
}

impl std::str::FromStr for P4Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<P4Choice, String> {
        let wrong = || format!("{text:?} is not MEMBER[:WEIGHT][@PORT]");
        let (rest, watch) = match text.split_once('@') {
            Some((rest, port)) => (rest, Some(port.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let (member, weight) = rest.split_once(':').unwrap_or((rest, "1"));
        let choice = P4Choice {
            member: member.parse().map_err(|_| wrong())?,
            weight: weight.parse().map_err(|_| wrong())?,
            watch,
        };
        let is_sound = choice.weight > 0 && watch.is_none_or(|port| port < control_protocol::p4::P4_PORTS);
        is_sound.then_some(choice).ok_or_else(wrong)
    }
}

#[derive(Debug, Subcommand)]
pub enum P4CounterVerb {
    /// List cells that are not zero
    List {
        /// Name of the program
        name: String,
        /// Of this counter only
        counter: Option<String>,
    },
    /// Set a cell
    Set {
        /// Name of the program
        name: String,
        /// Name of the counter, or its end
        counter: String,
        /// Number of the cell
        cell: u32,
        /// Packets
        packets: u64,
        /// Bytes
        bytes: u64,
    },
}

#[derive(Debug, Subcommand)]
pub enum P4RegisterVerb {
    /// List cells that are not zero
    List {
        /// Name of the program
        name: String,
        /// Of this register only
        register: Option<String>,
    },
    /// Set a cell
    Set {
        /// Name of the program
        name: String,
        /// Name of the register, or its end
        register: String,
        /// Number of the cell
        cell: u32,
        /// The value, decimal up to 64 bits, or hexadecimal of any width
        value: Words,
    },
}

#[derive(Debug, Subcommand)]
pub enum P4MeterVerb {
    /// List rates
    List {
        /// Name of the program
        name: String,
    },
    /// Set the rates of a cell, or of all; the meter begins anew
    Set {
        /// Name of the program
        name: String,
        /// Name of the meter, or its end
        meter: String,
        /// Number of the cell, or `all`
        cell: String,
        /// Packets or bytes a second up to which packets are green, and burst
        #[arg(value_name = "RATE:BURST")]
        committed: String,
        /// Packets or bytes a second up to which packets are yellow, and burst
        #[arg(value_name = "RATE:BURST")]
        peak: String,
    },
}

/// Under which name a program runs, for which ports, and what its packets may take.
#[derive(Args, Debug)]
pub struct P4PlaceArgs {
    /// Name of the program in the instance [default: that of the file]
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    /// A port of the instance, and the number by which the program knows it, 0 to 510, or a link to a port of
    /// another program as NUMBER=PROGRAM:NUMBER; may be given several times
    #[arg(long = "port", value_name = "NUMBER=PORT")]
    pub ports: Vec<PlacedPort>,
    /// Operations that a packet may take in a pass, up to 1000000: longer turns are rarer [default: 32768]
    #[arg(long, value_name = "N")]
    pub operations: Option<P4Operations>,
}

#[derive(Args, Debug)]
pub struct P4LoadArgs {
    /// What p4c wrote for BMv2 (JSON), or the serialised form
    pub program: PathBuf,
    /// P4Info of the program, text or binary
    #[arg(long, value_name = "FILE")]
    pub p4info: Option<PathBuf>,
    #[command(flatten)]
    pub place: P4PlaceArgs,
    /// Entries: BMv2's `commands.txt`, runtime JSON as in P4's tutorials, or a script of a packet test; may
    /// be given several times
    #[arg(long, value_name = "FILE")]
    pub entries: Vec<PathBuf>,
    /// Load it even if registers, counters or meters of the program in whose place it comes are lost
    #[arg(long)]
    pub discard: bool,
}

#[derive(Args, Debug)]
pub struct P4TestArgs {
    /// Name of a loaded program; or, if there is such a file, what p4c wrote for BMv2 (JSON), or the
    /// serialised form
    #[arg(value_name = "NAME|FILE")]
    pub program: String,
    /// Scripts of packet tests; each begins with the program as it is, its counters and registers at zero
    #[arg(value_name = "SCRIPT", required = true)]
    pub scripts: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub struct P4ImportArgs {
    /// What `p4 export` wrote
    pub file: PathBuf,
    #[command(flatten)]
    pub place: P4PlaceArgs,
}

#[derive(Args, Debug)]
pub struct P4RunArgs {
    /// What p4c wrote for BMv2 (JSON), or the serialised form
    pub program: PathBuf,
    /// P4Info of the program, text or binary
    #[arg(long, value_name = "FILE")]
    pub p4info: Option<PathBuf>,
    /// Packets that enter by a port (pcap or pcapng); may be given several times
    #[arg(long = "pcap", value_name = "PORT=FILE")]
    pub pcaps: Vec<PortFile>,
    /// Entries: runtime JSON as in P4's tutorials, or a script of a packet test; may be given several times
    #[arg(long, value_name = "FILE")]
    pub entries: Vec<PathBuf>,
    /// Directory for packets that leave; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Show what the program does with each packet; with --json on standard error
    #[arg(long)]
    pub trace: bool,
    /// Seed of the program's `random`
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// A number, as words of 64 bits, the least significant first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words(pub Vec<u64>);

impl std::str::FromStr for Words {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || format!("`{text}` is no number");
        let Some(digits) = text.strip_prefix("0x") else {
            return text.parse().map(|word| Words(vec![word])).map_err(|_| error());
        };
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(error());
        }
        let words = digits.as_bytes().rchunks(16).map(|word| {
            let word = std::str::from_utf8(word).unwrap_or_default();
            u64::from_str_radix(word, 16).map_err(|_| error())
        });
        words.collect::<Result<_, _>>().map(Words)
    }
}

/// A file for a port, written `PORT=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFile {
    /// Number of the port; 511 means "drop" in v1model.
    pub port: u32,
    /// The file.
    pub path: PathBuf,
}

impl std::str::FromStr for PortFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (port, path) = text.split_once('=').ok_or("PORT=FILE is wanted")?;
        match port.parse() {
            Ok(port @ 0..=510) if !path.is_empty() => Ok(PortFile {
                port,
                path: path.into(),
            }),
            Ok(_) if path.is_empty() => Err("the file is missing".into()),
            _ => Err(format!("`{port}` is no port: 0 to 510 are")),
        }
    }
}

/// Requests to a running instance.
#[derive(Debug, Subcommand)]
pub enum UserVerb {
    /// Show processes, and what needs attention
    ///
    /// With --check or --wait the exit status is 0 if the switch is well, 3 if it is degraded: something
    /// needs attention, as `status` says, and 4 if it is down: there is no instance, control process or data
    /// plane.
    Status(StatusArgs),
    /// Gather what is needed to understand a fault
    ///
    /// Outputs of all verbs, the log, counters of a minute, the host's processors and interfaces.
    ///
    /// The configuration is what is in force, without the comments of the file. Names and addresses of
    /// virtual machines are in it; packets are not.
    Report(ReportArgs),
    /// Add, delete and list switches
    #[command(subcommand)]
    Switch(SwitchVerb),
    /// Add, delete, change and list ports
    #[command(subcommand)]
    Port(PortVerb),
    /// Show known MAC addresses
    #[command(subcommand)]
    Mac(MacVerb),
    /// Show installed flows
    #[command(subcommand)]
    Flow(FlowVerb),
    /// Show what happened lately to ports, MAC addresses and processes
    ///
    /// Events of the last 15 minutes are shown, those of the configuration included. A control process that
    /// was started again knows what happened since. Of a port that causes too many events, the number is
    /// shown. With --json and --follow, each event is a line.
    Events {
        /// Go on with what happens from now on, until interrupted
        #[arg(long)]
        follow: bool,
    },
    /// Show packets, bytes and drops by reason
    Stats(StatsArgs),
    /// Show ports by rate, drops, processes and cores as they are now, until interrupted
    ///
    /// The strip beside a core shows what its worker did: `#` moved packets, `~` was awake and found none,
    /// `.` slept; and ports whose packets it begins with. Without a terminal, the same comes as text.
    Top(TopArgs),
    /// Run a packet through the real tables without forwarding it, and show each step
    Trace(TraceArgs),
    /// Record a port's packets, with the reasons of drops as comments
    Capture(CaptureArgs),
    /// Check and show policies of ports
    #[command(subcommand)]
    Policy(PolicyVerb),
    /// Check a configuration file; no running instance is needed
    ///
    /// Exit status 2 says that `run` would refuse the file. Warnings are about what has no effect, and about
    /// cores that this host lacks.
    Check {
        /// Configuration file (TOML)
        file: PathBuf,
    },
    /// Show what is in force as a configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Put another configuration in force, and in the place of the file given at the start
    ///
    /// What the file had before is in a file beside it, whose name ends in `.old`. Switches and ports that
    /// were added by command become the file's where it has their names, and stay where it has not.
    Apply(ApplyArgs),
    /// Keep the configuration that was applied with --confirm
    Confirm,
    /// Read the configuration file again and apply what has changed
    ///
    /// Ports change in place where they can. Those that have to be replaced are named before that is done.
    Reload {
        /// Change nothing: only show what a reload would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the versions of this command and of the running instance
    Version,
}

#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Say in a line whether the switch is well
    #[arg(long)]
    pub check: bool,
    /// Wait until it is well, or in this state or a better one, for 30 s or --timeout
    #[arg(long, value_name = "well|degraded|down", num_args = 0..=1, default_missing_value = "well", require_equals = true)]
    pub wait: Option<Health>,
}

/// Whether a switch does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Health {
    /// Nothing needs attention.
    Well,
    /// Something does.
    Degraded,
    /// There is no instance, control process or data plane.
    Down,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("place").required(true))]
pub struct ReportArgs {
    /// Directory to write; must not exist
    #[arg(group = "place")]
    pub directory: Option<PathBuf>,
    /// Write one file instead, a tar archive
    #[arg(short, long, value_name = "FILE", group = "place")]
    pub output: Option<PathBuf>,
    /// Seconds for which counters are watched
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
}

#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Show switches, ports and policies of file and commands as one configuration, which `check`, `apply`
    /// and `reload` accept
    ///
    /// P4 programs that commands have loaded or changed are shown with the files in the run directory that
    /// have them; these are gone when the instance ends.
    Show,
}

#[derive(Args, Debug)]
pub struct ApplyArgs {
    /// Configuration file (TOML)
    pub file: PathBuf,
    /// Take it back after so many seconds, unless `hyperswitch confirm` keeps it; only then is the file given
    /// at the start replaced
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub confirm: Option<u32>,
    /// Change nothing: only show what would change
    #[arg(long, conflicts_with = "confirm")]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum SwitchVerb {
    /// Add a switch until it is deleted or the instance ends
    Add(Box<SwitchArgs>),
    /// Delete a switch that was added by command, with its ports
    Del { name: String },
    /// List switches
    List,
}

#[derive(Args, Debug)]
pub struct SwitchArgs {
    /// Name, unique among switches
    pub name: Name,
    /// What its ports can reach: the outside too (external), each other and the host (internal), or each
    /// other only (private)
    #[arg(long = "type", value_name = "TYPE", default_value = "private")]
    pub kind: SwitchKind,
    /// Network device that joins an external switch to the world
    #[arg(long, value_name = "DEVICE")]
    pub uplink: Option<InterfaceName>,
    /// How frames of the uplink are read and written: packet, or af-xdp where that is possible
    #[arg(long, value_name = "BACK-END", default_value = "packet")]
    pub uplink_back_end: UplinkBackEnd,
    /// Have frames leave by the uplink, and come for busy guests, without its forwarder
    #[arg(long)]
    pub uplink_fast_path: bool,
    /// Name of the host's interface [default: the switch's name, cut to 15 bytes]
    #[arg(long, value_name = "NAME")]
    pub host_interface: Option<InterfaceName>,
    /// Address of the host's interface, with prefix length; may be given several times
    #[arg(long = "host-address", value_name = "ADDRESS/LENGTH")]
    pub host_addresses: Vec<IpPrefix>,
    /// Hardware address of the host's interface
    #[arg(long, value_name = "MAC")]
    pub host_mac: Option<MacAddr>,
    /// Port policy of the host's interface
    #[arg(long, value_name = "POLICY")]
    pub host_policy: Option<Name>,
    /// Port policy of the uplink
    #[arg(long, value_name = "POLICY")]
    pub uplink_policy: Option<Name>,
    /// Default MTU of the ports
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<Mtu>,
    /// Seconds after which a MAC address that was not seen is forgotten [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub mac_ageing: Option<AgeingSeconds>,
    /// MAC addresses the switch learns in all [default: 16384]
    #[arg(long, value_name = "N")]
    pub mac_table_size: Option<TableSize>,
    /// Drop frames to unknown unicast addresses
    #[arg(long)]
    pub no_flood: bool,
    /// Drop frames for a MAC address that several ports use, instead of sending them to all of these
    #[arg(long)]
    pub drop_contested_macs: bool,
}

#[derive(Debug, Subcommand)]
pub enum PortVerb {
    /// Add a port until it is deleted or the instance ends
    Add(Box<PortArgs>),
    /// Delete a port that was added by command
    Del { name: String },
    /// Change a port; for one from the configuration file, until the next reload
    Set(Box<PortSetArgs>),
    /// Show everything about a port
    Show { name: String },
    /// List ports
    List {
        /// Only of this switch
        #[arg(long)]
        switch: Option<String>,
    },
}

#[derive(Args, Debug)]
pub struct PortArgs {
    /// Switch to add it to
    pub switch: String,
    /// Name, unique among ports
    pub name: Name,
    /// Succeed where the port is there already, with the same switch and settings
    #[arg(long)]
    pub exists_ok: bool,
    /// Kind of connection: vhost-user, tap or veth
    #[arg(long = "type", value_name = "TYPE", default_value = "vhost-user")]
    pub kind: PortKind,
    /// vhost-user: socket [default: <run dir>/<name>.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// vhost-user: which side listens, the switch (server) or the VMM (client) [default: server]
    #[arg(long)]
    pub mode: Option<PortMode>,
    /// vhost-user: number of the VMM's user [default: the user to whom the directories of the socket belong]
    #[arg(long, value_name = "UID")]
    pub owner: Option<UserId>,
    /// vhost-user: group of the socket that the switch makes, by name or number [default: as configured]
    #[arg(long)]
    pub group: Option<Group>,
    /// vhost-user: permissions of that socket: 0600, 0660 or 0666 [default: as configured]
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<SocketMode>,
    #[command(flatten)]
    pub vlan: VlanArgs,
    /// Largest IP packet [default: the switch's]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<Mtu>,
    /// MAC address offered to the guest, or set on the TAP or veth
    #[arg(long)]
    pub mac: Option<MacAddr>,
    /// MAC addresses the port may learn [default: 1024]
    #[arg(long, value_name = "N")]
    pub mac_limit: Option<MacLimit>,
    /// Packets per second that may be of no known flow [default: 1000]
    #[arg(long, value_name = "N")]
    pub miss_rate: Option<MissRate>,
    #[command(flatten)]
    pub storms: StormArgs,
    #[command(flatten)]
    pub marks: MarkArgs,
    #[command(flatten)]
    pub bandwidth: BandwidthArgs,
    /// Address that is on this port and nowhere else; may be given several times
    #[arg(long = "static-mac", value_name = "MAC")]
    pub static_macs: Vec<MacAddr>,
    /// Let it talk only to ports that are not isolated
    #[arg(long)]
    pub isolated: bool,
    /// Send it no frames to unknown unicast addresses
    #[arg(long)]
    pub no_flood: bool,
    /// TAP, veth: interface name [default: the port's name, cut to 15 bytes]
    #[arg(long, value_name = "NAME")]
    pub interface: Option<InterfaceName>,
    /// TAP, veth: network namespace, a name under /run/netns or a path
    #[arg(long)]
    pub netns: Option<Netns>,
    /// Address with prefix length, which a TAP or veth gets and the guard `spoof` lets pass; may be given
    /// several times
    #[arg(long = "address", value_name = "ADDRESS/LENGTH")]
    pub addresses: Vec<IpPrefix>,
    /// What the guest must not do: spoof, dhcp, router or bpdu; a comma-separated list
    #[arg(long, value_name = "GUARDS", value_delimiter = ',')]
    pub guards: Vec<Guard>,
    /// Access control list for packets from the guest
    #[arg(long, value_name = "ACL")]
    pub acl_from: Option<Name>,
    /// Access control list for packets to the guest
    #[arg(long, value_name = "ACL")]
    pub acl_to: Option<Name>,
    /// Security group that the port is a member of; may be given several times
    #[arg(long = "security-group", value_name = "GROUP")]
    pub security_groups: Vec<Name>,
    /// Log packets that guards, lists and groups drop
    #[arg(long)]
    pub log_drops: bool,
    #[command(flatten)]
    pub sources: SourceArgs,
}

/// Addresses of a port that are not stated.
#[derive(Args, Debug, Default)]
pub struct SourceArgs {
    /// Where further addresses come from that the guard `spoof` lets pass: configuration (nowhere), dhcp or
    /// first-use [default: configuration]
    #[arg(long, value_name = "SOURCE")]
    pub address_source: Option<AddressSource>,
    /// How many of these there may be, 1 to 64 [default: 4]
    #[arg(long, value_name = "N")]
    pub address_limit: Option<AddressLimit>,
    /// Whether leases of a DHCP server behind the port count [default: false]
    #[arg(long, value_name = "true|false")]
    pub dhcp_server: Option<bool>,
}

/// Limits of frames that go to all ports.
#[derive(Args, Debug, Default)]
pub struct StormArgs {
    /// Broadcasts per second, and as many multicasts and frames to unknown addresses; or CLASS=N for some of
    /// broadcast, multicast and unknown; 0: no limit [default: 10000]
    #[arg(long, value_name = "N")]
    pub storm_control: Option<StormControl>,
    /// Bits per second of these frames, like 10M or CLASS=RATE,...; none: no limit [default: none]
    #[arg(long, value_name = "RATE")]
    pub storm_control_bits: Option<StormBits>,
}

/// Marks of packets from a port.
#[derive(Args, Debug, Default)]
pub struct MarkArgs {
    /// Priority that VLAN tags of packets from the port get, 0 to 7; trust: the sender's [default: trust]
    #[arg(long, value_name = "PRIORITY")]
    pub vlan_priority: Option<VlanPriority>,
    /// Codepoint that IP packets from the port get, 0 to 63; trust: the sender's [default: trust]
    #[arg(long, value_name = "DSCP")]
    pub dscp: Option<Dscp>,
}

/// Bandwidth of a port.
#[derive(Args, Debug, Default)]
pub struct BandwidthArgs {
    /// Bits per second that it may send, like 100M; what is over stays with its guest; none: no limit
    #[arg(long, value_name = "RATE")]
    pub max_rate_from: Option<MaxRate>,
    /// Bits per second that it may receive; what is over waits; none: no limit
    #[arg(long, value_name = "RATE")]
    pub max_rate_to: Option<MaxRate>,
    /// Bytes that pass at once after a pause [default: those of 10 ms]
    #[arg(long, value_name = "BYTES")]
    pub max_burst: Option<MaxBurst>,
    /// Weight of what it sends where a bandwidth is shared, 1 to 100 [default: 1]
    #[arg(long)]
    pub weight: Option<Weight>,
    /// Priority of what it sends where a bandwidth is shared, 0 to 7, which goes first [default: 0]
    #[arg(long)]
    pub priority: Option<Priority>,
    /// Bits per second that it gets at least where a bandwidth is shared; none: no minimum
    #[arg(long, value_name = "RATE")]
    pub min_rate: Option<MaxRate>,
}

/// VLANs of a port; none of these: untagged frames only.
#[derive(Args, Debug, Default)]
pub struct VlanArgs {
    /// Untagged frames, which belong to this VLAN
    #[arg(long, value_name = "VLAN", conflicts_with_all = ["trunk", "native"])]
    pub access: Option<VlanId>,
    /// Tagged frames of these VLANs: 10,20,100-199, or all
    #[arg(long, value_name = "VLANS")]
    pub trunk: Option<Trunk>,
    /// With --trunk: VLAN of untagged frames
    #[arg(long, value_name = "VLAN", requires = "trunk")]
    pub native: Option<VlanId>,
    /// Primary VLAN of a private VLAN, with the port's part in it
    #[arg(long, value_name = "VLAN", requires = "part", conflicts_with_all = ["access", "trunk", "native"])]
    pub primary: Option<VlanId>,
    /// With --primary: talk to promiscuous ports only, in this VLAN
    #[arg(long, value_name = "VLAN", requires = "primary", group = "part")]
    pub isolated_vlan: Option<VlanId>,
    /// With --primary: talk to promiscuous ports and others of this community, in this VLAN
    #[arg(long, value_name = "VLAN", requires = "primary", group = "part")]
    pub community: Option<VlanId>,
    /// With --primary: talk to all, and hear these secondary VLANs: a comma-separated list
    #[arg(
        long,
        value_name = "VLANS",
        requires = "primary",
        group = "part",
        value_delimiter = ','
    )]
    pub promiscuous: Vec<VlanId>,
}

#[derive(Args, Debug)]
pub struct PortSetArgs {
    /// Port
    pub name: String,
    #[command(flatten)]
    pub vlan: VlanArgs,
    /// No VLANs: untagged frames only
    #[arg(long, conflicts_with_all = ["access", "trunk", "native", "primary"])]
    pub untagged: bool,
    /// Largest IP packet; a running guest learns of it at its next start
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<Mtu>,
    /// MAC addresses the port may learn
    #[arg(long, value_name = "N")]
    pub mac_limit: Option<MacLimit>,
    /// Packets per second that may be of no known flow
    #[arg(long, value_name = "N")]
    pub miss_rate: Option<MissRate>,
    #[command(flatten)]
    pub storms: StormArgs,
    #[command(flatten)]
    pub marks: MarkArgs,
    #[command(flatten)]
    pub bandwidth: BandwidthArgs,
    /// Addresses that are on this port and nowhere else, in place of its present ones
    #[arg(long = "static-mac", value_name = "MAC")]
    pub static_macs: Vec<MacAddr>,
    /// Forget its static addresses
    #[arg(long, conflicts_with = "static_macs")]
    pub no_static_macs: bool,
    /// Whether it talks only to ports that are not isolated
    #[arg(long, value_name = "true|false")]
    pub isolated: Option<bool>,
    /// Whether it gets frames to unknown unicast addresses
    #[arg(long, value_name = "true|false")]
    pub flood: Option<bool>,
    #[command(flatten)]
    pub policies: PolicyArgs,
}

/// Policies that a port has from now on.
#[derive(Args, Debug)]
pub struct PolicyArgs {
    /// What the guest must not do, in place of its present guards: spoof, dhcp, router or bpdu; a
    /// comma-separated list
    #[arg(long, value_name = "GUARDS", value_delimiter = ',')]
    pub guards: Vec<Guard>,
    /// No guards
    #[arg(long, conflicts_with = "guards")]
    pub no_guards: bool,
    /// Access control list for packets from the guest
    #[arg(long, value_name = "ACL")]
    pub acl_from: Option<Name>,
    /// No access control list for packets from the guest
    #[arg(long, conflicts_with = "acl_from")]
    pub no_acl_from: bool,
    /// Access control list for packets to the guest
    #[arg(long, value_name = "ACL")]
    pub acl_to: Option<Name>,
    /// No access control list for packets to the guest
    #[arg(long, conflicts_with = "acl_to")]
    pub no_acl_to: bool,
    /// Security group that the port is a member of, in place of its present ones; may be given several times
    #[arg(long = "security-group", value_name = "GROUP")]
    pub security_groups: Vec<Name>,
    /// No security groups
    #[arg(long, conflicts_with = "security_groups")]
    pub no_security_groups: bool,
    #[command(flatten)]
    pub sources: SourceArgs,
    /// Whether packets that guards, lists and groups drop are logged
    #[arg(long, value_name = "true|false")]
    pub log_drops: Option<bool>,
}

#[derive(Debug, Subcommand)]
pub enum MacVerb {
    /// List learned and static addresses
    List {
        /// Only of this switch
        #[arg(long)]
        switch: Option<String>,
    },
    /// Forget learned addresses; they are learned again from the next packets
    Flush {
        /// Only of this switch
        #[arg(long)]
        switch: Option<String>,
        /// Only on this port
        #[arg(long)]
        port: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum FlowVerb {
    /// List flows
    List {
        /// Only of this switch
        #[arg(long)]
        switch: Option<String>,
    },
    /// Remove flows; the next packet of each kind is decided again
    Flush {
        /// Only of this switch
        #[arg(long)]
        switch: Option<String>,
    },
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct StatsArgs {
    /// Only of this port
    pub port: Option<String>,
    /// Show what happens in each interval, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    pub watch: Option<Watch>,
    /// With --watch: the order of the ports
    #[arg(long, value_enum, default_value_t, requires = "watch")]
    pub sort: SortBy,
    /// With --watch: only the first ports of that order
    #[arg(long, value_name = "N", requires = "watch")]
    pub top: Option<usize>,
    #[command(subcommand)]
    pub verb: Option<StatsVerb>,
}

/// What follows `--watch`: seconds, or the port that could as well stand before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watch {
    /// An interval.
    Every(Duration),
    /// A port, every second.
    Port(String),
}

impl std::str::FromStr for Watch {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = |byte: u8| byte.is_ascii_digit() || byte == b'.';
        if text.starts_with(|first: char| first.is_ascii_digit()) && text.bytes().all(digits) {
            return interval(text).map(Watch::Every);
        }
        Ok(Watch::Port(text.to_owned()))
    }
}

impl StatsArgs {
    /// The port, and the interval if there is one.
    pub fn selected(&self) -> (Option<&str>, Option<Duration>) {
        match &self.watch {
            None => (self.port.as_deref(), None),
            Some(Watch::Every(interval)) => (self.port.as_deref(), Some(*interval)),
            Some(Watch::Port(port)) => (
                Some(self.port.as_deref().unwrap_or(port)),
                Some(Duration::from_secs(1)),
            ),
        }
    }
}

#[derive(Args, Debug)]
pub struct TopArgs {
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// The order of the ports; `s` changes it
    #[arg(long, value_enum, default_value_t)]
    pub sort: SortBy,
    /// Only ports whose names contain this; `/` changes it
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// End after so many readings
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
}

/// Seconds between two readings, with a fraction.
fn interval(text: &str) -> Result<Duration, &'static str> {
    let seconds: Option<f64> = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or("not in 0.1..=86400 seconds")
}

/// What rates are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SortBy {
    /// The port's name.
    #[default]
    Name,
    /// Packets from the port.
    Rx,
    /// Packets to the port.
    Tx,
    /// Packets of the port that were dropped.
    Drops,
}

#[derive(Debug, Subcommand)]
pub enum StatsVerb {
    /// Show which threads did the work, and the cycles that it took
    ///
    /// Busy time is that of steps that moved packets, as in `ovs-appctl dpif-netdev/pmd-stats-show`. With
    /// --json all times are in cycles of the processor's counter, whose rate is cycles-per-second.
    Placement,
}

#[derive(Args, Debug)]
pub struct TraceArgs {
    /// Port the packet is to come from
    #[arg(long, value_name = "PORT")]
    pub in_port: String,
    /// Source MAC address
    #[arg(
        long,
        value_name = "MAC",
        required_unless_present = "pcap",
        conflicts_with = "pcap"
    )]
    pub src: Option<MacAddr>,
    /// Destination MAC address; may be multicast or broadcast
    #[arg(
        long,
        value_name = "MAC",
        required_unless_present = "pcap",
        conflicts_with = "pcap"
    )]
    pub dst: Option<AnyMac>,
    /// Tag it with this VLAN
    #[arg(long, value_name = "VLAN", conflicts_with = "pcap")]
    pub vlan: Option<VlanId>,
    /// IP source and destination address
    #[arg(long, value_name = "SRC,DST", conflicts_with = "pcap")]
    pub ip: Option<IpPair>,
    /// Transport protocol
    #[arg(long, value_name = "tcp|udp|icmp", requires = "ip")]
    pub proto: Option<Proto>,
    /// TCP or UDP source port
    #[arg(long, value_name = "N", requires = "proto", default_value_t = 40_000)]
    pub sport: u16,
    /// TCP or UDP destination port
    #[arg(long, value_name = "N", requires = "proto", default_value_t = 80)]
    pub dport: u16,
    /// Take the packet from this file (pcap or pcapng)
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Which packet of the file, counted from 1
    #[arg(long, value_name = "N", requires = "pcap", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub index: u64,
}

/// Transport protocols that `trace` can make up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Proto {
    Tcp,
    Udp,
    Icmp,
}

/// Any MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyMac(pub [u8; 6]);

impl std::str::FromStr for AnyMac {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = text.split(':').map(|part| {
            let plain = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            plain.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        });
        let bytes: Option<Vec<u8>> = bytes.collect();
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map(AnyMac)
            .ok_or("expected a MAC address like 52:54:00:00:00:01 or ff:ff:ff:ff:ff:ff")
    }
}

/// `10.0.0.1,10.0.0.2`: source and destination of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPair {
    pub src: IpAddr,
    pub dst: IpAddr,
}

impl std::str::FromStr for IpPair {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once(',')
            .and_then(|(src, dst)| {
                Some(IpPair {
                    src: src.parse().ok()?,
                    dst: dst.parse().ok()?,
                })
            })
            .filter(|pair| pair.src.is_ipv4() == pair.dst.is_ipv4())
            .ok_or("expected two IP addresses of one family, SRC,DST")
    }
}

#[derive(Args, Debug)]
pub struct CaptureArgs {
    /// Port
    pub port: String,
    /// File to write (pcapng), or - for standard output
    #[arg(short, long = "write", value_name = "FILE")]
    pub write: PathBuf,
    /// End after this many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub duration: Option<u64>,
    /// Bytes kept of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 65_553, value_parser = clap::value_parser!(u32).range(14..=65_553))]
    pub snap_length: u32,
}
