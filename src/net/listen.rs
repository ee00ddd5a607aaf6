//! Binding: from configured addresses to sockets that listen, with real ports and errors that help.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Socket, TcpKeepalive, Type};
use tokio::net::TcpListener;

use crate::config::{Address, Limits};

use super::bind_error::BindError;
use super::tls::Tls;
use super::unix::{self, UnixSocket};

/// Connections the kernel may hold ready for us.
const BACKLOG: i32 = 1024;
/// How often another port is tried when `localhost:0` gets one that is taken on the other loopback.
const PORT_TRIES: usize = 16;
/// A peer silent for this long is probed, this often, this many times: dead after 45 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
/// Least time sent data may stay unacknowledged (RFC 5482): a half-open peer is dead by then.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes the kernel takes beyond what is in flight. Past it a write waits, so a reader that stops
/// costs this much and the stall clock starts at once, instead of after the megabytes that buffer
/// tuning would absorb. `SO_SNDBUF` would also bound what is in flight, and thereby the speed of a
/// distant client (256 KiB over 100 ms are 2.5 MB/s); this does not.
const UNSENT: u32 = 128 * 1024;

/// Sockets that listen, not yet served.
#[derive(Debug)]
pub struct Listener {
    /// The name in metrics and logs.
    pub name: &'static str,
    /// What is bound, in the order of the configuration, with real ports.
    pub addresses: Vec<Bound>,
    /// For its TCP sockets; a unix socket is plain.
    pub tls: Option<Arc<Tls>>,
    pub(super) sockets: Vec<ListenSocket>,
}

/// One bound address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl Bound {
    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Bound::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Bound::Unix(_) => true,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Tcp(address) => address.fmt(f),
            Bound::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[derive(Debug)]
pub(super) enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

/// Binds every address; on an error nothing stays bound. `localhost` is both loopbacks on one port,
/// where a machine without IPv6 is no error; any other name is every address it resolves to.
///
/// Must run inside a tokio runtime. Resolving a name may block, so call it at start only.
///
/// # Errors
/// The first address that cannot be bound.
pub fn bind(name: &'static str, addresses: &[Address], limits: &Limits) -> Result<Listener, BindError> {
    let options = Options {
        user_timeout: USER_TIMEOUT.max(limits.write_stall + limits.write_stall / 2),
        ipv4_wildcards: wildcard_ports(addresses),
    };
    let mut listener = Listener { name, addresses: Vec::new(), tls: None, sockets: Vec::new() };
    for address in addresses {
        match address {
            Address::Unix(path) => {
                let socket = unix::bind(path, BACKLOG)
                    .map_err(|error| BindError::new(name, format!("unix:{}", path.display()), error))?;
                listener.addresses.push(Bound::Unix(socket.path().to_owned()));
                listener.sockets.push(ListenSocket::Unix(socket));
            }
            Address::Tcp { host, port } => {
                let sockets = if host.eq_ignore_ascii_case("localhost") {
                    bind_loopbacks(name, *port, &options)?
                } else {
                    bind_name(name, host, *port, &options)?
                };
                for (address, socket) in sockets {
                    listener.addresses.push(Bound::Tcp(address));
                    listener.sockets.push(ListenSocket::Tcp(socket));
                }
            }
        }
    }
    Ok(listener)
}

struct Options {
    user_timeout: Duration,
    /// Ports bound on `0.0.0.0` too, where `[::]` must leave IPv4 alone.
    ipv4_wildcards: Vec<u16>,
}

fn wildcard_ports(addresses: &[Address]) -> Vec<u16> {
    let wildcard = |address: &Address| match address {
        Address::Tcp { host, port } if host.parse() == Ok(Ipv4Addr::UNSPECIFIED) => Some(*port),
        _ => None,
    };
    addresses.iter().filter_map(wildcard).collect()
}

type BoundSocket = (SocketAddr, TcpListener);

fn bind_name(name: &'static str, host: &str, port: u16, options: &Options) -> Result<Vec<BoundSocket>, BindError> {
    let unresolved = |error| BindError::new(name, format!("{host}:{port}"), error);
    let mut sockets: Vec<BoundSocket> = Vec::new();
    for mut address in (host, port).to_socket_addrs().map_err(unresolved)? {
        if let (0, Some((first, _))) = (port, sockets.first()) {
            address.set_port(first.port());
        }
        if sockets.iter().all(|(bound, _)| *bound != address) {
            sockets.push(tcp(address, options).map_err(|error| BindError::tcp(name, address, error))?);
        }
    }
    Ok(sockets)
}

fn bind_loopbacks(name: &'static str, port: u16, options: &Options) -> Result<Vec<BoundSocket>, BindError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let first = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let first = tcp(first, options).map_err(|error| BindError::tcp(name, first, error))?;
        let second = SocketAddr::from((Ipv6Addr::LOCALHOST, first.0.port()));
        match tcp(second, options) {
            Ok(second) => return Ok(vec![first, second]),
            Err(error) if no_ipv6(&error) => return Ok(vec![first]),
            Err(error) if port == 0 && tries < PORT_TRIES && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(BindError::tcp(name, second, error)),
        }
    }
}

/// Whether a bind failed because this machine has no IPv6.
fn no_ipv6(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT))
}

/// Binds and listens. Every option is set on the listening socket once: Linux hands it on to each
/// accepted one, which saves the calls per connection.
fn tcp(address: SocketAddr, options: &Options) -> io::Result<BoundSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        let alone =
            address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) || options.ipv4_wildcards.contains(&address.port());
        socket.set_only_v6(alone)?;
    }
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_EVERY).with_retries(KEEPALIVE_PROBES),
    )?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(Some(options.user_timeout))?;
        socket.set_tcp_notsent_lowat(UNSENT)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    let listener = TcpListener::from_std(socket.into())?;
    Ok((listener.local_addr()?, listener))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener as StdTcpListener;
    use std::time::Duration;

    use socket2::SockRef;
    use tokio::net::TcpStream;

    use super::{Bound, ListenSocket, UNSENT, bind};
    use crate::config::{Address, Limits};
    use crate::net::tests::limits;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port }
    }

    fn port(bound: &Bound) -> u16 {
        match bound {
            Bound::Tcp(address) => address.port(),
            Bound::Unix(path) => panic!("{} is no TCP address", path.display()),
        }
    }

    #[tokio::test]
    async fn localhost_is_both_loopbacks_on_one_port() {
        let listener = bind("main", &[tcp("LocalHost", 0)], &limits()).expect("loopback binds");
        assert!(listener.addresses.iter().all(|bound| bound.is_local() && port(bound) != 0));
        assert_eq!(port(&listener.addresses[0]), port(&listener.addresses[listener.addresses.len() - 1]));
        let ipv6 = StdTcpListener::bind("[::1]:0").is_ok();
        assert_eq!(listener.addresses.len(), 1 + usize::from(ipv6));
    }

    #[tokio::test]
    async fn a_taken_port_names_its_holder_and_a_way_out() {
        let taken = StdTcpListener::bind("127.0.0.1:0").expect("loopback binds");
        let port = taken.local_addr().expect("a bound socket has an address").port();
        let error = bind("main", &[tcp("127.0.0.1", port)], &limits()).expect_err("it is taken");
        let text = error.to_string();
        assert!(text.contains(&format!("(pid {})", std::process::id())), "{text}");
        assert!(text.contains("--listen 127.0.0.1:"), "{text}");
        let error = bind("admin", &[tcp("127.0.0.1", port)], &limits()).expect_err("it is taken");
        assert!(error.to_string().contains("--admin 127.0.0.1:"), "{error}");
    }

    #[tokio::test]
    async fn an_error_leaves_nothing_bound() {
        let taken = StdTcpListener::bind("127.0.0.1:0").expect("loopback binds");
        let taken_port = taken.local_addr().expect("a bound socket has an address").port();
        let free = StdTcpListener::bind("127.0.0.1:0").expect("loopback binds");
        let free_port = free.local_addr().expect("a bound socket has an address").port();
        drop(free);
        bind("main", &[tcp("127.0.0.1", free_port), tcp("127.0.0.1", taken_port)], &limits())
            .expect_err("the second is taken");
        bind("main", &[tcp("127.0.0.1", free_port)], &limits()).expect("the first is free again");
    }

    #[tokio::test]
    async fn both_wildcards_may_share_a_port() {
        let probe = StdTcpListener::bind("0.0.0.0:0").expect("the wildcard binds");
        let port = probe.local_addr().expect("a bound socket has an address").port();
        drop(probe);
        if StdTcpListener::bind("[::1]:0").is_err() {
            return;
        }
        let listener = bind("main", &[tcp("0.0.0.0", port), tcp("::", port)], &limits()).expect("they are apart");
        assert_eq!(listener.addresses.len(), 2);
        assert!(listener.addresses.iter().all(|bound| !bound.is_local()));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn accepted_sockets_inherit_every_option() {
        let limits = Limits { write_stall: Duration::from_secs(60), ..limits() };
        let listener = bind("main", &[tcp("127.0.0.1", 0)], &limits).expect("loopback binds");
        let ListenSocket::Tcp(socket) = &listener.sockets[0] else {
            panic!("a TCP address makes a TCP socket");
        };
        let address = socket.local_addr().expect("a bound socket has an address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), socket.accept());
        let (_client, (accepted, _)) = (client.expect("it listens"), accepted.expect("it listens"));
        let accepted = SockRef::from(&accepted);
        assert!(accepted.tcp_nodelay().expect("readable"));
        assert!(accepted.keepalive().expect("readable"));
        assert_eq!(accepted.tcp_user_timeout().expect("readable"), Some(Duration::from_secs(90)));
        assert_eq!(accepted.tcp_notsent_lowat().expect("readable"), UNSENT);
    }
}
