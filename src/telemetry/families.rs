//! Every metric family: name, labels, buckets and the sentence a scrape shows.

use prometheus::core::Collector;
use prometheus::{CounterVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// What every name begins with.
const NAMESPACE: &str = "gangway";

/// Upper bounds, in seconds, of the histograms that have no scale of their own.
pub(super) const SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Upper bounds of tool calls: few, since there is one set per tool.
pub(super) const TOOL_SECONDS: &[f64] = &[0.01, 0.1, 0.5, 2.0, 10.0, 60.0];

/// Upper bounds of session lengths: [`SECONDS`], then half an hour, two hours and a day.
pub(super) const SESSION_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1800.0,
    7200.0, 86400.0,
];

/// All vectors but those of tools, which [`Tools`](super::tool_metrics::Tools) owns per server.
/// Field names are the metric names.
#[allow(missing_docs, reason = "the registration of each carries its sentence")]
pub(super) struct Families {
    pub requests_total: IntCounterVec,
    pub requests_in_flight: IntGaugeVec,
    pub request_duration_seconds: HistogramVec,
    pub child_request_duration_seconds: HistogramVec,
    pub request_queue_seconds: HistogramVec,
    pub http_responses_total: IntCounterVec,
    pub refusals_total: IntCounterVec,
    pub sessions: IntGaugeVec,
    pub sessions_opened_total: IntCounterVec,
    pub sessions_closed_total: IntCounterVec,
    pub session_duration_seconds: HistogramVec,
    pub streams: IntGaugeVec,
    pub stream_cuts_total: IntCounterVec,
    pub resumes_total: IntCounterVec,
    pub replay_bytes: IntGauge,
    pub replay_events: IntGauge,
    pub replay_evictions_total: IntCounterVec,
    pub notifications_total: IntCounterVec,
    pub notifications_dropped_total: IntCounterVec,
    pub unmatched_responses_total: IntCounterVec,
    pub children: IntGaugeVec,
    pub child_starts_total: IntCounterVec,
    pub child_start_seconds: HistogramVec,
    pub handshake_seconds: HistogramVec,
    pub child_exits_total: IntCounterVec,
    pub child_kills_total: IntCounterVec,
    pub breaker_state: IntGaugeVec,
    pub child_resident_bytes: IntGaugeVec,
    pub child_cpu_seconds_total: CounterVec,
    pub child_open_fds: IntGaugeVec,
    pub pool_waiters: IntGaugeVec,
    pub pool_wait_seconds: HistogramVec,
    pub queue_messages: IntGaugeVec,
    pub pipe_bytes_total: IntCounterVec,
    pub child_bad_lines_total: IntCounterVec,
    pub child_stderr_lines_total: IntCounterVec,
    pub connections: IntGaugeVec,
    pub connections_total: IntCounterVec,
    pub accept_errors_total: IntCounterVec,
    pub memory_used_bytes: IntGauge,
    pub memory_budget_bytes: IntGauge,
    pub overload_state: IntGauge,
    pub auth_checks_total: IntCounterVec,
    pub jwks_refreshes_total: IntCounterVec,
    pub jwks_age_seconds: IntGaugeVec,
    pub tls_certificate_expiry_timestamp_seconds: IntGaugeVec,
    pub log_dropped_total: IntCounterVec,
    pub audit_dropped_total: IntCounterVec,
    pub config_last_reload_successful: IntGauge,
    pub config_last_reload_success_timestamp_seconds: IntGauge,
}

impl Families {
    /// Registers every family; a family shows in a scrape once it has a series.
    #[rustfmt::skip] // One line a family reads as the table it is.
    pub(super) fn register(registry: &Registry) -> Self {
        let by = Registrar { registry };
        Families {
            requests_total: by.counters("requests_total", "Requests that ended, by method and outcome.", &["server", "method", "outcome"]),
            requests_in_flight: by.gauges("requests_in_flight", "Requests waiting for an answer.", &["server"]),
            request_duration_seconds: by.histograms("request_duration_seconds", "Time from a request's arrival to its end.", &["server", "method"], SECONDS),
            child_request_duration_seconds: by.histograms("child_request_duration_seconds", "Time from writing a request to the child to its answer.", &["server"], SECONDS),
            request_queue_seconds: by.histograms("request_queue_seconds", "Time a request waited in the gateway before it was written to the child.", &["server"], SECONDS),
            http_responses_total: by.counters("http_responses_total", "HTTP responses, by route and status code.", &["route", "code"]),
            refusals_total: by.counters("refusals_total", "Requests the gateway refused, by reason; server is empty where none was reached.", &["server", "reason"]),
            sessions: by.gauges("sessions", "Open sessions.", &["server"]),
            sessions_opened_total: by.counters("sessions_opened_total", "Sessions opened, by protocol revision.", &["server", "protocol"]),
            sessions_closed_total: by.counters("sessions_closed_total", "Sessions closed, by reason.", &["server", "reason"]),
            session_duration_seconds: by.histograms("session_duration_seconds", "Age of sessions when they closed.", &["server"], SESSION_SECONDS),
            streams: by.gauges("streams", "Open event streams, by kind.", &["server", "kind"]),
            stream_cuts_total: by.counters("stream_cuts_total", "Stream connections the gateway cut, by reason.", &["server", "reason"]),
            resumes_total: by.counters("resumes_total", "Attempts to resume a stream, by result.", &["server", "result"]),
            replay_bytes: by.gauge("replay_bytes", "Bytes kept for resuming streams."),
            replay_events: by.gauge("replay_events", "Events kept for resuming streams."),
            replay_evictions_total: by.counters("replay_evictions_total", "Events no longer kept for resuming, by the limit that removed them.", &["reason"]),
            notifications_total: by.counters("notifications_total", "Notifications passed on, by direction and kind.", &["server", "direction", "kind"]),
            notifications_dropped_total: by.counters("notifications_dropped_total", "Notifications dropped, by reason.", &["server", "reason"]),
            unmatched_responses_total: by.counters("unmatched_responses_total", "Responses nobody awaited, by sender.", &["server", "from"]),
            children: by.gauges("children", "Child processes, by state.", &["server", "state"]),
            child_starts_total: by.counters("child_starts_total", "Starts of child processes, by result.", &["server", "result"]),
            child_start_seconds: by.histograms("child_start_seconds", "Time a start took to its result.", &["server"], SECONDS),
            handshake_seconds: by.histograms("handshake_seconds", "Time from initialize to its answer.", &["server"], SECONDS),
            child_exits_total: by.counters("child_exits_total", "Child processes that ended, by reason.", &["server", "reason"]),
            child_kills_total: by.counters("child_kills_total", "Children the gateway stopped, by the last step that was needed.", &["server", "step"]),
            breaker_state: by.gauges("breaker_state", "Start breaker: 0 closed, 1 half open, 2 open.", &["server"]),
            child_resident_bytes: by.gauges("child_resident_bytes", "Memory in RAM of the process groups of children; what they share counts for each.", &["server"]),
            child_cpu_seconds_total: by.seconds("child_cpu_seconds_total", "Processor time of the process groups of children, those that ended included.", &["server"]),
            child_open_fds: by.gauges("child_open_fds", "Open file descriptors of the process groups of children.", &["server"]),
            pool_waiters: by.gauges("pool_waiters", "Callers waiting for a free child.", &["server"]),
            pool_wait_seconds: by.histograms("pool_wait_seconds", "Time callers waited for a free child.", &["server"], SECONDS),
            queue_messages: by.gauges("queue_messages", "Messages waiting to be written to children.", &["server"]),
            pipe_bytes_total: by.counters("pipe_bytes_total", "Bytes through the pipes of children, by direction.", &["server", "direction"]),
            child_bad_lines_total: by.counters("child_bad_lines_total", "Lines of children that were no message, by what was wrong.", &["server", "reason"]),
            child_stderr_lines_total: by.counters("child_stderr_lines_total", "Lines children wrote to stderr.", &["server"]),
            connections: by.gauges("connections", "Open connections.", &["listener"]),
            connections_total: by.counters("connections_total", "Connections that arrived, by what became of them.", &["listener", "result"]),
            accept_errors_total: by.counters("accept_errors_total", "Failed accepts, by error.", &["errno"]),
            memory_used_bytes: by.gauge("memory_used_bytes", "Bytes taken from the memory budget."),
            memory_budget_bytes: by.gauge("memory_budget_bytes", "Bytes of the memory budget."),
            overload_state: by.gauge("overload_state", "What is done about memory: 0 nothing, 1 shrinking replay, 2 refusing sessions, 3 refusing calls, 4 cutting stalled readers."),
            auth_checks_total: by.counters("auth_checks_total", "Checks of credentials, by method and result.", &["method", "result"]),
            jwks_refreshes_total: by.counters("jwks_refreshes_total", "Attempts to fetch the keys of an issuer, by result.", &["issuer", "result"]),
            jwks_age_seconds: by.gauges("jwks_age_seconds", "Seconds since the keys of an issuer were fetched.", &["issuer"]),
            tls_certificate_expiry_timestamp_seconds: by.gauges("tls_certificate_expiry_timestamp_seconds", "When the certificate in effect ends, in seconds since the Unix epoch.", &["name"]),
            log_dropped_total: by.counters("log_dropped_total", "Lines of the log that were lost, for want of room or with what they were written to.", &[]),
            audit_dropped_total: by.counters("audit_dropped_total", "Entries of the audit log that were lost.", &[]),
            config_last_reload_successful: by.gauge("config_last_reload_successful", "Whether the configuration in effect is the one read last: 1, or 0 after one that was refused."),
            config_last_reload_success_timestamp_seconds: by.gauge("config_last_reload_success_timestamp_seconds", "When the configuration in effect was read, in seconds since the Unix epoch."),
        }
    }
}

/// Says where every family goes.
struct Registrar<'a> {
    registry: &'a Registry,
}

impl Registrar<'_> {
    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.keep(IntCounterVec::new(options(name, help), labels))
    }

    fn seconds(&self, name: &str, help: &str, labels: &[&str]) -> CounterVec {
        self.keep(CounterVec::new(options(name, help), labels))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.keep(IntGaugeVec::new(options(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.keep(IntGauge::with_opts(options(name, help)))
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str], bounds: &[f64]) -> HistogramVec {
        self.keep(HistogramVec::new(HistogramOpts::from(options(name, help)).buckets(bounds.to_vec()), labels))
    }

    fn keep<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let collector = made.expect("names and labels are literals of this file, each well-formed");
        self.registry.register(Box::new(collector.clone())).expect("every name of this file occurs once");
        collector
    }
}

/// Options of one family below [`NAMESPACE`].
pub(super) fn options(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace(NAMESPACE)
}
