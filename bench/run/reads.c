/* Threads of one process that read its pages at random.
   reads PAGES THREADS TOUCHES: touches of all threads together. Prints how many pages were wrong. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define WORDS 512 /* of a page */

static uint64_t *memory;
static size_t pages, touches_each;

static uint64_t mixed(uint64_t number) {
    number = (number ^ number >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    number = (number ^ number >> 27) * UINT64_C(0x94d049bb133111eb);
    return number ^ number >> 31;
}

/* A third of the words are random: lz4 makes 1.7 to 1 of it. */
static uint64_t word(size_t page, size_t at) {
    return at % 3 == 0 ? mixed(page * WORDS + at) : page + at % 2;
}

static void *read_pages(void *number) {
    uint64_t state = mixed((uintptr_t)number + 1), wrong = 0;
    for (size_t touch = 0; touch < touches_each; touch++) {
        state = mixed(state + 1);
        size_t page = state % pages, at = state >> 32 & (WORDS - 1);
        wrong += ((volatile uint64_t *)memory)[page * WORDS + at] != word(page, at);
    }
    return (void *)(uintptr_t)wrong;
}

int main(int argc, char **argv) {
    pthread_t threads[64];
    if (argc != 4) return 2;
    pages = strtoul(argv[1], 0, 10);
    size_t count = strtoul(argv[2], 0, 10), wrong = 0;
    if (pages == 0 || count == 0 || count > sizeof threads / sizeof *threads) return 2;
    touches_each = strtoul(argv[3], 0, 10) / count;
    memory = mmap(0, pages * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 3;
    for (size_t page = 0; page < pages; page++)
        for (size_t at = 0; at < WORDS; at++) memory[page * WORDS + at] = word(page, at);
    for (size_t at = 0; at < count; at++)
        if (pthread_create(&threads[at], 0, read_pages, (void *)at)) return 3;
    for (size_t at = 0; at < count; at++) {
        void *found;
        if (pthread_join(threads[at], &found)) return 3;
        wrong += (uintptr_t)found;
    }
    printf("wrong pages: %zu\n", wrong);
    return wrong != 0;
}
