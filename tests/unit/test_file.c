/* SPDX-License-Identifier: Apache-2.0
 *
 * test_file.c - reading refuses what is no regular file, without hanging; writing leaves a whole file or none; CPU quotas.
 */
#include "config.h"
#include "base.h"
#include "base_internal.h"
#include "test.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[4][256];
    static unsigned turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "test_file.XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* Files in the folder, hidden ones too. */
static int count_files(void)
{
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void test_read(void **state)
{
    (void)state;
    char *data;
    uint64_t bytes;
    const char *path = in_folder("a");
    put(path, "hello");
    assert_int_equal(base_read_file(path, 5, &data, &bytes), IFX_OK);
    assert_int_equal(bytes, 5);
    assert_string_equal(data, "hello");
    base_free(data);
    assert_int_equal(base_read_file(path, 4, &data, &bytes), IFX_ELIMIT);
    ERROR_HAS("4 bytes");
    assert_null(data);
    put(path, "");
    assert_int_equal(base_read_file(path, 5, &data, &bytes), IFX_OK);
    assert_int_equal(bytes, 0);
    assert_string_equal(data, "");
    base_free(data);
    /* /proc says size 0 */
    assert_int_equal(base_read_file("/proc/self/status", 1 << 20, &data, &bytes), IFX_OK);
    assert_true(bytes > 100);
    base_free(data);
    assert_int_equal(base_read_file(in_folder("none"), 5, &data, &bytes), IFX_ENOTFOUND);
    ERROR_HAS("none");
    unlink(path);
}

static void refused(const char *path, const char *why)
{
    char *data;
    const void *map;
    uint64_t bytes;
    int fd;
    alarm(10); /* a hang ends the program with a signal */
    assert_int_not_equal(base_read_file(path, 100, &data, &bytes), IFX_OK);
    ERROR_HAS(why);
    ERROR_HAS(path);
    assert_int_not_equal(base_map_file(path, &map, &bytes, &fd), IFX_OK);
    ERROR_HAS(why);
    alarm(0);
}

static void test_refused(void **state)
{
    (void)state;
    refused("/dev/zero", "not a regular file");
    refused("/dev/null", "not a regular file");
    refused(folder, "is a directory");
    const char *fifo = in_folder("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    refused(fifo, "not a regular file");
    unlink(fifo);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", in_folder("socket"));
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (s >= 0 && bind(s, (struct sockaddr *)&a, sizeof a) == 0)
        refused(a.sun_path, "cannot open");
    close(s);
    unlink(a.sun_path);
    const char *loop = in_folder("loop");
    assert_int_equal(symlink("loop", loop), 0);
    refused(loop, "cannot open");
    unlink(loop);
}

static void test_map(void **state)
{
    (void)state;
    const void *map;
    uint64_t bytes;
    int fd;
    const char *path = in_folder("m");
    put(path, "mapped");
    assert_int_equal(base_map_file(path, &map, &bytes, &fd), IFX_OK);
    assert_int_equal(bytes, 6);
    assert_memory_equal(map, "mapped", 6);
    assert_true(fd >= 0);
    close(fd);
    base_unmap((void *)(uintptr_t)map, bytes);
    put(path, "");
    assert_int_equal(base_map_file(path, &map, &bytes, NULL), IFX_EFORMAT);
    ERROR_HAS("empty");
    unlink(path);
}

static void has_text(const char *path, const char *want)
{
    char *data;
    uint64_t bytes;
    assert_int_equal(base_read_file(path, 1 << 20, &data, &bytes), IFX_OK);
    assert_string_equal(data, want);
    base_free(data);
}

static void test_write(void **state)
{
    (void)state;
    struct base_out *o;
    const char *path = in_folder("out");
    assert_int_equal(base_out_open(path, false, &o), IFX_OK);
    assert_int_equal(base_out_write(o, "abc", 3), IFX_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(base_out_offset(o), 3);
    assert_int_equal(base_out_pwrite(o, "X", 1, 1), IFX_OK);
    assert_int_equal(base_out_write(o, "def", 3), IFX_OK);
    assert_int_equal(base_out_offset(o), 6);
    assert_int_equal(base_out_commit(&o), IFX_OK);
    assert_null(o);
    has_text(path, "aXcdef");
    assert_int_equal(count_files(), 1);

    assert_int_equal(base_out_open(path, false, &o), IFX_EINVAL);
    assert_null(o);
    ERROR_HAS("--force");
    assert_int_equal(base_out_open(path, true, &o), IFX_OK);
    base_out_write(o, "junk", 4);
    base_out_abort(&o);
    assert_null(o);
    has_text(path, "aXcdef");
    assert_int_equal(count_files(), 1);
    assert_int_equal(base_out_open(path, true, &o), IFX_OK);
    base_out_write(o, "new", 3);
    assert_int_equal(base_out_commit(&o), IFX_OK);
    has_text(path, "new");

    /* a link is followed: the file behind it is replaced */
    const char *link = in_folder("link");
    assert_int_equal(symlink("out", link), 0);
    assert_int_equal(base_out_open(link, true, &o), IFX_OK);
    base_out_write(o, "linked", 6);
    assert_int_equal(base_out_commit(&o), IFX_OK);
    has_text(path, "linked");
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    unlink(link);
    unlink(path);
}

static void test_write_large(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    char *block = malloc(BYTES), *data;
    uint64_t bytes;
    struct base_out *o;
    const char *path = in_folder("large");
    for (int i = 0; i < BYTES; i++)
        block[i] = (char)(i * 7);
    assert_int_equal(base_out_open(path, false, &o), IFX_OK);
    uint64_t done = 0;
    for (uint64_t step = 1; done < BYTES; step = step * 3 + 1) {
        uint64_t n = step < BYTES - done ? step : BYTES - done;
        assert_int_equal(base_out_write(o, block + done, n), IFX_OK);
        done += n;
    }
    assert_int_equal(base_out_commit(&o), IFX_OK);
    assert_int_equal(base_read_file(path, BYTES, &data, &bytes), IFX_OK);
    assert_int_equal(bytes, BYTES);
    assert_memory_equal(data, block, BYTES);
    base_free(data);
    free(block);
    unlink(path);
}

static void test_write_refused(void **state)
{
    (void)state;
    struct base_out *o;
    assert_int_not_equal(base_out_open(folder, true, &o), IFX_OK);
    ERROR_HAS("directory");
    assert_int_not_equal(base_out_open("/dev/null", true, &o), IFX_OK);
    ERROR_HAS("not a regular file");
    assert_int_not_equal(base_out_open("", true, &o), IFX_OK);
    ERROR_HAS("empty");
    assert_int_not_equal(base_out_open(in_folder("no/such"), true, &o), IFX_OK);
    ERROR_HAS("no/such");
    assert_int_not_equal(base_out_open(in_folder("slash/"), true, &o), IFX_OK);
    assert_null(o);
    struct stat st;
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_int_equal(count_files(), 0);
}

/* Two writers of one name: the second to finish does not overwrite the first. */
static void test_write_race(void **state)
{
    (void)state;
    struct base_out *a, *b;
    const char *path = in_folder("race");
    assert_int_equal(base_out_open(path, false, &a), IFX_OK);
    assert_int_equal(base_out_open(path, false, &b), IFX_OK);
    base_out_write(a, "a", 1);
    base_out_write(b, "b", 1);
    assert_int_equal(base_out_commit(&b), IFX_OK);
    assert_int_not_equal(base_out_commit(&a), IFX_OK);
    assert_null(a);
    ERROR_HAS("exists");
    has_text(path, "b");
    assert_int_equal(count_files(), 1);
    unlink(path);
}

/* As with a full disk: the write fails, nothing is left. */
static void test_write_full(void **state)
{
    (void)state;
    struct rlimit old, small;
    struct base_out *o;
    static char block[300000];
    const char *path = in_folder("full");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 500000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(base_out_open(path, false, &o), IFX_OK);
    int32_t status = IFX_OK;
    for (int i = 0; i < 4 && status == IFX_OK; i++)
        status = base_out_write(o, block, sizeof block);
    int32_t after = base_out_commit(&o);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(status, IFX_EIO);
    assert_int_equal(after, IFX_EIO);
    assert_int_equal(count_files(), 0);
}

/* A small write that only fails at the flush of commit. */
static void test_write_full_at_commit(void **state)
{
    (void)state;
    struct rlimit old, small;
    struct base_out *o;
    static char block[1000];
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 500;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(base_out_open(in_folder("late"), false, &o), IFX_OK);
    int32_t written = base_out_write(o, block, sizeof block);
    int32_t status = base_out_commit(&o);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(written, IFX_OK);
    assert_int_equal(status, IFX_EIO);
    ERROR_HAS("late");
    assert_int_equal(count_files(), 0);
}

/* What a killed writer left is removed by the next one of that name; what a living one writes is not, nor what only looks alike. */
static void test_killed(void **state)
{
    (void)state;
    static const char *const others[] = {".killed.12-3.tmp.x", ".killed.x-3.tmp", ".killed.12-.tmp", ".killed2.12-3.tmp",
                                         "killed.12-3.tmp"};
    char path[sizeof folder + 16];
    snprintf(path, sizeof path, "%s/killed", folder); /* longer lived than what in_folder returns */
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        put(in_folder(others[i]), "");
    pid_t child = fork();
    if (child == 0) {
        struct base_out *o;
        if (base_out_open(path, false, &o) == IFX_OK && base_out_write(o, "half", 4) == IFX_OK)
            raise(SIGKILL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(count_files(), 5 + 1);
    struct base_out *living, *o;
    assert_int_equal(base_out_open(path, false, &living), IFX_OK);
    assert_int_equal(count_files(), 5 + 1);
    assert_int_equal(base_out_open(path, false, &o), IFX_OK);
    assert_int_equal(count_files(), 5 + 2);
    assert_int_equal(base_out_commit(&o), IFX_OK);
    has_text(path, "");
    assert_int_equal(base_out_write(living, "x", 1), IFX_OK);
    base_out_abort(&living);
    assert_int_equal(count_files(), 5 + 1);
}

static void group_file(const char *dir, const char *name, const char *text)
{
    char command[256];
    snprintf(command, sizeof command, "mkdir -p '%s/%s'", folder, dir);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "%s/%s/%s", folder, dir, name);
    put(command, text);
}

static void test_quota(void **state)
{
    (void)state;
    char groups[256];
    snprintf(groups, sizeof groups, "%s/cgroup", folder);
    put(groups, "0::/a/b/c\n");
    assert_int_equal(base_cgroup_cpus(groups, folder), UINT32_MAX);
    group_file("a/b/c", "cpu.max", "max 100000\n");
    assert_int_equal(base_cgroup_cpus(groups, folder), UINT32_MAX);
    group_file("a/b", "cpu.max", "250000 100000\n"); /* a parent's quota counts; 2.5 CPUs are 3 threads */
    assert_int_equal(base_cgroup_cpus(groups, folder), 3);
    group_file("a/b/c", "cpu.max", "50000 100000\n");
    assert_int_equal(base_cgroup_cpus(groups, folder), 1);
    group_file("a/b/c", "cpu.max", "rubbish\n");
    group_file("a", "cpu.max", "200000 100000\n");
    assert_int_equal(base_cgroup_cpus(groups, folder), 2);
    /* version 1: a container sees its own group at the root of the mount */
    put(groups, "12:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n3:cpuset:/\n");
    group_file("cpu,cpuacct", "cpu.cfs_quota_us", "-1\n");
    group_file("cpu,cpuacct", "cpu.cfs_period_us", "100000\n");
    assert_int_equal(base_cgroup_cpus(groups, folder), UINT32_MAX);
    group_file("cpu,cpuacct", "cpu.cfs_quota_us", "400000\n");
    assert_int_equal(base_cgroup_cpus(groups, folder), 4);
    put(groups, "4:cpuset:/docker/x\nbad line\n::\n");
    assert_int_equal(base_cgroup_cpus(groups, folder), UINT32_MAX);
    assert_int_equal(base_cgroup_cpus(in_folder("none"), folder), UINT32_MAX);
    assert_true(base_usable_cpus() >= 1);
}

static void test_levels(void **state)
{
    (void)state;
    uint32_t level = 99;
    for (uint32_t i = IFX_CPU_SCALAR; i <= IFX_CPU_AMX_BF16; i++) {
        assert_int_equal(base_cpu_parse(base_cpu_name(i), &level), IFX_OK);
        assert_int_equal(level, i);
    }
    assert_int_equal(base_cpu_parse("avx9", &level), IFX_EINVAL);
    ERROR_HAS("avx512_bf16");
    uint32_t here = base_cpu_detect();
    assert_true(here <= IFX_CPU_AMX_BF16);
    print_message("this machine: %s\n", base_cpu_name(here));
#if defined(__x86_64__)
    /* An independent witness where libgcc knows the feature. */
    assert_int_equal(here >= IFX_CPU_AVX2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    if (here >= IFX_CPU_AVX512)
        assert_true(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"));
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_map, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_large, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_race, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_full, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_full_at_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_quota, setup, teardown),
        cmocka_unit_test(test_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
