//! The transport: HTTP/2 over TCP, with TLS where that is configured, in one thread.
//!
//! Clients that may not connect are kept out by TLS; of those that may, each is bounded in connections,
//! requests, bytes and time, and none waits for another one's half a request.

use crate::arbitration::StreamId;
use crate::core_thread::STREAM_QUEUE;
use crate::jobs::{Answers, Job, ToStream};
use crate::wire::{Method, Raw};
use http::{Request as HttpRequest, Response as HttpResponse};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, StreamingService, UnaryService};
use tonic::transport::server::Connected;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

/// Most connections at a time. Further ones wait to be accepted.
pub const MAX_CONNECTIONS: usize = 64;

/// Requests of a connection that are served at a time, and streams of HTTP/2 that it may have.
const REQUESTS: usize = 16;
const STREAMS: u32 = 64;

/// Most bytes of a request's headers.
const HEADERS: u32 = 16 * 1024;

/// How long a client may take for a handshake, and for a request with its answer.
const HANDSHAKE: Duration = Duration::from_secs(5);
const REQUEST: Duration = Duration::from_secs(60);

/// Silence after which a client is asked for a sign of life, and how long it may take.
const QUIET: Duration = Duration::from_secs(20);

/// Pause when no connection can be accepted for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How clients and the server prove who they are.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Certificates of the server, in PEM.
    pub certificate: String,
    /// The server's key, in PEM.
    pub key: String,
    /// Certificates of those who vouch for clients, in PEM. With them a client without a certificate is
    /// refused.
    pub client_authorities: Option<String>,
}

/// Serves clients until the listener or the thread behind `jobs` is gone.
///
/// # Errors
/// The certificates cannot be used, or the listener cannot.
pub async fn serve(
    listener: std::net::TcpListener,
    tls: Option<Tls>,
    jobs: mpsc::Sender<Job>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut server = Server::builder()
        .timeout(REQUEST)
        .concurrency_limit_per_connection(REQUESTS)
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(HEADERS)
        .http2_keepalive_interval(Some(QUIET))
        .http2_keepalive_timeout(Some(QUIET));
    if let Some(tls) = tls {
        let mut config = ServerTlsConfig::new()
            .identity(Identity::from_pem(tls.certificate, tls.key))
            .timeout(HANDSHAKE);
        if let Some(authorities) = tls.client_authorities {
            config = config.client_ca_root(Certificate::from_pem(authorities));
        }
        server = server.tls_config(config)?;
    }
    let rpc = Rpc {
        jobs,
        streams: Arc::new(AtomicU64::new(1)),
    };
    server.serve_with_incoming(rpc, incoming(listener)?).await?;
    Ok(())
}

/// Connections as they come.
fn incoming(listener: std::net::TcpListener) -> io::Result<impl Stream<Item = io::Result<Connection>>> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok(place) = places.clone().acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // Small answers shall not wait for a client's acknowledgement. Without it they are only slower.
            let _ = stream.set_nodelay(true);
            let connection = Connection {
                stream,
                _place: place,
            };
            if send.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    });
    Ok(tokio_stream::wrappers::ReceiverStream::new(receive))
}

/// A client's connection, and its place among all.
struct Connection {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

type Served<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The service as HTTP has it.
#[derive(Clone)]
struct Rpc {
    jobs: mpsc::Sender<Job>,
    streams: Arc<AtomicU64>,
}

impl tower_service::Service<HttpRequest<Body>> for Rpc {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = Served<Result<HttpResponse<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        let rpc = self.clone();
        Box::pin(async move {
            let Some(method) = Method::of(request.uri().path()) else {
                return Ok(Status::unimplemented("there is no such method").into_http());
            };
            let mut grpc = Grpc::new(Raw).max_decoding_message_size(method.limit());
            Ok(match method {
                Method::StreamChannel => grpc.streaming(rpc, request).await,
                Method::Read => grpc.server_streaming(rpc, request).await,
                _ => grpc.unary(Unary(rpc, method), request).await,
            })
        })
    }
}

impl Rpc {
    async fn ask(&self, method: Method, bytes: Vec<u8>) -> Result<Answers, Status> {
        let (reply, answer) = oneshot::channel();
        let job = Job::Request { method, bytes, reply };
        self.jobs.send(job).await.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())
    }
}

fn ending() -> Status {
    Status::unavailable("the server ends")
}

/// A method with one answer.
struct Unary(Rpc, Method);

impl UnaryService<Vec<u8>> for Unary {
    type Response = Vec<u8>;
    type Future = Served<Result<Response<Vec<u8>>, Status>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let (rpc, method) = (self.0.clone(), self.1);
        Box::pin(async move {
            let (answers, ended) = rpc.ask(method, request.into_inner()).await?;
            ended?;
            Ok(Response::new(answers.into_iter().next().unwrap_or_default()))
        })
    }
}

impl ServerStreamingService<Vec<u8>> for Rpc {
    type Response = Vec<u8>;
    type ResponseStream = tokio_stream::Iter<std::vec::IntoIter<Result<Vec<u8>, Status>>>;
    type Future = Served<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let rpc = self.clone();
        Box::pin(async move {
            let (answers, ended) = rpc.ask(Method::Read, request.into_inner()).await?;
            let answers = answers.into_iter().map(Ok).chain(ended.err().map(Err));
            Ok(Response::new(tokio_stream::iter(answers.collect::<Vec<_>>())))
        })
    }
}

impl StreamingService<Vec<u8>> for Rpc {
    type Response = Vec<u8>;
    type ResponseStream = tokio_stream::wrappers::ReceiverStream<ToStream>;
    type Future = Served<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Vec<u8>>>) -> Self::Future {
        let rpc = self.clone();
        let stream = StreamId(rpc.streams.fetch_add(1, Ordering::Relaxed));
        Box::pin(async move {
            let (to_client, messages) = mpsc::channel(STREAM_QUEUE);
            let open = Job::Open(stream, to_client.clone());
            rpc.jobs.send(open).await.map_err(|_| ending())?;
            tokio::spawn(relay(
                request.into_inner(),
                stream,
                to_client.downgrade(),
                rpc.jobs,
            ));
            Ok(Response::new(tokio_stream::wrappers::ReceiverStream::new(
                messages,
            )))
        })
    }
}

/// Hands a stream's messages on until either side ends it.
async fn relay(
    mut messages: Streaming<Vec<u8>>,
    stream: StreamId,
    to_client: mpsc::WeakSender<ToStream>,
    jobs: mpsc::Sender<Job>,
) {
    while let Ok(Some(bytes)) = messages.message().await {
        // Gone when the stream was ended by us.
        let is_open = to_client
            .upgrade()
            .is_some_and(|to_client| !to_client.is_closed());
        if !is_open || jobs.send(Job::Message(stream, bytes)).await.is_err() {
            break;
        }
    }
    // If nobody receives it, everything ends.
    let _ = jobs.send(Job::Close(stream)).await;
}
