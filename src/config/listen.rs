//! `[listen]` and `[admin]`.

use super::address::is_loopback_host;
use super::convert::{Refused, mismatch, text};
use super::document::{Node, Value};
use super::meaning::{Address, Admin, Listen, Network, PublicUrl};
use super::report::{shown, shown_secret};
use super::section::Section;
use super::tls;
use super::url::{parse_allowed_host, parse_origin};

/// The default of `listen.address`.
const ADDRESS: &str = "localhost:8080";

/// Reads `[listen]`.
pub(super) fn read(mut section: Section<'_>) -> Listen {
    Listen {
        address: addresses(&mut section),
        public_url: section.parsed("public_url", "", PublicUrl::parse),
        allowed_hosts: section.list("allowed_hosts", parse_allowed_host),
        allowed_origins: section.list("allowed_origins", parse_origin),
        health: section.boolean("health", false),
        page: section.boolean("page", true),
        trusted_proxies: section.list("trusted_proxies", Network::parse),
        tls: tls::read(section.table("tls")),
    }
}

/// Reads `address`: one string or several.
fn addresses(section: &mut Section<'_>) -> Vec<Address> {
    const KEY: &str = "address";
    let node = section.take(KEY);
    section.record(KEY, node, node.map_or_else(|| format!("[\"{ADDRESS}\"]"), |node| shown(&node.value)));
    let base = section.report.base;
    let parse = |text: &str| Address::parse(text, base);
    let default = || vec![parse(ADDRESS).expect("the default address is valid")];
    let Some(node) = node else {
        return default();
    };
    let found = match &node.value {
        Value::Array(items) => section.items(KEY, items, parse),
        Value::Text(_) => section.items(KEY, std::slice::from_ref(node), parse),
        Value::Unfilled => return default(),
        other => {
            section.refuse(KEY, Some(&node.place), mismatch(other, "write \"host:port\", or an array of those"));
            return default();
        }
    };
    refuse_repeated(section, node, &found);
    found
}

/// Refuses an empty list and an address that stands in it twice, which could not be bound twice.
fn refuse_repeated(section: &Section<'_>, node: &Node, addresses: &[Address]) {
    if matches!(&node.value, Value::Array(items) if items.is_empty()) {
        let remedy = format!("write at least one address, such as [\"{ADDRESS}\"]");
        section.refuse("address", Some(&node.place), Refused::new("is empty", remedy));
    }
    for (at, address) in addresses.iter().enumerate() {
        let chosen_by_system = matches!(address, Address::Tcp { port: 0, .. });
        if !chosen_by_system && addresses[..at].contains(address) {
            let refused = Refused::new(format!("holds {address} twice"), "leave one of them out");
            section.refuse("address", Some(&node.place), refused);
        }
    }
}

/// Reads `[admin]`, given where clients are listened for.
pub(super) fn read_admin(mut section: Section<'_>, listen: &[Address]) -> Admin {
    let base = section.report.base;
    let default = Value::plain("127.0.0.1:9464");
    let address = section.value("address", &default, |value| match text(value)? {
        "off" => Ok(None),
        "" => Err(Refused::new("is empty", "write \"off\" to switch it off")),
        text => Address::parse(text, base).map(Some),
    });
    if let Some(taken) = address.as_ref().filter(|address| listen.iter().any(|other| overlap(other, address))) {
        let refused = Refused::new(format!("is {taken}, which [listen] uses already"), "give it a port of its own");
        section.refuse("address", section.place("address").as_ref(), refused);
    }
    let node = section.take("token");
    section.record("token", node, node.map_or_else(|| "\"\"".to_owned(), |node| shown_secret(&node.value)));
    let token = node.filter(|node| !matches!(node.value, Value::Unfilled)).and_then(|node| match text(&node.value) {
        Ok("") => None,
        Ok(token) => Some(token.to_owned()),
        Err(refused) => {
            section.refuse("token", Some(&node.place), refused);
            None
        }
    });
    Admin { address, token }
}

/// Whether binding both must fail.
fn overlap(a: &Address, b: &Address) -> bool {
    match (a, b) {
        (Address::Tcp { port: 0, .. }, _) | (_, Address::Tcp { port: 0, .. }) => false,
        (Address::Tcp { host: a, port: x }, Address::Tcp { host: b, port: y }) => {
            let localhost = |name: &str, other: &str| name == "localhost" && is_loopback_host(other);
            x == y && (a == b || localhost(a, b) || localhost(b, a))
        }
        (a, b) => a == b,
    }
}
