/* Memory that is in use to the end: the leak sanitizer stops all threads, and reads all of it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define WORDS 40

struct block {
    struct block *next;
    uint64_t words[WORDS];
};

static struct block *blocks;

int main(int count, char **arguments) {
    uint64_t blocks_count = 100000 * (uint64_t)(count > 1 ? atoi(arguments[1]) : 1), sum = 0;
    for (uint64_t number = 0; number < blocks_count; number++) {
        struct block *block = malloc(sizeof *block);
        block->next = blocks;
        for (int word = 0; word < WORDS; word++)
            block->words[word] = number * (word % 5);
        blocks = block;
    }
    for (struct block *block = blocks; block; block = block->next)
        sum = sum * 31 + block->words[WORDS - 1];
    printf("%llx\n", (unsigned long long)sum);
}
