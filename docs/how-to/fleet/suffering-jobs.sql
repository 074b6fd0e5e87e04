-- Which jobs would suffer? Jobs whose pages come back within the objective at no age that is short:
-- the smallest age, in intervals, that 98 % of their intervals meet. The worst come first.
WITH rate AS (
    SELECT
        host, job,
        1 << (age - 1) AS age_intervals,
        promoted_pages[age] * 60 / seconds / greatest(working_set_pages, 1) AS a_minute,
        resident_pages
    FROM (
        SELECT *, unnest(range(1, len(promoted_pages) + 1)) AS age
        FROM read_parquet('fleet/intervals-*.parquet', union_by_name = true)
        WHERE process IS NOT NULL
    )
),
by_age AS (
    SELECT
        host, job, age_intervals,
        quantile_disc(a_minute, 0.98) AS p98,
        max(resident_pages) AS resident_pages
    FROM rate
    GROUP BY ALL
)
SELECT
    printf('%016x', host) AS host,
    printf('%016x', job) AS job,
    round(max(resident_pages) / 256, 1) AS resident_mib,
    round(100 * max(p98), 3) AS p98_percent_a_minute_at_once,
    min(age_intervals) FILTER (p98 <= 0.002) AS needs_age_intervals
FROM by_age
GROUP BY host, job
ORDER BY needs_age_intervals DESC NULLS FIRST, p98_percent_a_minute_at_once DESC, host, job
LIMIT 50;
