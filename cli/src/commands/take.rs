//! `artel getErrors` and `artel errors take`: print failed messages, one per line, and remove them.
//!
//! **Invariant:** a record is deleted only after its line was written out, and, into a pipe, after
//! its reader has taken it. So `getErrors | head -1` loses nothing: the line `head` did not read is
//! still stored.

use std::io;
use std::time::Duration;

use artel::{ErrorRecord, ErrorStore, Taker};

use crate::args::TakeArgs;
use crate::commands::errors::Filter;
use crate::exit::{FAILURE, Failure, OK};
use crate::printer;
use crate::settings::Place;
use crate::signals::Signals;

/// How often a taker that waits for its reader says that it still lives.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn take(place: &Place, args: &TakeArgs) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let mut filter = Filter::new(&args.filter)?;
    if printer::is_closed() {
        return Err(Failure::new(FAILURE, "stdout is closed: nothing was taken")
            .hint("`> /dev/null` takes failed messages without showing them"));
    }
    let store = match signals.unless(ErrorStore::open(&place.redis, &place.fleet)).await {
        Ok(store) => store?,
        Err(code) => return Ok(code),
    };
    let everything = filter.is_everything();
    let mut taker = match everything {
        true => store.take(),
        false => {
            let cursor = filter.cursor(&store).await?;
            store.take_where(cursor, move |record| filter.takes(record))
        }
    };
    let mut printed = 0;
    loop {
        let page = taker.page().await?;
        if page.is_empty() {
            break;
        }
        let lines: Vec<Vec<u8>> = page.iter().map(|record| line(record, args.json)).collect();
        let mut writing = tokio::task::spawn_blocking(move || printer::lines(&lines));
        let (count, result) = loop {
            tokio::select! {
                written = &mut writing => match written {
                    Ok(written) => break written,
                    Err(error) => return Err(Failure::new(FAILURE, error.to_string())),
                },
                () = tokio::time::sleep(ALIVE_EVERY) => { taker.keep_alive().await?; }
                code = signals.next() => {
                    taker.release().await?;
                    return Ok(code);
                }
            }
        };
        let confirmed = taker.confirm(&page[..count]).await?;
        printed += count;
        if let Err(error) = result {
            return stopped(taker, &error).await;
        }
        if !confirmed {
            printer::remark(
                "note: another getErrors took over the rest; its page may repeat lines",
            );
        }
    }
    let others = taker.held_by_others();
    if others > 0 {
        printer::remark(&format!(
            "note: {others} other getErrors hold further messages; what they do not finish can be \
             taken in 5 s by `getErrors` without a filter"
        ));
    }
    tracing::debug!(printed, "taken");
    Ok(OK)
}

/// The reader went away: the rest stays stored, and can be taken at once.
async fn stopped(taker: Taker, error: &io::Error) -> Result<u8, Failure> {
    taker.release().await?;
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Ok(OK);
    }
    Err(Failure::new(FAILURE, format!("cannot write: {error}"))
        .hint("what was not written is still stored; run it again"))
}

fn line(record: &ErrorRecord, json: bool) -> Vec<u8> {
    let mut line =
        if json { serde_json::to_vec(record).unwrap_or_default() } else { escape(&record.payload) };
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
