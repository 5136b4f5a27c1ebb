//! Functions that several scripts share.
//!
//! **Invariant:** a script gets the functions that its head names behind `Uses`, those that they call, and no
//! others. Without that line it is sent unchanged.

/// Every function, each under a comment that says what it does.
const PRELUDE: &str = concat!(include_str!("prelude.lua"), include_str!("control.lua"));

/// The start of the line in a script's head that names its functions.
const USES: &str = "-- Uses    ";

/// The script, with the functions it uses inserted behind its first line, which is for Redis.
///
/// # Panics
///
/// If a named function does not exist. A script that calls it would fail.
pub(crate) fn with_prelude(source: &str) -> String {
    let uses = source.lines().find_map(|line| line.strip_prefix(USES));
    let Some((uses, (flags, rest))) = uses.zip(source.split_once('\n')) else {
        return source.to_owned();
    };
    let mut functions = Vec::new();
    uses.split(',').for_each(|name| collect(name.trim(), &mut functions));
    let functions: String = functions.into_iter().map(|(_, text)| text).collect();
    format!("{flags}\n{functions}{rest}")
}

/// Adds a function, and before it those that it calls.
fn collect(name: &str, functions: &mut Vec<(String, String)>) {
    if functions.iter().any(|(known, _)| known == name) {
        return;
    }
    let text = function(name);
    for other in PRELUDE.lines().filter_map(|line| line.strip_prefix("local function ")) {
        let other = other.split('(').next().unwrap_or_default();
        if other != name && text.contains(&format!(" {other}(")) {
            collect(other, functions);
        }
    }
    functions.push((name.to_owned(), text));
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
        // A function comes behind those that it calls.
        let whole = with_prelude("#!lua\n-- Uses    lay_open\nlay_open(KEYS[1], KEYS[2])\n");
        let at = |name: &str| whole.find(&format!("local function {name}(")).expect("it is there");
        assert!(at("envelopes") < at("lay_open") && at("pack_head") < at("lay_open"), "{whole}");
    }
}
