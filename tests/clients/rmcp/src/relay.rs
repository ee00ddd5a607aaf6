//! A TCP relay between the client and the server that can reset every connection it carries.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Relays until it is dropped together with its runtime.
pub struct Relay {
    /// Where the client connects.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Counts the cuts; a connection ends when it sees the count change.
    cuts: watch::Sender<u64>,
    /// The session that the server named last.
    session: Mutex<Option<String>>,
}

impl Relay {
    /// Listens on a free loopback port and relays to `target`.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            cuts: watch::Sender::new(0),
            session: Mutex::new(None),
        });
        tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(carry(client, target, Arc::clone(&shared)));
                }
            }
        });
        Ok(Self { address, shared })
    }

    /// Resets all open connections, to both sides, and gives their number.
    pub fn cut(&self) -> usize {
        let open = self.shared.cuts.receiver_count();
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
        open
    }

    /// The session id that the server sent last.
    pub fn session(&self) -> Option<String> {
        self.shared
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn carry(mut client: TcpStream, target: SocketAddr, shared: Arc<Shared>) -> io::Result<()> {
    let mut cut = shared.cuts.subscribe();
    let mut server = TcpStream::connect(target).await?;
    let (mut from_client, mut from_server) = (vec![0; 65536], vec![0; 65536]);
    loop {
        tokio::select! {
            _ = cut.changed() => {
                // No lingering turns the close into a reset (RFC 9293, 3.10.4).
                client.set_zero_linger()?;
                return server.set_zero_linger();
            }
            read = client.read(&mut from_client) => match read? {
                0 => return Ok(()),
                length => server.write_all(&from_client[..length]).await?,
            },
            read = server.read(&mut from_server) => match read? {
                0 => return Ok(()),
                length => {
                    shared.note_session(&from_server[..length]);
                    client.write_all(&from_server[..length]).await?;
                }
            },
        }
    }
}

impl Shared {
    fn note_session(&self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let header = text
            .split("\r\n")
            .take_while(|line| !line.is_empty())
            .find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("mcp-session-id")
                    .then(|| value.trim().to_owned())
            });
        if header.is_some() {
            *self.session.lock().unwrap_or_else(PoisonError::into_inner) = header;
        }
    }
}
