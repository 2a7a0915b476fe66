/* Disk trouble on command, for tests: a library to preload.
 *
 * While the file named by DISK_TROUBLE exists, writes and syncs of files under a data directory
 * ("control.redb" or beside it) do what its text says: "eio", "enospc" or "erofs" fail with that error,
 * "slow" makes each sync take half a second. Not here: the choice of the node and the time (disks.rs). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The fault of a descriptor: an error, -1 for a slow sync, or 0. */
static int trouble(int fd)
{
    const char *flag = getenv("DISK_TROUBLE");
    char link[64], path[512], word[16];
    if (flag == NULL)
        return 0;
    int kept = errno;
    int found = 0;
    int file = open(flag, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t got = read(file, word, sizeof word - 1);
        close(file);
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (got > 0 && length > 0) {
            word[got] = 0;
            path[length] = 0;
            if (strstr(path, "/data") != NULL
                && (strstr(path, "/control.redb") != NULL || strstr(path, "/probe") != NULL
                    || strstr(path, "/lock") != NULL)) {
                if (strncmp(word, "eio", 3) == 0)
                    found = EIO;
                else if (strncmp(word, "enospc", 6) == 0)
                    found = ENOSPC;
                else if (strncmp(word, "erofs", 5) == 0)
                    found = EROFS;
                else if (strncmp(word, "slow", 4) == 0)
                    found = -1;
            }
        }
    }
    errno = kept;
    return found;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(fd)                                                                                    \
    do {                                                                                            \
        int error = trouble(fd);                                                                    \
        if (error > 0) {                                                                            \
            errno = error;                                                                          \
            return -1;                                                                              \
        }                                                                                           \
    } while (0)

static void delay(int fd)
{
    struct timespec half = {0, 500 * 1000 * 1000};
    if (trouble(fd) == -1)
        nanosleep(&half, NULL);
}

ssize_t write(int fd, const void *bytes, size_t length)
{
    FAIL(fd);
    return REAL(write)(fd, bytes, length);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at)
{
    FAIL(fd);
    return REAL(pwrite)(fd, bytes, length, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at)
{
    FAIL(fd);
    return REAL(pwrite64)(fd, bytes, length, at);
}

int ftruncate(int fd, off_t length)
{
    FAIL(fd);
    return REAL(ftruncate)(fd, length);
}

int ftruncate64(int fd, off64_t length)
{
    FAIL(fd);
    return REAL(ftruncate64)(fd, length);
}

int fsync(int fd)
{
    FAIL(fd);
    delay(fd);
    return REAL(fsync)(fd);
}

int fdatasync(int fd)
{
    FAIL(fd);
    delay(fd);
    return REAL(fdatasync)(fd);
}
