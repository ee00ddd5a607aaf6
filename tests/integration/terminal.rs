//! A pseudo-terminal as standard error of a process, and what was written to it.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Signal, kill_process, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::gateway::{BINARY, await_that, pid};

/// `gangway` on a terminal. Killed when dropped.
pub struct OnTerminal {
    process: Child,
    text: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    /// `gangway ARGS…` with a terminal of so many columns, and a chance to change the command.
    #[track_caller]
    pub fn start(columns: u16, args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        tcsetwinsize(&ours, Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        let mut command = Command::new(BINARY);
        command.args(args).process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(theirs);
        command.env("TERM", "xterm").env_remove("GANGWAY_API_KEY");
        change(&mut command);
        let process = command.spawn().unwrap();
        // The command holds the other end; while it does, reading would never end.
        drop(command);
        let text = Arc::new(Mutex::new(Vec::new()));
        let (written, mut screen) = (Arc::clone(&text), File::from(ours));
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            // Once nobody holds the other end, reading is an error (EIO), not the end.
            while let Ok(count @ 1..) = screen.read(&mut chunk) {
                written.lock().unwrap().extend_from_slice(&chunk[..count]);
            }
        });
        Self { process, text }
    }

    /// Everything written so far, with the terminal's line ends made plain.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).replace("\r\n", "\n")
    }

    /// Waits until `part` was written; returns everything so far.
    #[track_caller]
    pub fn await_text(&self, part: &str) -> String {
        await_that(part, || Some(self.text()).filter(|text| text.contains(part)))
    }

    /// Sends a signal to the gateway alone.
    pub fn signal(&self, signal: Signal) {
        kill_process(pid(self.process.id()), signal).unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    pub fn await_exit(&mut self) -> ExitStatus {
        await_that("the gateway's end", || self.process.try_wait().unwrap())
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = kill_process_group(pid(self.process.id()), Signal::KILL);
            let _ = self.process.wait();
        }
        if thread::panicking() {
            eprintln!("--- the terminal ---\n{}\n---", self.text());
        }
    }
}
