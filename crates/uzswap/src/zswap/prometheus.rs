//! Statistics in Prometheus' text format, version 0.0.4: a family of samples for each figure, with
//! its help and its type before them. Times are in seconds and sizes in bytes.

use std::fmt::Write as _;

use super::{CounterKind, LatencyCounts, Stats};

/// The buckets of a histogram always end at the same powers of two of nanoseconds, 256 ns to 17 s,
/// so histograms of different times and stores can be added up.
const LE_POWERS: std::ops::RangeInclusive<u32> = 8..=34;

impl Stats {
    /// The statistics in Prometheus' text exposition format. Counters have the kernel's names
    /// behind `uzswap_`.
    pub fn prometheus(&self) -> String {
        let mut text = Text::default();
        text.info(self);
        for counter in self.counters.list() {
            let (kind, end) = match (counter.kind, counter.name) {
                (CounterKind::Total, _) => ("counter", "_total"),
                (CounterKind::Held, "pool_total_size") => ("gauge", "_bytes"),
                (CounterKind::Held, _) => ("gauge", ""),
            };
            let name = format!("{}{end}", counter.name);
            text.family(&name, kind, counter.help);
            text.sample(&name, &[], counter.value);
        }
        text.family("memory_bytes", "gauge", "Memory of the store by use.");
        for (name, bytes) in self.memory.list() {
            text.sample("memory_bytes", &[("part", name.trim_end_matches("_bytes"))], bytes);
        }
        if let Some(bytes) = self.options.max_pool_bytes {
            text.family("max_pool_bytes", "gauge", "The most host pages that the pool may own.");
            text.sample("max_pool_bytes", &[], bytes);
        }
        text.tenants(self);
        if let Some(backing) = &self.backing {
            let labels = [("backing", &*backing.name)];
            text.family("backing_blocks", "gauge", "Capacity in blocks of 4096 bytes.");
            text.sample("backing_blocks", &labels, backing.blocks);
            text.family("backing_used_blocks", "gauge", "Blocks in use.");
            text.sample("backing_used_blocks", &labels, backing.used_blocks);
        }
        for (verb, counts) in self.latencies.verbs() {
            let help = match verb {
                "store" => "Latency of stores that were accepted.",
                "load" => "Latency of loads from memory.",
                "backing_load" => "Latency of loads from the backing.",
                _ => "Latency of written-back batches of up to 64 pages.",
            };
            text.histogram(verb, help, counts);
        }
        text.0
    }
}

/// Families of samples, one after the other. Their names are given without `uzswap_`.
#[derive(Debug, Default)]
pub struct Text(pub String);

impl Text {
    /// Begins a family.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.line(format_args!("# HELP uzswap_{name} {help}"));
        self.line(format_args!("# TYPE uzswap_{name} {kind}"));
    }

    /// A sample of the family that was begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let mut list = String::new();
        for (label, text) in labels {
            let comma = if list.is_empty() { "" } else { "," };
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            list += &format!("{comma}{label}=\"{text}\"");
        }
        match list.is_empty() {
            true => self.line(format_args!("uzswap_{name} {value}")),
            false => self.line(format_args!("uzswap_{name}{{{list}}} {value}")),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes all");
    }

    fn info(&mut self, stats: &Stats) {
        let options = &stats.options;
        self.family("info", "gauge", "Parts of the store.");
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("zpool", &*options.zpool),
            ("compressor", &*options.compressor),
            ("index", &*options.index),
            ("lru", options.lru.as_deref().unwrap_or("none")),
        ];
        self.sample("info", &labels, 1);
    }

    fn tenants(&mut self, stats: &Stats) {
        if stats.tenants.is_empty() {
            return;
        }
        let mut figure = |name: &str, help: &str, value: &dyn Fn(usize) -> String| {
            self.family(name, "gauge", help);
            for (number, tenant) in stats.tenants.iter().enumerate() {
                let id = number.to_string();
                let labels = [("tenant", &*id), ("name", &*tenant.options.name)];
                self.sample(name, &labels, value(number));
            }
        };
        let tenant = |number: usize| &stats.tenants[number];
        figure(
            "tenant_current_bytes",
            "Compressed bytes kept for the tenant and those below it.",
            &|number| tenant(number).current_bytes.to_string(),
        );
        figure("tenant_peak_bytes", "Highest value so far.", &|number| {
            tenant(number).peak_bytes.to_string()
        });
        figure("tenant_max_bytes", "The tenant's limit.", &|number| match tenant(number)
            .options
            .max_bytes
        {
            u64::MAX => "+Inf".to_owned(),
            bytes => bytes.to_string(),
        });
        figure("tenant_writeback", "1 if pages may be written to the backing.", &|number| {
            u64::from(tenant(number).options.writeback).to_string()
        });
    }

    /// A family of times, whose name gets `_seconds` at its end.
    pub fn histogram(&mut self, verb: &str, help: &str, counts: &LatencyCounts) {
        let name = format!("{verb}_seconds");
        self.family(&name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for power in LE_POWERS {
            let end_ns = 1_u64 << power;
            let below = counts.buckets.iter().filter(|bucket| bucket.below_ns <= end_ns);
            let count: u64 = below.map(|bucket| bucket.count).sum();
            self.sample(&bucket, &[("le", &*seconds(end_ns))], count);
        }
        self.sample(&bucket, &[("le", "+Inf")], counts.count);
        self.sample(&format!("{name}_sum"), &[], seconds(counts.sum_ns));
        self.sample(&format!("{name}_count"), &[], counts.count);
    }
}

/// Nanoseconds as seconds, exactly.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        for (ns, text) in
            [(0, "0"), (1, "0.000000001"), (256, "0.000000256"), (1 << 34, "17.179869184")]
        {
            assert_eq!(seconds(ns), text);
        }
        assert_eq!(seconds(2_000_000_000), "2");
    }
}
