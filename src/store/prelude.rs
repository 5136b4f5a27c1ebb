//! Functions that several scripts share.
//!
//! **Invariant:** a script gets the functions that its head names behind `Uses`, those that they call, and no
//! others. Without that line it is sent unchanged. The name `jobs` stands for all of `jobs.lua`. A script with a line
//! `Forms` has two forms: with `jobs.lua` and without.

/// Every function, each under a comment that says what it does.
const PRELUDE: &str = concat!(include_str!("prelude.lua"), include_str!("control.lua"));

/// What scripts share that place or end messages with duties.
const JOBS: &str = include_str!("jobs.lua");

/// The start of the line in a script's head that names its functions.
const USES: &str = "-- Uses    ";

/// The line in the head of a script that has two forms.
const FORMS: &str = "-- Forms   jobs\n";

/// The script, with the functions it uses inserted behind its first line, which is for Redis. A script with two forms
/// gets its plain form.
///
/// # Panics
///
/// If a named function does not exist. A script that calls it would fail.
pub(crate) fn with_prelude(source: &str) -> String {
    let plain = if source.contains(FORMS) { "local jobs = false\n" } else { "" };
    composed(source, false).map_or_else(
        || source.to_owned(),
        |(flags, functions, rest)| format!("{flags}\n{functions}{plain}{rest}"),
    )
}

/// The form of the script that has all of `jobs.lua`; `None` if it has one form only.
pub(crate) fn with_jobs(source: &str) -> Option<String> {
    let (flags, functions, rest) = composed(source, true).filter(|_| source.contains(FORMS))?;
    Some(format!("{flags}\n{functions}{rest}"))
}

/// Its first line, what is inserted, and the rest; `None` if nothing is to be inserted.
fn composed(source: &str, jobs: bool) -> Option<(&str, String, &str)> {
    let (flags, rest) = source.split_once('\n')?;
    let mut names = used(source)?;
    let jobs = names.contains(&"jobs") || jobs;
    names.retain(|name| *name != "jobs");
    if jobs {
        names.extend(used(JOBS).unwrap_or_default());
    }
    let mut functions = Vec::new();
    names.into_iter().for_each(|name| collect(name, &mut functions));
    let mut text: String = functions.into_iter().map(|(_, text)| text).collect();
    if jobs {
        text.extend(
            JOBS.lines().filter(|line| !line.starts_with("--")).flat_map(|line| [line, "\n"]),
        );
    }
    Some((flags, text, rest))
}

/// The functions that a head names.
fn used(source: &str) -> Option<Vec<&str>> {
    let uses = source.lines().find_map(|line| line.strip_prefix(USES))?;
    Some(uses.split(',').map(str::trim).collect())
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

    #[test]
    fn a_script_with_two_forms_knows_which_one_it_is() {
        let script = "#!lua\n-- Uses    clock\n-- Forms   jobs\nreturn jobs and finish\n";
        let (plain, jobs) = (with_prelude(script), with_jobs(script).expect("it has two forms"));
        assert!(plain.contains("local jobs = false\n") && !plain.contains("function finish"));
        assert!(jobs.contains("local jobs = true\n") && jobs.contains("local function finish("));
        assert_eq!(jobs.matches("local function clock(").count(), 1);
        let always = "#!lua\n-- Uses    jobs\nreturn finish\n";
        assert!(with_prelude(always).contains("local function finish("));
        assert_eq!(with_jobs(always), None);
    }
}
