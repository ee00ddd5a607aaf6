//! The resources: two that stay, one that changes, and a template.

use serde_json::{Value, json};

/// The resource that `update_resource` changes.
pub(super) const COUNTER: &str = "demo://counter";

const WELCOME: &str = "demo://welcome";
const PIXEL: &str = "demo://pixel";
const TEMPLATE: &str = "demo://square/{number}";
const SQUARE: &str = "demo://square/";

/// A PNG of one red pixel.
const PIXEL_PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

/// What completion offers at most (utilities, "Completion").
const COMPLETIONS: usize = 100;

/// The part of the resources that changes.
#[derive(Default)]
pub(super) struct Resources {
    counter: u64,
}

impl Resources {
    /// Changes the counter.
    pub(super) fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// The contents of one resource; `None` if there is none at this URI.
    pub(super) fn read(&self, uri: &str) -> Option<Value> {
        let text = match uri {
            WELCOME => return Some(welcome()),
            PIXEL => {
                return Some(json!({ "uri": PIXEL, "mimeType": "image/png", "blob": PIXEL_PNG }));
            }
            COUNTER => self.counter.to_string(),
            _ => {
                let number: u32 = uri.strip_prefix(SQUARE)?.parse().ok()?;
                (u64::from(number) * u64::from(number)).to_string()
            }
        };
        Some(json!({ "uri": uri, "mimeType": "text/plain", "text": text }))
    }
}

/// The contents of the welcome resource.
pub(super) fn welcome() -> Value {
    let text = "This is the demo server that comes with Gangway. Its tools echo, add, wait, ask back, \
                log and report progress, so that a client can be tried out without any other server.";
    json!({ "uri": WELCOME, "mimeType": "text/plain", "text": text })
}

/// What `resources/list` answers.
pub(super) fn list() -> Value {
    json!({ "resources": [
        { "uri": WELCOME, "name": "welcome", "description": "What this server is", "mimeType": "text/plain" },
        { "uri": PIXEL, "name": "pixel", "description": "A red pixel", "mimeType": "image/png" },
        { "uri": COUNTER, "name": "counter", "description": "How often update_resource was called", "mimeType": "text/plain" },
    ]})
}

/// What `resources/templates/list` answers.
pub(super) fn templates() -> Value {
    json!({ "resourceTemplates": [{
        "uriTemplate": TEMPLATE,
        "name": "square",
        "description": "A whole number, squared",
        "mimeType": "text/plain",
    }]})
}

/// The numbers below a hundred that begin with `typed`, for the variable of the template.
pub(super) fn complete(template: &str, variable: &str, typed: &str) -> Vec<String> {
    if (template, variable) != (TEMPLATE, "number") {
        return Vec::new();
    }
    let numbers = (0..100).map(|number: u32| number.to_string());
    numbers.filter(|number| number.starts_with(typed)).take(COMPLETIONS).collect()
}

/// Whether completion knows this template or resource.
pub(super) fn exists(uri: &str) -> bool {
    matches!(uri, TEMPLATE | WELCOME | PIXEL | COUNTER)
}

#[cfg(test)]
mod tests {
    use super::{COUNTER, Resources, complete, list};

    #[test]
    fn every_listed_resource_can_be_read() {
        let resources = Resources::default();
        for listed in list()["resources"].as_array().unwrap() {
            let uri = listed["uri"].as_str().unwrap();
            assert_eq!(resources.read(uri).unwrap()["mimeType"], listed["mimeType"], "{uri}");
        }
    }

    #[test]
    fn the_template_squares_and_the_counter_counts() {
        let mut resources = Resources::default();
        assert_eq!(resources.read("demo://square/65536").unwrap()["text"], "4294967296");
        assert!(resources.read("demo://square/-1").is_none());
        assert!(resources.read("demo://nowhere").is_none());
        resources.count();
        assert_eq!(resources.read(COUNTER).unwrap()["text"], "1");
    }

    #[test]
    fn numbers_are_completed_by_prefix() {
        assert_eq!(complete("demo://square/{number}", "number", "9").len(), 11);
        assert!(complete("demo://square/{number}", "other", "9").is_empty());
    }
}
