//! Clients over real connections: what the transport lets through, and what it does not.

#![allow(clippy::unwrap_used)]

use control_protocol::p4::{P4Array, P4CellWrite};
use http::uri::PathAndQuery;
use p4_runtime::core_thread::{self, STREAM_QUEUE};
use p4_runtime::failure::{Done, Failure};
use p4_runtime::proto::{
    CapabilitiesRequest, CapabilitiesResponse, MasterArbitrationUpdate, PacketOut, StreamMessageRequest,
    StreamMessageResponse, Uint128, stream_request, stream_response,
};
use p4_runtime::server::{self, Tls};
use p4_runtime::service::Service;
use p4_runtime::switches::{DeviceInfo, Switches};
use p4_runtime::wire::{MAX_MESSAGE, Method, Raw};
use prost::Message;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};

/// One device without a program.
struct Empty;

impl Switches for Empty {
    fn devices(&mut self) -> Done<Vec<DeviceInfo>> {
        let name = "one".into();
        Ok(vec![DeviceInfo {
            id: 1,
            name,
            tag: None,
        }])
    }

    fn fetch(&mut self, _: &str) -> Done<(u64, Vec<u8>)> {
        Err(Failure::missing("nothing"))
    }

    fn put(&mut self, _: &str, _: &[u8], _: Option<u64>, _: &[P4CellWrite]) -> Done<()> {
        Err(Failure::exhausted("nothing"))
    }

    fn change(&mut self, _: &str, _: &[u8], _: u64, _: &[P4CellWrite]) -> Done<()> {
        Err(Failure::exhausted("nothing"))
    }

    fn cells(&mut self, _: (&str, u64), _: P4Array, _: u32) -> Done<(Vec<u64>, usize)> {
        Err(Failure::missing("nothing"))
    }

    fn set_cell(&mut self, _: (&str, u64), _: P4Array, _: u32, _: Vec<u64>) -> Done<()> {
        Err(Failure::missing("nothing"))
    }

    fn set_cells(&mut self, _: (&str, u64), _: Vec<P4CellWrite>) -> Done<()> {
        Err(Failure::missing("nothing"))
    }

    fn connect(&mut self, _: &str) -> Done<control_protocol::Channel> {
        Err(Failure::missing("nothing"))
    }
}

fn serve(tls: Option<Tls>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (jobs, queue) = mpsc::channel(64);
    let own = jobs.downgrade();
    thread::spawn(move || core_thread::run(Service::new(Empty), queue, &own));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    thread::spawn(move || runtime.block_on(server::serve(listener, tls, jobs)).unwrap());
    address
}

fn run<T>(client: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let limited = async {
        tokio::time::timeout(Duration::from_secs(60), client)
            .await
            .unwrap()
    };
    runtime.block_on(limited)
}

async fn connect(address: SocketAddr) -> Channel {
    Endpoint::try_from(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

async fn ask(channel: &Channel, method: Method, bytes: Vec<u8>) -> Result<Vec<u8>, Status> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let path: PathAndQuery = method.path().parse().unwrap();
    grpc.unary(Request::new(bytes), path, Raw)
        .await
        .map(tonic::Response::into_inner)
}

async fn capabilities(channel: &Channel) -> Result<String, Status> {
    let request = CapabilitiesRequest { device_id: 1 }.encode_to_vec();
    let answer = ask(channel, Method::Capabilities, request).await?;
    Ok(CapabilitiesResponse::decode(&answer[..])
        .unwrap()
        .p4runtime_api_version)
}

type Sender = mpsc::Sender<Vec<u8>>;

async fn stream(channel: &Channel) -> (Sender, Streaming<Vec<u8>>) {
    let (sender, requests) = mpsc::channel(16);
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = Method::StreamChannel.path().parse().unwrap();
    let answers = grpc
        .streaming(Request::new(ReceiverStream::new(requests)), path, Raw)
        .await;
    (sender, answers.unwrap().into_inner())
}

fn asks(election: u64) -> Vec<u8> {
    let update = MasterArbitrationUpdate {
        device_id: 1,
        election_id: Some(Uint128 {
            high: 0,
            low: election,
        }),
        ..MasterArbitrationUpdate::default()
    };
    let update = Some(stream_request::Update::Arbitration(update));
    StreamMessageRequest { update }.encode_to_vec()
}

/// The code that the next message of a stream tells.
async fn told(answers: &mut Streaming<Vec<u8>>) -> Code {
    let bytes = answers.message().await.unwrap().unwrap();
    match StreamMessageResponse::decode(&bytes[..]).unwrap().update.unwrap() {
        stream_response::Update::Arbitration(update) => update.status.unwrap().code.into(),
        stream_response::Update::Error(error) => error.canonical_code.into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn streams_hear_who_is_primary_and_of_its_end() {
    let address = serve(None);
    run(async {
        let (first, second) = (connect(address).await, connect(address).await);
        assert_eq!(capabilities(&first).await.unwrap(), "1.5.0");
        let (one, mut to_one) = stream(&first).await;
        one.send(asks(5)).await.unwrap();
        assert_eq!(told(&mut to_one).await, Code::Ok);
        let (other, mut to_other) = stream(&second).await;
        other.send(asks(6)).await.unwrap();
        assert_eq!(told(&mut to_other).await, Code::Ok);
        assert_eq!(told(&mut to_one).await, Code::AlreadyExists);
        drop((other, to_other));
        assert_eq!(told(&mut to_one).await, Code::NotFound);
        one.send(asks(6)).await.unwrap();
        assert_eq!(told(&mut to_one).await, Code::Ok);
        let (taken, mut to_taken) = stream(&second).await;
        taken.send(asks(6)).await.unwrap();
        assert_eq!(
            to_taken.message().await.unwrap_err().code(),
            Code::InvalidArgument
        );
    });
}

#[test]
fn what_cannot_be_read_is_refused_and_others_are_served() {
    let address = serve(None);
    run(async {
        let channel = connect(address).await;
        let garbage = ask(&channel, Method::Write, vec![0xff; 100]).await.unwrap_err();
        assert_eq!(garbage.code(), Code::InvalidArgument);
        let long = ask(&channel, Method::Write, vec![0; MAX_MESSAGE + 1])
            .await
            .unwrap_err();
        assert_eq!(long.code(), Code::OutOfRange);
        let (sender, mut answers) = stream(&channel).await;
        sender.send(vec![0xff; 100]).await.unwrap();
        assert_eq!(answers.message().await.unwrap_err().code(), Code::InvalidArgument);
        let mut grpc = Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/p4.v1.P4Runtime/Unknown");
        let unknown = grpc.unary(Request::new(Vec::new()), path, Raw).await.unwrap_err();
        assert_eq!(unknown.code(), Code::Unimplemented);
        capabilities(&channel).await.unwrap();
    });
}

#[test]
fn a_stream_that_floods_and_does_not_read_is_ended_alone() {
    let address = serve(None);
    run(async {
        let (flooding, quiet) = (connect(address).await, connect(address).await);
        let (sender, mut answers) = stream(&flooding).await;
        let packet = PacketOut {
            payload: vec![7; 1400],
            metadata: Vec::new(),
        };
        let update = Some(stream_request::Update::Packet(packet));
        let packet = StreamMessageRequest { update }.encode_to_vec();
        // Each is answered by an error that has it in it, and nobody reads the answers.
        for number in 0..100_000 {
            // What is not taken any more belongs to a stream that has ended.
            let sent = tokio::time::timeout(Duration::from_secs(5), sender.send(packet.clone()));
            if !matches!(sent.await, Ok(Ok(()))) {
                break;
            }
            if number % 1000 == 0 {
                capabilities(&quiet).await.unwrap();
            }
            assert!(number < 99_999, "the stream was never ended");
        }
        capabilities(&quiet).await.unwrap();
        let mut read = 0;
        while let Ok(Some(_)) = answers.message().await {
            read += 1;
        }
        assert!(read >= STREAM_QUEUE, "{read}");
        capabilities(&flooding).await.unwrap();
    });
}

#[test]
fn half_a_request_holds_up_nobody() {
    let address = serve(None);
    let mut halves = Vec::new();
    for part in 1..=20 {
        let mut half = TcpStream::connect(address).unwrap();
        half.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0"[..part])
            .unwrap();
        halves.push(half);
    }
    let mut wrong = TcpStream::connect(address).unwrap();
    wrong.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut end = Vec::new();
    // Hung up, in whichever way.
    let _ = wrong.read_to_end(&mut end);
    run(async { capabilities(&connect(address).await).await.unwrap() });
}

fn certificate(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certificates");
    std::fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

fn identity(name: &str) -> Identity {
    Identity::from_pem(
        certificate(&format!("{name}.pem")),
        certificate(&format!("{name}.key")),
    )
}

#[test]
fn only_clients_with_certificates_of_the_authority_are_served() {
    let address = serve(Some(Tls {
        certificate: certificate("server.pem"),
        key: certificate("server.key"),
        client_authorities: Some(certificate("authority.pem")),
    }));
    let trusting = || {
        let authority = Certificate::from_pem(certificate("authority.pem"));
        ClientTlsConfig::new()
            .ca_certificate(authority)
            .domain_name("localhost")
    };
    let attempt = |config: ClientTlsConfig| async move {
        let endpoint = Endpoint::try_from(format!("https://{address}")).unwrap();
        let channel = endpoint.tls_config(config).unwrap().connect().await.ok()?;
        capabilities(&channel).await.ok()
    };
    run(async {
        assert_eq!(
            attempt(trusting().identity(identity("client"))).await.unwrap(),
            "1.5.0"
        );
        assert_eq!(attempt(trusting()).await, None, "without a certificate");
        assert_eq!(attempt(trusting().identity(identity("stranger"))).await, None);
        let without_tls = Endpoint::try_from(format!("http://{address}"))
            .unwrap()
            .connect()
            .await;
        if let Ok(channel) = without_tls {
            capabilities(&channel).await.unwrap_err();
        }
        assert_eq!(
            attempt(trusting().identity(identity("client"))).await.unwrap(),
            "1.5.0"
        );
    });
}
