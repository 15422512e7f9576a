/* model_folder.h: where a model lies that the repository need not have: EBB_MODELS_DIR/NAME, else models/NAME. */
#ifndef TESTS_MODEL_FOLDER_H
#define TESTS_MODEL_FOLDER_H

#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>

/* NULL: in neither place. */
static inline const char *model_folder(const char *name, char path[static 512]) {
    const char *places[] = {getenv("EBB_MODELS_DIR"), SOURCE_DIR "/models"};
    for (int32_t i = 0; i < COUNT(places); i++) {
        char config[544];
        if (!places[i]) continue;
        snprintf(path, 512, "%s/%s", places[i], name);
        snprintf(config, sizeof config, "%s/config.json", path);
        if (file_exists(config)) return path;
    }
    return NULL;
}

#endif
