//! Requests to the client, and the calls that wait for their answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::message::Id;
use super::output::Output;
use super::reply::{Reply, append};

/// How many questions may be open at once.
const MAX: usize = 1024;

/// All open questions.
pub(super) struct Asks {
    output: Arc<Output>,
    open: BTreeMap<u64, Reply>,
    number: u64,
}

impl Asks {
    /// No question yet; they go to `output`.
    pub(super) fn new(output: Arc<Output>) -> Self {
        Self { output, open: BTreeMap::new(), number: 0 }
    }

    /// Sends a request; `reply` is answered with what the client says.
    pub(super) fn ask(&mut self, reply: Reply, method: &str, params: &Value) {
        if self.open.len() >= MAX {
            reply.result(&failed("too many questions are open, try again later"));
            return;
        }
        self.number += 1;
        let request = json!({
            "jsonrpc": "2.0", "id": name(self.number), "method": method, "params": params,
        });
        self.output.line(|line| append(line, &request));
        self.open.insert(self.number, reply);
    }

    /// Hands an answer of the client to the call that waits for it; any other is ignored.
    pub(super) fn answer(&mut self, id: &Id, outcome: Result<&RawValue, &RawValue>) {
        let Some(reply) = number(id).and_then(|number| self.open.remove(&number)) else {
            return;
        };
        match outcome {
            Ok(result) => reply.result(&text(result.get())),
            Err(error) => {
                reply.result(&failed(&format!("the client answered with the error {}", error.get())));
            }
        }
    }

    /// Ends the calls with this id and tells the client that their questions are void.
    pub(super) fn cancel(&mut self, id: &Id) {
        let output = &self.output;
        self.open.retain(|number, reply| {
            let keep = reply.id() != id;
            if !keep {
                let params = json!({ "requestId": name(*number), "reason": "the call was cancelled" });
                let note = json!({
                    "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params,
                });
                output.line(|line| append(line, &note));
            }
            keep
        });
    }
}

/// A tool result of one text.
pub(super) fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// A tool result that tells the model what went wrong (tools, "Error Handling").
pub(super) fn failed(reason: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": reason }], "isError": true })
}

fn name(number: u64) -> String {
    format!("ask-{number}")
}

fn number(id: &Id) -> Option<u64> {
    id.get().strip_prefix(r#""ask-"#)?.strip_suffix('"')?.parse().ok()
}
