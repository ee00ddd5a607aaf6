//! Ends what is open for keys and issuers that count no more: a request is checked when it comes, but a
//! stream may be open for days.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::auth::{Issuers, Keys};
use crate::caller::Principal;
use crate::config::Auth;
use crate::http::Door;
use crate::server::{Server, Servers};
use crate::unix_time;

/// Pause between two looks at what expires; a key that is taken back is acted upon at once.
const LOOK: Duration = Duration::from_secs(1);

/// Who knows the keys, and who holds what is open.
pub(super) struct Revocation {
    pub(super) keys: Arc<Keys>,
    pub(super) issuers: Arc<Issuers>,
    pub(super) servers: Arc<Servers>,
    pub(super) door: Arc<Door>,
}

impl Revocation {
    /// Looks again and again.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.end(&[]);
        }
    }

    /// Ends what callers have open at a server by tokens of issuers that it does not take, out of those of `auth`.
    pub(super) fn end_untaken(&self, server: &Server, auth: &Auth) {
        let taken = server.config().auth.issuers.iter().filter_map(|name| auth.issuers.get(name));
        let taken: Vec<&str> = taken.map(|issuer| &*issuer.issuer).collect();
        let is_over = |principal: &Principal| match principal {
            Principal::Token(holder) => !taken.contains(&&*holder.issuer),
            _ => false,
        };
        self.servers.revoke_at(server.name(), is_over);
        self.door.revoke_at(server.name(), is_over);
    }

    /// Ends everything of callers whose issuer is gone, whose key is gone or expired, and of `replaced` ones, whose name
    /// has another key now: who of them holds which cannot be told.
    pub(super) fn end(&self, replaced: &[Principal]) {
        let now = unix_time::seconds();
        let stands = |principal: &Principal| match principal {
            Principal::Token(_) => self.issuers.stands(principal),
            _ => self.keys.stands(principal, now),
        };
        let is_over = |principal: &Principal| replaced.contains(principal) || !stands(principal);
        self.servers.revoke(is_over);
        self.door.revoke(is_over, now);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::watch;
    use tokio::time::timeout;

    use crate::auth::NewKey;
    use crate::config::{self, Config, Key};
    use crate::gateway::{Bound, Gateway, NodeTag, Stop};
    use crate::telemetry::{Logs, Sink};
    use crate::unix_time;

    /// Far beyond what anything here takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A gateway's configuration, with a key as from a keys file.
    fn config(key: &NewKey) -> Config {
        let text = "admin.address = \"off\"\nlisten.address = \"127.0.0.1:0\"\nauth.methods = [\"api_key\"]\n\
            [servers.test]\ncommand = \"true\"\nlegacy_sse = true\ncheck_on_start = false\npool.min_idle = 0\n\
            [auth.keys.brief]\nhash = \"HASH\"\n";
        let text = text.replace("HASH", &key.hash_text());
        let loaded = config::parse(&text, "test", Path::new("/"), &|_| None).expect("a configuration");
        let mut config = loaded.config;
        config.auth.filed.insert(Arc::from("brief"));
        config
    }

    #[tokio::test]
    async fn a_stream_ends_when_its_key_expires() {
        let key = NewKey::generate().expect("random numbers");
        let config = config(&key);
        let logs = Logs::start(&config.telemetry, Sink::Writer(Box::new(std::io::sink()))).expect("a thread");
        let gateway = Gateway::build(config, NodeTag::random(), logs.access()).expect("a gateway");
        let Some(Bound::Tcp(address)) = gateway.addresses().first().cloned() else { panic!("a TCP address") };
        let keys = Arc::clone(&gateway.held.revocation.keys);
        let (stop, stopped) = watch::channel(Stop::No);
        let running = tokio::spawn(gateway.run(stopped, None));
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let request = format!(
            "GET /test/sse HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nAccept: text/event-stream\r\n\
             Connection: close\r\n\r\n",
            key.reveal()
        );
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut seen = vec![0; 12];
        stream.read_exact(&mut seen).await.expect("a head");
        assert_eq!(seen, b"HTTP/1.1 200");
        let now = unix_time::seconds();
        let expired = Key { hash: key.hash(), expires: Some(now), servers: None, sessions: None, scopes: Vec::new() };
        assert!(keys.replace_filed(BTreeMap::from([(Arc::from("brief"), expired)])).is_empty(), "it is the same key");
        timeout(PATIENCE, stream.read_to_end(&mut seen)).await.expect("the stream ends").expect("it is read");
        stop.send_replace(Stop::DrainNow);
        running.await.expect("it drains");
    }
}
