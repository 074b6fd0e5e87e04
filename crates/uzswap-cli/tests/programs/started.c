/* Prints whether the preload library is in this program, and runs a command. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments)
{
    char line[512];
    int is_there = 0;
    FILE *maps = fopen("/proc/self/maps", "r");

    while (maps && fgets(line, sizeof line, maps))
        is_there |= strstr(line, "libuzswap_preload.so") != NULL;
    printf("%s %s\n", arguments[0], is_there ? "is managed" : "is not managed");
    fflush(stdout);
    return count > 1 && system(arguments[1]);
}
