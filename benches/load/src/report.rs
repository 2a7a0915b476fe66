//! The report: servers, machine and results as one Markdown document.
//!
//! Here: columns and their meaning. Not here: the format of numbers and tables (`table`).

use std::fmt::Write;

use crate::cell::Measurement;
use crate::machine::Machine;
use crate::server::Server;
use kit::table::{
    Ratio, Table, cell, median, micros, percent, ratio_cell, span, thousands, times, whole,
};

/// Wrong replies shown in full.
const SAMPLES_MAX: usize = 20;

/// All results of a run.
#[derive(Debug)]
pub struct Report {
    /// The machine of the run.
    pub machine: Machine,
    /// The index of the server that ratios refer to.
    pub reference: usize,
    /// The kind beside which the cost of all others is shown, if any.
    pub beside: Option<String>,
    /// One for each cell.
    pub rows: Vec<Row>,
    /// One for each server, in a run that measures memory.
    pub weights: Vec<Weight>,
    /// Sentences for the end.
    pub notes: Vec<String>,
    /// Wrong replies of the whole run.
    pub wrong: u64,
    /// Name, version and command of each server.
    pub(crate) servers: Vec<(String, String, String)>,
    samples: Vec<String>,
}

/// A cell and its measurements.
#[derive(Debug)]
pub struct Row {
    /// The kind of cell.
    pub kind: &'static str,
    /// Connections, and pipeline or rate.
    pub shape: String,
    /// The rounds of each server.
    pub rounds: Vec<Vec<Measurement>>,
}

/// Resident memory of a server, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Weight {
    /// The number of counters in the server.
    pub counters: u32,
    /// Before the first counter.
    pub empty: u64,
    /// After all were set.
    pub set: u64,
    /// After all were incremented.
    pub counted: u64,
    /// At the peak.
    pub highest: u64,
    /// Per idle connection.
    pub idle: f64,
    /// After all were deleted.
    pub deleted: u64,
    /// Per token bucket; `None` for a server without one.
    pub bucket: Option<f64>,
}

impl Weight {
    fn per_counter(&self) -> f64 {
        (self.counted as f64 - self.empty as f64) / f64::from(self.counters)
    }
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new(machine: Machine, reference: usize) -> Self {
        Self {
            machine,
            reference,
            beside: None,
            rows: Vec::new(),
            weights: Vec::new(),
            notes: Vec::new(),
            wrong: 0,
            servers: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// Adds a server; servers keep this order.
    pub fn server(&mut self, server: &Server) {
        self.servers.push((server.name.clone(), server.version.clone(), server.command.clone()));
    }

    /// Counts wrong replies and keeps some as samples.
    pub fn add_wrong(&mut self, server: &str, wrong: u64, samples: Vec<String>) {
        self.wrong += wrong;
        self.samples.extend(samples.into_iter().map(|sample| format!("{server}: {sample}")));
        self.samples.truncate(SAMPLES_MAX);
    }

    /// Renders the document.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = self.head();
        if !self.rows.is_empty() {
            if let Some(base) = &self.beside {
                let _ = write!(text, "\n{}", self.beside(base));
            }
            let _ = write!(text, "\n{}\n{}", self.summary(), self.details());
        }
        if !self.weights.is_empty() {
            let _ = write!(text, "\n{}", self.weighing());
        }
        text.push('\n');
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
        let _ = match self.wrong {
            0 => writeln!(text, "- no reply was wrong"),
            wrong => writeln!(text, "- **{} WRONG REPLIES**", thousands(wrong)),
        };
        for sample in &self.samples {
            let _ = writeln!(text, "  - `{sample}`");
        }
        text
    }

    /// Machine, command and servers, as a list.
    #[must_use]
    pub fn head(&self) -> String {
        let Machine { cpu, cores, kernel, congestion_control, commit, command } = &self.machine;
        let mut text = format!(
            "- machine: {cpu}, {cores} cores, {kernel}, TCP {congestion_control}\n- commit: {commit}\n- command: `{command}`\n"
        );
        for (name, version, command) in &self.servers {
            let _ = writeln!(text, "- {name}: version {version}, `{command}`");
        }
        text
    }

    /// The cell of this kind and shape.
    #[must_use]
    pub fn row(&self, kind: &str, shape: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.kind == kind && row.shape == shape)
    }

    /// The names of the servers, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|(name, ..)| name.as_str())
    }

    /// A server's measurements of a cell; `None` if it was not measured.
    #[must_use]
    pub fn rounds(&self, kind: &str, shape: &str, server: &str) -> Option<&[Measurement]> {
        let place = self.names().position(|name| name == server)?;
        let rounds = self.row(kind, shape)?.rounds.get(place)?;
        (!rounds.is_empty()).then_some(rounds)
    }

    /// The pipelines of the closed loop that were measured with `connections` connections.
    #[must_use]
    pub fn pipelines(&self, connections: u32) -> Vec<u32> {
        let mut pipelines: Vec<u32> = Vec::new();
        for row in &self.rows {
            let pipeline = row.shape.strip_prefix(&format!("{connections}×"));
            if let Some(pipeline) = pipeline.and_then(|pipeline| pipeline.parse().ok())
                && !pipelines.contains(&pipeline)
            {
                pipelines.push(pipeline);
            }
        }
        pipelines
    }

    /// A row for each kind and server, a column for each shape.
    fn by_shape(&self, show: impl Fn(&Row, usize) -> String) -> String {
        let mut shapes: Vec<&str> = Vec::new();
        let mut kinds: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !shapes.contains(&row.shape.as_str()) {
                shapes.push(&row.shape);
            }
            if !kinds.contains(&row.kind) {
                kinds.push(row.kind);
            }
        }
        let mut table = Table::new(["op", "server"].iter().chain(&shapes).copied(), 2);
        for &kind in &kinds {
            for (n, (server, ..)) in self.servers.iter().enumerate() {
                let of_shape =
                    |shape: &&str| self.row(kind, shape).map_or(String::new(), |row| show(row, n));
                let mut cells = vec![kind.to_owned(), server.clone()];
                cells.extend(shapes.iter().map(of_shape));
                table.row(cells);
            }
        }
        table.render()
    }

    /// The cost of each kind beside `base` on the same server: ratios within a round.
    fn beside(&self, base: &str) -> String {
        let table = self.by_shape(|row, server| {
            let Some(other) = self.row(base, &row.shape) else { return String::new() };
            let cost = Measurement::server_ns_per_op;
            let pairs = row.rounds[server].iter().zip(&other.rounds[server]);
            ratio_cell(Ratio::of(pairs.map(|(own, other)| cost(own) / cost(other))))
        });
        format!("**CPU ns/op to {base}'s** on the same server, in the same round\n\n{table}")
    }

    /// The summary: a row for each kind and server, a column for each shape.
    fn summary(&self) -> String {
        let table = self.by_shape(|row, n| {
            if row.rounds[n].is_empty() {
                return "–".to_owned();
            }
            let of = |f: fn(&Measurement) -> f64| median(row.rounds[n].iter().map(f));
            format!(
                "**{}** · {}k · {}",
                cell(of(Measurement::server_ns_per_op), whole),
                cell(of(|m| m.ops_per_second() / 1e3), whole),
                cell(of(|m| m.latency_ns[1] as f64 / 1e3), whole),
            )
        });
        format!("**CPU ns/op** · thousand ops/s · p99 µs\n\n{table}")
    }

    /// Every figure of every cell, as a table.
    #[must_use]
    pub fn details(&self) -> String {
        let reference = self.servers.get(self.reference).map_or("", |(name, ..)| name);
        let head = [
            "op".to_owned(),
            "conns×pipeline".to_owned(),
            "server".to_owned(),
            "ops/s".to_owned(),
            format!("ops/s to {reference}"),
            "p50 µs".to_owned(),
            "p99 µs".to_owned(),
            "p99.9 µs".to_owned(),
            "undisturbed p99 µs".to_owned(),
            format!("its to {reference}'s"),
            "CPU ns/op".to_owned(),
            "±".to_owned(),
            format!("{reference} CPU to its"),
            "busy".to_owned(),
            "waited".to_owned(),
            "generator ns/op".to_owned(),
            "wrong".to_owned(),
        ];
        let mut table = Table::new(head, 3);
        for row in &self.rows {
            let asked = |&(n, _): &(usize, &_)| !row.rounds[n].is_empty();
            for (n, (server, ..)) in self.servers.iter().enumerate().filter(asked) {
                let mut cells = vec![row.kind.to_owned(), row.shape.clone(), server.clone()];
                cells.extend(numbers(&row.rounds[n], &row.rounds[self.reference]));
                table.row(cells);
            }
        }
        table.render()
    }

    fn weighing(&self) -> String {
        let reference = self.weights.get(self.reference);
        let head = [
            "server",
            "counters",
            "RSS empty MB",
            "after set MB",
            "after incr MB",
            "highest MB",
            "after delete MB",
            "bytes a counter",
            "reference to its",
            "bytes a bucket",
            "bytes an idle connection",
        ];
        let mut table = Table::new(head, 1);
        for ((server, ..), weight) in self.servers.iter().zip(&self.weights) {
            let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
            table.row(vec![
                server.clone(),
                thousands(u64::from(weight.counters)),
                megabytes(weight.empty),
                megabytes(weight.set),
                megabytes(weight.counted),
                megabytes(weight.highest),
                megabytes(weight.deleted),
                format!("{:.1}", weight.per_counter()),
                cell(reference.map(|r| r.per_counter() / weight.per_counter()), times),
                cell(weight.bucket, |bytes| format!("{bytes:.1}")),
                whole(weight.idle),
            ]);
        }
        table.render()
    }
}

/// Medians over the rounds; ratios are taken within each round, then their median.
fn numbers(rounds: &[Measurement], reference: &[Measurement]) -> Vec<String> {
    let of = |f: fn(&Measurement) -> f64| median(rounds.iter().map(f));
    let throughputs = (rounds.iter().zip(reference))
        .map(|(own, other)| own.ops_per_second() / other.ops_per_second());
    let costs = (rounds.iter().zip(reference))
        .map(|(own, other)| other.server_ns_per_op() / own.server_ns_per_op());
    let p99s = (rounds.iter().zip(reference))
        .filter_map(|(own, other)| Some(own.undisturbed_ns(1)? / other.undisturbed_ns(1)?));
    let cpu: Vec<f64> = rounds.iter().map(Measurement::server_ns_per_op).collect();
    vec![
        cell(of(Measurement::ops_per_second), whole),
        cell(median(throughputs), times),
        cell(of(|m| m.latency_ns[0] as f64), micros),
        cell(of(|m| m.latency_ns[1] as f64), micros),
        cell(of(|m| m.latency_ns[2] as f64), micros),
        cell(median(rounds.iter().filter_map(|m| m.undisturbed_ns(1))), micros),
        ratio_cell(Ratio::of(p99s)),
        cell(of(Measurement::server_ns_per_op), whole),
        cell(span(&cpu).map(|s| s / 2.0), percent),
        ratio_cell(Ratio::of(costs)),
        cell(of(Measurement::busy), percent),
        cell(of(Measurement::waited), percent),
        cell(of(Measurement::generator_ns_per_op), whole),
        thousands(rounds.iter().map(|m| m.wrong).sum()),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Report, Row, Weight};
    use crate::cell::Measurement;
    use crate::cpu::CpuUse;
    use crate::disturbance::Undisturbed;
    use crate::machine::Machine;

    fn measurement(replies: u64, ns_per_op: u64) -> Measurement {
        Measurement {
            replies,
            elapsed: Duration::from_secs(1),
            latency_ns: [1_000, 20_000, 300_000],
            undisturbed: Some(Undisturbed {
                replies,
                latency_ns: [1_000, 10 * ns_per_op, 300_000],
            }),
            server: CpuUse { ran_ns: replies * ns_per_op, waited_ns: 10_000_000 },
            generator_ns: replies * 700,
            ..Measurement::default()
        }
    }

    fn report() -> Report {
        let mut report = Report::new(Machine::sample(), 0);
        for name in ["old", "new"] {
            report.servers.push((name.to_owned(), "1.2".to_owned(), format!("{name} -p 1")));
        }
        report
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut report = report();
        // The machine is twice as fast in the second round; the servers' ratio stays.
        let old = vec![measurement(100_000, 5_000), measurement(200_000, 2_500)];
        let new = vec![measurement(200_000, 1_000), measurement(400_000, 500)];
        report.rows.push(Row { kind: "incr", shape: "50×1".to_owned(), rounds: vec![old, new] });
        let text = report.render();
        let line = text.lines().rfind(|line| line.contains("new")).unwrap_or("");
        let cells = line.split('|').map(str::trim).collect::<Vec<_>>().join("|");
        let expected = "|incr|50×1|new|300,000|2.00×|1.0|20|300|7.5|0.20× (0.20 to 0.20)|750|\
                        33 %|5.00× (5.00 to 5.00)|20 %|1 %|700|0|";
        assert_eq!(cells, expected, "{text}");
        assert!(text.contains("**750** · 300k · 20"), "{text}");
        assert!(text.contains("no reply was wrong"), "{text}");
    }

    #[test]
    fn kinds_are_set_beside_one_on_the_same_server() {
        let mut report = report();
        report.beside = Some("incr".to_owned());
        let row = |kind, costs: [u64; 2]| {
            let rounds = costs.map(|cost| measurement(100_000, cost)).to_vec();
            let rounds = vec![rounds.clone(), rounds];
            Row { kind, shape: "50×16".to_owned(), rounds }
        };
        report.rows = vec![row("incr", [1_000, 2_000]), row("take-bucket", [1_200, 2_600])];
        let text = report.render();
        assert!(text.contains("| incr        | old    | 1.00× (1.00 to 1.00) |"), "{text}");
        assert!(text.contains("| take-bucket | new    | 1.25× (1.20 to 1.30) |"), "{text}");
    }

    #[test]
    fn wrong_replies_cannot_be_overlooked() {
        let mut report = report();
        report.add_wrong("new", 1_234, vec!["Incr of 7: \"ERROR\"".to_owned(); 30]);
        let text = report.render();
        assert!(text.contains("**1,234 WRONG REPLIES**"), "{text}");
        assert_eq!(text.matches("`new: Incr of 7").count(), 20);
    }

    #[test]
    fn a_weight_is_the_growth_for_each_counter() {
        let mut report = report();
        let weight = |counted| Weight {
            counters: 1_000_000,
            empty: 4_000_000,
            set: 90_000_000,
            counted,
            highest: 120_000_000,
            idle: 512.0,
            deleted: 5_000_000,
            bucket: None,
        };
        report.weights = vec![weight(104_000_000), weight(54_000_000)];
        let text = report.render();
        assert!(text.contains("100.0 |            1.00×"), "{text}");
        assert!(text.contains(" 50.0 |            2.00×"), "{text}");
    }
}
