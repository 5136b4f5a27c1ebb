//! [`Lane`]: the queues of a fleet.
//!
//! **Invariant:** only the generator adds to the lane `generated`.

use std::fmt;

use crate::Error;

/// A queue in which messages wait.
///
/// Workers serve `returned` (the messages of dead workers) first, then these by weight
/// ([`LaneWeights`](crate::LaneWeights)).
///
/// ```
/// use artel::Lane;
///
/// assert_eq!("low".parse::<Lane>().ok(), Some(Lane::Low));
/// assert_eq!(Lane::High.name(), "high");
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Lane {
    /// Sent by anyone, urgent.
    High,
    /// Messages of the generator, fenced by its term. Nothing can be sent here.
    Generated,
    /// Sent by anyone.
    Normal,
    /// Sent by anyone, can wait.
    Low,
}

impl Lane {
    /// All lanes, the most urgent first.
    pub(crate) const ALL: [Lane; 4] = [Lane::High, Lane::Generated, Lane::Normal, Lane::Low];

    /// Its name, as in its key.
    pub fn name(self) -> &'static str {
        match self {
            Lane::High => "high",
            Lane::Generated => "generated",
            Lane::Normal => "normal",
            Lane::Low => "low",
        }
    }

    /// The letter that stands for it in an envelope.
    pub(crate) fn letter(self) -> char {
        match self {
            Lane::High => 'h',
            Lane::Generated => 'g',
            Lane::Normal => 'n',
            Lane::Low => 'l',
        }
    }

    /// Refuses the lane to which only the generator may add messages.
    pub(crate) fn check_open(self) -> Result<(), Error> {
        if self != Lane::Generated {
            return Ok(());
        }
        let problem =
            "generated accepts only messages of the generator: use high, normal or low".to_owned();
        Err(Error::Config { field: "lane", problem })
    }

    pub(crate) fn of_letter(letter: u8) -> Option<Lane> {
        Lane::ALL.into_iter().find(|lane| lane.letter() as u8 == letter)
    }
}

impl std::str::FromStr for Lane {
    type Err = Error;

    /// Reads the name of a lane.
    ///
    /// ```
    /// assert_eq!("high".parse::<artel::Lane>()?, artel::Lane::High);
    /// assert!("fast".parse::<artel::Lane>().is_err());
    /// # Ok::<(), artel::Error>(())
    /// ```
    fn from_str(name: &str) -> Result<Lane, Error> {
        Lane::ALL.into_iter().find(|lane| lane.name() == name).ok_or_else(|| {
            let problem = format!("must be high, generated, normal or low, not {name:?}");
            Error::Config { field: "lane", problem }
        })
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
