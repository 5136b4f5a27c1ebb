//! `artel clean --temp`: puts back the messages of dead members and frees their locks. Live members
//! are not touched.

use std::time::{Duration, Instant};

use artel::Notice;

use crate::exit::{Failure, OK};
use crate::printer;
use crate::settings::Place;

/// How long it may take until all dead members are judged, in addition to two leases.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn clean(place: &Place) -> Result<u8, Failure> {
    // An observer: it neither leads nor works. Like all members it judges, and puts messages back.
    let fleet = place.open()?;
    let mut member = fleet.join().start().await?;
    let mut notices = member.notices();
    let start = Instant::now();
    loop {
        member.clean().await?;
        let status = fleet.status().await?;
        // Done when every member was seen since the start, or is judged dead.
        let elapsed = start.elapsed();
        let open = status.members.iter().any(|member| member.seen > elapsed);
        let patience = PATIENCE + status.lease * 2;
        if !open || elapsed > patience {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    member.clean().await?;
    member.shutdown().await;
    let (mut members, mut messages) = (0, (0, 0));
    while let Some(notice) = notices.next().await {
        match notice {
            Notice::MemberDied { .. } => members += 1,
            Notice::Adopted { returned, failed, .. } => {
                messages = (messages.0 + returned, messages.1 + failed);
            }
            _ => {}
        }
    }
    let (returned, failed) = messages;
    let mut said = format!("dead members removed: {members}\nmessages put back: {returned}\n");
    if failed > 0 {
        said.push_str(&format!("messages failed, their attempts used up: {failed}\n"));
    }
    printer::data(&said)?;
    Ok(OK)
}
