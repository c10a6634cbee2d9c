/* A disk that remembers what was forced to it: goes before a process with LD_PRELOAD.
 *
 * DISK_ROOT: the directory that is watched. DISK_NOTES: where notes go, a file an inode.
 * data-<inode>: the bytes of a file at its last fsync. names-<inode>: "<type> <inode> <name>" of each entry of a directory
 * at its last fsync. An inode that is used again for a new file or directory loses its note. Notes appear whole.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int real_open(const char *path, int flags, mode_t mode) {
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode);
}

/* Whether the descriptor is of a file or directory below DISK_ROOT. */
static int is_watched(int fd, struct stat *status) {
    const char *root = getenv("DISK_ROOT");
    char link[64], path[PATH_MAX];
    if (root == NULL || getenv("DISK_NOTES") == NULL || fstat(fd, status) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    size_t length = strlen(root);
    return strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static void name_note(char *path, const char *kind, ino_t inode) {
    snprintf(path, PATH_MAX, "%s/%s-%lu", getenv("DISK_NOTES"), kind, (unsigned long)inode);
}

static void fail(const char *what) {
    perror(what);
    abort();
}

/* Begins a note under another name; returns its descriptor. */
static int begin(char *path) {
    snprintf(path, PATH_MAX, "%s/.%d-%ld", getenv("DISK_NOTES"), (int)getpid(), syscall(SYS_gettid));
    int note = real_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (note < 0) fail("a note cannot be written");
    return note;
}

static void put(int note, const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t written = write(note, bytes, size);
        if (written < 0) fail("a note cannot be written");
        bytes += written, size -= (size_t)written;
    }
}

static void end(int note, const char *begun, const char *kind, ino_t inode) {
    char path[PATH_MAX];
    close(note);
    name_note(path, kind, inode);
    if (rename(begun, path) != 0) fail("a note cannot be named");
}

static void note_bytes(int fd, ino_t inode) {
    char begun[PATH_MAX], link[64], buffer[65536];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int file = real_open(link, O_RDONLY, 0), note = begin(begun);
    if (file < 0) fail("a file cannot be read again");
    for (ssize_t size; (size = read(file, buffer, sizeof buffer)) > 0;) put(note, buffer, (size_t)size);
    close(file);
    end(note, begun, "data", inode);
}

static void note_names(int fd, ino_t inode) {
    char begun[PATH_MAX], link[64], line[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    DIR *directory = opendir(link);
    int note = begin(begun);
    if (directory == NULL) fail("a directory cannot be read");
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        int size = snprintf(line, sizeof line, "%c %lu %s\n", entry->d_type == DT_DIR ? 'd' : 'f',
                            (unsigned long)entry->d_ino, entry->d_name);
        put(note, line, (size_t)size);
    }
    closedir(directory);
    end(note, begun, "names", inode);
}

static int forced(int fd, int result) {
    struct stat status;
    int before = errno;
    if (result == 0 && is_watched(fd, &status)) {
        if (S_ISDIR(status.st_mode)) note_names(fd, status.st_ino);
        else if (S_ISREG(status.st_mode)) note_bytes(fd, status.st_ino);
    }
    errno = before;
    return result;
}

int fsync(int fd) { return forced(fd, (int)syscall(SYS_fsync, fd)); }

int fdatasync(int fd) { return forced(fd, (int)syscall(SYS_fdatasync, fd)); }

/* A new file has nothing on disk, whatever file had its inode before. */
static int opened(int fd, int flags) {
    struct stat status;
    char path[PATH_MAX];
    int before = errno;
    if (fd >= 0 && (flags & O_CREAT) && is_watched(fd, &status) && S_ISREG(status.st_mode) && status.st_size == 0) {
        name_note(path, "data", status.st_ino);
        unlink(path);
    }
    errno = before;
    return fd;
}

#define MODE(flags)                                        \
    mode_t mode = 0;                                       \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {               \
        va_list rest;                                      \
        va_start(rest, flags);                             \
        mode = (mode_t)va_arg(rest, int);                  \
        va_end(rest);                                      \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return opened((int)syscall(SYS_openat, AT_FDCWD, path, flags, mode), flags);
}

int open64(const char *path, int flags, ...) {
    MODE(flags)
    return opened((int)syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode), flags);
}

int openat(int at, const char *path, int flags, ...) {
    MODE(flags)
    return opened((int)syscall(SYS_openat, at, path, flags, mode), flags);
}

int openat64(int at, const char *path, int flags, ...) {
    MODE(flags)
    return opened((int)syscall(SYS_openat, at, path, flags | O_LARGEFILE, mode), flags);
}

int mkdir(const char *path, mode_t mode) {
    int result = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode), before = errno;
    struct stat status;
    char note[PATH_MAX];
    if (result == 0 && getenv("DISK_NOTES") != NULL && stat(path, &status) == 0) {
        name_note(note, "names", status.st_ino);
        unlink(note);
    }
    errno = before;
    return result;
}
