//! `artel serve`: the page, the API and the numbers of fleets, without joining them.
//!
//! **Invariant:** it changes nothing unless somebody asks for it, and no fleet depends on it.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::args::{Global, ServeArgs};
use crate::exit::{Failure, OK, USAGE};
use crate::http::{self, Rules};
use crate::settings::{Need, Place, place};
use crate::signals::Signals;

/// How long the answers in progress may take.
const GRACE: Duration = Duration::from_secs(3);

pub(crate) async fn serve(global: &Global, args: &ServeArgs) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let names: BTreeSet<&String> = global.fleets.iter().collect();
    if names.len() < global.fleets.len() {
        return Err(Failure::new(USAGE, "--fleet names a fleet twice").hint("name each one once"));
    }
    let rules = Rules::of(&args.http_rules)?;
    let listening = http::listen(&args.http).await?;
    let (place, _) = place(global, Need::Nothing)?;
    let mut fleets = Vec::new();
    for fleet in &global.fleets {
        let fleet = fleet.clone();
        fleets.push(Place { fleet, ..place.clone() }.lasting().await?);
    }
    let source = http::Source::of_fleets(fleets);
    listening.say();
    tracing::info!("the page is at {}", listening.url(&rules));
    let over = CancellationToken::new();
    let served = http::serve(listening, rules, source, over.clone());
    signals.next().await;
    over.cancel();
    let _ = signals.unless(tokio::time::timeout(GRACE, served)).await;
    Ok(OK)
}
