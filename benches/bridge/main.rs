//! What the gateway costs beside what it is made of: `cargo bench --bench bridge`.
//!
//! Three ways to the same answers are measured in turn, round after round of one run, by one client:
//! a demo server over its own pipes, a bare hyper server in a process of its own, and a gateway
//! (default settings, access log to a file) in front of demo servers. What counts is the median over
//! the rounds of each round's ratio; absolute numbers are the machine's. Client, servers and children
//! share the processors, so on a small machine a ratio includes the children's work.
//!
//! It judges nothing: the project's targets stand beside the numbers, and the exit status is 0.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BRIDGE_ROUNDS` | rounds | 7 |
//! | `BRIDGE_SECONDS` | length of one measurement | 0.8 |
//! | `BRIDGE_ONLY` | measure only scenarios whose name contains this | |

#[cfg(target_os = "linux")]
mod answer;
#[cfg(target_os = "linux")]
mod bare;
#[cfg(target_os = "linux")]
mod bridge;
#[cfg(target_os = "linux")]
mod cpu;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "shared with the slow reader's bench")]
mod gateway;
#[cfg(target_os = "linux")]
mod http;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "shared with the slow reader's bench")]
mod lane;
#[cfg(target_os = "linux")]
mod native;
#[cfg(target_os = "linux")]
mod opening;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "shared with the sessions bench")]
mod process;
#[cfg(target_os = "linux")]
mod request;
#[cfg(target_os = "linux")]
mod table;

/// The binary under measurement.
const GANGWAY: &str = env!("CARGO_BIN_EXE_gangway");

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    bare::is_role().unwrap_or_else(bridge::run)
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("bridge: {GANGWAY} can be measured on Linux only");
}
