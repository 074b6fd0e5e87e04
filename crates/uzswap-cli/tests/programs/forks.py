"""A parent and its children that all write to what they had in common; prints what each has."""

import os
import sys
import zlib

count = 60_000 * int(sys.argv[1])
rows = [("row %d " % i) * 6 for i in range(count)]


def change_and_sum(who):
    for i in range(who % 2, count, 2):
        rows[i] = "%d changed %s" % (who, rows[i])
    sum_ = 0
    for row in rows:
        sum_ = zlib.crc32(row.encode(), sum_)
    return sum_


for turn in range(2):
    reader, writer = os.pipe()
    children = []
    for who in range(2):
        child = os.fork()
        if child == 0:
            os.write(writer, b"%d %d %d\n" % (turn, who, change_and_sum(who)))
            os._exit(0)
        children.append(child)
    print(turn, "parent", change_and_sum(turn + 2))
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    os.close(writer)
    with os.fdopen(reader) as lines:
        print("".join(sorted(lines)), end="")
