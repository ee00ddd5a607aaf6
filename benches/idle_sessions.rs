//! What sessions that do nothing cost: `cargo bench --bench idle_sessions`.
//!
//! A hundred sessions call all the while, on four shared children; then 9,900 more are opened that do nothing, with an
//! open stream each or without. Measured are the callers' latencies with and without them, and the memory they take.
//! Needs 10,000 descriptors for itself and as many for the gateway.
//!
//! It judges nothing: the project's targets stand beside the numbers, and the exit status is 0.

#[cfg(target_os = "linux")]
#[path = "bridge/answer.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod answer;
#[cfg(target_os = "linux")]
#[path = "bridge/gateway.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod gateway;
#[cfg(target_os = "linux")]
#[path = "bridge/http.rs"]
mod http;
#[cfg(target_os = "linux")]
#[path = "bridge/lane.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod lane;
#[cfg(target_os = "linux")]
#[path = "bridge/process.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod process;
#[cfg(target_os = "linux")]
#[path = "bridge/request.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod request;

/// The binary under measurement.
const GANGWAY: &str = env!("CARGO_BIN_EXE_gangway");

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    measure::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("idle_sessions: {GANGWAY} can be measured on Linux only");
}

#[cfg(target_os = "linux")]
mod measure {
    use std::io::{self, BufRead, BufReader, Write};
    use std::net::TcpStream;
    use std::thread;
    use std::time::Duration;

    use crate::gateway::{Gateway, PATH, Session};
    use crate::lane::{Lane, pump};
    use crate::request::ECHO;

    const ROUNDS: usize = 3;
    const CALLING: usize = 100;
    const IDLE: usize = 9_900;
    /// Of one measurement.
    const LENGTH: Duration = Duration::from_secs(3);
    /// After everybody came, before it is measured what they take.
    const REST: Duration = Duration::from_secs(2);

    /// What one round gave.
    struct Round {
        alone: f64,
        crowded: f64,
        /// Bytes of an idle session.
        each: u64,
    }

    /// Measures round after round, each with a gateway of its own: with a stream for each idle session, and without.
    pub(super) fn run() -> io::Result<()> {
        for has_stream in [true, false] {
            let (what, most) = if has_stream { ("with an open stream", 28) } else { ("without a stream", 4) };
            println!("{CALLING} sessions calling, {IDLE} idle {what}");
            println!("{:<8}{:>14}{:>14}{:>8}{:>16}", "round", "alone p99", "crowded p99", "ratio", "each idle");
            let mut ratios = Vec::new();
            for number in 1..=ROUNDS {
                let Round { alone, crowded, each } = round(has_stream)?;
                let ratio = crowded / alone;
                println!("{number:<8}{alone:>11.0} us{crowded:>11.0} us{ratio:>8.2}{:>12.1} KiB", each as f64 / 1024.0);
                ratios.push(ratio);
            }
            ratios.sort_by(f64::total_cmp);
            println!("median ratio {:.2} (target 1.5), an idle session (target {most} KiB)\n", ratios[ROUNDS / 2]);
        }
        Ok(())
    }

    fn round(has_stream: bool) -> io::Result<Round> {
        let gateway = Gateway::start_shared_with("connections = 20000\nconnections_per_address = 20000")?;
        let callers = (0..CALLING).map(|_| gateway.open()).collect::<io::Result<Vec<Session>>>()?;
        call(&gateway, &callers)?;
        let alone = call(&gateway, &callers)?;
        let before = gateway.process.resident()?;
        let streams = (0..IDLE).map(|_| idle(&gateway, has_stream)).collect::<io::Result<Vec<_>>>()?;
        thread::sleep(REST);
        let each = gateway.process.resident()?.saturating_sub(before) / IDLE as u64;
        let crowded = call(&gateway, &callers)?;
        drop(streams);
        Ok(Round { alone, crowded, each })
    }

    /// Opens a session that then does nothing; gives its stream, if it has one.
    fn idle(gateway: &Gateway, has_stream: bool) -> io::Result<Option<TcpStream>> {
        let session = gateway.open()?;
        if !has_stream {
            return Ok(None);
        }
        let Session { stream, id } = session;
        let address = gateway.address;
        let request = format!(
            "GET {PATH} HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\nmcp-session-id: {id}\r\n\r\n"
        );
        (&stream).write_all(request.as_bytes())?;
        let mut status = String::new();
        BufReader::with_capacity(64, &stream).read_line(&mut status)?;
        if !status.starts_with("HTTP/1.1 200") {
            return Err(io::Error::other(format!("no stream: {status}")));
        }
        Ok(Some(stream))
    }

    /// The 99th percentile of the callers' latencies, each with one call in flight.
    fn call(gateway: &Gateway, callers: &[Session]) -> io::Result<f64> {
        let lane = |caller: &Session| Lane::http(&caller.stream, gateway.request(caller, ECHO));
        let mut lanes = callers.iter().map(lane).collect::<io::Result<Vec<_>>>()?;
        Ok(pump(&mut lanes, LENGTH)?.percentile(99))
    }
}
