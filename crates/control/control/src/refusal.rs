//! Why a request or a configuration is refused. The texts are for users.

use management::{CheckError, ConfigError, ErrorCode, ErrorPlace, ErrorReport, Group};
use std::io;
use std::path::PathBuf;

/// Why nothing was changed, or nothing can be answered.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields of a variant are what its text names")]
pub enum Refusal {
    /// The user came through the socket for queries.
    #[error(
        "{} answers queries only; this needs {}, which its owner may use", .view.display(), .control.display()
    )]
    ViewOnly { view: PathBuf, control: PathBuf },
    /// The process for P4Runtime asks for what is not its own.
    #[error("the process for P4Runtime may ask for programs of its devices only")]
    NoDevice,
    /// The line is no request.
    #[error("not a request: {0}")]
    Malformed(#[source] serde_json::Error),
    /// No switch has this name.
    #[error("there is no switch {0}")]
    NoSwitch(String),
    /// No port has this name.
    #[error("there is no port {0}")]
    NoPort(String),
    /// No rule list has this name, nor guards a port of this name.
    #[error("there is no policy {0}; `hyperswitch policy list` names them")]
    NoPolicy(String),
    /// No P4 switch has this name.
    #[error("there is no P4 switch {0}; `hyperswitch p4 show` names them")]
    NoP4(String),
    /// The P4 switch can be ended in the file only.
    #[error("P4 switch {0} comes from the configuration file; remove it there and reload")]
    P4OfFile(String),
    /// Nothing was loaded in the place of another program.
    #[error("P4 switch {0} had no other program before")]
    NoFormerP4(String),
    /// Another user has put another program in its place meanwhile.
    #[error("P4 switch {0} has another program by now; try again")]
    P4Changed(String),
    /// A P4 switch cannot have the port.
    #[error("P4 switch {name}: port {port}: {reason}")]
    P4Port {
        name: String,
        port: String,
        reason: String,
    },
    /// Two ports are to have the same number.
    #[error("P4 switch {0}: two ports have the same number")]
    P4Place(String),
    /// A P4 switch has neither port nor link of that number.
    #[error("P4 switch {0} has no port {1}")]
    NoP4Port(String, u16),
    /// A P4 switch cannot be such a stage.
    #[error("P4 switch {name}: stage: {reason}")]
    P4Stage {
        /// The P4 switch.
        name: String,
        /// Why.
        reason: String,
    },
    /// There are too many links between P4 switches.
    #[error("there can be {0} links between P4 switches")]
    TooManyLinks(usize),
    /// Links join too many P4 switches.
    #[error("links join P4 switch {0} with others; {1} of them can be joined, directly or by others")]
    TooManyJoined(String, usize),
    /// All numbers of P4 switches are taken.
    #[error("there are {0} P4 switches already")]
    TooManyP4(u32),
    /// Another program is being loaded.
    #[error("another P4 program is being loaded; try again")]
    P4Busy,
    /// A program came in no sealed memfd, or is too long.
    #[error("a P4 program needs one sealed memfd of at most 8 MiB, sent along with the request")]
    NoProgram,
    /// The switch can be deleted in the file only.
    #[error("switch {0} comes from the configuration file; remove it there and reload")]
    SwitchOfFile(String),
    /// The port can be deleted in the file only.
    #[error("port {0} comes from the configuration file; remove it there and reload")]
    PortOfFile(String),
    /// A port of host or uplink cannot be deleted.
    #[error("port {port} belongs to switch {switch}, whose type asks for it")]
    PortOfSwitch { port: String, switch: String },
    /// A port of host or uplink has no configuration of its own.
    #[error("port {port} is configured by switch {switch}")]
    ConfiguredBySwitch { port: String, switch: String },
    /// The file has lost a switch to which requests have added ports.
    #[error("switch {switch} still has ports that were added at run time: {}; delete them first", .ports.join(", "))]
    RuntimePorts { switch: String, ports: Vec<String> },
    /// The path does not fit a socket address (`sun_path`, unix(7)).
    #[error("port {port}: socket path {} is longer than 107 bytes", .path.display())]
    LongSocketPath { port: String, path: PathBuf },
    /// Two ports are to have the same socket.
    #[error("port {port}: socket {} is already that of {user}", .path.display())]
    SocketTaken {
        port: String,
        path: PathBuf,
        user: String,
    },
    /// A new port cannot be connected.
    #[error("port {port}: {problem}")]
    Port { port: String, problem: Problem },
    /// Parts of the configuration contradict each other.
    #[error(transparent)]
    Contradiction(#[from] CheckError),
    /// The configuration file cannot be used.
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    /// The configuration file cannot be read.
    #[error("{}: {error}", .path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// The next control process would not know of the change.
    #[error("cannot save the state in {}: {error}; nothing that is changed now would outlast the control process", .path.display())]
    Unsaved { path: PathBuf, error: io::Error },
    /// A configuration came in no sealed memfd, or is too long, or is no text.
    #[error("a configuration is text of at most 8 MiB in one sealed memfd, sent along with the request")]
    NoText,
    /// A reload would undo what is to be confirmed.
    #[error(
        "{0} was applied and waits to be confirmed: `hyperswitch confirm` keeps it, and in {1} s the configuration before it returns"
    )]
    Unconfirmed(String, u64),
    /// Too late, or another one was applied since.
    #[error(
        "there is no such configuration to be confirmed: it was confirmed, or taken back, or another one was applied"
    )]
    NothingToConfirm,
    /// A port of this name is another one than was to be added.
    #[error("there is a port {port} already, which differs in {}", .keys.join(", "))]
    OtherPort { port: String, keys: Vec<String> },
    /// There is nothing to reload.
    #[error("there is no configuration file; see `hyperswitch run --config`")]
    NoConfiguration,
    /// The data plane is being started, or is gone.
    #[error("there is no data plane at the moment; see `hyperswitch status`")]
    NoDataPlane,
    /// The data plane ended before it answered.
    #[error("the data plane has just ended; try again")]
    DataPlaneEnded,
    /// The data plane took longer than the time for which a user waits.
    #[error("no answer from the data plane in time; see `hyperswitch status`")]
    NoAnswer,
    /// The data plane's answer is for another question.
    #[error("the data plane's answer makes no sense")]
    WrongAnswer,
    /// The data plane's error.
    #[error("{0}")]
    DataPlane(String),
    /// As many lists as allowed are being made already.
    #[error("too many lists are being made at the moment; try again")]
    TooManyLists,
    /// The frame to trace is too short or too long.
    #[error("the frame has {length} bytes; {min} to {max} are possible")]
    FrameLength { length: usize, min: usize, max: usize },
    /// A capture came without its socket, or with more than one.
    #[error("a capture needs exactly one socket, sent along with the request")]
    NoCaptureSocket,
    /// A connection for packets came without such a socket.
    #[error("packets need exactly one socket of type SOCK_SEQPACKET, sent along with the request")]
    NoPacketSocket,
    /// A capture came with another kind of socket.
    #[error("a capture needs a socket of type SOCK_SEQPACKET or SOCK_DGRAM")]
    CaptureSocketType,
}

impl Refusal {
    /// The refusal as programs read it.
    pub fn report(&self) -> ErrorReport {
        ErrorReport::new(self.code(), self.to_string()).at(self.place())
    }

    fn code(&self) -> ErrorCode {
        use Refusal as R;
        match self {
            R::ViewOnly { .. } | R::NoDevice => ErrorCode::Forbidden,
            R::NoSwitch(_)
            | R::NoPort(_)
            | R::NoPolicy(_)
            | R::NoP4(_)
            | R::NoP4Port(..)
            | R::NoFormerP4(_) => ErrorCode::NotFound,
            R::NothingToConfirm | R::NoConfiguration => ErrorCode::NotFound,
            R::P4OfFile(_) | R::SwitchOfFile(_) | R::PortOfFile(_) => ErrorCode::OfFile,
            R::PortOfSwitch { .. } | R::ConfiguredBySwitch { .. } => ErrorCode::OfFile,
            R::P4Changed(_)
            | R::P4Place(_)
            | R::P4Port { .. }
            | R::P4Stage { .. }
            | R::RuntimePorts { .. } => ErrorCode::Conflict,
            R::SocketTaken { .. } | R::Unconfirmed(..) | R::OtherPort { .. } => ErrorCode::Conflict,
            R::P4Busy | R::NoDataPlane | R::DataPlaneEnded | R::NoAnswer => ErrorCode::Unavailable,
            R::TooManyLists => ErrorCode::Unavailable,
            R::TooManyP4(_)
            | R::TooManyLinks(_)
            | R::TooManyJoined(..)
            | R::FrameLength { .. }
            | R::LongSocketPath { .. } => ErrorCode::Limit,
            R::Contradiction(_) | R::Configuration(_) | R::Unreadable { .. } => ErrorCode::Configuration,
            R::Port { .. } => ErrorCode::Port,
            R::Malformed(_) | R::NoProgram | R::NoText => ErrorCode::Malformed,
            R::NoCaptureSocket | R::CaptureSocketType | R::NoPacketSocket => ErrorCode::Malformed,
            R::Unsaved { .. } | R::WrongAnswer | R::DataPlane(_) => ErrorCode::Failed,
        }
    }

    fn place(&self) -> ErrorPlace {
        use Refusal as R;
        let mut place = ErrorPlace::default();
        match self {
            R::NoSwitch(switch) | R::SwitchOfFile(switch) => place.switch = Some(switch.clone()),
            R::RuntimePorts { switch, .. } => place.switch = Some(switch.clone()),
            R::NoPort(port) | R::PortOfFile(port) => place.port = Some(port.clone()),
            R::P4Port { port, .. } | R::LongSocketPath { port, .. } => place.port = Some(port.clone()),
            R::SocketTaken { port, .. } | R::Port { port, .. } => place.port = Some(port.clone()),
            R::OtherPort { port, .. } => place.port = Some(port.clone()),
            R::PortOfSwitch { port, switch } | R::ConfiguredBySwitch { port, switch } => {
                place.port = Some(port.clone());
                place.switch = Some(switch.clone());
            }
            R::Configuration(error) => place = error.into(),
            R::Unreadable { path, .. } => place.file = Some(path.display().to_string()),
            _ => {}
        }
        place
    }
}

/// Why a port is not connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields of a variant are what its text names")]
pub enum Problem {
    /// The port's socket cannot be opened.
    #[error("cannot listen on {}: {error}", .path.display())]
    Listen { path: PathBuf, error: String },
    /// The socket cannot be given to the group.
    #[error(
        "there is no group {0}, or there was none when the control process started; its number works at once"
    )]
    NoGroup(Group),
    /// The connection is not accepted.
    #[error("cannot connect to {}: {error}", .path.display())]
    Connect { path: PathBuf, error: String },
    /// No connection between data plane and driver domain can be made.
    #[error("no socket pair: {0}")]
    SocketPair(String),
    /// All port numbers are taken; this many exist.
    #[error("there are {0} ports already")]
    NoNumber(u32),
    /// The data plane's error: its answer to a request about the port, or its report about the connection.
    #[error("{0}")]
    DataPlane(String),
    /// The driver domain's error about the interface.
    #[error("{0}")]
    Driver(String),
}
