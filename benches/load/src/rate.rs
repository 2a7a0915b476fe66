//! Loads of the open loop: a share of a closed loop's throughput, or operations a second.
//!
//! Not here: when requests fall due (`worker`).

use std::str::FromStr;

/// A load of the open loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// A share of the closed loop's throughput.
    Share(f64),
    /// Operations a second.
    PerSecond(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, is_share) =
            text.strip_suffix('%').map_or((text, false), |number| (number, true));
        match number.parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => {
                Ok(if is_share { Self::Share(number / 100.0) } else { Self::PerSecond(number) })
            }
            _ => Err(format!("{text}: neither a percentage nor operations a second")),
        }
    }
}

/// The server whose throughput a [`Rate::Share`] refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RateOf {
    /// The slowest server.
    Slowest,
    /// Each server itself.
    Own,
}

/// The name of an open-loop shape whose load is a share of a closed loop's throughput.
#[must_use]
pub fn shape_of_share(connections: u32, share: f64, of: RateOf) -> String {
    let whose = match of {
        RateOf::Slowest => "the slowest",
        RateOf::Own => "own",
    };
    format!("{connections} @ {:.0} % of {whose}", share * 100.0)
}
