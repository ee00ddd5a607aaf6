//! `/proc/PID/stat`: what the kernel says about one process in one line (proc_pid_stat(5)).

use std::fs;

/// What the kernel counts in.
#[derive(Clone, Copy)]
pub(super) struct Units {
    pub(super) ticks_per_second: u64,
    pub(super) page_bytes: u64,
}

/// The fields used here, in the kernel's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) group: i32,
    pub(super) user_ticks: u64,
    pub(super) system_ticks: u64,
    /// Those of descendants that ended and were waited for.
    pub(super) waited_ticks: u64,
    /// Ticks from boot to the start of the process.
    pub(super) started_ticks: u64,
    pub(super) virtual_bytes: u64,
    pub(super) resident_pages: u64,
}

impl Units {
    pub(super) fn of_this_machine() -> Self {
        Units {
            ticks_per_second: rustix::param::clock_ticks_per_second(),
            page_bytes: rustix::param::page_size() as u64,
        }
    }

    pub(super) fn seconds(self, ticks: u64) -> f64 {
        ticks as f64 / self.ticks_per_second as f64
    }
}

impl Stat {
    /// That of a process, by its id or as `self`; `None` once there is no such process.
    pub(super) fn read(process: &str) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// The command stands in brackets and may itself hold spaces and brackets, so counting begins
    /// after the last closing one: the next field is number 3.
    fn parse(text: &str) -> Option<Stat> {
        let (_, after_command) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_command.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            group: fields.get(5 - 3)?.parse().ok()?,
            user_ticks: field(14)?,
            system_ticks: field(15)?,
            waited_ticks: field(16)? + field(17)?,
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Stat;

    #[test]
    fn a_command_with_brackets_and_spaces_does_not_shift_the_fields() {
        let line = "7 (a) b (c)) S 1 6 7 0 -1 4194560 100 0 0 0 11 12 13 14 20 0 1 0 300 4096000 250 184 1 1 0";
        let stat = Stat {
            group: 6,
            user_ticks: 11,
            system_ticks: 12,
            waited_ticks: 27,
            started_ticks: 300,
            virtual_bytes: 4_096_000,
            resident_pages: 250,
        };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse("7 (cut) S 1 2"), None);
        assert_eq!(Stat::parse(""), None);
    }
}
