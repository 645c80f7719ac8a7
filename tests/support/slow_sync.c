/* A disk that takes its time: every sync waits SLOW_SYNC_MS milliseconds, and for as long as there is a file
   SLOW_SYNC_GATE, before it is carried out. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void pause_for(long milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&left, NULL);
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
    return real(file);
}

int fdatasync(int file)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_a_while();
    return real(file);
}
