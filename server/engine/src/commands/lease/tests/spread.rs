//! Clients of different speed that lend one quota: the part of it that stays unspent.

use super::*;

const STEP_NS: u64 = 10_000_000;
const WINDOW_NS: u64 = 4 * SECOND;

/// A client that spends at a constant rate the units that it has. It calls when it has none, and
/// when its next call is due.
struct Spender {
    name: String,
    /// Units a second.
    speed: u64,
    /// Units of a call.
    want: u64,
    /// Whether the client gives its units back when its next call is due.
    gives_back: bool,
    /// Thousandths of a unit to spend now.
    due: u64,
    safe: u64,
    /// Units spent since its last call.
    used: u64,
    next_call_ns: u64,
    end_ns: u64,
    spent: u64,
    calls: u64,
}

impl Spender {
    fn step(&mut self, bench: &mut Bench, policy: &Policy) {
        if bench.now_ns >= self.end_ns {
            self.safe = 0;
        }
        self.due += self.speed * STEP_NS / 1_000_000;
        for _ in 0..self.due / 1000 {
            let has_spent_all = self.safe == 0 && self.used > 0;
            if has_spent_all || bench.now_ns >= self.next_call_ns {
                self.call(bench, policy);
            }
            let is_spent = u64::from(self.safe > 0);
            self.safe -= is_spent;
            self.used += is_spent;
            self.spent += is_spent;
        }
        self.due %= 1000;
    }

    fn call(&mut self, bench: &mut Bench, policy: &Policy) {
        let unused = if self.gives_back { self.safe } else { 0 };
        let params = LeaseParams { used: self.used, unused, ..ask(&self.name, self.want) };
        let line = bench.lease(policy, &params);
        self.used = 0;
        self.safe = line.safe;
        self.end_ns = bench.now_ns + line.ttl_ms * NANOS_PER_MS;
        self.next_call_ns = bench.now_ns + line.refresh_ms * NANOS_PER_MS;
        self.calls += 1;
    }
}

/// The units that clients of different speed spend in each of ten windows, and their calls.
fn spent(want: impl Fn(u64) -> u64, gives_back: bool) -> Vec<(u64, u64)> {
    let policy = policy(Algorithm::Fixed { count: 1000, window: Window::First(WINDOW_NS) });
    let mut bench = Bench::new();
    let mut clients = [400, 50, 50, 5, 5].map(|speed| Spender {
        name: String::new(),
        speed,
        want: want(speed),
        gives_back,
        due: 0,
        safe: 0,
        used: 0,
        next_call_ns: 0,
        end_ns: 0,
        spent: 0,
        calls: 0,
    });
    for (number, client) in clients.iter_mut().enumerate() {
        client.name = format!("client-{number}");
    }
    let mut all = Vec::new();
    for _ in 0..10 {
        for _ in 0..WINDOW_NS / STEP_NS {
            for client in &mut clients {
                client.step(&mut bench, &policy);
            }
            bench.now_ns += STEP_NS;
        }
        let spent = clients.iter_mut().map(|client| std::mem::take(&mut client.spent)).sum();
        let calls = clients.iter_mut().map(|client| std::mem::take(&mut client.calls)).sum();
        all.push((spent, calls));
    }
    all
}

#[test]
fn clients_of_different_speed_leave_little_of_the_quota() {
    for (name, windows) in [
        ("what two seconds need", spent(|speed| 2 * speed, false)),
        ("everything, and give back", spent(|_| 1000, true)),
    ] {
        println!("they ask for {name}: {windows:?}");
        for (spent, calls) in windows {
            assert!((950..=1000).contains(&spent), "{name}: {spent} of 1000");
            assert!(calls <= 100, "{name}: {calls} calls in a window");
        }
    }
}
