//! The pieces of the hot path one by one: `cargo bench --bench micro`.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use gangway::config::parse;
use gangway::mcp::ids::Id;
use gangway::mcp::message::Message;
use gangway::mcp::payload::Payload;
use gangway::mcp::scan::{Author, MAX_DEPTH, scan};
use gangway::mcp::stream_log::{Bounds, EventKind, Framing, Next, Nonce, StreamLog, priming_event};
use gangway::net::{Front, Look};

const CALL: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","#,
    r#""arguments":{"text":"The quick brown fox jumps over the lazy dog."},"_meta":{"progressToken":7}}}"#
);
const PROGRESS: &str = concat!(
    r#"{"jsonrpc":"2.0","method":"notifications/progress","#,
    r#""params":{"progressToken":42,"progress":17,"total":1000}}"#
);

/// The defaults of `[replay]` and the send window.
const BOUNDS: Bounds = Bounds { events: 1024, bytes: 4 << 20, window: 4 << 20 };

/// A result whose text makes up `bytes`, as prose with an escape now and then.
fn result(bytes: usize) -> Bytes {
    let prose = r"Lorem ipsum dolor sit amet, consectetur adipiscing elit.\n";
    let text: String = prose.chars().cycle().take(bytes / prose.len() * prose.len()).collect();
    Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":42,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#))
}

/// A result of many small values, which costs a scanner most.
fn table(rows: usize) -> Bytes {
    let rows = vec![r#"{"id":12345,"name":"a name","price":12.5,"ok":true,"none":null}"#; rows].join(",");
    Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":42,"result":{{"structuredContent":{{"rows":[{rows}]}}}}}}"#))
}

/// A result nested as deep as is allowed.
fn deep() -> Bytes {
    let inside = MAX_DEPTH as usize - 2;
    let (open, close) = ("[".repeat(inside), "]".repeat(inside));
    Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":42,"result":{{"a":{open}{close}}}}}"#))
}

fn envelope(criterion: &mut Criterion) {
    let texts = [
        ("call", Bytes::from(CALL)),
        ("64KiB", result(64 << 10)),
        ("1MiB", result(1 << 20)),
        ("table", table(1000)),
        ("deep", deep()),
    ];
    let mut group = criterion.benchmark_group("envelope");
    for (name, text) in texts {
        scan(&text, Author::Client).0.expect("the text is valid");
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(format!("scan/{name}"), |bench| bench.iter(|| scan(black_box(&text), Author::Child)));
        group.bench_function(format!("parse/{name}"), |bench| {
            bench.iter(|| Message::parse(black_box(text.clone()), Author::Child));
        });
    }
    group.finish();
}

fn splice(criterion: &mut Criterion) {
    let id = Id::parse(b"\"client-7\"").expect("an id");
    let read = |text: Bytes| Message::parse(text, Author::Child).expect("a message");
    let call = read(Bytes::from(CALL));
    let mut line = Vec::with_capacity(1024);
    let mut group = criterion.benchmark_group("splice");
    group.bench_function("request", |bench| {
        bench.iter(|| {
            line.clear();
            black_box(&call).write_request(42, &mut line);
        });
    });
    for (name, text) in [("small", result(100)), ("64KiB", result(64 << 10)), ("1MiB", result(1 << 20))] {
        let answer = read(text);
        group.bench_function(format!("answer/{name}"), |bench| bench.iter(|| black_box(&answer).with_id(&id)));
    }
    let progress = read(Bytes::from(PROGRESS));
    group.bench_function("progress", |bench| bench.iter(|| black_box(&progress).with_progress_of(&id)));
    group.finish();
}

fn sse(criterion: &mut Criterion) {
    let nonce = Nonce::from_bits(0x0123_4567_89ab_cdef);
    let mut group = criterion.benchmark_group("sse");
    group.bench_function("priming", |bench| bench.iter(|| priming_event(black_box(nonce), 0, Duration::from_secs(1))));
    for (name, text) in [("progress", Bytes::from(PROGRESS)), ("64KiB", result(64 << 10)), ("1MiB", result(1 << 20))] {
        let payload = Payload::whole(text);
        group.bench_function(format!("encode/{name}"), |bench| {
            let fresh = || StreamLog::new(nonce, Framing::Resumable);
            let push = |mut log: StreamLog| {
                log.push(EventKind::Notification, black_box(&payload));
                log
            };
            bench.iter_batched(fresh, push, BatchSize::SmallInput);
        });
    }
    group.finish();
}

fn stream_log(criterion: &mut Criterion) {
    const EVENTS: u64 = 1000;
    let payload = Payload::whole(Bytes::from(PROGRESS));
    let fresh = || StreamLog::new(Nonce::from_bits(7), Framing::Resumable);
    let filled = || {
        let mut log = fresh();
        for _ in 0..EVENTS {
            log.push(EventKind::Notification, &payload);
        }
        log
    };
    let mut group = criterion.benchmark_group("stream_log");
    group.throughput(Throughput::Elements(EVENTS));
    group.bench_function("push", |bench| bench.iter_with_large_drop(filled));
    group.bench_function("read", |bench| {
        bench.iter_batched_ref(filled, read_all, BatchSize::SmallInput);
    });
    group.bench_function("trim", |bench| {
        let none = Bounds { events: 0, ..BOUNDS };
        bench.iter_batched_ref(filled, |log| log.trim(&none, false), BatchSize::SmallInput);
    });
    group.bench_function("push, read and trim in turn", |bench| {
        bench.iter_batched_ref(
            fresh,
            |log| {
                for cursor in 0..EVENTS {
                    log.push(EventKind::Notification, &payload);
                    log.trim(&BOUNDS, true);
                    black_box(log.read(cursor, false, 0));
                    log.trim(&BOUNDS, true);
                }
                log.end(Instant::now());
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

/// What a connection takes at once.
const FRAME_BYTES: usize = 64 << 10;

/// Reads a log to its end.
fn read_all(log: &mut StreamLog) {
    let mut cursor = 0;
    while let Next::Run { last, bytes, .. } = log.read(cursor, false, FRAME_BYTES) {
        black_box(bytes);
        cursor = last;
    }
}

/// A POST as clients send it, with this body.
fn post(body: &[u8], framing: &str) -> Vec<u8> {
    let head = format!(
        "POST /files/mcp HTTP/1.1\r\nHost: mcp.example.com\r\nUser-Agent: node\r\nAccept: application/json, \
         text/event-stream\r\nAccept-Encoding: gzip, deflate\r\nAccept-Language: *\r\nSec-Fetch-Mode: cors\r\n\
         Content-Type: application/json\r\nAuthorization: Bearer gangway_{}\r\nMcp-Session-Id: a1b2c3-{}\r\n\
         Mcp-Protocol-Version: 2025-11-25\r\nConnection: keep-alive\r\n{framing}\r\n\r\n",
        "k".repeat(43),
        "0".repeat(32)
    );
    [head.as_bytes(), body].concat()
}

/// What the strict front adds to each request before hyper reads it.
fn front(criterion: &mut Criterion) {
    let sized = |body: &[u8]| post(body, &format!("Content-Length: {}", body.len()));
    let chunks: Vec<u8> = [&b"400\r\n"[..], &[b'x'; 1024], b"\r\n"].concat().repeat(64);
    let requests = [
        ("call", sized(CALL.as_bytes())),
        ("1MiB", sized(&vec![b'x'; 1 << 20])),
        ("64 chunks", post(&[&chunks[..], b"0\r\n\r\n"].concat(), "Transfer-Encoding: chunked")),
    ];
    let text = "[servers.a]\ncommand = \"true\"\n";
    let config = parse(text, "bench", Path::new("/"), &|_| None).expect("a configuration").config;
    let mut group = criterion.benchmark_group("front");
    for (name, request) in requests {
        let mut front = Front::new(&config.limits);
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let look = front.look(black_box(&request));
                assert_eq!(look, Look { pass: request.len(), fault: None });
            });
        });
    }
    group.finish();
}

criterion_group!(benches, envelope, splice, sse, stream_log, front);
criterion_main!(benches);
