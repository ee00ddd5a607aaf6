//! Histories of sessions on one shared child, against a model of what each of them must see: calls under the same few
//! ids and tokens, cancelled, answered in any order or twice, tasks, subscriptions, and a child that dies on the way. The
//! code is the real one, pipes included; the test plays the child. `GANGWAY_HISTORIES` asks for more than every run
//! plays: `tests/long` does.

mod child;
mod guest;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::{any, prop};
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use self::child::Player;
use self::guest::{Expected, Guest, Made};
use super::{Condition, SharedChild, SharedParts};
use crate::budget::Budget;
use crate::config;
use crate::exchange::account::Accounts;
use crate::exchange::ledger::Ledger;
use crate::exchange::session::SessionTerms;
use crate::exchange::stream::StreamTerms;
use crate::mcp::message::Message;
use crate::mcp::revision::Revision;
use crate::mcp::scan::Author;
use crate::mcp::stream_log::Bounds;
use crate::telemetry::label::SessionEnd;
use crate::telemetry::{AccessLog, Metrics, ServerMetrics};
use crate::upstream::conversation::Terms;
use crate::upstream::played::Stage;

/// Histories of every run.
const HISTORIES: u32 = 5_000;

/// `pool.max_calls_per_child`
const AT_ONCE: usize = 3;

/// Places.
const SEATS: usize = 4;

/// Whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ids and tokens of all sessions: few, so that they collide, and some that read alike.
const IDS: [&str; 5] = ["0", "1", "\"1\"", "\"a\\u0062\"", "-1"];
const URIS: [&str; 2] = ["file:///a", "file:///b"];

fn message(text: String, author: Author) -> Message {
    Message::parse(Bytes::from(text.clone()), author).unwrap_or_else(|fault| panic!("{:?}: {text}", fault.kind))
}

/// One step of a history: what happens, to whom, and which.
type Step = (u8, u8, u8);

/// What all histories share.
struct Theatre {
    stage: Stage,
    budget: Arc<Budget>,
    metrics: Arc<ServerMetrics>,
    session_terms: Arc<SessionTerms>,
}

impl Theatre {
    fn new() -> Theatre {
        let all = Metrics::new(&config::Metrics { tools: false, max_tools: 0 });
        let (metrics, budget) = (all.server("test"), Budget::new(1 << 30));
        let ledger = Ledger::new(Arc::clone(&budget), all, 1 << 20);
        let server: Arc<str> = Arc::from("test");
        let second = Duration::from_secs(1);
        let streams = StreamTerms {
            server: Arc::clone(&server),
            bounds: Bounds { events: 1_000, bytes: 1 << 20, window: 1 << 20 },
            age: second,
            retry: second,
            ledger,
            metrics: Arc::clone(&metrics),
        };
        let accounts = Accounts {
            log: AccessLog::unheard(),
            node: Arc::from("node"),
            server: Arc::clone(&server),
            metrics: Arc::clone(&metrics),
            strict_status: false,
        };
        let session_terms = SessionTerms {
            server,
            limits: config::Sessions {
                max: None,
                max_per_principal: None,
                idle: None,
                absolute: None,
                uninitialized: second,
                evict_after: second,
            },
            timeouts: config::Timeouts {
                start: second,
                call_idle: None,
                call_total: None,
                ask: None,
                close: second,
                term: second,
            },
            streams,
            budget: Arc::clone(&budget),
            handshakes: Box::new(|_, _| {}),
            accounts: Arc::new(accounts),
            metrics: Arc::clone(&metrics),
            child_wait: second,
        };
        let stage = Stage::new(Arc::clone(&metrics));
        Theatre { stage, budget, metrics, session_terms: Arc::new(session_terms) }
    }

    fn child(&self) -> (Arc<SharedChild>, Terms) {
        let terms = Terms {
            server: Arc::from("test"),
            queue: config::Queue { messages: 256, bytes: 1 << 20 },
            line_bytes: 1 << 20,
            budget: Arc::clone(&self.budget),
            metrics: Arc::clone(&self.metrics),
            next_id: Arc::default(),
            hang_after: PATIENCE,
        };
        let limits = config::Pool {
            min_idle: 0,
            max_size: None,
            wait: PATIENCE,
            idle_timeout: None,
            max_lifetime: None,
            max_uses: None,
            max_sessions_per_child: Some(SEATS),
            max_calls_per_child: Some(AT_ONCE),
        };
        let child = SharedChild::new(SharedParts {
            server: Arc::clone(&terms.server),
            revision: Revision::LATEST,
            limits,
            waiting: config::Queue { messages: 8, bytes: 1 << 20 },
            budget: Arc::clone(&self.budget),
            metrics: Arc::clone(&self.metrics),
            next_id: Arc::clone(&terms.next_id),
        });
        (child, terms)
    }
}

/// One history: the child, its sessions and their calls, and what must come of them.
struct Play<'a> {
    theatre: &'a Theatre,
    child: Arc<SharedChild>,
    terms: Terms,
    /// While there is a process.
    player: Option<Player>,
    /// Everybody who ever came; the calls of those who left must stay as they are.
    guests: Vec<Guest>,
    calls: Vec<Made>,
    /// Guests that gave calls up which this process may still work on.
    abandoned: BTreeSet<usize>,
    processes: usize,
    answered: Vec<String>,
}

impl Play<'_> {
    async fn begin(theatre: &Theatre) -> Play<'_> {
        let (child, terms) = theatre.child();
        let mut play = Play {
            theatre,
            child,
            terms,
            player: None,
            guests: Vec::new(),
            calls: Vec::new(),
            abandoned: BTreeSet::new(),
            processes: 0,
            answered: Vec::new(),
        };
        play.replace().await;
        play
    }

    async fn step(&mut self, (what, who, which): Step) {
        let (who, which) = (usize::from(who), usize::from(which));
        match what % 32 {
            0..=2 => self.enter(),
            3..=8 => self.call(who, which, false),
            9..=10 => self.call(who, which, true),
            11..=15 => self.answer(which, false).await,
            16 => self.answer(which, true).await,
            17 => self.answer_again(which),
            18..=19 => self.progress(which),
            20 => self.cancel(who, which),
            21 => self.subscribe(who, which).await,
            22 => self.unsubscribe(who, which),
            23 => self.leave(who),
            24 => self.tell_lists(),
            25 => self.tell_update(which),
            26 => self.log(),
            27..=28 => self.query(who, which).await,
            29 => self.task_status(which),
            30 => self.task_progress(which),
            _ if self.player.is_some() => self.die(which).await,
            _ => self.replace().await,
        }
        self.settle().await;
        self.check();
    }

    /// Lets everything that was written be read, on both sides.
    async fn settle(&mut self) {
        let Some(player) = &mut self.player else { return };
        while timeout(PATIENCE, player.settle(&mut self.calls)).await.expect("the child is answered") {}
    }

    fn open(&self, who: usize) -> Option<usize> {
        let open: Vec<usize> = (0..self.guests.len()).filter(|guest| self.guests[*guest].is_here).collect();
        (!open.is_empty()).then(|| open[who % open.len()])
    }

    /// Whether a call would go to the child at once.
    fn has_turn(&self) -> bool {
        let waiting = self.calls.iter().any(|call| call.expected.is_none() && !call.is_with_child);
        !waiting && self.player.as_ref().is_some_and(|player| player.busy(&self.calls) < AT_ONCE)
    }

    fn enter(&mut self) {
        let is_full = self.guests.iter().filter(|guest| guest.is_here).count() == SEATS;
        let place = self.child.enter();
        assert_eq!(place.is_none(), is_full, "places are given back");
        if let Some(place) = place {
            self.guests.push(Guest::enter(place, &self.theatre.session_terms));
        }
    }

    fn call(&mut self, who: usize, which: usize, is_task: bool) {
        let Some(guest) = self.open(who) else { return };
        let (id, token) = (IDS[which % IDS.len()], IDS.get(which / 8 % 6).copied());
        let mut made = Made::new(guest, self.calls.len(), id, token, is_task);
        self.guests[guest].call(&mut made);
        if self.player.is_none() {
            made.expected = Some(Expected::Error(502));
        } else if !self.has_turn() && made.has_answer() {
            // So many wait, of all or of this one.
            let mut waiting = self.calls.iter().filter(|call| call.expected.is_none() && !call.is_with_child);
            assert!(waiting.any(|call| call.guest == guest), "a session that has none waiting may have one");
            made.expected = Some(Expected::Error(503));
        }
        self.calls.push(made);
    }

    /// The child answers a call it has, whoever still waits for it. `is_last`: and dies in the same breath.
    async fn answer(&mut self, which: usize, is_last: bool) {
        let Some(player) = &mut self.player else { return };
        let Some(line) = player.answer(which, &mut self.calls) else { return };
        player.write(&line);
        self.answered.push(line);
        if is_last {
            // What was written before the end is read.
            self.die(which).await;
        } else if which.is_multiple_of(7) {
            // The caller's cancellation comes before anybody has read the answer.
            self.overtake();
        }
    }

    /// The call whose answer is on its way is given up.
    fn overtake(&mut self) {
        let Some(player) = &mut self.player else { return };
        let Some(call) = player.take_back_last(&mut self.calls) else { return };
        let (guest, id) = (self.calls[call].guest, self.calls[call].id);
        self.give_up(|made| made.guest == guest && made.id == id, 499);
        self.guests[guest].cancel(id);
    }

    fn answer_again(&mut self, which: usize) {
        let Some(player) = &mut self.player else { return };
        if !self.answered.is_empty() {
            player.write(&self.answered[which % self.answered.len()]);
        }
        player.write(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, 1_000_000 + which));
        player.write(r#"{"jsonrpc":"2.0","id":"1","result":{}}"#);
    }

    fn progress(&mut self, which: usize) {
        let Some(player) = &mut self.player else { return };
        let Some((call, line)) = player.progress(which) else { return };
        player.write(&line);
        let made = &mut self.calls[call];
        if made.token.is_some() && made.expected.is_none() {
            made.progress += 1;
        }
    }

    /// Marks calls as given up, for which their owners get this.
    fn give_up(&mut self, which: impl Fn(&Made) -> bool, code: i64) {
        for made in self.calls.iter_mut().filter(|made| made.expected.is_none() && which(made)) {
            made.expected = Some(Expected::Error(code));
            if made.is_with_child {
                self.abandoned.insert(made.guest);
            }
        }
    }

    fn cancel(&mut self, who: usize, which: usize) {
        let Some(guest) = self.open(who) else { return };
        let id = IDS[which % IDS.len()];
        self.give_up(|made| made.guest == guest && made.id == id, 499);
        self.guests[guest].cancel(id);
    }

    async fn subscribe(&mut self, who: usize, which: usize) {
        let Some(guest) = self.open(who).filter(|_| self.has_turn()) else { return };
        let uri = URIS[which % URIS.len()];
        let mut asked = self.guests[guest].ask("resources/subscribe", &format!(r#"{{"uri":"{uri}"}}"#));
        self.settle().await;
        assert_eq!(asked.take_answer(), r#"{"jsonrpc":"2.0","id":"ask","result":{}}"#);
        self.guests[guest].subscriptions.insert(uri);
    }

    fn unsubscribe(&mut self, who: usize, which: usize) {
        let Some(guest) = self.open(who) else { return };
        let uri = URIS[which % URIS.len()];
        let mut asked = self.guests[guest].ask("resources/unsubscribe", &format!(r#"{{"uri":"{uri}"}}"#));
        assert_eq!(asked.take_answer(), r#"{"jsonrpc":"2.0","id":"ask","result":{}}"#);
        self.guests[guest].subscriptions.remove(uri);
    }

    fn leave(&mut self, who: usize) {
        let Some(guest) = self.open(who) else { return };
        self.give_up(|made| made.guest == guest, 502);
        self.guests[guest].leave(SessionEnd::Delete);
        if let Some(player) = &mut self.player {
            player.disown(|task| task.guest == guest);
        }
    }

    fn tell_lists(&mut self) {
        let Some(player) = &mut self.player else { return };
        let text = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;
        player.write(text);
        for guest in self.guests.iter_mut().filter(|guest| guest.is_here) {
            guest.expected.push(text.to_owned());
        }
    }

    fn tell_update(&mut self, which: usize) {
        let Some(player) = &mut self.player else { return };
        let uri = URIS[which % URIS.len()];
        let part = if which.is_multiple_of(3) { "/part" } else { "" };
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}{part}"}}}}"#
        );
        player.write(&text);
        for guest in self.guests.iter_mut().filter(|guest| guest.is_here && guest.subscriptions.contains(uri)) {
            guest.expected.push(text.clone());
        }
    }

    fn log(&mut self) {
        let Some(player) = &mut self.player else { return };
        player.write(guest::LOG);
        let mut with_child = self.calls.iter().enumerate().filter(|(_, call)| call.expected.is_none());
        let (Some((only, call)), None) = (with_child.next(), with_child.next()) else { return };
        let others =
            self.abandoned.iter().any(|guest| *guest != call.guest) || player.works_for_other(call.guest, &self.calls);
        if call.is_with_child && !others {
            self.calls[only].logs += 1;
        }
    }

    /// A session asks about some task, which may be another's or none.
    async fn query(&mut self, who: usize, which: usize) {
        let Some(guest) = self.open(who).filter(|_| self.has_turn()) else { return };
        let Some(player) = &self.player else { return };
        let task = format!("t{}", which % 4);
        let (method, answer) = player.expect_query(guest, &task, which / 4);
        let seen = player.queries;
        let mut asked = self.guests[guest].ask(method, &format!(r#"{{"taskId":"{task}"}}"#));
        self.settle().await;
        let is_asked = self.player.as_ref().is_some_and(|player| player.queries > seen);
        assert_eq!(is_asked, answer.is_some(), "the child is asked by owners");
        match answer {
            Some(answer) => assert_eq!(asked.take_answer(), answer),
            None => assert!(asked.take_answer().contains(r#""code":-32602"#)),
        }
    }

    fn task_status(&mut self, which: usize) {
        let Some(player) = &mut self.player else { return };
        let Some((guest, text)) = player.end_task(which) else { return };
        player.write(&text);
        if let Some(guest) = guest {
            self.guests[guest].expected.push(text);
        }
    }

    fn task_progress(&mut self, which: usize) {
        let Some(player) = &mut self.player else { return };
        let Some((number, call, is_heard)) = player.task_progress(which) else { return };
        player.write(&child::progress_of(&number.to_string()));
        let made = &self.calls[call];
        if let Some(token) = made.token.filter(|_| is_heard) {
            self.guests[made.guest].expected.push(child::progress_of(token));
        }
    }

    async fn die(&mut self, which: usize) {
        let Some(player) = self.player.take() else { return };
        player.die();
        timeout(PATIENCE, self.child.gone()).await.expect("its end is seen");
        self.give_up(|_| true, 502);
        self.abandoned.clear();
        self.check();
        if which.is_multiple_of(2) {
            self.replace().await;
        }
    }

    async fn replace(&mut self) {
        self.child.change(Condition::Starting);
        let (lease, stdin, part) = self.theatre.stage.enter();
        let mut player = Player::new(stdin, part);
        let (child, terms) = (Arc::clone(&self.child), self.terms.clone());
        let up = tokio::spawn(async move { child.bring_up(lease, terms, PATIENCE).await });
        let shaken = async {
            while !up.is_finished() {
                player.settle(&mut self.calls).await;
            }
        };
        timeout(PATIENCE, shaken).await.expect("it comes up");
        up.await.expect("no panic").expect("it comes up");
        if self.processes > 0 {
            for guest in self.guests.iter_mut().filter(|guest| guest.is_here) {
                // It was never asked what it lists.
                guest.expected.push(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#.to_owned());
            }
        }
        self.processes += 1;
        self.player = Some(player);
        self.answered.clear();
    }

    /// What each has is what it must have, and nothing else.
    fn check(&mut self) {
        for made in &mut self.calls {
            made.check();
        }
        for guest in &mut self.guests {
            guest.check();
        }
        let Some(player) = &self.player else { return };
        let here = self.guests.iter().filter(|guest| guest.is_here);
        let wanted: BTreeSet<&str> = here.flat_map(|guest| guest.subscriptions.iter().copied()).collect();
        assert_eq!(player.subscribed(), wanted, "what the child is subscribed to");
        assert!(player.busy(&self.calls) <= AT_ONCE, "more than it may have at once");
        let idle = player.busy(&self.calls) < AT_ONCE;
        let waits = self.calls.iter().any(|call| call.expected.is_none() && !call.is_with_child);
        assert!(!(idle && waits), "a call waits for nothing");
        assert_eq!(player.unwanted(), Vec::<&str>::new(), "tasks that nobody owns are cancelled");
    }

    /// Everybody leaves, the child answers what it still has, and nothing is left.
    async fn end(mut self) {
        while self.open(0).is_some() {
            self.leave(0);
            self.settle().await;
            self.check();
        }
        if self.player.is_none() {
            self.replace().await;
        }
        while self.player.as_ref().is_some_and(Player::has_calls) {
            self.answer(1, false).await;
            self.settle().await;
            self.check();
        }
        assert!(self.player.as_ref().is_some_and(|player| player.subscribed().is_empty()));
        let conversation = self.child.conversation().expect("it is up");
        assert_eq!(conversation.in_flight(), 0, "calls that are waited for");
        {
            let state = self.child.state();
            assert!(state.turns.is_empty() && state.own.is_empty() && state.told.is_empty());
            assert_eq!((state.members.count(), state.tasks.count()), (0, 0));
            assert!(URIS.iter().all(|uri| !state.wishes.wants(uri)));
        }
        drop(conversation);
        self.child.close();
        drop(self.calls);
        for guest in self.guests {
            guest.end();
        }
        assert_eq!(self.theatre.budget.used(), 0, "memory that is given back");
    }
}

async fn play(theatre: &Theatre, steps: &[Step]) {
    let mut play = Play::begin(theatre).await;
    for step in steps {
        play.step(*step).await;
    }
    play.end().await;
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// R:P05–P07, P09–P11, P14–P16, P24, P25, F:C05: each call is answered exactly once, to its owner, under its
/// own id as it was spelled; progress comes to the owner alone, and to nobody once the call is over; who has left hears
/// nothing; what the child knows of is what sessions wish; and at the end nothing is left.
#[test]
fn sessions_see_what_is_theirs() {
    let histories = std::env::var("GANGWAY_HISTORIES").map_or(HISTORIES, |text| text.parse().expect("a number"));
    let (runtime, began) = (runtime(), Instant::now());
    let theatre = runtime.block_on(async { Theatre::new() });
    let mut runner = TestRunner::new(Config { cases: histories, failure_persistence: None, ..Config::default() });
    let steps = prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 1..60);
    let played = runner.run(&steps, |steps| {
        runtime.block_on(play(&theatre, &steps));
        Ok(())
    });
    if let Err(failed) = played {
        panic!("{failed}");
    }
    println!("{histories} histories in {:?}", began.elapsed());
}
