//! What a reader that stopped costs the others: `cargo bench --bench slow_reader`.
//!
//! One session calls all the while. Another one asks for 100 MB of notifications and reads none of them: its child is
//! held up until `limits.write_stall` (here 1 s) cuts the reader, then it writes on and everything is dropped but what
//! is kept for a resume. Each round compares the caller's latencies with those of a quiet gateway just before; after
//! the flood the machine's processors belong to the child, the gateway and the caller together.
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
    eprintln!("slow_reader: {GANGWAY} can be measured on Linux only");
}

#[cfg(target_os = "linux")]
mod measure {
    use std::io::{self, Write};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use crate::gateway::{Gateway, Session};
    use crate::lane::{Lane, Sample, pump};
    use crate::request::ECHO;

    const ROUNDS: usize = 5;
    const MIB: f64 = 1024.0 * 1024.0;
    /// Of one measurement: the stall, and the flood after it.
    const LENGTH: Duration = Duration::from_secs(3);
    /// Between the caller's requests: a load that leaves the processors to the flood.
    const PAUSE: Duration = Duration::from_millis(1);
    /// Notifications, and bytes of each.
    const FLOOD: (usize, usize) = (100_000, 1000);

    /// What one round gave.
    struct Round {
        quiet: f64,
        flooded: f64,
        /// In MiB.
        growth: f64,
    }

    /// Measures round after round, each with a gateway of its own.
    pub(super) fn run() -> io::Result<()> {
        println!("{:<8}{:>14}{:>14}{:>8}{:>14}", "round", "quiet p99", "flooded p99", "ratio", "growth");
        let mut rounds = Vec::new();
        for number in 1..=ROUNDS {
            let round = round()?;
            println!(
                "{number:<8}{:>11.0} us{:>11.0} us{:>8.2}{:>10.1} MiB",
                round.quiet,
                round.flooded,
                round.flooded / round.quiet,
                round.growth
            );
            rounds.push(round);
        }
        let mut ratios: Vec<f64> = rounds.iter().map(|round| round.flooded / round.quiet).collect();
        ratios.sort_by(f64::total_cmp);
        let most = rounds.iter().map(|round| round.growth).fold(0.0, f64::max);
        println!("median ratio {:.2} (target 1.5), most growth {most:.1} MiB (target 8)", ratios[ROUNDS / 2]);
        Ok(())
    }

    fn round() -> io::Result<Round> {
        let gateway = Gateway::start_with("write_stall = \"1s\"")?;
        let (caller, stopped) = (gateway.open()?, gateway.open()?);
        // Warm, so that what the caller itself needs is there before.
        call(&gateway, &caller, LENGTH / 4)?;
        let quiet = call(&gateway, &caller, LENGTH)?.percentile(99);
        let before = gateway.process.resident()?;
        let (count, bytes) = FLOOD;
        let message = "x".repeat(bytes);
        let flood = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"log","arguments":{{"count":{count},"message":"{message}"}}}}}}"#
        );
        (&stopped.stream).write_all(&gateway.request(&stopped, &flood))?;
        let over = AtomicBool::new(false);
        let (flooded, highest) = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut highest = before;
                while !over.load(Ordering::Relaxed) {
                    highest = gateway.process.resident()?.max(highest);
                    thread::sleep(Duration::from_millis(5));
                }
                io::Result::Ok(highest)
            });
            let flooded = call(&gateway, &caller, LENGTH);
            over.store(true, Ordering::Relaxed);
            (flooded, watch.join().unwrap_or_else(|_| Err(io::Error::other("the watch panicked"))))
        });
        if !gateway.log()?.contains(r#""tool":"log""#) {
            return Err(io::Error::other("the flood did not end while it was measured"));
        }
        let growth = (highest? - before) as f64 / MIB;
        Ok(Round { quiet, flooded: flooded?.percentile(99), growth })
    }

    /// Calls again and again, one at a time.
    fn call(gateway: &Gateway, session: &Session, length: Duration) -> io::Result<Sample> {
        let mut lanes = [Lane::http(&session.stream, gateway.request(session, ECHO))?];
        let end = Instant::now() + length;
        let mut whole: Option<Sample> = None;
        while Instant::now() < end {
            // One call: a pump that is over at once.
            let one = pump(&mut lanes, Duration::ZERO)?;
            match &mut whole {
                Some(whole) => whole.add(one),
                None => whole = Some(one),
            }
            thread::sleep(PAUSE);
        }
        whole.ok_or_else(|| io::Error::other("no time to measure in"))
    }
}
