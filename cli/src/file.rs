//! The settings file: TOML, one key per option.
//!
//! **Invariant:** a key that is not a setting is an error that names file, line, key and the
//! nearest right key; nothing in a file is ignored silently.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::args::LIST;
use crate::exit::{FAILURE, Failure, USAGE};
use crate::variables;

/// The file that is read if no file is named.
pub(crate) const FILE: &str = "artel.toml";

/// A value and its line number.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) value: String,
    pub(crate) line: usize,
}

/// The entries of a file, by the name of the option.
pub(crate) type Entries = BTreeMap<String, Entry>;

/// The largest file that is read.
const BYTES_MAX: u64 = 1 << 20;
/// How long the writer of a pipe may take.
const PIPE_PATIENCE: Duration = Duration::from_secs(5);

/// Reads a small file, or all of a pipe. If a pipe never ends, or never begins, that is an error
/// and not a hang.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    contents(open(path)?)
}

fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

fn contents(mut file: File) -> io::Result<Vec<u8>> {
    let (mut bytes, mut chunk, began) = (Vec::new(), [0; 4096], Instant::now());
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(more) => bytes.extend_from_slice(&chunk[..more]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if began.elapsed() > PIPE_PATIENCE {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "it sends no data"));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > BYTES_MAX {
            return Err(io::Error::other("it has more than 1 MiB"));
        }
    }
}

/// Reads a file that the user did not name; `None` if it does not exist. The file names commands to
/// run, so only this user and root may own it, or the link to it. The checks are made on the open
/// file, so the file that is checked is the file that is read.
pub(crate) fn read_found(path: &Path) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (there, way) = (file.metadata()?, std::fs::symlink_metadata(path)?);
    if !there.is_file() {
        return Ok(None);
    }
    let me = rustix::process::geteuid().as_raw();
    let foreign = [there.uid(), way.uid()].into_iter().find(|owner| *owner != me && *owner != 0);
    match foreign {
        Some(owner) => Ok(Some(Err(format!("it belongs to user {owner}")))),
        None if there.mode() & 0o022 != 0 => Ok(Some(Err("others may write to it".to_owned()))),
        None => contents(file).map(|bytes| Some(Ok(bytes))),
    }
}

/// The settings file in use, and its text. It is named by a flag or by a variable, or else it is
/// the one in the working directory, if that is safe to read.
pub(crate) fn in_use(flag: Option<&PathBuf>) -> Result<Option<(PathBuf, String)>, Failure> {
    let named = flag.cloned().or_else(|| variables::get("ARTEL_CONFIG").map(PathBuf::from));
    if let Some(path) = named {
        return text(&path).map(|text| Some((path, text)));
    }
    let path = PathBuf::from(FILE);
    match read_found(&path).map_err(|error| unread(&path, &error))? {
        None => Ok(None),
        Some(Ok(bytes)) => Ok(Some((path, as_text(FILE, bytes)?))),
        Some(Err(why)) => {
            Err(Failure::new(USAGE, format!("{FILE} is here and is not read: {why}"))
                .hint(format!("`chmod go-w {FILE}` if it is yours, or name it: `--config {FILE}`")))
        }
    }
}

/// The text of a file that the user named.
pub(crate) fn text(path: &Path) -> Result<String, Failure> {
    let bytes = read(path).map_err(|error| unread(path, &error))?;
    as_text(&path.display().to_string(), bytes)
}

fn as_text(name: &str, bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|_| Failure::new(USAGE, format!("{name} is not valid UTF-8")))
}

fn unread(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(FAILURE, format!("cannot read {}: {error}", path.display()))
        .hint("`artel config init` writes a file to begin with")
}

/// Parses a settings file. Its keys must be in `names`; `-` and `_` mean the same. A list is allowed only for those that
/// `is_list` names; its values are joined by [`LIST`].
pub(crate) fn parse(
    path: &Path,
    text: &str,
    names: &[String],
    is_list: impl Fn(&str) -> bool,
) -> Result<Entries, Failure> {
    let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let place = |at: usize| format!("{}:{}", path.display(), line_of(at));
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Failure::new(USAGE, format!("{}: not TOML: {}", place(at), error.message()))
            .hint("a setting is a line such as `interval = \"500ms\"`")
    })?;
    let mut entries = BTreeMap::new();
    for (key, value) in table.into_inner() {
        let at = key.span().start;
        let written = key.into_inner().into_owned();
        let name = match written.replace('_', "-") {
            name if name == "redis-url" => "redis".to_owned(), // another name of the flag
            name => name,
        };
        if !names.contains(&name) {
            let error = format!("{}: unknown key `{written}`", place(at));
            let hint = match nearest(&name, names) {
                Some(right) => format!("did you mean `{right}`?"),
                None => "`artel config init` writes a file with all of them".to_owned(),
            };
            return Err(Failure::new(USAGE, error).hint(hint));
        }
        let value = match value.into_inner() {
            DeValue::Array(items) if is_list(&name) => texts(items).ok_or_else(|| {
                let error = format!("{}: {written} must be a list of texts", place(at));
                Failure::new(USAGE, error).hint(format!("such as `{written} = [\"one\", \"two\"]`"))
            })?,
            value => plain(value).ok_or_else(|| {
                let error =
                    format!("{}: {written} must be a text, a number, or true or false", place(at));
                Failure::new(USAGE, error)
                    .hint("a setting is a line such as `interval = \"500ms\"`")
            })?,
        };
        let line = line_of(at);
        if let Some(Entry { line: before, .. }) = entries.insert(name, Entry { value, line }) {
            let error = format!("{}: {written} was set in line {before} already", place(at));
            return Err(Failure::new(USAGE, error).hint("`-` and `_` are the same in a key"));
        }
    }
    Ok(entries)
}

fn plain(value: DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.into_owned()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn texts(items: DeArray<'_>) -> Option<String> {
    let text = |item: Spanned<DeValue<'_>>| match item.into_inner() {
        DeValue::String(text) if !text.contains(LIST) => Some(text.into_owned()),
        _ => None,
    };
    let texts: Option<Vec<String>> = items.into_iter().map(text).collect();
    texts.map(|texts| texts.join(&LIST.to_string()))
}

/// The most similar name, if any is similar enough.
pub(crate) fn nearest<'a>(name: &str, names: &'a [String]) -> Option<&'a String> {
    let alike = |other: &String| strsim::jaro_winkler(name, other);
    let best = names.iter().max_by(|one, two| alike(one).total_cmp(&alike(two)))?;
    (alike(best) > 0.7).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Entries, Failure> {
        let names = ["interval", "error-rate", "max-messages", "alert"].map(str::to_owned);
        parse(Path::new("artel.toml"), text, &names, |name| name == "alert")
    }

    #[test]
    fn values_are_kept_as_they_were_written() {
        let text = "# hello\ninterval = \"20ms\"\nerror_rate = 0.5\nmax-messages = 7\n";
        let entries = parsed(text).expect("good");
        assert_eq!(entries["interval"].value, "20ms");
        assert_eq!((entries["error-rate"].value.as_str(), entries["error-rate"].line), ("0.5", 3));
        assert_eq!(entries["max-messages"].value, "7");
    }

    #[test]
    fn a_list_is_for_those_that_take_one() {
        let entries = parsed("alert = [\"member_lost\",\n \"flapping\"]\n").expect("good");
        assert_eq!(entries["alert"].value, "member_lost\nflapping");
        assert_eq!(parsed("alert = \"flapping\"\n").expect("good")["alert"].value, "flapping");
        for wrong in ["interval = [\"1s\"]", "alert = [1]", "alert = [\"a\\nb\"]"] {
            let failure = parsed(wrong).expect_err(wrong);
            assert!(failure.error.starts_with("artel.toml:1: "), "{}", failure.error);
        }
    }

    #[test]
    fn a_wrong_key_is_named_with_its_place_and_the_right_one() {
        let failure = parsed("interval = \"1s\"\n\nintervall = \"1s\"\n").expect_err("wrong");
        assert_eq!(failure.error, "artel.toml:3: unknown key `intervall`");
        assert_eq!(failure.hint.as_deref(), Some("did you mean `interval`?"));
        let failure = parsed("zzz = 1\n").expect_err("wrong");
        assert!(failure.hint.is_some_and(|hint| hint.contains("config init")));
    }

    #[test]
    fn what_is_not_toml_is_named_with_its_place() {
        let failure = parsed("interval = \"1s\"\nerror-rate = \n").expect_err("wrong");
        assert!(failure.error.starts_with("artel.toml:2: not TOML: "), "{}", failure.error);
        let failure = parsed("error-rate = 1\nerror_rate = 0\n").expect_err("twice");
        assert_eq!(failure.error, "artel.toml:2: error_rate was set in line 1 already");
        let failure = parsed("[interval]\nx = 1\n").expect_err("wrong");
        assert!(failure.error.contains("must be a text"), "{}", failure.error);
    }
}
