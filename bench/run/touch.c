/* Touches pages at random, each timed: what a page fault costs the thread that has it.
   touch PAGES TOUCHES THINK_NS prints, as numbers: faults, mean, p50, p90, p99, p99.9 in us. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* A touch of a page that is there takes less. */
#define FAULT_NS 1500

static uint64_t state = 88172645463325252u;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * UINT64_C(1000000000) + t.tv_nsec;
}

static uint64_t number(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int order(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    size_t pages = strtoul(argv[1], 0, 10), touches = strtoul(argv[2], 0, 10);
    uint64_t think = strtoul(argv[3], 0, 10);
    char *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *times = malloc(touches * sizeof *times);
    if (memory == MAP_FAILED || !times) return 3;
    memset(times, 1, touches * sizeof *times);
    for (size_t page = 0; page < pages; page++)
        for (size_t at = 0; at < 4096;)
            at += snprintf(memory + page * 4096 + at, 4096 - at, "w%u-%s ", (unsigned)(number() % 1000),
                           page % 3 ? "alpha" : "betagamma");
    size_t faults = 0;
    uint64_t sum = 0;
    for (size_t touch = 0; touch < touches; touch++) {
        volatile char *at = memory + number() % pages * 4096 + 8;
        uint64_t before = now();
        (void)*at;
        uint64_t after = now();
        if (after - before > FAULT_NS) {
            times[faults++] = after - before;
            sum += after - before;
        }
        while (now() - after < think);
    }
    if (!faults) return 1;
    qsort(times, faults, sizeof *times, order);
    printf("%zu %.1f %.1f %.1f %.1f %.1f\n", faults, sum / 1e3 / faults, times[faults / 2] / 1e3,
           times[faults * 9 / 10] / 1e3, times[faults * 99 / 100] / 1e3, times[faults * 999 / 1000] / 1e3);
    return 0;
}
