"""Dicts and lists that grow, shrink, and are walked again and again; prints what they come to."""

import sys
import zlib

count = 40_000 * int(sys.argv[1])
table = {i: ("value %d of a table " % i) * 16 for i in range(count)}
ordered = sorted(table.values())
for i in range(0, count, 3):
    del table[i]
rows = [[i, str(i), (i, float(i) / 7)] for i in range(count // 4)]
rows.sort(key=lambda row: row[1])
for turn in range(3):
    for i in range(turn, len(rows), 5):
        rows[i][1] += " turn %d" % turn
    sum_ = 0
    for text in ordered:
        sum_ = zlib.crc32(text.encode(), sum_)
    for key in table:
        sum_ = zlib.crc32(table[key].encode(), sum_)
    for row in rows:
        sum_ = zlib.crc32(repr(row).encode(), sum_)
    print(turn, len(table), len(ordered), len(rows), sum_)
