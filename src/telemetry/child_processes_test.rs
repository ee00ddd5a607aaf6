use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::core::Collector;
use prometheus::{IntGaugeVec, Registry};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use super::{ChildProcesses, Figures, GOOD_FOR};
use crate::config;
use crate::telemetry::Metrics;
use crate::telemetry::families::Families;

/// A shell that leads a process group, and what it says.
struct Shell {
    process: Child,
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    fn run(script: &str) -> Shell {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a shell");
        let stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        Shell { process, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stdout.read_line(&mut line).expect("text") > 0, "it ended");
        line.trim().to_owned()
    }

    fn say(&mut self) {
        self.process.stdin.as_mut().expect("it is piped").write_all(b"\n").expect("it reads");
    }

    /// Closes its input and waits until it has ended; it stays unreaped.
    fn end(&mut self) {
        drop(self.process.stdin.take());
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.process)), ended).expect("it ends");
    }

    fn leader(&self) -> i32 {
        self.process.id().cast_signed()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Nothing may be left of it.
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// Takes some processor time.
const WORK: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";

fn metrics() -> Arc<Metrics> {
    Metrics::new(&config::Metrics { tools: false, max_tools: 0 })
}

fn value(metrics: &Metrics, name: &str) -> Option<f64> {
    let series = format!("gangway_child_{name}{{server=\"a\"}} ");
    metrics.gather().lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

fn descriptors(process: impl std::fmt::Display) -> f64 {
    fs::read_dir(format!("/proc/{process}/fd")).expect("it lives").count() as f64
}

#[test]
fn the_whole_group_counts() {
    let metrics = metrics();
    let mut shell = Shell::run("sleep 1000 & echo $!; read line");
    let below = shell.line();
    let child = metrics.server("a").measure_child(shell.leader());
    assert_eq!(value(&metrics, "resident_bytes"), None, "nothing was measured yet");
    metrics.measure_children(Instant::now());
    assert_eq!(value(&metrics, "open_fds"), Some(descriptors(shell.leader()) + descriptors(&below)));
    let resident = value(&metrics, "resident_bytes").expect("it is measured");
    assert!((100_000.0..100_000_000.0).contains(&resident), "{resident}");
    drop(child);
    assert_eq!((value(&metrics, "resident_bytes"), value(&metrics, "open_fds")), (Some(0.0), Some(0.0)));
}

#[test]
fn children_of_one_server_are_added_up_and_those_of_others_are_not() {
    let metrics = metrics();
    let mut shells = [(); 3].map(|()| Shell::run("echo up; read line"));
    shells.iter_mut().for_each(|shell| drop(shell.line()));
    let servers = ["a", "b", "a"].map(|name| metrics.server(name));
    let _children: Vec<_> =
        servers.iter().zip(&shells).map(|(server, shell)| server.measure_child(shell.leader())).collect();
    metrics.measure_children(Instant::now());
    assert_eq!(value(&metrics, "open_fds"), Some(descriptors(shells[0].leader()) + descriptors(shells[2].leader())));
}

/// As with processes of another user.
#[test]
fn descriptors_that_cannot_be_counted_are_not_shown() {
    let families = Families::register(&Registry::new());
    let processes = ChildProcesses::new(&families);
    let servers = ["a".into(), "b".into()];
    let children = [&servers[0], &servers[0], &servers[1]].map(|server| processes.begin(server, i32::MAX));
    let shown = |counts: [Option<u64>; 3]| {
        for (child, descriptors) in children.iter().zip(counts) {
            let figures = Figures { ticks: 0, resident_pages: 1, descriptors };
            processes.note(&mut processes.children(), child.number, figures);
        }
        processes.show();
        let gauges = |family: &IntGaugeVec| -> Vec<f64> {
            family.collect()[0].get_metric().iter().map(|metric| metric.get_gauge().get_value()).collect()
        };
        assert_eq!(gauges(&families.child_resident_bytes).len(), 2);
        gauges(&families.child_open_fds)
    };
    assert_eq!(shown([Some(3), None, Some(4)]), [4.0]);
    assert_eq!(shown([Some(3), Some(5), Some(4)]), [8.0, 4.0]);
    assert_eq!(shown([None, Some(5), Some(0)]), [0.0]);
}

#[test]
fn a_measurement_is_good_for_a_while() {
    let metrics = metrics();
    let mut shell = Shell::run("echo up; read x; exec 5</dev/null 6</dev/null; echo more; read x");
    shell.line();
    let _child = metrics.server("a").measure_child(shell.leader());
    let now = Instant::now();
    metrics.measure_children(now);
    let before = value(&metrics, "open_fds").expect("it is measured");
    shell.say();
    shell.line();
    metrics.measure_children(now + GOOD_FOR - Duration::from_millis(1));
    assert_eq!(value(&metrics, "open_fds"), Some(before));
    metrics.measure_children(now + GOOD_FOR);
    assert_eq!(value(&metrics, "open_fds"), Some(before + 2.0));
}

/// Short lives, those of one call for instance, end between two scrapes.
#[test]
fn the_time_of_a_child_that_was_never_scraped_counts() {
    let metrics = metrics();
    let mut shell = Shell::run(&format!("({WORK}); echo done; read line"));
    let child = metrics.server("a").measure_child(shell.leader());
    shell.line();
    shell.end();
    drop(child);
    let used = value(&metrics, "cpu_seconds_total").expect("it is counted");
    assert!((0.01..300.0).contains(&used), "{used}");
    assert_eq!(value(&metrics, "resident_bytes"), Some(0.0));
}

#[test]
fn the_time_never_goes_back() {
    let metrics = metrics();
    // The worker is nobody's who waits for it.
    let mut shell = Shell::run(&format!("(sh -c '{WORK}; echo $$; exec sleep 1000' &); read line; {WORK}"));
    let child = metrics.server("a").measure_child(shell.leader());
    let worker: i32 = shell.line().parse().expect("a process id");
    let now = Instant::now();
    metrics.measure_children(now);
    let used = value(&metrics, "cpu_seconds_total").expect("it is counted");
    assert!(used >= 0.01, "{used}");
    kill_process(Pid::from_raw(worker).expect("not zero"), Signal::KILL).expect("it lives");
    while Path::new(&format!("/proc/{worker}/exe")).exists() {
        std::thread::yield_now();
    }
    metrics.measure_children(now + GOOD_FOR);
    // What is left of the group may have run for a tick meanwhile.
    let without = value(&metrics, "cpu_seconds_total").expect("it is counted");
    assert!((used..used + 1.0).contains(&without), "{used}, then {without}: its time went with it");
    shell.end();
    drop(child);
    let in_the_end = value(&metrics, "cpu_seconds_total").expect("it is counted");
    assert!(in_the_end >= used, "{used} then {in_the_end}");
    // Nothing is left to be measured, and what was counted stays.
    metrics.measure_children(now + 2 * GOOD_FOR);
    assert_eq!(value(&metrics, "cpu_seconds_total"), Some(in_the_end));
}
