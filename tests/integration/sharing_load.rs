//! Mode `shared` under load: very many calls with the same few ids, of many sessions on few children, some of which are
//! killed on the way. `GANGWAY_CALLS`, `GANGWAY_SESSIONS` and `GANGWAY_KILLS` ask for more than every run does:
//! `tests/long` makes a million.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Connection;
use crate::gateway::{Gateway, await_that};
use crate::session::{Session, call};
use crate::sharing::{open, shared};

const THREADS: usize = 8;
const SESSIONS_PER_CHILD: usize = 25;

/// `pool.max_calls_per_child`, as it is by default.
const AT_ONCE: usize = 32;

fn asked(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// What became of the calls.
#[derive(Default)]
struct Counts {
    right: AtomicUsize,
    lost: AtomicUsize,
}

impl Counts {
    fn done(&self) -> usize {
        self.right.load(Ordering::Relaxed) + self.lost.load(Ordering::Relaxed)
    }
}

/// One session on a connection of its own.
struct Caller {
    number: usize,
    session: Session,
    connection: Connection,
}

impl Caller {
    /// The id of a round: every session uses the same at the same time.
    fn id(round: usize) -> Value {
        [json!(0), json!(1), json!("1")][round % 3].clone()
    }

    fn nonce(&self, round: usize) -> String {
        format!("{}-{round}", self.number)
    }

    fn ask(&mut self, round: usize) {
        let nonce = self.nonce(round);
        // Some are late, so that answers come in another order than their calls.
        let mixed = (self.number * 31 + round * 17) % 11;
        let body = match mixed {
            0 => call(Self::id(round), "delay", json!({ "nonce": nonce, "seconds": 0.003 }), None),
            _ => call(Self::id(round), "echo", json!({ "nonce": nonce }), None),
        };
        self.connection.request(&self.session.post_request(body.to_string()));
    }

    /// Reads the answer; one that says that the child has not seen the call is followed by another try.
    fn check(&mut self, round: usize, counts: &Counts) {
        loop {
            let answer = self.answer();
            assert_eq!(answer["id"], Self::id(round), "{answer}");
            let data = &answer["error"]["data"];
            match (data["reason"].as_str(), data["executed"].as_str()) {
                (Some("child_gone"), Some("maybe")) => {
                    counts.lost.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                (Some("child_gone"), Some("no")) => {
                    thread::sleep(Duration::from_millis(20));
                    self.ask(round);
                }
                _ => {
                    assert_eq!(answer["result"]["structuredContent"]["nonce"], self.nonce(round), "{answer}");
                    counts.right.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    fn answer(&mut self) -> Value {
        let response = self.connection.response();
        assert_eq!(response.status(), 200, "{response:?}");
        if response.header("content-type") == Some("application/json") {
            return response.json();
        }
        let last = response.text().lines().rfind(|line| line.starts_with("data: {"));
        last.unwrap_or_else(|| panic!("{response:?}"))["data: ".len()..].parse().unwrap()
    }
}

/// F:C05, F:A04, R:P06, C:B36: each of very many calls gets one answer, its own, under its own id, whatever dies; and
/// nothing is left of them.
#[test]
fn no_answer_goes_to_another() {
    let (calls, sessions) = (asked("GANGWAY_CALLS", 20_000), asked("GANGWAY_SESSIONS", 100));
    let kills = asked("GANGWAY_KILLS", 2);
    let per_child = SESSIONS_PER_CHILD.max(sessions.div_ceil(8));
    let server = shared().key(&format!("pool.max_sessions_per_child = {per_child}"));
    let tables = "limits.connections_per_address = 0\ntelemetry.log.access = \"errors\"\n";
    let gateway = Gateway::start(&format!("{tables}{}", server.toml()));
    let mut callers: Vec<Caller> = (0..sessions)
        .map(|number| Caller { number, session: open(&gateway), connection: Connection::open(gateway.address()) })
        .collect();
    let children = gateway.descendants().len();
    assert_eq!(children, sessions.div_ceil(per_child));
    let rounds = calls / sessions;
    let counts = Counts::default();
    let largest = callers.len().div_ceil(THREADS);
    thread::scope(|scope| {
        let counts = &counts;
        let run = |group: &mut [Caller]| {
            for round in 0..rounds {
                group.iter_mut().for_each(|caller| caller.ask(round));
                group.iter_mut().for_each(|caller| caller.check(round, counts));
            }
        };
        let groups: Vec<_> = callers.chunks_mut(largest).map(|group| scope.spawn(move || run(group))).collect();
        for kill in 1..=kills {
            let is_due = || counts.done() >= rounds * sessions * kill / (kills + 1);
            while !is_due() && groups.iter().any(|group| !group.is_finished()) {
                thread::sleep(Duration::from_millis(5));
            }
            let living = gateway.descendants();
            if let Some(victim) = living.get(kill % living.len().max(1)) {
                victim.kill();
            }
        }
    });
    let (right, lost) = (counts.right.into_inner(), counts.lost.into_inner());
    assert_eq!(right + lost, rounds * sessions);
    assert!(lost <= kills * AT_ONCE, "{lost} calls were with {kills} children that were killed");
    println!("{right} answers right, {lost} calls lost with {kills} children killed, none to the wrong owner");
    gateway.await_metric("requests_in_flight", &[], |count| count == 0.0);
    for caller in &callers {
        caller.session.delete();
    }
    drop(callers);
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
    await_that("the last sessions' end", || {
        (gateway.metrics().count("sessions", &[("server", "fake")]) == 0.0).then_some(())
    });
}
