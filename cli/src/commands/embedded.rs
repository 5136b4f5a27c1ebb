//! `artel embedded`: the private server.

use crate::args::EmbeddedCommand;
use crate::embedded::Embedded;
use crate::exit::{Failure, NOT_FOUND, OK, UNREACHABLE};
use crate::{printer, table};

pub(crate) fn embedded(private: &Embedded, command: &EmbeddedCommand) -> Result<u8, Failure> {
    let (text, code) = match command {
        EmbeddedCommand::Path => (format!("{}\n", private.url()), OK),
        EmbeddedCommand::Stop => {
            let text = match private.stop(false)? {
                true => "stopped",
                false => "it did not run",
            };
            printer::remark(text);
            (String::new(), OK)
        }
        EmbeddedCommand::Status { json } => status(private, *json)?,
    };
    printer::data(&text)?;
    Ok(code)
}

fn status(private: &Embedded, json: bool) -> Result<(String, u8), Failure> {
    let (url, there) = (private.url(), private.is_there()?);
    Ok(match (private.running(), json) {
        (None, json) if there => {
            let document =
                serde_json::json!({"v": 1, "running": true, "url": url, "answers": false});
            let text = format!("running, but not answering ({url})\n");
            (if json { table::json(&document)? } else { text }, UNREACHABLE)
        }
        (None, true) => {
            let document = serde_json::json!({"v": 1, "running": false, "url": url});
            (table::json(&document)?, NOT_FOUND)
        }
        (None, false) => (format!("not running ({url})\n"), NOT_FOUND),
        (Some(it), true) => {
            let document = serde_json::json!({
                "v": 1, "running": true, "url": url, "server": it.version, "pid": it.pid,
                "clients": it.clients, "memory_bytes": it.memory_bytes,
            });
            (table::json(&document)?, OK)
        }
        (Some(it), false) => {
            let (kib, clients) = (it.memory_bytes / 1024, it.clients);
            let text = format!(
                "{url}: {}, pid {}, {clients} connections, {kib} KiB\n",
                it.version, it.pid
            );
            (text, OK)
        }
    })
}
