/* cli/open.h: what every command that runs a model opens first, with notices and progress on stderr, and what it says
 * about files. */
#ifndef CLI_OPEN_H
#define CLI_OPEN_H

#include "cli/progress.h"
#include "ebb/model.h"

/* A CPU device and a model on it; loading is drawn on `bar`. On failure *device and *model hold what was opened. */
ebb_status open_model(const char *folder, int64_t threads, progress_bar *bar, ebb_device **device, ebb_model **model,
                      ebb_error *error);
/* Ids of a UTF-8 text of up to 1 GiB, special tokens in it as plain text; the caller frees them. */
ebb_status open_text(const ebb_model *model, const char *path, int32_t **ids, int64_t *count, ebb_error *error);
/* Said before the work, not after it: a file that cannot be written. Leaves no file that was not there. */
ebb_status check_writable(const char *path, ebb_error *error);
/* "models/tiny-gdn/" -> "tiny-gdn"; returns `name`. */
const char *last_part(const char *path, char *name, size_t room);

#endif
