//! `gangway check FILE`

mod issuers;
mod online;

use std::fmt::Write;
use std::process::ExitCode;

use super::{CONFIGURATION, CheckArgs, OK, named_files, say};
use crate::config::{self, Address, Config, Listen, Loaded, Method, Server};

/// Checks a file and says what it serves. Problems and warnings go to standard error.
pub(super) fn run(args: &CheckArgs) -> ExitCode {
    let loaded = match config::load(&args.file, &|name| std::env::var(name).ok()) {
        Ok(loaded) => loaded,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(CONFIGURATION);
        }
    };
    if let Some(problems) = named_files::look(&loaded) {
        eprintln!("{problems}");
        return ExitCode::from(CONFIGURATION);
    }
    for warning in &loaded.warnings {
        eprintln!("warning: {warning}");
    }
    let mut text = summary(&loaded.config);
    if args.explain {
        text.push('\n');
        text.push_str(&explanation(&loaded));
    }
    let found = if args.online { online::look(&loaded.config) } else { online::Found::default() };
    text.push_str(&found.report);
    for warning in &found.warnings {
        eprintln!("warning: {warning}");
    }
    for problem in &found.problems {
        eprintln!("{problem}");
    }
    say(&text, if found.problems.is_empty() { OK } else { CONFIGURATION })
}

/// Every URL that is served, a line each: the server, the URL, who may come in.
fn summary(config: &Config) -> String {
    let mut rows: Vec<[String; 3]> = Vec::new();
    for (name, server) in &config.servers {
        for url in urls(&config.listen, server) {
            rows.push([name.to_string(), url, admission(server)]);
        }
    }
    let mut own = |base: &str, path: &str, note: &str| {
        rows.push(["-".to_owned(), format!("{base}{path}"), note.to_owned()]);
    };
    if config.listen.health {
        for base in bases(&config.listen) {
            own(&base, "/livez", "health");
            own(&base, "/readyz", "health");
        }
    }
    if let Some(address) = &config.admin.address {
        for (path, note) in [("/metrics", "admin"), ("/livez", "health"), ("/readyz", "health")] {
            own(&base("http", address), path, note);
        }
    }
    let widths = [0, 1].map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for [name, url, note] in &rows {
        line(&mut text, format_args!("{name:0$}  {url:1$}  {note}", widths[0], widths[1]));
    }
    text
}

/// Every URL of one server.
fn urls(listen: &Listen, server: &Server) -> Vec<String> {
    let bases = bases(listen);
    server.paths().iter().flat_map(|path| bases.iter().map(move |base| format!("{base}{path}"))).collect()
}

/// What stands before the path of a URL: the public URL where there is one, then each address with the same prefix.
fn bases(listen: &Listen) -> Vec<String> {
    let prefix = listen.public_url.as_ref().map_or("", |url| url.path.as_str());
    let public = listen.public_url.iter().map(ToString::to_string);
    public.chain(listen.address.iter().map(|address| format!("{}{prefix}", base(listen.scheme(), address)))).collect()
}

fn base(scheme: &str, address: &Address) -> String {
    match address {
        Address::Tcp { .. } => format!("{scheme}://{address}"),
        Address::Unix(path) => format!("unix:{} ", path.display()),
    }
}

fn admission(server: &Server) -> String {
    if server.auth.methods.contains(&Method::None) { "no authentication".to_owned() } else { server.auth.names() }
}

/// Every key with its value and who set it.
fn explanation(loaded: &Loaded) -> String {
    let lines: Vec<String> = loaded.effective.iter().map(|one| format!("{} = {}", one.key, one.value)).collect();
    let width = lines.iter().map(|line| line.chars().count()).filter(|width| *width <= 60).max().unwrap_or(0);
    let mut text = String::new();
    for (left, effective) in lines.iter().zip(&loaded.effective) {
        line(&mut text, format_args!("{left:width$}  # {}", effective.origin.as_str()));
    }
    text
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{explanation, named_files, summary};
    use crate::config::{Loaded, parse};

    fn loaded(text: &str) -> Loaded {
        let environment = |name: &str| (name == "TOKEN").then(|| "s3cret".to_owned());
        parse(text, "a.toml", Path::new("/etc/gangway"), &environment).expect("the configuration is good")
    }

    #[test]
    fn every_url_is_printed() {
        let text = r#"
            listen = { address = ["localhost:8080", "unix:/run/g.sock"], public_url = "http://localhost:9/tools", health = true }
            [servers.files]
            command = "files"
            legacy_sse = true
            [servers.mail]
            command = "mail"
            path = "/post/"
        "#;
        let summary = summary(&loaded(text).config);
        for url in [
            "http://localhost:9/tools/files/mcp",
            "http://localhost:9/tools/files/sse",
            "http://localhost:8080/tools/files/messages",
            "unix:/run/g.sock /tools/post",
            "http://localhost:8080/tools/readyz",
            "http://127.0.0.1:9464/metrics",
        ] {
            assert!(summary.contains(&format!(" {url} ")), "{url} is not in\n{summary}");
        }
    }

    #[test]
    fn files_that_cannot_be_used_are_found_at_the_key_that_names_them() {
        let text = "listen.tls.certificates = [{ cert = \"no.pem\", key = \"no.key\" }]\n\
             telemetry.log.audit = \"/no/such/folder/audit\"\n";
        let found = named_files::look(&loaded(text)).expect("none of them is there");
        let places: Vec<_> = found.iter().map(|problem| (problem.position(), problem.message())).collect();
        assert_eq!(places.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [Some((1, 27)), Some((2, 23))]);
        assert!(places[0].1.contains("/etc/gangway/no.pem cannot be read"), "{found}");
        assert!(places[1].1.contains("/no/such/folder/audit cannot be written"), "{found}");
    }

    #[test]
    fn the_explanation_names_origins_and_hides_secrets() {
        let text = r#"
            admin.token = "s3cret"
            [server_defaults]
            pool.max_size = 3
            env.A = "s3cret"
            [servers.files]
            command = "files"
            args = ["--token", "s3cret", "${TOKEN}"]
            env = { B = "${TOKEN}", C = "x${TOKEN:-s3cret}" }
        "#;
        let explanation = explanation(&loaded(text));
        for (line, origin) in [
            ("admin.token = (hidden)", "file"),
            ("servers.files.pool.max_size = 3", "server_defaults"),
            ("servers.files.pool.min_idle = 1", "default"),
            ("servers.files.env.A = (hidden)", "server_defaults"),
            ("servers.files.env.B = \"${TOKEN}\"", "file"),
            ("servers.files.env.C = (hidden)", "file"),
            ("servers.files.args = [\"--token\", \"(hidden)\", \"${TOKEN}\"]", "file"),
            ("limits.body_bytes = \"8MiB\"", "default"),
        ] {
            let found = explanation.lines().find(|candidate| candidate.starts_with(line));
            let found = found.unwrap_or_else(|| panic!("{line} is not in\n{explanation}"));
            assert!(found.ends_with(&format!("# {origin}")), "{found}");
        }
        assert!(!explanation.contains("s3cret"), "{explanation}");
    }
}
