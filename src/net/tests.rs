//! Real sockets, short limits.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Bound, End, Observer, Phase, bind, serve};
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
                if let Some(end) = self
                    .ends
                    .lock()
                    .expect("no test panics inside")
                    .get(count - 1)
                {
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
        self.refused
            .lock()
            .expect("no test panics inside")
            .push(why);
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
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
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
    let address = Address::Tcp {
        host: "127.0.0.1".into(),
        port: 0,
    };
    let listener = bind("main", &[address], limits).expect("loopback binds");
    let Bound::Tcp(address) = listener.addresses[0] else {
        panic!("a TCP address was bound");
    };
    let (phase, receiver) = watch::channel(Phase::Serving);
    let (record, script) = (Arc::new(Record::default()), Arc::new(Script::default()));
    let told = Arc::clone(&script);
    let service = Arc::new(move |request, _| answer(request, Arc::clone(&told)));
    let (limits, observer) = (limits.clone(), Arc::clone(&record) as Arc<dyn Observer>);
    let served = tokio::spawn(async move {
        serve(listener, &limits, Vec::new(), receiver, service, observer).await;
    });
    Running {
        address,
        phase,
        served,
        record,
        script,
    }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// A client whose kernel takes little ahead of its reads.
    async fn connect_narrow(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("sockets are to be had");
        socket
            .set_recv_buffer_size(16 * 1024)
            .expect("the size is legal");
        socket.connect(self.address).await.expect("it listens")
    }
}

async fn ask(client: &mut TcpStream, path: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client
        .write_all(head.as_bytes())
        .await
        .expect("the connection takes a request");
}

/// Reads one answer with a chunked or sized body, up to `ending`.
async fn read_until(client: &mut TcpStream, ending: &str) -> String {
    let mut text = Vec::new();
    timeout(PATIENCE, async {
        while !text.ends_with(ending.as_bytes()) {
            if client
                .read_buf(&mut text)
                .await
                .expect("the connection is whole")
                == 0
            {
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
    let _ = timeout(PATIENCE, client.read_to_end(&mut bytes))
        .await
        .expect("it ends in bounded time");
    bytes
}

const LAST_CHUNK: &str = "0\r\n\r\n";

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let running = start(&limits());
    let mut client = running.connect().await;
    for _ in 0..3 {
        ask(&mut client, "/").await;
        assert!(read_until(&mut client, LAST_CHUNK).await.contains("hello"));
    }
    drop(client);
    assert_eq!(running.record.end(1).await, End::Closed);
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_however_busily() {
    let limits = Limits {
        header_timeout: Duration::from_millis(300),
        ..limits()
    };
    let running = start(&limits);
    let mut client = running.connect().await;
    let begun = Instant::now();
    client
        .write_all(b"GET / HTTP/1.1\r\nX: ")
        .await
        .expect("fresh");
    // A byte every now and then, until the connection is gone.
    while timeout(Duration::from_millis(20), client.readable())
        .await
        .is_err()
    {
        if client.write_all(b"a").await.is_err() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "trickling must not help");
    }
    assert_eq!(running.record.end(1).await, End::HeadTimeout);
    assert!(begun.elapsed() >= Duration::from_millis(250));
}

#[tokio::test]
async fn silence_is_bounded_from_the_first_moment() {
    let limits = Limits {
        header_timeout: Duration::from_millis(200),
        ..limits()
    };
    let running = start(&limits);
    let mut client = running.connect().await;
    assert!(read_to_end(&mut client).await.is_empty());
    assert_eq!(running.record.end(1).await, End::Idle);
}

#[tokio::test]
async fn idle_connections_live_for_keep_alive_and_not_for_the_head() {
    let limits = Limits {
        header_timeout: Duration::from_millis(100),
        keep_alive: Duration::from_millis(900),
        ..limits()
    };
    let running = start(&limits);
    let mut client = running.connect().await;
    ask(&mut client, "/").await;
    read_until(&mut client, LAST_CHUNK).await;
    let idle = Instant::now();
    assert!(read_to_end(&mut client).await.is_empty());
    assert!(
        idle.elapsed() >= Duration::from_millis(700),
        "{:?}",
        idle.elapsed()
    );
    assert_eq!(running.record.end(1).await, End::Idle);
}

#[tokio::test]
async fn a_reader_that_stops_in_a_large_chunk_is_cut() {
    let limits = Limits {
        write_stall: Duration::from_millis(400),
        ..limits()
    };
    let running = start(&limits);
    let mut client = running.connect_narrow().await;
    ask(&mut client, "/bytes/8388608").await;
    assert_eq!(running.record.end(1).await, End::Stalled);
    assert_eq!(
        running.script.polled.load(Ordering::Relaxed),
        1,
        "the body itself saw nothing"
    );
    let got = read_to_end(&mut client).await.len();
    assert!(
        got < 1024 * 1024,
        "{got} bytes were taken for a reader that stands still"
    );
}

#[tokio::test]
async fn a_slow_reader_that_goes_on_is_served() {
    let limits = Limits {
        write_stall: Duration::from_secs(1),
        keep_alive: Duration::from_millis(100),
        ..limits()
    };
    let running = start(&limits);
    let mut client = running.connect_narrow().await;
    ask(&mut client, "/bytes/2000000").await;
    let (mut got, begun) = (0, Instant::now());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match client.read(&mut buffer).await.expect("it is not cut") {
            0 => break,
            length => got += length,
        }
        if begun.elapsed() < Duration::from_millis(2500) {
            // The pace is the trial: longer than any limit above, in steps shorter than each.
            sleep(Duration::from_millis(40)).await;
        }
    }
    assert!(got > 2_000_000, "only {got} bytes");
    assert_eq!(running.record.end(1).await, End::Idle);
}

#[tokio::test]
async fn age_lets_the_running_answer_end() {
    let limits = Limits {
        connection_age: Some(Duration::from_millis(200)),
        ..limits()
    };
    let running = start(&limits);
    let mut client = running.connect().await;
    ask(&mut client, "/wait").await;
    running.script.started.notified().await;
    sleep(Duration::from_millis(400)).await;
    running.script.go_on.notify_one();
    let answer = String::from_utf8(read_to_end(&mut client).await).expect("text");
    assert!(
        answer.contains("waited") && answer.contains("connection: close"),
        "{answer}"
    );
    assert_eq!(running.record.end(1).await, End::Closed);
}

#[tokio::test]
async fn drain_closes_the_idle_and_waits_for_the_busy() {
    let mut running = start(&limits());
    let mut idle = running.connect().await;
    ask(&mut idle, "/").await;
    read_until(&mut idle, LAST_CHUNK).await;
    let mut busy = running.connect().await;
    ask(&mut busy, "/wait").await;
    running.script.started.notified().await;
    running.phase.send_replace(Phase::Draining);
    assert!(read_to_end(&mut idle).await.is_empty());
    assert!(
        timeout(Duration::from_millis(100), &mut running.served)
            .await
            .is_err()
    );
    assert!(
        TcpStream::connect(running.address).await.is_err(),
        "nothing new is taken"
    );
    running.script.go_on.notify_one();
    let answer = read_to_end(&mut busy).await;
    assert!(String::from_utf8_lossy(&answer).contains("waited"));
    timeout(PATIENCE, running.served)
        .await
        .expect("the drain ends")
        .expect("without a panic");
}

#[tokio::test]
async fn the_end_of_the_drain_drops_what_is_left() {
    let running = start(&limits());
    let mut busy = running.connect().await;
    ask(&mut busy, "/wait").await;
    running.script.started.notified().await;
    running.phase.send_replace(Phase::Draining);
    running.phase.send_replace(Phase::Closed);
    timeout(PATIENCE, running.served)
        .await
        .expect("it ends")
        .expect("without a panic");
    assert_eq!(running.record.end(1).await, End::Aborted);
    timeout(PATIENCE, running.script.dropped.notified())
        .await
        .expect("the request is gone");
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let running = start(&limits());
    let mut client = running.connect().await;
    ask(&mut client, "/wait").await;
    running.script.started.notified().await;
    drop(client);
    timeout(PATIENCE, running.script.dropped.notified())
        .await
        .expect("the request is gone");
    assert_eq!(running.record.end(1).await, End::Broken);
}

#[tokio::test]
async fn a_panic_ends_one_connection_only() {
    let running = start(&limits());
    let mut client = running.connect().await;
    ask(&mut client, "/panic").await;
    assert!(read_to_end(&mut client).await.is_empty());
    let mut other = running.connect().await;
    ask(&mut other, "/").await;
    assert!(read_until(&mut other, LAST_CHUNK).await.contains("hello"));
}

#[tokio::test]
async fn over_the_cap_a_connection_is_closed_at_once() {
    let limits = Limits {
        connections_per_address: Some(1),
        ..limits()
    };
    let running = start(&limits);
    let mut first = running.connect().await;
    ask(&mut first, "/").await;
    read_until(&mut first, LAST_CHUNK).await;
    let mut second = running.connect().await;
    assert!(read_to_end(&mut second).await.is_empty());
    assert_eq!(
        *running.record.refused.lock().expect("whole"),
        [Accepted::AddressLimit]
    );
    drop(first);
    assert_eq!(running.record.end(1).await, End::Closed);
    // The place is given back right after the report.
    timeout(PATIENCE, async {
        loop {
            let mut third = running.connect().await;
            if third
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .await
                .is_ok()
                && third.read_u8().await.is_ok()
            {
                break;
            }
        }
    })
    .await
    .expect("there is room again");
}

#[tokio::test]
async fn bad_heads_are_answered_and_named() {
    let running = start(&Limits {
        header_bytes: 8192,
        ..limits()
    });
    for (index, (head, status, end)) in [
        ("GARBAGE\r\n\r\n".to_owned(), "400", End::BadHead),
        (
            format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(9000)),
            "431",
            End::HeadTooLarge,
        ),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(9000)),
            "431",
            End::HeadTooLarge,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = running.connect().await;
        client.write_all(head.as_bytes()).await.expect("fresh");
        let answer = read_to_end(&mut client).await;
        assert!(
            answer.starts_with(format!("HTTP/1.1 {status}").as_bytes()),
            "{answer:?}"
        );
        assert_eq!(running.record.end(index + 1).await, end);
    }
}

#[tokio::test]
async fn an_early_refusal_reaches_a_client_that_still_sends() {
    let running = start(&limits());
    let mut client = running.connect().await;
    let length = 6 * 1024 * 1024;
    let head = format!("POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    client.write_all(head.as_bytes()).await.expect("fresh");
    client
        .write_all(&vec![b'x'; length])
        .await
        .expect("the body is taken, if only to be dropped");
    let answer = read_until(&mut client, LAST_CHUNK).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    drop(client);
    assert_eq!(running.record.end(1).await, End::Closed);
}

/// Runs in a process of its own, because the limit is the process's.
#[cfg(target_os = "linux")]
#[test]
fn running_out_of_descriptors_is_survived() {
    const MARK: &str = "GANGWAY_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(MARK).is_none() {
        let own = std::env::current_exe().expect("the test binary is there");
        let output = std::process::Command::new(own)
            .args([
                "--exact",
                "net::tests::running_out_of_descriptors_is_survived",
            ])
            .env(MARK, "1")
            .output()
            .expect("the test binary runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let running = start(&limits());
        // Made before the limit, so that only the server needs further descriptors.
        let sockets: Vec<_> = (0..40)
            .map(|_| TcpSocket::new_v4().expect("sockets are to be had"))
            .collect();
        let last = sockets
            .iter()
            .map(AsRawFd::as_raw_fd)
            .max()
            .expect("forty are some");
        let few = u64::try_from(last).expect("descriptors are not negative") + 4;
        let few = rustix::process::Rlimit {
            current: Some(few),
            maximum: Some(few),
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, few)
            .expect("lower is allowed");
        let mut clients = Vec::new();
        for socket in sockets {
            clients.push(
                socket
                    .connect(running.address)
                    .await
                    .expect("the backlog has room"),
            );
        }
        timeout(PATIENCE, async {
            while running.record.errors.load(Ordering::Relaxed) < 2 {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("the server runs out too");
        let before = running.record.errors.load(Ordering::Relaxed);
        sleep(Duration::from_millis(500)).await;
        let after = running.record.errors.load(Ordering::Relaxed);
        assert!(
            after - before <= 8,
            "{} tries in half a second are spinning",
            after - before
        );
        clients.clear();
        let mut client = running.connect().await;
        ask(&mut client, "/").await;
        assert!(read_until(&mut client, LAST_CHUNK).await.contains("hello"));
    });
}
