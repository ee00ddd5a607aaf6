//! Integration tests: the real `gangway` binary, real children, raw sockets. One test binary, so that
//! it links once; everything is blocking, so that a test reads from top to bottom.
//!
//! ```ignore
//! let gateway = Gateway::start(&Server::fake("fake").arg("--crlf").key(r#"mode = "shared""#).toml());
//! let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({ "roots": {} }));
//!
//! let answer = session.call(7, "echo", json!({ "text": "a" }));        // the JSON-RPC answer as a Value
//! let answer = session.post(r#"{"jsonrpc":"2.0",…}"#).message();       // exact bytes in, all of the answer out
//!
//! let call = session.send_call(8, "hold", json!({ "gate": "g" }));     // written, nothing read yet
//! session.call(9, "release", json!({ "gate": "g" }));
//! assert_eq!(call.finish().message()["id"], 8);                        // JSON or SSE, read to its end
//!
//! let mut stream = session.send(&request).stream();                    // read the head, expect SSE
//! let event = stream.next_event();                                     // then one event at a time
//! stream.reset();                                                      // and break the connection
//! let mut rest = session.resume(event.id.as_deref().unwrap());         // GET with Last-Event-ID
//!
//! gateway.await_metric("sessions", &[("server", "fake")], |value| value == 1.0);
//! gateway.await_event("session_close", |event| event["reason"] == "delete");
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `gateway` | `Gateway`: start, log events, signals, exit status, descendants, descriptors, memory |
//! | `metrics` | the exposition format as `Metrics`: `value(name, labels)` sums the series that match |
//! | `client` | `Connection` (exact bytes, half reads, reset), `Request`, `Response` |
//! | `session` | `Session` (one MCP session), `Exchange` (a request on its way), `Answer` |
//! | `sse` | `Parser` (WHATWG HTML, "Server-sent events") and `EventStream` (one on a connection) |
//! | `child` | `Server` (configuration of a child), `Gate` (what a child waits for), `Record` (what it read) |
//! | `keys` | `Key` of a caller, and the `[auth]` that admits some |
//! | `pipes` | `Pipes`: a child driven without a gateway, to try the children themselves |
//! | `terminal` | `OnTerminal`: the binary with a pseudo-terminal as its standard error |
//! | `fake_child.py` | the scripted child; the table at its top lists every fault |
//!
//! Every wait is bounded by [`PATIENCE`] and fails with what it waited for. A gateway is killed with all
//! its descendants when it is dropped; if the test failed, its last log lines are printed.
//! What a gateway is not told listens on `127.0.0.1:0`, the admin listener too.

#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "a harness offers more than any one day's tests use")]

use std::time::Duration;

mod ask_limits;
mod asks;
mod audit;
mod bad_tokens;
mod batch;
mod bodies;
mod bound_tokens;
mod bounds;
mod caller_key;
mod caller_variables;
mod calls;
mod canaries;
mod challenge;
mod child;
mod child_age;
mod child_life;
mod child_output;
mod child_start;
mod child_usage;
mod client;
mod clocks;
mod corpus;
mod demo_server;
mod drain;
mod drain_connection;
mod environment;
mod events;
mod explain_command;
mod fake_child;
mod gateway;
mod handshake;
mod hidden_tools;
mod http2;
mod http2_attacks;
mod http2_frames;
mod http2_turns;
mod internet;
mod internet_callers;
mod issuer;
mod issuer_faults;
mod issuer_tls;
mod keys;
mod legacy_opening;
mod legacy_sse;
mod limits;
mod log_sink;
mod memory;
mod metrics;
mod negotiation;
mod oauth_metadata;
mod oauth_sessions;
mod opaque_tokens;
mod operation;
mod origin;
mod overload;
mod payload;
mod pipes;
mod pool;
mod progress_token;
mod proxy_protocol;
mod rates;
mod raw_requests;
mod reload;
mod reload_load;
mod replay;
mod resume;
mod revocation;
mod routing;
mod run_command;
mod scopes;
mod serve_command;
mod session;
mod session_id;
mod session_life;
mod session_room;
mod sessions;
mod sharing;
mod sharing_death;
mod sharing_lists;
mod sharing_load;
mod sharing_tasks;
mod sharing_turns;
mod sharing_wishes;
mod smoke;
mod sse;
mod strangers;
mod terminal;
mod timing;
mod tls;
mod tls_client;
mod unsent;
mod versions;

/// How long a test waits for what must happen before it fails: far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
