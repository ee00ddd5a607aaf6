//! What is left of sessions that have ended: `cargo bench --bench sessions`.
//!
//! Opens and closes 2,000 sessions in five batches, each session with a call, a stream and its own
//! child, and holds the gateway to this:
//!
//! - idle, before the first session, it is resident in at most 15 MiB;
//! - after each batch descriptors, threads and children are back at their start values, and within
//!   30 s memory is within 5 MiB of what it was before the first;
//! - memory does not grow from batch to batch once the second has been.
//!
//! Prints what it measured; the exit status is 1 if any of it does not hold.

#[cfg(target_os = "linux")]
#[path = "bridge/gateway.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod gateway;
#[cfg(target_os = "linux")]
#[path = "bridge/http.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod http;
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
fn main() -> std::io::Result<std::process::ExitCode> {
    soak::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("sessions: {GANGWAY} can be measured on Linux only");
}

#[cfg(target_os = "linux")]
mod soak {
    use std::io;
    use std::process::ExitCode;
    use std::time::{Duration, Instant};

    use crate::gateway::{Gateway, Session};
    use crate::process::Process;
    use crate::request::{BURST, ECHO};

    const BATCHES: usize = 5;
    const SESSIONS: usize = 400;
    const MIB: f64 = 1024.0 * 1024.0;
    /// Resident memory of an idle gateway, in MiB.
    const IDLE_MOST: f64 = 15.0;
    /// What may be left at the end, in MiB.
    const LEFT_MOST: f64 = 5.0;
    /// What may come between the second batch and the last, in MiB: pages of freed memory, not of kept.
    const GROWTH_MOST: f64 = 2.0;
    /// How long the allocator and the kernel may take.
    const SETTLE: Duration = Duration::from_secs(30);

    /// What a gateway holds.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Held {
        descriptors: u64,
        threads: u64,
        children: u64,
        /// Resident, in MiB.
        memory: f64,
    }

    impl Held {
        fn of(process: &Process) -> io::Result<Held> {
            Ok(Held {
                descriptors: process.descriptors()?,
                threads: process.threads()?,
                children: process.children()?,
                memory: process.resident()? as f64 / MIB,
            })
        }

        /// Whether everything that is counted is the same.
        fn counts_as(&self, other: &Held) -> bool {
            (self.descriptors, self.threads, self.children) == (other.descriptors, other.threads, other.children)
        }

        fn print(&self, when: &str) {
            println!(
                "{when:<14}{:>6} descriptors{:>5} threads{:>5} children{:>8.1} MiB",
                self.descriptors, self.threads, self.children, self.memory
            );
        }
    }

    /// Runs the batches; success is that nothing was left.
    pub(super) fn run() -> io::Result<ExitCode> {
        let gateway = Gateway::start()?;
        let start = settled(&gateway, |_| true)?;
        start.print("idle");
        let mut after = Vec::new();
        for batch in 1..=BATCHES {
            open_and_close(&gateway)?;
            gateway.await_idle()?;
            let held = settled(&gateway, |held| held.counts_as(&start) && held.memory <= start.memory + LEFT_MOST)?;
            held.print(&format!("batch {batch}"));
            after.push(held);
        }
        let end = settled(&gateway, |held| held.counts_as(&start) && held.memory <= start.memory + LEFT_MOST)?;
        end.print("end");
        let failures = [
            (start.memory > IDLE_MOST, format!("idle memory is above {IDLE_MOST} MiB")),
            (!after.iter().all(|held| held.counts_as(&start)), "a batch left something behind".to_owned()),
            (
                after[BATCHES - 1].memory > after[1].memory + GROWTH_MOST,
                format!("memory grew by more than {GROWTH_MOST} MiB after the second batch"),
            ),
            (end.memory > start.memory + LEFT_MOST, format!("more than {LEFT_MOST} MiB are left at the end")),
        ];
        let mut status = ExitCode::SUCCESS;
        for (_, what) in failures.iter().filter(|(failed, _)| *failed) {
            println!("FAILED: {what}");
            status = ExitCode::FAILURE;
        }
        Ok(status)
    }

    /// One batch: all its sessions open at once, half of the calls on event streams.
    fn open_and_close(gateway: &Gateway) -> io::Result<()> {
        let sessions = (0..SESSIONS).map(|_| gateway.open()).collect::<io::Result<Vec<Session>>>()?;
        for (number, session) in sessions.iter().enumerate() {
            gateway.call(session, if number % 2 == 0 { ECHO } else { BURST })?;
        }
        for session in &sessions {
            gateway.close(&session.stream, &session.id)?;
        }
        Ok(())
    }

    /// Looks until what is held is as wanted, for [`SETTLE`] at most.
    fn settled(gateway: &Gateway, wanted: impl Fn(&Held) -> bool) -> io::Result<Held> {
        let began = Instant::now();
        loop {
            let held = Held::of(&gateway.process)?;
            if wanted(&held) || began.elapsed() > SETTLE {
                return Ok(held);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
