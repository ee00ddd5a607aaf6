//! How many children and sessions this machine allows.

use crate::config::{self, Config, Mode};
use crate::gateway::Gateway;
use crate::server::Room;

/// Descriptors one child takes: three pipes and its process.
const DESCRIPTORS_PER_CHILD: u64 = 4;
/// Descriptors kept for listeners, the runtime and the log.
const DESCRIPTORS_RESERVED: u64 = 64;
/// Processes and threads one child is taken to have: a Node program has eleven, and often a shell above it.
const TASKS_PER_CHILD: u64 = 12;
/// Pipes of one child.
const PIPES_PER_CHILD: u64 = 3;

/// What the machine's limits allow; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineLimits {
    /// Descriptors.
    pub nofile: Option<u64>,
    /// Processes and threads.
    pub nproc: Option<u64>,
    /// Children that can run at once.
    pub children_max: Option<u64>,
    /// Children with pipes of full size.
    pub children_full_pipes: Option<u64>,
    /// Sessions that can be open at once, each with a stream.
    pub sessions_max: Option<u64>,
}

/// What is asked of the machine, and what it has.
struct Demand {
    nofile: Option<u64>,
    room: Room,
    /// Children of all servers.
    children: Option<u64>,
    /// Children that serve a session each.
    own: Option<u64>,
    /// Children that are shared, and the sessions they have room for.
    shared: (Option<u64>, Option<u64>),
    sessions: Option<u64>,
    /// Connections of clients, where the system allows fewer than are configured.
    connections: Option<u64>,
}

/// Connections of clients that leave enough descriptors for the servers' processes: as many as those may become, or
/// half of what there is; and a quarter of all, however few those are.
pub(super) fn connections_beside_children(nofile: u64, config: &Config) -> u64 {
    let room = nofile.saturating_sub(DESCRIPTORS_RESERVED);
    let children = children_of(config).map_or(u64::MAX, |children| children.saturating_mul(DESCRIPTORS_PER_CHILD));
    (room - children.min(room / 2)).max(nofile / 4)
}

/// Processes of all servers together; `None` is any number.
fn children_of(config: &Config) -> Option<u64> {
    config.servers.values().map(|server| most_children(server)).sum()
}

fn most_children(server: &config::Server) -> Option<u64> {
    server.pool.max_size.map(|max| max as u64)
}

fn most_sessions(server: &config::Server) -> Option<u64> {
    Some(most_children(server)?.saturating_mul(server.pool.max_sessions_per_child? as u64))
}

impl Demand {
    fn limits(&self) -> MachineLimits {
        let Self { nofile, room, children, .. } = self;
        let children_max = self.by_limit().into_iter().filter_map(|(most, _)| most).chain(*children).min();
        MachineLimits {
            nofile: *nofile,
            nproc: room.tasks,
            children_max,
            children_full_pipes: room.full_pipes.map(|pipes| pipes / PIPES_PER_CHILD),
            sessions_max: self.sessions_max(children_max),
        }
    }

    /// Each session has a connection for its stream, and some have a child of their own beside it.
    fn sessions_max(&self, children_max: Option<u64>) -> Option<u64> {
        let most = |number: Option<u64>| number.unwrap_or(u64::MAX);
        let (children, seats) = self.shared;
        let taken = most(children).min(most(children_max)).saturating_mul(DESCRIPTORS_PER_CHILD);
        let left = self.descriptors().map_or(u64::MAX, |room| room.saturating_sub(taken));
        let shared = most(seats).min(left);
        let own = most(self.own).min(most(children_max)).min((left - shared) / (DESCRIPTORS_PER_CHILD + 1));
        let sessions = shared.saturating_add(own).min(most(self.sessions));
        (sessions < u64::MAX).then_some(sessions)
    }

    fn descriptors(&self) -> Option<u64> {
        self.nofile.map(|limit| limit.saturating_sub(DESCRIPTORS_RESERVED))
    }

    /// How many children each limit allows, with what to raise for more.
    fn by_limit(&self) -> [(Option<u64>, &'static str); 3] {
        [
            (self.descriptors().map(|room| room / DESCRIPTORS_PER_CHILD), "LimitNOFILE (ulimit -n)"),
            (self.room.tasks.map(|tasks| tasks / TASKS_PER_CHILD), "TasksMax (pids.max, ulimit -u)"),
            (self.room.pipes.map(|pipes| pipes / PIPES_PER_CHILD), "fs.pipe-user-pages-hard"),
        ]
    }

    /// What will be missed when every child that is configured runs.
    fn warnings(&self) -> Vec<String> {
        let asked = self.children.unwrap_or(u64::MAX);
        let tightest = self.by_limit().into_iter().filter_map(|(most, what)| Some((most?, what))).min();
        let asks = |children: Option<u64>| children.map_or("any number".to_owned(), |children| children.to_string());
        let mut warnings = Vec::new();
        if let Some((most, what)) = tightest.filter(|(most, _)| *most < asked) {
            warnings.push(format!(
                "this machine allows about {most} processes of servers at once, and pool.max_size asks for {}: raise {what}",
                asks(self.children)
            ));
        }
        if let Some(connections) = self.connections {
            warnings.push(format!(
                "beside the processes of servers there are descriptors for {connections} connections, fewer than limits.connections: raise LimitNOFILE (ulimit -n)"
            ));
        }
        if let Some(full) = self.limits().children_full_pipes.filter(|full| *full < asked && self.children.is_some()) {
            warnings.push(format!(
                "beyond {full} processes of servers their pipes are small and long lines slow: raise fs.pipe-user-pages-soft"
            ));
        }
        warnings
    }
}

impl Gateway {
    /// What the machine's limits allow, by the configured caps.
    #[must_use]
    pub fn limits(&self) -> MachineLimits {
        self.demand().limits()
    }

    fn demand(&self) -> Demand {
        let sessions = self.config.sessions.max.map(|max| max as u64);
        let most = self.descriptors.map(|nofile| connections_beside_children(nofile, &self.config));
        let asked = self.config.limits.connections.map_or(u64::MAX, |asked| asked as u64);
        let connections = most.filter(|most| *most < asked);
        let (own, shared): (Vec<_>, Vec<_>) =
            self.config.servers.values().partition(|server| server.mode == Mode::Session);
        Demand {
            nofile: self.descriptors,
            room: self.room,
            children: children_of(&self.config),
            own: own.into_iter().map(|server| most_children(server)).sum(),
            shared: (
                shared.iter().map(|server| most_children(server)).sum(),
                shared.iter().map(|server| most_sessions(server)).sum(),
            ),
            sessions,
            connections,
        }
    }

    /// What works but deserves a line at each start.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let servers = || self.config.servers.values().map(|server| &server.sandbox);
        let lacks = self.servers.lacks();
        let mut warnings = self.demand().warnings();
        if servers().any(|sandbox| sandbox.scope) && !self.servers.scope_supported() {
            let warning = "this kernel has no Landlock scopes: servers of the same user can read each other's environment in /proc";
            warnings.push(warning.to_owned());
        }
        let group = lacks.group.as_deref().unwrap_or("its controller is not to be had");
        if lacks.memory && servers().any(|sandbox| sandbox.memory.is_some()) {
            warnings.push(format!(
                "sandbox.memory bounds the address space of each process, not the memory of all: no control group ({group})"
            ));
        }
        if lacks.pids && servers().any(|sandbox| sandbox.nproc.is_some()) {
            let bounds = "sandbox.nproc counts everything its user runs, and does not bind root";
            warnings.push(format!("{bounds}: no control group ({group})"));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Demand, MachineLimits, connections_beside_children};
    use crate::config;
    use crate::server::Room;

    /// F:D11.
    #[test]
    fn connections_leave_descriptors_for_children() {
        let most = |nofile: u64, pool: u32| {
            let text = format!("[servers.a]\ncommand = \"true\"\npool.max_size = {pool}\n");
            let config = config::parse(&text, "test", Path::new("/"), &|_| None).expect("a configuration").config;
            connections_beside_children(nofile, &config)
        };
        assert_eq!((most(1024, 64), most(1024, 10), most(1024, 0)), (704, 920, 480));
        assert_eq!((most(256, 64), most(64, 64), most(0, 1)), (96, 16, 0));
    }

    fn demand(nofile: u64, room: Room, children: Option<u64>) -> Demand {
        let (own, shared) = (children, (Some(0), Some(0)));
        Demand { nofile: Some(nofile), room, children, own, shared, sessions: Some(10_000), connections: None }
    }

    /// F:F09.
    #[test]
    fn the_tightest_limit_decides_and_is_named() {
        let room = Room { tasks: Some(120), pipes: None, full_pipes: Some(1024) };
        let tight = demand(1024, room, Some(64));
        let expected = MachineLimits {
            nofile: Some(1024),
            nproc: Some(120),
            children_max: Some(10),
            children_full_pipes: Some(341),
            sessions_max: Some(10),
        };
        assert_eq!(tight.limits(), expected);
        let warnings = tight.warnings();
        assert!(
            warnings.len() == 1 && warnings[0].contains("about 10 ") && warnings[0].contains("TasksMax"),
            "{warnings:?}"
        );
        let many = demand(20_000, Room { tasks: None, ..room }, Some(400));
        assert_eq!((many.limits().children_max, many.limits().sessions_max), (Some(400), Some(400)));
        assert!(many.warnings().len() == 1 && many.warnings()[0].contains("beyond 341 "), "{:?}", many.warnings());
        let few = demand(256, Room::default(), None);
        assert_eq!((few.limits().children_max, few.limits().sessions_max), (Some(48), Some(38)));
        assert!(few.warnings()[0].contains("any number") && few.warnings()[0].contains("LimitNOFILE"));
        assert!(demand(1024, Room::default(), Some(64)).warnings().is_empty());
    }

    #[test]
    fn sessions_of_shared_children_are_as_many_as_these_have_room_for() {
        let shared = |nofile, children, seats| {
            Demand { own: Some(0), shared: (children, seats), ..demand(nofile, Room::default(), children) }.limits()
        };
        assert_eq!(shared(20_000, Some(4), Some(256)).sessions_max, Some(256));
        assert_eq!(shared(1024, Some(4), None).sessions_max, Some(1024 - 64 - 16), "a stream each");
        let both = Demand { own: Some(8), shared: (Some(4), Some(256)), ..demand(20_000, Room::default(), Some(12)) };
        assert_eq!(both.limits().sessions_max, Some(264));
        let free = Demand { nofile: None, sessions: None, own: Some(0), ..demand(0, Room::default(), None) };
        assert_eq!(Demand { shared: (None, None), ..free }.limits().sessions_max, None);
    }
}
