//! HTTP/2 before anybody is let in: requests come in by turns, and heads as a whole, so that a connection of nobody's
//! takes up little; a caller who is known has all it may have.

use serde_json::json;

use crate::caller_key::{Key, only};
use crate::child::{Record, Server};
use crate::http2::start;
use crate::http2_frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Ending, Frames, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS,
    block, frame, post,
};
use crate::session::initialize;
use crate::tls_client::Https;

/// Requests of one turn.
const TURN: u32 = 4;

fn server() -> Server {
    Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0")
}

/// F:D08, F:E11: four requests of strangers are open at once; those that were sent with them come in when these have
/// ended. Here their answers wait for a window that is never opened.
#[test]
fn strangers_come_in_by_turns() {
    let (gateway, authority) =
        start(&server(), &format!("{}[limits]\nwrite_stall = \"500ms\"\n", only(&[&Key::of("friend")])));
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    let mut bytes = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let many = TURN * 3 - 1;
    for at in 0..many {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, at * 2 + 1, &block(&post("/fake/mcp", &[]))));
    }
    frames.send(&bytes);
    let (mut open, mut most, mut begun) = (0, 0, 0);
    for _ in 0..many * 2 {
        let next = loop {
            let next = frames.next().expect("it goes on");
            if matches!(next.kind, HEADERS | RST_STREAM) {
                break next;
            }
        };
        if next.kind == HEADERS {
            (open, begun) = (open + 1, begun + 1);
        } else {
            open -= 1;
        }
        most = most.max(open);
    }
    assert_eq!((begun, most), (many, TURN));
}

/// F:D08: a client that asks for much at once, before it can know that it is let in, gets all of it on the same
/// connection.
#[test]
fn who_is_let_in_has_all_at_once() {
    let key = Key::of("friend");
    let (gateway, authority) = start(&server(), &only(&[&key]));
    let config = authority.client(&["h2"], None);
    let mut opener = Https::connect(gateway.address(), &config);
    let opened = opener.post("/fake/mcp", &[key.header()], &initialize("2025-11-25", json!({})).to_string());
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    let headers = block(&post("/fake/mcp", &[("authorization", key.header().1), ("mcp-session-id", &id)]));
    let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" }).to_string();
    let streams = || (0..100).map(|at| at * 2 + 1);
    let mut bytes: Vec<u8> = streams().flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &headers)).collect();
    bytes.extend(streams().flat_map(|stream| frame(DATA, END_STREAM, stream, ping.as_bytes())));
    let mut frames = Frames::open(gateway.address(), &config);
    frames.send(&bytes);
    let mut ended = 0;
    while ended < 100 {
        let next = frames.next().expect("all are answered");
        assert!(next.kind != GOAWAY && next.kind != RST_STREAM, "{next:?}");
        assert!(next.kind != HEADERS || next.payload.contains(&0x88), "status 200: {next:?}");
        ended += u32::from(next.kind == DATA && next.flags & END_STREAM != 0);
    }
}

/// F:D08: of many requests of strangers at once few are answered: the others are known to be not, and the connection ends.
#[test]
fn what_strangers_ask_after_goaway_is_not_answered() {
    let (gateway, authority) = start(&server(), &only(&[&Key::of("friend")]));
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    let asked = |at: u32| {
        let mut bytes = frame(HEADERS, END_HEADERS, at * 2 + 1, &block(&post("/fake/mcp", &[])));
        bytes.extend(frame(DATA, 0, at * 2 + 1, &[b'x'; 100]));
        bytes
    };
    frames.send(&(0..128).flat_map(asked).collect::<Vec<_>>());
    let (mut answers, mut last) = (0, 0);
    while let Some(next) = frames.next() {
        match next.kind {
            HEADERS => answers += 1,
            PING => frames.send(&frame(PING, ACK, 0, &next.payload)),
            GOAWAY => {
                assert_eq!(next.payload[4..8], [0; 4], "NO_ERROR");
                last = u32::from_be_bytes(next.payload[..4].try_into().unwrap());
            }
            _ => {}
        }
    }
    assert_eq!(answers, 32);
    assert_eq!(last, answers * 2 - 1, "what was not answered may be asked elsewhere");
}

/// F:C01: what is no request of a stranger goes on while its requests wait, and what it sends for one that has its answer
/// is thrown away.
#[test]
fn bodies_of_strangers_do_not_keep_what_follows() {
    let (gateway, authority) = start(&server(), &only(&[&Key::of("friend")]));
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    let mut bytes = Vec::new();
    for stream in (1..20).step_by(2) {
        bytes.extend(frame(HEADERS, END_HEADERS, stream, &block(&post("/fake/mcp", &[]))));
        bytes.extend(frame(DATA, END_STREAM, stream, &[b'x'; 5000]));
    }
    bytes.extend(frame(PING, 0, 0, &[2; 8]));
    frames.send(&bytes);
    let (mut answers, mut pongs) = (0, 0);
    while answers < 10 || pongs < 1 {
        match frames.next().expect("it goes on") {
            next if next.kind == HEADERS => answers += 1,
            next if next.kind == PING && next.payload == [2; 8] => pongs += 1,
            _ => {}
        }
    }
}

/// F:D06, F:D09: a stranger's head that is too long is refused before its end, which would never come, and with it goes
/// the connection; a caller who is known is told so and goes on.
#[test]
fn a_head_that_is_too_long_does_not_have_to_end() {
    let key = Key::of("friend");
    let (gateway, authority) = start(&server(), &only(&[&key]));
    let config = authority.client(&["h2"], None);
    let large = "y".repeat(12_000);
    let fields = [("authorization", key.header().1), ("x", &large), ("x", &large)];
    let long = block(&post("/fake/mcp", &fields));
    let mut frames = Frames::open(gateway.address(), &config);
    frames.send(&frame(HEADERS, END_STREAM, 1, &long[..12_000]));
    frames.send(&frame(CONTINUATION, 0, 1, &long[12_000..]));
    assert_eq!(frames.status(1), 431);
    assert_eq!(frames.ending(), Ending::GoAway(11), "ENHANCE_YOUR_CALM");

    let mut frames = Frames::open(gateway.address(), &config);
    frames.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&post("/fake/mcp", &fields[..1]))));
    assert_eq!(frames.status(1), 400);
    frames.send(&frame(HEADERS, END_STREAM, 3, &long[..12_000]));
    frames.send(&frame(CONTINUATION, END_HEADERS, 3, &long[12_000..]));
    frames.await_frame(HEADERS, 3);
    frames.send(&frame(HEADERS, END_HEADERS | END_STREAM, 5, &block(&post("/fake/mcp", &fields[..1]))));
    assert_eq!(frames.status(5), 400);
}

/// F:D06: a head that may come in does, in however many pieces.
#[test]
fn a_head_in_pieces_is_one() {
    let (record, key) = (Record::new(), Key::of("friend"));
    let (gateway, authority) = start(&server().option("--record", record.path()), &only(&[&key]));
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    let large = "y".repeat(14_000);
    let head = block(&post("/fake/mcp", &[("x", &large), ("authorization", key.header().1)]));
    let pieces: Vec<&[u8]> = head.chunks(3000).collect();
    for (at, piece) in pieces.iter().enumerate() {
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        let flags = if at + 1 == pieces.len() { END_HEADERS } else { 0 };
        frames.send(&frame(kind, flags, 1, piece));
    }
    frames.send(&frame(DATA, END_STREAM, 1, initialize("2025-11-25", json!({})).to_string().as_bytes()));
    assert_eq!(frames.status(1), 200);
}
