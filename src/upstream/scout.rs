//! The scout: one child per server, started to learn that it works and what it offers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout_at;

use crate::mcp::message::{Kind, Message};
use crate::mcp::revision::Revision;
use crate::upstream::Exit;
use crate::upstream::SpawnError;
use crate::upstream::conversation::{Conversation, Terms};
use crate::upstream::own_request::{own_introduction, own_request};
use crate::upstream::participant::{Answer, Gone, Loss, Owner, Participant};
use crate::upstream::pool::{NoChild, Pool};

/// Entries of each list that are read.
const MOST_ENTRIES: usize = 1_000;

/// What a server offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    /// `serverInfo.name`
    pub name: String,
    /// `serverInfo.version`
    pub version: String,
    /// The revision it answered with.
    pub revision: &'static str,
    /// Tool names, if it declares tools.
    pub tools: Option<Vec<String>>,
    /// Number of resources, if it declares resources.
    pub resources: Option<usize>,
    /// Number of prompts, if it declares prompts.
    pub prompts: Option<usize>,
    /// From start to the handshake's answer.
    pub took: Duration,
}

/// Why a server did not pass. All of it is for the operator.
#[derive(Debug)]
pub enum ScoutFailure {
    /// No child could be had within the wait.
    NoSlot,
    /// It could not be started.
    Spawn(SpawnError),
    /// It ended before it had answered.
    Exited {
        /// How it ended; with its last lines.
        exit: Option<Exit>,
        /// A line on stdout that was no message.
        bad_line: Option<String>,
    },
    /// It did not answer within `timeouts.start`.
    Silent {
        /// Its last lines on stderr.
        stderr: Arc<[String]>,
        /// A line on stdout that was no message.
        bad_line: Option<String>,
    },
    /// It refused, or answered something the gateway cannot use.
    Refused(String),
}

impl fmt::Display for ScoutFailure {
    /// One line: what happened, with whatever hints at the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScoutFailure::NoSlot => f.write_str("no slot in its pool came free"),
            ScoutFailure::Spawn(error) => error.fmt(f),
            ScoutFailure::Exited { exit: Some(exit), .. } => write!(f, "it ended before it answered: {}", exit.ending),
            ScoutFailure::Exited { exit: None, .. } => f.write_str("it closed its pipes before it answered"),
            ScoutFailure::Silent { .. } => f.write_str("it did not answer within timeouts.start"),
            ScoutFailure::Refused(what) => f.write_str(what),
        }
    }
}

struct Scout {
    waiting: Mutex<HashMap<u64, oneshot::Sender<Result<Message, Loss>>>>,
    conversation: OnceLock<Weak<Conversation>>,
}

impl Participant for Scout {
    fn answer(&self, call: u64, answer: Answer<'_>) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
        if let Some(waiting) = waiting {
            // Whoever asked may have stopped waiting.
            let _late = waiting.send(match answer {
                Answer::Message(message) => Ok(message.clone()),
                Answer::Lost(loss) => Err(loss),
            });
        }
    }

    fn request(&self, message: &Message) {
        let conversation = self.conversation.get().and_then(Weak::upgrade);
        if let (Some(conversation), Some(id)) = (conversation, message.id()) {
            conversation.refuse(&id, -32601, "no client is connected");
        }
    }

    fn notification(&self, _message: &Message, _owner: Option<&Owner>) {}

    fn settle(&self) {}

    fn gone(&self, _gone: Gone) {}

    fn takes_batches(&self) -> bool {
        // What it learns is the same however the child wraps it.
        true
    }

    fn congestion(&self) -> Option<watch::Receiver<bool>> {
        None
    }
}

#[derive(Deserialize)]
struct InitializeResult {
    #[serde(rename = "protocolVersion")]
    protocol_version: String,
    #[serde(default)]
    capabilities: Capabilities,
    #[serde(rename = "serverInfo", default)]
    server_info: ServerInfo,
}

#[derive(Deserialize, Default)]
struct Capabilities {
    tools: Option<IgnoredAny>,
    resources: Option<IgnoredAny>,
    prompts: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
struct ServerInfo {
    #[serde(default)]
    name: String,
    #[serde(default)]
    version: String,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default, alias = "tools", alias = "resources", alias = "prompts")]
    entries: Vec<Entry>,
    #[serde(rename = "nextCursor")]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    name: String,
}

/// Starts a child, asks it for everything it declares, and stops it again.
///
/// # Errors
/// See [`ScoutFailure`].
pub async fn explore(pool: &Arc<Pool>, terms: Terms, start: Duration) -> Result<Catalogue, ScoutFailure> {
    let began = Instant::now();
    let lease = pool.lease().await.map_err(|no_child| match no_child {
        NoChild::Full | NoChild::Closed => ScoutFailure::NoSlot,
        NoChild::Spawn(error) => ScoutFailure::Spawn(error),
    })?;
    let scout = Arc::new(Scout { waiting: Mutex::default(), conversation: OnceLock::new() });
    let who: Arc<dyn Participant> = Arc::<Scout>::clone(&scout);
    let conversation = Conversation::start(lease, terms, Arc::downgrade(&who)).ok_or(ScoutFailure::NoSlot)?;
    // The cell is new.
    let _first = scout.conversation.set(Arc::downgrade(&conversation));
    let visit = Visit { scout, who, conversation, deadline: tokio::time::Instant::now() + start };
    let found = visit.run(began).await;
    visit.conversation.close();
    found
}

struct Visit {
    scout: Arc<Scout>,
    who: Arc<dyn Participant>,
    conversation: Arc<Conversation>,
    deadline: tokio::time::Instant,
}

impl Visit {
    async fn run(&self, began: Instant) -> Result<Catalogue, ScoutFailure> {
        let params = own_introduction(Revision::LATEST);
        let result: InitializeResult = self.ask("initialize", &params).await?;
        let took = began.elapsed();
        let revision = Revision::named(result.protocol_version.as_bytes()).ok_or_else(|| {
            ScoutFailure::Refused(format!("it speaks protocol revision {:?}", result.protocol_version))
        })?;
        self.conversation.confirm_initialized();
        let mut catalogue = Catalogue {
            name: result.server_info.name,
            version: result.server_info.version,
            revision: revision.name(),
            took,
            ..Catalogue::default()
        };
        if result.capabilities.tools.is_some() {
            catalogue.tools = Some(self.list("tools/list").await?);
        }
        if result.capabilities.resources.is_some() {
            catalogue.resources = Some(self.list("resources/list").await?.len());
        }
        if result.capabilities.prompts.is_some() {
            catalogue.prompts = Some(self.list("prompts/list").await?.len());
        }
        Ok(catalogue)
    }

    async fn list(&self, method: &str) -> Result<Vec<String>, ScoutFailure> {
        let mut names = Vec::new();
        let mut params = "{}".to_owned();
        loop {
            let page: Page = self.ask(method, &params).await?;
            names.extend(page.entries.into_iter().map(|entry| entry.name));
            names.truncate(MOST_ENTRIES);
            let Some(cursor) = page.next_cursor.filter(|_| names.len() < MOST_ENTRIES) else { return Ok(names) };
            params = serde_json::json!({ "cursor": cursor }).to_string();
        }
    }

    async fn ask<T: for<'de> Deserialize<'de>>(&self, method: &str, params: &str) -> Result<T, ScoutFailure> {
        let call = self.conversation.reserve();
        let message = own_request(method, params, call)
            .map_err(|fault| ScoutFailure::Refused(format!("our own {method} is not valid: {:?}", fault.kind)))?;
        let (answer, waiting) = oneshot::channel();
        self.scout.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(call, answer);
        let sent = self.conversation.request(call, Arc::clone(&self.who), &message);
        if sent.is_err() {
            return Err(self.exited().await);
        }
        match timeout_at(self.deadline, waiting).await {
            Err(_elapsed) => Err(ScoutFailure::Silent {
                stderr: self.conversation.last_lines(),
                bad_line: self.conversation.first_bad_line().map(str::to_owned),
            }),
            Ok(Ok(Ok(message))) if message.kind() == Kind::Result => {
                let raw = message.fields().result.map_or(&b"null"[..], |result| result.of(message.text()));
                serde_json::from_slice(raw)
                    .map_err(|error| ScoutFailure::Refused(format!("its answer to {method}: {error}")))
            }
            Ok(Ok(Ok(message))) => {
                let code = message.error_code().unwrap_or_default();
                Err(ScoutFailure::Refused(format!("it answered {method} with error {code}")))
            }
            Ok(Ok(Err(_)) | Err(_)) => Err(self.exited().await),
        }
    }

    /// The pipe's end may be seen a moment before the process's.
    async fn exited(&self) -> ScoutFailure {
        let exit = self.conversation.wait_for_exit(Duration::from_secs(1)).await;
        ScoutFailure::Exited { exit, bad_line: self.conversation.first_bad_line().map(str::to_owned) }
    }
}
