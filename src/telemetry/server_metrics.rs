//! The numbers of one server, as verbs.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use super::child_processes::{ChildProcesses, MeasuredChild};
use super::families::Families;
use super::label::{
    BadLine, ChildExit, ChildState, Direction, Dropped, Method, Notice, Outcome, Protocol, Refusal, Resume, SessionEnd,
    Start, StopStep, StreamCut, StreamKind, Unmatched,
};
use super::series::{ByLabel, ByPair, ByServer, Unit};
use super::tool_metrics::Tools;

/// Everything counted for one configured server. No verb blocks on I/O, and none looks a series up
/// by its labels after that series' first use.
pub struct ServerMetrics {
    requests: ByPair<Method, Outcome, IntCounterVec>,
    in_flight: ByServer<IntGaugeVec>,
    request_duration: ByLabel<Method, HistogramVec>,
    child_request_duration: ByServer<HistogramVec>,
    request_queue: ByServer<HistogramVec>,
    tools: Tools,
    refusals: ByLabel<Refusal, IntCounterVec>,
    sessions: ByServer<IntGaugeVec>,
    sessions_opened: ByLabel<Protocol, IntCounterVec>,
    sessions_closed: ByLabel<SessionEnd, IntCounterVec>,
    session_duration: ByServer<HistogramVec>,
    streams: ByLabel<StreamKind, IntGaugeVec>,
    stream_cuts: ByLabel<StreamCut, IntCounterVec>,
    resumes: ByLabel<Resume, IntCounterVec>,
    notifications: ByPair<Direction, Notice, IntCounterVec>,
    notifications_dropped: ByLabel<Dropped, IntCounterVec>,
    unmatched_responses: ByLabel<Unmatched, IntCounterVec>,
    children: ByLabel<ChildState, IntGaugeVec>,
    child_starts: ByLabel<Start, IntCounterVec>,
    child_start: ByServer<HistogramVec>,
    handshake: ByServer<HistogramVec>,
    child_exits: ByLabel<ChildExit, IntCounterVec>,
    child_kills: ByLabel<StopStep, IntCounterVec>,
    breaker: ByServer<IntGaugeVec>,
    pool_waiters: ByServer<IntGaugeVec>,
    pool_wait: ByServer<HistogramVec>,
    queue_messages: ByServer<IntGaugeVec>,
    pipe_bytes: ByLabel<Direction, IntCounterVec>,
    bad_lines: ByLabel<BadLine, IntCounterVec>,
    stderr_lines: ByServer<IntCounterVec>,
    server: Arc<str>,
    child_processes: Arc<ChildProcesses>,
}

/// How one request ended, for [`ServerMetrics::call_ended`].
#[derive(Clone, Copy, Debug)]
pub struct CallEnd<'a> {
    /// The JSON-RPC method as sent; one outside the known list counts as `_other`.
    pub method: &'a str,
    /// The tool's name where the method is `tools/call`.
    pub tool: Option<&'a str>,
    /// How it ended.
    pub outcome: Outcome,
    /// From arrival to end.
    pub total: Duration,
    /// From arrival to the write to the child, or to the end where none happened.
    pub queue: Duration,
    /// From the write to the child's answer, where there was one.
    pub child: Option<Duration>,
}

/// A request counted in `requests_in_flight` until this is dropped.
#[must_use = "dropping this at once ends the request"]
pub struct InFlight(#[allow(dead_code, reason = "held for its drop")] Unit);

/// A stream counted in `streams` until this is dropped.
#[must_use = "dropping this at once closes the stream"]
pub struct StreamGauge(#[allow(dead_code, reason = "held for its drop")] Unit);

/// A caller counted in `pool_waiters` until this is dropped.
#[must_use = "dropping this at once ends the wait"]
pub struct PoolWaiter(#[allow(dead_code, reason = "held for its drop")] Unit);

impl ServerMetrics {
    pub(super) fn new(
        families: &Families,
        server: &Arc<str>,
        tools: Tools,
        child_processes: Arc<ChildProcesses>,
    ) -> Self {
        ServerMetrics {
            requests: ByPair::new(&families.requests_total, server),
            in_flight: ByServer::new(&families.requests_in_flight, server),
            request_duration: ByLabel::new(&families.request_duration_seconds, server),
            child_request_duration: ByServer::new(&families.child_request_duration_seconds, server),
            request_queue: ByServer::new(&families.request_queue_seconds, server),
            tools,
            refusals: ByLabel::new(&families.refusals_total, server),
            sessions: ByServer::new(&families.sessions, server),
            sessions_opened: ByLabel::new(&families.sessions_opened_total, server),
            sessions_closed: ByLabel::new(&families.sessions_closed_total, server),
            session_duration: ByServer::new(&families.session_duration_seconds, server),
            streams: ByLabel::new(&families.streams, server),
            stream_cuts: ByLabel::new(&families.stream_cuts_total, server),
            resumes: ByLabel::new(&families.resumes_total, server),
            notifications: ByPair::new(&families.notifications_total, server),
            notifications_dropped: ByLabel::new(&families.notifications_dropped_total, server),
            unmatched_responses: ByLabel::new(&families.unmatched_responses_total, server),
            children: ByLabel::new(&families.children, server),
            child_starts: ByLabel::new(&families.child_starts_total, server),
            child_start: ByServer::new(&families.child_start_seconds, server),
            handshake: ByServer::new(&families.handshake_seconds, server),
            child_exits: ByLabel::new(&families.child_exits_total, server),
            child_kills: ByLabel::new(&families.child_kills_total, server),
            breaker: ByServer::new(&families.breaker_state, server),
            pool_waiters: ByServer::new(&families.pool_waiters, server),
            pool_wait: ByServer::new(&families.pool_wait_seconds, server),
            queue_messages: ByServer::new(&families.queue_messages, server),
            pipe_bytes: ByLabel::new(&families.pipe_bytes_total, server),
            bad_lines: ByLabel::new(&families.child_bad_lines_total, server),
            stderr_lines: ByServer::new(&families.child_stderr_lines_total, server),
            server: Arc::clone(server),
            child_processes,
        }
    }

    /// A request arrived and waits for its answer.
    pub fn call_started(&self) -> InFlight {
        InFlight(Unit::on(self.in_flight.get()))
    }

    /// A request ended, whichever way.
    pub fn call_ended(&self, end: &CallEnd<'_>) {
        let method = Method::from_text(end.method).unwrap_or(Method::Other);
        self.requests.get(method, end.outcome).inc();
        self.request_duration.get(method).observe(end.total.as_secs_f64());
        self.request_queue.get().observe(end.queue.as_secs_f64());
        if let Some(child) = end.child {
            self.child_request_duration.get().observe(child.as_secs_f64());
        }
        if let Some(tool) = end.tool {
            self.tools.call_ended(tool, end.outcome, end.total);
        }
    }

    /// Replaces the list of tool names that may become labels; others count as `_other`. At most
    /// `metrics.max_tools` names of all servers together ever do.
    pub fn set_tools(&self, names: &[String]) {
        self.tools.set(names);
    }

    /// A request to this server was refused.
    pub fn refused(&self, reason: Refusal) {
        self.refusals.get(reason).inc();
    }

    /// A session opened with this protocol revision.
    pub fn session_opened(&self, protocol: &str) {
        self.sessions_opened.get(Protocol::from_text(protocol).unwrap_or(Protocol::Other)).inc();
        self.sessions.get().inc();
    }

    /// A session that [`session_opened`](Self::session_opened) counted closed at this age.
    pub fn session_closed(&self, reason: SessionEnd, age: Duration) {
        self.sessions.get().dec();
        self.sessions_closed.get(reason).inc();
        self.session_duration.get().observe(age.as_secs_f64());
    }

    /// A stream opened.
    pub fn stream_opened(&self, kind: StreamKind) -> StreamGauge {
        StreamGauge(Unit::on(self.streams.get(kind)))
    }

    /// The gateway cut a stream's connection.
    pub fn stream_cut(&self, reason: StreamCut) {
        self.stream_cuts.get(reason).inc();
    }

    /// A client tried to resume a stream.
    pub fn resumed(&self, result: Resume) {
        self.resumes.get(result).inc();
    }

    /// A notification was passed on.
    pub fn notification(&self, direction: Direction, kind: Notice) {
        self.notifications.get(direction, kind).inc();
    }

    /// A notification was dropped.
    pub fn notification_dropped(&self, reason: Dropped) {
        self.notifications_dropped.get(reason).inc();
    }

    /// A response came that nobody awaited.
    pub fn unmatched(&self, from: Unmatched) {
        self.unmatched_responses.get(from).inc();
    }

    /// So many children more (or, below zero, fewer) are in this state.
    pub fn child_state(&self, state: ChildState, delta: i64) {
        self.children.get(state).add(delta);
    }

    /// A start came to its result after this time.
    pub fn child_started(&self, result: Start, took: Duration) {
        self.child_starts.get(result).inc();
        self.child_start.get().observe(took.as_secs_f64());
    }

    /// A child answered `initialize` after this time.
    pub fn handshake(&self, took: Duration) {
        self.handshake.get().observe(took.as_secs_f64());
    }

    /// A child ended.
    pub fn child_exited(&self, reason: ChildExit) {
        self.child_exits.get(reason).inc();
    }

    /// The gateway stopped a child; `step` is the last it took to.
    pub fn child_killed(&self, step: StopStep) {
        self.child_kills.get(step).inc();
    }

    /// A child was started that leads the process group `leader`; what the group takes from the machine is measured
    /// until the answer is dropped, which must be before the leader is reaped.
    pub fn measure_child(&self, leader: i32) -> MeasuredChild {
        self.child_processes.begin(&self.server, leader)
    }

    /// The start breaker is now 0 closed, 1 half open, 2 open.
    pub fn breaker(&self, state: u8) {
        self.breaker.get().set(i64::from(state));
    }

    /// A caller waits for a free child.
    pub fn pool_waiting(&self) -> PoolWaiter {
        PoolWaiter(Unit::on(self.pool_waiters.get()))
    }

    /// A wait for a free child ended, whichever way, after this time.
    pub fn pool_waited(&self, took: Duration) {
        self.pool_wait.get().observe(took.as_secs_f64());
    }

    /// So many messages more (or, below zero, fewer) wait on the stdin of children.
    pub fn queue_messages(&self, delta: i64) {
        self.queue_messages.get().add(delta);
    }

    /// Bytes went through a child's stdin or stdout.
    pub fn pipe_bytes(&self, direction: Direction, bytes: usize) {
        self.pipe_bytes.get(direction).inc_by(bytes as u64);
    }

    /// A child wrote a line that is no message.
    pub fn bad_line(&self, reason: BadLine) {
        self.bad_lines.get(reason).inc();
    }

    /// A child wrote a line to stderr.
    pub fn stderr_line(&self) {
        self.stderr_lines.get().inc();
    }
}
