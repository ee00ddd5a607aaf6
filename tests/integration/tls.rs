//! TLS: certificates by name, handshakes that go wrong, renewal while serving, client certificates as callers.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use serde_json::json;

use crate::PATIENCE;
use crate::caller_key::Key;
use crate::child::{Record, Server};
use crate::gateway::{BINARY, Gateway, await_that, pid};
use crate::session::{call, initialize};
use crate::tls_client::{Authority, Https, Issued, exchange, shake_hands, shown};

const GET: &str = "GET /fake/mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn quiet(name: &str) -> Server {
    Server::fake(name).key("check_on_start = false").key("pool.min_idle = 0")
}

fn start(authority: &Authority, pairs: &[(&str, &Issued)], lines: &str) -> Gateway {
    Gateway::start(&format!("{}{}", authority.toml(pairs, lines), quiet("fake").toml()))
}

/// What the gateway shows to a client that asks for this name; its own check of the name is not ours.
#[track_caller]
fn certificate(gateway: &Gateway, authority: &Authority, name: &str) -> Vec<u8> {
    let stream = shake_hands(gateway.address(), &anyone(authority), name).unwrap();
    shown(&stream).to_vec()
}

/// A client that takes any certificate of the authority, whatever its name.
fn anyone(authority: &Authority) -> Arc<ClientConfig> {
    let mut config = Arc::unwrap_or_clone(authority.client(&["http/1.1"], None));
    config.dangerous().set_certificate_verifier(Arc::new(AnyName));
    Arc::new(config)
}

/// Looks at signatures of the handshake only.
#[derive(Debug)]
struct AnyName;

mod any_name {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    impl ServerCertVerifier for super::AnyName {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, cert, dss, &default_provider().signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, dss, &default_provider().signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            default_provider().signature_verification_algorithms.supported_schemes()
        }
    }
}

/// F:D12: the name a client asks for chooses the certificate, exact before wildcard; another name, or none, gets the
/// first.
#[test]
fn the_name_chooses_the_certificate() {
    let authority = Authority::new();
    let first = authority.issue(&["localhost", "a.example"]);
    let second = authority.issue(&["b.example"]);
    let wild = authority.issue(&["*.wild.example", "*.example"]);
    let gateway = start(&authority, &[("first", &first), ("second", &second), ("wild", &wild)], "");
    for (name, wanted) in [
        ("a.example", &first),
        ("b.example", &second),
        ("B.Example", &second),
        ("x.wild.example", &wild),
        ("c.example", &wild),
        ("y.x.wild.example", &first),
        ("unknown.test", &first),
        // An address is no name (RFC 6066, 3): such a client sends none.
        ("127.0.0.1", &first),
    ] {
        assert_eq!(certificate(&gateway, &authority, name), wanted.der.to_vec(), "{name}");
    }
    let ends = |name| gateway.metrics().count("tls_certificate_expiry_timestamp_seconds", &[("name", name)]);
    assert_eq!(ends("localhost"), 4_070_908_800.0);
    assert_eq!(ends("b.example"), 4_070_908_800.0);
}

/// F:D12: URLs say https wherever one is shown.
#[test]
fn shown_urls_are_https() {
    let authority = Authority::new();
    let issued = authority.issue(&["localhost"]);
    let gateway = start(&authority, &[("server", &issued)], "");
    let url = format!("https://{}/fake/mcp", gateway.address());
    assert_eq!(gateway.ready["servers"]["fake"]["url"], url);
    // Browsers speak HTTP/2, where the host has another place.
    for protocol in ["http/1.1", "h2"] {
        let mut client = Https::connect(gateway.address(), &authority.client(&[protocol], None));
        let page = client.send("GET", "/fake/mcp", &[("accept", "text/html")], "").text();
        assert!(page.contains(&format!("https://localhost:{}/fake/mcp", gateway.address().port())), "{page}");
    }
}

/// F:D12: TLS 1.3 and 1.2 are spoken, with and without ALPN; a protocol nobody speaks is an alert.
#[test]
fn versions_and_protocols_are_agreed_upon() {
    let authority = Authority::new();
    let issued = authority.issue(&["localhost"]);
    let gateway = start(&authority, &[("server", &issued)], "");
    for (offered, agreed) in [
        (&["h2", "http/1.1"][..], Some(&b"h2"[..])),
        (&["http/1.1", "h2"][..], Some(b"h2")),
        (&["http/1.1"][..], Some(b"http/1.1")),
        (&[][..], None),
    ] {
        let stream = shake_hands(gateway.address(), &authority.client(offered, None), "localhost").unwrap();
        assert_eq!(stream.conn.alpn_protocol(), agreed, "{offered:?}");
        assert_eq!(stream.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        let group = stream.conn.negotiated_key_exchange_group().unwrap().name();
        assert_eq!(group, rustls::NamedGroup::X25519MLKEM768, "what a quantum computer could not read");
    }
    assert!(shake_hands(gateway.address(), &authority.client(&["spdy/1"], None), "localhost").is_err());
    let old = ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS12])
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyName))
        .with_no_client_auth();
    let mut stream = shake_hands(gateway.address(), &Arc::new(old), "localhost").unwrap();
    assert_eq!(stream.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_2));
    assert!(exchange(&mut stream, GET).unwrap().starts_with("HTTP/1.1 "), "and without ALPN it is HTTP/1.1");
}

/// A ClientHello of this version with two suites and nothing else.
fn old_hello(version: [u8; 2]) -> Vec<u8> {
    let mut body = version.to_vec();
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 4, 0xc0, 0x13, 0x00, 0x2f, 1, 0]);
    // ecdsa_secp256r1_sha256, on secp256r1.
    body.extend([0, 16, 0, 13, 0, 4, 0, 2, 4, 3, 0, 10, 0, 4, 0, 2, 0, 23]);
    let mut hello = vec![1, 0, 0, u8::try_from(body.len()).unwrap()];
    hello.extend(body);
    let mut record = vec![22, 3, 1, 0, u8::try_from(hello.len()).unwrap()];
    record.extend(hello);
    record
}

/// F:D12: TLS 1.0 and 1.1 get the alert `protocol_version`, what is no TLS gets an alert too, and nothing panics.
#[test]
fn what_is_too_old_or_no_tls_is_refused() {
    let authority = Authority::new();
    let issued = authority.issue(&["localhost"]);
    let gateway = start(&authority, &[("server", &issued)], "");
    let (version, any) = (Some(70), None);
    let long = [&[22, 3, 1, 0xff, 0xff][..], &[1; 40_000]].concat();
    let huge_hello = [&[22, 3, 1, 0x40, 0x00, 1, 0xff, 0xff, 0xff][..], &[0; 16 * 1024 - 4]].concat();
    for (what, bytes, alert) in [
        ("TLS 1.0", old_hello([3, 1]), version),
        ("TLS 1.1", old_hello([3, 2]), version),
        ("SSL 3", old_hello([3, 0]), version),
        ("plain HTTP", GET.as_bytes().to_vec(), any),
        ("a record that is too long", long, any),
        ("a hello that is too long", huge_hello, any),
        ("noise", vec![0xa5; 300], any),
    ] {
        let mut tcp = TcpStream::connect(gateway.address()).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may be gone before it has read all.
        let _ = tcp.write_all(&bytes);
        let mut answer = Vec::new();
        let outcome = tcp.read_to_end(&mut answer);
        assert!(outcome.is_ok() || outcome.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{what}");
        if let Some(alert) = alert {
            assert_eq!((answer.first(), answer.last()), (Some(&21), Some(&alert)), "{what}: {answer:?}");
        }
    }
    gateway.await_metric("connections_total", &[("result", "handshake")], |count| count >= 7.0);
    assert!(shake_hands(gateway.address(), &authority.client(&[], None), "localhost").is_ok());
    assert!(!gateway.events().iter().any(|event| event["event"] == "panic"));
}

/// F:D12: a handshake byte by byte is a handshake.
#[test]
fn a_hello_in_single_bytes_is_understood() {
    let authority = Authority::new();
    let issued = authority.issue(&["localhost"]);
    let gateway = start(&authority, &[("server", &issued)], "");
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(authority.client(&["http/1.1"], None), name).unwrap();
    let mut tcp = TcpStream::connect(gateway.address()).unwrap();
    tcp.set_nodelay(true).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    for byte in hello {
        tcp.write_all(&[byte]).unwrap();
    }
    while session.is_handshaking() {
        session.complete_io(&mut tcp).unwrap();
    }
    let mut stream = rustls::StreamOwned::new(session, tcp);
    assert!(exchange(&mut stream, GET).unwrap().starts_with("HTTP/1.1 "));
}

/// F:D11: of a client nobody knows a record waits in the kernel until it is whole, however it comes; one that breaks off
/// ends its connection.
#[test]
fn a_record_in_pieces_waits_outside() {
    let authority = Authority::new();
    let issued = authority.issue(&["localhost"]);
    let gateway = start(&authority, &[("server", &issued)], "");
    let connect = || {
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(authority.client(&["http/1.1"], None), name).unwrap();
        let mut tcp = TcpStream::connect(gateway.address()).unwrap();
        tcp.set_nodelay(true).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        while session.is_handshaking() {
            session.complete_io(&mut tcp).unwrap();
        }
        rustls::StreamOwned::new(session, tcp)
    };
    let record_of = |session: &mut ClientConnection| {
        let mut record = Vec::new();
        session.writer().write_all(GET.as_bytes()).unwrap();
        session.write_tls(&mut record).unwrap();
        record
    };
    let mut stream = connect();
    let record = record_of(&mut stream.conn);
    for end in 1..record.len() {
        stream.sock.write_all(&record[end - 1..end]).unwrap();
    }
    assert!(exchange(&mut connect(), GET).unwrap().starts_with("HTTP/1.1 "), "others are served");
    assert_eq!(unread_of(&stream.sock), record.len() - 1, "nothing of it was read");
    stream.sock.write_all(&record[record.len() - 1..]).unwrap();
    assert!(exchange(&mut stream, "").unwrap().starts_with("HTTP/1.1 "), "by then it is");

    let mut broken = connect();
    let record = record_of(&mut broken.conn);
    broken.sock.write_all(&record[..record.len() / 2]).unwrap();
    broken.sock.shutdown(Shutdown::Write).unwrap();
    assert!(broken.sock.read_to_end(&mut Vec::new()).is_ok(), "the gateway closes, too");
}

/// Bytes that the peer of this connection, on this machine, has not read.
fn unread_of(tcp: &TcpStream) -> usize {
    let hex = |address: SocketAddr| {
        let SocketAddr::V4(address) = address else { panic!("{address} is IPv6") };
        format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
    };
    let (own, peer) = (hex(tcp.local_addr().unwrap()), hex(tcp.peer_addr().unwrap()));
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let line = table.lines().find(|line| line.contains(&format!("{peer} {own}"))).expect("it is open");
    let (_, unread) = line.split_whitespace().nth(4).unwrap().split_once(':').unwrap();
    usize::from_str_radix(unread, 16).unwrap()
}

/// F:D12, F:D11: a handshake that stands still ends at its limit, and counts within the caps until then; others shake
/// hands meanwhile.
#[test]
fn a_stalled_handshake_ends_and_counts() {
    let authority = Authority::new();
    let issued = authority.issue(&["localhost"]);
    let lines = "[limits]\ntls_handshake = \"2500ms\"\nconnections_per_address = 3";
    let gateway = start(&authority, &[("server", &issued)], lines);
    let began = Instant::now();
    let mut stalled: Vec<TcpStream> = (0..2)
        .map(|at| {
            let mut tcp = TcpStream::connect(gateway.address()).unwrap();
            tcp.set_read_timeout(Some(PATIENCE)).unwrap();
            // The one sends nothing, the other half a record.
            tcp.write_all(&[22, 3, 1, 0, 200, 1][..at * 6]).unwrap();
            tcp
        })
        .collect();
    gateway.await_metric("connections_total", &[("listener", "main"), ("result", "ok")], |count| count == 2.0);
    let client = authority.client(&["http/1.1"], None);
    let third = shake_hands(gateway.address(), &client, "localhost").unwrap();
    let mut fourth = TcpStream::connect(gateway.address()).unwrap();
    fourth.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(fourth.read(&mut [0; 1]).unwrap_or(0), 0, "it is one too many");
    for tcp in &mut stalled {
        assert_eq!(tcp.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    assert!(began.elapsed() >= Duration::from_millis(2000));
    drop(third);
    gateway.await_metric("connections", &[("listener", "main")], |count| count == 0.0);
    assert_eq!(gateway.metrics().count("connections_total", &[("result", "handshake")]), 2.0);
}

/// F:D12: a pair that is half written, does not fit or is no certificate keeps the old one in effect and names the
/// file; the good one that follows is taken over. Connections that are open go on.
#[test]
fn a_bad_pair_keeps_the_old_one() {
    let authority = Authority::new();
    let [old, new, third] = [(); 3].map(|()| authority.issue(&["localhost"]));
    let gateway = start(&authority, &[("server", &old)], "");
    let client = authority.client(&["http/1.1"], None);
    let mut open = Https::connect(gateway.address(), &client);
    open.send("GET", "/nowhere", &[], "").text();
    let (cert, key) = (authority.path("server.pem"), authority.path("server-key.pem"));
    let with = |lines: &str| {
        let (cert, key) = (cert.display(), key.display());
        let tls = format!("[listen.tls]\ncertificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n");
        format!("{tls}[limits]\n{lines}\n{}", quiet("fake").toml())
    };
    let failed = |file: &str, reason: &str| {
        gateway.await_event("tls_reload_failed", |event| {
            event["file"].as_str().unwrap().ends_with(file) && event["reason"].as_str().unwrap().contains(reason)
        });
        assert_eq!(certificate(&gateway, &authority, "localhost"), old.der.to_vec(), "{reason}");
    };
    // By itself, and then on HUP, where it is all or nothing with the rest.
    fs::write(&cert, &new.cert).unwrap();
    failed("server-key.pem", "does not fit");
    let half_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n".to_owned();
    let ended = authority.issue_until(&["localhost"], 2020);
    for (cert_text, key_text, file, reason) in [
        (&new.cert[..new.cert.len() / 2], &new.key, "server.pem", "holds no whole certificate"),
        ("", &new.key, "server.pem", "holds no certificate in PEM form"),
        (&new.cert, &half_key, "server-key.pem", "holds a private key of a kind"),
        (&ended.cert, &ended.key, "server.pem", "has ended"),
    ] {
        fs::write(&cert, cert_text).unwrap();
        fs::write(&key, key_text).unwrap();
        let told = gateway.reload(&with("body_bytes = \"1KiB\""));
        assert_eq!(told["event"], "reload_failed", "{told}");
        assert!(told["error"].as_str().unwrap().contains(reason), "{told}");
        failed(file, reason);
    }
    fs::remove_file(&key).unwrap();
    assert_eq!(gateway.reload(&with(""))["event"], "reload_failed");
    failed("server-key.pem", "cannot be read");
    authority.write("server", &new);
    gateway.await_event("tls_reload", |event| event["certificates"] == "localhost");
    assert_eq!(certificate(&gateway, &authority, "localhost"), new.der.to_vec());
    assert_eq!(open.send("GET", "/nowhere", &[], "").status, 404, "what was open goes on");
    authority.write("server", &third);
    let told = gateway.reload(&with("body_bytes = \"1KiB\""));
    assert_eq!(told["event"], "reload", "{told}");
    assert_eq!(certificate(&gateway, &authority, "localhost"), third.der.to_vec());
    let plain = quiet("fake").toml();
    let told = gateway.reload(&plain);
    assert!(told["error"].as_str().unwrap().contains("listen.tls"), "switching it off needs a restart: {told}");
}

/// F:D11, F:D12: a certificate that could not be read when it came, for want of descriptors here, is read as soon as it
/// can be, and complained about once.
#[test]
fn a_pair_that_could_not_be_read_is_read_later() {
    let authority = Authority::new();
    let [old, new] = [(); 2].map(|()| authority.issue(&["localhost"]));
    let gateway = start(&authority, &[("server", &old)], "");
    let process = Some(pid(gateway.pid()));
    let few = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
    let before = prlimit(process, Resource::Nofile, few).unwrap();
    authority.write("server", &new);
    gateway.await_event("tls_reload_failed", |event| event["reason"].as_str().unwrap().contains("cannot be read"));
    prlimit(process, Resource::Nofile, before).unwrap();
    gateway.await_event("tls_reload", |event| event["certificates"] == "localhost");
    assert_eq!(certificate(&gateway, &authority, "localhost"), new.der.to_vec());
    let told = gateway.events().iter().filter(|event| event["event"] == "tls_reload_failed").count();
    assert!(told <= 2, "{told} lines for two files");
}

/// R:A22: what a certificate opened ends with it, and its connection opens nothing more.
#[test]
fn a_stream_ends_with_its_certificate() {
    let authority = Authority::new();
    let issued = authority.issue(&["localhost"]);
    let lines =
        format!("client_ca = {:?}\nclient_auth = \"required\"\n[auth]\nmethods = [\"mtls\"]\n", authority.file());
    let gateway = start(&authority, &[("server", &issued)], &lines);
    let alice = authority.issue_client_for("alice", Duration::from_secs(6));
    let mut client = Https::connect(gateway.address(), &authority.client(&["h2"], Some(&alice)));
    let id = open(&mut client, &[]);
    let headers = [("mcp-session-id", id.as_str()), ("accept", "text/event-stream")];
    let mut standing = client.send("GET", "/fake/mcp", &headers, "");
    assert_eq!(standing.status, 200);
    while standing.next().is_some() {}
    gateway.await_metric("stream_cuts_total", &[("reason", "token_expired")], |count| count == 1.0);
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    assert_eq!(client.post("/fake/mcp", &[("mcp-session-id", &id)], &ping).status, 401);
}

/// F:D12: a swap of the directory behind a link, as of a Kubernetes secret, is seen.
#[test]
fn a_swapped_link_is_a_new_certificate() {
    let authority = Authority::new();
    let [old, new] = [(); 2].map(|()| authority.issue(&["localhost"]));
    for (version, issued) in [("v1", &old), ("v2", &new)] {
        fs::create_dir(authority.path(version)).unwrap();
        authority.write(&format!("{version}/tls"), issued);
    }
    symlink("v1", authority.path("data")).unwrap();
    let (cert, key) = (authority.path("data/tls.pem"), authority.path("data/tls-key.pem"));
    let tls = format!("[listen.tls]\ncertificates = [{{ cert = {cert:?}, key = {key:?} }}]\n");
    let gateway = Gateway::start(&format!("{tls}{}", quiet("fake").toml()));
    assert_eq!(certificate(&gateway, &authority, "localhost"), old.der.to_vec());
    symlink("v2", authority.path("data_next")).unwrap();
    fs::rename(authority.path("data_next"), authority.path("data")).unwrap();
    await_that("the other certificate", || {
        (certificate(&gateway, &authority, "localhost") == new.der.to_vec()).then_some(())
    });
    gateway.await_event("tls_reload", |_| true);
}

/// F:D12: a start with files that cannot be served is refused with every one named, exit 78, as by `check`.
#[test]
fn a_start_with_bad_files_names_them() {
    let authority = Authority::new();
    let [one, two] = [(); 2].map(|()| authority.issue(&["localhost"]));
    let mixed = Issued { key: two.key.clone(), ..one.clone() };
    let broken = Issued { cert: "nothing".into(), ..two };
    let toml = format!("{}{}", authority.toml(&[("mixed", &mixed), ("broken", &broken)], ""), quiet("fake").toml());
    let failed = Gateway::try_start(&toml, |_| {}).err().unwrap();
    assert_eq!(failed.status.code(), Some(78), "{failed:?}");
    assert!(failed.stderr.contains("mixed-key.pem does not fit"), "{failed:?}");
    assert!(failed.stderr.contains("broken.pem holds no certificate"), "{failed:?}");
    let check = |pairs: &[(&str, &Issued)]| {
        let file = authority.path("gangway.toml");
        fs::write(&file, format!("{}{}", authority.toml(pairs, ""), quiet("fake").toml())).unwrap();
        Command::new(BINARY).arg("check").arg(file).output().unwrap()
    };
    let told = check(&[("mixed", &mixed), ("broken", &broken)]);
    assert_eq!(told.status.code(), Some(78));
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("mixed-key.pem does not fit") && told.contains("broken.pem holds no certificate"), "{told}");
    let good = check(&[("good", &one)]);
    assert!(String::from_utf8_lossy(&good.stdout).contains("https://localhost:8080/fake/mcp"), "{good:?}");
}

const INITIALIZE: fn() -> String = || initialize("2025-11-25", json!({})).to_string();

/// The session a client opens with its certificate.
#[track_caller]
fn open(client: &mut Https, headers: &[(&str, &str)]) -> String {
    let opened = client.post("/fake/mcp", headers, &INITIALIZE());
    assert_eq!(opened.status, 200);
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    drop(opened.text());
    id
}

/// R:A20, F:E08, F:D12: a certificate the authority of clients signed is a caller; one of a foreign authority, or none, ends
/// the handshake where it is required. A session is its caller's: another certificate finds nothing, a renewed one of
/// the same subject goes on.
#[test]
fn a_client_certificate_is_a_caller() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let issued = authority.issue(&["localhost"]);
    let lines =
        format!("client_ca = {:?}\nclient_auth = \"required\"\n[auth]\nmethods = [\"mtls\"]\n", authority.file());
    let gateway = start(&authority, &[("server", &issued)], &lines);
    let [alice, renewed] = [(); 2].map(|()| authority.issue_client("alice"));
    let connect =
        |shown: &Issued| Https::connect(gateway.address(), &authority.client(&["h2", "http/1.1"], Some(shown)));
    let mut client = connect(&alice);
    let id = open(&mut client, &[]);
    gateway.await_event("session_open", |event| event["principal"] == "certificate:CN=alice");
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    let ask = |client: &mut Https| client.post("/fake/mcp", &[("mcp-session-id", &id)], &ping).status;
    assert_eq!(ask(&mut client), 200);
    assert_eq!(ask(&mut connect(&renewed)), 200);
    assert_eq!(ask(&mut connect(&authority.issue_client("bob"))), 404);
    assert_eq!(ask(&mut connect(&authority.issue_client("alice,O=admin"))), 404);
    for shown in [None, Some(foreign.issue_client("alice"))] {
        let config = authority.client(&["http/1.1"], shown.as_ref());
        // In TLS 1.3 the client is done before the server has looked at its certificate.
        let outcome = shake_hands(gateway.address(), &config, "localhost");
        assert!(outcome.is_err() || exchange(&mut outcome.unwrap(), GET).is_err(), "nobody comes in");
    }
    gateway.await_metric("connections_total", &[("result", "handshake")], |count| count == 2.0);
    assert_eq!(ask(&mut client), 200);
}

/// R:A20: where a certificate is optional it stands beside keys: a key that is shown counts, else the certificate; the
/// session of the one is not the other's. A foreign certificate is refused all the same.
#[test]
fn certificates_and_keys_stand_side_by_side() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let issued = authority.issue(&["localhost"]);
    let key = Key::of("robot");
    let record = Record::new();
    let lines = format!(
        "client_ca = {:?}\nclient_auth = \"optional\"\n[auth]\nmethods = [\"api_key\", \"mtls\"]\n{}",
        authority.file(),
        key.toml("")
    );
    let only = Server::fake("only").key("check_on_start = false").key("pool.min_idle = 0");
    let only = only.option("--record", record.path()).key("auth.methods = [\"mtls\"]").toml();
    let toml = format!("{}{}{only}", authority.toml(&[("server", &issued)], &lines), quiet("fake").toml());
    let gateway = Gateway::start(&toml);
    let address = gateway.address();
    let mut with = Https::connect(address, &authority.client(&["h2"], Some(&authority.issue_client("alice"))));
    let mut without = Https::connect(address, &authority.client(&["h2"], None));
    let robot = [("authorization", key.authorization.as_str())];
    let by_certificate = open(&mut with, &[]);
    let by_key = open(&mut with, &robot);
    gateway.await_event("session_open", |event| event["principal"] == "certificate:CN=alice");
    gateway.await_event("session_open", |event| event["principal"] == "key:robot");
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    let ask = |client: &mut Https, id: &str, more: &[(&str, &str)]| {
        let headers = [&[("mcp-session-id", id)], more].concat();
        client.post("/fake/mcp", &headers, &ping).status
    };
    assert_eq!(ask(&mut with, &by_certificate, &[]), 200);
    assert_eq!(ask(&mut with, &by_certificate, &robot), 404);
    assert_eq!(ask(&mut with, &by_key, &[]), 404);
    assert_eq!(ask(&mut without, &by_key, &robot), 200);
    assert_eq!(ask(&mut without, &by_certificate, &[]), 401);
    assert_eq!(ask(&mut with, &by_certificate, &[("authorization", "Bearer wrong")]), 401, "no falling back");
    let refused = without.post("/only/mcp", &robot, &INITIALIZE());
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Certificate")));
    assert!(record.all().is_empty(), "nothing was started for it");
    let config = authority.client(&["http/1.1"], Some(&foreign.issue_client("alice")));
    let outcome = shake_hands(address, &config, "localhost");
    assert!(outcome.is_err() || exchange(&mut outcome.unwrap(), GET).is_err());
}

/// F:D12: calls work over TLS in HTTP/1.1 as they do without.
#[test]
fn calls_work_over_http1() {
    let authority = Authority::new();
    let issued = authority.issue(&["localhost"]);
    let gateway = start(&authority, &[("server", &issued)], "");
    let mut client = Https::connect(gateway.address(), &authority.client(&["http/1.1"], None));
    let id = open(&mut client, &[]);
    let headers = [("mcp-session-id", id.as_str())];
    let big = "x".repeat(300_000);
    let echo = call(2, "echo", json!({ "text": big }), None).to_string();
    let answer = client.post("/fake/mcp", &headers, &echo).text();
    assert!(answer.len() > 300_000 && answer.contains(&big));
}
