//! Who may talk to this listener at all, judged by the head alone, before anything is read or
//! looked up, `OPTIONS` included.
//!
//! A page on a foreign site can reach a server on this machine by pointing a name it owns at
//! 127.0.0.1. It cannot choose what the browser writes into `Host` and `Origin`; so names must be
//! known, and an address, which nobody can rebind, is welcome.

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use http::{Method, Request, Uri, Version};
use http_body::Body;

use crate::caller::Malformed;
use crate::config::Listen;

use super::origin::{Authority, Host, Origin};
use super::refusal::Refused;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The rules of one listener.
#[derive(Clone, Debug)]
pub struct Guard {
    hosts: Vec<String>,
    origins: Vec<Origin>,
    header_fields: usize,
}

/// What the guard found out about a request it let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The origin the request came from, as it was written; `None` is no browser, or the same site.
    pub origin: Option<HeaderValue>,
}

impl Guard {
    /// The rules of `listen`: the host and the origin of `public_url`, `allowed_hosts` and
    /// `allowed_origins`, beside those every listener has. `header_fields` is the limit of that
    /// name.
    #[must_use]
    pub fn new(listen: &Listen, header_fields: usize) -> Guard {
        let mut hosts = listen.allowed_hosts.clone();
        let mut origins: Vec<Origin> = listen.allowed_origins.iter().map(|origin| Origin::parse(origin)).collect();
        if let Some(url) = &listen.public_url {
            let port = url.port.map(|port| format!(":{port}")).unwrap_or_default();
            let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
            origins.push(Origin::parse(&format!("{}://{host}{port}", url.scheme)));
            hosts.push(url.host.clone());
        }
        Guard { hosts, origins, header_fields }
    }

    /// Judges a head. `local_bind` says that only this machine can reach the socket it came by.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn check<B>(&self, request: &Request<B>, local_bind: bool) -> Result<Admitted, Refused> {
        if request.headers().len() > self.header_fields {
            return Err(Refused::TooManyFields);
        }
        self.check_host(request, local_bind)?;
        self.check_origin(request.headers(), local_bind)
    }

    /// Refuses content where it has no meaning: what reads it as the next request, or hands it on as one, is fooled
    /// (RFC 9110 section 9.3.1). In HTTP/2 nothing can be.
    ///
    /// # Errors
    /// There is some.
    pub fn check_content<B: Body>(request: &Request<B>) -> Result<(), Refused> {
        let takes_none = matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE | Method::TRACE);
        let has_some = request.version() < Version::HTTP_2 && !request.body().is_end_stream();
        if takes_none && has_some { Err(Refused::Malformed(Malformed::Content)) } else { Ok(()) }
    }

    /// Judges a head that asks for what is public: any page may, but no name that is not served here.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn check_public<B>(&self, request: &Request<B>, local_bind: bool) -> Result<Admitted, Refused> {
        if request.headers().len() > self.header_fields {
            return Err(Refused::TooManyFields);
        }
        self.check_host(request, local_bind).map(|()| Admitted { origin: None })
    }

    fn check_host<B>(&self, request: &Request<B>, local_bind: bool) -> Result<(), Refused> {
        let mut values = request.headers().get_all(HOST).iter();
        if let (Version::HTTP_2, None, Some(target)) =
            (request.version(), request.headers().get(HOST), request.uri().authority())
        {
            // There it is `:authority`, in which a client names the host instead (RFC 9113, 8.3.1).
            let authority = Authority::parse(target.as_str()).ok_or(Refused::HostForbidden)?;
            return self.check_authority(authority, local_bind);
        }
        let value = match (values.next(), values.next()) {
            (Some(value), None) => value,
            // Before HTTP/1.1 there need be none, but a name we cannot see is one we cannot know.
            (None, _) if request.version() < Version::HTTP_11 => {
                return Err(Refused::HostForbidden);
            }
            // RFC 9112 section 3.2 wants 400 for none and for several.
            _ => return Err(Refused::HostMalformed),
        };
        let value = value.to_str().map_err(|_| Refused::HostForbidden)?;
        let authority = Authority::parse(value).ok_or(Refused::HostForbidden)?;
        if !target_agrees(request.uri(), authority) {
            return Err(Refused::HostDisagrees);
        }
        self.check_authority(authority, local_bind)
    }

    fn check_authority(&self, authority: Authority<'_>, local_bind: bool) -> Result<(), Refused> {
        let known = match authority.host {
            Host::Ip(_) => true,
            // The port plays no part: proxies drop and change it, and rebinding needs a name.
            Host::Name(name) => {
                (local_bind && authority.host.is_loopback())
                    || self.hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
            }
        };
        if known { Ok(()) } else { Err(Refused::HostForbidden) }
    }

    fn check_origin(&self, headers: &HeaderMap, local_bind: bool) -> Result<Admitted, Refused> {
        let mut values = headers.get_all(ORIGIN).iter();
        let value = match (values.next(), values.next()) {
            (None, _) => {
                // A browser that leaves Origin out still says here that a foreign page asked.
                let foreign = headers
                    .get_all(SEC_FETCH_SITE)
                    .iter()
                    .any(|site| site.as_bytes().eq_ignore_ascii_case(b"cross-site"));
                return if foreign { Err(Refused::OriginForbidden) } else { Ok(Admitted { origin: None }) };
            }
            (Some(value), None) => value,
            (Some(_), Some(_)) => return Err(Refused::OriginForbidden),
        };
        let origin = value.to_str().map_err(|_| Refused::OriginForbidden)?;
        let origin = Origin::parse(origin);
        if (local_bind && origin.is_loopback) || self.origins.contains(&origin) {
            // A copy: it is kept until the answer, and would keep the connection's read buffer.
            Ok(Admitted { origin: HeaderValue::from_bytes(value.as_bytes()).ok() })
        } else {
            Err(Refused::OriginForbidden)
        }
    }
}

/// Whether a target in absolute form names the host of `Host` (RFC 9112 section 3.2.2 lets the
/// target win; two answers to "which host" are refused instead).
fn target_agrees(target: &Uri, host: Authority<'_>) -> bool {
    let Some(authority) = target.authority() else {
        return true;
    };
    let default_port = if target.scheme_str() == Some("https") { 443 } else { 80 };
    Authority::parse(authority.as_str()).is_some_and(|target| {
        target.host.same(host.host) && target.port.unwrap_or(default_port) == host.port.unwrap_or(default_port)
    })
}

#[cfg(test)]
mod tests {
    use http::{Request, Version};

    use super::{Admitted, Guard};
    use crate::config::{Listen, PublicUrl};
    use crate::http::refusal::Refused;

    fn guard() -> Guard {
        Guard::new(
            &Listen {
                address: Vec::new(),
                public_url: Some(PublicUrl {
                    scheme: "https".into(),
                    host: "public.example".into(),
                    port: None,
                    path: "/base".into(),
                }),
                allowed_hosts: vec!["mcp.example.com".into()],
                allowed_origins: vec!["https://app.example.com".into()],
                health: false,
                page: true,
                trusted_proxies: Vec::new(),
                proxy_protocol: false,
                tls: None,
            },
            8,
        )
    }

    fn judge(target: &str, headers: &[(&str, &str)], local_bind: bool) -> Result<Admitted, Refused> {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        guard().check(&request.body(()).expect("the head is legal"), local_bind)
    }

    fn host(host: &str, local_bind: bool) -> Result<Admitted, Refused> {
        judge("/mcp", &[("host", host)], local_bind)
    }

    fn origin(origin: &str, local_bind: bool) -> Result<Admitted, Refused> {
        judge("/mcp", &[("host", "127.0.0.1"), ("origin", origin)], local_bind)
    }

    #[test]
    fn known_names_and_any_address_are_served() {
        for name in [
            "mcp.example.com",
            "MCP.Example.COM:443",
            "mcp.example.com:80",
            "public.example",
            "public.example:8443",
            "127.0.0.1",
            "10.1.2.3:8080",
            "[::1]:8080",
            "[2001:db8::1]",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(host(name, false).is_ok(), "{name}");
        }
        for name in ["localhost", "LocalHost:3000"] {
            assert!(host(name, true).is_ok(), "{name}");
            assert_eq!(host(name, false), Err(Refused::HostForbidden), "{name} off loopback");
        }
    }

    #[test]
    fn every_other_host_is_refused() {
        for name in [
            "evil.test:8080",
            "localhost.evil.test",
            "evil.localhost",
            "localhost.",
            "mcp.example.com.",
            "xn--lcalhost-yfb",
            "user@127.0.0.1",
            "127.0.0.1@evil.test",
            "",
            "127.1",
            "0x7f000001",
            "mcp.example.com.evil.test",
            "localhost:http",
            "a,localhost",
        ] {
            assert_eq!(host(name, true), Err(Refused::HostForbidden), "{name}");
        }
        assert_eq!(judge("/", &[], true), Err(Refused::HostMalformed));
        assert_eq!(judge("/", &[("host", "localhost"), ("host", "localhost")], true), Err(Refused::HostMalformed));
        let old = Request::builder().version(Version::HTTP_10).body(()).expect("the head is legal");
        assert_eq!(guard().check(&old, true), Err(Refused::HostForbidden));
    }

    #[test]
    fn an_absolute_target_must_name_the_same_host() {
        let host = [("host", "mcp.example.com")];
        assert!(judge("http://mcp.example.com/mcp", &host, false).is_ok());
        assert!(judge("https://MCP.example.com:443/mcp", &host, false).is_ok());
        for target in ["http://evil.test/mcp", "http://mcp.example.com:81/mcp", "http://user@mcp.example.com/mcp"] {
            assert_eq!(judge(target, &host, false), Err(Refused::HostDisagrees), "{target}");
        }
    }

    #[test]
    fn origins_pass_by_list_by_public_url_and_by_loopback() {
        for allowed in ["https://app.example.com", "https://app.example.com:443", "https://public.example"] {
            let admitted = origin(allowed, false).expect("it is listed");
            assert_eq!(admitted.origin.expect("it was there"), allowed);
        }
        for loopback in ["http://localhost:6274", "http://127.0.0.1:5173", "https://[::1]"] {
            assert!(origin(loopback, true).is_ok(), "{loopback}");
            assert_eq!(origin(loopback, false), Err(Refused::OriginForbidden), "{loopback} off loopback");
        }
        for foreign in [
            "http://evil.test",
            "null",
            "",
            "http://localhost.evil.test",
            "https://app.example.com.evil.example",
            "http://app.example.com",
            "https://app.example.com/",
            "https://app.example.com https://evil.test",
            "http://public.example",
        ] {
            assert_eq!(origin(foreign, true), Err(Refused::OriginForbidden), "{foreign}");
        }
        let two = [("host", "127.0.0.1"), ("origin", "http://localhost"), ("origin", "http://localhost")];
        assert_eq!(judge("/", &two, true), Err(Refused::OriginForbidden));
    }

    #[test]
    fn without_an_origin_only_a_cross_site_page_is_refused() {
        assert_eq!(judge("/", &[("host", "127.0.0.1")], false), Ok(Admitted { origin: None }));
        for (site, passes) in
            [("none", true), ("same-origin", true), ("same-site", true), ("cross-site", false), ("Cross-Site", false)]
        {
            assert_eq!(judge("/", &[("host", "127.0.0.1"), ("sec-fetch-site", site)], true).is_ok(), passes, "{site}");
        }
        let listed = [("host", "127.0.0.1"), ("origin", "https://app.example.com"), ("sec-fetch-site", "cross-site")];
        assert!(judge("/", &listed, true).is_ok(), "an origin that is listed speaks for itself");
    }

    #[test]
    fn null_passes_where_it_is_listed() {
        let mut listen = Listen {
            address: Vec::new(),
            public_url: None,
            allowed_hosts: Vec::new(),
            allowed_origins: vec!["null".into()],
            health: false,
            page: true,
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
            tls: None,
        };
        let head = || Request::builder().header("host", "127.0.0.1").header("origin", "null").body(()).expect("legal");
        assert!(Guard::new(&listen, 8).check(&head(), true).is_ok());
        listen.allowed_origins.clear();
        assert!(Guard::new(&listen, 8).check(&head(), true).is_err());
    }

    #[test]
    fn fields_are_counted_with_their_repeats() {
        let mut headers = vec![("host", "127.0.0.1")];
        headers.extend([("x", "y"); 7]);
        assert!(judge("/", &headers, false).is_ok());
        headers.push(("x", "y"));
        assert_eq!(judge("/", &headers, false), Err(Refused::TooManyFields));
    }
}
