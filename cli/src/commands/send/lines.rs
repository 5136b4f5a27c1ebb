//! Reads the lines to send, and groups them into batches.
//!
//! **Invariant:** lines are handed on in order. None is left out, except empty lines that are to be
//! skipped. The lines before a line that cannot be sent are handed on first.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use artel::Sender;
use tokio::sync::mpsc;

use super::{EMPTY_HINT, LINE_BYTES_MAX};
use crate::args::Empty;
use crate::exit::{FAILURE, Failure};

/// The source of the lines.
pub(super) struct Input {
    /// Its name in errors.
    pub(super) from: String,
    pub(super) source: Box<dyn Read + Send>,
    /// Its size, if it is a file.
    pub(super) bytes: Option<u64>,
}

impl Input {
    pub(super) fn stdin() -> Input {
        let (from, bytes) = ("stdin".to_owned(), size(io::stdin()));
        Input { from, source: Box::new(io::stdin()), bytes }
    }

    pub(super) fn open(path: &Path) -> Result<Input, Failure> {
        let from = path.display().to_string();
        let file = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
            true => Err(io::ErrorKind::IsADirectory.into()),
            false => Ok(file),
        });
        let file = file.map_err(|error| {
            Failure::new(FAILURE, format!("cannot read {from}: {error}"))
                .hint("is the path right? Nothing was sent")
        })?;
        let bytes = size(&file);
        Ok(Input { from, source: Box::new(file), bytes })
    }
}

/// The size of a plain file.
fn size(file: impl std::os::fd::AsFd) -> Option<u64> {
    let stat = rustix::fs::fstat(file).ok()?;
    let plain = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    plain.then_some(stat.st_size as u64)
}

/// How to read lines.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) raw: bool,
    pub(super) empty: Empty,
    pub(super) end: u8,
    pub(super) batch_max: usize,
}

/// A line that cannot be sent.
#[derive(Debug)]
pub(super) struct Bad {
    pub(super) error: String,
    pub(super) hint: &'static str,
}

/// Reads lines and hands them on in batches. When no complete line is ready to be read, the batch
/// is handed on at once.
pub(super) fn read(
    source: impl Read,
    from: &str,
    reading: Reading,
    batches: &mpsc::Sender<Vec<Vec<u8>>>,
) -> Result<(), Bad> {
    let mut reader = BufReader::with_capacity(Sender::BATCH_BYTES_MAX, source);
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        let ready = reader.buffer().contains(&reading.end);
        let next = match (ready || batch.is_empty()).then(|| line(&mut reader, from, reading)) {
            Some(Ok(Some(line))) => Ok(Some(line)),
            // No line is ready: hand on the batch first.
            None => Ok(None),
            Some(end) => Err(end),
        };
        let fits = |line: &Vec<u8>| {
            batch.len() < reading.batch_max && bytes + line.len() <= Sender::BATCH_BYTES_MAX
        };
        if let Ok(Some(line)) = &next
            && (batch.is_empty() || fits(line))
        {
            bytes += line.len();
            batch.extend(next.ok().flatten());
            continue;
        }
        if !batch.is_empty() && batches.blocking_send(std::mem::take(&mut batch)).is_err() {
            return Ok(()); // the receiver is gone
        }
        match next {
            Ok(line) => {
                bytes = line.as_ref().map_or(0, Vec::len);
                batch.extend(line);
            }
            // The lines before it are sent, so that the number of this line is right.
            Err(end) => return end.map(|_| ()),
        }
    }
}

/// The next line, without its line end. Never more of it is in memory than a payload may have.
fn line(reader: &mut impl BufRead, from: &str, reading: Reading) -> Result<Option<Vec<u8>>, Bad> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.take(LINE_BYTES_MAX as u64 + 2).read_until(reading.end, &mut line);
        if let Err(error) = read {
            let error = format!("{from} cannot be read: {error}");
            return Err(Bad { error, hint: "" });
        }
        if line.is_empty() {
            return Ok(None);
        }
        if line.last() == Some(&reading.end) {
            line.pop();
        }
        if !line.is_empty() || reading.empty != Empty::Skip {
            break;
        }
    }
    if line.len() > LINE_BYTES_MAX {
        let error = format!("larger than the limit of {LINE_BYTES_MAX} bytes");
        return Err(Bad {
            error,
            hint: "send what is large elsewhere, and its place as a message",
        });
    }
    if line.is_empty() && reading.empty == Empty::Refuse {
        return Err(Bad { error: "it is empty".to_owned(), hint: EMPTY_HINT });
    }
    match std::str::from_utf8(&line) {
        Err(error) if !reading.raw => {
            let error = format!("not UTF-8 at byte {}", error.valid_up_to() + 1);
            Err(Bad { error, hint: "`--raw` sends any bytes" })
        }
        _ => Ok(Some(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(raw: bool) -> Reading {
        let empty = if raw { Empty::Send } else { Empty::Refuse };
        Reading { raw, empty, end: b'\n', batch_max: 1000 }
    }

    fn all(mut text: &[u8], reading: Reading) -> Result<Vec<Vec<u8>>, String> {
        let mut all = Vec::new();
        while let Some(line) = line(&mut text, "stdin", reading).map_err(|bad| bad.error)? {
            all.push(line);
        }
        Ok(all)
    }

    fn lines(text: &[u8], raw: bool) -> Result<Vec<Vec<u8>>, String> {
        all(text, reading(raw))
    }

    #[test]
    fn empty_lines_are_treated_as_asked() {
        let skip = Reading { empty: Empty::Skip, ..reading(false) };
        assert_eq!(all(b"\n\na\n\nb\n\n", skip), Ok(vec![b"a".to_vec(), b"b".to_vec()]));
        let send = Reading { empty: Empty::Send, ..reading(false) };
        assert_eq!(all(b"a\n\n", send), Ok(vec![b"a".to_vec(), b"".to_vec()]));
    }

    #[test]
    fn a_nul_may_end_what_has_lines() {
        let null = Reading { end: 0, ..reading(false) };
        assert_eq!(all(b"a\nb\0c", null), Ok(vec![b"a\nb".to_vec(), b"c".to_vec()]));
    }

    #[test]
    fn lines_are_what_stands_between_their_ends() {
        assert_eq!(lines(b"a\nb c", false), Ok(vec![b"a".to_vec(), b"b c".to_vec()]));
        assert_eq!(lines(b"", false), Ok(vec![]));
        assert_eq!(lines(b"\n\xff\n", true), Ok(vec![b"".to_vec(), b"\xff".to_vec()]));
    }

    /// All batches that are handed on for this input.
    fn batches(text: Vec<u8>, batch_max: usize) -> Vec<Vec<usize>> {
        let (sender, mut receiver) = mpsc::channel(10_000);
        let reading = Reading { batch_max, ..reading(false) };
        read(io::Cursor::new(text), "stdin", reading, &sender).expect("good lines");
        drop(sender);
        let mut all = Vec::new();
        while let Ok(batch) = receiver.try_recv() {
            all.push(batch.iter().map(Vec::len).collect());
        }
        all
    }

    #[test]
    fn batches_are_bounded_by_count_and_by_bytes() {
        assert_eq!(batches(b"a\nb\nc\nd\ne".to_vec(), 2), [vec![1, 1], vec![1, 1], vec![1]]);
        let half = [vec![b'x'; 600_000], vec![b'\n']].concat();
        assert_eq!(batches(half.repeat(3), 1000), [[600_000], [600_000], [600_000]]);
        let most = [vec![b'x'; LINE_BYTES_MAX], vec![b'\n']].concat();
        assert_eq!(batches(most.repeat(2), 1000), [[LINE_BYTES_MAX], [LINE_BYTES_MAX]]);
        let many: usize = batches(b"x\n".repeat(5000), 1000).iter().map(Vec::len).sum();
        assert_eq!(many, 5000);
    }

    #[test]
    fn a_line_may_be_as_large_as_a_payload() {
        assert_eq!(LINE_BYTES_MAX, artel::Config::default().payload_bytes_max);
    }

    #[test]
    fn what_cannot_be_sent_is_named() {
        assert_eq!(lines(b"\n", false), Err("it is empty".to_owned()));
        assert_eq!(lines(b"ab\xff\n", false), Err("not UTF-8 at byte 3".to_owned()));
        let most = vec![b'x'; LINE_BYTES_MAX];
        assert_eq!(lines(&most, false).map(|lines| lines.len()), Ok(1));
        let more = vec![b'x'; LINE_BYTES_MAX + 1];
        assert!(lines(&more, false).expect_err("too long").contains("larger than the limit"));
    }
}
