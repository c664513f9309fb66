//! The process that serves metrics, between a supervisor, a control process and clients played by the test.

#![allow(clippy::unwrap_used)]

use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, Role, ToChild};
use control_protocol::work::{Misses, WorkReport, WorkerReport};
use management::{
    Counters, ErrorCode, ErrorReport, FlowInfo, PortFigures, Process, Reply, Request, Response, Snapshot,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use view::Hosts;

const TIMEOUT: Duration = Duration::from_secs(60);

struct Rig {
    supervisor: Channel,
    address: SocketAddr,
    view: Option<JoinHandle<()>>,
    /// Questions to the control process.
    asked: Arc<AtomicU32>,
}

impl Rig {
    fn start() -> Rig {
        let (supervisor, theirs) = Channel::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let view =
            std::thread::spawn(move || view::run(theirs, listener.into(), Hosts::at(address.ip())).unwrap());
        Rig {
            supervisor,
            address,
            view: Some(view),
            asked: Arc::default(),
        }
    }

    /// A control process that answers with what `answer` makes of each question's number.
    fn attach_control(&self, answer: impl Fn(u32) -> Option<Response> + Send + 'static) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let peer = ToChild::Peer(Role::Control);
        self.supervisor.send(&peer, &[theirs.as_fd()]).unwrap();
        let asked = Arc::clone(&self.asked);
        std::thread::spawn(move || {
            for line in BufReader::new(&ours).lines().map_while(Result::ok) {
                let answered = match serde_json::from_str::<Request>(&line).unwrap() {
                    Request::Snapshot => answer(asked.fetch_add(1, Ordering::Relaxed)),
                    Request::FlowList { switch: None } => Some(flows()),
                    other => panic!("{other:?}"),
                };
                if let Some(response) = answered {
                    let line = serde_json::to_string(&response).unwrap() + "\n";
                    (&ours).write_all(line.as_bytes()).unwrap();
                }
            }
        });
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    fn send(&self, request: &str) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Head and body of the response to a scrape.
    fn scrape(&self, accept: &str) -> (String, String) {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n");
        response(&mut self.send(&request))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.supervisor.send(&ToChild::Shutdown, &[]);
        let ended = self.view.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok());
    }
}

/// Head and body.
fn response(stream: &mut TcpStream) -> (String, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.to_owned(), body.to_owned())
}

fn snapshot() -> Snapshot {
    let counters = Counters {
        received: 7,
        dropped: [("no-action".to_owned(), 3)].into(),
        ..Counters::default()
    };
    let port = |name: &str, state: &str, counters| PortFigures {
        name: name.into(),
        switch: "s".into(),
        state: state.into(),
        has_problem: state == "broken",
        core: Some(1),
        counters,
        device: None,
    };
    Snapshot {
        version: "1.2.3".into(),
        warnings: 2,
        processes: vec![Process {
            role: "data-plane".into(),
            pid: Some(5),
            restarts: 4,
            last_exit: None,
            missing: None,
            trouble: None,
            serves: None,
            started_ms: Some(1_500),
        }],
        switches: Vec::new(),
        ports: vec![port("a", "running", Some(counters)), port("b", "broken", None)],
        work: Some(WorkReport {
            cycles_per_second: 1_000,
            misses: Misses {
                counts: vec![5, 0, 1],
                total_us: 250_000,
            },
            workers: vec![WorkerReport {
                name: "worker-0".into(),
                busy_cycles: 2_500,
                polls: 9,
                ..WorkerReport::default()
            }],
            ..WorkReport::default()
        }),
    }
}

fn answer() -> Response {
    Response::Ok(Reply::Snapshot(Box::new(snapshot())))
}

#[test]
fn both_formats_have_the_figures_of_the_switch() {
    let rig = Rig::start();
    rig.attach_control(|_| Some(answer()));
    let (head, text) = rig.scrape("*/*");
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"),
        "{head}"
    );
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", text.len())),
        "{head}"
    );
    for sample in [
        "hyperswitch_build_info{version=\"1.2.3\"} 1",
        "hyperswitch_warnings 2",
        "hyperswitch_process_up{role=\"data-plane\"} 1",
        "hyperswitch_process_restarts_total{role=\"data-plane\"} 4",
        "hyperswitch_process_start_time_seconds{role=\"data-plane\"} 1.5",
        "hyperswitch_port_state{port=\"a\",switch=\"s\",state=\"running\"} 1",
        "hyperswitch_port_state{port=\"a\",switch=\"s\",state=\"broken\"} 0",
        "hyperswitch_port_problem{port=\"b\",switch=\"s\"} 1",
        "hyperswitch_port_received_total{port=\"a\",switch=\"s\"} 7",
        "hyperswitch_port_dropped_total{port=\"a\",switch=\"s\",reason=\"no-action\"} 3",
        "hyperswitch_thread_busy_seconds_total{thread=\"worker-0\"} 2.5",
        "hyperswitch_thread_polls_total{thread=\"worker-0\"} 9",
        "hyperswitch_miss_latency_seconds_bucket{le=\"0.00002\"} 5",
        "hyperswitch_miss_latency_seconds_bucket{le=\"0.0001\"} 6",
        "hyperswitch_miss_latency_seconds_bucket{le=\"+Inf\"} 6",
        "hyperswitch_miss_latency_seconds_sum 0.25",
        "hyperswitch_miss_latency_seconds_count 6",
    ] {
        assert!(text.lines().any(|line| line == sample), "{sample}\n{text}");
    }
    assert!(!text.contains("received_total{port=\"b\""), "{text}");
    let (head, open) = rig.scrape("application/openmetrics-text");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(open.ends_with("# EOF\n") && !text.contains("# EOF"), "{open}");
    let samples = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(samples(&text), samples(&open));
    assert!(
        open.contains("# TYPE hyperswitch_port_received counter"),
        "{open}"
    );
    assert!(
        text.contains("# TYPE hyperswitch_port_received_total counter"),
        "{text}"
    );
    let (head, body) = response(&mut rig.send("HEAD /metrics HTTP/1.1\r\n\r\n"));
    assert!(head.contains("Content-Length: ") && body.is_empty(), "{head}");
}

fn flows() -> Response {
    Response::Ok(Reply::Flows(vec![FlowInfo {
        id: "1".into(),
        switch: "s".into(),
        matches: "in_port=a,eth_dst=52:54:00:00:00:01".into(),
        actions: vec!["output(b)".into()],
        packets: 7,
        bytes: 700,
        idle_ms: None,
        way: None,
    }]))
}

#[test]
fn the_page_needs_nothing_from_elsewhere_and_its_figures_are_there() {
    let rig = Rig::start();
    let get = |path: &str| response(&mut rig.send(&format!("GET {path} HTTP/1.1\r\n\r\n")));
    // Before there is a control process, too.
    let (head, page) = get("/");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("Content-Security-Policy: default-src 'none';"),
        "{head}"
    );
    let elsewhere = page.matches("://").count() - page.matches("\"http://www.w3.org/2000/svg\"").count();
    assert_eq!(elsewhere, 0, "{page}");
    assert!(!page.contains(" src=") && !page.contains("innerHTML"), "{page}");
    assert!(get("/figures.json").0.starts_with("HTTP/1.1 503 "));
    assert!(get("/talkers.json").0.starts_with("HTTP/1.1 503 "));
    rig.attach_control(|_| Some(answer()));
    let json = |path: &str| -> serde_json::Value {
        let (head, body) = get(path);
        assert!(head.contains("Content-Type: application/json\r\n"), "{head}");
        serde_json::from_str(&body).unwrap()
    };
    let figures = json("/figures.json");
    assert_eq!(figures["ports"][0]["counters"]["received"], 7);
    assert_eq!(figures["ports"][0]["counters"]["dropped"]["no-action"], 3);
    assert_eq!(figures["ports"][1]["problem"], true);
    assert_eq!(figures["threads"][0]["busy"], 2500);
    assert_eq!(figures["processes"][0]["restarts"], 4);
    assert!(json("/history.json")["ages"].is_array());
    assert_eq!(
        json("/talkers.json")["pairs"],
        serde_json::json!([["a", "b", 7, 700]])
    );
}

/// Every counter that `hyperswitch stats` shows has a metric.
#[test]
fn every_counter_of_a_port_has_a_metric() {
    let rig = Rig::start();
    rig.attach_control(|_| Some(answer()));
    let (_, text) = rig.scrape("");
    let counters = serde_json::to_value(Counters::default()).unwrap();
    for name in counters.as_object().unwrap().keys() {
        let total = if name == "in-flight" { "" } else { "_total" };
        let family = format!("# TYPE hyperswitch_port_{}{total} ", name.replace('-', "_"));
        assert!(text.contains(&family), "{family}\n{text}");
    }
}

#[test]
fn clients_that_are_slow_many_or_wrong_keep_nobody_waiting() {
    let rig = Rig::start();
    rig.attach_control(|_| Some(answer()));
    let slow: Vec<TcpStream> = (0..200).map(|_| rig.send("GET /metr")).collect();
    for wrong in [
        "\0\0\0\0",
        "GET /page HTTP/1.1\r\n\r\n",
        "POST /metrics HTTP/1.1\r\n\r\n",
        &"x".repeat(100_000),
    ] {
        let mut stream = rig.connect();
        // The other side may have hung up before all is sent.
        let _ = stream.write_all(wrong.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{wrong:.20}");
    }
    assert!(rig.scrape("").0.starts_with("HTTP/1.1 200 OK"));
    // The oldest have made room, and the latest may finish.
    let hung_up = |stream: &TcpStream| matches!((&mut &*stream).read(&mut [0; 16]), Ok(0) | Err(_));
    assert!(hung_up(&slow[0]));
    let mut latest = slow.last().unwrap();
    latest.write_all(b"ics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = [0; 15];
    latest.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
}

/// A page of a stranger whose name has become this host's address does not get the figures.
#[test]
fn requests_to_other_names_are_refused() {
    let rig = Rig::start();
    rig.attach_control(|_| Some(answer()));
    for path in ["/", "/metrics", "/figures.json", "/history.json", "/talkers.json"] {
        let request = |host: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (head, body) = response(&mut rig.send(&request("evil.example:9490")));
        assert!(head.starts_with("HTTP/1.1 421 Misdirected Request\r\n"), "{head}");
        assert!(body.contains("localhost") && body.len() < 200, "{body}");
        for ours in [&rig.address.to_string(), "localhost:9490", "[::1]:1"] {
            let (head, _) = response(&mut rig.send(&request(ours)));
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{ours} {head}");
        }
    }
}

#[test]
fn an_answer_serves_all_who_wait() {
    let rig = Rig::start();
    rig.attach_control(|_| {
        std::thread::sleep(Duration::from_millis(300));
        Some(answer())
    });
    let mut scrapes: Vec<TcpStream> = (0..20)
        .map(|_| rig.send("GET /metrics HTTP/1.1\r\n\r\n"))
        .collect();
    for stream in &mut scrapes {
        assert!(response(stream).0.starts_with("HTTP/1.1 200 OK"));
    }
    let asked = rig.asked.load(Ordering::Relaxed);
    assert!(asked <= 3, "asked {asked} times for 20 scrapes");
}

#[test]
fn without_a_control_process_scrapes_fail_until_there_is_one() {
    let rig = Rig::start();
    let (head, body) = rig.scrape("");
    assert!(
        head.starts_with("HTTP/1.1 503 ") && body.contains("no control process"),
        "{head} {body}"
    );
    // One that ends instead of answering.
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    rig.supervisor
        .send(&ToChild::Peer(Role::Control), &[theirs.as_fd()])
        .unwrap();
    let mut waiting = rig.send("GET /metrics HTTP/1.1\r\n\r\n");
    let mut question = String::new();
    BufReader::new(&ours).read_line(&mut question).unwrap();
    drop((ours, theirs));
    assert!(response(&mut waiting).0.starts_with("HTTP/1.1 503 "));
    rig.attach_control(|number| match number {
        0 => Some(Response::Error(ErrorReport::new(
            ErrorCode::Failed,
            "there is trouble",
        ))),
        1 => Some(Response::Ok(Reply::Done)),
        _ => Some(answer()),
    });
    let (head, body) = rig.scrape("");
    assert!(
        head.starts_with("HTTP/1.1 503 ") && body.contains("there is trouble"),
        "{body}"
    );
    assert!(rig.scrape("").0.starts_with("HTTP/1.1 503 "));
    assert!(rig.scrape("").0.starts_with("HTTP/1.1 200 "));
    // The process shows the supervisor that it works.
    rig.supervisor.send(&ToChild::Ping(9), &[]).unwrap();
    assert_eq!(rig.supervisor.recv::<FromChild>().unwrap().0, FromChild::Pong(9));
}
