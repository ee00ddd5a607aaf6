//! What each clock cuts, and what it must leave alone.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::{LAST_CHUNK, PATIENCE, ask, limits, read_to_end, read_until, start};
use crate::config::Limits;
use crate::net::End;

#[tokio::test]
async fn a_head_that_never_ends_is_cut_however_busily() {
    let limits = Limits { header_timeout: Duration::from_millis(300), ..limits() };
    let running = start(&limits);
    let mut client = running.connect().await;
    let begun = Instant::now();
    client.write_all(b"GET / HTTP/1.1\r\nX: ").await.expect("fresh");
    // A byte every now and then, until the connection is gone.
    while timeout(Duration::from_millis(20), client.readable()).await.is_err() {
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
    let limits = Limits { header_timeout: Duration::from_millis(200), ..limits() };
    let running = start(&limits);
    let mut client = running.connect().await;
    assert!(read_to_end(&mut client).await.is_empty());
    assert_eq!(running.record.end(1).await, End::Idle);
}

#[tokio::test]
async fn idle_connections_live_for_keep_alive_and_not_for_the_head() {
    let limits =
        Limits { header_timeout: Duration::from_millis(100), keep_alive: Duration::from_millis(900), ..limits() };
    let running = start(&limits);
    let mut client = running.connect().await;
    ask(&mut client, "/").await;
    read_until(&mut client, LAST_CHUNK).await;
    let idle = Instant::now();
    assert!(read_to_end(&mut client).await.is_empty());
    assert!(idle.elapsed() >= Duration::from_millis(700), "{:?}", idle.elapsed());
    assert_eq!(running.record.end(1).await, End::Idle);
}

#[tokio::test]
async fn a_reader_that_stops_in_a_large_chunk_is_cut() {
    let limits = Limits { write_stall: Duration::from_millis(400), ..limits() };
    let running = start(&limits);
    let mut client = running.connect_narrow().await;
    ask(&mut client, "/bytes/8388608").await;
    assert_eq!(running.record.end(1).await, End::Stalled);
    assert_eq!(running.script.polled.load(Ordering::Relaxed), 1, "the body itself saw nothing");
    let got = read_to_end(&mut client).await.len();
    assert!(got < 1024 * 1024, "{got} bytes were taken for a reader that stands still");
}

#[tokio::test]
async fn a_slow_reader_that_goes_on_is_served() {
    let limits = Limits { write_stall: Duration::from_secs(1), keep_alive: Duration::from_millis(100), ..limits() };
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
    let limits = Limits { connection_age: Some(Duration::from_millis(200)), ..limits() };
    let running = start(&limits);
    let mut client = running.connect().await;
    ask(&mut client, "/wait").await;
    running.script.started.notified().await;
    sleep(Duration::from_millis(400)).await;
    running.script.go_on.notify_one();
    let answer = String::from_utf8(read_to_end(&mut client).await).expect("text");
    assert!(answer.contains("waited") && answer.contains("connection: close"), "{answer}");
    assert_eq!(running.record.end(1).await, End::Closed);
}
