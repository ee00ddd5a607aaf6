//! What the children of every server take from the machine: memory, processor time, file descriptors.
//!
//! The command of a server is often a starter, such as npx, with the program proper below it. So what is measured is a
//! child's whole process group, which is also what is stopped together with it. A figure that cannot be read is left
//! out, never shown as zero.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use prometheus::{CounterVec, IntGaugeVec};

use super::families::Families;
use super::proc_stat::{Stat, Units};

/// How long a measurement is good for, so that scraping often costs no more than scraping now and then.
const GOOD_FOR: Duration = Duration::from_secs(5);

/// Every child that is measured.
pub(super) struct ChildProcesses {
    resident_bytes: IntGaugeVec,
    cpu_seconds: CounterVec,
    open_fds: IntGaugeVec,
    units: Units,
    children: Mutex<Children>,
    /// When the last measurement began; held while one is being made.
    measured: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Children {
    /// By numbers that are never used twice, unlike process ids.
    live: HashMap<u64, Measured>,
    last: u64,
    /// Servers of which a child was ever measured.
    servers: Vec<Arc<str>>,
}

struct Measured {
    server: Arc<str>,
    leader: i32,
    /// How much of its processor time is in the counter.
    counted_ticks: u64,
    /// `None` until it was measured.
    figures: Option<Figures>,
}

/// What the processes of one group, or of one server, take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    /// Theirs, and that of their descendants that ended and were waited for.
    ticks: u64,
    resident_pages: u64,
    /// `None` if those of one cannot be read.
    descriptors: Option<u64>,
}

/// A child that is measured until this is dropped. As long as it is there, the leader must not be reaped: its process
/// id may then belong to a stranger.
#[must_use = "dropping this at once ends the measuring"]
pub struct MeasuredChild {
    processes: Arc<ChildProcesses>,
    number: u64,
    leader: i32,
}

impl ChildProcesses {
    pub(super) fn new(families: &Families) -> Arc<Self> {
        Arc::new(ChildProcesses {
            resident_bytes: families.child_resident_bytes.clone(),
            cpu_seconds: families.child_cpu_seconds_total.clone(),
            open_fds: families.child_open_fds.clone(),
            units: Units::of_this_machine(),
            children: Mutex::default(),
            measured: Mutex::default(),
        })
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(self: &Arc<Self>, server: &Arc<str>, leader: i32) -> MeasuredChild {
        let mut children = self.children();
        children.last += 1;
        let number = children.last;
        let child = Measured { server: Arc::clone(server), leader, counted_ticks: 0, figures: None };
        children.live.insert(number, child);
        MeasuredChild { processes: Arc::clone(self), number, leader }
    }

    /// Measures every child anew, unless that was done lately or is being done.
    pub(super) fn measure(&self, now: Instant) {
        let mut measured = match self.measured.try_lock() {
            Ok(measured) => measured,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if measured.is_some_and(|before| now < before + GOOD_FOR) {
            return;
        }
        let numbers: HashMap<i32, u64> =
            self.children().live.iter().map(|(number, child)| (child.leader, *number)).collect();
        if numbers.is_empty() {
            return;
        }
        *measured = Some(now);
        // Not under the lock: children start and end meanwhile.
        let found = look_at_groups(&numbers);
        let mut children = self.children();
        for (number, figures) in found {
            self.note(&mut children, number, figures);
        }
    }

    /// Keeps what was found of a child, if it is still there.
    fn note(&self, children: &mut Children, number: u64, figures: Figures) {
        let Some(child) = children.live.get_mut(&number) else { return };
        // A process that ends without being waited for takes its time with it; the counter stays where it is.
        let more = figures.ticks.saturating_sub(child.counted_ticks);
        child.counted_ticks += more;
        child.figures = Some(figures);
        self.cpu_seconds.with_label_values(&[&child.server]).inc_by(self.units.seconds(more));
        if !children.servers.contains(&child.server) {
            children.servers.push(Arc::clone(&child.server));
        }
    }

    fn end(&self, number: u64, last: Option<Figures>) {
        let mut children = self.children();
        if let Some(last) = last {
            self.note(&mut children, number, last);
        }
        children.live.remove(&number);
    }

    /// Sets the gauges to what the children that are left take.
    pub(super) fn show(&self) {
        let children = self.children();
        let mut sums: BTreeMap<&str, Figures> =
            children.servers.iter().map(|server| (&**server, Figures::NONE)).collect();
        for child in children.live.values() {
            if let (Some(sum), Some(figures)) = (sums.get_mut(&*child.server), child.figures) {
                sum.add(figures);
            }
        }
        for (server, sum) in sums {
            let bytes = sum.resident_pages.saturating_mul(self.units.page_bytes);
            self.resident_bytes.with_label_values(&[server]).set(saturating(bytes));
            match sum.descriptors {
                Some(count) => self.open_fds.with_label_values(&[server]).set(saturating(count)),
                // Fails if it is not shown as it is.
                None => drop(self.open_fds.remove_label_values(&[server])),
            }
        }
    }
}

impl fmt::Debug for MeasuredChild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeasuredChild").field("leader", &self.leader).finish_non_exhaustive()
    }
}

impl Drop for MeasuredChild {
    /// Of a leader that has ended the time is still known, and with it that of all it waited for.
    fn drop(&mut self) {
        let last = Stat::read(&self.leader.to_string()).map(|stat| Figures::of(&stat, Some(0)));
        self.processes.end(self.number, last);
    }
}

impl Figures {
    const NONE: Figures = Figures { ticks: 0, resident_pages: 0, descriptors: Some(0) };

    fn of(stat: &Stat, descriptors: Option<u64>) -> Figures {
        let ticks = stat.user_ticks + stat.system_ticks + stat.waited_ticks;
        Figures { ticks, resident_pages: stat.resident_pages, descriptors }
    }

    fn add(&mut self, other: Figures) {
        self.ticks += other.ticks;
        self.resident_pages += other.resident_pages;
        self.descriptors = self.descriptors.zip(other.descriptors).map(|(one, other)| one + other);
    }
}

/// The figures of each group that `numbers` names by its leader's process id, under its number. The kernel has no list
/// of a group's members, so every process is asked.
fn look_at_groups(numbers: &HashMap<i32, u64>) -> HashMap<u64, Figures> {
    let mut found: HashMap<u64, Figures> = HashMap::with_capacity(numbers.len());
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().filter(|name| name.starts_with(|c: char| c.is_ascii_digit())) else {
            continue;
        };
        let Some(stat) = Stat::read(process) else { continue };
        let Some(number) = numbers.get(&stat.group) else { continue };
        found.entry(*number).or_insert(Figures::NONE).add(Figures::of(&stat, count_descriptors(process)));
    }
    found
}

/// `None` if they may not be counted: the process belongs to another user.
fn count_descriptors(process: &str) -> Option<u64> {
    let folder = format!("/proc/{process}/fd");
    // Since Linux 6.2 the size of the folder is the count.
    match fs::metadata(&folder).map(|folder| folder.len()) {
        Ok(count) if count > 0 => return Some(count),
        _ => {}
    }
    match fs::read_dir(&folder) {
        Ok(entries) => Some(entries.count() as u64),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(0),
        Err(_) => None,
    }
}

fn saturating(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(all(test, target_os = "linux"))]
#[path = "child_processes_test.rs"]
mod tests;
