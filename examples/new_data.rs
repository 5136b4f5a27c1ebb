//! Consumers wait until new data is there, and miss none of it: each goes on from the generation it
//! saw last.
//!
//! Start `cargo run --example new_data -- redis://127.0.0.1:6379 FILE` any number of times, then
//! change the file and say so: `artel event set new-data && artel event clear new-data`.
#![allow(clippy::print_stderr)]

use artel::Fleet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let file = args.next().unwrap_or_else(|| "data.txt".to_owned());
    let new_data = Fleet::open(address, "artel")?.event("new-data")?;
    // Before the first look at the data: what is new after this is not missed.
    let mut seen = new_data.state().await?.generation;
    loop {
        let data = std::fs::read_to_string(&file).unwrap_or_default();
        eprintln!("consumed {}", data.trim());
        if data.trim() == "the end" {
            return Ok(());
        }
        seen = new_data.wait_past(seen).await?;
    }
}
