//! The part of a limit that one of several nodes may let pass by itself.
//!
//! Here: the arithmetic on a policy. Not here: when a node decides by itself (`degraded`).

use protocol::{Algorithm, Policy, Rate};

/// One in `nodes` parts of a policy; every node may let one unit pass.
pub(super) fn share(policy: &Policy, nodes: u64) -> Policy {
    let part = |units: u64| (units / nodes).max(1);
    let slower = |rate: Rate| Rate { period: rate.period.saturating_mul(nodes), ..rate };
    let fewer = |rate: Rate| Rate { count: part(rate.count), ..rate };
    let algorithm = match policy.algorithm {
        Algorithm::Bucket { rate, capacity, init, debt, warm, interval } => Algorithm::Bucket {
            rate: slower(rate),
            capacity: part(capacity),
            init: (init / nodes).max(u64::from(init > 0)),
            debt: debt / nodes,
            warm,
            interval,
        },
        Algorithm::Gcra { rate, burst } => {
            Algorithm::Gcra { rate: slower(rate), burst: part(burst.saturating_add(1)) - 1 }
        }
        Algorithm::Leaky { rate, capacity, wait } => {
            Algorithm::Leaky { rate: slower(rate), capacity: part(capacity), wait }
        }
        Algorithm::Fixed { count, window } => Algorithm::Fixed { count: part(count), window },
        Algorithm::Sliding { rate, slices, oldest } => {
            Algorithm::Sliding { rate: fewer(rate), slices, oldest }
        }
        Algorithm::Log { rate, entries } => {
            Algorithm::Log { rate: fewer(rate), entries: part(entries) }
        }
        Algorithm::Concurrency { max, hold } => Algorithm::Concurrency { max: part(max), hold },
        // Without room for the list of parts nothing passes: never more than the whole.
        Algorithm::Several(_) => {
            let parts = policy.map_each(|policy| share(policy, nodes));
            return parts.unwrap_or(Policy { algorithm: Algorithm::Block, ..*policy });
        }
        other @ (Algorithm::Unlimited | Algorithm::Block) => other,
    };
    Policy { algorithm, ..*policy }
}

#[cfg(test)]
mod tests {
    use engine::Now;
    use engine::algorithms::{Attempt, take};
    use protocol::Policy;

    use super::share;

    #[test]
    fn the_parts_of_all_nodes_are_no_more_than_the_whole() {
        let limit = |policy: &Policy| {
            let look = Attempt { cost: 0, peek: true, ..Attempt::default() };
            take(policy, &mut Vec::new(), Now::at_ms(1), &look).limit
        };
        for token in [
            "bucket:100/60s,capacity=200",
            "gcra:30/60s,burst=15",
            "leaky:10/s,capacity=60",
            "fixed:100/60s",
            "sliding:100/60s",
            "log:100/60s",
            "concurrency:10",
            "fixed:100/60s;bucket:500/h",
        ] {
            let policy = Policy::parse_list(token.as_bytes()).expect("a good policy");
            for nodes in 1..=10 {
                let part = share(&policy, nodes);
                assert!(limit(&part) * nodes <= limit(&policy), "{token} {nodes}");
                assert!(limit(&part) > 0, "{token} {nodes}");
            }
            assert_eq!(share(&policy, 1), policy);
        }
        let one = Policy::parse(b"fixed:1/60s").expect("a good policy");
        assert_eq!(limit(&share(&one, 5)), 1);
    }
}
