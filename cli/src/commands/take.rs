//! `artel getErrors` and `artel errors take`: print failed messages, one per line, and remove them.
//!
//! **Invariant:** a record is deleted only after its line was written out, and, in a pipe, after
//! the reader has read it. So `getErrors | head -1` loses nothing: the line that `head` did not
//! read is still stored.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use artel::{ErrorRecord, Taker};

use crate::args::TakeArgs;
use crate::commands::errors::Filter;
use crate::exit::{FAILURE, Failure, OK};
use crate::settings::Place;
use crate::signals::Signals;
use crate::{printer, table};

/// How often a taker refreshes its drain while it waits for its reader.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// How long a taker that is stopped tries to put the rest back.
const LAST_WORD: Duration = Duration::from_secs(3);

pub(crate) async fn take(place: &Place, args: &TakeArgs) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let mut filter = Filter::new(&args.filter)?;
    let fleet = match signals.unless(place.connect()).await {
        Ok(fleet) => fleet?,
        Err(code) => return Ok(code),
    };
    let store = fleet.errors();
    let mut taker = match filter.is_everything() {
        true => store.take(),
        false => {
            let cursor = filter.cursor(&fleet).await?;
            store.take_where(cursor, move |record| filter.takes(record))
        }
    };
    loop {
        let page = match signals.unless(taker.page()).await {
            Ok(page) => page?,
            Err(code) => return leave(taker, code).await,
        };
        if page.is_empty() {
            break;
        }
        let lines: Vec<Vec<u8>> = page.iter().map(|record| line(record, args.json)).collect();
        let out = Arc::new(AtomicUsize::new(0));
        let counter = out.clone();
        let mut writing = tokio::task::spawn_blocking(move || printer::lines(&lines, &counter));
        let written = loop {
            let alive = tokio::time::timeout(ALIVE_EVERY, &mut writing);
            match signals.unless(alive).await {
                Ok(Ok(written)) => break Ok(written),
                Ok(Err(_)) => match signals.unless(taker.keep_alive()).await {
                    Ok(alive) => drop(alive?),
                    Err(code) => break Err(code),
                },
                Err(code) => break Err(code),
            }
        };
        // Delete the records that the reader has, whatever ended the writing.
        let confirmed = taker.confirm(&page[..out.load(Ordering::Acquire)]);
        let confirmed = match signals.unless(confirmed).await {
            Ok(confirmed) => confirmed?,
            Err(code) => return leave(taker, code).await,
        };
        match written {
            Err(code) => return leave(taker, code).await,
            Ok(Err(error)) => return Err(Failure::new(FAILURE, error.to_string())),
            Ok(Ok(Err(error))) => return stopped(taker, &error).await,
            Ok(Ok(Ok(()))) => {}
        }
        if !confirmed {
            printer::remark(
                "note: another getErrors took over the rest; it may print some lines again",
            );
        }
    }
    let others = taker.held_by_others();
    if others > 0 {
        printer::remark(&format!(
            "note: {others} other getErrors processes hold further messages; messages that they do \
             not finish can be taken in 5 s"
        ));
    }
    Ok(OK)
}

/// Puts the rest back, if Redis answers soon. Otherwise that happens without us in a few seconds.
async fn leave(taker: Taker, code: u8) -> Result<u8, Failure> {
    let _ = tokio::time::timeout(LAST_WORD, taker.release()).await;
    Ok(code)
}

/// The reader went away: puts the rest back, so that it can be taken at once.
async fn stopped(taker: Taker, error: &io::Error) -> Result<u8, Failure> {
    taker.release().await?;
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Ok(OK);
    }
    Err(Failure::new(FAILURE, format!("cannot write: {error}"))
        .hint("what was not written is still stored; run it again"))
}

fn line(record: &ErrorRecord, json: bool) -> Vec<u8> {
    if json {
        return table::json(record).unwrap_or_default().into_bytes();
    }
    let mut line = escape(&record.payload);
    line.push(b'\n');
    line
}

/// One line, whatever the payload: `\`, newline and carriage return escaped, invalid UTF-8 as \xNN.
pub(crate) fn escape(payload: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(payload.len());
    for chunk in payload.utf8_chunks() {
        for byte in chunk.valid().bytes() {
            match byte {
                b'\\' => text.extend_from_slice(b"\\\\"),
                b'\n' => text.extend_from_slice(b"\\n"),
                b'\r' => text.extend_from_slice(b"\\r"),
                byte => text.push(byte),
            }
        }
        for byte in chunk.invalid() {
            text.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn every_payload_is_one_line() {
        assert_eq!(escape(b"plain"), b"plain");
        assert_eq!(escape(b"a\\b\nc\rd"), br"a\\b\nc\rd");
        assert_eq!(escape(b"\xff\xc3\xa4\xfe"), "\\xff\u{e4}\\xfe".as_bytes());
    }
}
