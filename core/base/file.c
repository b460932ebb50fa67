/* SPDX-License-Identifier: Apache-2.0
 *
 * file.c - reading and mapping regular files.
 */
#include "config.h"
#include "base.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int32_t system_error(const char *path, const char *what)
{
    int error = errno;
    return base_error(error == ENOENT || error == ENOTDIR ? IFX_ENOTFOUND : IFX_EIO, "%s: %s: %s", path, what,
                      strerror(error));
}

/* O_NONBLOCK so that a FIFO or a tape without a reader cannot hang the open; regular files do not care. */
static int32_t open_regular(const char *path, int *fd, uint64_t *bytes)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return system_error(path, "cannot open");
    int32_t status = IFX_OK;
    if (fstat(*fd, &st) != 0)
        status = system_error(path, "cannot stat");
    else if (S_ISDIR(st.st_mode))
        status = base_error(IFX_EINVAL, "%s: is a directory, a file is needed", path);
    else if (!S_ISREG(st.st_mode))
        status = base_error(IFX_EINVAL, "%s: not a regular file (a device, pipe or socket)", path);
    if (status != IFX_OK) {
        close(*fd);
        *fd = -1;
        return status;
    }
    *bytes = (uint64_t)st.st_size;
    return IFX_OK;
}

static int32_t too_long(const char *path, uint64_t max_bytes)
{
    return base_error(IFX_ELIMIT, "%s: larger than the %llu bytes allowed", path, (unsigned long long)max_bytes);
}

int32_t base_read_file(const char *path, uint64_t max_bytes, char **data, uint64_t *bytes)
{
    struct base_buf b = {0};
    char chunk[16384];
    uint64_t size;
    int fd;
    *data = NULL;
    *bytes = 0;
    int32_t status = open_regular(path, &fd, &size);
    if (status != IFX_OK)
        return status;
    if (size > max_bytes)
        status = too_long(path, max_bytes);
    /* To the end rather than to st_size: files of /proc say 0, and another process may be writing. */
    while (status == IFX_OK) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = system_error(path, "cannot read");
        else
            status = base_buf_add(&b, chunk, (uint64_t)n);
        if (status == IFX_OK && b.len > max_bytes)
            status = too_long(path, max_bytes);
        if (n == 0)
            break;
    }
    close(fd);
    if (status != IFX_OK) {
        base_buf_free(&b);
        return status;
    }
    *data = b.data;
    *bytes = b.len;
    return IFX_OK;
}

int32_t base_map_file(const char *path, const void **data, uint64_t *bytes, int *fd_out)
{
    int fd;
    uint64_t size;
    *data = NULL;
    *bytes = 0;
    if (fd_out != NULL)
        *fd_out = -1;
    int32_t status = open_regular(path, &fd, &size);
    if (status != IFX_OK)
        return status;
    if (size == 0) {
        close(fd);
        return base_error(IFX_EFORMAT, "%s: the file is empty", path);
    }
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        status = system_error(path, "cannot map");
        close(fd);
        return status;
    }
    if (fd_out != NULL)
        *fd_out = fd;
    else
        close(fd);
    *data = p;
    *bytes = size;
    return IFX_OK;
}
