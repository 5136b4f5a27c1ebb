//! `artel completions` and `artel man`: made from the definitions of the options.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::args;
use crate::exit::{Failure, NOT_FOUND, OK};
use crate::printer;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "artel", &mut script);
    print(&script)
}

/// The manual page of the program, or of one command.
pub(crate) fn man(words: &[String]) -> Result<u8, Failure> {
    let mut command = args::command();
    for word in words {
        let found = command.find_subcommand(word).cloned();
        command = found.ok_or_else(|| {
            Failure::new(NOT_FOUND, format!("there is no command {:?}", words.join(" ")))
                .hint("`artel --help` shows the commands")
        })?;
    }
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone());
    man.render(&mut page)?;
    // Not on a terminal: the page is for another program.
    if printer::screen().width.is_none() {
        return print(&page);
    }
    if paged(&["man", "-l", "-"], &page) {
        return Ok(OK);
    }
    let help = command.render_long_help().to_string();
    let pager = std::env::var("PAGER").unwrap_or_else(|_| "less".to_owned());
    let words: Vec<&str> = pager.split_whitespace().collect();
    if !words.is_empty() && paged(&words, help.as_bytes()) {
        return Ok(OK);
    }
    print(help.as_bytes())
}

/// Shows the text with a program; false if the program does not exist or fails.
fn paged(words: &[&str], text: &[u8]) -> bool {
    let [program, rest @ ..] = words else { return false };
    let child =
        Command::new(program).args(rest).stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = child else { return false };
    if let Some(mut stdin) = child.stdin.take() {
        // If the user quits early, the rest is not needed.
        let _ = stdin.write_all(text);
    }
    child.wait().is_ok_and(|status| status.success())
}

fn print(page: &[u8]) -> Result<u8, Failure> {
    printer::data(&String::from_utf8_lossy(page))?;
    Ok(OK)
}
