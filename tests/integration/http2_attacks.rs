//! HTTP/2 frames no client has a reason to send, each with the one way its connection must end; nothing of any reaches
//! a child, and everybody else is served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use serde_json::json;

use crate::PATIENCE;
use crate::caller_key::{Key, only};
use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::http2::start;
use crate::http2_frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Ending, Frames, GOAWAY, HEADERS, PING, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, post,
};
use crate::session::{call, initialize};
use crate::tls_client::Https;

/// Frames of an attack that are far more than any limit, and bounded all the same.
const MANY: usize = 30_000;

const PROTOCOL_ERROR: Ending = Ending::GoAway(1);
const FLOW_CONTROL_ERROR: Ending = Ending::GoAway(3);
const FRAME_SIZE_ERROR: Ending = Ending::GoAway(6);
const ENHANCE_YOUR_CALM: Ending = Ending::GoAway(11);

/// A gateway that asks for a key, its client's terms, and what its children read.
struct Target {
    gateway: Gateway,
    config: Arc<ClientConfig>,
    record: Record,
    key: Key,
}

impl Target {
    fn start() -> Self {
        let (record, key) = (Record::new(), Key::of("friend"));
        let server = Server::fake("fake").option("--record", record.path());
        let server = server.key("check_on_start = false").key("pool.min_idle = 0");
        let (gateway, authority) = start(&server, &only(&[&key]));
        Self { gateway, config: authority.client(&["h2"], None), record, key }
    }

    fn open(&self) -> Frames {
        Frames::open(self.gateway.address(), &self.config)
    }

    /// Nothing reached a child, and a friend is served.
    #[track_caller]
    fn is_well(&self) {
        assert!(self.record.all().is_empty(), "a child was started");
        let mut friend = Https::connect(self.gateway.address(), &self.config);
        let answer = friend.post("/fake/mcp", &[self.key.header()], &initialize("2025-11-25", json!({})).to_string());
        assert_eq!(answer.status, 200);
        assert!(!self.gateway.events().iter().any(|event| event["event"] == "panic"));
    }
}

/// The head of a request without a key, whose body is to come.
fn stranger(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(&post("/fake/mcp", &[])))
}

/// F:D08, F:D09, F:D10: floods of frames that cost a client nothing end their connection within few of them. PING,
/// SETTINGS, PRIORITY, WINDOW_UPDATE and unknown types are what hyper alone answers for ever.
#[test]
fn floods_end_their_connection() {
    let target = Target::start();
    let tiny_update = frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    for (what, before, piece) in [
        ("PING", vec![], frame(PING, 0, 0, &[7; 8])),
        ("PING acknowledgements nobody waits for", vec![], frame(PING, 1, 0, &[7; 8])),
        ("SETTINGS", vec![], frame(SETTINGS, 0, 0, &[])),
        ("SETTINGS that change windows", vec![], frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0x40, 0])),
        ("PRIORITY", vec![], frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 16])),
        ("WINDOW_UPDATE", vec![], tiny_update.clone()),
        ("unknown types", vec![], frame(0xbe, 0, 0, &[1; 100])),
        ("empty DATA", stranger(1), frame(DATA, 0, 1, &[])),
        ("DATA of one byte", stranger(1), frame(DATA, 0, 1, b"x")),
        ("DATA that is all padding", stranger(1), frame(DATA, 8, 1, &[&[99][..], &[0; 99]].concat())),
    ] {
        let mut frames = target.open();
        frames.send(&before);
        assert!(frames.pour(&piece, MANY), "{what}: it takes them for ever");
        assert!(matches!(frames.ending(), Ending::Closed | ENHANCE_YOUR_CALM | Ending::GoAway(5)), "{what}");
    }
    target.gateway.await_metric("connections_total", &[("result", "flood")], |count| count >= 7.0);
    target.is_well();
}

/// F:D10: what a busy client sends is no flood: as many frames of each kind as one may need.
#[test]
fn a_lively_client_is_no_flood() {
    let target = Target::start();
    let mut frames = target.open();
    for _ in 0..100 {
        frames.send(&frame(PING, 0, 0, &[7; 8]));
        frames.send(&frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()));
        frames.send(&frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 16]));
    }
    frames.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&post("/fake/mcp", &[]))));
    assert_eq!(frames.status(1), 401);
}

/// F:D08: pairs of requests and their resets end the connection (CVE-2023-44487), and so do requests we have to reset
/// (CVE-2025-8671); none is left running.
#[test]
fn rapid_resets_end_their_connection() {
    let target = Target::start();
    let pairs = |make: &dyn Fn(u32) -> Vec<u8>| {
        let mut frames = target.open();
        let mut ended = false;
        for at in 0..20_u32 {
            let many: Vec<u8> = (at * 1000..(at + 1) * 1000).flat_map(|pair| make(pair * 2 + 1)).collect();
            ended = frames.pour(&many, 1);
            if ended {
                break;
            }
        }
        (ended, frames.ending())
    };
    let reset = |stream| [stranger(stream), frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat();
    let (_, ending) = pairs(&reset);
    assert!(matches!(ending, ENHANCE_YOUR_CALM | Ending::Closed), "{ending:?}");
    let made = |stream| [stranger(stream), frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes())].concat();
    let (_, ending) = pairs(&made);
    assert!(matches!(ending, ENHANCE_YOUR_CALM | Ending::Closed), "{ending:?}");
    target.gateway.await_metric("connections", &[("listener", "main")], |count| count == 0.0);
    target.is_well();
}

/// F:D09: a header block that goes on and on ends the connection (CVE-2024-27316), empty or full.
#[test]
fn endless_header_blocks_end_their_connection() {
    let target = Target::start();
    for (what, piece) in [
        ("empty", frame(CONTINUATION, 0, 1, &[])),
        ("full", frame(CONTINUATION, 0, 1, &block(&[("x-filler", &"y".repeat(16_000))]))),
    ] {
        let mut frames = target.open();
        frames.send(&frame(HEADERS, 0, 1, &block(&post("/fake/mcp", &[]))));
        assert!(frames.pour(&piece, MANY), "{what}");
        let ending = frames.ending();
        assert!(matches!(ending, ENHANCE_YOUR_CALM | Ending::Closed), "{what}: {ending:?}");
    }
    target.is_well();
}

/// F:D08, F:D09: what breaks the protocol is answered by GOAWAY with its code (RFC 9113, 7) and nothing else.
#[test]
fn broken_frames_end_their_connection_with_their_code() {
    let target = Target::start();
    let mut connect = Frames::connect(target.gateway.address(), &target.config);
    connect.send(b"GET /fake/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(connect.ending(), Ending::Closed, "another protocol than agreed");
    let max = 0x7fff_ffff_u32.to_be_bytes();
    for (what, bytes, wanted) in [
        ("PUSH_PROMISE of a client", frame(PUSH_PROMISE, 4, 1, &[0, 0, 0, 2, 0x82]), PROTOCOL_ERROR),
        ("DATA on no stream", frame(DATA, 0, 0, &[1; 100]), PROTOCOL_ERROR),
        ("DATA on a stream nobody opened", frame(DATA, 0, 9, &[1; 100]), PROTOCOL_ERROR),
        ("HEADERS on an even stream", frame(HEADERS, 5, 2, &block(&post("/fake/mcp", &[]))), PROTOCOL_ERROR),
        ("CONTINUATION of nothing", frame(CONTINUATION, 4, 1, &[]), PROTOCOL_ERROR),
        (
            "a frame within a header block",
            [frame(HEADERS, 0, 1, &[]), frame(PING, 0, 0, &[0; 8])].concat(),
            PROTOCOL_ERROR,
        ),
        ("PING on a stream", frame(PING, 0, 1, &[0; 8]), PROTOCOL_ERROR),
        ("PING of seven bytes", frame(PING, 0, 0, &[0; 7]), PROTOCOL_ERROR),
        ("SETTINGS of five bytes", frame(SETTINGS, 0, 0, &[0; 5]), PROTOCOL_ERROR),
        (
            "a frame that is too large",
            [&[0, 0x40, 1, DATA, 0, 0, 0, 0, 1][..], &[0; 16_385]].concat(),
            FRAME_SIZE_ERROR,
        ),
        ("padding longer than its frame", [stranger(1), frame(DATA, 8, 1, &[255, 0, 0])].concat(), PROTOCOL_ERROR),
        ("a header block nobody can read", frame(HEADERS, 5, 1, &[0xff, 0xff, 0xff, 0xff, 0xff]), PROTOCOL_ERROR),
        ("an index that is in no table", frame(HEADERS, 5, 1, &[0xfe]), PROTOCOL_ERROR),
        (
            "a window beyond all bounds",
            [frame(WINDOW_UPDATE, 0, 0, &max), frame(WINDOW_UPDATE, 0, 0, &max)].concat(),
            FLOW_CONTROL_ERROR,
        ),
        ("a window update by nothing", frame(WINDOW_UPDATE, 0, 0, &[0; 4]), PROTOCOL_ERROR),
    ] {
        let mut frames = target.open();
        frames.send(&bytes);
        assert_eq!(frames.ending(), wanted, "{what}");
    }
    target.is_well();
}

/// F:C08, F:D07: heads that are no request: pseudo-fields that are missing, repeated, unknown or late, and fields of a
/// connection, reset their stream and the connection goes on; a name or value with bytes that neither may have, line
/// ends among them, ends it.
#[test]
fn malformed_heads_are_refused() {
    let target = Target::start();
    let good = post("/fake/mcp", &[]);
    let without = |name: &str| good.iter().copied().filter(|(other, _)| *other != name).collect::<Vec<_>>();
    let with = |more: &[(&'static str, &'static str)]| [&good[..], more].concat();
    for (head, wanted) in [
        (without(":method"), RST_STREAM),
        (without(":path"), RST_STREAM),
        (without(":scheme"), RST_STREAM),
        (with(&[(":path", "/fake/mcp")]), RST_STREAM),
        (with(&[(":status", "200")]), RST_STREAM),
        ([&[("x", "y")][..], &good].concat(), RST_STREAM),
        (with(&[("connection", "close")]), RST_STREAM),
        (with(&[("transfer-encoding", "chunked")]), RST_STREAM),
        (with(&[("te", "gzip")]), RST_STREAM),
        (with(&[("Upper", "case")]), GOAWAY),
        (with(&[("x", "a\r\nauthorization: Bearer b")]), GOAWAY),
        (with(&[("x\r\ny", "b")]), GOAWAY),
        (with(&[("x", "a\0b")]), GOAWAY),
    ] {
        let mut frames = target.open();
        frames.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&head)));
        let answer = loop {
            let next = frames.next().unwrap_or_else(|| panic!("{head:?} ended the connection without a word"));
            if matches!(next.kind, RST_STREAM | HEADERS | GOAWAY) {
                break next;
            }
        };
        assert_eq!(answer.kind, wanted, "{head:?}: {answer:?}");
        let code = answer.payload[if wanted == GOAWAY { 4..8 } else { 0..4 }].to_vec();
        assert_eq!(code, 1_u32.to_be_bytes(), "PROTOCOL_ERROR for {head:?}");
        if wanted == RST_STREAM {
            frames.send(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &block(&good)));
            assert_eq!(frames.status(3), 401, "after {head:?}");
        }
    }
    target.is_well();
}

/// F:D07, F:D15: what is refused in HTTP/1.1 and HTTP/2 itself lets through, two lengths and fields that pass for others
/// with their underscore, is refused here too; the connection goes on.
#[test]
fn fields_that_fool_others_are_refused() {
    let target = Target::start();
    let key = target.key.header();
    let mut frames = target.open();
    let put = [(":method", "PUT"), (":scheme", "https"), (":authority", "localhost"), (":path", "/fake/mcp")];
    let put = [&put[..], &[("authorization", key.1)]].concat();
    let cases: [(&[(&str, &str)], u16); 4] = [
        (&[("x_forwarded_for", "192.0.2.1")], 400),
        (&[("mcp_session_id", "1")], 400),
        (&[("content-length", "0"), ("content-length", "0")], 400),
        (&[("a_b", "1")], 405),
    ];
    for (stream, (fields, wanted)) in (1..).step_by(2).zip(cases) {
        let fields = [&put[..], fields].concat();
        frames.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&fields)));
        assert_eq!(frames.status(stream), wanted, "{fields:?}");
    }
    target.is_well();
}

/// F:D06: a head that is too large is 431, be it long or in many fields; one that would be 48 MiB, by an entry of the
/// compression table that is named again and again, ends the connection before it is unpacked.
#[test]
fn large_heads_are_refused() {
    let target = Target::start();
    let large = "y".repeat(12_000);
    let first = block(&[&post("/fake/mcp", &[])[..], &[("x", &large), ("x", &large), ("x", &large)]].concat());
    let mut bomb = block(&post("/fake/mcp", &[]));
    // Indexed for later (RFC 7541, 6.2.1), then named by one byte each.
    bomb.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    bomb.extend([b'y'; 4000]);
    bomb.extend([0xbe; 12_000]);
    let fields: Vec<(&str, &str)> = std::iter::repeat_n(("x", "y"), 70).collect();
    let many = block(&post("/fake/mcp", &fields));
    for (what, bytes) in [("plain", first), ("many fields", many), ("a bomb", bomb)] {
        let mut frames = target.open();
        frames.send(&frame(HEADERS, END_STREAM, 1, &bytes[..bytes.len().min(16_000)]));
        for piece in bytes[bytes.len().min(16_000)..].chunks(16_000) {
            frames.send(&frame(CONTINUATION, 0, 1, piece));
        }
        frames.send(&frame(CONTINUATION, END_HEADERS, 1, &[]));
        if what == "a bomb" {
            assert_eq!(frames.ending(), ENHANCE_YOUR_CALM, "it is not even unpacked");
        } else {
            assert_eq!(frames.status(1), 431, "{what}");
        }
    }
    target.is_well();
}

/// F:C01, F:D02: until somebody is let in, 64 KiB of body is all a connection takes at once, in all streams together:
/// the windows begin with that, and never open by more than was sent.
#[test]
fn a_stranger_has_the_first_window_only() {
    let target = Target::start();
    let mut frames = target.open();
    frames.send(&frame(PING, 0, 0, &[1; 8]));
    loop {
        let next = frames.next().unwrap();
        match next.kind {
            SETTINGS => {
                let windows = next.payload.chunks(6).filter(|entry| entry[1] == 4);
                windows.for_each(|entry| assert!(entry[2..] <= [0, 0, 0xff, 0xff][..], "{entry:?}"));
            }
            WINDOW_UPDATE => panic!("{next:?} before anything was sent"),
            PING => break,
            _ => {}
        }
    }
    // Sent with their heads, before anybody can have answered; more than there is room for.
    let mut burst = [stranger(1), stranger(3)].concat();
    let pieces = 10;
    for at in 0..pieces {
        burst.extend(frame(DATA, 0, if at % 2 == 0 { 1 } else { 3 }, &[b'x'; 16_000]));
    }
    burst.extend(frame(PING, 0, 0, &[2; 8]));
    frames.send(&burst);
    let mut opened = 0;
    let ending = loop {
        let Some(next) = frames.next() else { break None };
        match next.kind {
            GOAWAY => break Some(Ending::GoAway(u32::from_be_bytes(next.payload[4..8].try_into().unwrap()))),
            WINDOW_UPDATE if next.stream == 0 => opened += u32::from_be_bytes(next.payload[..4].try_into().unwrap()),
            PING if next.payload == [2; 8] => break None,
            _ => {}
        }
    };
    // Whether it is a breach depends on how fast the refusals gave back what came before.
    assert!(matches!(ending, None | Some(FLOW_CONTROL_ERROR)), "{ending:?}");
    assert!(opened <= pieces * 16_000, "{opened}");
    target.is_well();
}

/// F:D08: more streams than allowed are refused one by one; those that are open are served.
#[test]
fn streams_are_bounded() {
    let target = Target::start();
    let mut frames = target.open();
    let settings = frames.await_frame(SETTINGS, 0);
    let most = settings.payload.chunks(6).find(|entry| entry[1] == 3).unwrap();
    assert_eq!(u32::from_be_bytes(most[2..].try_into().unwrap()), 128);
    let key = target.key.header();
    let mut opener = Https::connect(target.gateway.address(), &target.config);
    let opened = opener.post("/fake/mcp", &[key], &initialize("2025-11-25", json!({})).to_string());
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    let headers = post("/fake/mcp", &[("authorization", key.1), ("mcp-session-id", &id)]);
    // Bodies that never end keep 128 of them open.
    for at in 0..128 {
        frames.send(&frame(HEADERS, END_HEADERS, at * 2 + 1, &block(&headers)));
    }
    frames.send(&frame(HEADERS, END_HEADERS, 257, &block(&headers)));
    let reset = frames.await_frame(RST_STREAM, 257);
    assert_eq!(reset.payload, 7_u32.to_be_bytes(), "REFUSED_STREAM");
    frames.send(&frame(DATA, END_STREAM, 1, call(1, "echo", json!({}), None).to_string().as_bytes()));
    assert_eq!(frames.status(1), 200);
}

/// F:D08, F:D10: while one address floods, another client's calls are answered as ever.
#[test]
fn floods_leave_others_alone() {
    let target = Target::start();
    let mut friend = Https::connect(target.gateway.address(), &target.config);
    let key = target.key.header();
    let opened = friend.post("/fake/mcp", &[key], &initialize("2025-11-25", json!({})).to_string());
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    opened.text();
    let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" }).to_string();
    let mut slowest = Duration::ZERO;
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            for _ in 0..10 {
                target.open().pour(&frame(PING, 0, 0, &[7; 8]).repeat(100), MANY / 100);
            }
        });
        let began = Instant::now();
        while !flood.is_finished() && began.elapsed() < PATIENCE {
            let sent = Instant::now();
            assert_eq!(friend.post("/fake/mcp", &[key, ("mcp-session-id", &id)], &ping).status, 200);
            slowest = slowest.max(sent.elapsed());
        }
    });
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
}
