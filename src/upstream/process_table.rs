//! The processes of this machine as proc(5) shows them.

use std::collections::HashMap;
use std::fs;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) parent: i32,
    pub(super) session: i32,
    /// When it began, in clock ticks since the machine did. With the number it names one process for ever.
    pub(super) began: u64,
}

/// Every process by its number. One that begins or ends meanwhile may be missing, or be there although it is gone.
pub(super) fn every_process() -> HashMap<i32, Entry> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(|pid: i32| Some((pid, process(pid)?))).collect()
}

/// The process with this number.
pub(super) fn process(pid: i32) -> Option<Entry> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads a line of `/proc/PID/stat`; a zombie is an entry like others.
fn parse(stat: &str) -> Option<Entry> {
    // The name before it may hold anything, brackets and spaces included.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Entry { parent: field(4)?.parse().ok()?, session: field(6)?.parse().ok()?, began: field(22)?.parse().ok()? })
}

/// The direct children of this process, without looking at all others; `None` where the kernel does not list them
/// (CONFIG_PROC_CHILDREN). While some of them end, others may be left out.
pub(super) fn own_children() -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(text) => children.extend(text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            // A thread that ended meanwhile; its children went to another.
            Err(_) if !task.path().exists() => {}
            Err(_) => return None,
        }
    }
    Some(children)
}

/// The value of a variable in the environment a process was started with, if this process may look.
pub(super) fn variable(pid: i32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let found = environment
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    String::from_utf8(found?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::{Entry, every_process, parse};

    #[test]
    fn a_line_is_read_whatever_the_name() {
        let line = "7 (a) b (c)) S 3 7 5 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 4242 1 2 3";
        assert_eq!(parse(line), Some(Entry { parent: 3, session: 5, began: 4242 }));
        assert_eq!(parse("7 (a) S 3"), None);
    }

    #[test]
    fn this_process_is_there() {
        let own = i32::try_from(std::process::id()).expect("a process id");
        let table = every_process();
        assert!(table.get(&own).is_some_and(|entry| entry.began > 0 && entry.parent > 0), "{table:?}");
    }
}
