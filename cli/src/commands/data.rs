//! `artel data`: the data that the effects of handlers wrote.

use artel::Data;
use serde_json::{Value, json};

use crate::args::DataCommand;
use crate::commands::take::escape;
use crate::exit::{Failure, NOT_FOUND, OK};
use crate::settings::Place;
use crate::{printer, table};

pub(crate) async fn data(place: &Place, command: &DataCommand) -> Result<u8, Failure> {
    let DataCommand::Get { name, json } = command;
    let found = place.open()?.data(name).await?;
    let Some(found) = found else {
        let error = format!("no effect has written anything under {name:?}");
        return Err(Failure::new(NOT_FOUND, error).hint("is the `--fleet` right?"));
    };
    match json {
        true => printer::data(&table::json(&document(name, &found))?)?,
        false => printer::data(&lines(&found))?,
    }
    Ok(OK)
}

/// One element per line, escaped so that each is one line.
fn lines(data: &Data) -> String {
    let line = |bytes: &[u8]| String::from_utf8_lossy(&escape(bytes)).into_owned();
    match data {
        Data::Text(text) => line(text) + "\n",
        Data::Hash(pairs) => pairs
            .iter()
            .map(|(field, value)| format!("{}\t{}\n", line(field), line(value)))
            .collect(),
        Data::Set(items) | Data::List(items) => {
            items.iter().map(|item| line(item) + "\n").collect()
        }
        _ => String::new(),
    }
}

fn document(name: &str, data: &Data) -> Value {
    // Bytes that are not UTF-8 are escaped as in a line, so that two different values stay
    // different.
    let written = |bytes: &Vec<u8>| match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => String::from_utf8_lossy(&escape(bytes)).into_owned(),
    };
    let text = |bytes: &Vec<u8>| Value::from(written(bytes));
    let (kind, value) = match data {
        Data::Text(bytes) => ("text", text(bytes)),
        Data::Hash(pairs) => {
            let fields = pairs.iter().map(|(field, value)| (written(field), text(value)));
            ("hash", Value::Object(fields.collect()))
        }
        Data::Set(items) => ("set", items.iter().map(text).collect()),
        Data::List(items) => ("list", items.iter().map(text).collect()),
        _ => ("unknown", Value::Null),
    };
    json!({ "v": 1, "name": name, "type": kind, "value": value })
}
