//! An authorization server: its metadata, its keys, and tokens signed with them. It asks nobody who they are.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::gateway::Gateway;

/// Seconds since the Unix epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// An authorization server that lives as long as the tests.
pub struct Issuer {
    /// Its identifier.
    pub url: String,
    key: EcdsaKeyPair,
}

impl Issuer {
    /// One with a key of its own.
    pub fn start() -> Issuer {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        // An uncompressed point: 4, x, y (SEC 1, 2.3.3).
        let point = key.public_key().as_ref();
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let keys = json!({ "keys": [
            { "kty": "EC", "crv": "P-256", "kid": "k", "use": "sig", "x": part(&point[1..33]), "y": part(&point[33..]) },
        ] });
        let metadata = json!({ "issuer": url, "jwks_uri": format!("{url}/jwks") });
        let answers = Arc::new((metadata.to_string(), keys.to_string()));
        thread::spawn(move || {
            for connection in listener.incoming().filter_map(Result::ok) {
                let answers = Arc::clone(&answers);
                thread::spawn(move || answer(connection, &answers.0, &answers.1));
            }
        });
        Issuer { url, key }
    }

    /// Its table; `more` are further lines.
    pub fn toml(&self, name: &str, more: &str) -> String {
        format!("[auth.issuers.{name}]\nissuer = \"{}\"\n{more}\n", self.url)
    }

    /// A token for `audience` with these claims beside `iss`, `aud`, `exp` and `iat`, which they may replace.
    pub fn token(&self, audience: &str, claims: Value) -> String {
        let mut all = json!({ "iss": self.url, "aud": audience, "iat": now(), "exp": now() + 3600, "sub": "alice" });
        for (name, value) in claims.as_object().unwrap() {
            all[name] = value.clone();
        }
        let header = json!({ "alg": "ES256", "typ": "at+jwt", "kid": "k" });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&all));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn answer(mut connection: TcpStream, metadata: &str, keys: &str) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match connection.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head);
    let target = head.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match target {
        "/jwks" => ("200 OK", keys),
        "/.well-known/oauth-authorization-server" => ("200 OK", metadata),
        _ => ("404 Not Found", "{}"),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    // The gateway may have left.
    let _ = connection.write_all(format!("{head}{body}").as_bytes());
}

/// A gateway that takes tokens, with the keys of its issuers loaded.
#[track_caller]
pub fn start_gateway(toml: &str) -> Gateway {
    let gateway = Gateway::start(toml);
    gateway.await_event("issuers_ready", |_| true);
    gateway
}
