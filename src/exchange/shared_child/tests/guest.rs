//! A session of the play, its calls, and what it has heard.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tokio::sync::oneshot;

use super::message;
use crate::caller::{Peer, Principal};
use crate::exchange::account::Account;
use crate::exchange::post::{Form, Head, Post};
use crate::exchange::session::{Session, SessionTerms};
use crate::exchange::shared_child::Place;
use crate::exchange::stream::{Frames, Look, Reader};
use crate::mcp::scan::Author;
use crate::telemetry::label::SessionEnd;

/// A log message that names no call.
pub(super) const LOG: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1}}"#;

/// What must come of a call.
pub(super) enum Expected {
    /// This text, byte for byte.
    Answer(String),
    /// An error of the gateway's.
    Error(i64),
}

/// What comes back on one POST.
pub(super) struct Inbox {
    head: Option<oneshot::Receiver<Head>>,
    reader: Option<Reader>,
    texts: Vec<String>,
}

impl Inbox {
    fn new(head: oneshot::Receiver<Head>) -> Inbox {
        Inbox { head: Some(head), reader: None, texts: Vec::new() }
    }

    fn collect(&mut self) {
        match self.head.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Ok(Head::Answer(reply))) => {
                self.texts.push(String::from_utf8(reply.payload.to_bytes().to_vec()).expect("text"));
                self.head = None;
            }
            Some(Ok(Head::Stream(reader))) => {
                self.reader = Some(reader);
                self.head = None;
            }
            Some(Ok(Head::Answers(_))) => panic!("this is no batch"),
            Some(Err(_)) | None => {}
        }
        if let Some(reader) = &mut self.reader {
            drain(reader, &mut self.texts);
        }
    }

    /// The one message there is.
    #[track_caller]
    pub(super) fn take_answer(&mut self) -> String {
        self.collect();
        assert_eq!(self.texts.len(), 1, "one answer: {:?}", self.texts);
        self.texts.remove(0)
    }
}

/// Everything a reader can have now.
fn drain(reader: &mut Reader, texts: &mut Vec<String>) {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        let mut frames = Frames::default();
        let look = reader.poll_take(&mut context, 1 << 20, &mut frames);
        let joined = String::from_utf8(frames.joined.to_vec()).expect("text");
        let data = joined.lines().filter_map(|line| line.strip_prefix("data: "));
        texts.extend(data.filter(|data| !data.is_empty()).map(str::to_owned));
        match look {
            Poll::Ready(Look::More) => {}
            Poll::Ready(Look::Gap | Look::TakenOver | Look::Expired) => panic!("nothing is lost here"),
            Poll::Ready(Look::End) | Poll::Pending => return,
        }
    }
}

/// A call.
pub(super) struct Made {
    pub(super) guest: usize,
    pub(super) nonce: usize,
    pub(super) id: &'static str,
    pub(super) token: Option<&'static str>,
    pub(super) is_task: bool,
    /// The child has read it.
    pub(super) is_with_child: bool,
    /// Nothing more must come but this, which has come.
    pub(super) expected: Option<Expected>,
    /// Progress and log messages that must have come.
    pub(super) progress: usize,
    pub(super) logs: usize,
    inbox: Option<Inbox>,
}

impl Made {
    pub(super) fn new(
        guest: usize,
        nonce: usize,
        id: &'static str,
        token: Option<&'static str>,
        is_task: bool,
    ) -> Made {
        let (is_with_child, expected, progress, logs) = (false, None, 0, 0);
        Made { guest, nonce, id, token, is_task, is_with_child, expected, progress, logs, inbox: None }
    }

    fn text(&self) -> String {
        let task = if self.is_task { r#","task":{"ttl":null}"# } else { "" };
        let meta = self.token.map_or(String::new(), |token| format!(r#","_meta":{{"progressToken":{token}}}"#));
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{{"name":"x","arguments":{{"nonce":{}}}{task}{meta}}}}}"#,
            self.id, self.nonce
        )
    }

    /// Whether it is answered already.
    pub(super) fn has_answer(&mut self) -> bool {
        self.inbox.as_mut().is_some_and(|inbox| {
            inbox.collect();
            inbox.texts.iter().any(|text| !text.contains(r#""method""#))
        })
    }

    pub(super) fn check(&mut self) {
        let Some(inbox) = &mut self.inbox else { panic!("it was made") };
        inbox.collect();
        let (said, answers): (Vec<&String>, Vec<&String>) =
            inbox.texts.iter().partition(|text| text.contains(r#""method""#));
        let (logs, progress): (Vec<&String>, Vec<&String>) = said.iter().partition(|text| **text == LOG);
        assert_eq!(logs.len(), self.logs, "log messages of call {}: {said:?}", self.nonce);
        let own = super::child::progress_of(self.token.unwrap_or_default());
        assert!(progress.iter().all(|text| **text == own), "progress of call {}: {progress:?}", self.nonce);
        assert_eq!(progress.len(), self.progress, "progress of call {}", self.nonce);
        let shown = format!("call {} under {}: {answers:?}", self.nonce, self.id);
        match &self.expected {
            None => assert!(answers.is_empty(), "nobody answered {shown}"),
            Some(_) if answers.len() != 1 => panic!("one answer to {shown}"),
            Some(Expected::Answer(text)) => assert_eq!(answers[0], text),
            Some(Expected::Error(code)) => {
                assert!(answers[0].contains(&format!(r#""code":{code},"#)), "{code} for {shown}");
                assert!(answers[0].contains(&format!(r#""id":{},"#, self.id)), "the id of {shown}");
            }
        }
    }
}

/// A session.
pub(super) struct Guest {
    session: Arc<Session>,
    standalone: Reader,
    heard: Vec<String>,
    /// What must have come on its standalone stream.
    pub(super) expected: Vec<String>,
    pub(super) subscriptions: BTreeSet<&'static str>,
    pub(super) is_here: bool,
}

impl Guest {
    pub(super) fn enter(place: Place, terms: &Arc<SessionTerms>) -> Guest {
        let params = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"g","version":"1"}}"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{params}}}"#);
        let initialize = message(text, Author::Client);
        let child = Arc::clone(place.child());
        let session =
            Session::new(Arc::from("id"), Principal::Anonymous, &initialize, None, Some(place), Arc::clone(terms));
        let (post, head) = Post::new(Form::Either, 1, false, false);
        let account = Account::new(&initialize, Peer::Local, Instant::now(), None);
        session.greet(&child.greeting().expect("it was up once"), &initialize, &post, account);
        let answer = Inbox::new(head).take_answer();
        assert!(answer.starts_with(r#"{"jsonrpc":"2.0","id":"hello","result":{"#), "{answer}");
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        session.tell(&message(initialized.to_owned(), Author::Client)).expect("it is its own business");
        let standalone = session.listen().expect("it is open");
        let (heard, expected, subscriptions) = (Vec::new(), Vec::new(), BTreeSet::new());
        Guest { session, standalone, heard, expected, subscriptions, is_here: true }
    }

    fn send(&self, text: String) -> Inbox {
        let (post, head) = Post::new(Form::Either, 1, false, false);
        let message = message(text, Author::Client);
        let account = Account::new(&message, Peer::Local, Instant::now(), None);
        self.session.call(&message, &post, account, None);
        Inbox::new(head)
    }

    pub(super) fn call(&self, made: &mut Made) {
        made.inbox = Some(self.send(made.text()));
    }

    /// Any other request.
    pub(super) fn ask(&self, method: &str, params: &str) -> Inbox {
        self.send(format!(r#"{{"jsonrpc":"2.0","id":"ask","method":"{method}","params":{params}}}"#))
    }

    pub(super) fn cancel(&self, id: &str) {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#);
        self.session.tell(&message(text, Author::Client)).expect("it is taken");
    }

    pub(super) fn leave(&mut self, why: SessionEnd) {
        self.session.end(why);
        self.subscriptions.clear();
        self.is_here = false;
    }

    pub(super) fn check(&mut self) {
        drain(&mut self.standalone, &mut self.heard);
        assert_eq!(self.heard, self.expected, "what a session hears beside its calls");
    }

    /// Nobody else holds it.
    pub(super) fn end(self) {
        let session: Weak<Session> = Arc::downgrade(&self.session);
        drop((self.session, self.standalone));
        assert!(session.upgrade().is_none(), "somebody holds a session that is over");
    }
}
