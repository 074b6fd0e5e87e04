/* Two threads read memory in a random order, while others start and end. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGES 6144
#define WORDS 512
#define AT_ONCE 4

static uint64_t (*memory)[WORDS];
static volatile int ends;

static void *reader(void *seed) {
    uint64_t state = (uintptr_t)seed, wrong = 0;
    while (!ends) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        uint64_t page = (state >> 33) % PAGES;
        wrong += memory[page][page % WORDS] != page;
    }
    return (void *)(uintptr_t)wrong;
}

static void *nothing(void *argument) {
    return argument;
}

int main(int count, char **arguments) {
    int rounds = 4000 * (count > 1 ? atoi(arguments[1]) : 1);
    memory = mmap(0, PAGES * sizeof *memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        for (uint64_t word = 0; word < WORDS / 4; word++)
            memory[page][word] = page * 7919 * word;
        memory[page][page % WORDS] = page;
    }
    pthread_t readers[2], others[AT_ONCE];
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&readers[i], 0, reader, (void *)(i + 1));
    long joined = 0, wrong = 0;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < AT_ONCE; i++)
            pthread_create(&others[i], 0, nothing, 0);
        for (int i = 0; i < AT_ONCE; i++)
            joined += pthread_join(others[i], 0) == 0;
    }
    ends = 1;
    for (int i = 0; i < 2; i++) {
        void *found;
        pthread_join(readers[i], &found);
        wrong += (long)(uintptr_t)found;
    }
    printf("%ld joined, %ld wrong\n", joined, wrong);
}
