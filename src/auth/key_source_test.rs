//! Tests of `key_source`, on a clock that stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep};

use super::{FIRST_WAIT, KeySource, Missing, NoKey, PAUSE, STALE, UNKNOWN, next_fetch, next_try};
use crate::auth::jwks::KeySet;
use crate::config::Algorithm;

/// A set of Ed25519 keys with these names; whatever `salt` says, they differ for another.
fn keys(kids: &[&str], salt: u8) -> KeySet {
    let x = String::from(char::from(b'A' + 4 * salt)).repeat(43);
    let key = |kid: &&str| format!(r#"{{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"{kid}","x":"{x}"}}"#);
    let keys: Vec<String> = kids.iter().map(key).collect();
    let document = format!(r#"{{"keys":[{}]}}"#, keys.join(","));
    KeySet::parse(document.as_bytes(), &[Algorithm::EdDSA]).expect("a key set")
}

async fn find(source: &KeySource, kid: &str) -> Result<u64, Missing> {
    source.find(Some(kid), Algorithm::EdDSA).await.map(|(_, generation)| generation)
}

const UNKNOWN_KEY: Result<u64, Missing> = Err(Missing::NoKey(NoKey::Unknown));

/// Somebody who fetches when asked, and what is fetched: a set for the number of the fetch.
fn follow(source: &Arc<KeySource>, fetched: impl Fn(u32) -> KeySet + Send + 'static) -> (Arc<AtomicU32>, JoinSet<()>) {
    let count = Arc::new(AtomicU32::new(0));
    let (source, counted) = (Arc::clone(source), Arc::clone(&count));
    let mut task = JoinSet::new();
    task.spawn(async move {
        loop {
            source.attempt_began();
            let number = counted.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(100)).await;
            let _changed = source.take(fetched(number));
            source.attempt_ended();
            source.due(Duration::from_secs(3600)).await;
        }
    });
    (count, task)
}

#[tokio::test(start_paused = true)]
async fn before_any_key_was_there_nothing_is_judged() {
    let source = KeySource::new();
    assert_eq!(find(&source, "a").await, Err(Missing::NeverLoaded));
    assert!(source.take(keys(&["a"], 0)));
    assert_eq!(find(&source, "a").await, Ok(0));
}

/// F:E04
#[tokio::test(start_paused = true)]
async fn the_first_fetch_is_waited_for_and_no_later_one() {
    let source = Arc::new(KeySource::new());
    let (count, _task) = follow(&source, |_| keys(&["a"], 0));
    assert_eq!(find(&source, "a").await, Ok(0), "it is under way");
    assert_eq!(count.load(Ordering::Relaxed), 1);
    let (silent, began) = (KeySource::new(), Instant::now());
    assert_eq!(find(&silent, "a").await, Err(Missing::NeverLoaded));
    assert_eq!(began.elapsed(), FIRST_WAIT);
    silent.attempt_ended();
    let began = Instant::now();
    assert_eq!(find(&silent, "a").await, Err(Missing::NeverLoaded));
    assert_eq!(began.elapsed(), Duration::ZERO, "it failed once, and whoever waits for the next has nothing of it");
}

/// F:E03
#[tokio::test(start_paused = true)]
async fn a_flood_of_unknown_keys_is_one_fetch_in_thirty_seconds() {
    let source = Arc::new(KeySource::new());
    let (count, _task) = follow(&source, |_| keys(&[], 0));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(count.load(Ordering::Relaxed), 1, "at the start");
    for expected in [2, 3] {
        let mut asking = JoinSet::new();
        for number in 0..5_000 {
            let source = Arc::clone(&source);
            asking.spawn(async move { find(&source, &format!("kid {expected} {number}")).await });
        }
        assert!(asking.join_all().await.into_iter().all(|found| found == UNKNOWN_KEY));
        assert_eq!(count.load(Ordering::Relaxed), expected);
        assert_eq!(find(&source, "later").await, UNKNOWN_KEY);
        assert_eq!(count.load(Ordering::Relaxed), expected, "within the pause");
        assert!(source.demand().unknown.len() <= UNKNOWN);
        advance(PAUSE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_not_there_is_not_asked_for_again_and_another_is() {
    let source = Arc::new(KeySource::new());
    let (count, _task) = follow(&source, |number| if number < 2 { keys(&["a"], 0) } else { keys(&["a", "b"], 0) });
    sleep(Duration::from_secs(1)).await;
    assert_eq!(find(&source, "strange").await, UNKNOWN_KEY);
    advance(PAUSE).await;
    assert_eq!(find(&source, "strange").await, UNKNOWN_KEY);
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(find(&source, "b").await, Ok(1), "the token that comes first after a rotation");
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_during_a_fetch_waits_for_one_that_began_after() {
    let source = Arc::new(KeySource::new());
    assert!(source.take(keys(&["a"], 0)));
    let (count, _task) = follow(&source, |number| if number == 0 { keys(&["a"], 0) } else { keys(&["b"], 0) });
    sleep(Duration::from_millis(50)).await;
    assert_eq!(find(&source, "b").await, Ok(1));
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn keys_outlive_their_issuer_by_a_day() {
    let source = KeySource::new();
    assert!(source.take(keys(&["a"], 0)));
    advance(STALE - Duration::from_secs(1)).await;
    assert_eq!(find(&source, "a").await, Ok(0));
    advance(Duration::from_secs(2)).await;
    assert_eq!(find(&source, "a").await, Err(Missing::NeverLoaded));
    assert_eq!(source.generation(), None);
}

#[tokio::test(start_paused = true)]
async fn the_generation_changes_with_the_keys_and_only_then() {
    let source = KeySource::new();
    assert!(source.take(keys(&["a", "b"], 0)));
    assert!(!source.take(keys(&["b", "a"], 0)), "in another order");
    assert_eq!(source.generation(), Some(0));
    for (number, other) in [keys(&["a"], 0), keys(&["a"], 1), keys(&["c"], 1)].into_iter().enumerate() {
        assert!(source.take(other));
        assert_eq!(source.generation(), Some(number as u64 + 1));
    }
}

#[test]
fn pauses_are_bounded() {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    for (said, expected) in [(None, 15), (Some(0), 5), (Some(600), 10), (Some(u64::MAX), 360)] {
        assert_eq!(next_fetch(said), minutes(expected), "{said:?}");
    }
    let pauses: Vec<u64> = (1..8).map(|failures| next_try(failures).as_secs()).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(next_try(u32::MAX), Duration::from_secs(30));
}
