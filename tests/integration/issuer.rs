//! An authorization server on loopback that the test owns: it signs what it is told to sign, answers about opaque tokens,
//! and breaks in every way that is asked for.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{self, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Map, Value, json};

use crate::tls_client::Issued;

/// Bytes as JWTs carry them.
pub fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Seconds since the Unix epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A key an issuer signs with.
pub struct SigningKey {
    kid: String,
    algorithm: &'static str,
    pair: Pair,
}

enum Pair {
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
}

impl SigningKey {
    /// A new P-256 key.
    pub fn es256(kid: &str) -> Self {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref()).unwrap();
        Self { kid: kid.to_owned(), algorithm: "ES256", pair: Pair::Ec(pair) }
    }

    /// A new P-384 key.
    pub fn es384(kid: &str) -> Self {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, document.as_ref()).unwrap();
        Self { kid: kid.to_owned(), algorithm: "ES384", pair: Pair::Ec(pair) }
    }

    /// A new Ed25519 key.
    pub fn ed25519(kid: &str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        Self { kid: kid.to_owned(), algorithm: "EdDSA", pair: Pair::Ed(pair) }
    }

    /// A new RSA key that signs by PKCS #1 v1.5.
    pub fn rs256(kid: &str) -> Self {
        Self { kid: kid.to_owned(), algorithm: "RS256", pair: Self::rsa(&RSA_PKCS1_SHA256) }
    }

    /// A new RSA key that signs by PSS.
    pub fn ps256(kid: &str) -> Self {
        Self { kid: kid.to_owned(), algorithm: "PS256", pair: Self::rsa(&RSA_PSS_SHA256) }
    }

    fn rsa(encoding: &'static dyn RsaEncoding) -> Pair {
        let pair = rsa::KeyPair::generate(KeySize::Rsa2048).unwrap();
        let document: aws_lc_rs::encoding::Pkcs8V1Der<'_> = pair.as_der().unwrap();
        Pair::Rsa(Box::new(RsaKeyPair::from_pkcs8(document.as_ref()).unwrap()), encoding)
    }

    /// The public key as it stands in a key set.
    pub fn jwk(&self) -> Value {
        let mut jwk = match &self.pair {
            Pair::Ec(pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let curve = if self.algorithm == "ES256" { "P-256" } else { "P-384" };
                json!({ "kty": "EC", "crv": curve, "x": base64url(x), "y": base64url(y) })
            }
            Pair::Ed(pair) => json!({ "kty": "OKP", "crv": "Ed25519", "x": base64url(pair.public_key()) }),
            Pair::Rsa(pair, _) => {
                let number = |bytes: &[u8]| base64url(bytes);
                let key = pair.public_key();
                let (n, e) = (key.modulus(), key.exponent());
                json!({
                    "kty": "RSA", "n": number(n.big_endian_without_leading_zero()),
                    "e": number(e.big_endian_without_leading_zero()),
                })
            }
        };
        jwk["kid"] = self.kid.as_str().into();
        jwk["alg"] = self.algorithm.into();
        jwk["use"] = "sig".into();
        jwk
    }

    /// The header of its tokens.
    pub fn header(&self) -> Value {
        json!({ "alg": self.algorithm, "typ": "at+jwt", "kid": self.kid })
    }

    /// A token with this header and these claims, whatever they say.
    pub fn token(&self, header: &Value, claims: &Value) -> String {
        self.token_of(header.to_string(), claims.to_string())
    }

    /// As [`SigningKey::token`], from the texts of both parts.
    pub fn token_of(&self, header: impl AsRef<[u8]>, claims: impl AsRef<[u8]>) -> String {
        let message = format!("{}.{}", base64url(header), base64url(claims));
        let signature = self.sign(message.as_bytes());
        format!("{message}.{}", base64url(signature))
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Ed(pair) => pair.sign(message).as_ref().to_vec(),
            Pair::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(*encoding, &random, message, &mut signature).unwrap();
                signature
            }
        }
    }
}

/// How an issuer answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Mood {
    /// As it should.
    Well,
    /// It closes each connection at once.
    Down,
    /// It takes each request and never answers.
    Silent,
    /// It answers as it should, after a while.
    Late(Duration),
    /// It answers with this status and these headers.
    Status(u16, Vec<(&'static str, String)>),
    /// It answers with this body, as JSON.
    Says(Vec<u8>),
    /// It answers with this many bytes of JSON.
    Huge(usize),
    /// It answers as it should, but says that it is compressed.
    Compressed,
    /// It answers with this body, and says that it is compressed.
    Bomb(Vec<u8>),
}

/// A request an issuer got.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub target: String,
    pub authorization: Option<String>,
    pub body: String,
}

struct State {
    issuer: String,
    /// Where its key set stands.
    keys: Mutex<Value>,
    moods: Mutex<HashMap<String, Mood>>,
    metadata: Mutex<Map<String, Value>>,
    opaque: Mutex<HashMap<String, Value>>,
    asked: Mutex<Vec<Asked>>,
    heard: Condvar,
    over: AtomicBool,
}

/// An authorization server.
pub struct Issuer {
    address: SocketAddr,
    state: Arc<State>,
}

impl Issuer {
    /// One that publishes the keys given.
    pub fn start(keys: &[&SigningKey]) -> Self {
        Self::start_at("", keys)
    }

    /// One whose identifier has this path, with metadata as OpenID Connect has it.
    pub fn start_at(path: &str, keys: &[&SigningKey]) -> Self {
        Self::listen(path, keys, None)
    }

    /// One that is asked over TLS, and shows this certificate.
    pub fn start_with(certificate: &Issued, keys: &[&SigningKey]) -> Self {
        Self::listen("", keys, Some(certificate.server()))
    }

    fn listen(path: &str, keys: &[&SigningKey], tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let origin = match tls {
            Some(_) => format!("https://localhost:{}", address.port()),
            None => format!("http://{address}"),
        };
        let issuer = format!("{origin}{path}");
        let metadata = json!({
            "issuer": issuer, "jwks_uri": format!("{origin}/keys"),
            "introspection_endpoint": format!("{origin}/introspect"),
            "authorization_endpoint": format!("{origin}/authorize"),
            "code_challenge_methods_supported": ["S256"],
        });
        let state = State {
            issuer,
            keys: Mutex::default(),
            moods: Mutex::default(),
            metadata: Mutex::new(metadata.as_object().unwrap().clone()),
            opaque: Mutex::default(),
            asked: Mutex::default(),
            heard: Condvar::new(),
            over: AtomicBool::new(false),
        };
        let own = Self { address, state: Arc::new(state) };
        own.publish(keys);
        let state = Arc::clone(&own.state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if state.over.load(Ordering::Relaxed) {
                    return;
                }
                let (state, tls) = (Arc::clone(&state), tls.clone());
                thread::spawn(move || match tls {
                    Some(tls) => state.answer(StreamOwned::new(ServerConnection::new(tls).unwrap(), stream)),
                    None => state.answer(stream),
                });
            }
        });
        own
    }

    /// Its identifier, `iss` of its tokens.
    pub fn url(&self) -> &str {
        &self.state.issuer
    }

    /// Its table; `more` are further lines.
    pub fn toml(&self, name: &str, more: &str) -> String {
        format!("[auth.issuers.{name}]\nissuer = \"{}\"\n{more}\n", self.url())
    }

    /// Puts these keys in the place of those it published.
    pub fn publish(&self, keys: &[&SigningKey]) {
        self.publish_set(json!({ "keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>() }));
    }

    /// As [`Issuer::publish`], for any document.
    pub fn publish_set(&self, set: Value) {
        *self.state.keys.lock().unwrap() = set;
    }

    /// Changes what it says about itself.
    pub fn claim(&self, member: &str, value: Value) {
        let mut metadata = self.state.metadata.lock().unwrap();
        if value.is_null() {
            metadata.remove(member)
        } else {
            metadata.insert(member.to_owned(), value)
        };
    }

    /// How it answers at this path from now on; `*` is everywhere.
    pub fn mood(&self, path: &str, mood: Mood) {
        self.state.moods.lock().unwrap().insert(path.to_owned(), mood);
    }

    /// What it answers when it is asked about this token.
    pub fn introspects(&self, token: &str, answer: Value) {
        self.state.opaque.lock().unwrap().insert(token.to_owned(), answer);
    }

    /// Claims of a good token for this resource.
    pub fn claims(&self, resource: &str) -> Value {
        json!({
            "iss": self.url(), "sub": "alice", "aud": resource, "client_id": "editor", "scope": "read write",
            "iat": now(), "exp": now() + 3600, "jti": "1",
        })
    }

    /// What was asked at this path so far.
    pub fn asked(&self, path: &str) -> Vec<Asked> {
        self.state.asked.lock().unwrap().iter().filter(|asked| asked.target == path).cloned().collect()
    }

    /// Waits until something was asked this often at this path.
    #[track_caller]
    pub fn await_asked(&self, path: &str, count: usize) {
        let asked = self.state.asked.lock().unwrap();
        let few = |asked: &mut Vec<Asked>| asked.iter().filter(|asked| asked.target == path).count() < count;
        let (asked, timeout) = self.state.heard.wait_timeout_while(asked, crate::PATIENCE, few).unwrap();
        assert!(!timeout.timed_out(), "{path} was not asked {count} times: {asked:?}");
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
        // Wakes whoever accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn answer(&self, mut stream: impl Read + Write) {
        let Some(asked) = read(&mut stream) else { return };
        let moods = self.moods.lock().unwrap().clone();
        let mood = moods.get(&asked.target).or_else(|| moods.get("*")).cloned().unwrap_or(Mood::Well);
        self.asked.lock().unwrap().push(asked.clone());
        self.heard.notify_all();
        let well = || self.document(&asked);
        let (status, headers, body) = match mood {
            Mood::Down => return,
            Mood::Silent => {
                // Until the other side gives up.
                let _ = stream.read_to_end(&mut Vec::new());
                return;
            }
            Mood::Well => well(),
            Mood::Late(pause) => {
                thread::sleep(pause);
                well()
            }
            Mood::Status(status, headers) => (status, headers, Vec::new()),
            Mood::Says(body) => (200, vec![], body),
            Mood::Huge(size) => (200, vec![], format!("\"{}\"", "x".repeat(size)).into_bytes()),
            Mood::Compressed => {
                let (status, _, body) = well();
                (status, vec![("Content-Encoding", "gzip".to_owned())], body)
            }
            Mood::Bomb(body) => (200, vec![("Content-Encoding", "gzip".to_owned())], body),
        };
        let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{fields}Connection: close\r\n\r\n",
            body.len()
        );
        // Whoever does not want all of it hangs up.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    }

    fn document(&self, asked: &Asked) -> (u16, Vec<(&'static str, String)>, Vec<u8>) {
        let path = self.issuer.split_once("://").unwrap().1.find('/').map_or("", |at| {
            let start = self.issuer.find("://").unwrap() + 3;
            &self.issuer[start + at..]
        });
        let own = format!("{}/.well-known/openid-configuration", path.trim_end_matches('/'));
        let answer = match asked.target.as_str() {
            "/keys" => self.keys.lock().unwrap().to_string(),
            "/introspect" if asked.authorization.as_deref() == Some(INTROSPECTOR) => self.introspect(&asked.body),
            "/introspect" => return (401, vec![], br#"{"error":"invalid_client"}"#.to_vec()),
            target if target == own => Value::Object(self.metadata.lock().unwrap().clone()).to_string(),
            _ => return (404, vec![], Vec::new()),
        };
        (200, vec![("Cache-Control", "max-age=600".to_owned())], answer.into_bytes())
    }

    fn introspect(&self, body: &str) -> String {
        let token = body.split('&').find_map(|pair| pair.strip_prefix("token=")).unwrap_or_default();
        let known = self.opaque.lock().unwrap();
        known.get(token).cloned().unwrap_or_else(|| json!({ "active": false })).to_string()
    }
}

/// `gateway` and `s3cret`, as HTTP Basic has them.
pub const INTROSPECTOR: &str = "Basic Z2F0ZXdheTpzM2NyZXQ=";

/// The lines of an issuer of opaque tokens that asks as the above.
pub const OPAQUE: &str = "tokens = \"opaque\"\nintrospection = { client_id = \"gateway\", client_secret = \"s3cret\" }";

fn read(stream: &mut impl Read) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut authorization, mut length) = (None, 0);
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok()?;
        let Some((name, value)) = field.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => authorization = Some(value.to_owned()),
            "content-length" => length = value.parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { method, target, authorization, body: String::from_utf8(body).ok()? })
}
