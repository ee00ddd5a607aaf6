//! Children: starting them, their pipes, their end.
//!
//! A [`Command`] goes to the [`Spawner`], whose one thread does every fork, and comes back as a
//! [`Child`]. From then on one task owns the process: it alone signals and reaps it, so that no
//! signal can reach a stranger who got the same process id. Where that task cannot go on (its
//! child was dropped, its runtime ended) the process falls to the spawner's thread, which kills
//! and reaps it. What a child leaves behind, in its group or out of it, ends with it: `reaper` finds it by its
//! session, its environment or its age, and a control group of the child's own holds it where there is one.
//! [`LineSplitter`] turns what a child writes into bounded lines.

mod backlog;
mod child;
#[cfg(target_os = "linux")]
mod clone_into_group;
mod command;
mod control_group;
pub mod conversation;
mod delegation;
mod exit;
mod fork;
mod identity;
#[cfg_attr(not(target_os = "linux"), path = "landlock_absent.rs")]
mod landlock;
mod last_words;
#[cfg_attr(not(target_os = "linux"), path = "launch_by_fork.rs")]
mod launch;
pub mod lease;
pub mod lifespan;
mod line;
mod living;
mod oom_kills;
mod orphans;
pub mod outbound;
mod own_process;
pub mod own_request;
pub mod participant;
#[cfg(test)]
pub(super) mod played;
pub mod pool;
mod process;
mod process_table;
mod reading;
#[cfg_attr(not(target_os = "linux"), path = "reaper_absent.rs")]
mod reaper;
mod room;
pub mod scout;
mod spawn_error;
mod spawner;
mod start_files;
mod stderr;
mod step;
#[cfg(test)]
mod tests;
mod token_bucket;
mod wide_pipe;

pub use child::{Child, StopReport};
pub use command::{Command, StderrCount, environment};
pub use exit::{Ending, Exit};
pub use line::{Line, LineSplitter};
pub use living::Living;
pub use own_process::{DescriptorLimit, adopt_orphans, make_process_undumpable, raise_descriptor_limit};
pub use room::Room;
pub use spawn_error::{SpawnError, SpawnFailure};
pub use spawner::{Lacks, Spawner};
pub use stderr::LastLines;
