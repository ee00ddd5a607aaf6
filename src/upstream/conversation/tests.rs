//! The one clock of a conversation: how long a child may take to show that it lives.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Conversation, PING_WAIT, Terms};
use crate::budget::Budget;
use crate::config::{Metrics as MetricsConfig, Queue};
use crate::mcp::message::Message;
use crate::mcp::scan::Author;
use crate::telemetry::Metrics;
use crate::upstream::command::tests::server;
use crate::upstream::participant::{Answer, Gone, Owner, Participant};
use crate::upstream::pool::Pool;
use crate::upstream::tests::eventually;
use crate::upstream::{Command, Spawner};

/// Remembers that its child is gone, and reads as slowly as it is told to.
struct Witness {
    gone: watch::Sender<Option<Gone>>,
    congested: watch::Sender<bool>,
}

impl Participant for Witness {
    fn answer(&self, _call: u64, _answer: Answer<'_>) {}
    fn request(&self, _message: &Message) {}
    fn notification(&self, _message: &Message, _owner: Option<&Owner>) {}
    fn gone(&self, gone: Gone) {
        self.gone.send_replace(Some(gone));
    }
    fn settle(&self) {}
    fn takes_batches(&self) -> bool {
        false
    }
    fn congestion(&self) -> Option<watch::Receiver<bool>> {
        let congested = self.congested.subscribe();
        let now = *congested.borrow();
        now.then_some(congested)
    }
}

/// Remembers what it hears: whose progress, and answers.
#[derive(Default)]
struct Listener(Mutex<Vec<String>>);

impl Listener {
    fn note(&self, what: String) {
        self.0.lock().expect("no test panics inside").push(what);
    }

    fn heard(&self) -> Vec<String> {
        self.0.lock().expect("no test panics inside").clone()
    }
}

impl Participant for Listener {
    fn answer(&self, call: u64, _answer: Answer<'_>) {
        self.note(format!("answer to {call}"));
    }
    fn request(&self, _message: &Message) {}
    fn notification(&self, _message: &Message, owner: Option<&Owner>) {
        let token = owner.map(|owner| String::from_utf8_lossy(owner.token.raw()).into_owned());
        self.note(format!("progress of {token:?}"));
    }
    fn gone(&self, _gone: Gone) {}
    fn settle(&self) {}
    fn takes_batches(&self) -> bool {
        false
    }
    fn congestion(&self) -> Option<watch::Receiver<bool>> {
        None
    }
}

/// A conversation with a shell that runs `script`, and its witness.
async fn talk(script: &str) -> (Arc<Conversation>, Arc<Witness>) {
    let mut config = server();
    config.command = "sh".into();
    config.args = vec!["-c".into(), script.into()];
    let metrics = Metrics::new(&MetricsConfig { tools: false, max_tools: 0 }).server("test");
    let path = std::env::vars_os().filter(|(name, _)| name == "PATH");
    let command = Command::new(Arc::from("test"), &config, path);
    let spawner = Spawner::start().expect("a thread");
    let pool = Pool::new(spawner, command, Arc::new(config), Arc::clone(&metrics));
    let lease = pool.lease().await.expect("a child");
    let terms = Terms {
        next_id: Arc::new(AtomicU64::new(1)),
        hang_after: PING_WAIT,
        server: Arc::from("test"),
        queue: Queue { messages: 8, bytes: 8192 },
        line_bytes: 8192,
        budget: Budget::new(1 << 20),
        metrics,
    };
    let witness = Arc::new(Witness { gone: watch::Sender::new(None), congested: watch::Sender::new(false) });
    let participant: Arc<dyn Participant> = Arc::<Witness>::clone(&witness);
    let participant: Weak<dyn Participant> = Arc::downgrade(&participant);
    (Conversation::start(lease, terms, participant).expect("fresh pipes"), witness)
}

#[tokio::test]
async fn a_child_that_answers_no_ping_is_given_up() {
    let (conversation, witness) = talk("read -r ping; exec sleep 1000").await;
    conversation.check_alive();
    // From here on time passes as soon as nothing else happens.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let mut gone = witness.gone.subscribe();
    let why = *gone.wait_for(Option::is_some).await.expect("a witness");
    assert_eq!(why, Some(Gone::Hung));
    assert!(began.elapsed() >= PING_WAIT - Duration::from_secs(1), "given up after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_child_that_answers_a_ping_is_kept() {
    let (conversation, witness) =
        talk(r#"read -r ping; echo '{"jsonrpc":"2.0","id":1,"result":{}}'; read -r never"#).await;
    conversation.check_alive();
    eventually("the answer to the ping", || conversation.inflight().ping.is_none()).await;
    tokio::time::pause();
    let mut gone = witness.gone.subscribe();
    assert!(timeout(PING_WAIT * 2, gone.wait_for(Option::is_some)).await.is_err(), "given up although it answered");
}

#[tokio::test]
async fn a_child_that_answers_others_but_no_ping_is_kept() {
    let answer = r#"{"jsonrpc":"2.0","id":2,"result":{}}"#;
    let (conversation, witness) = talk(&format!("read -r ping; read -r call; echo '{answer}'; read -r never")).await;
    conversation.check_alive();
    let call = Bytes::from_static(br#"{"jsonrpc":"2.0","id":"x","method":"tools/list"}"#);
    let call = Message::parse(call, Author::Client).expect("a request");
    let who: Arc<dyn Participant> = Arc::<Witness>::clone(&witness);
    conversation.request(2, who, &call).expect("room for one line");
    eventually("the answer to the call", || conversation.inflight().lives).await;
    tokio::time::pause();
    let mut gone = witness.gone.subscribe();
    assert!(timeout(PING_WAIT * 2, gone.wait_for(Option::is_some)).await.is_err(), "given up although it works");
    assert!(conversation.inflight().ping.is_none(), "the next call that times out asks again");
}

#[tokio::test]
async fn a_child_is_not_blamed_while_nobody_reads_it() {
    let pong = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    let (conversation, witness) =
        talk(&format!("read -r go; echo go; read -r ping; echo '{pong}'; read -r never")).await;
    witness.congested.send_replace(true);
    conversation.confirm_initialized();
    eventually("its first line is read", || witness.congested.receiver_count() > 0).await;
    conversation.check_alive();
    tokio::time::pause();
    let mut gone = witness.gone.subscribe();
    assert!(timeout(PING_WAIT * 3, gone.wait_for(Option::is_some)).await.is_err(), "blamed for our own pause");
    tokio::time::resume();
    witness.congested.send_replace(false);
    eventually("the answer to the ping", || conversation.inflight().ping.is_none()).await;
}

#[tokio::test]
async fn a_child_that_hangs_is_given_up_once_it_is_read_again() {
    let (conversation, witness) = talk("read -r go; echo go; exec sleep 1000").await;
    witness.congested.send_replace(true);
    conversation.confirm_initialized();
    eventually("its first line is read", || witness.congested.receiver_count() > 0).await;
    conversation.check_alive();
    tokio::time::pause();
    let mut gone = witness.gone.subscribe();
    let nearly = PING_WAIT - Duration::from_secs(1);
    assert!(timeout(nearly, gone.wait_for(Option::is_some)).await.is_err(), "nobody reads it");
    witness.congested.send_replace(false);
    let began = tokio::time::Instant::now();
    assert_eq!(*gone.wait_for(Option::is_some).await.expect("a witness"), Some(Gone::Hung));
    assert!(began.elapsed() >= nearly, "it had no time to answer: {:?}", began.elapsed());
}

/// What of a run is remembered from line to line must neither reach another call nor outlast its own.
#[tokio::test]
async fn progress_that_is_read_at_once_finds_each_its_owner() {
    let progress = |call: u64, value: u64| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{call},"progress":{value}}}}}"#
        )
    };
    let lines = [
        progress(5, 1),
        progress(5, 2),
        progress(50, 1),
        progress(5, 3),
        r#"{"jsonrpc":"2.0","id":5,"result":{}}"#.to_owned(),
        progress(5, 4),
        progress(7, 1),
        progress(50, 2),
    ];
    let (conversation, _witness) =
        talk(&format!("read -r one; read -r other; printf '%s\\n' '{}'; read -r never", lines.join("' '"))).await;
    let (one, other) = (Arc::<Listener>::default(), Arc::<Listener>::default());
    for (call, token, who) in [(5, "a", &one), (50, "b", &other)] {
        let call_text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"_meta":{{"progressToken":"{token}"}}}}}}"#
        );
        let message = Message::parse(Bytes::from(call_text), Author::Client).expect("a call");
        let who: Arc<dyn Participant> = Arc::<Listener>::clone(who);
        conversation.request(call, who, &message).expect("room for two lines");
    }
    let of = |token: &str| format!("progress of {:?}", Some(format!("\"{token}\"")));
    eventually("the last line is read", || other.heard().len() == 2).await;
    assert_eq!(other.heard(), [of("b"), of("b")]);
    assert_eq!(one.heard(), [of("a"), of("a"), of("a"), "answer to 5".to_owned()]);
}
