//! `artel clean --temp`: put back what dead members left behind, never live work.

use std::time::{Duration, Instant};

use artel::Notice;

use crate::exit::{Failure, OK};
use crate::printer;
use crate::settings::Place;

/// How long the judging of dead members may take beside their lease.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn clean(place: &Place) -> Result<u8, Failure> {
    // A member that neither leads nor works: it only judges, like all others, and puts back.
    let fleet = place.open()?;
    let mut member = fleet.join().start().await?;
    let mut notices = member.notices();
    let start = Instant::now();
    loop {
        member.clean().await?;
        let status = fleet.status().await?;
        // Everybody was heard of since we began, or is judged by now.
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
