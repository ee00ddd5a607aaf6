//! Whether the time of an answer says what the answer does not.

use std::env;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::caller_key::{Key, only};
use crate::child::Server;
use crate::client::{Connection, Request};
use crate::gateway::Gateway;
use crate::session::Session;

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// Means may differ by this on a busy machine.
const NOISE: Duration = Duration::from_micros(10);

/// Rounds on one connection, which ends when it has been refused too often. Odd, so that each request is as often the
/// first of one.
const ROUNDS_EACH: usize = 13;

/// The largest t of Welch's test that says nothing, where there are samples enough for it.
const LARGEST_T: f64 = 4.5;

/// Sends two requests in turn, each as often first, on a few connections one after the other, and compares the times of their answers. How many
/// there are is `GANGWAY_SAMPLES`, on a machine that is otherwise idle: then Welch's test decides, else only whether the
/// difference could be seen at all.
#[track_caller]
fn assert_same_time(gateway: &Gateway, requests: [Request; 2], status: u16) {
    let many: Option<usize> = env::var("GANGWAY_SAMPLES").ok().map(|count| count.parse().unwrap());
    let samples = many.unwrap_or(1_500);
    let mut connection = Connection::open(gateway.address());
    let mut times: [Vec<f64>; 2] = Default::default();
    for round in 0..samples {
        if round % ROUNDS_EACH == 0 {
            connection = Connection::open(gateway.address());
        }
        for at in [round % 2, 1 - round % 2] {
            let began = Instant::now();
            connection.request(&requests[at]);
            let response = connection.response();
            let took = began.elapsed();
            assert_eq!(response.status(), status, "{response:?}");
            times[at].push(took.as_secs_f64());
        }
    }
    // What the machine did to the slowest says nothing. One bound cuts both, or it would hide a difference.
    let mut all = times.concat();
    all.sort_by(f64::total_cmp);
    let bound = all[all.len() * 9 / 10];
    let [one, other] =
        times.map(|times| Sample::of(&times.into_iter().filter(|time| *time < bound).collect::<Vec<_>>()));
    let t = (one.mean - other.mean) / (one.error() + other.error()).sqrt();
    eprintln!("means {:.2} and {:.2} us, t {t:.2} of {samples}", one.mean * 1e6, other.mean * 1e6);
    match many {
        Some(_) => assert!(t.abs() <= LARGEST_T, "t is {t}"),
        None => {
            let difference = Duration::from_secs_f64((one.mean - other.mean).abs());
            assert!(difference < NOISE, "they differ by {difference:?}");
        }
    }
}

struct Sample {
    mean: f64,
    variance: f64,
    count: f64,
}

impl Sample {
    fn of(times: &[f64]) -> Sample {
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Sample { mean, variance, count }
    }

    /// The square of the mean's standard error.
    fn error(&self) -> f64 {
        self.variance / self.count
    }
}

fn start(keys: &[&Key]) -> Gateway {
    Gateway::start(&format!("telemetry.log.access = \"off\"\n{}{}", only(keys), Server::fake("fake").toml()))
}

/// F:E11, F:C08: whether an id is somebody else's or nobody's cannot be told by the time of the answer.
#[test]
fn foreign_and_unknown_ids_take_the_same_time() {
    let (alice, bob) = (Key::of("alice"), Key::of("bob"));
    let gateway = start(&[&alice, &bob]);
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[alice.header()]);
    let (name, value) = bob.header();
    let foreign = Session { headers: vec![(name.to_owned(), value.to_owned())], ..session.clone() };
    let unknown = Session { id: format!("{}{}", &session.id[..session.id.len() - 8], "01234567"), ..foreign.clone() };
    assert_same_time(&gateway, [foreign.post_request(PING), unknown.post_request(PING)], 404);
}

/// F:E11: nor how much of a key is right.
#[test]
fn keys_that_are_nearly_right_take_as_long_as_any() {
    let keys: Vec<Key> = ["alice", "bob", "carol", "dave"].map(Key::of).into();
    let gateway = start(&keys.iter().collect::<Vec<_>>());
    let right = &keys[0].authorization;
    let ask = |key: String| {
        assert_eq!(key.len(), right.len());
        // Without a body, which would not be read and end the connection.
        Request::get("/fake/mcp").header("Accept", "text/event-stream").header("Authorization", &key)
    };
    let near = format!("{}BA", &right[..right.len() - 2]);
    let far = format!("Bearer gangway_{}A", "z".repeat(42));
    assert_same_time(&gateway, [ask(near), ask(far)], 401);
}
