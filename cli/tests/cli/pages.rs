//! The page of commands is what `--help` says.

use std::path::Path;

use crate::screen::{artel, text};

const BEGIN: &str = "<!-- begin of what --help says -->\n";
const END: &str = "<!-- end of what --help says -->\n";

/// The commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let list = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
    let list = list.split("\n\n").next().unwrap_or_default();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The help of a command and of those below it; options that all of them have are left out.
fn describe(page: &mut String, words: &[&str], common: &[String]) {
    let mut args = words.to_vec();
    args.push("--help");
    let help = text(&artel(&args).stdout);
    let blocks = help.split("\n\n").filter(|block| !common.contains(&block.trim().to_owned()));
    let blocks: Vec<&str> = blocks.collect();
    // A heading without options of its own.
    let headings = ["Connection:", "Log:", "Private server:"];
    let shown: Vec<&str> =
        blocks.into_iter().filter(|block| !headings.contains(&block.trim())).collect();
    let shown: Vec<&str> = shown.iter().flat_map(|block| block.lines().chain([""])).collect();
    let shown: Vec<&str> = shown.into_iter().map(str::trim_end).collect();
    let name = words.join(" ");
    let title = if words.is_empty() { "artel".to_owned() } else { format!("artel {name}") };
    page.push_str(&format!("## `{title}`\n\n```text\n{}\n```\n\n", shown.join("\n").trim()));
    for command in commands(&help) {
        let below: Vec<&str> = words.iter().copied().chain([command.as_str()]).collect();
        describe(page, &below, common);
    }
}

/// `ARTEL_WRITE_PAGES=1 cargo test -p artel-cli --test cli pages` writes it.
#[test]
fn the_page_of_commands_is_what_help_says() {
    // What the program itself takes, every command takes, too.
    let root = text(&artel(&["--help"]).stdout);
    let (_, options) = root.split_once("\nOptions:\n").expect("options");
    let common: Vec<String> = options.split("\n\n").map(|block| block.trim().to_owned()).collect();
    let mut described = String::new();
    describe(&mut described, &[], &[]);
    let top = described.split("## `artel run`").next().unwrap_or_default().to_owned();
    let mut rest = String::new();
    for command in commands(&root) {
        describe(&mut rest, &[&command], &common);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/commands.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (before, tail) = page.split_once(BEGIN).expect("its beginning");
    let (_, after) = tail.split_once(END).expect("its end");
    let whole = format!("{before}{BEGIN}\n{top}{rest}{END}{after}");
    if std::env::var_os("ARTEL_WRITE_PAGES").is_some() {
        std::fs::write(&path, &whole).expect("written");
    } else {
        assert!(page == whole, "docs/commands.md is old: run this test with ARTEL_WRITE_PAGES=1");
    }
}
