//! What a stranger costs the gateway: `cargo bench --bench strangers`.
//!
//! First the memory of connections that hold as much as they can before it is known who asks. Then the processor time of
//! the gateway beside that of a sender who prepared everything before: what that one pays is the system calls of sending
//! and of reading what comes back.
//!
//! `GANGWAY_BIN` names another binary to measure. It judges nothing: the project's targets stand beside the numbers, and
//! the exit status is 0.

#[cfg(target_os = "linux")]
#[path = "bridge/cpu.rs"]
mod cpu;
#[cfg(target_os = "linux")]
#[path = "bridge/process.rs"]
#[allow(dead_code, reason = "shared with the bridge bench")]
mod process;

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    measure::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("strangers: it can be measured on Linux only");
}

#[cfg(target_os = "linux")]
mod measure {
    use std::env;
    use std::fs::{self, File};
    use std::io::{self, ErrorKind, Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpStream};
    use std::path::PathBuf;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustix::time::{ClockId, clock_gettime};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
    use serde_json::Value;

    use crate::cpu;
    use crate::process::Process;

    /// Connections whose memory is measured.
    const HELD: usize = 400;
    /// After they came, before it is measured what they take.
    const REST: Duration = Duration::from_millis(500);
    /// Of one measurement of time.
    const LENGTH: Duration = Duration::from_secs(2);
    const PATIENCE: Duration = Duration::from_secs(30);
    /// Requests written at once.
    const BATCH: u32 = 500;

    const REFUSED: &[u8] = b"POST /demo/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    const NO_REQUEST: &[u8] = b"no request\r\n\r\n";
    /// And empty SETTINGS, and the acknowledgement of the gateway's.
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";

    /// A gateway that asks for keys.
    struct Target {
        process: Process,
        address: SocketAddr,
        /// Of its certificate, where it speaks TLS.
        roots: RootCertStore,
        directory: PathBuf,
    }

    pub(super) fn run() -> io::Result<()> {
        println!("{:<46}{:>12}   (target 64 KiB)", "connections with", "each");
        let head = [&REFUSED[..REFUSED.len() - 2], b"X: ", &[b'x'; 31 << 10]].concat();
        for (what, bytes) in
            [("nothing sent", &b""[..]), ("a request refused", REFUSED), ("a head of 31 KiB not ended", &head)]
        {
            hold(what, Target::start_plain()?, |target| target.plain(bytes))?;
        }
        hold("TLS, half a hello", Target::start_secure()?, |target| target.plain(&[22, 3, 1, 2, 0, 1]))?;
        for (what, bytes) in [
            ("TLS, nothing sent", &b""[..]),
            ("TLS, a request refused", REFUSED),
            ("TLS, a head of 31 KiB not ended", &head),
        ] {
            hold(what, Target::start_secure()?, |target| target.shaken("http/1.1", bytes))?;
        }
        hold("TLS, the same and half a record", Target::start_secure()?, |target| {
            let mut stream = target.shaken("http/1.1", &head)?;
            stream.sock.write_all(&[&[23, 3, 3, 0x40, 0][..], &[0; 16_000]].concat())?;
            Ok(stream)
        })?;
        hold("HTTP/2, nothing asked", Target::start_secure()?, |target| target.shaken("h2", PREFACE))?;
        let large = [&block()[..], &literal("x", &"x".repeat(15_000)), &literal("y", &"y".repeat(15_000))].concat();
        let endless = [PREFACE, &frame(1, 0, 1, &large[..16_000]), &frame(9, 0, 1, &large[16_000..])].concat();
        let long = [PREFACE, &frame(1, 0, 1, &large[..15_000])].concat();
        hold("HTTP/2, a head of 15 KiB not ended", Target::start_secure()?, |target| target.shaken("h2", &long))?;
        hold("HTTP/2, a head of 30 KiB not ended", Target::start_secure()?, |target| target.shaken("h2", &endless))?;
        let bodies =
            [PREFACE.to_vec(), (0..128).flat_map(|at| frame(1, 4, at * 2 + 1, &block_of(at))).collect()].concat();
        hold("HTTP/2, 128 requests without an end", Target::start_secure()?, |target| target.shaken("h2", &bodies))?;

        let (plain, secure) = (Target::start_plain()?, Target::start_secure()?);
        println!(
            "\n{:<46}{:>10}{:>10}{:>10}{:>8}   (target 10)",
            "a sender of", "a second", "its us", "our us", "ratio"
        );
        plain.load("connections", |address, until| repeat(until, || once(address, b"").map(|()| 1)))?;
        plain.load("what is no request", |address, until| repeat(until, || once(address, NO_REQUEST).map(|()| 1)))?;
        plain.load("a refused request each", |address, until| repeat(until, || once(address, REFUSED).map(|()| 1)))?;
        plain.load("refused requests, one by one", |address, until| {
            again(until, |until| flood(TcpStream::connect(address)?, &[], |_| REFUSED.to_vec(), until))
        })?;
        let many = REFUSED.repeat(BATCH as usize);
        plain.load("refused requests, many at once", |address, until| {
            again(until, |until| {
                Ok(flood(TcpStream::connect(address)?, &[], |_| many.clone(), until)? * u64::from(BATCH))
            })
        })?;
        let hello = secure.hello()?;
        secure
            .load("hellos that were recorded", |address, until| repeat(until, || once(address, &hello).map(|()| 1)))?;
        secure.load("handshakes", |_, until| repeat(until, || secure.shaken("http/1.1", b"").map(|_| 1)))?;
        secure.load("TLS, refused requests, many at once", |_, until| {
            again(until, |until| Ok(flood(secure.shake("http/1.1")?, &[], |_| many.clone(), until)? * u64::from(BATCH)))
        })?;
        let block = block();
        let requests =
            |at: u64| (0..BATCH).flat_map(|one| frame(1, 5, (at as u32 * BATCH + one) * 2 + 1, &block)).collect();
        secure.load("HTTP/2, refused requests, many at once", |_, until| {
            again(until, |until| Ok(flood(secure.shake("h2")?, PREFACE, requests, until)? * u64::from(BATCH)))
        })
    }

    /// Does it until the time is over; how often.
    fn repeat(until: Instant, mut one: impl FnMut() -> io::Result<u64>) -> io::Result<u64> {
        let mut count = 0;
        while Instant::now() < until {
            count += one()?;
        }
        Ok(count)
    }

    /// The same of what ends by itself.
    fn again(until: Instant, mut one: impl FnMut(Instant) -> io::Result<u64>) -> io::Result<u64> {
        repeat(until, || one(until))
    }

    /// Sends this on a connection of its own, reads whatever comes back first, and leaves.
    fn once(address: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(bytes)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _read = stream.read(&mut [0; 16 * 1024])?;
        // Else the next ones find no port.
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))
    }

    /// Measures what connections of a gateway take that are opened in this way.
    fn hold<C>(what: &str, target: Target, open: impl Fn(&Target) -> io::Result<C>) -> io::Result<()> {
        // What the first ones make it allocate for good is not theirs.
        drop((0..HELD / 20).map(|_| open(&target)).collect::<io::Result<Vec<C>>>()?);
        thread::sleep(REST);
        let before = target.process.resident()?;
        let held = (0..HELD).map(|_| open(&target)).collect::<io::Result<Vec<C>>>()?;
        thread::sleep(REST);
        let each = target.process.resident()?.saturating_sub(before) as f64 / HELD as f64;
        println!("{what:<46}{:>8.1} KiB", each / 1024.0);
        drop(held);
        Ok(())
    }

    /// A stream that can be told not to wait.
    trait Wire: Read + Write {
        fn socket(&self) -> &TcpStream;
    }

    impl Wire for TcpStream {
        fn socket(&self) -> &TcpStream {
            self
        }
    }

    impl Wire for StreamOwned<ClientConnection, TcpStream> {
        fn socket(&self) -> &TcpStream {
            self.get_ref()
        }
    }

    /// Sends one piece after the other, and reads what comes back after each, until the gateway has had enough or the
    /// time is over. Gives the number of pieces.
    fn flood(mut stream: impl Wire, first: &[u8], piece: impl Fn(u64) -> Vec<u8>, until: Instant) -> io::Result<u64> {
        let mut buffer = vec![0; 256 * 1024];
        let mut sent = 0;
        let _closed = (stream.socket().set_nodelay(true), stream.write_all(first));
        while Instant::now() < until {
            if stream.write_all(&piece(sent)).is_err() {
                break;
            }
            sent += 1;
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => break,
            }
            if !read_what_is_there(&mut stream, &mut buffer) {
                break;
            }
        }
        let _closed = stream.socket().shutdown(Shutdown::Both);
        Ok(sent.max(1))
    }

    fn read_what_is_there(stream: &mut impl Wire, buffer: &mut [u8]) -> bool {
        let _closed = stream.socket().set_nonblocking(true);
        let open = loop {
            match stream.read(buffer) {
                Ok(0) => break false,
                Ok(_) => {}
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            }
        };
        let _closed = stream.socket().set_nonblocking(false);
        open
    }

    /// One HTTP/2 frame (RFC 9113, 4.1).
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// A POST in as few bytes as the first request of a connection can have (RFC 7541).
    fn block() -> Vec<u8> {
        [&[0x83, 0x87][..], &[0x01, 9], b"localhost", &[0x04, 9], b"/demo/mcp"].concat()
    }

    /// The same with a field of its own.
    fn block_of(at: u32) -> Vec<u8> {
        [block(), literal("x", &format!("{at:0>200}"))].concat()
    }

    /// A field that is not indexed.
    fn literal(name: &str, value: &str) -> Vec<u8> {
        let mut bytes = vec![0, name.len() as u8];
        bytes.extend(name.as_bytes());
        let mut rest = value.len();
        if rest < 127 {
            bytes.push(rest as u8);
        } else {
            bytes.push(127);
            rest -= 127;
            while rest >= 128 {
                bytes.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            bytes.push(rest as u8);
        }
        bytes.extend(value.as_bytes());
        bytes
    }

    impl Target {
        fn start_plain() -> io::Result<Target> {
            Target::start(directory("plain")?, "")
        }

        fn start_secure() -> io::Result<Target> {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(["localhost".to_owned()]).map_err(io::Error::other)?;
            let directory = directory("secure")?;
            fs::write(directory.join("cert.pem"), cert.pem())?;
            fs::write(directory.join("key.pem"), signing_key.serialize_pem())?;
            let lines = "tls = { certificates = [{ cert = \"cert.pem\", key = \"key.pem\" }] }\n";
            let mut target = Target::start(directory, lines)?;
            target.roots.add(cert.der().clone()).map_err(io::Error::other)?;
            Ok(target)
        }

        fn start(directory: PathBuf, lines: &str) -> io::Result<Target> {
            let (config, log) = (directory.join("gangway.toml"), directory.join("log"));
            let binary = env::var("GANGWAY_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_gangway").to_owned());
            let text = format!(
                "[listen]\naddress = \"127.0.0.1:0\"\n{lines}[admin]\naddress = \"off\"\n\
                 [auth]\nmethods = [\"api_key\"]\n[auth.keys.one]\nhash = \"sha256:{:0>64}\"\n[limits]\nconnections_per_address = 0\n\
                 [servers.demo]\ncommand = {binary:?}\nargs = [\"demo-server\"]\ncheck_on_start = false\npool.min_idle = 0\n",
                1
            );
            fs::write(&config, text)?;
            let mut command = Command::new(&binary);
            command.arg("serve").arg("-c").arg(&config);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
            let process = Process::new(command.spawn()?);
            let began = Instant::now();
            loop {
                let text = fs::read_to_string(&log)?;
                if let Some(address) = listen_address(&text) {
                    return Ok(Target { process, address, roots: RootCertStore::empty(), directory });
                }
                if began.elapsed() > PATIENCE {
                    return Err(io::Error::other(format!("the gateway is not ready: {text}")));
                }
                thread::sleep(Duration::from_millis(5));
            }
        }

        /// Measures what a sender pays and what it makes the gateway pay.
        fn load(&self, what: &str, send: impl Fn(SocketAddr, Instant) -> io::Result<u64>) -> io::Result<()> {
            let (before, own_before) = (cpu::used_by(&self.process.child)?, own_time());
            let count = send(self.address, Instant::now() + LENGTH)? as f64;
            let own = own_time() - own_before;
            // What it sent may still be read.
            thread::sleep(REST);
            let ours = cpu::used_by(&self.process.child)? - before;
            let per_second = count / LENGTH.as_secs_f64();
            println!("{what:<46}{per_second:>10.0}{:>10.1}{:>10.1}{:>8.1}", own / count, ours / count, ours / own);
            Ok(())
        }

        fn plain(&self, bytes: &[u8]) -> io::Result<TcpStream> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.write_all(bytes)?;
            Ok(stream)
        }

        fn shake(&self, protocol: &str) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
            let connection = self.client(protocol)?;
            let mut stream = StreamOwned::new(connection, TcpStream::connect(self.address)?);
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock)?;
            }
            Ok(stream)
        }

        fn shaken(&self, protocol: &str, bytes: &[u8]) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
            let mut stream = self.shake(protocol)?;
            stream.write_all(bytes)?;
            Ok(stream)
        }

        fn client(&self, protocol: &str) -> io::Result<ClientConnection> {
            let mut config = ClientConfig::builder().with_root_certificates(self.roots.clone()).with_no_client_auth();
            config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
            let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
            ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)
        }

        /// The first thing a client says, which it can say again.
        fn hello(&self) -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            self.client("h2")?.write_tls(&mut bytes)?;
            Ok(bytes)
        }
    }

    impl Drop for Target {
        fn drop(&mut self) {
            let _left_behind = fs::remove_dir_all(&self.directory);
        }
    }

    fn directory(name: &str) -> io::Result<PathBuf> {
        let directory = env::temp_dir().join(format!("gangway-strangers-{}-{name}", std::process::id()));
        let _not_there = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }

    fn listen_address(log: &str) -> Option<SocketAddr> {
        let ready = log.lines().find(|line| line.contains("\"event\":\"ready\""))?;
        let ready: Value = serde_json::from_str(ready).ok()?;
        ready["listen"][0].as_str()?.parse().ok()
    }

    /// Processor time of this thread, in microseconds.
    fn own_time() -> f64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    }
}
