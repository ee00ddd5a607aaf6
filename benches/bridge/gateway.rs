//! A gateway in front of the demo server, as an operator would run it: its log on, written to a file.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http::{Response, delete, exchange, post};
use crate::process::Process;
use crate::request::{INITIALIZE, INITIALIZED};

/// Where the demo server is served.
pub const PATH: &str = "/demo/mcp";

/// What is raised above its default: one client is all clients here.
pub const RAISED: &str =
    "connections_per_address = 1024, sessions.max = 1000000, pool.max_size = 512; sessions.uninitialized = 2s";

/// What of it stands in `[limits]`.
const ONE_CLIENT: &str = "connections_per_address = 1024";

/// How long a gateway may take to be ready, and children to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A gateway that is ready.
pub struct Gateway {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    directory: PathBuf,
}

/// One session of a gateway, on a connection of its own.
pub struct Session {
    /// The connection.
    pub stream: TcpStream,
    /// Its id.
    pub id: String,
}

impl Gateway {
    /// Starts one with a configuration of its own and waits until it has seen its server well.
    pub fn start() -> io::Result<Gateway> {
        Gateway::start_in("session", "", ONE_CLIENT)
    }

    /// The same, its sessions on four children.
    pub fn start_shared() -> io::Result<Gateway> {
        Gateway::start_shared_with(ONE_CLIENT)
    }

    /// The same, with these keys of `[limits]`.
    pub fn start_shared_with(limits: &str) -> io::Result<Gateway> {
        Gateway::start_in("shared", "pool.min_idle = 4\npool.max_sessions_per_child = 1000000\n", limits)
    }

    /// As [`Gateway::start`], with further keys of `[limits]`.
    pub fn start_with(limits: &str) -> io::Result<Gateway> {
        Gateway::start_in("session", "", &format!("{ONE_CLIENT}\n{limits}"))
    }

    fn start_in(mode: &str, keys: &str, limits: &str) -> io::Result<Gateway> {
        let gateway = Gateway::start_from(
            mode,
            &format!(
                "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"off\"\n\
                 [limits]\n{limits}\n[sessions]\nmax = 1000000\nuninitialized = \"2s\"\n\
                 [servers.demo]\ncommand = {:?}\nargs = [\"demo-server\"]\nmode = \"{mode}\"\npool.max_size = 512\n{keys}",
                crate::GANGWAY
            ),
        )?;
        if mode == "session" {
            gateway.await_idle()?;
        }
        Ok(gateway)
    }

    /// Starts one with this configuration; `name` tells it from others of this process.
    pub fn start_from(name: &str, text: &str) -> io::Result<Gateway> {
        let directory = std::env::temp_dir().join(format!("gangway-bench-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let (config, log) = (directory.join("gangway.toml"), directory.join("log"));
        fs::write(&config, text)?;
        let mut command = Command::new(crate::GANGWAY);
        command.arg("serve").arg("-c").arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let process = Process::new(command.spawn()?);
        let address = until(|| {
            let log = fs::read_to_string(&log)?;
            // The first child to end is the scout.
            Ok(listen_address(&log).filter(|_| log.contains("\"event\":\"child_exit\"")))
        })?;
        Ok(Gateway { process, address, directory })
    }

    /// A connection to it.
    pub fn connect(&self) -> io::Result<TcpStream> {
        connect(self.address)
    }

    /// Opens a session on `stream`; gives its id once its child answered `initialize`.
    pub fn initialize(&self, stream: &TcpStream) -> io::Result<String> {
        let response = exchange(stream, &post(self.address, PATH, None, INITIALIZE))?;
        let id = response.header("mcp-session-id").map(str::to_owned);
        id.ok_or_else(|| io::Error::other(format!("no session id: {}", response.head)))
    }

    /// Opens a session with a connection of its own, ready for calls.
    pub fn open(&self) -> io::Result<Session> {
        let stream = self.connect()?;
        let id = self.initialize(&stream)?;
        exchange(&stream, &post(self.address, PATH, Some(&id), INITIALIZED))?;
        Ok(Session { stream, id })
    }

    /// A request that opens a session, as bytes.
    pub fn opening(&self) -> Vec<u8> {
        post(self.address, PATH, None, INITIALIZE)
    }

    /// A request of a session as bytes.
    pub fn request(&self, session: &Session, body: &str) -> Vec<u8> {
        post(self.address, PATH, Some(&session.id), body)
    }

    /// Makes one call.
    pub fn call(&self, session: &Session, body: &str) -> io::Result<Response> {
        exchange(&session.stream, &self.request(session, body))
    }

    /// Ends a session.
    pub fn close(&self, stream: &TcpStream, id: &str) -> io::Result<()> {
        exchange(stream, &delete(self.address, PATH, id)).map(drop)
    }

    /// What it has logged so far.
    pub fn log(&self) -> io::Result<String> {
        fs::read_to_string(self.directory.join("log"))
    }

    /// Waits until the one spare is all there is beside the gateway.
    pub fn await_idle(&self) -> io::Result<()> {
        until(|| Ok((self.process.children()? == 1).then_some(())))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.directory);
    }
}

/// A connection that sends at once.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn listen_address(log: &str) -> Option<SocketAddr> {
    let ready = log.lines().find(|line| line.contains("\"event\":\"ready\""))?;
    let ready: Value = serde_json::from_str(ready).ok()?;
    ready["listen"][0].as_str()?.parse().ok()
}

/// Looks again until there is something.
fn until<T>(mut look: impl FnMut() -> io::Result<Option<T>>) -> io::Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if began.elapsed() > PATIENCE {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the gateway is not ready, or its children do not end",
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
