//! The `gangway` command.

fn main() {}
