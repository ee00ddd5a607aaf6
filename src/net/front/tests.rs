//! One verdict for each request, however its bytes are split.

use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::{Fault, Front, Look};
use crate::caller::Malformed;
use crate::config::Limits;
use crate::net::tests::limits;

fn front() -> Front {
    Front::new(&Limits { header_bytes: 8192, header_fields: 8, ..limits() })
}

/// Feeds the bytes in pieces that end at `cuts`; what went on, and the fault.
fn feed(bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, Option<Fault>) {
    let (mut front, mut pending, mut passed) = (front(), Vec::new(), Vec::new());
    let mut begin = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        pending.extend_from_slice(&bytes[begin..end]);
        begin = end;
        let Look { pass, fault } = front.look(&pending);
        passed.extend(pending.drain(..pass));
        if fault.is_some() {
            return (passed, fault);
        }
    }
    (passed, None)
}

fn whole(text: &[u8]) -> (Vec<u8>, Option<Fault>) {
    let verdict = feed(text, &[]);
    let singly: Vec<usize> = (0..text.len()).collect();
    assert_eq!(feed(text, &singly), verdict, "byte by byte: {:?}", String::from_utf8_lossy(text));
    verdict
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn what_is_clear_goes_on_as_it_came() {
    for text in [
        GET.to_owned(),
        GET.repeat(3),
        format!("\r\n{GET}"),
        "OPTIONS * HTTP/1.1\r\nhost:a\r\nLD_PRELOAD: x\r\n_: 1\r\nSM_USER: 1\r\n\r\n".to_owned(),
        "GET http://a.example/x?y HTTP/1.1\r\nHost: A.example:80\r\n\r\n".to_owned(),
        "GET https://a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: \r\nX: caf\u{e9}\t\"x\"\r\nContent-Length: 0\r\n\r\n".to_owned(),
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /{GET}"),
        format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked \r\n\r\n5\r\nabcde\r\n0\r\n\r\n{GET}"),
        "POST / HTTP/1.1\r\nHost: a\r\ntransfer-encoding:chunked\r\n\r\n00A;x=\"y\"\r\n0123456789\r\n0;z\r\nX-Sum: 1\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nab".to_owned(),
    ] {
        assert_eq!(whole(text.as_bytes()), (text.clone().into_bytes(), None), "{text:?}");
    }
}

#[test]
fn nothing_of_an_unclear_head_goes_on() {
    let long = |bytes: usize| "a".repeat(bytes);
    let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    let cases = [
        ("GARBAGE\r\n".to_owned(), Malformed::RequestLine),
        ("\x16\x03\x01".to_owned(), Malformed::Tls),
        ("\r\n\r\n".to_owned(), Malformed::RequestLine),
        ("GET  / HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET / HTTP/1.1 \r\n".to_owned(), Malformed::RequestLine),
        (" GET / HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("G(T / HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET /a b HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET /\u{e9} HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET /a#b HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET /\0 HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET a HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET * HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET ftp://a/ HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET http:///x HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET http://u@a/x HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("CONNECT a:443 HTTP/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET / http/1.1\r\n".to_owned(), Malformed::RequestLine),
        ("GET / HTTP/1.10\r\n".to_owned(), Malformed::RequestLine),
        ("GET /\r\n".to_owned(), Malformed::RequestLine),
        ("GET / HTTP/1.2\r\n".to_owned(), Malformed::Version),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), Malformed::RequestLine),
        ("GET / HTTP/2.0\r\n".to_owned(), Malformed::Version),
        (format!("GET /{} HTTP/1.1\r\n", long(9000)), Malformed::TargetTooLong),
        (format!("GET / HTTP/1.1\r\nX: {}\r\n", long(9000)), Malformed::HeadTooLarge),
        (with(&["X: 1"; 8].join("\r\n")), Malformed::TooManyFields),
        ("GET / HTTP/1.1\nHost: a\n\n".to_owned(), Malformed::LineEnd),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n".to_owned(), Malformed::LineEnd),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n".to_owned(), Malformed::LineEnd),
        (with("X: 1\rY: 2"), Malformed::Field),
        (with("X: 1\r\r"), Malformed::Field),
        (with("X: 1\r\n folded"), Malformed::Field),
        (with("X : 1"), Malformed::Field),
        (with(": 1"), Malformed::Field),
        (with("X"), Malformed::Field),
        (with("X\u{e9}: 1"), Malformed::Field),
        (with("X: \0"), Malformed::Field),
        (with("X: \x7f"), Malformed::Field),
        (with("X_Forwarded_For: 1"), Malformed::Underscore),
        (with("x_real_ip: 1"), Malformed::Underscore),
        (with("Content_Length: 1"), Malformed::Underscore),
        (with("transfer-encoding_: chunked"), Malformed::Underscore),
        (with("Mcp_Session-Id: 1"), Malformed::Underscore),
        (with("X_ : 1"), Malformed::Field),
        ("GET / HTTP/1.1\r\nX: a\r\n\r\n".to_owned(), Malformed::Host),
        (with("Host: a"), Malformed::Host),
        ("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n".to_owned(), Malformed::Host),
        ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), Malformed::HostDisagrees),
        ("GET http://a:443/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), Malformed::HostDisagrees),
        (with("Content-Length: 1\r\nContent-Length: 1"), Malformed::Length),
        (with("Content-Length: 1, 1"), Malformed::Length),
        (with("Content-Length: +1"), Malformed::Length),
        (with("Content-Length: 0x1"), Malformed::Length),
        (with("Content-Length: 1 1"), Malformed::Length),
        (with("Content-Length:"), Malformed::Length),
        (with("Content-Length: 99999999999999999999"), Malformed::Length),
        (with("Content-Length: 1\r\nTransfer-Encoding: chunked"), Malformed::Length),
        (with("Transfer-Encoding: chunked\r\nContent-Length: 1"), Malformed::Length),
        (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), Malformed::Coding),
        (with("Transfer-Encoding: chunked, chunked"), Malformed::Coding),
        (with("Transfer-Encoding: gzip, chunked"), Malformed::Coding),
        (with("Transfer-Encoding: identity"), Malformed::Coding),
        (with("Transfer-Encoding: \x0bchunked"), Malformed::Field),
        (with("Transfer-Encoding:"), Malformed::Coding),
        ("POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 1\r\n\r\n".to_owned(), Malformed::Content),
        ("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), Malformed::Content),
    ];
    for (text, malformed) in cases {
        assert_eq!(whole(text.as_bytes()), (Vec::new(), Some(Fault::Head(malformed))), "{text:?}");
        let second = format!("{GET}{text}");
        let passed = GET.as_bytes().to_vec();
        assert_eq!(whole(second.as_bytes()), (passed, Some(Fault::Head(malformed))), "{second:?}");
    }
}

#[test]
fn chunks_go_on_up_to_the_first_that_is_unclear() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (good, bad) in [
        ("", "g\r\n"),
        ("", "\r\n"),
        ("", "-1\r\n"),
        ("", "0x1\r\n"),
        ("", " 1\r\n"),
        ("", "1 \r\n"),
        ("", "1\n"),
        ("", "00000000000000001\r\n"),
        ("", "1;\0\r\n"),
        ("2\r\nab", "c\r\n"),
        ("2\r\nab", "\n0\r\n"),
        ("2\r\nab", "\r\r\n"),
        ("0\r\n", "X\r\n"),
        ("0\r\nX: 1\r\n", "Content-Length: 1\r\n"),
        ("0\r\n", " X: 1\r\n"),
        ("0\r\n", "\n"),
    ] {
        let text = format!("{head}{good}{bad}");
        let passed = format!("{head}{good}").into_bytes();
        assert_eq!(whole(text.as_bytes()), (passed, Some(Fault::Content)), "{text:?}");
    }
    for endless in [format!("1;{}", "x".repeat(300)), "0\r\n".to_owned() + &"X: 1\r\n".repeat(9)] {
        let (passed, fault) = whole(format!("{head}{endless}").as_bytes());
        assert!(fault == Some(Fault::Content) && passed.len() < head.len() + 60, "{endless:?}");
    }
}

#[test]
fn nothing_follows_an_upgrade_before_its_answer() {
    let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let (passed, fault) = whole(format!("{upgrade}{GET}").as_bytes());
    assert_eq!((passed, fault), (upgrade.as_bytes().to_vec(), Some(Fault::Head(Malformed::AfterUpgrade))));
    let mut front = front();
    assert_eq!(front.look(upgrade.as_bytes()), Look { pass: upgrade.len(), fault: None });
    assert!(front.is_upgrading());
    front.answered();
    assert_eq!(front.look(GET.as_bytes()), Look { pass: GET.len(), fault: None });
    assert!(!front.is_upgrading());
}

/// Pieces of requests, good and bad, in any order, which makes what random bytes never would.
fn soup() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(GET.as_bytes().to_vec()),
        Just(b"POST / HTTP/1.1\r\nHost: a\r\n".to_vec()),
        Just(b"Content-Length: 3\r\n".to_vec()),
        Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        Just(b"Upgrade: x\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"3\r\nabc\r\n".to_vec()),
        Just(b"0\r\n\r\n".to_vec()),
        Just(b"abc".to_vec()),
        Just(b"\n".to_vec()),
        Just(vec![b'a'; 5000]),
        proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn where_the_bytes_are_split_changes_nothing(bytes in soup(), cuts in proptest::collection::vec(any::<u16>(), 0..8)) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| usize::from(cut) % (bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let verdict = feed(&bytes, &[]);
        prop_assert_eq!(&feed(&bytes, &cuts), &verdict);
        prop_assert!(bytes.starts_with(&verdict.0));
    }

    #[test]
    fn content_is_never_looked_into(body in proptest::collection::vec(any::<u8>(), 1..300)) {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        let text = [head.as_bytes(), &body, GET.as_bytes()].concat();
        prop_assert_eq!(feed(&text, &[]), (text, None));
    }
}
