//! "Did you mean …": the known name nearest to an unknown one.

/// The known name nearest to `unknown`, if one is near enough to be meant.
///
/// Near enough is at most one edit for each three characters of the longer name (a swap of neighbours is one edit),
/// not counting case and the choice between `-` and `_`.
pub(super) fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(unknown);
    known
        .into_iter()
        .map(|name| (strsim::osa_distance(&folded, &fold(name)), name))
        .filter(|(distance, name)| *distance <= (unknown.len().max(name.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

fn fold(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        let known = ["address", "public_url", "allowed_hosts", "health", "page"];
        for (unknown, expected) in [
            ("adress", Some("address")),
            ("publicUrl", Some("public_url")),
            ("public-url", Some("public_url")),
            ("allowed_host", Some("allowed_hosts")),
            ("helath", Some("health")),
            ("pages", Some("page")),
            ("timeout", None),
            ("x", None),
        ] {
            assert_eq!(nearest(unknown, known), expected, "{unknown}");
        }
    }
}
