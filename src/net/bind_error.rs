//! Why an address could not be bound, for the operator who has to type another.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};

use super::holder::{self, Holder};

/// Why an address could not be bound. Its text names the culprit and the remedy.
#[derive(Debug)]
pub struct BindError {
    /// The listener's name.
    pub listener: &'static str,
    /// The address as bound, or as typed where it did not resolve.
    pub address: String,
    /// Who has the port, where that can be read.
    pub holder: Option<Holder>,
    /// A port nearby that was free a moment ago.
    pub free_port: Option<u16>,
    source: io::Error,
}

impl BindError {
    pub(super) fn new(listener: &'static str, address: String, source: io::Error) -> BindError {
        BindError { listener, address, holder: None, free_port: None, source }
    }

    pub(super) fn tcp(listener: &'static str, address: SocketAddr, source: io::Error) -> BindError {
        let mut error = BindError::new(listener, address.to_string(), source);
        if error.source.kind() == io::ErrorKind::AddrInUse {
            error.holder = holder::find(address.port());
            error.free_port = free_port_near(address);
        }
        error
    }

    /// The flag of `gangway run` and the key of the file that set this address.
    fn settings(&self) -> (&'static str, &'static str) {
        match self.listener {
            "admin" => ("--admin", "admin.address"),
            _ => ("--listen", "listen.address"),
        }
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flag, key) = self.settings();
        let address = &self.address;
        match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                match &self.holder {
                    Some(holder) => write!(f, "{address} is taken by {holder}")?,
                    None => write!(f, "{address} is taken by another process")?,
                }
                match (self.free_port, address.parse::<SocketAddr>()) {
                    (Some(port), Ok(taken)) => {
                        let free = SocketAddr::new(taken.ip(), port);
                        write!(f, "; stop it, or type: {flag} {free} ({key} in a file)")
                    }
                    _ => write!(f, "; stop it, or choose another with {flag} ({key} in a file)"),
                }
            }
            io::ErrorKind::PermissionDenied => write!(
                f,
                "{address}: not permitted; choose a port from 1024 or a writable directory with {flag} ({key} in a file)"
            ),
            io::ErrorKind::AddrNotAvailable => write!(
                f,
                "{address}: no interface of this machine has that address; {flag} ({key} in a file) must name one that does"
            ),
            io::ErrorKind::AlreadyExists => write!(
                f,
                "{address}: the path exists and is no socket; remove it or choose another with {flag} ({key} in a file)"
            ),
            io::ErrorKind::NotFound => write!(
                f,
                "{address}: the directory does not exist; make it, or choose another with {flag} ({key} in a file)"
            ),
            _ => write!(f, "{address} cannot be bound: {}; see {flag} ({key} in a file)", self.source),
        }
    }
}

impl Error for BindError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

fn free_port_near(taken: SocketAddr) -> Option<u16> {
    (1..=16)
        .filter_map(|step| taken.port().checked_add(step))
        .find(|port| TcpListener::bind((taken.ip(), *port)).is_ok())
}
