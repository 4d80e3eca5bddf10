/* A disk that forgets what was not synced: LD_PRELOAD it into a process, and each fsync and fdatasync records what the
 * disk has from then on in the directory $FORGETFUL: of a file its content (inodes/KEY), of a directory its names
 * (names/KEY, lines of "KEY KIND NAME"). KEY is the inode's number and its time of birth, as numbers are used again.
 * tests/forgetful.py makes a tree anew from that, as it would be after a loss of power. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int key_of(int directory, const char *name, int flags, char *key, size_t room, mode_t *mode)
{
    struct statx found;
    if (statx(directory, name, flags | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &found))
        return -1;
    snprintf(key, room, "%llu.%lld.%u", (unsigned long long)found.stx_ino, (long long)found.stx_btime.tv_sec,
             found.stx_btime.tv_nsec);
    *mode = found.stx_mode;
    return 0;
}

static int begin(const char *kind, const char *key, char *made, char *place)
{
    snprintf(place, PATH_MAX, "%s/%s/%s", getenv("FORGETFUL"), kind, key);
    snprintf(made, PATH_MAX, "%s/made.%d.%ld", getenv("FORGETFUL"), getpid(), (long)syscall(SYS_gettid));
    return open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

static void record_content(int descriptor, const char *key)
{
    char made[PATH_MAX], place[PATH_MAX], path[64], buffer[65536];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int source = open(path, O_RDONLY | O_CLOEXEC), copy = begin("inodes", key, made, place);
    if (source < 0 || copy < 0)
        abort();
    off_t end = lseek(source, 0, SEEK_END), hole = 0;   /* holes stay holes: a log is made as large as it may get */
    for (off_t data; (data = lseek(source, hole, SEEK_DATA)) >= 0;) {
        hole = lseek(source, data, SEEK_HOLE);
        for (ssize_t count; data < hole; data += count) {
            size_t wanted = (size_t)(hole - data) < sizeof buffer ? (size_t)(hole - data) : sizeof buffer;
            count = pread(source, buffer, wanted, data);
            if (count <= 0 || pwrite(copy, buffer, count, data) != count)
                abort();
        }
    }
    if (errno != ENXIO || ftruncate(copy, end) || rename(made, place))
        abort();
    close(source);
    close(copy);
}

static void record_names(int descriptor, const char *key)
{
    char made[PATH_MAX], place[PATH_MAX], path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    DIR *directory = opendir(path);
    int copy = begin("names", key, made, place);
    if (!directory || copy < 0)
        abort();
    for (struct dirent *entry; (entry = readdir(directory));) {
        char entry_key[96];
        mode_t mode;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")
                || key_of(dirfd(directory), entry->d_name, 0, entry_key, sizeof entry_key, &mode))
            continue;
        dprintf(copy, "%s %c %s\n", entry_key, S_ISDIR(mode) ? 'd' : 'f', entry->d_name);
    }
    closedir(directory);
    close(copy);
    if (rename(made, place))
        abort();
}

static void record(int descriptor)
{
    int saved = errno;
    char key[96];
    mode_t mode;
    if (getenv("FORGETFUL") && !key_of(descriptor, "", AT_EMPTY_PATH, key, sizeof key, &mode)) {
        if (S_ISREG(mode))
            record_content(descriptor, key);
        else if (S_ISDIR(mode))
            record_names(descriptor, key);
    }
    errno = saved;
}

int fsync(int descriptor)
{
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    int result = real(descriptor);
    if (!result)
        record(descriptor);
    return result;
}

int fdatasync(int descriptor)
{
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    int result = real(descriptor);
    if (!result)
        record(descriptor);
    return result;
}
