//! A server is listed before the first call there, if this process takes steps that are counted (see
//! [`ServerList`](crate::store::server_list::ServerList)).
//!
//! **Invariant:** as long as a server refuses to be listed for a while, it is asked again before each call. For the same reason
//! it refuses the steps, too.

use std::sync::atomic::Ordering;

use super::{Connection, Link, Spot};
use crate::store::StoreError;

impl Link {
    /// The connection for a call, its number, and where it leads.
    pub(super) async fn ready(&self) -> Result<(Connection, u64, Option<Spot>), StoreError> {
        let (mut connection, generation, place) = self.connection().await?;
        let shared = &self.shared;
        let servers = shared.client.servers().filter(|servers| servers.is_needed());
        if let Some(servers) = servers
            && shared.listed.load(Ordering::Acquire) != generation
            && let Some(server) = self.history_in(2 * generation)
        {
            if let Some(call) = servers.first(&server) {
                let answer = connection.write(&call, || self.is_own(generation)).await;
                match answer.map_err(StoreError::from) {
                    Ok(_) => servers.has(&server),
                    Err(error @ StoreError::Server { .. }) => {
                        tracing::debug!(%error, "a server was not listed");
                        if error.is_passing() {
                            return Ok((connection, generation, place));
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            shared.listed.store(generation, Ordering::Release);
        }
        Ok((connection, generation, place))
    }
}
