//! A log that nobody takes: full, broken or stuck. The gateway serves on and says afterwards what was lost.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::PATIENCE;
use crate::child::Server;
use crate::client::Connection;
use crate::gateway::{BINARY, Directory, await_that, pid};
use crate::session::{call, initialize};

/// A gateway whose stderr the test holds itself. Killed when dropped.
struct Logging {
    process: Child,
    directory: Directory,
}

impl Logging {
    fn start(listen: &str, stderr: Stdio) -> Self {
        let directory = Directory::new();
        let file = directory.path().join("gangway.toml");
        let listen = listen.replace("DIRECTORY", directory.path().to_str().unwrap());
        let server = Server::demo("demo").key("check_on_start = false").toml();
        let log = "[telemetry]\nlog = { level = \"trace\" }";
        fs::write(&file, format!("{listen}\n[admin]\naddress = \"off\"\n{log}\n{server}")).unwrap();
        let mut command = Command::new(BINARY);
        command.arg("serve").arg("-c").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        Self { process: command.spawn().unwrap(), directory }
    }

    /// With a log that can be read until the test stops doing so.
    fn piped() -> (Self, BufReader<ChildStderr>, SocketAddr) {
        let mut logging = Self::start("[listen]\naddress = \"127.0.0.1:0\"", Stdio::piped());
        let mut log = BufReader::new(logging.process.stderr.take().unwrap());
        let ready = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the log ended before `ready`");
            let event: Value = line.parse().unwrap();
            if event["event"] == "ready" {
                break event;
            }
        };
        let address = ready["listen"][0].as_str().unwrap().parse().unwrap();
        (logging, log, address)
    }

    /// Ends it as an operator would; fails unless it ends cleanly.
    #[track_caller]
    fn stop(mut self) {
        kill_process(pid(self.process.id()), Signal::INT).unwrap();
        let status = await_that("the gateway's end", || self.process.try_wait().unwrap());
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One session over one connection; each round adds a line to the log.
fn talk(address: SocketAddr, rounds: usize) {
    let mut connection = Connection::open(address);
    let post = |body: &Value| crate::client::Request::post("/demo/mcp", body.to_string());
    connection.request(&post(&initialize("2025-06-18", json!({}))));
    let opened = connection.response();
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    let body = call(1, &"t".repeat(128), json!({}), None);
    let request = post(&body).header("Mcp-Session-Id", &id).with("Accept", "application/json");
    let mut bytes = Vec::new();
    for round in 0..rounds {
        // Several at once, so that thousands of lines take no long.
        bytes.extend(request.bytes(address));
        if round % 50 == 49 || round + 1 == rounds {
            connection.send(std::mem::take(&mut bytes));
            for _ in 0..=round % 50 {
                assert_eq!(connection.response().status(), 200);
            }
        }
    }
}

/// F:F08: on a device that is full the gateway starts, serves and ends as ever.
#[test]
fn a_full_log_device_harms_nothing() {
    let full = Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let logging = Logging::start("[listen]\naddress = \"unix:DIRECTORY/gangway\"", full);
    let path = logging.directory.path().join("gangway");
    let mut socket = await_that("the socket", || UnixStream::connect(&path).ok());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = initialize("2025-11-25", json!({})).to_string();
    let head = "POST /demo/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close";
    write!(socket, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("serverInfo"), "{answer}");
    logging.stop();
}

/// F:F08: the reader of the log is gone (EPIPE).
#[test]
fn a_log_whose_reader_is_gone_harms_nothing() {
    let (logging, log, address) = Logging::piped();
    drop(log);
    talk(address, 200);
    logging.stop();
}

/// F:F08: the reader of the log stands still: lines are dropped, never a request, and once it reads again the log
/// says how many.
#[test]
fn a_log_that_is_stuck_drops_lines_and_says_so() {
    let (logging, mut log, address) = Logging::piped();
    // What waits in the gateway and in the pipe is about a MiB; a line here is more than 300 bytes.
    talk(address, 8000);
    let mut dropped = 0;
    while dropped == 0 {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "the log ended without a word about what was lost");
        let event: Value = line.parse().unwrap_or_else(|error| panic!("{error}: a torn line: {line:?}"));
        if event["event"] == "log_dropped" {
            dropped = event["lines"].as_u64().unwrap();
        }
    }
    assert!(dropped < 8100, "{dropped}");
    let rest = std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    talk(address, 1);
    logging.stop();
    rest.join().unwrap().unwrap();
}
