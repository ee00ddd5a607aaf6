//! The measurements.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, Socket, Type};

use crate::caller::{Caller, KEY, connect, exchange, key_hash, stranger};
use crate::cpu;
use crate::gateway::Gateway;
use crate::issuer::Issuer;
use crate::lane::{Lane, pump};

const ROUNDS: usize = 5;
const LENGTH: Duration = Duration::from_secs(1);
/// Connections with one call in flight each.
const LANES: usize = 32;
/// The same, where each has a thread of its own.
const THREADS: usize = 4;
const REFUSALS: usize = 2000;
/// What an address may ask in the example for the public internet, and the pause of a caller that stays below it.
const RATE: &str = "rate_per_address = \"100/s\"\n";
const PAUSE: Duration = Duration::from_millis(12);
/// Of one measurement of such a caller.
const CALM: Duration = Duration::from_secs(4);
/// Where the flood comes from.
const ELSEWHERE: [u8; 4] = [127, 0, 0, 2];

/// Measures everything, one after the other.
pub fn run() -> io::Result<()> {
    let issuer = Issuer::start()?;
    let plain = Gateway::start_from("plain", &configuration(&issuer, ""))?;
    tokens(&plain, &issuer)?;
    refusals(&plain)?;
    let directory = std::env::temp_dir().join(format!("gangway-bench-{}-certificates", std::process::id()));
    let secured = over_tls(&plain, &issuer, &directory);
    let _left_behind = fs::remove_dir_all(&directory);
    secured?;
    let bounded = Gateway::start_from("bounded", &configuration(&issuer, RATE))?;
    flood(&bounded, &plain)
}

fn configuration(issuer: &Issuer, limits: &str) -> String {
    let server = |name: &str, method: &str| {
        format!(
            "[servers.{name}]\ncommand = {:?}\nargs = [\"demo-server\"]\nmode = \"shared\"\nauth.methods = [\"{method}\"]\n\
             pool.min_idle = 2\npool.max_sessions_per_child = 1000\n",
            crate::GANGWAY
        )
    };
    format!(
        "[listen]\naddress = \"127.0.0.1:0\"\npublic_url = \"http://localhost:1\"\n[admin]\naddress = \"off\"\n\
         [auth.keys.bench]\nhash = \"{}\"\n{}[limits]\n{limits}{}{}",
        key_hash(),
        issuer.table(),
        server("key", "api_key"),
        server("token", "oauth"),
    )
}

/// Processor time of a call with a token, against one with a key.
fn tokens(gateway: &Gateway, issuer: &Issuer) -> io::Result<()> {
    let token = issuer.token()?;
    let mut key = lanes(gateway, "/key/mcp", KEY)?;
    let mut shown = lanes(gateway, "/token/mcp", &token)?;
    println!("{:<8}{:>16}{:>16}{:>8}", "round", "key us/call", "token us/call", "ratio");
    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let (by_key, by_token) = (cost(gateway, &mut key)?, cost(gateway, &mut shown)?);
        // The first one warms caches and checks the token.
        if round > 0 {
            println!("{round:<8}{by_key:>16.2}{by_token:>16.2}{:>8.3}", by_token / by_key);
            ratios.push(by_token / by_key);
        }
    }
    println!("a cached token costs {:.3} x a key (target at most 1.15)\n", median(&mut ratios));
    Ok(())
}

fn lanes(gateway: &Gateway, path: &'static str, credential: &str) -> io::Result<Vec<Lane>> {
    let mut first = connect(gateway.address)?;
    let caller = Caller::open(&mut first, gateway.address, path, credential)?;
    (0..LANES).map(|_| Lane::http(&connect(gateway.address)?, caller.call())).collect()
}

/// Microseconds of the gateway's processor time per call.
fn cost(gateway: &Gateway, lanes: &mut [Lane]) -> io::Result<f64> {
    let before = cpu::used_by(&gateway.process.child)?;
    let sample = pump(lanes, LENGTH)?;
    Ok((cpu::used_by(&gateway.process.child)? - before) / sample.answers as f64)
}

/// How long it takes to be refused.
fn refusals(gateway: &Gateway) -> io::Result<()> {
    let children = gateway.process.children()?;
    let request = stranger(gateway.address, "/key/mcp");
    let mut times = Vec::with_capacity(REFUSALS);
    for _ in 0..REFUSALS {
        let began = Instant::now();
        let head = exchange(&mut connect(gateway.address)?, &request)?;
        times.push(began.elapsed());
        if !head.starts_with("HTTP/1.1 401") {
            return Err(io::Error::other(format!("no refusal: {head}")));
        }
    }
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e3;
    println!(
        "{REFUSALS} refusals, each on a connection of its own: p50 {:.2} ms, p99 {:.2} ms (target 20)",
        at(50),
        at(99)
    );
    println!("children before {children}, after {}\n", gateway.process.children()?);
    Ok(())
}

/// Calls a second over TLS 1.3, against plain ones.
fn over_tls(plain: &Gateway, issuer: &Issuer, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(io::Error::other)?;
    let (cert, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    fs::write(&cert, certificate.cert.pem())?;
    fs::write(&key, certificate.signing_key.serialize_pem())?;
    let tls = format!(
        "[listen]\ntls.certificates = [{{ cert = {:?}, key = {:?} }}]\n",
        cert.display().to_string(),
        key.display().to_string()
    );
    let configuration =
        configuration(issuer, "").replace("[listen]\n", &tls).replace("http://localhost:1", "https://localhost:1");
    let secured = Gateway::start_from("secured", &configuration)?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Arc::new(client);
    let over_tls = |address| {
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&client), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(connection, connect(address)?))
    };
    println!("{:<8}{:>14}{:>14}{:>8}", "round", "plain/s", "TLS 1.3/s", "ratio");
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let bare = rate(plain.address, connect)?;
        let safe = rate(secured.address, over_tls)?;
        println!("{round:<8}{bare:>14.0}{safe:>14.0}{:>8.2}", safe / bare);
        ratios.push(safe / bare);
    }
    println!("TLS 1.3 carries {:.2} x the plain rate (target at least 0.75)\n", median(&mut ratios));
    Ok(())
}

/// Calls a second of a few connections that stay open.
fn rate<S: Read + Write>(address: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<S> + Sync) -> io::Result<f64> {
    let calls: io::Result<Vec<usize>> = thread::scope(|scope| {
        let one = || {
            let mut stream = open(address)?;
            let caller = Caller::open(&mut stream, address, "/key/mcp", KEY)?;
            let (request, end) = (caller.call(), Instant::now() + LENGTH);
            let mut calls = 0;
            while Instant::now() < end {
                exchange(&mut stream, &request)?;
                calls += 1;
            }
            Ok(calls)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(one)).collect();
        let panicked = || io::Error::other("a caller panicked");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    Ok(calls?.iter().sum::<usize>() as f64 / LENGTH.as_secs_f64())
}

/// What requests nobody may make, from one address, do to a caller from another. Who floods takes a processor from
/// everybody on this machine, so the same flood is poured into `other`, too, a gateway that the caller has nothing to do
/// with.
fn flood(gateway: &Gateway, other: &Gateway) -> io::Result<()> {
    println!("{:<8}{:>14}{:>18}{:>14}{:>14}", "round", "quiet p99", "flood beside it", "flooded", "refused/s");
    let (mut against_quiet, mut against_beside) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let quiet = calm(gateway)?;
        let (beside, _) = flooded(gateway, other)?;
        let (flooded, refused) = flooded(gateway, gateway)?;
        println!("{round:<8}{quiet:>11.0} us{beside:>15.0} us{flooded:>11.0} us{refused:>14.0}");
        against_quiet.push(flooded / quiet);
        against_beside.push(flooded / beside);
    }
    let (quiet, beside) = (median(&mut against_quiet), median(&mut against_beside));
    println!("a flood from elsewhere makes it {quiet:.2} x quiet (target at most 1.5), {beside:.2} x one beside it");
    Ok(())
}

/// A caller's 99th percentile at `gateway` while `target` is flooded, and the refusals a second.
fn flooded(gateway: &Gateway, target: &Gateway) -> io::Result<(f64, f64)> {
    let over = AtomicBool::new(false);
    let (p99, refused) = thread::scope(|scope| {
        let flood = scope.spawn(|| pour(target, &over));
        let p99 = calm(gateway);
        over.store(true, Ordering::Relaxed);
        (p99, flood.join().unwrap_or_else(|_| Err(io::Error::other("the flood panicked"))))
    });
    Ok((p99?, refused? as f64 / CALM.as_secs_f64()))
}

/// The 99th percentile of one caller's latencies in microseconds. Its rate stays below what its address may ask.
fn calm(gateway: &Gateway) -> io::Result<f64> {
    let mut stream = connect(gateway.address)?;
    let caller = Caller::open(&mut stream, gateway.address, "/key/mcp", KEY)?;
    let (request, end) = (caller.call(), Instant::now() + CALM);
    let mut times = Vec::new();
    while Instant::now() < end {
        let began = Instant::now();
        exchange(&mut stream, &request)?;
        times.push(began.elapsed());
        thread::sleep(PAUSE);
    }
    times.sort_unstable();
    Ok(times[times.len() * 99 / 100].as_secs_f64() * 1e6)
}

/// Asks again and again from another address, and counts the answers.
fn pour(gateway: &Gateway, over: &AtomicBool) -> io::Result<usize> {
    let request = stranger(gateway.address, "/key/mcp");
    let mut refused = 0;
    while !over.load(Ordering::Relaxed) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((ELSEWHERE, 0)).into())?;
        socket.connect(&gateway.address.into())?;
        exchange(&mut TcpStream::from(socket), &request)?;
        refused += 1;
    }
    Ok(refused)
}

fn median(ratios: &mut [f64]) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}
