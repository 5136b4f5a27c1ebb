//! `artel completions` and `artel man`: what can be made from the flags alone.

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
    let man = clap_mangen::Man::new(command);
    man.render(&mut page)?;
    print(&page)
}

fn print(page: &[u8]) -> Result<u8, Failure> {
    printer::data(&String::from_utf8_lossy(page))?;
    Ok(OK)
}
