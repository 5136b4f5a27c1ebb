//! Functions that several scripts share.
//!
//! **Invariant:** a script gets those functions that its head names behind `Uses`, and no others; without
//! that line it is sent as it is.

/// Every function, each under a comment that says what it does.
const PRELUDE: &str = concat!(include_str!("prelude.lua"), include_str!("control.lua"));

/// How the line of a script's head begins that names them.
const USES: &str = "-- Uses    ";

/// A script with the functions that it uses before it, behind its first line, which is for Redis.
///
/// # Panics
///
/// If there is no such function: a script that calls it would fail.
pub(crate) fn with_prelude(source: &str) -> String {
    let uses = source.lines().find_map(|line| line.strip_prefix(USES));
    let Some((uses, (flags, rest))) = uses.zip(source.split_once('\n')) else {
        return source.to_owned();
    };
    let functions: String = uses.split(',').map(|name| function(name.trim())).collect();
    format!("{flags}\n{functions}{rest}")
}

/// The text of one function, without its comment.
fn function(name: &str) -> String {
    let head = format!("local function {name}(");
    let mut lines = PRELUDE.lines().skip_while(|line| !line.starts_with(&head)).peekable();
    assert!(lines.peek().is_some(), "neither prelude.lua nor control.lua has a function {name:?}");
    let mut text = String::new();
    for line in lines {
        text.push_str(line);
        text.push('\n');
        // A function of one line ends with it.
        if line == "end" || (line.starts_with("local function ") && line.ends_with(" end")) {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_gets_the_functions_it_names_and_no_others() {
        let script = "#!lua flags=allow-oom\n-- Says the time.\n-- Uses    clock, whole\nreturn whole(clock())\n";
        let whole = with_prelude(script);
        assert!(whole.starts_with("#!lua flags=allow-oom\nlocal function clock()\n"), "{whole}");
        assert_eq!(whole.matches("local function").count(), 2, "{whole}");
        assert!(whole.ends_with("return whole(clock())\n"));
        assert_eq!(with_prelude("#!lua\nreturn 1\n"), "#!lua\nreturn 1\n");
    }
}
