/* forgetful_tracer PROGRAM ARGUMENT...: forgetful.c for programs that make their system calls themselves, as those in Go
 * do. A seccomp filter stops each fsync and fdatasync of the program, and what it synced is recorded before it goes on. It
 * dies with this process. */
#include "forgetful.c"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

static void become(char **command)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    if (ptrace(PTRACE_TRACEME, 0, 0, 0) || raise(SIGSTOP) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        abort();
    execvp(*command, command);
    abort();
}

static void synced(pid_t thread)
{
    struct user_regs_struct registers;
    char path[64];
    if (ptrace(PTRACE_GETREGS, thread, 0, &registers) || registers.rax)
        return;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", thread, (int)registers.rdi);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        abort();
    record(descriptor);
    close(descriptor);
}

int main(int count, char **arguments)
{
    int status;
    pid_t program = fork();
    if (count < 2 || program < 0)
        return 2;
    if (!program)
        become(arguments + 1);
    if (waitpid(program, &status, 0) != program || ptrace(PTRACE_SETOPTIONS, program, 0, PTRACE_O_EXITKILL
            | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK
            | PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD))
        return 2;
    ptrace(PTRACE_CONT, program, 0, 0);
    for (pid_t thread; (thread = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (thread == program)
                return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int signal_number = WSTOPSIG(status), event = status >> 16;
        if (event == PTRACE_EVENT_SECCOMP) {
            ptrace(PTRACE_SYSCALL, thread, 0, 0);   /* until it has been carried out */
            continue;
        }
        if (signal_number == (SIGTRAP | 0x80))
            synced(thread);
        int is_own = event || signal_number == (SIGTRAP | 0x80) || signal_number == SIGSTOP;
        ptrace(PTRACE_CONT, thread, 0, is_own ? 0 : signal_number);
    }
    return 2;
}
