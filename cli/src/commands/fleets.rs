//! `artel fleets` and `artel fleet`: list all fleets, remove one.

use artel::{Error, Fleet, Role};
use serde_json::json;

use crate::args::FleetCommand;
use crate::exit::{FAILURE, Failure, NOT_FOUND, OK};
use crate::settings::Place;
use crate::{printer, table};

/// The names of all fleets that can be seen.
async fn names(place: &Place) -> Result<Vec<String>, Failure> {
    let fleet = place.open()?;
    let names = fleet.fleets().await?;
    if fleet.is_on_cluster() {
        let node = format!("the node that has fleet {:?}", fleet.name());
        printer::remark(&format!("a cluster: only the fleets on {node}; `--fleet` names another"));
    }
    Ok(names)
}

pub(crate) async fn fleets(place: &Place, json: bool) -> Result<u8, Failure> {
    let names = names(place).await?;
    let mut found = Vec::new();
    for name in names {
        let status = match Fleet::open(&place.redis, &name)?.status().await {
            Ok(status) => Ok(status),
            Err(error) if error.is_unreachable() => return Err(error.into()),
            // A fleet that this version or this user cannot read is listed with its problem.
            Err(error) => Err(error),
        };
        found.push((name, status));
    }
    if json {
        let all: Vec<_> = found
            .iter()
            .map(|(name, status)| match status {
                Ok(status) => json!({
                    "fleet": name,
                    "members": status.members.len(),
                    "generator": status.generator.as_ref().map(|leader| &leader.label),
                    "messages": status.messages,
                    "errors": status.errors,
                }),
                Err(error) => json!({ "fleet": name, "problem": error.to_string() }),
            })
            .collect();
        printer::data(&table::json(&json!({ "v": 1, "fleets": all }))?)?;
        return Ok(OK);
    }
    if found.is_empty() {
        printer::data("no fleets\n")?;
        return Ok(OK);
    }
    let rows = found.iter().map(|(name, status)| match status {
        Ok(status) => {
            let here = status.members.iter().filter(|member| member.role != Role::Overdue).count();
            let leader = status.generator.as_ref();
            [
                name.clone(),
                here.to_string(),
                leader.map_or("-".to_owned(), |leader| leader.label.clone()),
                status.messages.waiting.to_string(),
                status.messages.scheduled.to_string(),
                status.messages.claimed.to_string(),
                status.messages.done.to_string(),
                status.errors.stored.to_string(),
            ]
        }
        Err(error) => {
            let problem = match error {
                Error::BeingRemoved { .. } => "being removed",
                Error::Protocol { .. } => "another version",
                Error::Denied { .. } => "access denied",
                _ => "cannot be read",
            };
            let blank = String::new;
            [name.clone(), blank(), problem.to_owned(), blank(), blank(), blank(), blank(), blank()]
        }
    });
    let head =
        ["FLEET", "MEMBERS", "GENERATOR", "WAITING", "SCHEDULED", "CLAIMED", "DONE", "ERRORS"];
    let text = printer::screen().columns(head, rows, &["CLAIMED", "DONE", "SCHEDULED"], |row| {
        row[1] == "0" && row[3] != "0"
    });
    printer::shown(&text)?;
    Ok(OK)
}

pub(crate) async fn fleet(place: &Place, command: &FleetCommand) -> Result<u8, Failure> {
    let FleetCommand::Remove { name, yes } = command;
    let fleet = Fleet::open(&place.redis, name)?;
    if !fleet.fleets().await?.contains(name) {
        let error = format!("there is no fleet {name:?} on {}", place.redis);
        return Err(Failure::new(NOT_FOUND, error).hint("`artel fleets` lists all fleets"));
    }
    let what = match fleet.status().await {
        Ok(status) if !status.members.is_empty() => {
            return Err(in_use(name, status.members.len() as u64));
        }
        Ok(status) => {
            let m = &status.messages;
            let (open, stored) = (m.waiting + m.scheduled + m.claimed, status.errors.stored);
            let entries = match status.crons {
                0 => String::new(),
                entries => format!(", periodic entries: {entries}"),
            };
            format!("not done: {open}, failed and stored: {stored}{entries}")
        }
        // A removal that was interrupted can be finished. A fleet of another version can be
        // removed, too.
        Err(error @ (Error::Protocol { .. } | Error::BeingRemoved { .. })) => error.to_string(),
        Err(error) => return Err(error.into()),
    };
    let question =
        format!("remove fleet {name:?} on {} with everything in it ({what})?", place.redis);
    match yes.then_some(true).or_else(|| printer::confirm(&question)) {
        Some(true) => {}
        Some(false) => {
            printer::remark("nothing was changed");
            return Ok(OK);
        }
        None => {
            return Err(Failure::new(FAILURE, "nobody answers: nothing was changed")
                .hint("`--yes` does it without asking"));
        }
    }
    match fleet.remove().await {
        Ok(keys) => printer::remark(&format!("fleet {name:?} is removed: {keys} keys")),
        Err(Error::InUse { members, .. }) => return Err(in_use(name, members)),
        Err(error) => return Err(error.into()),
    }
    Ok(OK)
}

fn in_use(name: &str, members: u64) -> Failure {
    let noun = if members == 1 { "member is" } else { "members are" };
    let error = format!("fleet {name:?} was not removed: {members} {noun} in it");
    Failure::new(FAILURE, error).hint(format!(
        "stop them first (`artel status --fleet {name}` shows them); `artel clean --temp --fleet {name}` ends \
         those that are dead"
    ))
}
