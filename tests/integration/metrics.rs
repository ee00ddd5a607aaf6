//! What `/metrics` says (Prometheus text exposition format 0.0.4).

use std::collections::BTreeMap;
use std::fmt;

/// One scrape.
#[derive(Clone, Debug)]
pub struct Metrics {
    series: Vec<Series>,
}

#[derive(Clone, Debug)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Reads a scrape; fails on a line that is none.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series = lines.map(|line| Series::parse(line).unwrap_or_else(|| panic!("no series: {line:?}")));
        Self { series: series.collect() }
    }

    /// The sum of the series that carry at least these labels; `None` if there is none.
    /// The name goes without `gangway_`; `_count`, `_sum` and `process_…` are names as any.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let ours = format!("gangway_{name}");
        let mut values = self
            .series
            .iter()
            .filter(|series| series.name == ours || series.name == name)
            .filter(|series| series.has(labels))
            .map(|series| series.value)
            .peekable();
        values.peek()?;
        Some(values.sum())
    }

    /// As [`Metrics::value`]; a series not there counts as zero, for counters before their first use.
    /// Fails on a name that is not documented: it would be zero for ever.
    #[track_caller]
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let family = name.strip_suffix("_count").or(name.strip_suffix("_sum")).unwrap_or(name);
        let documented = include_str!("../../docs/operation.md").contains(&format!("`{family}`"));
        assert!(documented || family.starts_with("process_"), "there is no metric {name}");
        self.value(name, labels).unwrap_or(0.0)
    }

    /// How many series there are.
    pub fn len(&self) -> usize {
        self.series.len()
    }
}

impl Series {
    fn parse(line: &str) -> Option<Self> {
        let (key, value) = line.rsplit_once(' ')?;
        let (name, labels) = match key.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (key, ""),
        };
        Some(Self { name: name.to_owned(), labels: parse_labels(labels)?, value: value.parse().ok()? })
    }

    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(*name).is_some_and(|own| own == value))
    }
}

/// `a="x",b="y"`, with `\\`, `\"` and `\n` in the values.
fn parse_labels(mut rest: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_owned(), value);
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some(labels)
}

impl fmt::Display for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Series { name, labels, value } in &self.series {
            writeln!(formatter, "{name}{labels:?} {value}")?;
        }
        Ok(())
    }
}

#[test]
fn a_scrape_is_read() {
    let text = "# HELP a b\n# TYPE gangway_a counter\ngangway_a{x=\"1\",y=\"q\\\"\\\\\\n,}\"} 2\n\
                gangway_a{x=\"2\"} 3.5\ngangway_a_bucket{le=\"+Inf\"} 1\nprocess_open_fds 7\n";
    let metrics = Metrics::parse(text);
    assert_eq!(metrics.value("a", &[]), Some(5.5));
    assert_eq!(metrics.value("a", &[("y", "q\"\\\n,}")]), Some(2.0));
    assert_eq!(metrics.value("a", &[("x", "3")]), None);
    assert_eq!(metrics.value("process_open_fds", &[]), Some(7.0));
    assert_eq!(metrics.len(), 4);
}
