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
    use crate::zswap::latency::LatencyBucket;
    use crate::zswap::{BackingStats, OptionNames, TenantOptions, TenantStats};

    #[test]
    fn seconds_are_exact() {
        for (ns, text) in
            [(0, "0"), (1, "0.000000001"), (256, "0.000000256"), (1 << 34, "17.179869184")]
        {
            assert_eq!(seconds(ns), text);
        }
        assert_eq!(seconds(2_000_000_000), "2");
    }

    /// The help, the type and the samples of each family, in the order of the text.
    fn families(text: &str) -> Vec<(&str, &str, &str, Vec<&str>)> {
        let mut families: Vec<(&str, &str, &str, Vec<&str>)> = Vec::new();
        let mut help = ("", "");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP uzswap_") {
                help = rest.split_once(' ').unwrap();
            } else if let Some(rest) = line.strip_prefix("# TYPE uzswap_") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, help.0, "help and type are of one family");
                families.push((name, kind, help.1, Vec::new()));
            } else {
                families.last_mut().unwrap().3.push(line.strip_prefix("uzswap_").unwrap());
            }
        }
        families
    }

    #[test]
    fn a_bucket_counts_all_below_its_end() {
        let bucket = |below_ns, count| LatencyBucket { below_ns, count };
        let buckets = vec![bucket(256, 3), bucket(257, 2), bucket(1 << 20, 1), bucket(1 << 35, 1)];
        let mut stats = Stats::default();
        stats.latencies.store = LatencyCounts { count: 7, sum_ns: 2_000_000_000, buckets };
        let text = stats.prometheus();
        let samples = &families(&text).into_iter().find(|family| family.0 == "store_seconds");
        let count = |le: &str| {
            let sample = format!("store_seconds_bucket{{le=\"{le}\"}} ");
            let samples = &samples.as_ref().unwrap().3;
            samples.iter().find_map(|line| line.strip_prefix(&*sample)).unwrap().to_owned()
        };
        let counts = ["0.000000256", "0.000000512", "0.001048576", "17.179869184", "+Inf"];
        assert_eq!(counts.map(count), ["3", "5", "6", "6", "7"]);
        let samples = &samples.as_ref().unwrap().3;
        assert!(samples.contains(&"store_seconds_sum 2"), "{samples:?}");
        assert!(samples.contains(&"store_seconds_count 7"), "{samples:?}");
        let version = format!("info{{version=\"{}\",", env!("CARGO_PKG_VERSION"));
        assert!(families(&text)[0].3[0].starts_with(&version), "{text}");
    }

    #[test]
    fn each_family_is_there_once_with_a_help_of_its_own() {
        let stats = Stats {
            options: OptionNames { max_pool_bytes: Some(77), ..Default::default() },
            backing: Some(BackingStats {
                name: "a \"disk\"".to_owned(),
                blocks: 9,
                used_blocks: 3,
            }),
            tenants: vec![TenantStats {
                number: 0,
                parent: None,
                options: TenantOptions::default().max_bytes(5).writeback(false),
                current_bytes: 3,
                peak_bytes: 4,
            }],
            ..Default::default()
        };
        let text = stats.prometheus();
        let families = families(&text);
        for (place, (name, _, help, samples)) in families.iter().enumerate() {
            assert!(!samples.is_empty() && !help.is_empty(), "{name}");
            let others = &families[..place];
            assert!(others.iter().all(|other| other.0 != *name && other.2 != *help), "{name}");
        }
        let of = |name| families.iter().find(|family| family.0 == name).unwrap();
        for (name, kind, help) in [
            ("zswpout_total", "counter", "Stores that kept the page, in memory or in the backing."),
            ("pool_total_size_bytes", "gauge", "Bytes of host pages that the pool owns."),
            ("stored_pages", "gauge", "Pages held in memory now, same-filled ones included."),
            ("store_seconds", "histogram", "Latency of stores that were accepted."),
            ("load_seconds", "histogram", "Latency of loads from memory."),
            ("backing_load_seconds", "histogram", "Latency of loads from the backing."),
            (
                "writeback_seconds",
                "histogram",
                "Latency of written-back batches of up to 64 pages.",
            ),
        ] {
            assert_eq!((of(name).1, of(name).2), (kind, help));
        }
        let backing = r#"backing_used_blocks{backing="a \"disk\""} 3"#;
        for (name, sample) in [
            ("max_pool_bytes", "max_pool_bytes 77"),
            ("backing_used_blocks", backing),
            ("tenant_current_bytes", r#"tenant_current_bytes{tenant="0",name=""} 3"#),
            ("tenant_peak_bytes", r#"tenant_peak_bytes{tenant="0",name=""} 4"#),
            ("tenant_max_bytes", r#"tenant_max_bytes{tenant="0",name=""} 5"#),
            ("tenant_writeback", r#"tenant_writeback{tenant="0",name=""} 0"#),
        ] {
            assert_eq!(of(name).3, [sample]);
        }
    }
}
