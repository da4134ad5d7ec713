/* Small files, many in a call, and rows of PNG files. */
#ifndef PACKSTORE_IO_H
#define PACKSTORE_IO_H

#include "../core/base.h"

/* files.c */
void read_files(int directory, const char *names, int64_t count, const int64_t *sizes, const int64_t *modified,
                uint8_t *to, uint8_t *refused);
int64_t scan_tar(int file, int64_t at, int64_t end, int64_t most, int64_t (*facts)[3], char *names);
void stat_files(int directory, const char *names, int64_t count, int64_t *facts);
int list_names(int directory, int64_t capacity, char *files, char *folders, int64_t *sizes);

/* png.c */
enum outcome png_rows(const uint8_t *packed, int64_t packed_bytes, uint8_t *to, int64_t rows, int64_t nbytes,
                      int64_t step, bool is_all);

#endif
