//! An issuer of access tokens: one key, published over loopback.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

/// What its tokens are for.
pub const AUDIENCE: &str = "https://bench.example/mcp";

/// How long its tokens are good, in seconds.
const LIFE: u64 = 3600;

/// The issuer.
pub struct Issuer {
    key: EcdsaKeyPair,
    url: String,
}

impl Issuer {
    /// Publishes a fresh key.
    pub fn start() -> io::Result<Issuer> {
        let key = fresh_key().map_err(|_| io::Error::other("no key could be made"))?;
        let point = &key.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        let keys = json!({ "keys": [{
            "kty": "EC", "crv": "P-256", "kid": "bench", "alg": "ES256", "use": "sig",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        }] });
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let body = keys.to_string();
        // It ends with the process.
        thread::spawn(move || publish(&listener, &body));
        Ok(Issuer { key, url })
    }

    /// `[auth.issuers.bench]`
    pub fn table(&self) -> String {
        let url = &self.url;
        format!(
            "[auth.issuers.bench]\nissuer = \"{url}\"\njwks_uri = \"{url}/keys\"\naudiences = [\"{AUDIENCE}\"]\n\
             algorithms = [\"ES256\"]\n"
        )
    }

    /// A good token.
    pub fn token(&self) -> io::Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?.as_secs();
        let header = json!({ "alg": "ES256", "typ": "at+jwt", "kid": "bench" });
        let claims = json!({
            "iss": self.url, "aud": AUDIENCE, "sub": "caller", "client_id": "bench", "iat": now, "exp": now + LIFE,
            "scope": "mcp:read mcp:write",
        });
        let part = |part: &serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let message = format!("{}.{}", part(&header), part(&claims));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes());
        let signature = signature.map_err(|_| io::Error::other("the token could not be signed"))?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn fresh_key() -> Result<EcdsaKeyPair, aws_lc_rs::error::Unspecified> {
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())?;
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref()).map_err(Into::into)
}

/// Answers every request with the key set.
fn publish(listener: &TcpListener, body: &str) {
    for mut stream in listener.incoming().flatten() {
        let Ok(input) = stream.try_clone() else { continue };
        let head = BufReader::new(input).lines().map_while(Result::ok).find(String::is_empty);
        if head.is_some() {
            let length = body.len();
            // Who does not wait for the answer asks again.
            let _gone = stream.write_all(
                format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                )
                .as_bytes(),
            );
        }
    }
}
