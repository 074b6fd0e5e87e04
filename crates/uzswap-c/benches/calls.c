/* Calls of a C program, timed: in a shared library, so that the benchmark can give it functions. */
#define _POSIX_C_SOURCE 200809L

#include <stddef.h>
#include <stdint.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Nanoseconds to store `count` pages under the keys from 0 on; 0 if one was refused. */
uint64_t time_stores(int (*store)(void *, uint64_t, const void *), void *zswap,
                     const unsigned char (*pages)[4096], size_t count)
{
    uint64_t start = now_ns();
    for (size_t key = 0; key < count; key++)
        if (store(zswap, key, pages[key]) != 0)
            return 0;
    return now_ns() - start;
}

/* Nanoseconds to load them into one page; 0 if one was not there. */
uint64_t time_loads(int (*load)(void *, uint64_t, void *), void *zswap, unsigned char page[4096],
                    size_t count)
{
    uint64_t start = now_ns();
    for (size_t key = 0; key < count; key++)
        if (load(zswap, key, page) != 0)
            return 0;
    return now_ns() - start;
}
