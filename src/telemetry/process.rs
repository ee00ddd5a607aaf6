//! `process_*`: what the gateway itself takes from the machine.
//!
//! The gateway makes itself non-dumpable, which gives its `/proc` files to root. What is read here
//! stays readable: `stat` is open to all, and the kernel always lets a process list its own
//! `fd` directory (`proc_fd_permission`). A figure that cannot be read is left out of the scrape,
//! never shown as zero.

use std::fs;
use std::sync::Mutex;
use std::sync::PoisonError;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntGauge};
use rustix::process::{Resource, getrlimit};

use super::proc_stat::{Stat, Units};

/// Reads the figures at every scrape.
pub(super) struct ProcessCollector {
    cpu_seconds: Counter,
    /// Held while the counter is moved up to what the kernel says, so that two scrapes at once do
    /// not both add the difference.
    scrape: Mutex<()>,
    resident_bytes: IntGauge,
    virtual_bytes: IntGauge,
    open_descriptors: IntGauge,
    descriptor_limit: IntGauge,
    start_time: Option<IntGauge>,
    units: Units,
}

impl ProcessCollector {
    pub(super) fn new() -> Self {
        let units = Units::of_this_machine();
        ProcessCollector {
            cpu_seconds: Counter::new("process_cpu_seconds_total", "Processor time of the gateway itself.")
                .expect("the name is well-formed"),
            scrape: Mutex::new(()),
            resident_bytes: gauge("process_resident_memory_bytes", "Memory of the gateway itself that is in RAM."),
            virtual_bytes: gauge("process_virtual_memory_bytes", "Address space of the gateway itself."),
            open_descriptors: gauge("process_open_fds", "Open file descriptors."),
            descriptor_limit: gauge("process_max_fds", "Most file descriptors that may be open."),
            start_time: start_time(units),
            units,
        }
    }

    fn collect_stat(&self, stat: Stat, into: &mut Vec<MetricFamily>) {
        let seconds = self.units.seconds(stat.user_ticks + stat.system_ticks);
        let scrape = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        self.cpu_seconds.inc_by((seconds - self.cpu_seconds.get()).max(0.0));
        drop(scrape);
        self.resident_bytes.set(saturating(stat.resident_pages.saturating_mul(self.units.page_bytes)));
        self.virtual_bytes.set(saturating(stat.virtual_bytes));
        into.extend(self.cpu_seconds.collect());
        into.extend(self.resident_bytes.collect());
        into.extend(self.virtual_bytes.collect());
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = [&self.resident_bytes, &self.virtual_bytes, &self.open_descriptors, &self.descriptor_limit];
        let gauges = gauges.into_iter().chain(&self.start_time).flat_map(Collector::desc);
        self.cpu_seconds.desc().into_iter().chain(gauges).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = Vec::with_capacity(6);
        if let Some(stat) = Stat::read("self") {
            self.collect_stat(stat, &mut families);
        }
        if let Some(open) = count_descriptors() {
            self.open_descriptors.set(saturating(open));
            families.extend(self.open_descriptors.collect());
        }
        self.descriptor_limit.set(getrlimit(Resource::Nofile).current.map_or(i64::MAX, saturating));
        families.extend(self.descriptor_limit.collect());
        families.extend(self.start_time.iter().flat_map(Collector::collect));
        families
    }
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).expect("the names of this file are well-formed")
}

fn saturating(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The descriptor that reads the directory is not counted.
fn count_descriptors() -> Option<u64> {
    let entries = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(entries.saturating_sub(1))
}

/// Seconds since the Unix epoch; fixed for the life of the process, so read once.
fn start_time(units: Units) -> Option<IntGauge> {
    let booted: u64 = fs::read_to_string("/proc/stat")
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    let started = booted + Stat::read("self")?.started_ticks / units.ticks_per_second;
    let gauge = gauge("process_start_time_seconds", "Start of the gateway, in seconds since the Unix epoch.");
    gauge.set(saturating(started));
    Some(gauge)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::time::{SystemTime, UNIX_EPOCH};

    use prometheus::core::Collector;
    use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};

    use super::{ProcessCollector, count_descriptors};

    #[test]
    fn every_figure_is_there_and_plausible_when_not_dumpable() {
        let before = dumpable_behavior().expect("prctl answers");
        set_dumpable_behavior(DumpableBehavior::NotDumpable).expect("prctl answers");
        let collector = ProcessCollector::new();
        let families = collector.collect();
        set_dumpable_behavior(before).expect("prctl answers");
        let value = |name: &str| {
            let family = families.iter().find(|family| family.name() == name).expect(name);
            let metric = &family.get_metric()[0];
            metric.get_gauge().get_value() + metric.get_counter().get_value()
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch").as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "started {age} s ago");
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert_eq!(families.len(), 6);
    }

    #[test]
    fn open_descriptors_are_counted() {
        // Other tests open files meanwhile; forty are more than they do.
        let before = count_descriptors().expect("/proc is mounted");
        let held: Vec<File> = (0..40).map(|_| File::open("/dev/null").expect("/dev/null opens")).collect();
        let during = count_descriptors().expect("/proc is mounted");
        assert!(during >= before + 20, "{before} then {during}");
        drop(held);
    }
}
