//! The clock of `slow` calls: one thread, started on first use, however many calls run.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use serde_json::value::RawValue;

use super::message::Id;
use super::output::Output;
use super::reply::Reply;

/// How many calls may run at once.
const MAX: usize = 4096;

/// One call on its way.
pub(super) struct Slow {
    /// Whom to answer at the end.
    pub(super) reply: Reply,
    /// Where progress goes, if the client wants it.
    pub(super) token: Option<Box<RawValue>>,
    /// How many steps the call has.
    pub(super) steps: u32,
    /// How long each takes.
    pub(super) step_time: Duration,
}

/// All calls on their way.
pub(super) struct Clock {
    shared: Arc<Shared>,
    started: bool,
}

struct Shared {
    output: Arc<Output>,
    calls: Mutex<Calls>,
    /// Rung when a call may be due sooner than the thread sleeps.
    changed: Condvar,
}

#[derive(Default)]
struct Calls {
    /// By the moment of the next step; the number keeps equal moments apart.
    waiting: BTreeMap<(Instant, u64), (u32, Slow)>,
    number: u64,
    /// The call whose step is being written, outside `waiting` and without the lock.
    /// A cancellation empties it, so that the call is not put back.
    stepping: Option<Id>,
}

impl Clock {
    /// A clock whose calls report to `output`.
    pub(super) fn new(output: Arc<Output>) -> Self {
        let shared = Shared { output, calls: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), started: false }
    }

    /// Takes a call, or gives it back if too many run.
    pub(super) fn start(&mut self, call: Slow) -> Result<(), Slow> {
        let mut calls = self.shared.lock();
        if calls.waiting.len() >= MAX || !self.started && !spawn(&self.shared) {
            return Err(call);
        }
        self.started = true;
        calls.put(Instant::now() + call.step_time, 0, call);
        drop(calls);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Ends the calls with this id, which then have no answer (utilities, "Cancellation").
    pub(super) fn cancel(&self, id: &Id) {
        let mut calls = self.shared.lock();
        calls.waiting.retain(|_, (_, call)| call.reply.id() != id);
        calls.stepping.take_if(|stepping| stepping == id);
    }
}

fn spawn(shared: &Arc<Shared>) -> bool {
    let shared = Arc::clone(shared);
    // Detached: it holds nothing but memory, and the process ends when its stdin does.
    thread::Builder::new().name("clock".to_owned()).spawn(move || shared.run()).is_ok()
}

impl Calls {
    fn put(&mut self, due: Instant, done: u32, call: Slow) {
        self.number += 1;
        self.waiting.insert((due, self.number), (done, call));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().expect("nothing panics while it holds the calls")
    }

    fn run(&self) {
        loop {
            let (due, done, call) = self.next();
            let done = done + 1;
            if let Some(token) = &call.token {
                progress(&self.output, token, done, call.steps);
            }
            if done < call.steps {
                let mut calls = self.lock();
                // From when it was due, so that steps do not drift.
                if calls.stepping.take().is_some() {
                    calls.put(due + call.step_time, done, call);
                }
            } else if self.lock().stepping.take().is_some() {
                let text = format!("done in {} steps", call.steps);
                call.reply.result(&json!({ "content": [{ "type": "text", "text": text }] }));
            }
            // A failure is kept in mind by the reader's next flush or shows there again.
            let _ = self.output.flush();
        }
    }

    /// Waits for the next step that is due.
    fn next(&self) -> (Instant, u32, Slow) {
        let mut calls = self.lock();
        loop {
            let now = Instant::now();
            let wait = match calls.waiting.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let due = first.key().0;
                    let (done, call) = first.remove();
                    calls.stepping = Some(call.reply.id().clone());
                    return (due, done, call);
                }
                Some(first) => Some(first.key().0 - now),
                None => None,
            };
            // Without a call, until one is started: a second more or less of sleep is no harm.
            let wait = wait.unwrap_or(Duration::from_secs(3600));
            (calls, _) = self.changed.wait_timeout(calls, wait).expect("nothing panics while it holds the calls");
        }
    }
}

/// Appends one progress notification (utilities, "Progress").
pub(super) fn progress(output: &Output, token: &RawValue, done: u32, total: u32) {
    output.line(|line| {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{done},"total":{total}}}}}"#
        );
        line.extend_from_slice(text.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use serde_json::Value;
    use serde_json::value::RawValue;

    use super::{Clock, Slow};
    use crate::cli::demo_server::message::Id;
    use crate::cli::demo_server::output::Output;
    use crate::cli::demo_server::reply::{Destination, Reply};

    /// Far beyond what any step here takes.
    const LONG: Duration = Duration::from_secs(20);

    struct Writes(Sender<Vec<u8>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn clock() -> (Arc<Output>, Clock, Receiver<Vec<u8>>) {
        let (sender, receiver) = channel();
        let output = Arc::new(Output::new(Box::new(Writes(sender))));
        (Arc::clone(&output), Clock::new(output), receiver)
    }

    fn start(clock: &mut Clock, output: &Arc<Output>, id: &str, token: Option<&str>, step_time: Duration) {
        let id = Id::new(&raw(id)).unwrap();
        let reply = Reply::new(id, Destination::Line(Arc::clone(output)));
        let call = Slow { reply, token: token.map(raw), steps: 2, step_time };
        assert!(clock.start(call).is_ok());
    }

    fn next(writes: &Receiver<Vec<u8>>) -> Vec<Value> {
        let bytes = writes.recv_timeout(LONG).unwrap();
        String::from_utf8(bytes).unwrap().lines().map(|line| line.parse().unwrap()).collect()
    }

    #[test]
    fn steps_report_progress_and_the_last_one_answers() {
        let (output, mut clock, writes) = clock();
        start(&mut clock, &output, "7", Some("\"t\""), Duration::from_millis(1));
        let first = next(&writes);
        assert_eq!(first[0]["params"]["progressToken"], "t");
        assert_eq!(first[0]["params"]["progress"], 1);
        let last = next(&writes);
        assert_eq!(last[0]["params"]["progress"], 2);
        assert_eq!(last[1]["id"], 7);
    }

    #[test]
    fn a_sooner_call_overtakes_and_a_cancelled_one_is_silent() {
        let (output, mut clock, writes) = clock();
        start(&mut clock, &output, "1", None, LONG * 10);
        start(&mut clock, &output, "2", None, Duration::from_millis(50));
        clock.cancel(&Id::new(&raw("2")).unwrap());
        start(&mut clock, &output, "3", None, Duration::from_millis(100));
        assert_eq!(next(&writes)[0]["id"], 3);
        assert_eq!(clock.shared.lock().waiting.len(), 1);
    }
}
