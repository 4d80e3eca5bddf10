/* A wall clock of its own for one process, for LD_PRELOAD: WALL_CLOCK_FILE holds by how many nanoseconds (8 bytes, in
 * the machine's order) it differs from the machine's, and may change at any time.
 *
 * CLOCK_MONOTONIC and CLOCK_BOOTTIME stay as they are, as with settimeofday(2). Who waits until a time of the wall clock
 * waits until this one shows it: shorter when it jumps forward, longer when it jumps back.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define SLICE (SECOND / 50) /* how late a wait may notice a jump */

static const volatile int64_t *off;
static int (*machine_clock)(clockid_t, struct timespec *);
static int (*machine_wait)(sem_t *, const struct timespec *);
static long (*machine_call)(long, ...);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WALL_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *memory = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *off, PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        abort();
    close(file);
    off = memory;
    machine_clock = dlsym(RTLD_NEXT, "clock_gettime");
    machine_wait = dlsym(RTLD_NEXT, "sem_timedwait");
    machine_call = dlsym(RTLD_NEXT, "syscall");
}

static int64_t nanoseconds(const struct timespec *time) { return time->tv_sec * SECOND + time->tv_nsec; }

static struct timespec timespec(int64_t time) {
    struct timespec result = {time / SECOND, time % SECOND};
    return result;
}

static int64_t machine_now(void) {
    struct timespec now;
    machine_clock(CLOCK_REALTIME, &now);
    return nanoseconds(&now);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!off) /* before the constructor */
        return (int)syscall(SYS_clock_gettime, clock, now);
    int failed = machine_clock(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *now = timespec(nanoseconds(now) + *off);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

/* Until when the machine's clock has to be waited for next, to see in time whether ours shows `until`. */
static struct timespec next_slice(int64_t until, int *last) {
    int64_t now = machine_now(), left = until - (now + *off);
    *last = left <= SLICE;
    return timespec(now + (*last ? (left > 0 ? left : 0) : SLICE));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    for (;;) {
        int last;
        struct timespec slice = next_slice(nanoseconds(until), &last);
        int failed = machine_wait(semaphore, &slice);
        if (!failed || errno != ETIMEDOUT || last)
            return failed;
    }
}

long syscall(long number, ...) {
    long words[6];
    va_list list;
    va_start(list, number);
    for (int index = 0; index < 6; index++)
        words[index] = va_arg(list, long);
    va_end(list);
    if (!machine_call)
        machine_call = dlsym(RTLD_NEXT, "syscall");
    const struct timespec *until = (const struct timespec *)words[3];
    int waits = number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME) && until;
    for (;;) {
        int last = 1;
        struct timespec slice;
        if (waits) {
            slice = next_slice(nanoseconds(until), &last);
            words[3] = (long)&slice;
        }
        long result = machine_call(number, words[0], words[1], words[2], words[3], words[4], words[5]);
        if (result >= 0 || errno != ETIMEDOUT || last)
            return result;
    }
}
