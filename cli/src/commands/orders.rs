//! `artel pause`, `resume`, `drain` and `step-down`: orders to the fleet.

use artel::{Fleet, MemberId, MemberStatus};

use crate::args::{PauseArgs, ResumeArgs};
use crate::exit::{Failure, NOT_FOUND, OK};
use crate::printer;
use crate::settings::Place;

pub(crate) async fn pause(place: &Place, args: &PauseArgs) -> Result<u8, Failure> {
    let fleet = place.lasting().await?;
    let (what, is_new) = match args.lane {
        Some(lane) => {
            let lane = lane.into();
            (format!("lane {lane} is paused"), fleet.pause(lane).await?)
        }
        None => ("everything is paused".to_owned(), fleet.pause_all().await?),
    };
    printer::remark(&if is_new { what } else { format!("{what} already") });
    Ok(OK)
}

pub(crate) async fn resume(place: &Place, args: &ResumeArgs) -> Result<u8, Failure> {
    let fleet = place.lasting().await?;
    let (what, was, is_new) = match (args.lane, &args.member) {
        (Some(lane), _) => {
            let lane = lane.into();
            (format!("lane {lane}"), "paused", fleet.resume(lane).await?)
        }
        (None, Some(member)) => {
            let member = find(&fleet, member).await?;
            (format!("member {}", member.label), "drained", fleet.end_drain(&member.id).await?)
        }
        (None, None) => ("everything".to_owned(), "paused", fleet.resume_all().await?),
    };
    match is_new {
        true => printer::remark(&format!("{what} goes on")),
        false => {
            return Err(Failure::new(NOT_FOUND, format!("{what} is not {was}"))
                .hint("`artel status` shows what is paused and who is drained"));
        }
    }
    Ok(OK)
}

pub(crate) async fn drain(place: &Place, member: &str) -> Result<u8, Failure> {
    let fleet = place.lasting().await?;
    let member = find(&fleet, member).await?;
    let is_new = fleet.drain(&member.id).await?;
    let already = if is_new { "" } else { " already" };
    printer::remark(&format!(
        "member {} is drained{already}: it finishes what it has started, fetches nothing, and does not lead",
        member.label
    ));
    Ok(OK)
}

pub(crate) async fn step_down(place: &Place) -> Result<u8, Failure> {
    match place.lasting().await?.step_down().await? {
        true => {
            printer::remark("the generator steps down");
            Ok(OK)
        }
        false => Err(Failure::new(NOT_FOUND, "nobody leads")
            .hint("`artel status` shows the members and who can lead")),
    }
}

/// The member with this id, this beginning of an id, or this label.
async fn find(fleet: &Fleet, text: &str) -> Result<MemberStatus, Failure> {
    let members = fleet.status().await?.members;
    let fits = |member: &&MemberStatus| {
        let id: &MemberId = &member.id;
        member.label == text || (text.len() >= 4 && id.as_str().starts_with(text))
    };
    let found: Vec<&MemberStatus> = members.iter().filter(fits).collect();
    match found[..] {
        [one] => Ok(one.clone()),
        [] => Err(Failure::new(NOT_FOUND, format!("no member is called {text:?}"))
            .hint("`artel status` shows the labels and the ids")),
        _ => Err(Failure::new(NOT_FOUND, format!("{} members are called {text:?}", found.len()))
            .hint("give the id: `artel status` shows it")),
    }
}
