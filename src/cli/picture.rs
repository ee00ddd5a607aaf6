//! The words of a start: what is served where, and what to paste into a client.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::auth::RunKey;
use crate::gateway::{Bound, Catalogue, Diagnosis, Endpoint};
use crate::paste;
use crate::telemetry::Escaped;

/// Width of the labels, unless the server's name is longer.
const LABELS: usize = "Claude Code".len();

/// After this long it is worth a word that a start may take its time.
const LONG: Duration = Duration::from_secs(3);

/// Programs that fetch what they run.
const FETCHING: [&str; 7] = ["npx", "bunx", "uvx", "pipx", "docker", "podman", "nerdctl"];

/// Everything a start shows.
pub struct Picture {
    endpoint: Endpoint,
    /// Where the paste lines point; `None` where clients cannot type it.
    url: Option<String>,
    /// The port, and whether other machines reach it.
    port: u16,
    open: bool,
    /// Where operators connect, as a URL.
    admin: Option<String>,
    /// The value of the header the paste lines need.
    authorization: Option<String>,
    /// What to know about the key.
    key: Option<&'static str>,
    warnings: Vec<String>,
    /// What is being started.
    starting: String,
}

impl Picture {
    /// Lays out what is known before the server is.
    #[must_use]
    pub fn new(
        endpoint: Endpoint,
        addresses: &[Bound],
        admin: Option<String>,
        key: &RunKey,
        warnings: Vec<String>,
        starting: String,
    ) -> Picture {
        let tcp = addresses.iter().find_map(|bound| match bound {
            Bound::Tcp(address) => Some(*address),
            Bound::Unix(_) => None,
        });
        let (authorization, key) = match key {
            RunKey::None => (None, None),
            RunKey::Given(_) => (
                Some(paste::PLACEHOLDER.to_owned()),
                Some("the one in GANGWAY_API_KEY; put it where YOUR_API_KEY stands"),
            ),
            RunKey::Made(key) => (
                Some(format!("Bearer {}", key.reveal())),
                Some("made for this run and shown only here; set GANGWAY_API_KEY to keep one"),
            ),
        };
        Picture {
            url: tcp.map(|address| reachable(&endpoint.url, address)),
            port: tcp.map_or(0, |address| address.port()),
            open: tcp.is_some_and(|address| !address.ip().to_canonical().is_loopback()),
            endpoint,
            admin,
            authorization,
            key,
            warnings,
            starting,
        }
    }

    /// The first line.
    #[must_use]
    pub fn head(&self) -> String {
        format!("gangway {}\n", env!("CARGO_PKG_VERSION"))
    }

    /// The line that stands while the server starts, without its end.
    #[must_use]
    pub fn starting(&self, elapsed: Duration) -> String {
        let mut words = format!("starting {} …", Escaped(&self.starting));
        if elapsed >= Duration::from_secs(1) {
            push(&mut words, format_args!(" {} s", elapsed.as_secs()));
        }
        if elapsed >= LONG && FETCHING.contains(&self.starting.as_str()) {
            words.push_str(" (a first start may download)");
        }
        self.row(&self.endpoint.name, &words).trim_end().to_owned()
    }

    /// Everything once the server is ready.
    #[must_use]
    pub fn ready(&self, catalogue: &Catalogue, elapsed: Duration) -> String {
        let mut text = self.row(&self.endpoint.name, &summary(catalogue, elapsed));
        text.push('\n');
        text.push_str(&self.place());
        if let Some(url) = &self.url {
            text.push('\n');
            for (client, line) in paste::lines(&self.endpoint.name, url, self.authorization.as_deref()) {
                text.push_str(&self.row(client, &line));
            }
        }
        text.push_str(&self.warnings());
        text.push_str(&self.farewell());
        text
    }

    fn warnings(&self) -> String {
        let rows: String = self.warnings.iter().map(|warning| self.row("Warning", warning)).collect();
        if rows.is_empty() { rows } else { format!("\n{rows}") }
    }

    /// Everything about a server that does not start.
    #[must_use]
    pub fn failed(&self, diagnosis: &Diagnosis, elapsed: Duration) -> String {
        let what = format!("did not start: {} (after {:.1} s)", Escaped(&diagnosis.what), elapsed.as_secs_f64());
        let mut text = self.row(&self.endpoint.name, &what);
        if !diagnosis.stderr.is_empty() {
            text.push_str("\n  Its last lines on stderr:\n");
        }
        for line in &diagnosis.stderr {
            push(&mut text, format_args!("  | {}\n", Escaped(line)));
        }
        if let Some(hint) = &diagnosis.hint {
            text.push('\n');
            text.push_str(&self.row("Hint", &Escaped(hint).to_string()));
        }
        text.push_str(&self.warnings());
        text
    }

    /// Where it is served, to whom, and how many at once.
    fn place(&self) -> String {
        let Endpoint { url, auth, max, .. } = &self.endpoint;
        let children = match max {
            Some(max) => format!("one child per session, at most {max}"),
            None => "one child per session".to_owned(),
        };
        let reach = match (auth.as_str(), self.open) {
            ("none", false) => "no authentication, this machine only",
            ("none", true) => "no authentication, open to everybody who reaches it",
            (_, false) => "API key required, this machine only",
            (_, true) => "API key required",
        };
        let url = self.url.as_ref().unwrap_or(url);
        let mut text = self.row("URL", &format!("{url}     {children}     {reach}"));
        if let Some(key) = self.key {
            text.push_str(&self.row("API key", key));
        }
        if let Some(admin) = &self.admin {
            text.push_str(&self.row("Admin", &format!("{admin}/metrics, /readyz")));
        }
        text
    }

    fn farewell(&self) -> String {
        let elsewhere = if self.open || self.url.is_none() {
            String::new()
        } else {
            format!("For other machines: gangway run --listen 0.0.0.0:{} … (makes an API key). ", self.port)
        };
        format!("\n  {elsewhere}Ctrl-C stops.\n")
    }

    fn row(&self, label: &str, words: &str) -> String {
        let width = self.endpoint.name.chars().count().max(LABELS);
        format!("  {label:width$}  {words}\n")
    }
}

/// What the server calls itself and offers.
fn summary(catalogue: &Catalogue, elapsed: Duration) -> String {
    let Catalogue { name, version, revision, tools, resources, prompts, .. } = catalogue;
    let mut words = format!("ready in {:.1} s", elapsed.as_secs_f64());
    let title = format!("{name} {version}");
    if !title.trim().is_empty() {
        push(&mut words, format_args!("   {}", Escaped(title.trim())));
    }
    push(&mut words, format_args!("   {revision}"));
    let counts = [("tool", tools.as_ref().map(Vec::len)), ("resource", *resources), ("prompt", *prompts)];
    let counts: Vec<String> =
        counts.into_iter().filter_map(|(noun, count)| count.map(|count| counted(count, noun))).collect();
    if !counts.is_empty() {
        push(&mut words, format_args!("   {}", counts.join(", ")));
    }
    words
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The URL as other machines type it. Where every interface is listened on, the address of the one that leads out is
/// put in: a guess, but one that can be pasted.
fn reachable(url: &str, bound: SocketAddr) -> String {
    if !bound.ip().is_unspecified() {
        return url.to_owned();
    }
    let Some(outward) = outward_address() else { return url.to_owned() };
    let path = url.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..])).unwrap_or_default();
    format!("http://{}{path}", SocketAddr::new(outward, bound.port()))
}

/// This machine's address on the way to others. Connecting a datagram socket sends nothing; the destination is one
/// that documentation uses (RFC 5737) and stands for any.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified() && !address.is_loopback()).then_some(address)
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a String cannot fail");
}

#[cfg(test)]
#[path = "picture_test.rs"]
mod tests;
