//! The load: requests kept in flight over sockets and pipes by one thread and one epoll.
//!
//! The same loop drives HTTP connections and a child's bare pipes, so that what it costs itself is
//! the same on every side of a comparison.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::answer::Framing;

/// Bytes read at once: what a pipe holds by default on Linux.
const READ_BYTES: usize = 64 * 1024;

/// One way to a server: the same request again and again, `depth` of them in flight.
pub struct Lane {
    to: OwnedFd,
    from: OwnedFd,
    request: Vec<u8>,
    depth: usize,
    framing: Framing,
    /// When each request in flight was written, oldest first.
    sent: VecDeque<Instant>,
}

/// What a run of the load gave.
#[derive(Debug)]
pub struct Sample {
    /// Answers that came.
    pub answers: usize,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    latencies: Vec<Duration>,
}

impl Sample {
    /// Answers in a second.
    pub fn rate(&self) -> f64 {
        self.answers as f64 / self.elapsed.as_secs_f64()
    }

    /// Takes in what another run gave.
    pub fn add(&mut self, other: Sample) {
        self.answers += other.answers;
        self.elapsed += other.elapsed;
        self.latencies.extend(other.latencies);
    }

    /// The median time from a request to its answer, in microseconds.
    pub fn p50(&mut self) -> f64 {
        self.percentile(50)
    }

    /// The time within which so many in a hundred answers came, in microseconds.
    pub fn percentile(&mut self, percent: usize) -> f64 {
        let place = self.latencies.len() * percent / 100;
        let (_, latency, _) = self.latencies.select_nth_unstable(place);
        latency.as_secs_f64() * 1e6
    }
}

impl Lane {
    /// A connection that carries one request at a time.
    pub fn http(stream: &TcpStream, request: Vec<u8>) -> io::Result<Lane> {
        let descriptor = || stream.as_fd().try_clone_to_owned();
        Ok(Lane::new(descriptor()?, descriptor()?, request, 1, Framing::http()))
    }

    /// A child's pipes. `lines` is how many it writes for each request.
    pub fn pipes(to: OwnedFd, from: OwnedFd, request: Vec<u8>, depth: usize, lines: usize) -> Lane {
        Lane::new(to, from, request, depth, Framing::lines(lines))
    }

    fn new(to: OwnedFd, from: OwnedFd, request: Vec<u8>, depth: usize, framing: Framing) -> Lane {
        Lane { to, from, request, depth, framing, sent: VecDeque::with_capacity(depth) }
    }

    /// Writes `count` requests in one go.
    fn send(&mut self, count: usize, now: Instant) -> io::Result<()> {
        match count {
            0 => return Ok(()),
            1 => write_all(self.to.as_fd(), &self.request)?,
            _ => write_all(self.to.as_fd(), &self.request.repeat(count))?,
        }
        self.sent.extend(std::iter::repeat_n(now, count));
        Ok(())
    }

    /// Reads once and gives the number of answers that ended.
    fn receive(&mut self, buffer: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        let (bytes, _) = rustix::io::read(&self.from, buffer)?;
        if bytes.is_empty() {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed"));
        }
        self.framing.take(bytes)
    }
}

/// Keeps every lane busy for `length`, then waits for what is in flight.
///
/// # Errors
/// When a server closes, or answers anything but success.
pub fn pump(lanes: &mut [Lane], length: Duration) -> io::Result<Sample> {
    let began = Instant::now();
    let mut pump = Pump { end: began + length, answers: 0, latencies: Vec::new() };
    for lane in lanes.iter_mut() {
        lane.send(lane.depth, Instant::now())?;
    }
    match lanes {
        [lane] => pump.one(lane)?,
        lanes => pump.many(lanes)?,
    }
    Ok(Sample { answers: pump.answers, elapsed: began.elapsed(), latencies: pump.latencies })
}

struct Pump {
    end: Instant,
    answers: usize,
    latencies: Vec<Duration>,
}

impl Pump {
    fn one(&mut self, lane: &mut Lane) -> io::Result<()> {
        let mut buffer = vec![MaybeUninit::uninit(); READ_BYTES];
        while !lane.sent.is_empty() {
            self.turn(lane, &mut buffer)?;
        }
        Ok(())
    }

    fn many(&mut self, lanes: &mut [Lane]) -> io::Result<()> {
        let mut buffer = vec![MaybeUninit::uninit(); READ_BYTES];
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        for (number, lane) in lanes.iter().enumerate() {
            epoll::add(&poll, &lane.from, EventData::new_u64(number as u64), EventFlags::IN)?;
        }
        let mut in_flight: usize = lanes.iter().map(|lane| lane.sent.len()).sum();
        let mut events: Vec<Event> = Vec::with_capacity(lanes.len());
        while in_flight > 0 {
            events.clear();
            epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None)?;
            for event in &events {
                let lane = &mut lanes[event.data.u64() as usize];
                let before = lane.sent.len();
                self.turn(lane, &mut buffer)?;
                in_flight = in_flight + lane.sent.len() - before;
            }
        }
        Ok(())
    }

    /// One read, and a new request for each answer it ended while there is time.
    fn turn(&mut self, lane: &mut Lane, buffer: &mut [MaybeUninit<u8>]) -> io::Result<()> {
        let ended = lane.receive(buffer)?;
        if ended == 0 {
            return Ok(());
        }
        let now = Instant::now();
        self.answers += ended;
        self.latencies.extend(lane.sent.drain(..ended).map(|sent| now - sent));
        if now < self.end { lane.send(ended, now) } else { Ok(()) }
    }
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::write(to, bytes)?;
        bytes = &bytes[written..];
    }
    Ok(())
}
