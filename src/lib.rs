//! Gangway puts local MCP **stdio** servers on the network as **Streamable HTTP** endpoints.
//!
//! This page is the map. Words: a *client* is the HTTP caller, a *child* one process that speaks MCP on its pipes, a
//! *server* a configured command with its endpoint. A *session* is what `Mcp-Session-Id` names, a *stream* one SSE
//! stream of it, a *conversation* the dialogue with one child, and a *participant* whoever takes part in one.
//!
//! # The parts, and what each may import
//!
//! | part | holds | imports, beside the leaves |
//! |---|---|---|
//! | `main` | nothing but the call of `cli::main` | `cli` |
//! | `cli` | commands: flags in, exit status out; signals; what a start shows | `gateway`, `auth`, `mcp` |
//! | `gateway` | one process: build (bound, nothing served), run, drain; every long-lived task | `net`, `http`, `server`, `auth` |
//! | `net` | sockets: bind, accept, caps, TLS, the clocks of one connection; knows no MCP | – |
//! | `http` | from a request's head to a typed call, and every way to answer | `auth`, `server`, `exchange`, `mcp` |
//! | `auth` | who calls: API keys, client certificates, access tokens and whoever issued them | – |
//! | `server` | one configured server: breaker, readiness, opening and finding sessions, why a start failed | `exchange`, `upstream`, `mcp` |
//! | `exchange` | who takes part in conversations: sessions, their calls, POSTs and streams | `upstream`, `mcp` |
//! | `upstream` | children: forking, pipes, ids, leases, the pool, the scout, the end | `mcp` |
//! | `mcp` | the protocol, pure: messages by byte range, ids, revisions, the log of a stream | – |
//!
//! Leaves, which everybody may import: `config` (what was typed, and what it means), `caller` (who calls, as plain
//! values), `telemetry` (metrics and log), `budget` (the one bound of memory), `allocator` (how freed memory is given back), `paste` (what to paste into clients),
//! `rare` (futures on the heap), `unix_time` (the time of day). Imports go one way, so a part can be read, and tried, with those below it and nothing
//! else. Only `net`, `http` and `auth` know hyper. `mcp` knows std, bytes, serde, serde_json and memchr: no I/O, no clock, no runtime. A part is
//! handed its own section of the configuration, never the whole. `tests/architecture.rs` checks all of this, and that
//! files have fewer than 500 lines of code and functions at most 60.
//!
//! # The life of a request
//!
//! 1. `net::accept` takes the connection within the caps, from whom a proxy names where it speaks the PROXY protocol;
//!    `net::tls` shakes hands where the listener speaks TLS; `net::wire` and `net::clock` watch it below hyper: header
//!    time-out, idle bodies, stalled writes, age, drain. Of HTTP/1 hyper reads only what everybody reads the same way
//!    (`net::strict`, by the rules of `net::front`). In HTTP/2 (`net::multiplex`) each request is a task of its own, owned
//!    by its connection, `net::frames` counts what a client sends beside requests, and `net::turns` lets in few at once
//!    of whom nothing is known.
//! 2. [`http::Door::handle`] is the one place where requests come in. It finds the route and asks, from the head
//!    alone: the guard (`Host`, `Origin`, `OPTIONS`), the address's rate (`http::quota`), `auth` for the caller's
//!    principal, that one's rate. Health, pages and metadata (`http::metadata`) are answered here. Every way to say no is
//!    a `http::refusal::Refused`, which this one place counts, logs and words.
//! 3. `http::streamable` reads the body within its bounds and parses the envelope (`mcp::message`): where the members
//!    stand is found in one pass, what they hold stays raw. Then `http::access` asks whether the caller was granted what
//!    that takes, and whether the tool it calls is there for clients: before a session is looked for.
//! 4. `initialize` opens a session (`server::Server::open`): a seat in the registry, the breaker's leave, a leased
//!    child, a conversation with it. What the caller brings for its own child (`http::own_variables`) goes with the
//!    lease. Anything else finds its session by id, server and principal together, or is 404.
//! 5. `exchange::session::Session::call` reserves a child-side id, keeps the call under it and hands the message to
//!    `upstream::conversation`, which splices the id in and writes the line to the child's stdin: at once where the
//!    pipe has room, through a bounded queue else (`upstream::outbound`).
//! 6. Meanwhile the handler waits for the head of its `exchange::post::Post`: JSON if the answer is the first thing
//!    that comes, SSE if anything else does or nothing did for `streams.sse_after`.
//!
//! # The life of a child's line
//!
//! 1. `upstream::line` cuts what was read into bounded lines; `mcp::message` parses the envelope and checks UTF-8.
//!    A line that is no message still ends the call whose id can be read from it.
//! 2. The conversation says **which participant**: a response goes to whoever asked under that id, progress to the
//!    owner of its token, a ping is answered here, the rest goes to the conversation's own participant. It does so
//!    through the trait `upstream::participant::Participant`, which `exchange` implements, so no import points back.
//! 3. The session (`exchange::child_side`) says **which stream** (`exchange::route`), under the client's own id.
//! 4. A response that is the first thing of its POST becomes its JSON body; everything else is appended, encoded
//!    once, to the log of a stream (`mcp::stream_log`), which keeps it until a reader has it, and for replay after.
//! 5. `http::event_stream` is the body that a reader pulls: it compares its cursor with the log and sleeps on a
//!    version counter, so that no wake-up can be lost. A reader that falls behind slows its session's own child
//!    (`exchange::congestion`) until the stall clock cuts it; it costs nobody else anything.
//!
//! # Who owns what
//!
//! | what | owner |
//! |---|---|
//! | sockets, connections | `net`, in the JoinSet of their listener |
//! | tasks that live as long as the process | [`gateway::Gateway::run`], in one JoinSet |
//! | sessions | `exchange::registry`: handles are cloned out, no lock is held over an await or a send |
//! | what a client wishes, its calls, its streams | the session; only a session writes its logs |
//! | ids of one child, and who waits for which | its conversation |
//! | processes and pipes | one task per child (`upstream::child`); every fork happens on the spawner's thread, which lives as long as the process because parent-death signals depend on it |
//! | what children leave behind, and their control groups | the reaper's thread (`upstream::reaper`), until nothing of an ended child is left |
//! | which child is free | `upstream::pool`; a `Lease` gives its child back when it is dropped |
//! | keys | [`auth::Keys`]; `gateway::keys_file` replaces those of the keys file, `gateway::reload` all |
//! | certificates in effect | `gateway::certificates`, which follows their files; each connection takes `net::tls`'s as it begins |
//! | issuers, their keys, what is known of tokens | [`auth::Issuers`]; one task of its `follow` fetches for each issuer |
//! | the configuration in effect, starts of servers, servers on their way out | `gateway::reload` |
//! | which servers there are | `server::roster`; a request finds its server through the rules of the door, which it holds to its end |
//! | numbers and log lines | `telemetry`; whoever logs never waits |
//! | the audit log | `telemetry::audit`; where it is required, whoever answers waits for the kernel to have its entry |
//!
//! What comes in pairs is a Drop guard: leases, seats, gauges, permits of the budget, the rewritten line of a start.
//! Locks are taken in the order POST, session, stream, and none while calling into a conversation.
//!
//! # A reload
//!
//! HUP asks `gateway::reload`, which reads the file, refuses what needs a restart, and lays out the next state beside
//! the one in effect ([`server::Plan`]): nothing is started, nothing can fail. Then it puts it in place, in one go: keys,
//! the roster, the rules of the door, the terms of the listeners. Only then are those told that leave. A server that did
//! not change is the same value, or one with the same children. Of a server that changed the old value lives as long as
//! its sessions, which are found by its name, so that whoever has that name now hands them their requests.
//!
//! # The end
//!
//! A signal becomes an order in `cli::process`; `gateway::drain` makes the gateway unready, waits `drain.prestop`,
//! refuses new work, waits for calls, ends the sessions, stops the children, and lets the listeners go last, so that
//! until then every client gets an answer. A second signal drops everything at once, which kills the children's groups.

pub mod allocator;
pub mod auth;
pub mod budget;
pub mod caller;
pub mod cli;
pub mod config;
pub mod exchange;
pub mod gateway;
pub mod http;
pub mod mcp;
pub mod net;
pub mod paste;
pub mod rare;
pub mod server;
pub mod telemetry;
pub mod unix_time;
pub mod upstream;
