//! Who holds a TCP port, as far as `/proc` tells.

use std::fmt;
use std::fs;
use std::path::Path;

/// A process that listens on a port somebody else wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id in this namespace.
    pub pid: u32,
    /// File name of its program. Arguments are left out: they may hold secrets.
    pub command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.command, self.pid)
    }
}

/// Finds the process that listens on `port`; `None` where `/proc` is missing, belongs to somebody
/// else, or the process lives outside this namespace.
pub(super) fn find(port: u16) -> Option<Holder> {
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        holds(&entry.path(), &sockets).then(|| Holder { pid, command: command(&entry.path(), pid) })
    })
}

/// Inodes of the sockets in a `/proc/net/tcp` table that listen (state `0A`) on `port`.
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (_, local_port) = fields.nth(1)?.rsplit_once(':')?;
            let state = fields.nth(1)?;
            let inode = fields.nth(5)?.parse().ok()?;
            (state == "0A" && u16::from_str_radix(local_port, 16) == Ok(port)).then_some(inode)
        })
        .collect()
}

fn holds(process: &Path, sockets: &[String]) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    descriptors.flatten().any(|descriptor| {
        fs::read_link(descriptor.path())
            .is_ok_and(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()))
    })
}

fn command(process: &Path, pid: u32) -> String {
    let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
    let program = arguments.split(|byte| matches!(byte, 0 | b' ')).next().unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name: String = String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).take(64).collect();
    if name.is_empty() { format!("process {pid}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::{find, listening_inodes};

    #[test]
    fn reads_the_kernel_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n\
            1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 -1\n\
            2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0\n";
        assert_eq!(listening_inodes(table, 8080), [4711]);
        assert!(listening_inodes(table, 80).is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn finds_this_process() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let port = socket.local_addr().expect("a bound socket has an address").port();
        let holder = find(port).expect("our own descriptors are readable");
        assert_eq!(holder.pid, std::process::id());
        assert!(!holder.command.contains('/'), "{holder}");
    }
}
