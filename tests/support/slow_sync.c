/* A disk that takes its time: every sync waits SLOW_SYNC_MS milliseconds, and for as long as there is a file
   SLOW_SYNC_GATE, before it is carried out. While there is a file SLOW_SYNC_BROKEN, every sync fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void pause_for(long milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&left, NULL);
}

static int is_broken(void)
{
    const char *file = getenv("SLOW_SYNC_BROKEN");
    return file && access(file, F_OK) == 0;
}

static void wait_a_while(void)
{
    const char *time = getenv("SLOW_SYNC_MS"), *gate = getenv("SLOW_SYNC_GATE");
    if (time)
        pause_for(atol(time));
    while (gate && access(gate, F_OK) == 0)
        pause_for(2);
}

int fsync(int file)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_a_while();
    if (is_broken()) {
        errno = EIO;
        return -1;
    }
    return real(file);
}

int fdatasync(int file)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_a_while();
    if (is_broken()) {
        errno = EIO;
        return -1;
    }
    return real(file);
}
