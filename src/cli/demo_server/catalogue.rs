//! What the server says of itself: the handshake's result and the list of tools.

use serde_json::{Value, json};

use super::session::{LEVELS, Revision};
use super::tools::{BYTES_MAX, COUNT_MAX, SECONDS_MAX, STEPS_MAX};

/// What `initialize` answers.
pub(super) fn initialize(revision: Revision) -> Value {
    let mut capabilities = json!({
        "logging": {},
        "prompts": {},
        "resources": { "subscribe": true, "listChanged": true },
        "tools": {},
    });
    if revision.has_annotations() {
        capabilities["completions"] = json!({});
    }
    let mut info = json!({ "name": "gangway-demo", "version": env!("CARGO_PKG_VERSION") });
    if revision.has_structured_content() {
        info["title"] = json!("Gangway demo server");
    }
    json!({
        "protocolVersion": revision.name(),
        "capabilities": capabilities,
        "serverInfo": info,
        "instructions": "A server to try a client or a gateway with. Every tool says what it does.",
    })
}

/// What `tools/list` answers, without the fields the revision does not have.
pub(super) fn tools(revision: Revision) -> Value {
    let tools = [answering(), asking(), notifying()].concat();
    let tools = tools.into_iter().map(|mut tool| {
        let fields = tool.as_object_mut().expect("every tool below is an object");
        if !revision.has_structured_content() {
            fields.retain(|name, _| name != "title" && name != "outputSchema");
        }
        if !revision.has_annotations() {
            fields.remove("annotations");
        }
        tool
    });
    json!({ "tools": tools.collect::<Vec<_>>() })
}

/// Tools that only answer.
fn answering() -> Vec<Value> {
    let text = json!({ "text": { "type": "string", "description": "What to send back" } });
    let numbers = json!({ "a": { "type": "number" }, "b": { "type": "number" } });
    vec![
        json!({
            "name": "echo", "title": "Echo",
            "description": "Sends the text back, and all arguments exactly as they came",
            "inputSchema": schema(&text, &["text"]),
            "outputSchema": schema(&text, &["text"]),
            "annotations": { "readOnlyHint": true, "openWorldHint": false },
        }),
        json!({
            "name": "add", "title": "Addition",
            "description": "Adds two numbers",
            "inputSchema": schema(&numbers, &["a", "b"]),
            "outputSchema": schema(&json!({ "sum": { "type": "number" } }), &["sum"]),
            "annotations": { "readOnlyHint": true, "openWorldHint": false },
        }),
        json!({
            "name": "payload", "title": "Payload",
            "description": "Answers with a text of so many bytes",
            "inputSchema": schema(
                &json!({ "bytes": { "type": "integer", "minimum": 0, "maximum": BYTES_MAX } }),
                &["bytes"],
            ),
            "annotations": { "readOnlyHint": true, "openWorldHint": false },
        }),
        json!({
            "name": "slow", "title": "Slow call",
            "description": "Takes its time, reports progress if asked to, and can be cancelled",
            "inputSchema": schema(
                &json!({
                    "seconds": { "type": "number", "minimum": 0, "maximum": SECONDS_MAX, "default": 1 },
                    "steps": { "type": "integer", "minimum": 1, "maximum": STEPS_MAX, "default": 5 },
                }),
                &[],
            ),
            "annotations": { "readOnlyHint": true, "openWorldHint": false },
        }),
    ]
}

/// Tools that ask the client.
fn asking() -> Vec<Value> {
    let message = json!({ "message": { "type": "string", "description": "What to ask the user" } });
    let prompt = json!({ "prompt": { "type": "string", "description": "What to ask the model" } });
    vec![
        json!({
            "name": "ask_elicitation", "title": "Ask the user",
            "description": "Asks the user for a name through the client and reports the answer",
            "inputSchema": schema(&message, &[]),
        }),
        json!({
            "name": "ask_sampling", "title": "Ask the model",
            "description": "Asks the client's model and reports the answer",
            "inputSchema": schema(&prompt, &[]),
        }),
        json!({
            "name": "ask_roots", "title": "Ask for the roots",
            "description": "Asks the client for its roots and reports the answer",
            "inputSchema": schema(&json!({}), &[]),
        }),
        json!({
            "name": "ask_ping", "title": "Ping the client",
            "description": "Pings the client and reports the answer",
            "inputSchema": schema(&json!({}), &[]),
        }),
    ]
}

/// Tools that send notifications.
fn notifying() -> Vec<Value> {
    let count = json!({ "type": "integer", "minimum": 0, "maximum": COUNT_MAX, "default": 1 });
    let change = json!({
        "list_changed": { "type": "boolean", "description": "Say too that the list has changed" },
    });
    vec![
        json!({
            "name": "progress_burst", "title": "Progress burst",
            "description": "Sends so many progress notifications at once, then answers",
            "inputSchema": schema(&json!({ "count": count }), &[]),
        }),
        json!({
            "name": "log", "title": "Log messages",
            "description": "Sends so many log messages of one level, if that level is wanted",
            "inputSchema": schema(
                &json!({
                    "level": { "type": "string", "enum": LEVELS, "default": "info" },
                    "count": count,
                    "message": { "type": "string" },
                }),
                &[],
            ),
        }),
        json!({
            "name": "update_resource", "title": "Update a resource",
            "description": "Counts demo://counter up and tells its subscribers",
            "inputSchema": schema(&change, &[]),
        }),
    ]
}

fn schema(properties: &Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}
