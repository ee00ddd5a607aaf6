//! The thread on which every fork happens.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Rlimit};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::child::{Child, Pipes};
use super::command::Command;
use super::control_group::{ControlGroup, ControlGroups};
use super::delegation::{Delegated, NotDelegated};
use super::fork::{Bounds, Entrance, Preparation};
use super::identity::{Identity, NoIdentity};
use super::landlock::Ruleset;
use super::launch::launch;
use super::living::Living;
use super::oom_kills::OomKills;
use super::orphans::MARK;
use super::own_process::inherited_descriptor_limit;
use super::process::{EndWatch, Process, bury};
use super::reaper::{Reaper, Remains};
use super::spawn_error::{SpawnError, SpawnFailure, found};
use super::stderr::Stderr;
use crate::config::UserName;

/// How often processes that were handed over are looked at; they were sent SIGKILL.
const BURY_INTERVAL: Duration = Duration::from_millis(5);

/// Starts children, all from one thread.
///
/// A parent-death signal is sent when the *thread* that forked ends, so no thread of a pool may
/// fork. This one lives as long as any clone of the spawner and any child. Forks are therefore
/// one after the other, each until the new program runs.
#[derive(Clone, Debug)]
pub struct Spawner {
    orders: mpsc::Sender<Order>,
    living: Living,
    oom_kills: Arc<OomKills>,
    scope: Option<Arc<Ruleset>>,
    /// `None` where what children leave behind is left alone.
    reaper: Option<Reaper>,
    groups: Option<Arc<ControlGroups>>,
}

/// What the system does not have to keep children in bounds.
#[derive(Clone, Debug, Default)]
pub struct Lacks {
    /// Why orphans are not adopted; `None` if they are.
    pub orphans: Option<String>,
    /// Why children have no control groups; `None` if they have.
    pub group: Option<String>,
    /// Whether a group's processes cannot be limited.
    pub pids: bool,
    /// Whether a group's memory cannot be limited.
    pub memory: bool,
}

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Start a child.
    Start(Box<Start>),
    /// Kill and reap a process whose owner is gone.
    Bury(Pid, Remains),
}

#[derive(Debug)]
pub(super) struct Start {
    command: Command,
    /// Keeps the thread, and the ruleset, for the child's life.
    spawner: Spawner,
    answer: oneshot::Sender<Result<(Process, Ends), SpawnError>>,
}

/// The gateway's ends of a child's three pipes.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Spawner {
    /// Starts the thread. One per process is enough.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start() -> io::Result<Self> {
        Self::start_with(OomKills::of_this_process())
    }

    pub(super) fn start_with(oom_kills: Arc<OomKills>) -> io::Result<Self> {
        keep_ended_children()?;
        let (orders, inbox) = mpsc::channel();
        std::thread::Builder::new().name("spawner".into()).spawn(move || serve(&inbox))?;
        let scope = Ruleset::of_scopes().map(Arc::new);
        Ok(Self { orders, living: Living::default(), oom_kills, scope, reaper: None, groups: None })
    }

    /// As [`Spawner::start`], and if this process [adopts orphans](super::adopt_orphans) sees to what children leave
    /// behind. Gives too what the system does not have for that.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start_with_reaper() -> io::Result<(Self, Lacks)> {
        let mut spawner = Self::start()?;
        let delegated = Delegated::find();
        let base = delegated.as_ref().ok().map(|delegated| delegated.base.clone());
        let reaper = Reaper::start(base);
        let groups = match (&reaper, delegated) {
            (Ok(_), Ok(delegated)) => ControlGroups::create(&delegated),
            (Err(_), Ok(_)) => Err(NotDelegated::Absent),
            (_, Err(why)) => Err(why),
        };
        let lacks = Lacks {
            orphans: reaper.as_ref().err().map(ToString::to_string),
            group: groups.as_ref().err().map(ToString::to_string),
            pids: !groups.as_ref().is_ok_and(|groups| groups.has_pids),
            memory: !groups.as_ref().is_ok_and(|groups| groups.has_memory),
        };
        spawner.reaper = reaper.ok();
        spawner.groups = groups.ok().map(Arc::new);
        Ok((spawner, lacks))
    }

    #[cfg(test)]
    pub(super) fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    #[cfg(test)]
    pub(super) fn do_without_groups(&mut self) {
        self.groups = None;
    }

    /// Reaps orphans whenever some child of this process ends. Never returns where there is something to do.
    pub async fn reap_orphans(&self) {
        let Some(reaper) = &self.reaper else { return };
        let Ok(mut ends) = signal(SignalKind::child()) else { return };
        while ends.recv().await.is_some() {
            reaper.look();
        }
    }

    /// Whether children can be put into a Landlock domain. If not, those that ask for one run without.
    #[must_use]
    pub fn scope_supported(&self) -> bool {
        self.scope.is_some()
    }

    /// The processes it started that are not reaped yet.
    #[must_use]
    pub fn living(&self) -> &Living {
        &self.living
    }

    /// Starts one child. Needs a tokio runtime. If the future is dropped, so is the child.
    ///
    /// # Errors
    /// See [`SpawnFailure`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn spawn(&self, command: Command) -> Result<Child, SpawnError> {
        let (answer, started) = oneshot::channel();
        let (server, count) = (Arc::clone(&command.server), command.stderr_count.clone());
        let known = command.known_secrets.clone();
        let program = command.program.clone();
        let failed = |error| SpawnError::new(SpawnFailure::of(&error), &program, error);
        let order = Start { command, spawner: self.clone(), answer };
        // The thread ends only after its last sender, and answers every order.
        let gone = || failed(io::Error::other("the spawner's thread is gone"));
        self.orders.send(Order::Start(Box::new(order))).map_err(|_| gone())?;
        let (process, ends) = started.await.map_err(|_| gone())??;
        let stderr = pipe::Receiver::from_owned_fd(ends.stderr).map_err(failed)?;
        let pipes = Pipes {
            stdin: pipe::Sender::from_owned_fd(ends.stdin).map_err(failed)?,
            stdout: pipe::Receiver::from_owned_fd(ends.stdout).map_err(failed)?,
            stderr: Stderr::new(stderr, server, process.pid(), count, known.clone()),
        };
        let end = EndWatch::new(process.pid()).map_err(failed)?;
        Ok(Child::new(process, end, pipes, known))
    }
}

/// With SIGCHLD ignored, which is inherited through exec, the kernel would reap children by itself:
/// their exit status would be lost and their ids free while still in use here.
fn keep_ended_children() -> io::Result<()> {
    // SAFETY: both structs are live locals, for which zero is a valid value; an installed handler
    // is left alone, so no code is taken away from anyone.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGCHLD, std::ptr::null(), &raw mut action) != 0 {
            return Err(io::Error::last_os_error());
        }
        if action.sa_sigaction == libc::SIG_IGN || action.sa_flags & libc::SA_NOCLDWAIT != 0 {
            action.sa_flags &= !libc::SA_NOCLDWAIT;
            if action.sa_sigaction == libc::SIG_IGN {
                action.sa_sigaction = libc::SIG_DFL;
            }
            if libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// The thread: starts what is ordered and buries what was left behind, until nobody can ask.
fn serve(inbox: &mpsc::Receiver<Order>) {
    let mut left_behind: Vec<(Pid, Remains)> = Vec::new();
    let mut identities = HashMap::new();
    loop {
        let order = if left_behind.is_empty() {
            inbox.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
        } else {
            inbox.recv_timeout(BURY_INTERVAL)
        };
        match order {
            Ok(Order::Start(start)) => {
                let Start { command, spawner, answer } = *start;
                // Nobody waiting: the process in the unsent answer is dropped, and comes back here.
                let _ = answer.send(fork(command, &spawner, &mut identities));
            }
            Ok(Order::Bury(pid, remains)) => left_behind.push((pid, remains)),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) if left_behind.is_empty() => return,
            Err(mpsc::RecvTimeoutError::Disconnected) => std::thread::sleep(BURY_INTERVAL),
        }
        let buried = left_behind.extract_if(.., |(pid, _)| bury(*pid));
        buried.for_each(|(_, remains)| remains.hand_over());
    }
}

/// Forks and waits until the new program runs or has failed to.
fn fork(mut command: Command, spawner: &Spawner, identities: &mut Identities) -> Result<(Process, Ends), SpawnError> {
    let identity = command.sandbox.user.clone().map(|user| find_identity(user, identities));
    let identity = identity.transpose().map_err(|why| SpawnError::no_identity(&command, why))?;
    if let Some(identity) = &identity {
        identity.name_in(&mut command.environment);
    }
    let ruleset = spawner.ruleset(&command)?;
    let group = spawner.group(&command)?;
    let ways_in = group.as_ref().map(ControlGroup::ways_in).transpose();
    let ways_in = ways_in.map_err(|error| SpawnError::no_group(&command, error))?;
    let held = |has: fn(&ControlGroups) -> bool| group.is_some() && spawner.groups.as_deref().is_some_and(has);
    let preparation = Preparation::new(Bounds {
        descriptors: match command.sandbox.nofile {
            Some(most) => Some(Rlimit { current: Some(most), maximum: Some(most) }),
            None => inherited_descriptor_limit(),
        },
        processes: command.sandbox.nproc.filter(|_| !held(|groups| groups.has_pids)),
        address_space: command.sandbox.memory.filter(|_| !held(|groups| groups.has_memory)),
        umask: command.sandbox.umask,
        identity: identity.filter(|identity| !identity.is_own()),
        group: ways_in
            .as_ref()
            .map(|[folder, processes]| Entrance { folder: folder.as_raw_fd(), processes: processes.as_raw_fd() }),
        ruleset: ruleset.as_ref().map(|ruleset| ruleset.descriptor()),
    });
    let oom = spawner.oom_kills.mark();
    let counted = spawner.living.one();
    let (pid, ends, remains) = match &spawner.reaper {
        Some(reaper) => {
            let mark: u128 = rand::random();
            command.environment.push((MARK.into(), format!("{mark:032x}").into()));
            let birth = reaper.birth();
            let (pid, ends) = launch(&command, &preparation).map_err(|error| SpawnError::diagnose(&command, error))?;
            (pid, ends, birth.of(pid, mark, group, counted))
        }
        None => {
            let (pid, ends) = launch(&command, &preparation).map_err(|error| SpawnError::diagnose(&command, error))?;
            (pid, ends, Remains::unwatched(counted))
        }
    };
    let mut process = Process::new(pid, remains, oom, spawner.orders.clone());
    if let Some(metrics) = &command.metrics {
        process.measure(metrics);
    }
    Ok((process, ends))
}

/// Users that were found. The user database may be in the network, and changes rarely.
type Identities = HashMap<UserName, Identity>;

fn find_identity(user: UserName, found: &mut Identities) -> Result<Identity, NoIdentity> {
    let identity = match found.entry(user) {
        Entry::Occupied(entry) => entry.get().clone(),
        Entry::Vacant(entry) => {
            let identity = Identity::resolve(entry.key())?;
            entry.insert(identity).clone()
        }
    };
    identity.check().map(|()| identity)
}

impl Spawner {
    /// The Landlock ruleset for `command`: the one of all, unless it has rules of its own, whose paths are looked up anew
    /// because a rule is about the file that is there now.
    fn ruleset(&self, command: &Command) -> Result<Option<Arc<Ruleset>>, SpawnError> {
        let sandbox = &command.sandbox;
        if !sandbox.restricts_files() {
            return Ok(self.scope.clone().filter(|_| sandbox.scope));
        }
        let program = found(command);
        let ruleset = Ruleset::of_files(&sandbox.read, &sandbox.write, program.as_deref(), sandbox.scope);
        ruleset.map(|ruleset| Some(Arc::new(ruleset))).map_err(|why| SpawnError::no_file_rules(command, why))
    }

    /// A control group for `command`. Where none can be made it does without, unless that would lift a limit.
    fn group(&self, command: &Command) -> Result<Option<ControlGroup>, SpawnError> {
        let Some(groups) = &self.groups else { return Ok(None) };
        let sandbox = &command.sandbox;
        let is_limit = (groups.has_pids && sandbox.nproc.is_some()) || (groups.has_memory && sandbox.memory.is_some());
        match groups.child(sandbox) {
            Ok(group) => Ok(Some(group)),
            Err(error) if is_limit => Err(SpawnError::no_group(command, error)),
            Err(_) => Ok(None),
        }
    }
}
