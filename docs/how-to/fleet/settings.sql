-- What does each setting save, and at which price? Those within the objective come first.
-- After: uzswap fleet replay fleet --params threshold-percentile=90,95,98,warm-up=0s,5m,10m \
--            --out fleet/replays.parquet
SELECT
    threshold_percentile,
    warm_up_seconds,
    compressor,
    within_slo,
    round(100 * coverage, 1) AS coverage_percent,
    round(p98_promotion_ppm / 10000, 3) AS p98_percent_a_minute,
    round(cpu_percent, 3) AS cpu_percent,
    round(saved_bytes / 1048576, 1) AS saved_mib
FROM read_parquet('fleet/replays*.parquet', union_by_name = true)
WHERE host IS NULL
ORDER BY within_slo DESC, coverage DESC, threshold_percentile, warm_up_seconds;
