//! The scenarios, and their rounds.

use std::io;
use std::str::FromStr;
use std::time::Duration;

use crate::bare::Bare;
use crate::cpu;
use crate::gateway::{Gateway, PATH, RAISED, Session, connect};
use crate::http::{exchange, post};
use crate::lane::{Lane, Sample, pump};
use crate::native::Native;
use crate::opening;
use crate::process::Process;
use crate::request::{BURST, ECHO, INITIALIZE};
use crate::table::{Target, Trial};

/// Notifications of one [`BURST`].
const NOTIFICATIONS: usize = 1000;

/// A call with a large answer.
const PAYLOAD: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"payload","#,
    r#""arguments":{"bytes":1048576}}}"#
);

/// One kind of load.
struct Scenario {
    name: &'static str,
    request: &'static str,
    sessions: usize,
    /// Requests in flight in each session.
    depth: usize,
    /// Lines a child writes for each request.
    lines: usize,
    /// Whether its sessions share few children.
    shared: bool,
    /// What the bare server answers; `None` where it has nothing like it.
    bare_path: Option<&'static str>,
    targets: &'static [Target],
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "1x1",
        request: ECHO,
        sessions: 1,
        depth: 1,
        lines: 1,
        shared: false,
        bare_path: Some("/0"),
        targets: &[Target::Latency(1.8), Target::Cpu(2.0)],
    },
    Scenario {
        name: "1x32",
        request: ECHO,
        sessions: 1,
        depth: 32,
        lines: 1,
        shared: false,
        bare_path: Some("/0"),
        targets: &[Target::Rate(0.6), Target::Cpu(1.6)],
    },
    Scenario {
        name: "64x1",
        request: ECHO,
        sessions: 64,
        depth: 1,
        lines: 1,
        shared: false,
        bare_path: Some("/0"),
        targets: &[Target::Rate(0.5), Target::Cpu(2.0)],
    },
    Scenario {
        name: "notifications",
        request: BURST,
        sessions: 1,
        depth: 1,
        lines: NOTIFICATIONS + 1,
        shared: false,
        bare_path: None,
        targets: &[Target::PipeRate(0.4)],
    },
    Scenario {
        name: "1MiBx1",
        request: PAYLOAD,
        sessions: 1,
        depth: 1,
        lines: 1,
        shared: false,
        bare_path: Some("/1"),
        targets: &[Target::SlowerRate(0.35), Target::Cpu(2.0)],
    },
    Scenario {
        name: "1MiBx4",
        request: PAYLOAD,
        sessions: 1,
        depth: 4,
        lines: 1,
        shared: false,
        bare_path: Some("/1"),
        targets: &[Target::SlowerRate(0.5), Target::Cpu(2.0)],
    },
    Scenario {
        name: "shared 1x1",
        request: ECHO,
        sessions: 1,
        depth: 1,
        lines: 1,
        shared: true,
        bare_path: Some("/0"),
        targets: &[Target::Latency(1.7)],
    },
    Scenario {
        name: "shared 1x32",
        request: ECHO,
        sessions: 1,
        depth: 32,
        lines: 1,
        shared: true,
        bare_path: Some("/0"),
        targets: &[Target::Rate(0.75), Target::Cpu(1.45)],
    },
    Scenario {
        name: "shared 64x1",
        request: ECHO,
        sessions: 64,
        depth: 1,
        lines: 1,
        shared: true,
        bare_path: Some("/0"),
        targets: &[Target::Rate(0.75), Target::Cpu(1.45)],
    },
    // Over its pipes a child is initialized once: a call stands for it there.
    Scenario {
        name: "shared initialize 1x8",
        request: INITIALIZE,
        sessions: 1,
        depth: 8,
        lines: 1,
        shared: true,
        bare_path: Some("/2"),
        targets: &[Target::Rate(0.5)],
    },
];

/// What a process used up for one sample.
pub struct Measured {
    /// Answers in a second.
    pub rate: f64,
    /// Median latency in microseconds.
    pub p50: f64,
    /// Processor time for one answer in microseconds.
    pub cpu: f64,
}

/// Runs every scenario that was asked for and prints what came of it.
pub fn run() -> io::Result<()> {
    let rounds = parameter("BRIDGE_ROUNDS", 7);
    let length = Duration::from_secs_f64(parameter("BRIDGE_SECONDS", 0.8));
    let only = std::env::var("BRIDGE_ONLY").unwrap_or_default();
    let wanted = |name: &str| name.contains(only.as_str());
    let gateway = Gateway::start()?;
    let shared = Gateway::start_shared()?;
    let bare = Bare::start(&answer_sizes(&gateway)?)?;
    println!("{rounds} rounds of {length:?} each; raised in the gateway: {RAISED}");
    let mut trials: Vec<Trial> =
        SCENARIOS.iter().filter(|scenario| wanted(scenario.name)).map(|it| Trial::new(it.name, it.targets)).collect();
    let mut openings = opening::Trial::default();
    for round in 0..rounds {
        let scenarios = SCENARIOS.iter().filter(|scenario| wanted(scenario.name));
        for (scenario, trial) in scenarios.zip(&mut trials) {
            let gateway = if scenario.shared { &shared } else { &gateway };
            scenario.measure(round, length, gateway, &bare, trial)?;
        }
        if wanted("opening") {
            openings.round(&gateway)?;
        }
    }
    for trial in &trials {
        trial.print();
    }
    openings.print();
    Ok(())
}

/// A number from the environment.
fn parameter<T: FromStr>(name: &str, default: T) -> T {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number, and is {text:?}")))
}

/// The lengths of a small answer, a large one and that of `initialize` through the gateway, which are looked at here once.
fn answer_sizes(gateway: &Gateway) -> io::Result<[usize; 3]> {
    let session = gateway.open()?;
    let (small, large) = (gateway.call(&session, ECHO)?, gateway.call(&session, PAYLOAD)?);
    let stream = gateway.call(&session, BURST)?;
    let events = memchr::memmem::find_iter(&stream.body, b"\ndata: {").count();
    gateway.close(&session.stream, &session.id)?;
    for answer in [&small, &large] {
        if !answer.head.contains("application/json") || !answer.body.ends_with(b"}") {
            return Err(io::Error::other(format!("not JSON: {}", answer.head)));
        }
    }
    if events != NOTIFICATIONS + 1 {
        return Err(io::Error::other(format!("{events} events of {}", NOTIFICATIONS + 1)));
    }
    let greeting = exchange(&gateway.connect()?, &post(gateway.address, PATH, None, INITIALIZE))?;
    Ok([small.body.len(), large.body.len(), greeting.body.len()])
}

impl Scenario {
    /// One round: each way once, the first one changing from round to round.
    fn measure(
        &self,
        round: usize,
        length: Duration,
        gateway: &Gateway,
        bare: &Bare,
        trial: &mut Trial,
    ) -> io::Result<()> {
        let (mut hyper, mut pipe, mut ours) = (None, None, None);
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => hyper = self.over_hyper(length, bare)?,
                1 => pipe = Some(self.over_pipes(length)?),
                _ => ours = Some(self.over_gateway(length, gateway)?),
            }
        }
        let (Some(pipe), Some(ours)) = (pipe, ours) else { unreachable!("each way had its turn") };
        trial.add(hyper, pipe, ours);
        Ok(())
    }

    fn over_hyper(&self, length: Duration, bare: &Bare) -> io::Result<Option<Measured>> {
        let Some(path) = self.bare_path else { return Ok(None) };
        let request = post(bare.address, path, Some("bridge-0123456789abcdef0123456789abcdef"), self.request);
        let mut lanes = Vec::new();
        for _ in 0..self.sessions * self.depth {
            lanes.push(Lane::http(&connect(bare.address)?, request.clone())?);
        }
        measured(&mut lanes, length, &bare.process).map(Some)
    }

    fn over_pipes(&self, length: Duration) -> io::Result<Measured> {
        let request = if self.request == INITIALIZE { ECHO } else { self.request };
        let (mut lanes, mut children) = (Vec::new(), Vec::new());
        for _ in 0..self.sessions {
            let mut native = Native::start()?;
            if self.lines == 1 {
                native.answer(request)?;
            }
            let (lane, child) = native.into_lane(request, self.depth, self.lines)?;
            lanes.push(lane);
            children.push(child);
        }
        let sample = pump(&mut lanes, length)?;
        // Closing its stdin is how a child is told to end.
        drop(lanes);
        Ok(figures(sample, 0.0))
    }

    fn over_gateway(&self, length: Duration, gateway: &Gateway) -> io::Result<Measured> {
        let sessions = (0..self.sessions).map(|_| gateway.open()).collect::<io::Result<Vec<Session>>>()?;
        let mut lanes = Vec::new();
        for session in &sessions {
            let opens = self.request == INITIALIZE;
            let request = if opens { gateway.opening() } else { gateway.request(session, self.request) };
            lanes.push(Lane::http(&session.stream, request.clone())?);
            for _ in 1..self.depth {
                lanes.push(Lane::http(&gateway.connect()?, request.clone())?);
            }
        }
        let measured = measured(&mut lanes, length, &gateway.process)?;
        drop(lanes);
        for session in &sessions {
            gateway.close(&session.stream, &session.id)?;
        }
        if !self.shared {
            gateway.await_idle()?;
        }
        Ok(measured)
    }
}

fn measured(lanes: &mut [Lane], length: Duration, process: &Process) -> io::Result<Measured> {
    let before = cpu::used_by(&process.child)?;
    let sample = pump(lanes, length)?;
    let used = cpu::used_by(&process.child)? - before;
    Ok(figures(sample, used))
}

fn figures(mut sample: Sample, cpu: f64) -> Measured {
    Measured { rate: sample.rate(), p50: sample.p50(), cpu: cpu / sample.answers as f64 }
}
