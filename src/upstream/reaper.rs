//! The thread that sees to what children leave behind.
//!
//! The gateway is the reaper of its descendants: whoever loses its parent comes to it. What has ended is reaped at
//! once, else it would stay as a zombie; what a child leaves running ends with the child, also when it left the
//! child's process group. See `orphans` for whose a process is, `control_group` for the surer way where there is one.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, child_subreaper, pidfd_open, pidfd_send_signal, waitid,
};
use tracing::warn;

use super::control_group::{ControlGroup, remove_abandoned};
use super::living::Counted;
use super::orphans::{Families, Kin, MARK};
use super::process_table::{Entry, every_process, own_children, process, variable};

/// Pause between two looks at what an ended child left.
const PAUSE: Duration = Duration::from_millis(20);
/// So many looks in a row must find nothing: who forks during one may be missed by it.
const CLEAN_LOOKS: u32 = 2;
/// After this long what is left cannot be killed; the kernel holds it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A way to the thread; it lives as long as any clone.
#[derive(Clone, Debug)]
pub(super) struct Reaper {
    inbox: mpsc::Sender<Word>,
    kin: Arc<Mutex<HashMap<i32, Kin>>>,
}

#[derive(Debug)]
enum Word {
    /// Some child of this process ended.
    Look,
    /// A child was reaped.
    Ended(Box<Remains>),
}

/// What there is of a child beside its process, from its start until nothing of it is left.
#[derive(Debug)]
pub(super) struct Remains {
    /// `None` where nobody looks for orphans.
    kin: Option<(Kin, Reaper)>,
    pub(super) group: Option<ControlGroup>,
    counted: Option<Counted>,
}

impl Remains {
    /// Of a child for which nobody looks.
    pub(super) fn unwatched(counted: Counted) -> Self {
        Self { kin: None, group: None, counted: Some(counted) }
    }

    /// Hands what is left of a reaped child to the thread.
    pub(super) fn hand_over(mut self) {
        if let Some((_, reaper)) = &self.kin {
            let inbox = reaper.inbox.clone();
            // The thread outlives every sender, so this arrives.
            let _ = inbox.send(Word::Ended(Box::new(self)));
        } else {
            self.counted = None;
        }
    }
}

impl Reaper {
    /// Starts the thread; this process must have been made the reaper of its descendants.
    ///
    /// # Errors
    /// It was not, or the system has no thread to give.
    pub(super) fn start(abandoned: Option<PathBuf>) -> io::Result<Self> {
        if child_subreaper()?.is_none() {
            return Err(io::Error::other("orphans are not handed to this process"));
        }
        let own = rustix::process::getpid();
        let (sender, inbox) = mpsc::channel();
        let kin = Arc::default();
        let own = own.as_raw_nonzero().get();
        // Children of whoever became the gateway by exec; and the first process is handed everybody's orphans.
        let alone = own != 1 && own_children().is_some_and(|children| children.is_empty());
        let thread = Thread { inbox, kin: Arc::clone(&kin), own, alone, ended: Vec::new() };
        std::thread::Builder::new().name("reaper".into()).spawn(move || {
            if let Some(home) = abandoned {
                remove_abandoned(&home);
            }
            thread.serve();
        })?;
        Ok(Self { inbox: sender, kin })
    }

    /// Children of this process that are known; nobody but the thread reaps others, and not while this is held.
    pub(super) fn birth(&self) -> Birth<'_> {
        Birth { kin: lock(&self.kin), reaper: self }
    }

    /// Reaps what came to the gateway and ended. To be called after each SIGCHLD.
    pub(super) fn look(&self) {
        let _ = self.inbox.send(Word::Look);
    }
}

/// Held while a child is started: until it is known, nobody may take it for an orphan.
pub(super) struct Birth<'a> {
    kin: MutexGuard<'a, HashMap<i32, Kin>>,
    reaper: &'a Reaper,
}

impl Birth<'_> {
    /// Makes a started child known.
    pub(super) fn of(mut self, pid: Pid, mark: u128, group: Option<ControlGroup>, counted: Counted) -> Remains {
        let pid = pid.as_raw_nonzero().get();
        // It is not reaped yet, so it is there; and who cannot be looked at is taken for the eldest.
        let began = process(pid).map_or(0, |entry| entry.began);
        let kin = Kin { pid, mark, began };
        self.kin.insert(pid, kin);
        Remains { kin: Some((kin, self.reaper.clone())), group, counted: Some(counted) }
    }
}

fn lock(kin: &Mutex<HashMap<i32, Kin>>) -> MutexGuard<'_, HashMap<i32, Kin>> {
    kin.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child that has ended, until nothing of it is left.
struct Ended {
    kin: Kin,
    group: Option<ControlGroup>,
    _counted: Option<Counted>,
    since: Instant,
    clean_looks: u32,
}

struct Thread {
    inbox: mpsc::Receiver<Word>,
    kin: Arc<Mutex<HashMap<i32, Kin>>>,
    own: i32,
    alone: bool,
    ended: Vec<Ended>,
}

impl Thread {
    fn serve(mut self) {
        loop {
            let word = if self.ended.is_empty() {
                self.inbox.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
            } else {
                self.inbox.recv_timeout(PAUSE)
            };
            match word {
                Ok(word) => self.take(word),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) if self.ended.is_empty() => return,
                Err(mpsc::RecvTimeoutError::Disconnected) => std::thread::sleep(PAUSE),
            }
            // Many that end together cost one look.
            while let Ok(word) = self.inbox.try_recv() {
                self.take(word);
            }
            self.reap_orphans();
            if !self.ended.is_empty() {
                self.end_orphans();
            }
        }
    }

    fn take(&mut self, word: Word) {
        let Word::Ended(remains) = word else { return };
        let Remains { kin: Some((kin, _)), group, counted } = *remains else { return };
        let mut known = lock(&self.kin);
        // Its number may be another child's by now.
        if known.get(&kin.pid).is_some_and(|known| known.mark == kin.mark) {
            known.remove(&kin.pid);
        }
        drop(known);
        if let Some(group) = &group {
            group.kill();
        }
        self.ended.push(Ended { kin, group, _counted: counted, since: Instant::now(), clean_looks: 0 });
    }

    /// Reaps ended orphans. A child of the gateway's own that ended is its owner's to reap, and hides those behind it
    /// until then; its owner says so, and the next look goes on.
    fn reap_orphans(&self) {
        let known = lock(&self.kin);
        while let Some(pid) = ended_child() {
            if known.contains_key(&pid.as_raw_nonzero().get()) {
                return;
            }
            let _reaped = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }

    /// Kills what ended children left, and forgets those of whom nothing is left.
    fn end_orphans(&mut self) {
        let table = self.orphans_and_others();
        let families: Vec<Kin> = self.ended.iter().map(|ended| ended.kin).collect();
        // Whoever was started before the look is known from here on.
        let living: Vec<Kin> = lock(&self.kin).values().copied().collect();
        let families = Families { own: self.own, living: &living, ended: &families, alone: self.alone };
        let mark = |pid| variable(pid, MARK).and_then(|mark| u128::from_str_radix(&mark, 16).ok());
        let found = families.left_behind(&table, mark);
        for pid in &found {
            if let Some(entry) = table.get(pid) {
                kill(*pid, entry);
            }
        }
        for ended in &mut self.ended {
            ended.clean_looks = if found.is_empty() { ended.clean_looks + 1 } else { 0 };
        }
        self.ended.retain_mut(|ended| {
            let is_empty = ended.group.as_ref().is_none_or(ControlGroup::remove);
            let is_over = ended.clean_looks >= CLEAN_LOOKS && is_empty;
            let is_hopeless = ended.since.elapsed() > PATIENCE;
            if is_hopeless && !is_over {
                let warning = "the kernel has not ended every process of a child that was killed";
                warn!(event = "warning", child_pid = ended.kin.pid, warning);
            }
            !is_over && !is_hopeless
        });
    }

    /// Every process, if there is an orphan; the look at the own children alone is cheap.
    fn orphans_and_others(&self) -> HashMap<i32, Entry> {
        let children = own_children();
        let known = lock(&self.kin);
        if children.is_some_and(|children| children.iter().all(|pid| known.contains_key(pid))) {
            return HashMap::new();
        }
        drop(known);
        every_process()
    }
}

/// A child of this process that ended and was not reaped; it stays unreaped.
fn ended_child() -> Option<Pid> {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the struct is a live local, for which zero is a valid value and means that there is none.
    unsafe {
        let mut status: libc::siginfo_t = std::mem::zeroed();
        if libc::waitid(libc::P_ALL, 0, &raw mut status, options) < 0 { None } else { Pid::from_raw(status.si_pid()) }
    }
}

/// Kills the very process that was looked at: its number may have become another's, the descriptor's process cannot.
fn kill(pid: i32, entry: &Entry) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if process(pid.as_raw_nonzero().get()).is_some_and(|now| now.began == entry.began) {
        // Fails if it has just ended, or belongs to a user the gateway may not signal.
        let _ = pidfd_send_signal(descriptor, Signal::KILL);
    }
}
