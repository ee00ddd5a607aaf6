//! The tools. Each takes the right to answer and uses it, now or later.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::ask::{failed, text};
use super::message::INVALID_PARAMS;
use super::reply::{Reply, append};
use super::resources::COUNTER;
use super::server::Server;
use super::session::Session;
use super::slow::{Slow, progress};

/// The longest `payload`.
pub(super) const BYTES_MAX: u64 = 32 * 1024 * 1024;
/// The most notifications one call sends.
pub(super) const COUNT_MAX: u64 = 100_000;
/// The longest `slow` call.
pub(super) const SECONDS_MAX: f64 = 3600.0;
/// The most steps of a `slow` call.
pub(super) const STEPS_MAX: u64 = 1000;

/// The parameters of `tools/call`.
#[derive(Deserialize)]
pub(super) struct Call {
    name: String,
    #[serde(default)]
    arguments: Value,
    #[serde(rename = "_meta", default)]
    meta: Meta,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(rename = "progressToken")]
    token: Option<Box<RawValue>>,
}

/// What is wrong with the arguments of a call.
type Wrong = &'static str;

impl Server {
    /// Runs one tool.
    pub(super) fn call(&mut self, reply: Reply, session: &Session, call: Call) {
        let Call { name, arguments, meta } = call;
        if !arguments.is_object() && !arguments.is_null() {
            reply.error(INVALID_PARAMS, "`arguments` must be an object", None);
            return;
        }
        let done = match name.as_str() {
            "echo" => echo(&arguments, session),
            "add" => add(&arguments, session),
            "payload" => payload(&arguments),
            "slow" => match slow(&arguments) {
                Ok((steps, step_time)) => {
                    return self.wait(Slow { reply, token: meta.token, steps, step_time });
                }
                Err(wrong) => Err(wrong),
            },
            "ask_elicitation" | "ask_sampling" | "ask_roots" | "ask_ping" => {
                return self.ask(reply, session, &name, &arguments);
            }
            "progress_burst" => self.progress_burst(&arguments, meta.token.as_deref()),
            "log" => self.log(&arguments, session),
            "update_resource" => Ok(self.update_resource(&arguments, session)),
            _ => {
                let message = format!("there is no tool `{name}`; tools/list names them all");
                return reply.error(INVALID_PARAMS, &message, None);
            }
        };
        match done {
            Ok(result) => reply.result(&result),
            Err(wrong) if session.revision.reports_arguments_to_model() => reply.result(&failed(wrong)),
            Err(wrong) => reply.error(INVALID_PARAMS, wrong, None),
        }
    }

    fn wait(&mut self, call: Slow) {
        if let Err(call) = self.clock.start(call) {
            call.reply.result(&failed("too many slow calls run, try again later"));
        }
    }

    fn ask(&mut self, reply: Reply, session: &Session, name: &str, arguments: &Value) {
        let word = |key: &str, otherwise: &str| arguments[key].as_str().unwrap_or(otherwise).to_owned();
        let capabilities = session.capabilities;
        let (declared, capability, method, params) = match name {
            "ask_elicitation" => (
                capabilities.elicitation,
                "elicitation",
                "elicitation/create",
                json!({
                    "message": word("message", "What is your name?"),
                    "requestedSchema": {
                        "type": "object",
                        "properties": { "name": { "type": "string", "description": "Your name" } },
                        "required": ["name"],
                    },
                }),
            ),
            "ask_sampling" => (
                capabilities.sampling,
                "sampling",
                "sampling/createMessage",
                json!({
                    "messages": [{
                        "role": "user",
                        "content": { "type": "text", "text": word("prompt", "Say hello.") },
                    }],
                    "maxTokens": 100,
                }),
            ),
            "ask_roots" => (capabilities.roots, "roots", "roots/list", json!({})),
            _ => (true, "ping", "ping", json!({})),
        };
        if declared {
            self.asks.ask(reply, method, &params);
        } else {
            reply.result(&failed(&format!("the client did not declare the capability `{capability}`")));
        }
    }

    fn progress_burst(&mut self, arguments: &Value, token: Option<&RawValue>) -> Result<Value, Wrong> {
        let count = u32::try_from(count(arguments)?).map_err(|_| COUNT_WRONG)?;
        let Some(token) = token else {
            return Ok(text("no progress was asked for"));
        };
        for done in 1..=count {
            progress(&self.output, token, done, count);
        }
        Ok(text(&format!("sent {count} progress notifications")))
    }

    fn log(&mut self, arguments: &Value, session: &Session) -> Result<Value, Wrong> {
        let count = count(arguments)?;
        let level = arguments.get("level").map_or(Some("info"), Value::as_str);
        let wanted = level.and_then(|level| session.wants_level(level));
        if !wanted.ok_or("`level` must be one of the eight log levels")? {
            return Ok(text("sent 0 log messages: the level is not wanted"));
        }
        let message = arguments["message"].as_str().unwrap_or("a log message");
        for number in 1..=count {
            let params = json!({
                "level": level, "logger": "demo", "data": { "message": message, "number": number },
            });
            self.notify("notifications/message", &params);
        }
        Ok(text(&format!("sent {count} log messages")))
    }

    fn update_resource(&mut self, arguments: &Value, session: &Session) -> Value {
        let counter = self.resources.count();
        if session.follows_counter {
            self.notify("notifications/resources/updated", &json!({ "uri": COUNTER }));
        }
        if arguments["list_changed"] == true {
            self.notify("notifications/resources/list_changed", &json!({}));
        }
        text(&format!("{COUNTER} is now {counter}"))
    }

    fn notify(&self, method: &str, params: &Value) {
        let note = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.output.line(|line| append(line, &note));
    }
}

/// An `echo` that the hot path left alone: one in a batch, or with wrong arguments.
fn echo(arguments: &Value, session: &Session) -> Result<Value, Wrong> {
    let said = arguments["text"].as_str().ok_or("`text` must be a string")?;
    Ok(structured(text(said), arguments, session))
}

fn add(arguments: &Value, session: &Session) -> Result<Value, Wrong> {
    let (a, b) = (&arguments["a"], &arguments["b"]);
    let sum = match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.checked_add(b).map(Value::from),
        _ => None,
    };
    let sum = match sum {
        Some(sum) => sum,
        None => a.as_f64().zip(b.as_f64()).map(|(a, b)| a + b).ok_or("`a` and `b` must be numbers")?.into(),
    };
    Ok(structured(text(&sum.to_string()), &json!({ "sum": sum }), session))
}

fn payload(arguments: &Value) -> Result<Value, Wrong> {
    let bytes = arguments["bytes"].as_u64().filter(|bytes| *bytes <= BYTES_MAX);
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.ok_or("`bytes` must be an integer from 0 to 33554432")?;
    Ok(text(&"x".repeat(bytes)))
}

fn slow(arguments: &Value) -> Result<(u32, Duration), Wrong> {
    let seconds = arguments.get("seconds").map_or(Some(1.0), Value::as_f64);
    let seconds = seconds.filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    let seconds = seconds.ok_or("`seconds` must be a number from 0 to 3600")?;
    let steps = arguments.get("steps").map_or(Some(5), Value::as_u64);
    let steps = steps.filter(|steps| (1..=STEPS_MAX).contains(steps)).and_then(|steps| steps.try_into().ok());
    let steps: u32 = steps.ok_or("`steps` must be an integer from 1 to 1000")?;
    Ok((steps, Duration::from_secs_f64(seconds / f64::from(steps))))
}

const COUNT_WRONG: Wrong = "`count` must be an integer from 0 to 100000";

fn count(arguments: &Value) -> Result<u64, Wrong> {
    let count = arguments.get("count").map_or(Some(1), Value::as_u64);
    count.filter(|count| *count <= COUNT_MAX).ok_or(COUNT_WRONG)
}

fn structured(mut result: Value, content: &Value, session: &Session) -> Value {
    if session.revision.has_structured_content() {
        result["structuredContent"] = content.clone();
    }
    result
}
