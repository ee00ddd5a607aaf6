//! Calls by tool: names come from children, so how many become labels is bounded here.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Registry};

use super::escape;
use super::families::{TOOL_SECONDS, options};
use super::label::{Label, Outcome};
use super::series::empty;

/// What stands in the label for every tool that has no series of its own.
const OTHER: &str = "_other";

/// Longest tool name, in bytes, that becomes a label.
const LONGEST_NAME: usize = 128;

/// How many more tool names may become labels, over all servers.
pub(super) struct ToolBudget(AtomicUsize);

impl ToolBudget {
    pub(super) fn new(names: usize) -> Self {
        ToolBudget(AtomicUsize::new(names))
    }

    fn take(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// The tool series of one server.
///
/// These vectors carry `server` as a constant label instead of a variable one: the crate tells
/// series apart by a hash over the joined label values, in which tool `bc` of server `a` and tool
/// `c` of server `ab` are the same, and a child chooses its tools' names.
pub(super) struct Tools {
    calls: IntCounterVec,
    durations: HistogramVec,
    /// Tools the server is known to offer. A reader-writer lock because calls only read it; it is
    /// written when the server's list changes.
    known: RwLock<HashMap<Box<str>, Tool>>,
    other: ToolSeries,
    budget: Arc<ToolBudget>,
}

/// One known tool. The name asks for a place in the budget at its first call, so that long lists
/// nobody uses take none; `None` means there was none left.
#[derive(Default)]
struct Tool(OnceLock<Option<ToolSeries>>);

impl Tools {
    pub(super) fn register(registry: &Registry, server: &str, budget: Arc<ToolBudget>) -> Self {
        let calls =
            options("tool_calls_total", "Tool calls that ended, by tool and outcome.").const_label("server", server);
        let durations = options("tool_call_duration_seconds", "Time from a tool call's arrival to its end.")
            .const_label("server", server);
        let calls = IntCounterVec::new(calls, &["tool", "outcome"]).expect("the names are literals, each well-formed");
        let durations = HistogramVec::new(HistogramOpts::from(durations).buckets(TOOL_SECONDS.to_vec()), &["tool"])
            .expect("the names are literals, each well-formed");
        registry.register(Box::new(calls.clone())).expect("a server's tools are registered once");
        registry.register(Box::new(durations.clone())).expect("a server's tools are registered once");
        let other = ToolSeries::new(&calls, &durations, OTHER);
        Tools { calls, durations, known: RwLock::default(), other, budget }
    }

    /// Replaces the list of names that may become labels. A name that already has a series keeps
    /// it: counters never go back, and its place in the budget is spent.
    pub(super) fn set(&self, names: &[String]) {
        let fit: HashSet<&str> = names.iter().map(String::as_str).filter(|name| may_be_label(name)).collect();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|name, tool| tool.0.get().is_some_and(Option::is_some) || fit.contains(&**name));
        for name in fit {
            known.entry(name.into()).or_default();
        }
    }

    pub(super) fn call_ended(&self, name: &str, outcome: Outcome, took: Duration) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let own = known.get(name).and_then(|tool| tool.0.get_or_init(|| self.admit(name)).as_ref());
        own.unwrap_or(&self.other).call_ended(outcome, took);
    }

    fn admit(&self, name: &str) -> Option<ToolSeries> {
        self.budget.take().then(|| ToolSeries::new(&self.calls, &self.durations, name))
    }
}

/// The series of one value of the label `tool`.
struct ToolSeries {
    name: Box<str>,
    vectors: (IntCounterVec, HistogramVec),
    calls: Box<[OnceLock<IntCounter>]>,
    duration: OnceLock<Histogram>,
}

impl ToolSeries {
    fn new(calls: &IntCounterVec, durations: &HistogramVec, name: &str) -> Self {
        ToolSeries {
            name: name.into(),
            vectors: (calls.clone(), durations.clone()),
            calls: empty(Outcome::COUNT),
            duration: OnceLock::new(),
        }
    }

    fn call_ended(&self, outcome: Outcome, took: Duration) {
        let (calls, durations) = &self.vectors;
        self.calls[outcome.index()].get_or_init(|| calls.with_label_values(&[&self.name, outcome.as_str()])).inc();
        self.duration.get_or_init(|| durations.with_label_values(&[&self.name])).observe(took.as_secs_f64());
    }
}

/// A name fit to stand in a scrape: not empty, not long, nothing a terminal would obey.
fn may_be_label(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && name != OTHER && !escape::has_control(name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use prometheus::{Registry, TextEncoder};

    use super::{LONGEST_NAME, ToolBudget, Tools, may_be_label};
    use crate::telemetry::label::Outcome;

    const TOOK: Duration = Duration::from_millis(20);

    fn scrape(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).expect("the families are well-formed")
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn joined_label_values_do_not_meet() {
        let registry = Registry::new();
        let budget = Arc::new(ToolBudget::new(10));
        let (a, ab) = (Tools::register(&registry, "a", budget.clone()), Tools::register(&registry, "ab", budget));
        a.set(&names(&["bc"]));
        ab.set(&names(&["c"]));
        a.call_ended("bc", Outcome::Ok, TOOK);
        ab.call_ended("c", Outcome::Ok, TOOK);
        let text = scrape(&registry);
        assert!(text.contains(r#"gangway_tool_calls_total{outcome="ok",server="a",tool="bc"} 1"#), "{text}");
        assert!(text.contains(r#"gangway_tool_calls_total{outcome="ok",server="ab",tool="c"} 1"#), "{text}");
    }

    #[test]
    fn only_called_tools_of_the_list_take_a_place_and_the_rest_is_other() {
        let registry = Registry::new();
        let tools = Tools::register(&registry, "s", Arc::new(ToolBudget::new(2)));
        tools.set(&names(&["listed", "first", "second", "third"]));
        for tool in ["unknown", "first", "second", "third", "first"] {
            tools.call_ended(tool, Outcome::ToolError, TOOK);
        }
        let text = scrape(&registry);
        assert!(text.contains(r#"{outcome="tool_error",server="s",tool="first"} 2"#), "{text}");
        assert!(text.contains(r#"{outcome="tool_error",server="s",tool="second"} 1"#), "{text}");
        assert!(text.contains(r#"{outcome="tool_error",server="s",tool="_other"} 2"#), "{text}");
        assert!(!text.contains("third") && !text.contains("listed") && !text.contains("unknown"), "{text}");
    }

    #[test]
    fn a_new_list_keeps_series_and_spends_no_place_twice() {
        let registry = Registry::new();
        let tools = Tools::register(&registry, "s", Arc::new(ToolBudget::new(2)));
        tools.set(&names(&["old", "gone"]));
        tools.call_ended("old", Outcome::Ok, TOOK);
        tools.set(&names(&["new"]));
        for tool in ["old", "new", "gone"] {
            tools.call_ended(tool, Outcome::Ok, TOOK);
        }
        let text = scrape(&registry);
        assert!(text.contains(r#"tool="old"} 2"#) && text.contains(r#"tool="new"} 1"#), "{text}");
        assert!(text.contains(r#"tool="_other"} 1"#) && !text.contains("gone"), "{text}");
    }

    #[test]
    fn hostile_names_are_no_labels() {
        let long = "x".repeat(LONGEST_NAME + 1);
        for name in ["", "_other", "a\nb", "\u{1b}[31m", "a\u{202e}b", "\u{9b}", long.as_str()] {
            assert!(!may_be_label(name), "{name:?}");
        }
        assert!(may_be_label("read_file") && may_be_label("größe"));
    }
}
