/* Reads many small files or headers in one call: separate calls from Python take longer than the reading. */
#include "../core/base.h"

#if !defined(_WIN32)

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__linux__) && defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__))
/* System calls instead of fstat and fstatat, which are symbols only since glibc 2.33: a wheel that names them does not
 * install on older systems. The kernel's structure is that of the C library here. */
#include <sys/syscall.h>
#define facts_of_open(file, found) ((int)syscall(SYS_fstat, (file), (found)))
#define facts_at(directory, name, found) ((int)syscall(SYS_newfstatat, (directory), (name), (found), 0))
#else
#define facts_of_open(file, found) fstat((file), (found))
#define facts_at(directory, name, found) fstatat((directory), (name), (found), 0)
#endif

enum { BILLION = 1000000000 };

#if defined(__APPLE__)
#define st_mtim st_mtimespec
#define st_ctim st_ctimespec
#endif

static int64_t nanoseconds(struct timespec time)
{
    return (int64_t)time.tv_sec * BILLION + time.tv_nsec;
}

/* Reads all bytes of a regular file. REFUSED if it has another size or time, or is not a regular file. Opens without
 * blocking, since it may be a pipe. */
static enum outcome read_file(int directory, const char *name, int64_t nbytes, int64_t modified, uint8_t *to)
{
    struct stat found;
    int file = openat(directory, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return REFUSED;
    bool same = !facts_of_open(file, &found) && S_ISREG(found.st_mode) && found.st_size == nbytes &&
                nanoseconds(found.st_mtim) == modified;
    while (same && nbytes) {
        ssize_t part = read(file, to, (size_t)nbytes);
        same = part > 0;
        to += part;
        nbytes -= part;
    }
    close(file);
    return same ? DONE : REFUSED;
}

/* Reads `count` files one after the other. `names` has a zero byte after each name. Sets `refused` for each file that
 * has changed since it was listed or cannot be read; the caller finds out why. */
EXPORT void packstore_engine_read_files(int directory, const char *names, int64_t count, const int64_t *sizes,
                                        const int64_t *modified, uint8_t *to, uint8_t *refused)
{
    for (int64_t n = 0; n < count; n++) {
        refused[n] = read_file(directory, names, sizes[n], modified[n], to) != DONE;
        names += strlen(names) + 1;
        to += sizes[n];
    }
}

enum { TAR_BLOCK = 512, TAR_NAME = 257, PAX_LEAST = 7 };

/* Returns a number of octal digits, with a space or zero byte after it; -1 for anything else. */
static int64_t parse_octal(const char *at, int digits)
{
    int64_t value = 0;
    for (; digits; digits--, at++) {
        if (*at < '0' || *at > '7')
            return -1;
        value = value << 3 | (*at - '0');
    }
    return *at == ' ' || !*at ? value : -1;
}

/* Parses what all headers of a tar share: writes size and time of modification. REFUSED for numbers of other widths,
 * and a wrong magic or checksum. */
static enum outcome parse_tar_header(const char *block, int64_t *size, int64_t *modified)
{
    int64_t check = parse_octal(block + 148, 6);
    if (memcmp(block + 257, "ustar\00000", 8) && memcmp(block + 257, "ustar  ", 8))
        return REFUSED;
    for (int i = 0; i < TAR_BLOCK; i++)
        check -= i < 148 || i >= 156 ? (uint8_t)block[i] : ' ';
    *size = parse_octal(block + 124, 11);
    *modified = parse_octal(block + 136, 11);
    return !check && *size >= 0 && *modified >= 0 && (block[155] == ' ' || !block[155]) ? DONE : REFUSED;
}

/* Writes the name in a header, with a zero byte after it. REFUSED for a prefix of another format than POSIX. */
static enum outcome read_tar_name(const char *block, char *name)
{
    size_t prefix = strnlen(block + 345, 155), length = strnlen(block, 100);
    if (prefix && memcmp(block + 257, "ustar\00000", 8))
        return REFUSED;
    if (prefix) {
        memcpy(name, block + 345, prefix);
        name[prefix++] = '/';
    }
    memcpy(name + prefix, block, length);
    name[prefix + length] = 0;
    return DONE;
}

/* Parses the fields of a pax header (POSIX.1-2017): writes path and whole seconds of the time of modification, if they
 * are there. REFUSED for other fields that count, and for a path that is long or not ASCII. */
static enum outcome parse_pax(const char *at, const char *end, char *name, int64_t *modified)
{
    while (at < end) {
        int64_t size = 0;
        const char *digit = at;
        for (; digit < end && digit < at + 3 && *digit >= '0' && *digit <= '9'; digit++)
            size = size * 10 + *digit - '0';
        const char *field = digit + 1, *next = at + size;
        if (size > end - at || next - field < PAX_LEAST || *digit != ' ' || next[-1] != '\n')
            return REFUSED;
        at = next--;
        if (!memcmp(field, "path=", 5)) {
            ptrdiff_t length = next - field - 5;
            if (length >= TAR_NAME)
                return REFUSED;
            for (ptrdiff_t i = 0; i < length; i++)
                if ((uint8_t)((name[i] = field[5 + i]) - 1) >= 127)
                    return REFUSED;
            name[length] = 0;
        } else if (!memcmp(field, "mtime=", 6)) {
            *modified = 0;
            for (field += 6; *field >= '0' && *field <= '9'; field++)
                if ((*modified = *modified * 10 + *field - '0') >> 33)
                    return REFUSED;
            if (*field == '.')
                for (field++; *field >= '0' && *field <= '9'; field++)
                    ;
            if (field != next)
                return REFUSED;
        } else if (memcmp(field, "atime=", 6) && memcmp(field, "ctime=", 6))
            return REFUSED;
    }
    return DONE;
}

/* Reads the headers of up to `most` files and directories that follow one another in a tar, from offset `at` up to
 * `end`. Writes offset and size of the data (-1 for a directory) and time of modification of each to `facts`, and its
 * name with a zero byte after it to `names`, TAR_NAME bytes at most. Stops at the first other header. Returns the
 * number of members. */
EXPORT int64_t packstore_engine_scan_tar(int file, int64_t at, int64_t end, int64_t most, int64_t (*facts)[3],
                                         char *names)
{
    char block[TAR_BLOCK], fields[TAR_BLOCK];
    int64_t count = 0;
    for (; count < most && at < end && pread(file, block, TAR_BLOCK, (off_t)at) == TAR_BLOCK; count++) {
        int64_t *fact = facts[count], size = 0;
        bool known = parse_tar_header(block, &fact[1], &fact[2]) == DONE;
        bool pax = known && block[156] == 'x' && (size = fact[1]) <= TAR_BLOCK;
        if (pax)
            known = pread(file, fields, TAR_BLOCK, (off_t)(at += TAR_BLOCK)) == TAR_BLOCK &&
                    pread(file, block, TAR_BLOCK, (off_t)(at += TAR_BLOCK)) == TAR_BLOCK &&
                    parse_tar_header(block, &fact[1], &fact[2]) == DONE;
        bool folder = block[156] == '5';
        if (!known || (block[156] != '0' && !folder) || read_tar_name(block, names) != DONE ||
            (pax && parse_pax(fields, fields + size, names, &fact[2]) != DONE))
            break;
        size_t length = strlen(names);
        if (!length || (!folder && names[length - 1] == '/'))
            break;
        fact[0] = at + TAR_BLOCK;
        at = fact[0] + (folder ? 0 : (fact[1] + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK);
        if (folder)
            fact[1] = -1;
        names += length + 1;
    }
    return count;
}

/* Writes size, time of modification and time of change of `count` files; follows links. Three zeros for a missing name,
 * -1 and two zeros for anything but a file. `names` has a zero byte after each name. */
EXPORT void packstore_engine_stat_files(int directory, const char *names, int64_t count, int64_t *facts)
{
    for (int64_t n = 0; n < count; n++) {
        struct stat found;
        bool exists = !facts_at(directory, names, &found), file = exists && S_ISREG(found.st_mode);
        facts[0] = file ? (int64_t)found.st_size : -exists;
        facts[1] = file ? nanoseconds(found.st_mtim) : 0;
        facts[2] = file ? nanoseconds(found.st_ctim) : 0;
        names += strlen(names) + 1;
        facts += 3;
    }
}

/* Lists an open directory: writes names of directories, and of links to them, to `folders`, all other names to `files`,
 * each with a zero byte after it. `sizes` receives the bytes that both lists take; names beyond `capacity` bytes are
 * not written. Returns 0 or an errno. */
EXPORT int packstore_engine_list_names(int directory, int64_t capacity, char *files, char *folders, int64_t *sizes)
{
    char *places[] = {files, folders};
    int own = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = own < 0 ? NULL : fdopendir(own);
    sizes[0] = sizes[1] = 0;
    if (!entries) {
        int error = errno;
        if (own >= 0)
            close(own);
        return error;
    }
    for (const struct dirent *entry; errno = 0, (entry = readdir(entries));) {
        const char *name = entry->d_name;
        if (!strcmp(name, ".") || !strcmp(name, ".."))
            continue;
        bool folder = entry->d_type == DT_DIR;
        if (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN) {
            struct stat found;
            folder = !facts_at(directory, name, &found) && S_ISDIR(found.st_mode);
        }
        int64_t size = (int64_t)strlen(name) + 1;
        if (sizes[folder] + size <= capacity)
            memcpy(places[folder] + sizes[folder], name, (size_t)size);
        sizes[folder] += size;
    }
    int error = errno;
    closedir(entries);
    return error;
}

#endif
