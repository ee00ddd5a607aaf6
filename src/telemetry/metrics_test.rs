use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::Metrics;
use crate::config;
use crate::telemetry::label::{
    Accepted, AuthMethod, AuthResult, BadLine, ChildExit, ChildState, Direction, Dropped, Eviction, Method, Notice,
    Outcome, Protocol, Refusal, Resume, Route, SessionEnd, Start, StopStep, StreamCut, StreamKind, Unmatched,
};
use crate::telemetry::server_metrics::{CallEnd, ServerMetrics};

const TOOK: Duration = Duration::from_millis(7);
const SERVERS: usize = 10;
const TOOLS: usize = 50;
const METHODS: usize = 6;

fn metrics() -> Arc<Metrics> {
    Metrics::new(&config::Metrics { tools: true, max_tools: TOOLS })
}

fn call<'a>(method: &'a str, tool: Option<&'a str>, outcome: Outcome) -> CallEnd<'a> {
    CallEnd { method, tool, outcome, total: TOOK, queue: TOOK, child: Some(TOOK) }
}

/// Every verb with every value.
fn exercise_server(server: &ServerMetrics, tools: &[String]) {
    server.set_tools(tools);
    drop(server.call_started());
    for outcome in Outcome::ALL {
        for method in &Method::ALL[1..METHODS] {
            server.call_ended(&call(method.as_str(), None, *outcome));
        }
        for tool in tools.iter().map(String::as_str).chain(["unlisted"]) {
            server.call_ended(&call("tools/call", Some(tool), *outcome));
        }
    }
    Refusal::ALL.iter().for_each(|reason| server.refused(*reason));
    Protocol::ALL
        .iter()
        .filter(|known| **known != Protocol::Other)
        .for_each(|known| server.session_opened(known.as_str()));
    SessionEnd::ALL.iter().for_each(|reason| server.session_closed(*reason, TOOK));
    StreamKind::ALL.iter().for_each(|kind| drop(server.stream_opened(*kind)));
    StreamCut::ALL.iter().for_each(|reason| server.stream_cut(*reason));
    Resume::ALL.iter().for_each(|result| server.resumed(*result));
    for direction in Direction::ALL {
        // Clients neither log nor hold resources.
        let kinds = Notice::ALL
            .iter()
            .filter(|kind| *direction == Direction::ToClient || !matches!(kind, Notice::Log | Notice::ResourceUpdated));
        kinds.for_each(|kind| server.notification(*direction, *kind));
        server.pipe_bytes(*direction, 10);
    }
    Dropped::ALL.iter().for_each(|reason| server.notification_dropped(*reason));
    Unmatched::ALL.iter().for_each(|from| server.unmatched(*from));
    ChildState::ALL.iter().for_each(|state| server.child_state(*state, 1));
    Start::ALL.iter().for_each(|result| server.child_started(*result, TOOK));
    server.handshake(TOOK);
    ChildExit::ALL.iter().for_each(|reason| server.child_exited(*reason));
    StopStep::ALL.iter().for_each(|step| server.child_killed(*step));
    server.breaker(2);
    exercise_children(server);
    drop(server.pool_waiting());
    server.pool_waited(TOOK);
    server.queue_messages(3);
    BadLine::ALL.iter().for_each(|reason| server.bad_line(*reason));
    server.stderr_line();
}

/// This process stands for a child. The end of the measuring is a measurement.
fn exercise_children(server: &ServerMetrics) {
    drop(server.measure_child(std::process::id().cast_signed()));
}

fn exercise_gateway(metrics: &Metrics) {
    for route in Route::ALL {
        // What takes no body and opens no session can be refused in fewer ways; a page is there or not asked for.
        let statuses: &[u16] = match route {
            Route::Page => &[200],
            Route::Health | Route::Metrics | Route::Other => &[200, 400, 401, 403, 404, 405, 503],
            _ => &[200, 202, 400, 401, 403, 404, 405, 406, 413, 415, 429, 503],
        };
        statuses.iter().for_each(|status| metrics.http_response(*route, *status));
    }
    // Where no server is meant, there is none to be full.
    let unrouted = Refusal::ALL.iter().filter(|reason| {
        !matches!(
            reason,
            Refusal::Scope | Refusal::Sessions | Refusal::PoolFull | Refusal::QueueFull | Refusal::Breaker
        )
    });
    unrouted.for_each(|reason| metrics.refused_unrouted(*reason));
    drop(metrics.connection_opened("127.0.0.1:8080"));
    Accepted::ALL.iter().for_each(|result| metrics.accepted("127.0.0.1:8080", *result));
    metrics.accept_error("EMFILE");
    metrics.replay(10, 1);
    Eviction::ALL.iter().for_each(|reason| metrics.replay_evicted(*reason, 1));
    metrics.memory_used(1);
    metrics.memory_budget(2);
    metrics.overload_state(4);
    for method in AuthMethod::ALL {
        // Keys are at hand, and the handshake has judged certificates.
        let results = AuthResult::ALL.iter().filter(|result| match method {
            AuthMethod::ApiKey => **result != AuthResult::Unavailable,
            AuthMethod::Mtls => matches!(result, AuthResult::Ok | AuthResult::Missing | AuthResult::Expired),
            AuthMethod::Jwt | AuthMethod::Introspection => true,
        });
        results.for_each(|result| metrics.auth_check(*method, *result));
    }
}

/// The whole gateway at the size the interface promises for.
fn exercised() -> Arc<Metrics> {
    let metrics = metrics();
    for number in 0..SERVERS {
        let tools: Vec<String> = (0..TOOLS / SERVERS).map(|tool| format!("tool-{number}-{tool}")).collect();
        exercise_server(&metrics.server(&format!("server-{number}")), &tools);
    }
    exercise_gateway(&metrics);
    metrics
}

fn series(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

/// Name to (type, labels) of everything in a scrape.
fn families(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut families = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            current = name.to_owned();
            families.insert(current.clone(), (kind.to_owned(), BTreeSet::new()));
        } else if let Some((labels, _)) = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')) {
            let family = families.get_mut(&current).expect("a type stands before");
            let names = labels.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
            family.1.extend(names.filter(|name| name != "le"));
        }
    }
    families
}

/// The table of the interface: name, type, labels.
const TABLE: &str = "
    build_info gauge version,revision
    requests_total counter server,method,outcome
    requests_in_flight gauge server
    request_duration_seconds histogram server,method
    child_request_duration_seconds histogram server
    request_queue_seconds histogram server
    tool_calls_total counter server,tool,outcome
    tool_call_duration_seconds histogram server,tool
    http_responses_total counter route,code
    refusals_total counter server,reason
    sessions gauge server
    sessions_opened_total counter server,protocol
    sessions_closed_total counter server,reason
    session_duration_seconds histogram server
    streams gauge server,kind
    stream_cuts_total counter server,reason
    resumes_total counter server,result
    replay_bytes gauge
    replay_events gauge
    replay_evictions_total counter reason
    notifications_total counter server,direction,kind
    notifications_dropped_total counter server,reason
    unmatched_responses_total counter server,from
    children gauge server,state
    child_starts_total counter server,result
    child_start_seconds histogram server
    handshake_seconds histogram server
    child_exits_total counter server,reason
    child_kills_total counter server,step
    breaker_state gauge server
    child_resident_bytes gauge server
    child_cpu_seconds_total counter server
    child_open_fds gauge server
    pool_waiters gauge server
    pool_wait_seconds histogram server
    queue_messages gauge server
    pipe_bytes_total counter server,direction
    child_bad_lines_total counter server,reason
    child_stderr_lines_total counter server
    connections gauge listener
    connections_total counter listener,result
    accept_errors_total counter errno
    memory_used_bytes gauge
    memory_budget_bytes gauge
    overload_state gauge
    auth_checks_total counter method,result
    config_last_reload_successful gauge
    config_last_reload_success_timestamp_seconds gauge
";

#[test]
fn the_scrape_holds_exactly_the_documented_table() {
    let mut expected = BTreeMap::new();
    for line in TABLE.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let name = format!("gangway_{}", words.next().expect("a name"));
        let kind = words.next().expect("a type").to_owned();
        let labels = words.next().map(|labels| labels.split(',').map(str::to_owned).collect()).unwrap_or_default();
        expected.insert(name, (kind, labels));
    }
    let mut found = families(&exercised().gather());
    let process: Vec<String> = found.keys().filter(|name| name.starts_with("process_")).cloned().collect();
    process.iter().for_each(|name| assert!(found.remove(name).expect("it was listed").1.is_empty(), "{name}"));
    assert_eq!(found, expected);
    assert_eq!(process.len(), 6, "{process:?}");
}

#[test]
fn the_promised_size_stays_below_its_cap() {
    let text = exercised().gather();
    let count = series(&text).count();
    assert!(count <= 5000, "{count} series");
    // The cap is only worth something if everything was there.
    assert!(count > 4000, "{count} series");
}

#[test]
fn names_follow_the_conventions() {
    let text = exercised().gather();
    for (name, (kind, _)) in families(&text) {
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        assert!(kind != "histogram" || name.ends_with("_seconds"), "{name} has no base unit");
        for unit in ["milli", "micro", "minute", "hour", "kilo", "kib", "mib", "percent"] {
            assert!(!name.split('_').any(|word| word.starts_with(unit)), "{name} has no base unit");
        }
        let help = text.lines().find_map(|line| line.strip_prefix(&format!("# HELP {name} "))).expect("a sentence");
        assert!(help.ends_with('.') && help.len() > 10, "{name}: {help}");
    }
}

#[test]
fn buckets_are_the_documented_ones() {
    let text = exercised().gather();
    let bounds = |name: &str| -> Vec<String> {
        let start = format!("gangway_{name}_bucket{{");
        let mut bounds: Vec<String> = Vec::new();
        for line in series(&text).filter(|line| line.starts_with(&start)) {
            let bound = line.split_once("le=\"").and_then(|(_, rest)| rest.split_once('"')).expect("a bound").0;
            if !bounds.iter().any(|known| known == bound) {
                bounds.push(bound.to_owned());
            }
        }
        bounds
    };
    let seconds = "0.001 0.0025 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10 30 60 120 300";
    for name in [
        "request_duration_seconds",
        "child_request_duration_seconds",
        "request_queue_seconds",
        "child_start_seconds",
        "handshake_seconds",
        "pool_wait_seconds",
    ] {
        assert_eq!(bounds(name).join(" "), format!("{seconds} +Inf"), "{name}");
    }
    assert_eq!(bounds("session_duration_seconds").join(" "), format!("{seconds} 1800 7200 86400 +Inf"));
    assert_eq!(bounds("tool_call_duration_seconds").join(" "), "0.01 0.1 0.5 2 10 60 +Inf");
}

#[test]
fn nothing_but_what_happened_has_a_series() {
    let metrics = metrics();
    let server = metrics.server("quiet");
    let text = metrics.gather();
    assert!(!text.contains("quiet"), "{text}");
    server.refused(Refusal::Breaker);
    let text = metrics.gather();
    let own: Vec<&str> = series(&text).filter(|line| line.contains("quiet")).collect();
    assert_eq!(own, [r#"gangway_refusals_total{reason="breaker",server="quiet"} 1"#]);
}

#[test]
fn what_clients_choose_adds_no_series() {
    let metrics = metrics();
    let server = metrics.server("s");
    let chosen = |prefix: &str| {
        for number in 0..1000 {
            let name = format!("{prefix}{number}");
            server.call_ended(&call(&name, Some(&name), Outcome::Ok));
            server.session_opened(&name);
        }
        series(&metrics.gather()).count()
    };
    let first = chosen("a");
    assert_eq!(chosen("b"), first);
    let text = metrics.gather();
    assert!(text.contains(r#"gangway_requests_total{method="_other",outcome="ok",server="s"} 2000"#), "{text}");
    assert!(text.contains(r#"gangway_sessions_opened_total{protocol="_other",server="s"} 2000"#), "{text}");
}

#[test]
fn switched_off_tools_are_all_other() {
    let metrics = Metrics::new(&config::Metrics { tools: false, max_tools: 50 });
    let server = metrics.server("s");
    server.set_tools(&["read".to_owned()]);
    server.call_ended(&call("tools/call", Some("read"), Outcome::Ok));
    let text = metrics.gather();
    assert!(text.contains(r#"gangway_tool_calls_total{outcome="ok",server="s",tool="_other"} 1"#), "{text}");
    assert!(!text.contains("read\""), "{text}");
}

#[test]
fn guards_give_back_what_they_took() {
    let metrics = metrics();
    let server = metrics.server("s");
    let gauges = |expected: u32| {
        let text = metrics.gather();
        for series in [
            r#"requests_in_flight{server="s"}"#,
            r#"streams{kind="get",server="s"}"#,
            r#"pool_waiters{server="s"}"#,
            r#"connections{listener="l"}"#,
        ] {
            assert!(text.contains(&format!("gangway_{series} {expected}\n")), "{series} is not {expected}: {text}");
        }
    };
    let held = || {
        (
            server.call_started(),
            server.stream_opened(StreamKind::Get),
            server.pool_waiting(),
            metrics.connection_opened("l"),
        )
    };
    let (first, second) = (held(), held());
    gauges(2);
    drop(first);
    gauges(1);
    drop(second);
    gauges(0);
}

#[test]
fn sessions_open_and_close() {
    let metrics = metrics();
    let server = metrics.server("s");
    server.session_opened("2025-11-25");
    server.session_opened("2025-11-25");
    server.session_closed(SessionEnd::Idle, Duration::from_secs(3600));
    let text = metrics.gather();
    for line in [
        r#"gangway_sessions{server="s"} 1"#,
        r#"gangway_sessions_opened_total{protocol="2025-11-25",server="s"} 2"#,
        r#"gangway_sessions_closed_total{reason="idle",server="s"} 1"#,
        r#"gangway_session_duration_seconds_bucket{server="s",le="1800"} 0"#,
        r#"gangway_session_duration_seconds_bucket{server="s",le="7200"} 1"#,
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
}

#[test]
fn the_same_name_is_the_same_server_on_every_thread() {
    let metrics = metrics();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let server = metrics.server("s");
                (0..1000).for_each(|_| server.call_ended(&call("tools/call", Some("t"), Outcome::Ok)));
            });
        }
    });
    let text = metrics.gather();
    assert!(text.contains(r#"gangway_requests_total{method="tools/call",outcome="ok",server="s"} 4000"#), "{text}");
    assert!(text.contains(r#"gangway_tool_calls_total{outcome="ok",server="s",tool="_other"} 4000"#), "{text}");
}

#[test]
fn statuses_outside_the_usual_are_counted_too() {
    let metrics = metrics();
    for status in [200, 418, 200, 418] {
        metrics.http_response(Route::Mcp, status);
    }
    let text = metrics.gather();
    assert!(text.contains(r#"gangway_http_responses_total{code="200",route="mcp"} 2"#), "{text}");
    assert!(text.contains(r#"gangway_http_responses_total{code="418",route="mcp"} 2"#), "{text}");
}
