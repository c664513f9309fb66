//! Ports in ovs-vswitchd's database: which of them are virtual machines, their policies and limits (RFC
//! 7047).
//!
//! `external_ids:vhost-user=server` of an interface means that a VMM connects to its port,
//! `external_ids:vhost-user=client` that one listens at `external_ids:vhost-user-path`, whose socket
//! belongs to user `external_ids:vhost-user-owner`. Types `dpdkvhostuser` and `dpdkvhostuserclient`, with
//! the path in `options:vhost-server-path`, mean the same: Neutron makes such interfaces, and the preloaded
//! library (`crates/ovs/ovs-shim/src/database.rs`) tells ovs-vswitchd that they are internal.
//! `external_ids:policy` names the port's policy, a `port-policy` of the configuration. Requests to the
//! datapath do not contain that, hence this client, which watches the columns that do. Limits (`limits`)
//! are watched by themselves: a database whose schema lacks some of their columns has none. The client
//! never waits for the database, and tries again once a second while there is none; meanwhile things stay
//! as they are.

mod limits;
mod messages;

use crate::plane::{Limits, Plug};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};
use socket_path::SocketPath;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes read before others have their turn.
const MAX_READ: usize = 1 << 20;
/// Most rows of a table that are kept. There cannot be half as many ports.
const MAX_ROWS: usize = 10_000;
/// The names by which answers about ports, and about limits, are recognised.
const PORTS: &str = "ports";
const LIMITS: &str = "limits";
/// Identifier of requests whose answers come after all was told.
const TOLD: &str = "told";
const KEY: &str = "vhost-user";
const PATH_KEY: &str = "vhost-user-path";
const OWNER_KEY: &str = "vhost-user-owner";
const POLICY_KEY: &str = "policy";
/// Types of interfaces of Open vSwitch with DPDK, and where the latter has its path.
const DPDK_SERVER: &str = "dpdkvhostuser";
const DPDK_CLIENT: &str = "dpdkvhostuserclient";
const DPDK_PATH_KEY: &str = "vhost-server-path";
/// Longest path that a Unix socket's address holds (unix(7)).
const MAX_PATH: usize = 107;

/// See the module.
#[derive(Debug, Default)]
pub struct Database {
    /// Where it may be.
    places: Vec<PathBuf>,
    /// Where it was found.
    found: Option<PathBuf>,
    socket: Option<OwnedFd>,
    received: messages::Messages,
    /// Interfaces by the identifiers of their rows.
    rows: BTreeMap<String, Interface>,
    /// All of them were told.
    ports_known: bool,
    /// Rows have come since plugs were asked for last.
    rows_changed: bool,
    tables: limits::Tables,
    /// All of these were told, or cannot be.
    limits_known: bool,
    /// Tables have changed since limits were asked for last.
    limits_changed: bool,
    /// The highest number with which all was asked for, and that of the last answer.
    asked: u64,
    told: u64,
}

/// What a row says of a port.
#[derive(Debug)]
struct Interface {
    name: String,
    plug: Option<Plug>,
    policy: Option<String>,
}

/// The database does not speak its protocol, or is gone.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] Errno),
    /// The database is gone.
    #[error("it is gone")]
    Gone,
    /// A message is longer than any may be.
    #[error("a message is too long")]
    TooLong,
    /// There is something else where a message should begin.
    #[error("a message is no object")]
    NoObject,
    /// A message is none.
    #[error("a message is none: {0}")]
    Nonsense(#[from] serde_json::Error),
}

impl Database {
    /// Not connected yet. The first of `places` whose directory is there is where it is.
    pub fn new(places: Vec<PathBuf>) -> Database {
        Database {
            places,
            ..Database::default()
        }
    }

    /// Whether it has told all that there is.
    pub fn is_known(&self) -> bool {
        self.ports_known && self.limits_known
    }

    /// Socket to the database, if it is connected.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    fn place(&self) -> Option<&PathBuf> {
        let is_there = |path: &&PathBuf| path.parent().is_some_and(Path::is_dir);
        self.places.iter().find(is_there)
    }

    /// Whether another place counts now than that of the connection.
    pub fn has_moved(&self) -> bool {
        self.socket.is_some() && self.place() != self.found.as_ref()
    }

    /// Ends the connection. What was told stays known.
    pub fn disconnect(&mut self) {
        self.socket = None;
    }

    /// Connects and asks for the tables.
    ///
    /// # Errors
    ///
    /// Nobody is there.
    pub fn connect(&mut self) -> Result<(), DatabaseError> {
        let path = self.place().ok_or(Errno::NOENT)?.clone();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&path)?)?;
        self.found = Some(path);
        self.received = messages::Messages::default();
        self.asked = self.told;
        let ports = json!({"Interface": {"columns": ["name", "external_ids", "type", "options"]}});
        for (id, columns) in [(PORTS, ports), (LIMITS, limits::columns())] {
            let parameters = json!(["Open_vSwitch", id, columns]);
            send(
                &socket,
                &json!({"method": "monitor", "params": parameters, "id": id}),
            )?;
        }
        self.socket = Some(socket);
        Ok(())
    }

    /// Asks for an answer that comes after all that the database has to say now: [`Database::told`] is at
    /// least `number` from then on. Numbers rise. After an error it is not connected.
    ///
    /// ovsdb-server tells of all changes before it looks at the next request (`ovsdb_jsonrpc_session_run`).
    ///
    /// # Errors
    ///
    /// The database is gone.
    pub fn ask_for_all(&mut self, number: u64) -> Result<(), DatabaseError> {
        let Some(socket) = self.socket.as_ref().filter(|_| number > self.asked) else {
            return Ok(());
        };
        let sent = send(
            socket,
            &json!({"method": "echo", "params": [], "id": [TOLD, number]}),
        );
        match sent {
            Ok(()) => self.asked = number,
            Err(_) => self.socket = None,
        }
        sent
    }

    /// The number with which all was asked for that was told.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Takes in what the database has said. After an error it is not connected.
    ///
    /// # Errors
    ///
    /// The database is gone, or does not speak the protocol.
    pub fn read(&mut self) -> Result<(), DatabaseError> {
        let result = self.read_some();
        if result.is_err() {
            self.socket = None;
        }
        result
    }

    fn read_some(&mut self) -> Result<(), DatabaseError> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        let (mut part, mut bytes) = (vec![0; 64 * 1024], Vec::new());
        let mut gone = Ok(());
        while bytes.len() < MAX_READ {
            match rustix::net::recv(socket, &mut part[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    gone = Err(DatabaseError::Gone);
                    break;
                }
                Ok((length, _)) => bytes.extend_from_slice(&part[..length]),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut received = std::mem::take(&mut self.received);
        let result = received.receive(&bytes, |message| self.take(message));
        self.received = received;
        result.and(gone)
    }

    fn take(&mut self, message: &Value) {
        match message["method"].as_str() {
            // All that there is.
            None if message["id"] == PORTS => {
                self.rows.clear();
                self.ports_known = true;
                self.take_rows(&message["result"]["Interface"]);
            }
            None if message["id"] == LIMITS => {
                if !message["error"].is_null() {
                    log::warn!(
                        "ovs-vswitchd's database tells no limits of ports: {:.200}",
                        message["error"]
                    );
                }
                self.tables = limits::Tables::default();
                self.limits_known = true;
                self.take_limits(&message["result"]);
            }
            None if message["id"][0] == TOLD => {
                let number = message["id"][1].as_u64().filter(|number| *number <= self.asked);
                self.told = self.told.max(number.unwrap_or(0));
            }
            Some("update") if message["params"][0] == LIMITS => self.take_limits(&message["params"][1]),
            Some("update") => self.take_rows(&message["params"][1]["Interface"]),
            Some("echo") => {
                if let Some(socket) = &self.socket {
                    let answer = json!({"id": message["id"], "result": message["params"], "error": null});
                    // A database that does not read will end the connection.
                    let _ = send(socket, &answer);
                }
            }
            _ => {}
        }
    }

    fn take_rows(&mut self, rows: &Value) {
        self.rows_changed = true;
        for (id, row) in rows.as_object().into_iter().flatten() {
            match row["new"]["name"].as_str() {
                Some(name) => {
                    let row = &row["new"];
                    let interface = Interface {
                        name: name.to_owned(),
                        plug: plug(name, row),
                        policy: value(&row["external_ids"], POLICY_KEY).map(str::to_owned),
                    };
                    keep(&mut self.rows, id, interface);
                }
                None => drop(self.rows.remove(id)),
            }
        }
    }

    fn take_limits(&mut self, updates: &Value) {
        self.tables.take(updates);
        self.limits_changed = true;
    }

    /// What ports are limited to, by names of interfaces, if that has changed since it was asked for last.
    pub fn changed_limits(&mut self) -> Option<BTreeMap<String, Limits>> {
        std::mem::take(&mut self.limits_changed).then(|| self.tables.limits())
    }

    /// The ports that are virtual machines, if rows have come since they were asked for last.
    pub fn changed_plugs(&mut self) -> Option<BTreeMap<String, Plug>> {
        std::mem::take(&mut self.rows_changed).then(|| self.plugs())
    }

    fn plugs(&self) -> BTreeMap<String, Plug> {
        let rows = self.rows.values();
        rows.filter_map(|row| Some((row.name.clone(), row.plug.clone()?)))
            .collect()
    }

    /// Names of ports' policies, by names of interfaces.
    pub fn policies(&self) -> BTreeMap<String, String> {
        let rows = self.rows.values();
        rows.filter_map(|row| Some((row.name.clone(), row.policy.clone()?)))
            .collect()
    }
}

/// Keeps a row, if there is room for it.
fn keep<T>(rows: &mut BTreeMap<String, T>, id: &str, row: T) {
    if rows.len() < MAX_ROWS || rows.contains_key(id) {
        rows.insert(id.to_owned(), row);
    } else {
        telemetry::limited!(
            log::Level::Warn,
            "ovs-vswitchd's database has more than {MAX_ROWS} rows of one table; others are ignored"
        );
    }
}

/// Of a map as the protocol has it: `["map", [[key, value], ...]]`.
fn value<'a>(map: &'a Value, key: &str) -> Option<&'a str> {
    let mut pairs = map[1].as_array()?.iter();
    pairs.find(|pair| pair[0] == key)?[1].as_str()
}

/// What is at the other end of an interface. `external_ids` go before the type.
fn plug(name: &str, row: &Value) -> Option<Plug> {
    let ids = &row["external_ids"];
    match (value(ids, KEY), row["type"].as_str()) {
        (Some("server"), _) => Some(Plug::Server),
        (Some("client"), _) => client(name, ids, ("external_ids", PATH_KEY), ids),
        (Some(other), _) => {
            log::warn!("'{name}': external_ids:{KEY} can be 'server' or 'client', not '{other}'");
            None
        }
        (None, Some(DPDK_SERVER)) => Some(Plug::DpdkServer),
        (None, Some(DPDK_CLIENT)) => client(name, &row["options"], ("options", DPDK_PATH_KEY), ids),
        (None, _) => None,
    }
}

/// A VMM that listens at the path that a column's key has.
fn client(name: &str, map: &Value, (column, key): (&str, &str), ids: &Value) -> Option<Plug> {
    let path = value(map, key).map(Path::new);
    let fits = |path: &&Path| path.is_absolute() && path.as_os_str().len() <= MAX_PATH;
    let Some(path) = path.filter(fits) else {
        log::warn!("'{name}': {column}:{key} is to be an absolute path of at most {MAX_PATH} bytes");
        return None;
    };
    match value(ids, OWNER_KEY).map(str::parse::<u32>).transpose() {
        Ok(owner) => Some(Plug::Client(SocketPath {
            path: path.to_owned(),
            owner,
        })),
        Err(error) => {
            log::warn!("'{name}': external_ids:{OWNER_KEY} is to be the number of a user: {error}");
            None
        }
    }
}

fn send(socket: &OwnedFd, message: &Value) -> Result<(), DatabaseError> {
    let text = message.to_string();
    let sent = rustix::net::send(socket, text.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent < text.len() {
        // It takes far less than a socket holds.
        return Err(DatabaseError::Gone);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};

    struct Server {
        _directory: tempfile::TempDir,
        database: Database,
        stream: UnixStream,
    }

    fn server() -> Server {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut database = Database::new(vec![path.clone()]);
        database.connect().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = vec![0; 4096];
        let length = stream.read(&mut asked).unwrap();
        let asked = serde_json::Deserializer::from_slice(&asked[..length]).into_iter::<Value>();
        let asked: Vec<_> = asked.map(Result::unwrap).collect();
        assert_eq!(asked.len(), 2);
        for (asked, id) in asked.iter().zip([PORTS, LIMITS]) {
            assert_eq!((&asked["method"], &asked["id"]), (&json!("monitor"), &json!(id)));
            assert_eq!(asked["params"][1], id, "what its updates are known by");
        }
        Server {
            _directory: directory,
            database,
            stream,
        }
    }

    fn row(name: &str, value: &str) -> Value {
        json!({"new": {"name": name, "external_ids": ["map", [["iface-id", "x"], [KEY, value]]]}})
    }

    #[test]
    fn rows_come_change_and_go() {
        let mut server = server();
        let all = json!({"id": "ports", "error": null, "result": {"Interface": {
            "a": row("vm1", "server"),
            "b": row("vm2", "nonsense"),
            "c": {"new": {"name": "br0", "external_ids": ["map", []]}},
        }}});
        let update =
            |rows: Value| json!({"method": "update", "id": null, "params": [null, {"Interface": rows}]});
        let later = update(json!({"b": row("vm2", "server")})).to_string();
        let (first, second) = later.split_at(20);
        // In pieces, as they come.
        write!(server.stream, "{all}{first}").unwrap();
        server.database.read().unwrap();
        assert_eq!(server.database.plugs().into_keys().collect::<Vec<_>>(), ["vm1"]);
        write!(server.stream, "{second}{}", update(json!({"a": {"old": {}}}))).unwrap();
        server.database.read().unwrap();
        assert_eq!(server.database.plugs().into_keys().collect::<Vec<_>>(), ["vm2"]);
    }

    #[test]
    fn policies_come_change_and_go_with_rows() {
        let mut server = server();
        let row = |policy: &[[&str; 2]]| json!({"new": {"name": "vm1", "external_ids": ["map", policy]}});
        let mut policies = |row: Value| {
            let update = json!({"method": "update", "params": [PORTS, {"Interface": {"a": row}}]});
            write!(server.stream, "{update}").unwrap();
            server.database.read().unwrap();
            assert!(server.database.changed_plugs().is_some());
            server.database.policies().remove("vm1")
        };
        assert_eq!(policies(row(&[["iface-id", "x"]])), None);
        assert_eq!(
            policies(row(&[[KEY, "nonsense"], [POLICY_KEY, "web"]])).as_deref(),
            Some("web")
        );
        // No configuration has it, so nothing passes.
        assert_eq!(policies(row(&[[POLICY_KEY, ""]])).as_deref(), Some(""));
        assert_eq!(policies(json!({"old": {}})), None);
    }

    #[test]
    fn an_answer_says_that_all_before_was_told() {
        let mut server = server();
        server.database.ask_for_all(3).unwrap();
        server.database.ask_for_all(2).unwrap();
        let mut asked = vec![0; 4096];
        let length = server.stream.read(&mut asked).unwrap();
        let asked: Value = serde_json::from_slice(&asked[..length]).unwrap();
        assert_eq!(asked["method"], "echo");
        let all = json!({"id": "ports", "error": null, "result": {"Interface": {"a": row("vm1", "server")}}});
        write!(server.stream, "{all}").unwrap();
        server.database.read().unwrap();
        assert_eq!(server.database.told(), 0);
        // Numbers that nobody asked for say nothing.
        write!(server.stream, "{}", json!({"id": [TOLD, 9], "result": []})).unwrap();
        server.database.read().unwrap();
        assert_eq!(server.database.told(), 0);
        write!(server.stream, "{}", json!({"id": asked["id"], "result": []})).unwrap();
        server.database.read().unwrap();
        assert_eq!(server.database.told(), 3);
    }

    #[test]
    fn limits_come_change_and_are_told_once() {
        let mut server = server();
        assert!(server.database.changed_limits().is_none());
        let policed = |rate: u32| json!({"new": {"name": "vm1", "ingress_policing_rate": rate}});
        let all =
            |id: &str, row: Value| json!({"id": id, "error": null, "result": {"Interface": {"a": row}}});
        let update = |id: &str, row: Value| json!({"method": "update", "id": null, "params": [id, {"Interface": {"a": row}}]});
        let mut rate = |messages: &[Value]| {
            for message in messages {
                write!(server.stream, "{message}").unwrap();
            }
            server.database.read().unwrap();
            let known = server.database.is_known();
            let limits = server.database.changed_limits();
            let rate = limits.map(|limits| limits.get("vm1").map(|limits| limits.ingress.unwrap().rate));
            (known, rate)
        };
        assert_eq!(rate(&[all(LIMITS, policed(7))]), (false, Some(Some(7))));
        assert_eq!(rate(&[]), (false, None), "they were asked for");
        // What is said of ports says nothing of limits.
        let port = || row("vm1", "server");
        assert_eq!(rate(&[all(PORTS, port()), update(PORTS, port())]), (true, None));
        assert_eq!(rate(&[update(LIMITS, policed(8))]), (true, Some(Some(8))));
        assert_eq!(rate(&[update(LIMITS, json!({"old": {}}))]), (true, Some(None)));
        assert_eq!(server.database.plugs().len(), 1);
    }

    #[test]
    fn a_database_with_another_schema_has_ports_without_limits() {
        let mut server = server();
        let refused = json!({"id": LIMITS, "result": null, "error": {"error": "unknown column"}});
        let ports = json!({"id": PORTS, "error": null, "result": {"Interface": {"a": row("vm1", "server")}}});
        write!(server.stream, "{refused}{ports}").unwrap();
        server.database.read().unwrap();
        assert!(server.database.is_known());
        assert_eq!(server.database.plugs().len(), 1);
        assert_eq!(server.database.changed_limits(), Some(BTreeMap::new()));
    }

    #[test]
    fn a_vmm_that_listens_has_a_path_that_a_socket_can_have() {
        let of = |ids: &[[&str; 2]]| plug("vm1", &json!({"external_ids": ["map", ids]}));
        let client = |path: &str| of(&[[PATH_KEY, path], [KEY, "client"]]);
        assert_eq!(of(&[[KEY, "server"], [PATH_KEY, "/a"]]), Some(Plug::Server));
        let socket = |owner| SocketPath {
            path: "/a/b".into(),
            owner,
        };
        assert_eq!(client("/a/b"), Some(Plug::Client(socket(None))));
        let of_user = |user| of(&[[PATH_KEY, "/a/b"], [KEY, "client"], [OWNER_KEY, user]]);
        assert_eq!(of_user("64055"), Some(Plug::Client(socket(Some(64055)))));
        assert_eq!(of_user("nobody"), None);
        let long = format!("/{}", "x".repeat(MAX_PATH));
        assert_eq!(client(&long[1..]), None, "not absolute");
        assert_eq!(client(&long), None);
        assert!(client(&long[..MAX_PATH]).is_some());
        assert_eq!(of(&[[KEY, "client"]]), None, "no path");
        assert_eq!(of(&[[PATH_KEY, "/a"]]), None, "no mode");
    }

    #[test]
    fn types_of_neutron_are_other_names() {
        let of = |kind: &str, options: &[[&str; 2]], ids: &[[&str; 2]]| {
            let row = json!({"type": kind, "options": ["map", options], "external_ids": ["map", ids]});
            plug("vhu1", &row)
        };
        let path = ["vhost-server-path", "/run/vms/vhu1"];
        let client = |owner| {
            Some(Plug::Client(SocketPath {
                path: "/run/vms/vhu1".into(),
                owner,
            }))
        };
        assert_eq!(of(DPDK_SERVER, &[], &[]), Some(Plug::DpdkServer));
        assert_eq!(of(DPDK_CLIENT, &[path], &[]), client(None));
        assert_eq!(
            of(DPDK_CLIENT, &[path], &[[OWNER_KEY, "64055"]]),
            client(Some(64055))
        );
        assert_eq!(of(DPDK_CLIENT, &[], &[]), None, "no path");
        assert_eq!(
            of(DPDK_CLIENT, &[["vhost-server-path", "vhu1"]], &[]),
            None,
            "not absolute"
        );
        assert_eq!(of("internal", &[path], &[]), None);
        assert_eq!(of("", &[path], &[]), None);
        assert_eq!(
            of(DPDK_CLIENT, &[path], &[[KEY, "server"]]),
            Some(Plug::Server),
            "external_ids go before"
        );
    }

    #[test]
    fn whoever_asks_whether_we_live_is_answered() {
        let mut server = server();
        write!(
            server.stream,
            "{}",
            json!({"method": "echo", "id": 7, "params": ["x"]})
        )
        .unwrap();
        server.database.read().unwrap();
        let mut answer = vec![0; 4096];
        let length = server.stream.read(&mut answer).unwrap();
        let answer: Value = serde_json::from_slice(&answer[..length]).unwrap();
        assert_eq!((&answer["id"], &answer["result"]), (&json!(7), &json!(["x"])));
    }

    #[test]
    fn the_first_place_whose_directory_is_there_counts() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "b"].map(|name| directory.path().join(name));
        let places = [&first, &second].map(|place| place.join("db.sock"));
        let mut database = Database::new(places.to_vec());
        database.connect().unwrap_err();
        std::fs::create_dir(&second).unwrap();
        let _later = UnixListener::bind(&places[1]).unwrap();
        database.connect().unwrap();
        assert!(!database.has_moved());
        std::fs::create_dir(&first).unwrap();
        assert!(database.has_moved());
        database.disconnect();
        // Nobody listens there yet: the other one is not asked for that.
        database.connect().unwrap_err();
        let _listener = UnixListener::bind(&places[0]).unwrap();
        database.connect().unwrap();
        assert!(!database.has_moved());
    }

    #[test]
    fn rows_are_bounded_and_those_that_are_known_can_change() {
        let mut server = server();
        let update = |from: usize, value: &str| {
            let id = |number| format!("{number:05}");
            let rows = (from..MAX_ROWS + 5).map(|number| (id(number), row(&format!("vm{number}"), value)));
            let rows: serde_json::Map<_, _> = rows.collect();
            json!({"method": "update", "params": [PORTS, {"Interface": rows}]}).to_string()
        };
        for (from, value, plugs) in [(0, "server", MAX_ROWS), (MAX_ROWS - 3, "none", MAX_ROWS - 3)] {
            let (text, mut stream) = (update(from, value), server.stream.try_clone().unwrap());
            let sender = std::thread::spawn(move || stream.write_all(text.as_bytes()).unwrap());
            while !server.database.rows_changed {
                server.database.read().unwrap();
            }
            assert_eq!(
                server.database.changed_plugs().map(|plugs| plugs.len()),
                Some(plugs)
            );
            assert!(server.database.changed_plugs().is_none(), "it was asked for");
            sender.join().unwrap();
        }
    }

    #[test]
    fn nonsense_and_its_end_disconnect() {
        for sent in ["}", ""] {
            let mut server = server();
            server.stream.write_all(sent.as_bytes()).unwrap();
            server.stream.shutdown(std::net::Shutdown::Both).unwrap();
            // What is wrong may come before the end or with it.
            while server.database.read().is_ok() {}
            assert!(server.database.socket().is_none());
        }
        // Rows of any shape.
        let mut server = server();
        for result in [
            json!(7),
            json!({"Interface": [1]}),
            json!({"Interface": {"a": {"new": {"name": "x", "external_ids": 1}}}}),
        ] {
            write!(server.stream, "{}", json!({"id": "ports", "result": result})).unwrap();
        }
        server.database.read().unwrap();
        assert!(server.database.plugs().is_empty());
    }
}
