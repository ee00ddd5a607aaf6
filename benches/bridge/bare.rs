//! A hyper server that does nothing: reads the request, answers fixed bytes. What any gateway built
//! on the same library pays at least.

use std::convert::Infallible;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::process::Process;

/// Set in the environment of the process that is to be the bare server: the sizes of its answers.
const ROLE: &str = "BRIDGE_BARE";

/// The bare server in a process of its own.
pub struct Bare {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Bare {
    /// Starts this very program in its other role; `/0`, `/1` and so on answer as many bytes as `sizes` say.
    pub fn start(sizes: &[usize]) -> io::Result<Bare> {
        let sizes = sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, sizes).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no stdout"))?;
        let process = Process::new(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim_end().parse().map_err(io::Error::other)?;
        Ok(Bare { process, address })
    }
}

/// Serves if this process was started for that.
pub fn is_role() -> Option<io::Result<()>> {
    let sizes = std::env::var(ROLE).ok()?;
    let answers = sizes.split(' ').map(|size| answer(size.parse().expect("the parent wrote a number"))).collect();
    // The parent holds the other end: with it this process ends.
    std::thread::spawn(|| {
        let _end = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    Some(serve(answers))
}

/// A JSON text of `size` bytes.
fn answer(size: usize) -> Bytes {
    Bytes::from(format!("{{\"{}\":0}}", "x".repeat(size.saturating_sub(6))))
}

#[tokio::main]
async fn serve(answers: Vec<Bytes>) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let answers = answers.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| respond(&answers, request));
            // A client that leaves is no failure of this server.
            let _end = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(answers: &[Bytes], request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let number = request.uri().path()[1..].parse::<usize>().unwrap_or(0);
    let _read = request.into_body().collect().await;
    let mut response = Response::new(Full::new(answers[number].clone()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
