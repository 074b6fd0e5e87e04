//! The report as CSV, one row per run.

use super::{Report, access_section};
use uzswap::zpool::zsmalloc::ObjectMapping;

/// The report's runs as comma-separated values. No field needs quotes.
pub(super) fn rows(report: &Report) -> String {
    let mut rows: Vec<String> = Vec::new();
    for findings in &report.combinations {
        let figures = &findings.figures;
        for run in 0..findings.real_s.len() {
            let (store, load) = (findings.store_ns_by_run[run], findings.load_ns_by_run[run]);
            let fields: [(&str, String); 29] = [
                ("zpool", findings.parts.zpool.to_string()),
                ("compressor", findings.compressor.clone()),
                ("index", findings.parts.index.to_string()),
                ("mapping", findings.parts.mapping.map_or("", ObjectMapping::name).to_owned()),
                ("run", (run + 1).to_string()),
                ("pages", figures.pages.to_string()),
                ("stored_pages", figures.stored_pages.to_string()),
                ("same_filled_pages", figures.same_filled_pages.to_string()),
                ("stored_incompressible_pages", figures.stored_incompressible_pages.to_string()),
                ("reject_compress_poor", figures.reject_compress_poor.to_string()),
                ("reject_compress_fail", figures.reject_compress_fail.to_string()),
                ("reject_alloc_fail", figures.reject_alloc_fail.to_string()),
                ("reject_kmemcache_fail", figures.reject_kmemcache_fail.to_string()),
                ("object_header_bytes", findings.object_header_bytes.to_string()),
                ("compressed_bytes", figures.compressed_bytes.to_string()),
                ("pool_total_size", figures.pool_total_size.to_string()),
                ("pool_peak_bytes", figures.pool_peak_bytes.to_string()),
                ("pool_after_free_bytes", figures.pool_after_free_bytes.to_string()),
                ("pool_after_compact_bytes", figures.pool_after_compact_bytes.to_string()),
                ("pool_after_refill_bytes", figures.pool_after_refill_bytes.to_string()),
                ("index_bytes", figures.index_bytes.to_string()),
                ("zpool_metadata_bytes", figures.zpool_metadata_bytes.to_string()),
                ("metadata_bytes", findings.metadata_bytes.to_string()),
                ("reserve_bytes", figures.reserve_bytes.to_string()),
                ("rss_bytes", findings.rss_bytes_by_run[run].to_string()),
                ("effective_ratio", format!("{:.4}", findings.effective_ratio)),
                ("real_s", format!("{:.6}", findings.real_s[run])),
                ("sys_s", format!("{:.6}", findings.sys_s[run])),
                ("user_s", format!("{:.6}", findings.user_s[run])),
            ];
            let named = |(name, value): (&str, String)| (name.to_owned(), value);
            let mut fields: Vec<(String, String)> = fields.into_iter().map(named).collect();
            for (name, times) in [("store_ns", store), ("load_ns", load)] {
                let columns = times.columns().into_iter();
                fields.extend(columns.map(|(of, ns)| (format!("{name}_{of}"), ns.to_string())));
            }
            fields.push(named(("verified_pages", findings.verified_pages.to_string())));
            if report.combinations.iter().any(|it| it.parts.unit_pages > 1) {
                fields.push(named(("unit_pages", findings.parts.unit_pages.to_string())));
            }
            fields.extend(access_section::fields(findings, run).into_iter().map(named));
            if let Some(whole) = &findings.whole {
                let pool = whole.pool_bytes;
                let ends = [pool.estimate, pool.low, pool.high].map(|bytes| bytes.to_string());
                let names = ["whole_pool_bytes", "whole_pool_low_bytes", "whole_pool_high_bytes"];
                fields.extend(names.into_iter().zip(ends).map(named));
            }
            let (names, values): (Vec<String>, Vec<String>) = fields.into_iter().unzip();
            if rows.is_empty() {
                rows.push(names.join(","));
            }
            rows.push(values.join(","));
        }
    }
    rows.join("\n") + "\n"
}
