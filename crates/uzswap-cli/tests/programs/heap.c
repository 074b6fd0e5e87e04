/* A heap that two children and a thread read as well; prints a sum of all that they saw. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t *heap;
static size_t words;

static uint64_t word(size_t at) { return at / 16 * 2654435761u; }

static void *sum(void *into)
{
    uint64_t *total = into;
    for (size_t at = 0; at < words; at++) {
        if (heap[at] != word(at))
            _exit(3);
        *total = *total * 31 + heap[at];
    }
    return NULL;
}

int main(int count, char **arguments)
{
    words = (size_t)(count > 1 ? atoi(arguments[1]) : 1) * (48 << 20) / 8;
    heap = malloc(words * 8);
    if (!heap)
        return 4;
    for (size_t at = 0; at < words; at++)
        heap[at] = word(at);
    uint64_t total = 0;
    pthread_t thread;
    if (pthread_create(&thread, NULL, sum, &total) || pthread_join(thread, NULL))
        return 5;
    for (int child = 0; child < 2; child++) {
        pid_t pid = fork();
        if (pid == 0) {
            for (size_t at = child; at < words; at += 1024)
                heap[at]++;
            for (size_t at = child; at < words; at += 1024)
                heap[at]--;
            uint64_t own = 0;
            sum(&own);
            _exit(own == total ? 7 : 6);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 7 << 8)
            return 8;
    }
    sum(&total);
    printf("%llx\n", (unsigned long long)total);
    return 0;
}
