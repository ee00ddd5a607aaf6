//! Real sockets, short limits: a scripted service and a client that reads by hand.

mod clocks;
mod ends;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Bound, End, Observer, Phase, Terms, bind, serve};
use crate::config::{Address, Limits};
use crate::telemetry::label::Accepted;

/// Limits no test runs into unless it sets them.
pub(super) fn limits() -> Limits {
    let long = Duration::from_secs(600);
    Limits {
        memory: 1 << 30,
        connections: None,
        connections_per_address: None,
        requests_in_flight: None,
        requests_in_flight_per_principal: None,
        header_bytes: 32 * 1024,
        header_fields: 64,
        header_timeout: long,
        body_bytes: 8 * 1024 * 1024,
        body_idle: long,
        write_stall: long,
        keep_alive: long,
        connection_age: None,
        tls_handshake: long,
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

/// Everything a listener reported, and a bell for each report.
#[derive(Default)]
struct Record {
    ends: Mutex<Vec<End>>,
    refused: Mutex<Vec<Accepted>>,
    errors: AtomicUsize,
    bell: Notify,
}

impl Record {
    /// The `count`th end, awaited.
    async fn end(&self, count: usize) -> End {
        timeout(PATIENCE, async {
            loop {
                let bell = self.bell.notified();
                if let Some(end) = self.ends.lock().expect("no test panics inside").get(count - 1) {
                    return *end;
                }
                bell.await;
            }
        })
        .await
        .expect("the connection ends in bounded time")
    }
}

impl Observer for Record {
    fn accepted(&self, _: &'static str) {}
    fn closed(&self, _: &'static str, end: End) {
        self.ends.lock().expect("no test panics inside").push(end);
        self.bell.notify_waiters();
    }
    fn refused(&self, _: &'static str, why: Accepted) {
        self.refused.lock().expect("no test panics inside").push(why);
    }
    fn accept_error(&self, _: &'static str, errno: &'static str) {
        assert_eq!(errno, "EMFILE");
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the test service was asked and may be told.
#[derive(Default)]
struct Script {
    started: Notify,
    go_on: Notify,
    dropped: Notify,
    polled: AtomicUsize,
}

/// A body of one chunk that counts how often it is asked.
struct Counted(Option<Bytes>, Arc<Script>);

impl Body for Counted {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.1.polled.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(self.0.take().map(|chunk| Ok(Frame::data(chunk))))
    }
}

struct OnDrop(Arc<Script>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.dropped.notify_one();
    }
}

async fn answer(request: Request<Incoming>, script: Arc<Script>) -> Response<Counted> {
    let chunk = match request.uri().path() {
        "/panic" => panic!("asked to"),
        "/wait" => {
            let _left = OnDrop(Arc::clone(&script));
            script.started.notify_one();
            script.go_on.notified().await;
            Bytes::from_static(b"waited")
        }
        "/refuse" => {
            let mut response = Response::new(Counted(Some(Bytes::from_static(b"no")), script));
            *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            return response;
        }
        path => match path.strip_prefix("/bytes/") {
            Some(length) => Bytes::from(vec![b'x'; length.parse().expect("a length in a test")]),
            None => Bytes::from_static(b"hello"),
        },
    };
    Response::new(Counted(Some(chunk), script))
}

struct Running {
    address: SocketAddr,
    phase: watch::Sender<Phase>,
    served: JoinHandle<()>,
    record: Arc<Record>,
    script: Arc<Script>,
}

fn start(limits: &Limits) -> Running {
    let address = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
    let listener = bind("main", &[address], limits).expect("loopback binds");
    let Bound::Tcp(address) = listener.addresses[0] else {
        panic!("a TCP address was bound");
    };
    let (phase, receiver) = watch::channel(Phase::Serving);
    let (record, script) = (Arc::new(Record::default()), Arc::new(Script::default()));
    let told = Arc::clone(&script);
    let service = Arc::new(move |request, _| answer(request, Arc::clone(&told)));
    let (_, terms) = watch::channel(Terms { limits: limits.clone(), trusted: Vec::new() });
    let observer = Arc::clone(&record) as Arc<dyn Observer>;
    let served = tokio::spawn(async move {
        serve(listener, terms, receiver, service, observer).await;
    });
    Running { address, phase, served, record, script }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// A client whose kernel takes little ahead of its reads.
    async fn connect_narrow(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("sockets are to be had");
        socket.set_recv_buffer_size(16 * 1024).expect("the size is legal");
        socket.connect(self.address).await.expect("it listens")
    }
}

async fn ask(client: &mut TcpStream, path: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.write_all(head.as_bytes()).await.expect("the connection takes a request");
}

/// Reads one answer with a chunked or sized body, up to `ending`.
async fn read_until(client: &mut TcpStream, ending: &str) -> String {
    let mut text = Vec::new();
    timeout(PATIENCE, async {
        while !text.ends_with(ending.as_bytes()) {
            if client.read_buf(&mut text).await.expect("the connection is whole") == 0 {
                break;
            }
        }
    })
    .await
    .expect("an answer comes in bounded time");
    String::from_utf8(text).expect("the answer is text")
}

/// Reads to the end and gives what came.
async fn read_to_end(client: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A cut connection may end in a reset; that is an end too.
    let _ = timeout(PATIENCE, client.read_to_end(&mut bytes)).await.expect("it ends in bounded time");
    bytes
}

const LAST_CHUNK: &str = "0\r\n\r\n";
