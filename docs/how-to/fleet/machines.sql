-- Which machines gain? Memory that compression of all cold pages would save, the most first.
-- Run where the folder `fleet` has the files: duckdb < machines.sql
WITH page AS (
    SELECT
        host,
        avg(CASE WHEN same_filled THEN 4096 ELSE 4096 - lz4_bytes END) AS lz4_saved,
        avg(CASE WHEN same_filled THEN 4096 ELSE 4096 - zstd_bytes END) AS zstd_saved,
        avg(same_filled::INT) AS same_filled
    FROM read_parquet('fleet/pages-*.parquet', union_by_name = true)
    GROUP BY host
),
-- The cold pages of a machine in each interval, then their mean over time.
cold AS (
    SELECT host, avg(pages) AS pages, avg(resident) AS resident
    FROM (
        SELECT
            host, run, "interval",
            sum(coalesce(cold_pages[1], 0)) AS pages,
            sum(resident_pages) AS resident
        FROM read_parquet('fleet/intervals-*.parquet', union_by_name = true)
        WHERE process IS NOT NULL
        GROUP BY ALL
    )
    GROUP BY host
),
-- A sample that nothing ended goes on, or was killed: its rows count as far as they go.
run AS (
    SELECT host, count(*) FILTER (ended_by = 'nothing') AS without_end
    FROM read_parquet('fleet/runs-*.parquet', union_by_name = true)
    GROUP BY host
)
SELECT
    printf('%016x', host) AS host,
    round(resident / 256, 1) AS resident_mib,
    round(100 * pages / resident, 1) AS cold_percent,
    round(100 * same_filled, 1) AS same_filled_percent,
    round(pages * lz4_saved / 1048576, 1) AS lz4_saves_mib,
    round(pages * zstd_saved / 1048576, 1) AS zstd_saves_mib,
    coalesce(without_end, 0) AS samples_without_end
FROM cold JOIN page USING (host) LEFT JOIN run USING (host)
ORDER BY zstd_saves_mib DESC, host;
