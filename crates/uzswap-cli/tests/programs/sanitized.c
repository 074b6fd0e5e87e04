/* Uses memory in threads and children, and then has a bug of the kind that is named:
 * sanitized (none|freed|leaked|race) */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static long shared;

static void *count_up(void *unused)
{
    for (int turn = 0; turn < 1000; turn++)
        shared++;
    return unused;
}

static void *use(void *unused)
{
    for (int turn = 0; turn < 200; turn++) {
        char *memory = malloc(100 * turn + 1);
        memset(memory, turn, 100 * turn + 1);
        free(memory);
    }
    return unused;
}

static void in_two_threads(void *(*work)(void *))
{
    pthread_t one, other;
    pthread_create(&one, NULL, work, NULL);
    pthread_create(&other, NULL, work, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
}

int main(int count, char **arguments)
{
    const char *bug = count > 1 ? arguments[1] : "none";
    int failed = 0, status;

    in_two_threads(use);
    for (int child = 0; child < 4; child++) {
        if (fork() == 0) {
            use(NULL);
            if (child == 0)
                execlp("true", "true", (char *)NULL);
            _exit(0);
        }
        wait(&status);
        failed |= status;
    }
    printf("failed %d\n", failed);
    fflush(stdout);
    if (!strcmp(bug, "freed")) {
        char *volatile memory = malloc(100);
        free(memory);
        return memory[5];
    }
    if (!strcmp(bug, "leaked")) {
        char *volatile memory = malloc(1234);
        memory = NULL;
    }
    if (!strcmp(bug, "race"))
        in_two_threads(count_up);
    return 0;
}
