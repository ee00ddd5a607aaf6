//! How connections end without a clock: by the client, the caps, a panic, the drain, the system.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use super::{LAST_CHUNK, PATIENCE, ask, limits, read_to_end, read_until, start};
use crate::config::Limits;
use crate::net::{End, Phase};
use crate::telemetry::label::Accepted;

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
    assert!(timeout(Duration::from_millis(100), &mut running.served).await.is_err());
    assert!(TcpStream::connect(running.address).await.is_err(), "nothing new is taken");
    running.script.go_on.notify_one();
    let answer = read_to_end(&mut busy).await;
    assert!(String::from_utf8_lossy(&answer).contains("waited"));
    timeout(PATIENCE, running.served).await.expect("the drain ends").expect("without a panic");
}

#[tokio::test]
async fn the_end_of_the_drain_drops_what_is_left() {
    let running = start(&limits());
    let mut busy = running.connect().await;
    ask(&mut busy, "/wait").await;
    running.script.started.notified().await;
    running.phase.send_replace(Phase::Draining);
    running.phase.send_replace(Phase::Closed);
    timeout(PATIENCE, running.served).await.expect("it ends").expect("without a panic");
    assert_eq!(running.record.end(1).await, End::Aborted);
    timeout(PATIENCE, running.script.dropped.notified()).await.expect("the request is gone");
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let running = start(&limits());
    let mut client = running.connect().await;
    ask(&mut client, "/wait").await;
    running.script.started.notified().await;
    drop(client);
    timeout(PATIENCE, running.script.dropped.notified()).await.expect("the request is gone");
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
    let limits = Limits { connections_per_address: Some(1), ..limits() };
    let running = start(&limits);
    let mut first = running.connect().await;
    ask(&mut first, "/").await;
    read_until(&mut first, LAST_CHUNK).await;
    let mut second = running.connect().await;
    assert!(read_to_end(&mut second).await.is_empty());
    assert_eq!(*running.record.refused.lock().expect("whole"), [Accepted::AddressLimit]);
    drop(first);
    assert_eq!(running.record.end(1).await, End::Closed);
    // The place is given back right after the report.
    timeout(PATIENCE, async {
        loop {
            let mut third = running.connect().await;
            if third.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.is_ok() && third.read_u8().await.is_ok() {
                break;
            }
        }
    })
    .await
    .expect("there is room again");
}

#[tokio::test]
async fn bad_heads_are_answered_and_named() {
    let running = start(&Limits { header_bytes: 8192, ..limits() });
    for (index, (head, fault, end)) in [
        ("GARBAGE\r\n\r\n".to_owned(), "RequestLine", End::BadHead),
        (format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(9000)), "HeadTooLarge", End::HeadTooLarge),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(9000)), "TargetTooLong", End::HeadTooLarge),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = running.connect().await;
        client.write_all(head.as_bytes()).await.expect("fresh");
        let answer = read_to_end(&mut client).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains(fault), "{answer}");
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
    client.write_all(&vec![b'x'; length]).await.expect("the body is taken, if only to be dropped");
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
            .args(["--exact", "net::tests::ends::running_out_of_descriptors_is_survived"])
            .env(MARK, "1")
            .output()
            .expect("the test binary runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let running = start(&limits());
        // Made before the limit, so that only the server needs further descriptors.
        let sockets: Vec<_> = (0..40).map(|_| TcpSocket::new_v4().expect("sockets are to be had")).collect();
        let last = sockets.iter().map(AsRawFd::as_raw_fd).max().expect("forty are some");
        let few = u64::try_from(last).expect("descriptors are not negative") + 4;
        let few = rustix::process::Rlimit { current: Some(few), maximum: Some(few) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, few).expect("lower is allowed");
        let mut clients = Vec::new();
        for socket in sockets {
            clients.push(socket.connect(running.address).await.expect("the backlog has room"));
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
        assert!(after - before <= 8, "{} tries in half a second are spinning", after - before);
        clients.clear();
        let mut client = running.connect().await;
        ask(&mut client, "/").await;
        assert!(read_until(&mut client, LAST_CHUNK).await.contains("hello"));
    });
}
