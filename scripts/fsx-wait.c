/* Makes fsx wait in the middle of its work, with its file closed. scripts/fsx.sh preloads it.
 *
 * fsx opens its file anew once in a while. When it is about to do so for the $FLOE_FSX_OPEN-th time, this
 * library makes the file $FLOE_FSX_FILE.waits and holds it up until there is $FLOE_FSX_FILE.goes. What the
 * path leads to may be another file of the same contents by then. Nothing else is changed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_here(int (*open_file)(const char *, int, ...), const char *file)
{
    char name[4096];
    int waits;

    snprintf(name, sizeof name, "%s.waits", file);
    waits = open_file(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (waits < 0 || close(waits) != 0) {
        perror(name);
        _exit(99);
    }
    snprintf(name, sizeof name, "%s.goes", file);
    while (access(name, F_OK) != 0) {
        if (getppid() == 1)
            _exit(97);
        usleep(1000);
    }
}

int open64(const char *path, int flags, ...)
{
    static int (*real)(const char *, int, ...);
    static int opened;
    const char *file = getenv("FLOE_FSX_FILE"), *number = getenv("FLOE_FSX_OPEN");
    mode_t mode = 0;

    if (!real && !(real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64")))
        _exit(98);
    if (flags & (O_CREAT | __O_TMPFILE)) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    if (file && number && strcmp(path, file) == 0 && ++opened == atoi(number))
        wait_here(real, file);
    return real(path, flags, mode);
}
