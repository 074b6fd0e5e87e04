//! CSV: a row a run. Most columns are fields of the JSON document, by their names.

use super::cell::{named, one};
use super::{Report, access_section};

/// One row a run, under a header line.
pub(super) fn rows(report: &Report) -> String {
    let has_units = report.combinations.iter().any(|it| it.parts.unit_pages > 1);
    let mut rows: Vec<String> = Vec::new();
    for findings in &report.combinations {
        let document = serde_json::to_value(findings).expect("numbers and texts");
        let of = |run, names: &str| named(&document, run, names);
        for run in 0..findings.real_s.len() {
            let mut fields = of(run, "zpool,compressor,index,mapping");
            fields.push(one("run", (run + 1).to_string()));
            fields.extend(of(run, FIGURES));
            fields.push(one("rss_bytes", findings.rss_bytes_by_run[run].to_string()));
            fields.push(one("effective_ratio", format!("{:.4}", findings.effective_ratio)));
            fields.extend(of(run, "real_s,sys_s,user_s"));
            let (store, load) = (findings.store_ns_by_run[run], findings.load_ns_by_run[run]);
            for (name, times) in [("store_ns", store), ("load_ns", load)] {
                let columns = times.columns().into_iter();
                fields.extend(columns.map(|(of, ns)| (format!("{name}_{of}"), ns.to_string())));
            }
            fields.extend(of(run, "verified_pages"));
            if has_units {
                fields.push(one("unit_pages", findings.parts.unit_pages.to_string()));
            }
            fields.extend(access_section::fields(findings, &document, run));
            if let Some(whole) = &findings.whole {
                let pool = whole.pool_bytes;
                let ends = [pool.estimate, pool.low, pool.high].map(|bytes| bytes.to_string());
                let names = ["whole_pool_bytes", "whole_pool_low_bytes", "whole_pool_high_bytes"];
                fields.extend(names.into_iter().zip(ends).map(|(name, end)| one(name, end)));
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

/// Counts and bytes, the same in each run.
const FIGURES: &str = "pages,stored_pages,same_filled_pages,stored_incompressible_pages,\
     reject_compress_poor,reject_compress_fail,reject_alloc_fail,reject_kmemcache_fail,\
     object_header_bytes,compressed_bytes,pool_total_size,pool_peak_bytes,pool_after_free_bytes,\
     pool_after_compact_bytes,pool_after_refill_bytes,index_bytes,zpool_metadata_bytes,\
     metadata_bytes,reserve_bytes";
