//! The right to answer one request, given back by answering or dropping it.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::message::Id;
use super::output::Output;

/// An open request of the client.
pub(super) struct Reply {
    id: Id,
    destination: Destination,
}

#[derive(Clone)]
pub(super) enum Destination {
    /// A line of its own.
    Line(Arc<Output>),
    /// An element of a batch's answer.
    Batch(Arc<Batch>),
}

impl Reply {
    pub(super) fn new(id: Id, destination: Destination) -> Self {
        Self { id, destination }
    }

    /// The id to answer under.
    pub(super) fn id(&self) -> &Id {
        &self.id
    }

    /// Answers with a result.
    pub(super) fn result(self, result: &Value) {
        self.write(|line| {
            line.extend_from_slice(br#","result":"#);
            append(line, result);
        });
    }

    /// Answers with an error object (JSON-RPC 2.0, "Error object").
    pub(super) fn error(self, code: i32, message: &str, data: Option<Value>) {
        let mut error = json!({ "code": code, "message": message });
        if let Some(data) = data {
            error["data"] = data;
        }
        self.write(|line| {
            line.extend_from_slice(br#","error":"#);
            append(line, &error);
        });
    }

    fn write(self, outcome: impl FnOnce(&mut Vec<u8>)) {
        let Self { id, destination } = self;
        let whole = |line: &mut Vec<u8>| {
            line.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
            line.extend_from_slice(id.get().as_bytes());
            outcome(line);
            line.push(b'}');
        };
        match destination {
            Destination::Line(output) => output.line(whole),
            Destination::Batch(batch) => {
                let mut part = Vec::new();
                whole(&mut part);
                batch.parts.lock().expect("nothing panics while it pushes").push(part);
            }
        }
    }
}

/// The answers of one JSON-RPC batch (2025-03-26 only), written together when the last open
/// request of it has been answered or dropped, which is when the batch itself is dropped.
pub(super) struct Batch {
    output: Arc<Output>,
    parts: Mutex<Vec<Vec<u8>>>,
}

impl Batch {
    pub(super) fn new(output: Arc<Output>) -> Arc<Self> {
        Arc::new(Self { output, parts: Mutex::new(Vec::new()) })
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let parts = self.parts.get_mut().expect("nothing panics while it pushes");
        // JSON-RPC 2.0, "Batch": with nothing to answer, no empty array either.
        if parts.is_empty() {
            return;
        }
        self.output.line(|line| {
            line.push(b'[');
            line.extend_from_slice(&parts.join(&b','));
            line.push(b']');
        });
    }
}

/// Appends `value` as compact JSON.
pub(super) fn append(line: &mut Vec<u8>, value: &Value) {
    serde_json::to_writer(line, value).expect("a Value has string keys and a Vec takes every byte");
}
