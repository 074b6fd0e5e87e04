// A process without threads forks. Prints whether the kernel takes parent and child for sharers of
// one list of semaphore adjustments (0), as it does for processes that have none.
#include <errno.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int ends[2];
    char byte;
    if (pipe(ends) != 0) return 2;
    pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) {
        close(ends[1]);
        read(ends[0], &byte, 1); // until the parent has asked
        _exit(0);
    }
    long differs = syscall(SYS_kcmp, getpid(), child, KCMP_SYSVSEM, 0, 0);
    if (differs < 0) printf("kcmp: %s\n", strerror(errno));
    else printf("differs %ld\n", differs);
    close(ends[1]);
    waitpid(child, NULL, 0);
    return differs < 0 ? 2 : 0;
}
