/* SPDX-License-Identifier: Apache-2.0
 *
 * out.c - a file that appears under its name only when it is whole.
 */
#include "config.h"
#include "base.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES (256u << 10)

struct base_out {
    int fd;
    bool force;
    bool failed;
    char *path;
    char *temporary;
    char *buffer;
    uint64_t buffered;
    uint64_t offset; /* of the first buffered byte */
};

static int32_t out_error(const char *path, const char *what)
{
    return base_error(IFX_EIO, "%s: %s: %s", path, what, strerror(errno));
}

static int32_t exists_error(const char *path)
{
    return base_error(IFX_EINVAL, "%s exists; --force overwrites it", path);
}

/* The path to write: a link that leads to a file is followed, so that the file and not the link is replaced. */
static int32_t resolve_target(const char *path, bool force, char **out)
{
    struct stat st;
    if (path[0] == 0)
        return base_error(IFX_EINVAL, "the output file's name is empty");
    if (lstat(path, &st) == 0 && !force && !S_ISDIR(st.st_mode))
        return exists_error(path);
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return base_error(IFX_EINVAL, "%s: is a directory, name a file in it", path);
        if (!S_ISREG(st.st_mode))
            return base_error(IFX_EINVAL, "%s: not a regular file, it cannot be replaced", path);
        char *real = realpath(path, NULL);
        if (real == NULL)
            return out_error(path, "cannot resolve");
        *out = real; /* malloc family, like everything of base_free */
        return IFX_OK;
    }
    *out = base_strdup(path);
    return *out != NULL ? IFX_OK : IFX_ENOMEM;
}

/* NAME.PID-N.tmp of this target. */
static bool is_temporary(const char *entry, const char *name, size_t n)
{
    const char *p = entry + n;
    if (strncmp(entry, name, n) != 0 || *p++ != '.')
        return false;
    size_t pid = strspn(p, "0123456789");
    p += pid;
    if (pid == 0 || *p++ != '-')
        return false;
    size_t number = strspn(p, "0123456789");
    return number > 0 && strcmp(p + number, ".tmp") == 0;
}

/* Removes a temporary whose writer is gone: it held a lock, which dies with a process however that ends.  (A process id says
 * less: another container has others.) */
static void remove_if_stale(int folder, const char *entry)
{
    struct stat st;
    int fd = openat(folder, entry, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        base_log(IFX_LOG_INFO, "removing %s, left behind by a process that was killed", entry);
        (void)unlinkat(folder, entry, 0);
    }
    close(fd);
}

static void remove_stale(const char *path, const char *name, int dir)
{
    char *folder = dir ? base_format("%.*s", dir, path) : base_strdup(".");
    char *prefix = base_format(".%.200s", name); /* see open_temporary */
    int fd = folder && prefix ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    for (const struct dirent *e = d ? readdir(d) : NULL; e != NULL; e = readdir(d))
        if (is_temporary(e->d_name, prefix, strlen(prefix)))
            remove_if_stale(dirfd(d), e->d_name);
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    base_free(folder);
    base_free(prefix);
}

/* Takes the lock that says "somebody is writing this"; false when remove_stale of another process was faster. */
static bool claim(int fd)
{
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return errno != EWOULDBLOCK; /* a file system without locks: nobody removes anything there */
    return fstat(fd, &st) != 0 || st.st_nlink > 0;
}

static int32_t open_temporary(struct base_out *o)
{
    const char *slash = strrchr(o->path, '/');
    const char *name = slash ? slash + 1 : o->path;
    int dir = slash ? (int)(slash - o->path) + 1 : 0;
    if (*name == 0)
        return base_error(IFX_EINVAL, "%s: ends in a slash, name a file", o->path);
    remove_stale(o->path, name, dir);
    for (int i = 0; i < 100; i++) {
        base_free(o->temporary);
        o->temporary = base_format("%.*s.%.200s.%ld-%d.tmp", dir, o->path, name, (long)getpid(), i);
        if (o->temporary == NULL)
            return IFX_ENOMEM;
        o->fd = open(o->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd >= 0 && claim(o->fd))
            return IFX_OK;
        if (o->fd >= 0) {
            close(o->fd);
            o->fd = -1;
        } else if (errno != EEXIST) {
            break;
        }
    }
    int32_t status = out_error(o->path, "cannot create");
    base_free(o->temporary);
    o->temporary = NULL; /* nothing of ours to remove */
    return status;
}

int32_t base_out_open(const char *path, bool force, struct base_out **out)
{
    *out = NULL;
    struct base_out *o = base_calloc(1, sizeof *o);
    if (o == NULL)
        return IFX_ENOMEM;
    o->fd = -1;
    o->force = force;
    int32_t status = resolve_target(path, force, &o->path);
    if (status == IFX_OK)
        status = open_temporary(o);
    if (status == IFX_OK) {
        o->buffer = base_alloc(BUFFER_BYTES, 64);
        if (o->buffer == NULL)
            status = IFX_ENOMEM;
    }
    if (status != IFX_OK) {
        base_out_abort(&o);
        return status;
    }
    *out = o;
    return IFX_OK;
}

static int32_t write_at(struct base_out *o, const char *p, uint64_t n, uint64_t offset)
{
    if (offset > INT64_MAX || n > INT64_MAX - offset) {
        o->failed = true;
        return base_error(IFX_EINVAL, "%s: offset %llu is too large", o->path, (unsigned long long)offset);
    }
    while (n > 0) {
        ssize_t w = pwrite(o->fd, p, n > (1u << 30) ? (1u << 30) : n, (off_t)offset);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0) {
            o->failed = true;
            if (w == 0)
                errno = EIO;
            return out_error(o->path, "cannot write");
        }
        p += w;
        n -= (uint64_t)w;
        offset += (uint64_t)w;
    }
    return IFX_OK;
}

static int32_t flush(struct base_out *o)
{
    int32_t status = write_at(o, o->buffer, o->buffered, o->offset);
    if (status == IFX_OK) {
        o->offset += o->buffered;
        o->buffered = 0;
    }
    return status;
}

static int32_t still_good(const struct base_out *o)
{
    return o->failed ? base_error(IFX_EIO, "%s: an earlier write failed", o->path) : IFX_OK;
}

int32_t base_out_open_memory(const char *name, struct base_out **out)
{
    *out = NULL;
    struct base_out *o = base_calloc(1, sizeof *o);
    if (o == NULL)
        return IFX_ENOMEM;
    o->fd = memfd_create(name, MFD_CLOEXEC);
    o->path = base_strdup(name);
    o->buffer = base_alloc(BUFFER_BYTES, 64);
    int32_t status = o->path != NULL && o->buffer != NULL ? IFX_OK : IFX_ENOMEM;
    if (status == IFX_OK && o->fd < 0)
        status = out_error(name, "cannot make a file in memory");
    if (status != IFX_OK) {
        base_out_abort(&o);
        return status;
    }
    *out = o;
    return IFX_OK;
}

int32_t base_out_commit_memory(struct base_out **out, int *fd)
{
    struct base_out *o = *out;
    int32_t status = still_good(o);
    if (status == IFX_OK)
        status = flush(o);
    if (status == IFX_OK) {
        *fd = o->fd;
        o->fd = -1;
    }
    base_out_abort(out);
    return status;
}

int32_t base_out_write(struct base_out *o, const void *data, uint64_t bytes)
{
    int32_t status = still_good(o);
    if (status == IFX_OK && bytes > BUFFER_BYTES - o->buffered)
        status = flush(o);
    if (status != IFX_OK)
        return status;
    if (bytes >= BUFFER_BYTES) {
        status = write_at(o, data, bytes, o->offset);
        if (status == IFX_OK)
            o->offset += bytes;
        return status;
    }
    if (bytes > 0)
        memcpy(o->buffer + o->buffered, data, bytes);
    o->buffered += bytes;
    return IFX_OK;
}

int32_t base_out_pwrite(struct base_out *o, const void *data, uint64_t bytes, uint64_t offset)
{
    int32_t status = still_good(o);
    if (status == IFX_OK)
        status = flush(o);
    return status == IFX_OK ? write_at(o, data, bytes, offset) : status;
}

uint64_t base_out_offset(const struct base_out *o)
{
    return o->offset + o->buffered;
}

/* A target that appeared since the open is not overwritten unless forced. */
static int32_t put_in_place(const struct base_out *o)
{
    if (o->force)
        return rename(o->temporary, o->path) == 0 ? IFX_OK : out_error(o->path, "cannot rename to it");
    if (renameat2(AT_FDCWD, o->temporary, AT_FDCWD, o->path, RENAME_NOREPLACE) == 0)
        return IFX_OK;
    if (errno == EINVAL || errno == ENOSYS) { /* a file system without that flag */
        if (link(o->temporary, o->path) == 0) {
            unlink(o->temporary);
            return IFX_OK;
        }
        if (errno != EEXIST) { /* nor links (FAT): the small race is left */
            struct stat st;
            errno = lstat(o->path, &st) == 0 ? EEXIST : 0;
            if (errno == 0 && rename(o->temporary, o->path) == 0)
                return IFX_OK;
        }
    }
    return errno == EEXIST ? exists_error(o->path) : out_error(o->path, "cannot rename to it");
}

static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? base_format("%.*s", (int)(slash - path) + 1, path) : base_strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd); /* many file systems refuse it; the file itself is safe */
        close(fd);
    }
    base_free(folder);
}

int32_t base_out_commit(struct base_out **out)
{
    struct base_out *o = *out;
    int32_t status = still_good(o);
    if (status == IFX_OK)
        status = flush(o);
    if (status == IFX_OK && fsync(o->fd) != 0)
        status = out_error(o->path, "cannot write to disk");
    int fd = o->fd;
    o->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* keeps the lock until the file has its name */
    if (close(fd) != 0 && status == IFX_OK)
        status = out_error(o->path, "cannot close");
    if (status == IFX_OK)
        status = put_in_place(o);
    if (status == IFX_OK) {
        sync_folder(o->path);
        base_free(o->temporary);
        o->temporary = NULL;
    }
    base_out_abort(out);
    return status;
}

void base_out_abort(struct base_out **out)
{
    struct base_out *o = *out;
    *out = NULL;
    if (o == NULL)
        return;
    if (o->fd >= 0)
        close(o->fd);
    if (o->temporary != NULL)
        unlink(o->temporary);
    base_free(o->temporary);
    base_free(o->path);
    base_free(o->buffer);
    base_free(o);
}
